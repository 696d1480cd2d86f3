"""The reflector against the fake API server: whatever the watch does, the sink ends with the server's state."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from serried.kube import reflector
from serried.kube.changes import Deleted, Event, Listed, Relisted, Unserved, Upserted
from serried.kube.hooks import Silent
from serried.kube.reflector import CUTS, Pace, Reflector
from serried.kube.wire import EVERYTHING, PODS, RESERVATIONS, Resource, Selection, decode_change
from tests.support.apiserver import FakeApiServer
from tests.support.faults import Request, calls, watches
from tests.support.memory import read_memory

QUICK = Pace(backoff=0.005, cap=0.02, unserved=0.01)


class Recorder:
    """A sink that remembers events and keeps the state they amount to."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.state: dict[str, Any] = {}
        self._changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Upserted):
            self.state[event.obj["metadata"]["name"]] = event.obj
        elif isinstance(event, Deleted):
            self.state.pop(event.obj["metadata"]["name"], None)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def knows(self, *names: str) -> None:
        await self.until(lambda: set(self.state) == set(names))

    def count(self, kind: type) -> int:
        return sum(isinstance(event, kind) for event in self.events)


class Counting(Silent):
    """Hooks that remember why watches ended."""

    def __init__(self) -> None:
        self.causes: list[str] = []
        self._changed = asyncio.Event()

    def watch_restarted(self, resource: str, cause: str) -> None:
        self.causes.append(cause)
        self._changed.set()

    async def ended(self, cause: str) -> None:
        while cause not in self.causes:
            self._changed.clear()
            await self._changed.wait()


class Scene:
    def __init__(self, server: FakeApiServer, sink: Recorder, hooks: Counting, reflector: Reflector) -> None:
        self.server, self.sink, self.hooks, self.reflector = server, sink, hooks, reflector

    @property
    def streams(self) -> int:
        """How often the whole state was asked for as a stream."""
        return len([r for r in self.server.requests if "sendInitialEvents" in r.params])

    @property
    def lists(self) -> int:
        """How often the whole state was asked for."""
        return self.streams + len([r for r in self.server.requests if not r.watches and "continue" not in r.params])

    async def turned_to_streams(self) -> None:
        await until_true(lambda: read_memory(self.reflector)["ways"].streams)


@asynccontextmanager
async def following(
    server: FakeApiServer, resource: Resource = PODS, pace: Pace = QUICK, selection: Selection = EVERYTHING
) -> AsyncIterator[Scene]:
    sink, hooks = Recorder(), Counting()
    async with server.client() as client:
        client.hooks = hooks
        reflector = Reflector(client, resource, sink, selection=selection, pace=pace)
        task = asyncio.create_task(reflector.run())
        try:
            yield Scene(server, sink, hooks, reflector)
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        for name in ("a", "b"):
            server.add(PODS, pod(name))
        yield server


EXPIRED = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}'


def first_pages(request: Request) -> bool:
    return "limit" in request.params and "continue" not in request.params


def second_pages(request: Request) -> bool:
    return "continue" in request.params


