"""Readers take turns, and leave the loop to filter in between."""

import asyncio

import httpx
import pytest
from fastapi import FastAPI

from serried.ops.slices import Pace, Paced, pause_if_due, sleep
from tests.support.clock import Clock

OPEN = frozenset({"/livez"})


class PaceHarness:
    """Pages that are work, on a clock that work and rests move."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.rests: list[float] = []
        self.pace = Pace(self.clock, self._rest)
        self.done: list[str] = []
        app = FastAPI()
        app.get("/livez")(self._quick)
        app.get("/quick")(self._quick)
        app.get("/heavy/{name}")(self._heavy)
        app.get("/sliced")(self._sliced)
        app.get("/broken")(self._broken)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(Paced(app, self.pace, OPEN)), base_url="http://x")

    async def _rest(self, seconds: float) -> None:
        self.rests.append(seconds)
        until = self.clock.now + seconds
        # Time passes in the loop, not in the work.
        asyncio.get_running_loop().call_soon(self._pass_until, until)
        await asyncio.sleep(0)

    def _pass_until(self, moment: float) -> None:
        self.clock.now = max(self.clock.now, moment)

    def work(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def _quick(self) -> str:
        self.work(0.0001)
        return "quick"

    async def _heavy(self, name: str) -> str:
        for piece in range(3):
            self.work(0.003)
            self.done.append(f"{name}{piece}")
            await pause_if_due()
        return name

    async def _sliced(self) -> str:
        self.work(0.001)
        await sleep(0.5)
        return "sliced"

    async def _broken(self) -> str:
        raise RuntimeError("broken")


@pytest.fixture
def harness() -> PaceHarness:
    return PaceHarness()


async def test_who_comes_alone_does_not_wait(harness: PaceHarness) -> None:
    assert (await harness.http.get("/quick")).json() == "quick"
    assert harness.rests == []


async def test_after_a_piece_of_work_the_loop_has_as_long_a_rest(harness: PaceHarness) -> None:
    begun = harness.clock.now
    await harness.http.get("/heavy/a")
    assert harness.clock.now - begun >= 3 * 0.003 + 2 * 0.003
    assert len(harness.rests) == 3


async def test_readers_take_turns_piece_by_piece(harness: PaceHarness) -> None:
    await asyncio.gather(*(harness.http.get(f"/heavy/{name}") for name in "ab"))
    assert sorted(harness.done) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert harness.done != ["a0", "a1", "a2", "b0", "b1", "b2"]


async def test_a_page_that_leaves_the_loop_by_itself_is_not_charged_for_that(harness: PaceHarness) -> None:
    assert (await harness.http.get("/sliced")).json() == "sliced"
    before = harness.clock.now
    await harness.http.get("/quick")
    assert harness.clock.now - before < 0.01


async def test_probes_never_wait(harness: PaceHarness) -> None:
    harness.pace.charge(1000)
    assert (await harness.http.get("/livez")).status_code == 200


async def test_of_very_many_probes_some_wait_as_readers_do(harness: PaceHarness) -> None:
    for _ in range(100):
        await harness.http.get("/livez")
    assert harness.rests == []
    for _ in range(3):
        assert (await harness.http.get("/livez")).status_code == 200
    assert harness.rests != []


async def test_an_error_of_a_page_is_its_own(harness: PaceHarness) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        await harness.http.get("/broken")
    assert (await harness.http.get("/quick")).status_code == 200


async def test_outside_of_a_request_nobody_waits() -> None:
    await pause_if_due()
    await sleep(0)


async def test_fifty_readers_hold_the_loop_half_of_the_time_at_most(harness: PaceHarness) -> None:
    begun = harness.clock.now
    await asyncio.gather(*(harness.http.get(f"/heavy/{number}") for number in range(50)))
    worked = 50 * 3 * 0.003
    assert harness.clock.now - begun >= 2 * worked - 2 * 0.003
