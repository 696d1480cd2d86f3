"""Reflectors and 404: most are ignored, for they may come from a proxy, or from one API server of several."""

import asyncio
from dataclasses import replace
from unittest.mock import Mock

import pytest

from serried.kube.reflector import Deleted, Denied, Listed, Unserved
from serried.kube.retry import Backoff
from serried.kube.wire import PODS, RESERVATIONS
from tests.support.apiserver import FakeApiServer
from tests.support.faults import Fault, calls
from tests.support.reflector_harness import BELIEVE_SECOND_ANSWER, believe_after, following, pod, wait_until

EVER = 1_000_000


AT_ONCE = believe_after(0.0)


@pytest.fixture
def server(server: FakeApiServer) -> FakeApiServer:
    for name in ("a", "b"):
        server.add(RESERVATIONS, pod(name))
    return server


def answer_404(server: FakeApiServer, times: int = 1) -> Fault:
    """Answer as an API server that does not serve the requested kind."""
    return server.reject(calls("GET"), times, status=404, reason="NotFound")


async def test_one_404_of_a_served_kind_ends_nothing(either: FakeApiServer) -> None:
    async with following(either, RESERVATIONS, BELIEVE_SECOND_ANSWER) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        await asyncio.wait_for(either.await_watch(RESERVATIONS), 10)
        lists = scene.lists
        answer_404(either)
        either.end_watches()
        either.add(RESERVATIONS, pod("c"))
        await scene.sink.await_objects("a", "b", "c")
        assert scene.metrics.causes == ["ended", "missing"]
        assert (scene.sink.count(Deleted), scene.sink.count(Unserved)) == (0, 0)
        assert scene.reflector.listed.is_set()
        assert scene.lists == lists, "the watch was resumed"


async def test_404s_with_another_answer_between_them_do_not_add_up(server: FakeApiServer) -> None:
    async with following(server, RESERVATIONS, BELIEVE_SECOND_ANSWER) as scene:
        for number in range(3):
            await wait_until(lambda: bool(server.watches))
            answer_404(server)
            server.end_watches()
            server.add(RESERVATIONS, pod(f"c{number}"))
            await scene.sink.await_state(lambda number=number: f"c{number}" in scene.sink.state)  # type: ignore[misc]
        assert scene.metrics.causes.count("missing") == 3
        assert scene.sink.count(Unserved) == 0


async def test_a_connection_that_is_lost_between_two_404s_says_that_they_are_not_in_a_row(
    server: FakeApiServer,
) -> None:
    async with following(server, RESERVATIONS, BELIEVE_SECOND_ANSWER) as scene:
        await wait_until(lambda: bool(server.watches))
        for _ in range(3):
            answer_404(server)
            server.disconnect(calls("GET"), times=2)  # aiohttp itself tries once more
        server.end_watches()
        server.add(RESERVATIONS, pod("c"))
        await scene.sink.await_objects("a", "b", "c")
        assert scene.sink.count(Unserved) == 0
        assert scene.metrics.causes.count("lost") == 3


async def test_many_404s_in_a_moment_do_not_count(server: FakeApiServer) -> None:
    async with following(server, RESERVATIONS, believe_after(3600.0)) as scene:
        await wait_until(lambda: bool(server.watches))
        order = answer_404(server, times=20)
        server.end_watches()
        server.add(RESERVATIONS, pod("c"))
        await scene.sink.await_objects("a", "b", "c")
        assert (order.left, scene.sink.count(Unserved), scene.sink.count(Deleted)) == (0, 0, 0)


async def test_404s_that_last_end_the_kind(either: FakeApiServer) -> None:
    async with following(either, RESERVATIONS, believe_after(0.05)) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        await asyncio.wait_for(either.await_watch(RESERVATIONS), 10)
        either.served.discard(RESERVATIONS)
        either.end_watches()
        await scene.sink.await_state(lambda: scene.sink.count(Unserved) == 1)
        await scene.sink.await_objects()
        assert set(scene.metrics.causes) == {"ended", "missing", "unserved"}
        assert not scene.reflector.listed.is_set()


