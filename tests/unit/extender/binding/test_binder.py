import asyncio
from collections.abc import AsyncIterator

import pytest

from extender.core.binding.binder import Binder, BindOutcome, BindResult, BindWindow
from serried.api.names import Key
from tests.support.builders import pod
from tests.support.fake_api import FakeApi, error

POD = Key("default", "p")


class Visitors:
    """Tasks that enter a window and stay until they are told to leave."""

    def __init__(self, window: BindWindow) -> None:
        self.window, self.inside, self._leave = window, 0, asyncio.Semaphore(0)
        self.tasks: list[asyncio.Task[None]] = []

    async def come(self, count: int) -> None:
        self.tasks += [asyncio.create_task(self._visit()) for _ in range(count)]
        await self.settle()

    async def leave(self, count: int) -> None:
        for _ in range(count):
            self._leave.release()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def _visit(self) -> None:
        async with self.window.place():
            self.inside += 1
            try:
                await self._leave.acquire()
            finally:
                self.inside -= 1


@pytest.fixture
async def visitors() -> AsyncIterator[Visitors]:
    made = Visitors(BindWindow(4, least=2))
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


class TestWindow:
    async def test_no_more_than_the_limit_are_inside_and_each_that_leaves_lets_one_in(self, visitors: Visitors) -> None:
        await visitors.come(10)
        assert visitors.inside == 4
        await visitors.leave(1)
        assert (visitors.inside, sum(task.done() for task in visitors.tasks)) == (4, 1)

    async def test_a_windowful_of_successes_widens_it_by_one_for_those_who_wait_already(
        self, visitors: Visitors
    ) -> None:
        await visitors.come(10)
        for _ in range(5):
            visitors.window.widen()
        assert visitors.window.limit == 5
        await visitors.leave(1)
        assert visitors.inside == 5

    async def test_a_refusal_halves_it_and_it_fills_again_from_there(self, visitors: Visitors) -> None:
        await visitors.come(10)
        visitors.window.narrow()
        await visitors.leave(2)
        assert visitors.inside == 2
        await visitors.leave(2)
        assert visitors.inside == 2

    async def test_it_stays_within_its_bounds(self) -> None:
        window = BindWindow(4, least=2)
        for _ in range(10):
            window.narrow()
        assert window.limit == 2
        for _ in range(1000):
            window.widen()
        assert window.limit == 16

    async def test_one_who_is_cancelled_inside_gives_the_place_back(self, visitors: Visitors) -> None:
        await visitors.come(5)
        visitors.tasks[0].cancel()
        await visitors.settle()
        assert visitors.inside == 4

    async def test_one_who_is_cancelled_while_waiting_takes_no_place(self, visitors: Visitors) -> None:
        await visitors.come(6)
        visitors.tasks[4].cancel()
        await visitors.leave(1)
        assert visitors.inside == 4


@pytest.fixture
def api() -> FakeApi:
    made = FakeApi()
    made.pods[POD] = pod("p").raw()
    return made


@pytest.fixture
def window() -> BindWindow:
    return BindWindow(64)


async def bind(api: FakeApi, window: BindWindow) -> BindResult:
    return await Binder(api.client(), window).bind(POD, "pod-p", "n1")


class TestOutcomes:
    async def test_bound(self, api: FakeApi, window: BindWindow) -> None:
        assert await bind(api, window) == BindResult(BindOutcome.BOUND)
        assert window.limit == 64

    async def test_bound_already_to_that_node(self, api: FakeApi, window: BindWindow) -> None:
        api.pods[POD] = pod("p").on("n1").raw()
        assert (await bind(api, window)).outcome is BindOutcome.BOUND

    async def test_bound_already_to_another_node(self, api: FakeApi, window: BindWindow) -> None:
        api.pods[POD] = pod("p").on("n2").raw()
        assert await bind(api, window) == BindResult(BindOutcome.ELSEWHERE, "pod default/p is bound to n2", "n2")

    async def test_another_pod_has_the_name(self, api: FakeApi, window: BindWindow) -> None:
        api.pods[POD] = pod("p").uid("another").raw()
        assert (await bind(api, window)).outcome is BindOutcome.LOST

    async def test_the_pod_is_gone(self, api: FakeApi, window: BindWindow) -> None:
        api.pods.clear()
        assert (await bind(api, window)).outcome is BindOutcome.LOST

    async def test_a_conflict_with_a_write_that_raced_ours(self, api: FakeApi, window: BindWindow) -> None:
        api.fail("bind", error(409, "Conflict"))
        assert (await bind(api, window)).outcome is BindOutcome.FAILED

    async def test_a_conflict_that_cannot_be_looked_into(self, api: FakeApi, window: BindWindow) -> None:
        api.fail("bind", error(409, "Conflict"))
        api.fail("get", error(500))
        assert (await bind(api, window)).outcome is BindOutcome.FAILED

    async def test_a_conflict_with_a_pod_that_is_gone_by_the_time_we_look(
        self, api: FakeApi, window: BindWindow
    ) -> None:
        api.fail("bind", error(409, "Conflict"))
        api.fail("get", error(404))
        assert (await bind(api, window)).outcome is BindOutcome.LOST

    @pytest.mark.parametrize("status", [0, 400, 403, 500, 503])
    async def test_any_other_refusal_is_a_failure_that_narrows_nothing(
        self, api: FakeApi, window: BindWindow, status: int
    ) -> None:
        api.fail("bind", error(status))
        assert (await bind(api, window)).outcome is BindOutcome.FAILED
        assert window.limit == 64

    async def test_too_many_requests_narrow_the_window(self, api: FakeApi, window: BindWindow) -> None:
        api.fail("bind", error(429))
        assert (await bind(api, window)).outcome is BindOutcome.FAILED
        assert window.limit == 32
