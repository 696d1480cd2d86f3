"""Reflectors and 403 for a kind that was shown before: ignored unless it lasts, for roles are also made anew."""

import asyncio

from serried.kube.reflector import Deleted, Denied, Listed, Relisted
from serried.kube.wire import RESERVATIONS
from tests.support.apiserver import FakeApiServer
from tests.support.faults import Fault, calls
from tests.support.reflector_harness import BELIEVE_SECOND_ANSWER, believe_after, following, pod, wait_until

EVER = 1_000_000


def answer_403(server: FakeApiServer, times: int = 1) -> Fault:
    """Answer as an API server whose roles do not let the client read the requested kind."""
    return server.reject(calls("GET"), times, status=403, reason="Forbidden")


async def test_one_403_is_nothing_and_the_watch_is_resumed(either: FakeApiServer) -> None:
    async with following(either, RESERVATIONS, BELIEVE_SECOND_ANSWER) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        await asyncio.wait_for(either.await_watch(RESERVATIONS), 10)
        lists = scene.lists
        answer_403(either)
        either.end_watches()
        either.add(RESERVATIONS, pod("c"))
        await scene.sink.await_objects("c")
        assert scene.metrics.causes == ["ended", "forbidden"]
        assert scene.sink.count(Denied) == 0
        assert scene.lists == lists


async def test_many_403s_in_a_moment_are_nothing(server: FakeApiServer) -> None:
    async with following(server, RESERVATIONS, believe_after(3600.0)) as scene:
        await wait_until(lambda: bool(server.watches))
        order = answer_403(server, times=20)
        server.end_watches()
        server.add(RESERVATIONS, pod("c"))
        await scene.sink.await_objects("c")
        assert (order.left, scene.sink.count(Denied)) == (0, 0)


async def test_403s_with_another_answer_between_them_do_not_add_up(server: FakeApiServer) -> None:
    async with following(server, RESERVATIONS, BELIEVE_SECOND_ANSWER) as scene:
        await wait_until(lambda: bool(server.watches))
        for status in (403, 404, 403, 500, 403):
            server.reject(calls("GET"), status=status, reason="NotFound" if status == 404 else "")
        server.end_watches()
        server.add(RESERVATIONS, pod("c"))
        await scene.sink.await_objects("c")
        assert scene.metrics.causes.count("forbidden") == 3
        assert scene.sink.count(Denied) == 0


async def test_403s_that_last_are_said_and_a_new_list_says_when_they_are_over(server: FakeApiServer) -> None:
    server.add(RESERVATIONS, pod("a"))
    async with following(server, RESERVATIONS, believe_after(0.05)) as scene:
        await wait_until(lambda: bool(server.watches))
        order = answer_403(server, EVER)
        server.end_watches()
        await scene.sink.await_state(lambda: scene.sink.count(Denied) > 0)
        assert scene.sink.count(Deleted) == 0
        order.left = 0
        await scene.sink.await_state(lambda: scene.sink.count(Relisted) == 1)


async def test_before_the_first_list_one_403_is_said(server: FakeApiServer) -> None:
    answer_403(server)
    async with following(server, RESERVATIONS, believe_after(3600.0)) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        assert scene.sink.count(Denied) == 1
