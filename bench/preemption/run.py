"""The steps of a run: create the running pods, create the preemptors, and watch until the preemptors are bound."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from bench.load.objects import NAMESPACE
from bench.load.run import IN_FLIGHT, StuckError
from bench.preemption.objects import CaseRun, Made, preemptor_groups, preemptor_pods, running_groups, running_pods
from bench.preemption.watch import Watch
from serried.kube.client import ApiClient
from serried.kube.reflector import Reflector
from serried.kube.wire import JSON, PODS, Selection

_SETTLE_SECONDS = 3.0
"""Pause before preemptors are created, and after they are bound, so that late victims are observed."""

_START_SECONDS = 60.0
"""The longest time in seconds until the running pods run."""

Item = TypeVar("Item")


@asynccontextmanager
async def fill(client: ApiClient, case_run: CaseRun) -> AsyncIterator[Watch]:
    """Create the running pods and wait until they run; yield a watch of all pods, which ends with the body.

    Raise StuckError if they do not run in time.
    """
    case = case_run.case
    watch = Watch(case_run.label, sum(len(pods.nodes) for pods in case.running), case.gangs * case.size, time.monotonic)
    reflector = Reflector(client, PODS, watch, selection=Selection(NAMESPACE, labels=case_run.selector))
    following = asyncio.create_task(reflector.run())
    try:
        await reflector.listed.wait()
        await _create_each(client, running_groups(case_run), running_pods(case_run))
        await _await_running(watch)
        yield watch
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def create_preemptors(client: ApiClient, case_run: CaseRun, watch: Watch, seconds: float) -> None:
    """Create the preemptors, and wait until all are bound, but at most ``seconds``."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await _create_each(client, preemptor_groups(case_run), preemptor_pods(case_run))
            await watch.all_bound.wait()


async def settle() -> None:
    """Wait until the schedulers have observed all changes and finished their own work."""
    await asyncio.sleep(_SETTLE_SECONDS)


async def _await_running(watch: Watch) -> None:
    try:
        await asyncio.wait_for(watch.all_run.wait(), _START_SECONDS)
    except TimeoutError:
        raise StuckError(f"what is to run does not run after {_START_SECONDS:.0f} s") from None
    await settle()


async def _create_each(client: ApiClient, groups: Iterable[Made], pods: Iterable[JSON]) -> None:
    async def create_group(made: Made) -> None:
        await client.create(made[0], NAMESPACE, made[1])

    async def create_pod(pod: JSON) -> None:
        await client.create(PODS, NAMESPACE, pod)

    await _for_each(groups, create_group)
    await _for_each(pods, create_pod)


async def _for_each(items: Iterable[Item], act: Callable[[Item], Awaitable[None]]) -> None:
    left = iter(items)
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(_act_on_rest(left, act))


async def _act_on_rest(items: Iterator[Item], act: Callable[[Item], Awaitable[None]]) -> None:
    for item in items:
        await act(item)