async def until_true(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - it is seen from outside
            await asyncio.sleep(0.002)


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


@pytest.fixture(params=["streaming", "paged"])
def either(request: pytest.FixtureRequest, server: FakeApiServer) -> FakeApiServer:
    server.streaming = request.param == "streaming"
    return server


async def test_tells_the_state_then_the_mark_then_changes(either: FakeApiServer) -> None:
    async with following(either) as scene:
        await asyncio.wait_for(scene.reflector.listed.wait(), 10)
        assert [type(event) for event in scene.sink.events] == [Upserted, Upserted, Listed]
        mark = scene.sink.events[-1]
        assert mark == Listed(2, str(either.storage.revision))
        either.add(PODS, pod("c"))
        either.change(PODS, "default", "a", {"spec": {"nodeName": "n1"}})
        either.remove(PODS, "default", "b")
        await scene.sink.knows("a", "c")
        assert scene.sink.state["a"]["spec"]["nodeName"] == "n1"
        assert scene.reflector.last_event_monotonic > 0


async def test_lists_in_pages_and_falls_back_to_them_once(server: FakeApiServer) -> None:
    server.streaming = False
    for number in range(7):
        server.add(PODS, pod(f"p{number}"))
    async with following(server, pace=Pace(page=2, backoff=0.005)) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        assert len(scene.sink.state) == 9
        pages = [r for r in server.requests if "limit" in r.params]
        assert len(pages) == 5
        server.compact()
        server.end_watches()
        server.add(PODS, pod("late"))
        await scene.sink.until(lambda: "late" in scene.sink.state)
        assert len([r for r in server.requests if "sendInitialEvents" in r.params]) == 1


async def test_a_page_token_that_is_too_old_starts_the_list_anew(server: FakeApiServer) -> None:
    server.streaming = False
    gate = server.hold(lambda request: "continue" in request.params, times=1)
    async with following(server, pace=Pace(page=1, backoff=0.005)) as scene:
        await gate.reached.wait()
        server.remove(PODS, "default", "a")
        server.compact()
        gate.open()
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        assert set(scene.sink.state) == {"b"}


@pytest.mark.parametrize("end", ["in good order", "abruptly"])
async def test_streams_that_are_cut_give_way_to_pages(server: FakeApiServer, end: str) -> None:
    server.cut_streams(after=1, abruptly=end == "abruptly")
    async with following(server) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        assert set(scene.sink.state) == {"a", "b"}
        assert scene.streams == CUTS
        assert scene.lists == CUTS + 1
        server.add(PODS, pod("c"))
        await scene.sink.knows("a", "b", "c")


async def test_after_a_while_lists_are_streamed_again(server: FakeApiServer) -> None:
    server.cut_streams(after=1, times=CUTS)
    async with following(server, pace=Pace(backoff=0.005, cap=0.02, in_pages=0.1)) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        await scene.turned_to_streams()
        before = scene.lists
        server.inject(PODS, EXPIRED)
        await scene.sink.until(lambda: scene.sink.count(Relisted) == 1)
        assert server.requests[-1].params.get("sendInitialEvents")
        assert scene.lists == before + 1


async def test_pages_that_are_cut_give_way_to_a_stream(server: FakeApiServer) -> None:
    server.streaming = False
    for number in range(100):
        server.add(PODS, pod(f"p{number}"))
    refused = server.refuse(second_pages, times=1_000_000, status=410, reason="Expired")
    async with following(server, pace=Pace(backoff=0.005, cap=0.02, page=2)) as scene:
        await until_true(lambda: len(server.seen(second_pages)) == CUTS - 1)
        server.streaming = True
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        assert refused.left
        assert server.requests[-1].params.get("sendInitialEvents")
        assert len(scene.sink.state) == 102


async def test_where_nothing_is_streamed_pages_grow_until_the_list_is_whole_before_its_token_expires(
    server: FakeApiServer,
) -> None:
    server.streaming = False
    for number in range(30):
        server.add(PODS, pod(f"p{number}"))
    server.refuse(second_pages, times=1_000_000, status=410, reason="Expired")
    async with following(server, pace=Pace(backoff=0.005, cap=0.02, page=2)) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        assert [int(r.params["limit"]) for r in server.seen(first_pages)] == [2, 4, 8, 16, 32]


@pytest.mark.parametrize("way", ["streams", "pages"])
async def test_however_much_of_them_came_lists_that_are_cut_are_begun_anew_with_growing_pauses(
    server: FakeApiServer, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def uniform(_least: float, most: float) -> float:
        pauses.append(most)
        return 0.0

    server.streaming = way == "streams"
    for number in range(100):
        server.add(PODS, pod(f"p{number}"))
    server.cut_streams(after=100)
    server.refuse(second_pages, times=1_000_000, status=410, reason="Expired")
    monkeypatch.setattr("random.uniform", uniform)
    async with following(server, pace=Pace(page=3, backoff=1.0, cap=8.0)) as scene:
        await scene.sink.until(lambda: len(pauses) == 4)
    assert pauses[:4] == [4.0, 8.0, 8.0, 8.0]


async def test_after_an_outage_the_first_watch_that_ends_is_resumed_at_once(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    uniform = Mock(return_value=0.0)
    monkeypatch.setattr("random.uniform", uniform)
    server.refuse(calls("GET"), times=12, status=500)
    async with following(server) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        await until_true(lambda: bool(server.watches))
        uniform.reset_mock()
        server.end_watches()
        server.add(PODS, pod("c"))
        await scene.sink.knows("a", "b", "c")
    assert uniform.mock_calls == []


async def test_a_server_that_lists_but_cannot_watch_is_listed_anew_after_every_few_tries_only(
    server: FakeApiServer,
) -> None:
    server.refuse(lambda request: "resourceVersion" in request.params, times=1_000_000, status=500)
    async with following(server, pace=Pace(backoff=0.001, cap=0.001)) as scene:
        while scene.sink.count(Relisted) < 3:
            await until_true(lambda: bool(server.watches))
            server.end_watches()
            await until_true(lambda: not server.watches)
        assert len(server.requests) - scene.lists >= 3 * (reflector.STUCK - 1)


async def test_a_page_of_a_proxy_is_no_empty_list(either: FakeApiServer) -> None:
    async with following(either) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        await asyncio.wait_for(either.watched(PODS), 10)
        for page in ("<html>a proxy</html>", '{"items":[]}', '{"message":"hello"}', "[]"):
            either.garble(lambda request: True, times=2, page=page)
        either.inject(PODS, EXPIRED)
        await scene.sink.until(lambda: scene.sink.count(Relisted) == 1)
    assert scene.sink.count(Deleted) == 0


async def test_a_defect_of_ours_in_one_change_does_not_end_the_watch(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def decode(line: bytes) -> Any:
        if b'"odd"' in line and b"ADDED" in line and not caplog.records:
            raise AttributeError("no such thing")
        return decode_change(line)

    monkeypatch.setattr(reflector, "decode_change", decode)
    async with following(server) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        server.add(PODS, pod("odd"))
        await scene.sink.knows("a", "b", "odd")
        assert scene.hooks.causes == ["defect"]
    assert "no such thing" in caplog.text


async def test_a_watch_that_ends_silently_is_resumed_without_a_list(either: FakeApiServer) -> None:
    async with following(either) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        await asyncio.wait_for(either.watched(PODS), 10)
        lists = scene.lists
        either.end_watches()
        either.add(PODS, pod("c"))
        await scene.sink.knows("a", "b", "c")
        assert scene.hooks.causes == ["ended"]
        assert scene.lists == lists
        assert scene.sink.count(Relisted) == 0


async def test_a_broken_connection_is_resumed_without_a_list(server: FakeApiServer) -> None:
    async with following(server) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        server.break_watches()
        server.add(PODS, pod("c"))
        await scene.sink.knows("a", "b", "c")
        assert scene.hooks.causes == ["lost"]
        assert scene.lists == 1


async def test_after_a_bookmark_compaction_does_no_harm(server: FakeApiServer) -> None:
    async with following(server) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        server.add(RESERVATIONS, pod("elsewhere"))
        server.compact()
        server.bookmark()
        server.end_watches()
        server.add(PODS, pod("c"))
        await scene.sink.knows("a", "b", "c")
        assert "gone" not in scene.hooks.causes
        assert scene.lists == 1


async def test_410_lists_again_and_reports_what_vanished(either: FakeApiServer) -> None:
    async with following(either) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        await asyncio.wait_for(either.watched(PODS), 10)
        gate = either.hold(watches())
        either.end_watches()
        await gate.reached.wait()
        gone = either.remove(PODS, "default", "a")
        either.add(PODS, pod("c"))
        either.compact()
        gate.open()
        await scene.sink.until(lambda: scene.sink.count(Relisted) == 1)
        assert set(scene.sink.state) == {"b", "c"}
        deleted = [event.obj for event in scene.sink.events if isinstance(event, Deleted)]
        assert [obj["metadata"]["uid"] for obj in deleted] == [gone["metadata"]["uid"]]
        assert scene.sink.events[-1] == Relisted(2, str(either.storage.revision), 1)
        assert "gone" in scene.hooks.causes


async def test_410_as_status_lists_again(server: FakeApiServer) -> None:
    async with following(server) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        server.refuse(watches(), status=410, reason="Expired")
        server.end_watches()
        await scene.sink.until(lambda: scene.sink.count(Relisted) == 1)
        assert scene.hooks.causes == ["ended", "gone"]


async def test_a_dropped_deletion_is_found_by_the_next_list(server: FakeApiServer) -> None:
    async with following(server) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        server.drop_changes(PODS)
        server.remove(PODS, "default", "a")
        server.add(PODS, pod("c"))
        await scene.sink.knows("a", "b", "c")
        server.inject(PODS, EXPIRED)
        await scene.sink.knows("b", "c")


async def test_an_object_made_anew_is_deleted_then_upserted(server: FakeApiServer) -> None:
    async with following(server) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        server.drop_changes(PODS)
        old = server.remove(PODS, "default", "a")
        new = server.add(PODS, pod("a"))
        await scene.sink.until(lambda: len(scene.sink.events) == 5)
        deleted, upserted = scene.sink.events[-2:]
        assert isinstance(deleted, Deleted)
        assert isinstance(upserted, Upserted)
        assert deleted.obj["metadata"]["uid"] == old["metadata"]["uid"]
        assert upserted.obj == new


async def test_duplicates_do_no_harm(server: FakeApiServer) -> None:
    async with following(server) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        line = b'{"type":"DELETED","object":{"metadata":{"name":"a","namespace":"default","uid":"another"}}}'
        server.inject(PODS, line)
        server.inject(PODS, line)
        server.add(PODS, pod("c"))
        await scene.sink.knows("a", "b", "c")
        assert scene.sink.count(Deleted) == 0


@pytest.mark.parametrize(
    "line", [b"{nonsense", b"[]", b'{"type":"ADDED","object":{}}', b'{"type":"NEWS","object":{"metadata":{}}}']
)
async def test_a_bad_line_is_survived_without_a_list(server: FakeApiServer, line: bytes) -> None:
    async with following(server) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        server.inject(PODS, line)
        server.add(PODS, pod("c"))
        await scene.sink.knows("a", "b", "c")
        assert scene.hooks.causes == ["bad_line"]
        assert scene.lists == 1


async def test_a_resource_that_is_not_served_is_said_once_and_awaited(server: FakeApiServer) -> None:
    server.served.discard(RESERVATIONS)
    async with following(server, RESERVATIONS) as scene:
        await scene.sink.until(lambda: scene.sink.count(Unserved) == 1)
        assert not scene.reflector.listed.is_set()
        server.served.add(RESERVATIONS)
        server.add(RESERVATIONS, pod("r"))
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        assert scene.sink.count(Unserved) == 1
        server.served.discard(RESERVATIONS)
        server.end_watches()
        await scene.sink.until(lambda: scene.sink.count(Unserved) == 2)
        assert scene.sink.state == {}


async def test_forbidden_says_what_rbac_lacks(server: FakeApiServer, caplog: pytest.LogCaptureFixture) -> None:
    server.refuse(calls("GET"), times=3, status=403, reason="Forbidden")
    async with following(server, RESERVATIONS) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
    said = [vars(record)["err"] for record in caplog.records if vars(record).get("cause") == "forbidden"]
    assert len(said) == 1
    assert "grant list and watch on reservations in API group scheduling.serried.dev" in said[0]


async def test_outages_are_outlived(server: FakeApiServer) -> None:
    server.hang_up(calls("GET"), times=4)
    server.refuse(calls("GET"), times=4, status=500)
    async with following(server) as scene:
        await scene.sink.knows("a", "b")
        assert {"refused", "lost"} <= set(scene.hooks.causes)


async def test_a_server_that_cannot_resume_is_listed_again(server: FakeApiServer) -> None:
    async with following(server) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        server.refuse(lambda request: "resourceVersion" in request.params, times=5, status=500)
        server.end_watches()
        await scene.sink.until(lambda: scene.sink.count(Relisted) == 1)


async def test_silence_cuts_the_watch_and_resumes(server: FakeApiServer) -> None:
    async with following(server, pace=Pace(silence=0.05, backoff=0.005)) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        await asyncio.wait_for(scene.hooks.ended("silent"), 10)
        server.add(PODS, pod("c"))
        await scene.sink.knows("a", "b", "c")
        assert scene.sink.count(Relisted) == 0


async def test_a_sink_that_fails_does_not_stop_the_stream(
    server: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    done = asyncio.Event()

    def sink(event: Event) -> None:
        if isinstance(event, Upserted):
            seen.append(event.obj["metadata"]["name"])
            if seen[-1] == "a":
                raise RuntimeError("indigestible")
        if isinstance(event, Listed):
            done.set()

    async with server.client() as client:
        task = asyncio.create_task(Reflector(client, PODS, sink).run())
        await asyncio.wait_for(done.wait(), 10)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert seen == ["a", "b"]
    assert [vars(record)["object"] for record in caplog.records] == ["default/a"]


async def test_a_selection_sees_what_enters_and_leaves_it(server: FakeApiServer) -> None:
    selection = Selection(namespace="default", fields="spec.nodeName=n1")
    async with following(server, selection=selection) as scene:
        await scene.sink.until(lambda: scene.sink.count(Listed) == 1)
        assert scene.sink.state == {}
        server.change(PODS, "default", "a", {"spec": {"nodeName": "n1"}})
        await scene.sink.knows("a")
        server.change(PODS, "default", "a", {"spec": {"nodeName": "n2"}})
        await scene.sink.knows()


async def test_a_burst_lets_others_run(server: FakeApiServer) -> None:
    for number in range(1000):
        server.add(PODS, pod(f"p{number}"))
    sink = Recorder()
    applied: list[int] = []

    async def look() -> None:
        while not sink.count(Listed):
            applied.append(len(sink.events))
            await asyncio.sleep(0)

    async with server.client() as client:
        reflector = Reflector(client, PODS, sink, pace=Pace(slice_changes=50, slice_seconds=60.0))
        task = asyncio.create_task(reflector.run())
        await asyncio.wait_for(look(), 20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    steps = [after - before for before, after in itertools.pairwise(applied)]
    assert max(steps) <= 51
