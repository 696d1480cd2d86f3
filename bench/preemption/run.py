"""The steps of a run: let the crowd run, create what comes, and watch until it is bound."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from bench.load.objects import NAMESPACE
from bench.load.run import IN_FLIGHT, StuckError
from bench.preemption.objects import Made, Play, coming_groups, coming_pods, running_groups, running_pods
from bench.preemption.watch import Watch
from serried.kube.client import ApiClient
from serried.kube.reflector import Reflector
from serried.kube.wire import JSON, PODS, Selection

_SETTLE_SECONDS = 3.0
"""For how long nothing is done before gangs come, and until no more victims are waited for."""

_START_SECONDS = 60.0
"""How long it may take until the crowd runs."""

Item = TypeVar("Item")


@asynccontextmanager
async def fill(client: ApiClient, play: Play) -> AsyncIterator[Watch]:
    """Let the crowd run, and watch it and what comes. Raises StuckError if it does not run in time."""
    case = play.case
    watch = Watch(play.label, sum(len(crowd.nodes) for crowd in case.crowds), case.gangs * case.size, time.monotonic)
    reflector = Reflector(client, PODS, watch, selection=Selection(NAMESPACE, labels=play.selector))
    following = asyncio.create_task(reflector.run())
    try:
        await reflector.listed.wait()
        await _create_each(client, running_groups(play), running_pods(play))
        await _await_running(watch)
        yield watch
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def bring(client: ApiClient, play: Play, watch: Watch, seconds: float) -> None:
    """Create what comes, and return when it is bound, or when ``seconds`` are over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await _create_each(client, coming_groups(play), coming_pods(play))
            await watch.all_bound.wait()


async def let_settle() -> None:
    """Wait for schedulers to have heard of what was done, and for what they still do."""
    await asyncio.sleep(_SETTLE_SECONDS)


async def _await_running(watch: Watch) -> None:
    try:
        await asyncio.wait_for(watch.all_run.wait(), _START_SECONDS)
    except TimeoutError:
        raise StuckError(f"what is to run does not run after {_START_SECONDS:.0f} s") from None
    await let_settle()


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
