"""The reflector against the fake API server: whatever the watch does, the sink ends with the server's state."""

import asyncio
import itertools
import math
import time
from typing import Any
from unittest.mock import Mock

import pytest

from serried.kube import reflector, wire
from serried.kube.reflector import Deleted, Event, Listed, Reflector, Relisted, Unserved, Upserted, WatchTiming
from serried.kube.retry import Backoff
from serried.kube.wire import PODS, RESERVATIONS, Selection, decode_change
from tests.support.apiserver import FakeApiServer
from tests.support.faults import calls, watches
from tests.support.reflector_harness import BUSY, EXPIRED, Recorder, following, pod, wait_until


async def test_tells_the_state_then_the_mark_then_changes(either: FakeApiServer) -> None:
    async with following(either) as scene:
        await asyncio.wait_for(scene.reflector.listed.wait(), 10)
        assert [type(event) for event in scene.sink.events] == [Upserted, Upserted, Listed]
        mark = scene.sink.events[-1]
        assert mark == Listed(2, str(either.storage.revision))
        either.add(PODS, pod("c"))
        either.patch(PODS, "default", "a", {"spec": {"nodeName": "n1"}})
        either.remove(PODS, "default", "b")
        await scene.sink.await_objects("a", "c")
        assert scene.sink.state["a"]["spec"]["nodeName"] == "n1"
        assert scene.reflector.last_event_monotonic > 0