async def test_in_the_core_group_no_404_ever_counts(either: FakeApiServer) -> None:
    async with following(either, PODS, AT_ONCE) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        await asyncio.wait_for(either.await_watch(PODS), 10)
        order = answer_404(either, times=20)
        either.end_watches()
        either.add(PODS, pod("c"))
        await scene.sink.await_objects("a", "b", "c")
        assert (order.left, scene.sink.count(Unserved), scene.sink.count(Deleted)) == (0, 0, 0)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param("<html>a proxy</html>", id="a page"),
        pytest.param("", id="nothing"),
        pytest.param("404 page not found: try the other port", id="nearly the words of an API server"),
        pytest.param('{"reason":"NotFound"}', id="an object that is no Status"),
        pytest.param('{"kind":"Status","code":404,"reason":"Unknown"}', id="a Status for another reason"),
    ],
)
async def test_a_404_that_is_no_api_servers_never_counts(either: FakeApiServer, page: str) -> None:
    async with following(either, RESERVATIONS, AT_ONCE) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        await asyncio.wait_for(either.await_watch(RESERVATIONS), 10)
        order = either.intercept(calls("GET"), times=12, status=404, page=page)
        either.end_watches()
        either.add(RESERVATIONS, pod("c"))
        await scene.sink.await_objects("a", "b", "c")
        assert (order.left, scene.sink.count(Unserved), scene.sink.count(Deleted)) == (0, 0, 0)
        assert "refused" in scene.metrics.causes


async def test_the_text_of_an_api_server_for_a_path_without_handlers_counts(server: FakeApiServer) -> None:
    async with following(server, RESERVATIONS, BELIEVE_SECOND_ANSWER) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Listed) == 1)
        server.intercept(calls("GET"), times=EVER, status=404, page="404 page not found\n")
        server.end_watches()
        await scene.sink.await_state(lambda: scene.sink.count(Unserved) == 1)


async def test_before_the_first_list_the_first_404_may_count(server: FakeApiServer) -> None:
    absent = replace(believe_after(3600.0), absent_after=0.0)
    answer_404(server)
    async with following(server, RESERVATIONS, absent) as scene:
        await scene.sink.await_state(lambda: scene.sink.count(Unserved) == 1)
        await scene.sink.await_objects("a", "b")
        order = answer_404(server, times=5)
        server.end_watches()
        server.add(RESERVATIONS, pod("c"))
        await scene.sink.await_objects("a", "b", "c")
        assert (order.left, scene.sink.count(Unserved)) == (0, 1)


@pytest.mark.parametrize(
    ("status", "reason", "told"), [(404, "NotFound", Unserved), (403, "Forbidden", Denied)], ids=["unserved", "denied"]
)
async def test_a_kind_that_is_back_is_asked_for_again_soon_if_its_first_watches_are_refused(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, status: int, reason: str, told: type
) -> None:
    uniform = Mock(return_value=0.0)
    monkeypatch.setattr("random.uniform", uniform)
    server.reject(calls("GET"), times=20, status=status, reason=reason)
    server.reject(calls("GET"), times=2, status=429, message="storage is (re)initializing")
    async with following(server, RESERVATIONS, replace(AT_ONCE, backoff=Backoff(0.001, cap=30.0))) as scene:
        await scene.sink.await_objects("a", "b")
        assert scene.sink.count(told) > 0
        assert scene.metrics.causes[-2:] == ["refused", "refused"]
    longest = [call.args[1] for call in uniform.mock_calls]
    assert longest == [0.002, 0.004], "as after the first two failures"


async def test_it_is_asked_for_as_soon_if_it_was_away_for_too_short_a_time_to_count(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    uniform = Mock(return_value=0.0)
    monkeypatch.setattr("random.uniform", uniform)
    answer_404(server, times=20)
    server.reject(calls("GET"), times=2, status=429, message="storage is (re)initializing")
    timing = replace(believe_after(3600.0), backoff=Backoff(0.001, cap=30.0))
    async with following(server, RESERVATIONS, timing) as scene:
        await scene.sink.await_objects("a", "b")
        assert scene.sink.count(Unserved) == 0
    longest = [call.args[1] for call in uniform.mock_calls]
    assert max(longest) <= 1.0
    assert longest[-2:] == [0.002, 0.004], "as after the first two failures"
