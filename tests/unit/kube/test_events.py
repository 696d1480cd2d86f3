import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from serried.kube.events import EventWriter
from serried.kube.retry import RateLimiter
from serried.kube.wire import EVENTS
from serried.ops.metrics import Metrics
from tests.support.apiserver import FakeApiServer
from tests.support.clock import Clock
from tests.support.faults import calls

GANG = {
    "apiVersion": "scheduling.k8s.io/v1beta1",
    "kind": "PodGroup",
    "namespace": "ns",
    "name": "gang",
    "uid": "u1",
}


class Losses(Metrics):
    def __init__(self) -> None:
        super().__init__()
        self.noticed = asyncio.Event()

    def event_dropped(self) -> None:
        self.noticed.set()


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@asynccontextmanager
async def writing(
    server: FakeApiServer, pause: float = 3600.0, metrics: Metrics | None = None
) -> AsyncIterator[EventWriter]:
    async with server.client() as client:
        client.metrics = metrics or Metrics()
        writer = EventWriter(client, "serried", pause=pause)
        task = asyncio.create_task(writer.run())
        try:
            yield writer
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(server: FakeApiServer, condition: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """The Events as soon as the condition holds of them."""
    changed = asyncio.Event()
    server.storage.listeners.add(lambda _record: changed.set())
    async with asyncio.timeout(10):
        while not condition(server.list_objects(EVENTS)):
            changed.clear()
            await changed.wait()
    return server.list_objects(EVENTS)


async def test_the_first_is_written_at_once_and_whole(server: FakeApiServer) -> None:
    async with writing(server) as writer:
        writer.emit(GANG, "Warning", "NoCapacity", "room for 2 of 3")
        (event,) = await until(server, lambda events: len(events) == 1)
    assert event["metadata"]["namespace"] == "ns"
    assert event["metadata"]["name"].startswith("gang.")
    assert event["involvedObject"] == GANG
    said = {name: event[name] for name in ("type", "reason", "message", "count")}
    assert said == {"type": "Warning", "reason": "NoCapacity", "message": "room for 2 of 3", "count": 1}
    assert event["source"] == {"component": "serried"}
    assert event["firstTimestamp"] == event["lastTimestamp"]


async def test_repeats_wait_and_become_one_count(server: FakeApiServer) -> None:
    async with writing(server, pause=0.05) as writer:
        writer.emit(GANG, "Warning", "NoCapacity", "room for 0 of 3")
        await until(server, lambda events: len(events) == 1)
        for number in range(1, 4):
            writer.emit(GANG, "Warning", "NoCapacity", f"room for {number} of 3")
        (event,) = await until(server, lambda events: events[0]["count"] == 4)
    assert event["message"] == "room for 3 of 3"
    assert len(server.list_requests(calls("PATCH"))) == 1


async def test_a_slow_write_holds_up_neither_others_nor_its_own_order(server: FakeApiServer) -> None:
    gate = server.hold(calls("POST"), times=1)
    async with writing(server, pause=0.01) as writer:
        writer.emit(GANG, "Normal", "Planned", "first")
        await gate.reached.wait()
        writer.emit(GANG, "Normal", "Planned", "second")
        writer.emit(GANG | {"uid": "u2"}, "Normal", "Planned", "of another")
        (other,) = await until(server, lambda events: len(events) == 1)
        assert other["message"] == "of another"
        gate.open()
        await until(server, lambda events: any(event["count"] == 2 for event in events))
    assert [request.method for request in server.requests] == ["POST", "POST", "PATCH"]


async def test_repeats_within_the_pause_are_not_written(server: FakeApiServer) -> None:
    async with writing(server) as writer:
        for reason in ("NoCapacity", "NoCapacity", "Planned"):
            writer.emit(GANG, "Normal", reason, "x")
        await until(server, lambda events: len(events) == 2)
    assert [request.method for request in server.requests] == ["POST", "POST"]


async def test_an_event_that_has_expired_is_made_anew(server: FakeApiServer) -> None:
    async with writing(server, pause=0.02) as writer:
        writer.emit(GANG, "Normal", "Planned", "x")
        (event,) = await until(server, lambda events: len(events) == 1)
        server.remove(EVENTS, "ns", event["metadata"]["name"])
        writer.emit(GANG, "Normal", "Planned", "y")
        (again,) = await until(server, lambda events: len(events) == 1)
    assert again["count"] == 2
    assert again["metadata"]["name"] != event["metadata"]["name"]


async def test_a_full_queue_drops_and_counts(server: FakeApiServer) -> None:
    async with server.client() as client:
        writer = EventWriter(client, "serried", limit=2)
        for number in range(5):
            writer.emit(GANG | {"uid": str(number)}, "Normal", "Planned", "x")
    assert writer.dropped == 3


async def test_a_full_queue_of_news_does_not_drop_a_warning(server: FakeApiServer) -> None:
    async with server.client() as client:
        writer = EventWriter(client, "serried", limit=1)
        for number, kind in enumerate(["Normal", "Normal", "Warning", "Warning"]):
            writer.emit(GANG | {"uid": str(number)}, kind, "Planned", "x")
    assert writer.dropped == 2


async def test_a_flood_of_one_namespace_neither_drops_nor_delays_an_event_of_another(server: FakeApiServer) -> None:
    async with server.client() as client:
        writer = EventWriter(client, "serried", writers=1)
        for number in range(5000):
            writer.emit(GANG | {"namespace": "flood", "uid": str(number)}, "Warning", "NoCapacity", "x")
        writer.emit(GANG, "Warning", "NoCapacity", "of another")
        assert writer.dropped == 3001
        task = asyncio.create_task(writer.run())
        events = await until(server, lambda events: any(event["message"] == "of another" for event in events))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert len(events) <= 4


async def test_what_a_full_queue_drops_is_of_the_namespace_that_has_most_and_its_next_is_a_first_one(
    server: FakeApiServer,
) -> None:
    async with server.client() as client:
        writer = EventWriter(client, "serried", limit=4)
        for namespace, uid in (("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3"), ("b", "b2"), ("c", "c1")):
            writer.emit(GANG | {"namespace": namespace, "uid": uid}, "Warning", "NoCapacity", uid)
        assert writer.dropped == 2  # a3 for b2, then a2 or b2 for c1
        task = asyncio.create_task(writer.run())
        events = await until(server, lambda events: len(events) == 4)
        writer.emit(GANG | {"namespace": "a", "uid": "a3"}, "Warning", "NoCapacity", "a3")
        events = await until(server, lambda events: any(event["message"] == "a3" for event in events))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert {"a1", "b1", "c1", "a3"} <= {event["message"] for event in events}
    assert [event["count"] for event in events] == [1] * 5


async def test_repeats_of_a_namespace_do_not_wait_for_all_those_of_another(server: FakeApiServer) -> None:
    clock = Clock()
    gangs = [GANG | {"namespace": "flood", "uid": f"{number:02}"} for number in range(30)] + [GANG]
    async with server.client() as client:
        writer = EventWriter(client, "serried", writers=1, clock=clock)
        for gang in gangs:
            writer.emit(gang, "Warning", "NoCapacity", "x")
        task = asyncio.create_task(writer.run())
        await until(server, lambda events: len(events) == len(gangs))
        clock.now += 61.0
        for gang in gangs:
            writer.emit(gang, "Warning", "NoCapacity", "y")
        await until(server, lambda events: any(each["count"] == 2 for each in events if each["involvedObject"] == GANG))
        assert len(server.list_requests(calls("PATCH"))) <= 4
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_warnings_go_before_news_when_writes_are_rationed(server: FakeApiServer) -> None:
    clock = Clock()
    async with server.client() as client:
        writer = EventWriter(client, "serried", writers=1, rate_limiter=RateLimiter(rate=20.0, burst=1), clock=clock)
        for number, kind in enumerate(["Normal", "Normal", "Warning"]):
            writer.emit(GANG | {"uid": str(number)}, kind, "Planned", str(number))
        task = asyncio.create_task(writer.run())
        (first,) = await until(server, lambda events: len(events) == 1)
        clock.now += 60.0  # saves up no more than the burst
        await until(server, lambda events: len(events) == 2)
        clock.now += 0.06
        await until(server, lambda events: len(events) == 3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert first["message"] == "2"


async def test_news_wait_while_there_is_better_work_and_warnings_do_not(server: FakeApiServer) -> None:
    busy = True
    async with server.client() as client:
        writer = EventWriter(client, "serried", gives_way=lambda: busy)
        for kind in ("Normal", "Warning"):
            writer.emit(GANG | {"uid": kind}, kind, "Planned", kind)
        task = asyncio.create_task(writer.run())
        (first,) = await until(server, lambda events: len(events) > 0)
        assert first["message"] == "Warning"
        busy = False
        await until(server, lambda events: len(events) == 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_refused_event_is_dropped_and_the_next_is_a_first_one(server: FakeApiServer) -> None:
    server.reject(calls("POST"), status=500)
    losses = Losses()
    async with writing(server, metrics=losses) as writer:
        writer.emit(GANG, "Normal", "Planned", "x")
        await asyncio.wait_for(losses.noticed.wait(), 10)
        writer.emit(GANG, "Normal", "Planned", "y")
        (event,) = await until(server, lambda events: len(events) == 1)
    assert event["message"] == "y"
    assert writer.dropped == 1


async def test_events_of_cluster_scoped_objects_live_in_default(server: FakeApiServer) -> None:
    async with writing(server) as writer:
        node = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u2"}
        writer.emit(node, "Normal", "Planned", "x" * 2000)
        (event,) = await until(server, lambda events: len(events) == 1)
    assert event["metadata"]["namespace"] == "default"
    assert len(event["message"]) == 1024


async def test_one_that_cannot_be_written_stops_no_other(
    server: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    losses = Losses()
    server.garble(calls("POST"), times=1)
    async with writing(server, metrics=losses) as writer:
        writer.emit(GANG, "Warning", "NoCapacity", "met a proxy")
        await asyncio.wait_for(losses.noticed.wait(), 10)
        losses.noticed.clear()
        writer.emit({**GANG, "uid": "u2", "name": object()}, "Warning", "NoCapacity", "odd")  # type: ignore[dict-item]
        await asyncio.wait_for(losses.noticed.wait(), 10)
        writer.emit({**GANG, "uid": "u3"}, "Warning", "NoCapacity", "room for 2 of 3")
        await until(server, lambda events: any(event["message"] == "room for 2 of 3" for event in events))
        assert writer.dropped == 2
    assert "could not write an event; it is dropped" in caplog.text