async def test_after_an_outage_the_first_watch_that_ends_is_resumed_at_once(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    uniform = Mock(return_value=0.0)
    monkeypatch.setattr("random.uniform", uniform)
    server.reject(calls("GET"), times=12, status=500)
    async with following(server) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        await wait_until(lambda: bool(server.watches))
        uniform.reset_mock()
        server.end_watches()
        server.add(PODS, pod("c"))
        await scene.sink.await_objects("a", "b", "c")
    assert uniform.mock_calls == []


async def test_a_server_that_lists_but_cannot_watch_is_listed_anew_after_every_few_tries_only(
    server: FakeApiServer,
) -> None:
    server.reject(lambda request: "resourceVersion" in request.params, times=1_000_000, status=500)
    async with following(server, timing=WatchTiming(backoff=Backoff(0.001, cap=0.001))) as scene:
        while scene.sink.count(Relisted) < 3:
            await wait_until(lambda: bool(server.watches))
            server.end_watches()
            await wait_until(lambda: not server.watches)
        assert len(server.requests) - scene.lists >= 3 * (reflector.MAX_SUSPICIOUS_ENDS - 1)


async def test_a_defect_of_ours_in_one_change_does_not_end_the_watch(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def decode(line: bytes) -> Any:
        if b'"odd"' in line and b"ADDED" in line and not caplog.records:
            raise AttributeError("no such thing")
        return decode_change(line)

    monkeypatch.setattr(reflector, "decode_change", decode)
    async with following(server) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        server.add(PODS, pod("odd"))
        await scene.sink.await_objects("a", "b", "odd")
        assert scene.metrics.causes == ["defect"]
    assert "no such thing" in caplog.text


async def test_a_watch_that_ends_silently_is_resumed_without_a_list(either: FakeApiServer) -> None:
    async with following(either) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        await asyncio.wait_for(either.await_watch(PODS), 10)
        lists = scene.lists
        either.end_watches()
        either.add(PODS, pod("c"))
        await scene.sink.await_objects("a", "b", "c")
        assert scene.metrics.causes == ["ended"]
        assert scene.lists == lists
        assert scene.sink.count(Relisted) == 0


async def test_a_broken_connection_is_resumed_without_a_list(server: FakeApiServer) -> None:
    async with following(server) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        server.break_watches()
        server.add(PODS, pod("c"))
        await scene.sink.await_objects("a", "b", "c")
        assert scene.metrics.causes == ["lost"]
        assert scene.lists == 1


async def test_after_a_bookmark_compaction_does_no_harm(server: FakeApiServer) -> None:
    async with following(server) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        server.add(RESERVATIONS, pod("elsewhere"))
        server.compact()
        server.bookmark()
        server.end_watches()
        server.add(PODS, pod("c"))
        await scene.sink.await_objects("a", "b", "c")
        assert "gone" not in scene.metrics.causes
        assert scene.lists == 1


async def test_410_lists_again_and_reports_what_vanished(either: FakeApiServer) -> None:
    async with following(either) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        await asyncio.wait_for(either.await_watch(PODS), 10)
        gate = either.hold(watches())
        either.end_watches()
        await gate.reached.wait()
        gone = either.remove(PODS, "default", "a")
        either.add(PODS, pod("c"))
        either.compact()
        gate.open()
        await scene.sink.await_state(lambda: scene.sink.count(Relisted) == 1)
        assert set(scene.sink.state) == {"b", "c"}
        deleted = [event.obj for event in scene.sink.events if isinstance(event, Deleted)]
        assert [obj["metadata"]["uid"] for obj in deleted] == [gone["metadata"]["uid"]]
        assert scene.sink.events[-1] == Relisted(2, str(either.storage.revision), 1)
        assert "gone" in scene.metrics.causes


async def test_410_as_status_lists_again(server: FakeApiServer) -> None:
    async with following(server) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        server.reject(watches(), status=410, reason="Expired")
        server.end_watches()
        await scene.sink.await_state(lambda: scene.sink.count(Relisted) == 1)
        assert scene.metrics.causes == ["ended", "gone"]


async def test_a_dropped_deletion_is_found_by_the_next_list(server: FakeApiServer) -> None:
    async with following(server) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        server.drop_changes(PODS)
        server.remove(PODS, "default", "a")
        server.add(PODS, pod("c"))
        await scene.sink.await_objects("a", "b", "c")
        server.inject(PODS, EXPIRED)
        await scene.sink.await_objects("b", "c")


async def test_an_object_made_anew_is_deleted_then_upserted(server: FakeApiServer) -> None:
    async with following(server) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        server.drop_changes(PODS)
        old = server.remove(PODS, "default", "a")
        new = server.add(PODS, pod("a"))
        await scene.sink.await_state(lambda: len(scene.sink.events) == 5)
        deleted, upserted = scene.sink.events[-2:]
        assert isinstance(deleted, Deleted)
        assert isinstance(upserted, Upserted)
        assert deleted.obj["metadata"]["uid"] == old["metadata"]["uid"]
        assert upserted.obj == new


async def test_duplicates_do_no_harm(server: FakeApiServer) -> None:
    async with following(server) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        line = b'{"type":"DELETED","object":{"metadata":{"name":"a","namespace":"default","uid":"another"}}}'
        server.inject(PODS, line)
        server.inject(PODS, line)
        server.add(PODS, pod("c"))
        await scene.sink.await_objects("a", "b", "c")
        assert scene.sink.count(Deleted) == 0


@pytest.mark.parametrize(
    "line", [b"{nonsense", b"[]", b'{"type":"ADDED","object":{}}', b'{"type":"NEWS","object":{"metadata":{}}}']
)
async def test_a_bad_line_is_survived_without_a_list(server: FakeApiServer, line: bytes) -> None:
    async with following(server) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        server.inject(PODS, line)
        server.add(PODS, pod("c"))
        await scene.sink.await_objects("a", "b", "c")
        assert scene.metrics.causes == ["bad_line"]
        assert scene.lists == 1


async def test_a_resource_that_is_not_served_is_said_once_and_awaited(server: FakeApiServer) -> None:
    server.served.discard(RESERVATIONS)
    async with following(server, RESERVATIONS) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Unserved) == 1)
        assert not scene.reflector.listed.is_set()
        server.served.add(RESERVATIONS)
        server.add(RESERVATIONS, pod("r"))
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        assert scene.sink.count(Unserved) == 1
        server.served.discard(RESERVATIONS)
        server.end_watches()
        await scene.sink.await_state(lambda: scene.sink.count(Unserved) == 2)
        assert scene.sink.state == {}


