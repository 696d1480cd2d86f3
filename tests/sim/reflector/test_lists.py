"""Lists of the whole state: streamed or in pages, and the recovery when one of them breaks off."""

import asyncio

import pytest

from serried.kube.reflector import MAX_CUT_LISTS, Deleted, Listed, Relisted, WatchTiming
from serried.kube.retry import Backoff
from serried.kube.wire import PODS
from tests.support.apiserver import FakeApiServer
from tests.support.faults import Request
from tests.support.reflector_harness import EXPIRED, following, pod, wait_until


def first_pages(request: Request) -> bool:
    return "limit" in request.params and "continue" not in request.params


def second_pages(request: Request) -> bool:
    return "continue" in request.params


async def test_lists_in_pages_and_falls_back_to_them_once(server: FakeApiServer) -> None:
    server.streaming = False
    for number in range(7):
        server.add(PODS, pod(f"p{number}"))
    async with following(server, timing=WatchTiming(page=2, backoff=Backoff(0.005, cap=30.0))) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        assert len(scene.sink.state) == 9
        pages = [r for r in server.requests if "limit" in r.params]
        assert len(pages) == 5
        server.compact()
        server.end_watches()
        server.add(PODS, pod("late"))
        await scene.sink.await_state(lambda: "late" in scene.sink.state)
        assert len([r for r in server.requests if "sendInitialEvents" in r.params]) == 1


async def test_a_page_token_that_is_too_old_starts_the_list_anew(server: FakeApiServer) -> None:
    server.streaming = False
    gate = server.hold(lambda request: "continue" in request.params, times=1)
    async with following(server, timing=WatchTiming(page=1, backoff=Backoff(0.005, cap=30.0))) as scene:
        await gate.reached.wait()
        server.remove(PODS, "default", "a")
        server.compact()
        gate.open()
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        assert set(scene.sink.state) == {"b"}


@pytest.mark.parametrize("end", ["in good order", "abruptly"])
async def test_streams_that_are_cut_give_way_to_pages(server: FakeApiServer, end: str) -> None:
    server.cut_streams(after=1, abruptly=end == "abruptly")
    async with following(server) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        assert set(scene.sink.state) == {"a", "b"}
        assert scene.streams == MAX_CUT_LISTS
        assert scene.lists == MAX_CUT_LISTS + 1
        server.add(PODS, pod("c"))
        await scene.sink.await_objects("a", "b", "c")


async def test_after_a_while_lists_are_streamed_again(server: FakeApiServer) -> None:
    server.cut_streams(after=1, times=MAX_CUT_LISTS)
    async with following(server, timing=WatchTiming(backoff=Backoff(0.005, cap=0.02), in_pages=0.1)) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        await scene.await_streaming()
        before = scene.lists
        server.inject(PODS, EXPIRED)
        await scene.sink.await_state(lambda: scene.sink.count(Relisted) == 1)
        assert server.requests[-1].params.get("sendInitialEvents")
        assert scene.lists == before + 1


async def test_pages_that_are_cut_give_way_to_a_stream(server: FakeApiServer) -> None:
    server.streaming = False
    for number in range(100):
        server.add(PODS, pod(f"p{number}"))
    refused = server.reject(second_pages, times=1_000_000, status=410, reason="Expired")
    async with following(server, timing=WatchTiming(backoff=Backoff(0.005, cap=0.02), page=2)) as scene:
        await wait_until(lambda: len(server.list_requests(second_pages)) == MAX_CUT_LISTS - 1)
        server.streaming = True
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        assert refused.left
        assert server.requests[-1].params.get("sendInitialEvents")
        assert len(scene.sink.state) == 102


async def test_where_nothing_is_streamed_pages_grow_until_the_list_is_whole_before_its_token_expires(
    server: FakeApiServer,
) -> None:
    server.streaming = False
    for number in range(30):
        server.add(PODS, pod(f"p{number}"))
    server.reject(second_pages, times=1_000_000, status=410, reason="Expired")
    async with following(server, timing=WatchTiming(backoff=Backoff(0.005, cap=0.02), page=2)) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        assert [int(r.params["limit"]) for r in server.list_requests(first_pages)] == [2, 4, 8, 16, 32]


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
    server.reject(second_pages, times=1_000_000, status=410, reason="Expired")
    monkeypatch.setattr("random.uniform", uniform)
    async with following(server, timing=WatchTiming(page=3, backoff=Backoff(1.0, cap=8.0))) as scene:
        await scene.sink.await_state(lambda: len(pauses) == 4)
    assert pauses[:4] == [4.0, 8.0, 8.0, 8.0]


async def test_a_page_of_a_proxy_is_no_empty_list(either: FakeApiServer) -> None:
    async with following(either) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        await asyncio.wait_for(either.await_watch(PODS), 10)
        for page in ("<html>a proxy</html>", '{"items":[]}', '{"message":"hello"}', "[]"):
            either.garble(lambda request: True, times=2, page=page)
        either.inject(PODS, EXPIRED)
        await scene.sink.await_state(lambda: scene.sink.count(Relisted) == 1)
    assert scene.sink.count(Deleted) == 0
