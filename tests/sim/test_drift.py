"""Differences between the Store and the API server: `/debug/cache/diff`, on watches that lose changes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from extender.look.routes import process_routes
from serried.api.level import FALLBACK
from serried.cluster.cache import Store
from serried.drift import Comparison
from serried.feed import ALL_KINDS, Feed
from serried.kube.client import ApiClient
from serried.kube.wire import JOBS, NODES, PODS
from serried.rules.all import RULES
from serried.settings import extender_settings
from tests.support.apiserver import FakeApiServer
from tests.support.builders import job, node, pod
from tests.support.faults import calls


class Scene:
    """A Store that follows a server, and the page."""

    def __init__(self, server: FakeApiServer, client: ApiClient) -> None:
        self.server = server
        self.store = Store({"serried"}, rules=RULES)
        self.feed = Feed(client, FALLBACK, self.store, ALL_KINDS)
        self.rests: list[float] = []
        self.while_resting: Callable[[], None] = lambda: None
        app = FastAPI()
        comparison = Comparison(client, self.feed, self._rest)
        app.include_router(process_routes(extender_settings([], {}), comparison))
        self._http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug")

    async def _rest(self, seconds: float) -> None:
        self.rests.append(seconds)
        if seconds:
            self.while_resting()
        await asyncio.sleep(0)

    async def ask(self, query: str = "") -> httpx.Response:
        return await self._http.get(f"/debug/cache/diff{query}")

    async def compare(self, query: str = "") -> Any:
        answer = await self.ask(query)
        assert answer.status_code == 200
        return answer.json()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@pytest.fixture
async def scene(server: FakeApiServer) -> AsyncIterator[Scene]:
    for name in ("a", "b"):
        server.add(PODS, pod(name).raw())
    server.add(NODES, node("n1").raw())
    server.add(JOBS, job("j").raw())
    async with server.client() as client:
        scene = Scene(server, client)
        task = asyncio.create_task(scene.feed.run())
        await scene.feed.synced.wait()
        await server.await_watch(PODS)
        yield scene
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_store_that_is_up_to_date_is_equal(scene: Scene) -> None:
    said = await scene.compare()
    assert said["equal"] is True
    assert {(each["kind"], each["listed"], each["cached"]) for each in said["kinds"] if each["listed"]} == {
        ("pods", 2, 2),
        ("nodes", 1, 1),
        ("jobs", 1, 1),
    }
    assert {each["kind"] for each in said["kinds"] if not each["served"]} >= {"jobsets", "leaderworkersets"}
    assert scene.rests.count(1.0) == 0, "nothing differed, so nothing was looked at twice"


async def test_changes_that_a_watch_has_lost_are_named(scene: Scene) -> None:
    scene.server.drop_changes(PODS, 3)
    scene.server.add(PODS, pod("new").raw())
    scene.server.patch(PODS, "default", "a", {"metadata": {"labels": {"x": "y"}}})
    scene.server.remove(PODS, "default", "b")
    said = await scene.compare("?kind=pods")
    (pods,) = said["kinds"]
    assert (pods["missing"], pods["stale"], pods["extra"]) == (["default/new"], ["default/a"], ["default/b"])
    assert (pods["listed"], pods["cached"], said["equal"]) == (2, 2, False)


async def test_a_watch_that_catches_up_within_the_second_is_no_difference(scene: Scene) -> None:
    scene.server.drop_changes(PODS)
    scene.server.add(PODS, pod("late").raw())
    scene.while_resting = lambda: scene.store.put_pod(pod("late").value())
    assert (await scene.compare("?kind=pods"))["equal"] is True
    assert 1.0 in scene.rests


async def test_a_heartbeat_of_a_node_that_the_store_does_not_keep_is_no_difference(scene: Scene) -> None:
    seen = scene.store.nodes["n1"]
    scene.server.patch(NODES, "", "n1", {"metadata": {"annotations": {"beat": "1"}}})
    assert (await scene.compare("?kind=nodes"))["equal"] is True
    assert scene.store.nodes["n1"] is seen


async def test_an_object_that_cannot_be_read_is_called_so(scene: Scene) -> None:
    scene.server.patch(PODS, "default", "a", {"spec": {"containers": "none"}})
    await scene.until(scene.feed.malformed.total)
    (pods,) = (await scene.compare("?kind=pods"))["kinds"]
    assert pods["malformed"] == ["default/a"]


async def test_many_differences_are_counted_and_the_first_ones_named(scene: Scene) -> None:
    scene.server.drop_changes(PODS, 130)
    for number in range(130):
        scene.server.add(PODS, pod(f"new{number:03}").raw())
    (pods,) = (await scene.compare("?kind=pods"))["kinds"]
    assert (len(pods["missing"]), pods["leftOff"], pods["listed"]) == (100, 30, 132)


async def test_one_comparison_at_a_time(scene: Scene) -> None:
    held = scene.server.hold(calls("GET", "/pods"))
    first = asyncio.create_task(scene.compare("?kind=pods"))
    await held.reached.wait()
    assert (await scene.ask("?kind=pods")).status_code == 429
    held.open()
    assert (await first)["equal"] is True
    assert (await scene.ask("?kind=pods")).status_code == 200


async def test_a_kind_that_the_server_refuses_says_why(scene: Scene) -> None:
    scene.server.reject(calls("GET", "/pods"), status=403, reason="Forbidden")
    (pods,) = (await scene.compare("?kind=pods"))["kinds"]
    assert "403 Forbidden" in pods["error"]


async def test_a_kind_that_does_not_exist_is_400_with_those_that_do(scene: Scene) -> None:
    answer = await scene.ask("?kind=cats")
    assert answer.status_code == 400
    assert "nodes, pods, jobs" in answer.json()["detail"]