async def test_forbidden_says_what_rbac_lacks(server: FakeApiServer, caplog: pytest.LogCaptureFixture) -> None:
    server.reject(calls("GET"), times=3, status=403, reason="Forbidden")
    async with following(server, RESERVATIONS) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
    said = [vars(record)["err"] for record in caplog.records if vars(record).get("cause") == "forbidden"]
    assert len(said) == 1
    assert "grant list and watch on reservations in API group scheduling.serried.dev" in said[0]


async def test_it_says_since_when_changes_do_not_reach_it(server: FakeApiServer) -> None:
    async with following(server) as scene:
        assert scene.reflector.blind_since_monotonic <= time.monotonic()
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        assert scene.reflector.blind_since_monotonic == math.inf
        refused = server.reject(calls("GET"), times=1_000_000, status=403, reason="Forbidden")
        before = time.monotonic()
        server.end_watches()
        await wait_until(lambda: scene.reflector.blind_since_monotonic < math.inf)
        since = scene.reflector.blind_since_monotonic
        await wait_until(lambda: refused.left < 1_000_000 - 3)
        assert before <= since == scene.reflector.blind_since_monotonic
        server.recover()
        await wait_until(lambda: scene.reflector.blind_since_monotonic == math.inf)


async def test_a_watch_that_is_resumed_is_not_blind_although_nothing_happens(server: FakeApiServer) -> None:
    async with following(server) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        await wait_until(lambda: bool(server.watches))
        server.end_watches()
        await wait_until(lambda: bool(scene.metrics.causes))
        await wait_until(lambda: scene.reflector.blind_since_monotonic == math.inf)
        assert scene.sink.count(Relisted) == 0


async def test_outages_are_outlived(server: FakeApiServer) -> None:
    server.disconnect(calls("GET"), times=4)
    server.reject(calls("GET"), times=4, status=500)
    async with following(server) as scene:
        await scene.sink.await_objects("a", "b")
        assert {"refused", "lost"} <= set(scene.metrics.causes)


async def test_a_server_that_asks_to_stay_away_for_an_hour_is_asked_before(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "MAX_RETRY_AFTER_SECONDS", 0.01)
    server.reject(calls("GET"), times=2, status=503, retry_after=3600)
    async with following(server) as scene:
        await scene.sink.await_objects("a", "b")


async def test_so_is_one_that_says_it_in_the_watch(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_RETRY_AFTER_SECONDS", 0.01)
    async with following(server) as scene:
        await scene.sink.await_objects("a", "b")
        server.inject(PODS, BUSY)
        await asyncio.wait_for(scene.metrics.await_restart("refused"), 10)
        server.add(PODS, pod("c"))
        await scene.sink.await_objects("a", "b", "c")


async def test_a_server_that_cannot_resume_is_listed_again(server: FakeApiServer) -> None:
    async with following(server) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        server.reject(lambda request: "resourceVersion" in request.params, times=5, status=500)
        server.end_watches()
        await scene.sink.await_state(lambda: scene.sink.count(Relisted) == 1)


async def test_silence_cuts_the_watch_and_resumes(server: FakeApiServer) -> None:
    async with following(server, timing=WatchTiming(silence=0.05, backoff=Backoff(0.005, cap=30.0))) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        await asyncio.wait_for(scene.metrics.await_restart("silent"), 10)
        server.add(PODS, pod("c"))
        await scene.sink.await_objects("a", "b", "c")
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
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        assert scene.sink.state == {}
        server.patch(PODS, "default", "a", {"spec": {"nodeName": "n1"}})
        await scene.sink.await_objects("a")
        server.patch(PODS, "default", "a", {"spec": {"nodeName": "n2"}})
        await scene.sink.await_objects()


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
        reflector = Reflector(client, PODS, sink, timing=WatchTiming(slice_changes=50, slice_seconds=60.0))
        task = asyncio.create_task(reflector.run())
        await asyncio.wait_for(look(), 20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    steps = [after - before for before, after in itertools.pairwise(applied)]
    assert max(steps) <= 51
