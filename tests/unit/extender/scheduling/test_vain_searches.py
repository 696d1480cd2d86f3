"""A gang for which no victims were found is searched for again when room was freed that may be enough with them."""

import math

import pytest

from extender.core.scheduling.group import GroupState
from extender.features.preemption.search import Search
from extender.options import PreemptionMode
from serried.api.names import GroupKey
from serried.api.verdict import Reason, Verdict
from serried.plan.request import PlanRequest, Waiting
from tests.support.builders import PodBuilder, pod
from tests.support.extender_harness import Harness, gang, members, small_nodes

HIGH = 100
HIGHER = 1000


def running(name: str, cpus: int, priority: int) -> PodBuilder:
    return pod(name).cpu(cpus).on("n1").priority(priority)


async def refuse(world: Harness) -> Harness:
    """A member wants a whole node. Half of it has a pod of low priority, the other half one of higher priority."""
    world.add(*small_nodes(1, 4), running("low", 2, 0), running("higher", 2, HIGHER))
    world.add(gang(1).priority(HIGH), members(1)[0].cpu(4).priority(HIGH))
    world.start_nominating()
    await world.run_until_idle()
    assert world.reasons()[-1] is Reason.NO_CAPACITY
    return world


@pytest.fixture
async def refused(world: Harness) -> Harness:
    return await refuse(world)


def list_evicted(world: Harness) -> list[str]:
    return [call.name for call in world.api.list_calls("delete")]


async def test_half_of_the_room_is_freed_and_the_other_half_is_taken_from_a_lower_priority(refused: Harness) -> None:
    refused.delete("higher")
    await refused.run_until_idle()
    await refused.pass_time(2)
    assert list_evicted(refused) == ["low"]


async def test_a_member_that_comes_in_the_pause_does_not_prolong_it(refused: Harness) -> None:
    planned = len(refused.heard.plans)
    refused.add(members(2)[1].cpu(4).priority(HIGH))
    await refused.run_until_idle()
    assert len(refused.heard.plans) == planned + 1
    refused.delete("higher")
    await refused.run_until_idle()
    await refused.pass_time(2)
    assert list_evicted(refused) == ["low"]


async def test_where_nothing_of_lower_priority_ran_at_first_it_is_taken_from_one_that_came_later(
    world: Harness,
) -> None:
    world.add(*small_nodes(1, 4), running("higher", 2, HIGHER))
    world.add(gang(1).priority(HIGH), members(1)[0].cpu(4).priority(HIGH))
    world.start_nominating()
    await world.run_until_idle()
    world.add(running("low", 2, 0))
    await world.run_until_idle()
    world.delete("higher")
    await world.run_until_idle()
    await world.pass_time(2)
    assert list_evicted(world) == ["low"]


async def test_nobody_is_planned_again_while_nothing_is_freed(refused: Harness) -> None:
    planned = len(refused.heard.plans)
    await refused.pass_time(50)
    assert len(refused.heard.plans) == planned


async def test_after_a_minute_it_is_planned_again_though_nothing_was_freed(refused: Harness) -> None:
    planned = len(refused.heard.plans)
    await refused.pass_time(62)
    assert len(refused.heard.plans) == planned + 1


@pytest.mark.parametrize("mode", [PreemptionMode.OFF, PreemptionMode.ADVICE])
async def test_nobody_goes_where_preemption_is_not_on(mode: PreemptionMode) -> None:
    world = await refuse(Harness(preemption=mode))
    world.delete("higher")
    await world.run_until_idle()
    await world.pass_time(70)
    assert list_evicted(world) == []
    assert ("default/low" in world.heard.verdicts[-1][1].detail) is (mode is PreemptionMode.ADVICE)
    await world.close()


async def test_who_would_have_to_go_is_told_also_when_it_is_planned_again_in_the_pause() -> None:
    world = await refuse(Harness(preemption=PreemptionMode.ADVICE))
    world.delete("higher")
    await world.run_until_idle()
    await world.pass_time(2)
    planned = len(world.heard.plans)
    world.add(members(2)[1].cpu(4).priority(HIGH))
    await world.run_until_idle()
    assert len(world.heard.plans) == planned + 1
    assert "default/low" in world.heard.verdicts[-1][1].detail
    await world.close()


class Ground:
    """Groups for which nobody goes, as nothing runs of lower priority; then something does, and room is freed."""

    def __init__(self, world: Harness) -> None:
        self.world = world
        self.states: dict[GroupKey, GroupState] = {}

    def refuse(self, *names: str, priority: int = HIGH) -> None:
        for name in names:
            key = GroupKey("default", name)
            ask = PlanRequest((pod(name).cpu(4).value(),), 1)
            state = self.states.setdefault(key, GroupState(0.0))
            waiting = Waiting(key, priority, 0.0)
            self.world.core.preemptions.start_search(state, waiting, ask, Verdict(Reason.NO_CAPACITY), math.inf, 0)

    def free(self, seconds: float = 1.0) -> None:
        """Room for one is freed, and a pod of priority 0 is left."""
        self.world.delete("higher")
        self.world.add(running("low", 2, 0))
        self.world.clock.advance(seconds)

    def take(self) -> list[str]:
        return [group.name for group in self.world.core.preemptions.pop_due(self.states)]


@pytest.fixture
async def ground(world: Harness) -> Ground:
    await world.add(*small_nodes(1, 4), running("higher", 2, HIGHER)).run_until_idle()
    return Ground(world)


async def test_four_are_woken_at_a_time_and_each_once(ground: Ground) -> None:
    ground.refuse(*"abcdef")
    ground.free()
    assert [ground.take(), ground.take(), ground.take()] == [[*"abcd"], [*"ef"], []]


async def test_those_that_cannot_be_helped_stand_in_nobodys_way(ground: Ground) -> None:
    ground.refuse(*(f"hopeless{i}" for i in range(150)), priority=0)
    ground.refuse("last")
    ground.free()
    assert ground.take() + ground.take() == ["last"]


async def test_what_took_long_rests_as_long_as_its_work_costs(ground: Ground) -> None:
    ground.refuse("a")
    search = ground.states[GroupKey("default", "a")].memory.find(Search)
    assert search is not None
    search.repeat_from = ground.world.clock() + 10.0
    ground.free(9.0)
    assert ground.take() == []
    ground.world.clock.advance(1.0)
    assert ground.take() == ["a"]


async def test_a_gang_that_waits_for_no_room_any_more_is_not_woken(ground: Ground) -> None:
    ground.refuse("a")
    ground.states[GroupKey("default", "a")].memory.pop(Search)
    ground.free()
    assert ground.take() == []
