"""A kind that need not be served: it may be there, not be there, come and go, and nobody waits for it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from serried import feed as feed_room
from serried.api.level import FALLBACK
from serried.api.names import GroupKey, GroupKind, Key
from serried.cluster.cache import Store
from serried.feed import Feed, Kind
from serried.kube.reflector import WatchTiming
from serried.kube.retry import Backoff
from serried.kube.wire import DEVICE_CLASSES, JOBS, PODS, owners
from serried.ops.metrics import Metrics
from serried.rules.all import RULES
from tests.support.apiserver import FakeApiServer
from tests.support.builders import job, pod
from tests.support.faults import calls
from tests.support.parents import leader_worker_set
from tests.support.reflector_harness import wait_until

USUAL_TIMING = feed_room._OPTIONAL_WATCH_TIMING  # noqa: SLF001
"""The timing in production; tests shorten it."""

SETS = owners("LeaderWorkerSet")


class Scene:
    def __init__(self, server: FakeApiServer, feed: Feed, store: Store, metrics: Metrics) -> None:
        self.server, self.feed, self.store, self.metrics = server, feed, store, metrics

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    def ends(self, cause: str) -> bool:
        return f'{{cause="{cause}",resource="jobs"}}' in self.metrics.render().decode()


@asynccontextmanager
async def following(server: FakeApiServer) -> AsyncIterator[Scene]:
    async with server.client() as client:
        client.metrics = metrics = Metrics()
        store = Store({"serried"}, rules=RULES)
        feed = Feed(client, FALLBACK, store, (Kind.PODS, Kind.JOBS), optional={Kind.JOBS})
        task = asyncio.create_task(feed.run())
        try:
            yield Scene(server, feed, store, metrics)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApiServer]:
    timing = WatchTiming(unserved=0.01, unserved_after=0.02, absent_after=0.0, backoff=Backoff(0.005, cap=0.02))
    monkeypatch.setattr(feed_room, "_WATCH_TIMING", timing)
    monkeypatch.setattr(feed_room, "_OPTIONAL_WATCH_TIMING", timing)
    async with FakeApiServer() as server:
        yield server


async def test_it_is_found_when_it_comes_after_the_start(server: FakeApiServer) -> None:
    server.served.discard(JOBS)
    async with following(server) as scene:
        await asyncio.wait_for(scene.feed.synced.wait(), 10)
        assert scene.feed.unserved == {Kind.JOBS}
        assert not scene.ends("unserved"), "what never was served has not ended"
        server.served.add(JOBS)
        server.add(JOBS, job("late").raw())
        await scene.until(lambda: Key("default", "late") in scene.store.jobs)
        assert not scene.feed.unserved


async def test_no_start_waits_until_its_absence_is_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_room, "_OPTIONAL_WATCH_TIMING", USUAL_TIMING)
    async with FakeApiServer() as server:
        server.served.discard(DEVICE_CLASSES)
        async with server.client() as client:
            feed = Feed(client, FALLBACK, Store({"serried"}, rules=RULES), (Kind.PODS, Kind.DEVICE_CLASSES))
            task = asyncio.create_task(feed.run())
            try:
                await asyncio.wait_for(feed.synced.wait(), USUAL_TIMING.unserved_after)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def test_it_goes_while_running_and_comes_back(server: FakeApiServer) -> None:
    server.add(JOBS, job("first").raw())
    async with following(server) as scene:
        await scene.until(scene.feed.reflectors[Kind.JOBS].listed.is_set)
        server.served.discard(JOBS)
        server.end_watches(JOBS)
        await scene.until(lambda: scene.feed.unserved)
        assert not scene.store.jobs
        assert scene.feed.synced.is_set()
        await scene.until(lambda: scene.ends("unserved"))
        server.served.add(JOBS)
        await scene.until(lambda: scene.store.jobs)


async def test_lack_of_rights_holds_nothing_up_and_is_said(
    server: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.add(JOBS, job("hidden").raw())
    server.reject(calls("GET", "/jobs"), times=10_000, status=403)
    async with following(server) as scene:
        await asyncio.wait_for(scene.feed.synced.wait(), 10)
        assert not scene.store.jobs
        assert not scene.ends("forbidden"), "what never was shown has not ended, and is no alert"
    said = [vars(record)["err"] for record in caplog.records if vars(record).get("cause") == "forbidden"]
    assert "grant list and watch on jobs in API group batch" in said[0]


async def test_one_refusal_of_sets_lets_no_pod_of_an_unseen_set_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_room, "_OPTIONAL_WATCH_TIMING", USUAL_TIMING)
    early = pod("early").of_replica("s", 0).scheduler("serried").value()
    async with FakeApiServer() as server, server.client() as client:
        server.served.add(SETS)
        store = Store({"serried"}, rules=RULES)
        feed = Feed(client, FALLBACK, store, (Kind("leaderworkersets"),))
        task = asyncio.create_task(feed.run())
        try:
            await asyncio.wait_for(server.await_watch(SETS), 10)
            refused = server.reject(calls("GET", SETS.root), status=403)
            server.end_watches(SETS)
            await wait_until(lambda: refused.left == 0)
            server.add(SETS, leader_worker_set("other").raw())
            await wait_until(lambda: bool(store.parents) or not store.membership.followed)
            assert store.membership.resolve(early) == GroupKey("default", "s", GroupKind("LeaderWorkerSet"))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_the_needed_kinds_are_waited_for_as_ever(server: FakeApiServer) -> None:
    server.served.discard(JOBS)
    gate = server.hold(calls("GET", "/pods"))
    async with following(server) as scene:
        await scene.until(lambda: scene.feed.unserved)
        assert not scene.feed.synced.is_set()
        server.add(PODS, pod("p").raw())
        gate.open()
        await asyncio.wait_for(scene.feed.synced.wait(), 10)
        assert set(scene.store.pods) == {"pod-p"}
