"""Run the controller in the test's event loop, on a fake API server. Tests wait for conditions, never for time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from controller.process import Controller
from controller.protection import ReleaseTiming
from serried.api.level import FALLBACK, ApiLevel
from serried.kube.retry import Backoff
from serried.kube.wire import EVENTS, JOBS, JSON, pod_groups, workloads
from serried.ops.metrics import ControllerMetrics
from serried.settings import controller_settings
from tests.support.apiserver import FakeApiServer
from tests.support.builders import JobBuilder, PodBuilder, job, pod
from tests.support.faults import calls

WORKLOADS = workloads(FALLBACK.group, FALLBACK.version)
GROUPS = pod_groups(FALLBACK.group, FALLBACK.version)
CREATES_WORKLOAD, CREATES_GROUP = calls("POST", "/workloads"), calls("POST", "/podgroups")
READS_PODS = calls("GET", "/namespaces/default/pods")
_PATIENCE_SECONDS = 60.0
"""The longest wait in seconds. It is long, because a busy machine may stand still for seconds."""

RELEASE_TIMING = ReleaseTiming(grace_seconds=0.05, pause=Backoff(first=0.02, cap=0.1))


def gang(name: str = "train", size: int = 3) -> JobBuilder:
    """Build a gang Job for Serried's scheduler."""
    return job(name).size(size).scheduler("serried")


def job_pod(job_name: str, index: int = 0, uid: str = "") -> PodBuilder:
    """Build a Job's pod, as kube-controller-manager creates it."""
    return pod(f"{job_name}-{index}").of_job(job_name, index, uid)


@asynccontextmanager
async def controller_on(
    server: FakeApiServer, *arguments: str, level: ApiLevel = FALLBACK
) -> AsyncIterator[Controller]:
    """Run a controller while the body runs; yield it once its caches are filled. It is cancelled at the end."""
    async with starting_on(server, *arguments, level=level) as controller:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await controller.feed.synced.wait()
        yield controller


@asynccontextmanager
async def starting_on(server: FakeApiServer, *arguments: str, level: ApiLevel = FALLBACK) -> AsyncIterator[Controller]:
    """Run a controller while the body runs; yield it at once, before its caches are filled."""
    async with server.client() as client:
        controller = Controller(
            controller_settings(["--lease=", *arguments], {}),
            client,
            level,
            ControllerMetrics(),
            timing=RELEASE_TIMING,
        )
        running = asyncio.create_task(controller.run())
        try:
            yield controller
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def wait_until(condition: Callable[[], Any]) -> None:
    """Wait until the condition holds. Fail after a minute."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - a server in memory has no event for each condition
            await asyncio.sleep(0.005)


async def wait_until_idle(controller: Controller, server: FakeApiServer) -> None:
    """Wait until the controller has observed all objects and its queue is empty.

    For tests in which the controller must do nothing.
    """
    probe = server.add(JOBS, job("zz-probe").raw())["metadata"]["name"]
    await wait_until(lambda: any(key.name == probe for key in controller.store.jobs))
    server.remove(JOBS, "default", probe)
    await wait_until(lambda: not any(key.name == probe for key in controller.store.jobs) and controller.queue.idle)


def events(server: FakeApiServer, reason: str) -> list[JSON]:
    """Return the events with this reason."""
    return [event for event in server.list_objects(EVENTS) if event["reason"] == reason]


def names(objects: list[JSON]) -> list[str]:
    """Return the names of objects."""
    return [item["metadata"]["name"] for item in objects]
