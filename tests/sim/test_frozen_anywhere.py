"""The extender stands still at any turn, another one takes over, and what the first had sent arrives late.

The answer of a request that is on its way is not waited for: it arrives at any turn of the successor's takeover, or
after it. Then the first one goes on, and finds that it does not lead any more.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from extender.options import NominationPolicy
from serried.api.names import Key
from serried.kube.errors import Fenced
from serried.kube.wire import Failure
from tests.sim.test_death_anywhere import (
    GANG_OF_THREE,
    MOST_TURNS,
    NAMES,
    SHAPES,
    JumpyHarness,
    Play,
    Shape,
    begin,
    begin_anew,
    leave_record,
)
from tests.support.fake_api import Call, FakeApi

LATE = (*range(10), 20, 40)
"""The turns of the successor after which the requests arrive that were on their way."""

READS = {"get", "list"}


class Road(FakeApi):
    """The way of one extender to an API server that others reach, too."""

    def __init__(self, server: FakeApi) -> None:
        super().__init__()
        self.pods, self.records, self.owners, self.budgets = server.pods, server.records, server.owners, server.budgets
        self._store = server._store  # type: ignore[method-assign]  # noqa: SLF001 - it is the same server
        self.leads: Callable[[], bool] = lambda: True
        self.under_way = 0
        self.late: set[str] = set()
        """The verbs of the writes that have arrived while their sender stood still."""

        self.written: list[Call] = []
        self._arrives, self._goes_on = asyncio.Event(), asyncio.Event()
        self._arrives.set()
        self._goes_on.set()

    def freeze(self) -> None:
        """Freeze the sender, and hold its requests that are on their way."""
        self._arrives.clear()
        self._goes_on.clear()

    def arrive(self) -> None:
        """Let the held requests arrive. The sender does not see the answers."""
        self._arrives.set()

    def thaw(self) -> None:
        """Let the sender go on."""
        self._goes_on.set()

    async def _do(self, call: Call, change: Callable[[], Any]) -> Any:
        await self._goes_on.wait()
        if call.verb not in READS and not self.leads():
            raise Fenced(call.verb, Failure(0, "NotLeading", "not sent"))
        self.under_way += 1
        await asyncio.sleep(0)
        await self._arrives.wait()
        self.under_way -= 1
        if call.verb not in READS:
            self.written.append(call)
            if not self._goes_on.is_set():
                self.late.add(call.verb)
        try:
            return await super()._do(call, change)
        finally:
            await self._goes_on.wait()


class Scene:
    """One extender that freezes after some turns, and its successor."""

    def __init__(self, policy: NominationPolicy, shape: Shape) -> None:
        self.server = FakeApi()
        self.policy, self.shape = policy, shape
        self.road = Road(self.server)
        self.first = begin(self.road, policy, shape)
        self.road.leads = self.first.term.leads

    def begin_next(self) -> JumpyHarness:
        """The next one, which has seen what the API server has."""
        return begin(self.server, self.policy, self.shape)

    async def stand_still(self, turns: int) -> bool:
        """Freeze the first leader after this many turns. Return whether it had not finished before."""
        done = await Play(self.first).run(turns)
        self.road.freeze()
        return done == turns

    async def hand_over(self, late: int) -> Play:
        """Let the successor take over and schedule the rest. The held requests arrive after ``late`` turns of it."""
        second = self.begin_next()
        second.term.active = False
        taking = asyncio.create_task(second.recovery.recover())
        turns = 0
        while not taking.done():
            if turns == late:
                self.road.arrive()
            turns += 1
            await asyncio.sleep(0)
        assert taking.result()
        second.term.active = True
        play = Play(second)
        await play.run(max(0, late - turns))
        self.road.arrive()
        for _ in range(5):
            await asyncio.sleep(0)
        await play.run(MOST_TURNS)
        if (
            second.records.contested.is_set()
        ):  # the commit that has arrived late is the next term's (`Takeover.watch_contested`)
            second.records.contested.clear()
            second.term.active = False
            assert await second.recovery.recover()
            second.term.active = True
            await play.run(MOST_TURNS)
        return play

    async def go_on(self) -> int:
        """Thaw the first leader, now without the Lease. Return how many writes it sends."""
        self.first.term.holds_lease = lambda: False
        before = len(self.road.written)
        self.road.thaw()
        await Play(self.first).run(20)
        return len(self.road.written) - before


class SceneBesideOldRecord(Scene):
    """The gang is the second one of its name, and the record of the first one is still there."""

    def __init__(self, policy: NominationPolicy) -> None:
        super().__init__(policy, GANG_OF_THREE)
        self.server.pods.clear()

    async def stand_still(self, turns: int) -> bool:
        """Freeze the leader of the second gang. Return whether that was before all members were bound."""
        await self.first.close()
        self.first = await leave_record(self.road, self.policy)
        self.road.leads = self.first.term.leads
        return await super().stand_still(turns) and len(Play(self.first).bound) < len(NAMES)

    def begin_next(self) -> JumpyHarness:
        """The other gang, for which the record had to wait, is gone."""
        self.server.pods.pop(Key("default", "busy-0"), None)
        return begin_anew(self.server, self.policy)


async def assert_whole(play: Play, told: str) -> None:
    """Assert that each member runs on a node of its own, and that at most a record is left until the next term."""
    second = play.world
    assert play.bound == set(NAMES), told
    assert len({second.node_of(name) for name in NAMES}) == len(NAMES), told
    second.term.active = False
    assert await second.recovery.recover(), told
    second.term.active = True
    await play.run(40)
    assert second.nothing_reserved, told


async def stand_still_at_each_turn(begin: Callable[[], Scene]) -> None:
    """Freeze the first leader at each turn, and let its requests arrive at each time after it.

    The next leader schedules all members, and the first one writes nothing.
    """
    late_verbs: set[str] = set()
    turn, lasts = 0, True
    while lasts:
        for late in LATE:
            scene = begin()
            lasts = await scene.stand_still(turn)
            under_way, told = scene.road.under_way, f"turn {turn}, late by {late}"
            play = await scene.hand_over(late)
            assert await scene.go_on() == 0, told
            await assert_whole(play, told)
            await scene.first.close()
            await play.world.close()
            late_verbs |= scene.road.late
            if not under_way:
                break
        turn += 1
    # Else nothing was on its way where it matters.
    assert late_verbs >= {"create", "bind", "delete"}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(each, marks=[] if each is NominationPolicy.AUTO else pytest.mark.full, id=each.name.lower())
        for each in NominationPolicy
    ],
)
async def test_one_that_stands_still_at_any_turn_is_not_waited_for_and_does_no_harm(
    policy: NominationPolicy, shape: Shape
) -> None:
    await stand_still_at_each_turn(lambda: Scene(policy, shape))


async def test_a_record_that_was_left_for_an_idle_moment_stands_in_nobodys_way() -> None:
    await stand_still_at_each_turn(lambda: SceneBesideOldRecord(NominationPolicy.AUTO))
