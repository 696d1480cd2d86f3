"""A reflector that follows the fake API server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from serried.kube.reflector import Deleted, Event, Reflector, Upserted, WatchTiming
from serried.kube.retry import Backoff
from serried.kube.wire import EVERYTHING, PODS, Resource, Selection
from serried.ops.metrics import Metrics
from tests.support.apiserver import FakeApiServer
from tests.support.memory import read_memory

QUICK = WatchTiming(backoff=Backoff(0.005, cap=0.02), unserved=0.01, unserved_after=0.02, absent_after=0.02)
"""Pauses so long that no test waits for them."""

EXPIRED = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}'
"""The watch error for an expired resourceVersion."""

BUSY = b'{"type":"ERROR","object":{"kind":"Status","code":503,"details":{"retryAfterSeconds":3600}}}'
"""The watch error that asks for a retry in one hour."""


class Recorder:
    """A sink that records events and maintains the resulting state."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.state: dict[str, Any] = {}
        self._changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        """Record a change from the reflector."""
        self.events.append(event)
        if isinstance(event, Upserted):
            self.state[event.obj["metadata"]["name"]] = event.obj
        elif isinstance(event, Deleted):
            self.state.pop(event.obj["metadata"]["name"], None)
        self._changed.set()

    async def await_state(self, condition: Callable[[], bool]) -> None:
        """Wait for a state; fails after 10 s."""
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def await_objects(self, *names: str) -> None:
        """Wait until the objects of these names are known, and no others."""
        await self.await_state(lambda: set(self.state) == set(names))

    def count(self, kind: type) -> int:
        """Count the events of this kind."""
        return sum(isinstance(event, kind) for event in self.events)


class RestartRecorder(Metrics):
    """Metrics that record why watches ended."""

    def __init__(self) -> None:
        super().__init__()
        self.causes: list[str] = []
        self._changed = asyncio.Event()

    def watch_restarted(self, resource: str, cause: str) -> None:
        """Record the end of a watch."""
        self.causes.append(cause)
        self._changed.set()

    async def await_restart(self, cause: str) -> None:
        """Wait until a watch has ended for this cause."""
        while cause not in self.causes:
            self._changed.clear()
            await self._changed.wait()


@dataclass
class RunningReflector:
    """A running reflector with its API server, sink and metrics."""

    server: FakeApiServer
    sink: Recorder
    metrics: RestartRecorder
    reflector: Reflector

    @property
    def streams(self) -> int:
        """The number of streaming lists so far."""
        return len([r for r in self.server.requests if "sendInitialEvents" in r.params])

    @property
    def lists(self) -> int:
        """The number of lists so far, streamed or not."""
        return self.streams + len([r for r in self.server.requests if not r.is_watch and "continue" not in r.params])

    async def await_streaming(self) -> None:
        """Wait until the next list is streamed."""
        await wait_until(lambda: read_memory(self.reflector)["list_mode"].streams)


@asynccontextmanager
async def following(
    server: FakeApiServer, resource: Resource = PODS, timing: WatchTiming = QUICK, selection: Selection = EVERYTHING
) -> AsyncIterator[RunningReflector]:
    """Follow a resource until the block ends."""
    sink = Recorder()
    metrics = RestartRecorder()
    async with server.client() as client:
        client.metrics = metrics
        reflector = Reflector(client, resource, sink, selection=selection, timing=timing)
        task = asyncio.create_task(reflector.run())
        try:
            yield RunningReflector(server, sink, metrics, reflector)
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a state that has no event; fails after 10 s."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - it is seen from outside
            await asyncio.sleep(0.002)


def pod(name: str, **spec: Any) -> dict[str, Any]:
    """Return a pod in the namespace default. ``spec`` are fields of its spec."""
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def believe_after(seconds: float) -> WatchTiming:
    """Return the timing of a reflector that believes "not served" or "forbidden" after ``seconds`` of such answers.

    With nearly 0 seconds it believes the second such answer.
    """
    return WatchTiming(backoff=Backoff(0.001, cap=0.005), unserved=0.01, unserved_after=seconds, absent_after=seconds)


BELIEVE_SECOND_ANSWER = believe_after(1e-9)
