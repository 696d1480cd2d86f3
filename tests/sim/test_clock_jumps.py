"""The wall clock of an extender is set an hour back or ahead; what it keeps, waits for and ends goes by another clock.

That a gang is bound whole whenever that happens is told in test_death_anywhere.py, and that leadership neither lasts
longer nor ends for good in tests/unit/extender/test_leader.py.
"""

from collections.abc import AsyncIterator

import pytest

from extender.core.protocol import Steer
from serried.api.names import write_time
from serried.api.verdict import Reason
from tests.sim.test_death_anywhere import HOUR, JumpyHarness
from tests.support.builders import node
from tests.support.extender_harness import gang, members, small_nodes
from tests.unit.extender.binding.test_preempting import HIGH, list_terminating, running, start, urgent, wait_gracefully
from tests.unit.extender.scheduling.test_backfill import (
    kept,
    large,
    planned,
    runner,
    runner_job,
    send_small_gangs,
    wall,
)
from tests.unit.extender.scheduling.test_repairs import OTHER, run_gang, slot, wait_for_room

MINUTE = 60

JUMPS = pytest.mark.parametrize("jump", [-HOUR, HOUR], ids=["back", "ahead"])


@pytest.fixture
async def world() -> AsyncIterator[JumpyHarness]:
    made = JumpyHarness()
    yield made
    await made.close()


async def lose_member(world: JumpyHarness, jump: float) -> None:
    """A member of a gang that runs has died, the clock was set, and its slot is kept for one second more."""
    await run_gang(world)
    await wait_for_room(world)
    world.delete("m0")
    await world.run_until_idle()
    world.offset = jump
    await world.pass_time(119.0)


class TestTheSlotOfADeadMember:
    @JUMPS
    async def test_is_kept_for_its_replacement_as_long_as_ever(self, world: JumpyHarness, jump: float) -> None:
        await lose_member(world, jump)
        assert world.groups.states[OTHER].cycle is None
        await world.add(*members(1, first=2)).run_until_idle()
        assert slot(world, "m2") == "n1"

    @JUMPS
    async def test_and_no_longer(self, world: JumpyHarness, jump: float) -> None:
        await lose_member(world, jump)
        await world.pass_time(1.0)
        assert world.heard.repairs == [("Lost", 120.0)]
        assert world.groups.states[OTHER].cycle is not None


MOMENTS = ("before anybody is evicted", "while victims end", "when they have ended")


class TestAGangThatPreempts:
    @JUMPS
    @pytest.mark.parametrize("moment", MOMENTS)
    async def test_evicts_nobody_in_vain_and_is_bound_whole(
        self, world: JumpyHarness, jump: float, moment: str
    ) -> None:
        def reach(now: str) -> None:
            world.offset = jump if MOMENTS.index(now) >= MOMENTS.index(moment) else 0.0

        reach(MOMENTS[0])
        await start(world)
        assert list_terminating(world) == ["low1", "low2"]
        reach(MOMENTS[1])
        await world.pass_time(5.0)
        for name in ("low1", "low2"):
            world.delete(name)
        await world.run_until_idle()
        reach(MOMENTS[2])
        assert isinstance(world.filter("m0"), Steer)
        assert isinstance(world.filter("m1"), Steer)
        calls = [world.bind("m0"), world.bind("m1")]
        await world.run_until_idle()
        assert [call.error for call in calls] == ["", ""]
        assert sorted(world.api.list_evicted()) == ["low1", "low2"]
        assert world.nothing_reserved

    async def test_gets_its_room_though_everybody_seems_to_have_just_started(self) -> None:
        """The pods have run for half an hour, but by a clock that was set back by an hour they start in the future."""
        world = JumpyHarness(spare_seconds=600.0)
        wait_gracefully(world, "low1", "low2")
        began = write_time(world.wall_time() - 30 * MINUTE)
        world.offset = -HOUR
        world.add(*small_nodes(2), *(running(f"low{place}", f"n{place}").started(began) for place in (1, 2)))
        await world.add(gang(2).priority(HIGH), *urgent(2)).run_until_idle()
        assert list_terminating(world) == ["low1", "low2"]
        await world.close()


class TestTheFirstOfTheQueue:
    @JUMPS
    async def test_starts_though_small_gangs_keep_coming(self, world: JumpyHarness, jump: float) -> None:
        world.add(*[node(f"{rack}{place}").cpu(2).rack(rack) for rack in "ab" for place in (1, 2)])
        for name, host, minutes in (("x", "a1", 10), ("y", "b1", 600), ("z", "b2", 600)):
            world.add(runner_job(name), runner(name, host).started(wall(world)).active_deadline(minutes * MINUTE))
        await world.add(*large()).run_until_idle()
        assert kept(world) == {"a1", "a2"}
        world.offset = jump
        await send_small_gangs(world)
        assert planned(world) == set()
        world.delete("x")
        await world.run_until_idle()
        assert planned(world) == {"g"}


class TestAGangThatIsGivenUp:
    @JUMPS
    async def test_is_given_up_when_nobody_came_for_a_minute_not_sooner_or_later(
        self, world: JumpyHarness, jump: float
    ) -> None:
        await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
        assert world.reasons()[-1] is Reason.PLANNED
        world.offset = jump
        await world.pass_time(59.0)
        assert not world.binding_cycle().over
        world.clock.advance(2.0)
        world.binding_cycle().changed.set()
        await world.run_tasks()
        assert world.reasons()[-1] is Reason.DEADLINE_EXCEEDED
