"""What runs is read in steps between which filter is served, however many gangs are in flight, and budgets written."""

from collections import Counter
from dataclasses import replace

import pytest

from extender.core.scheduling.binding_cycle import BindingCycle, CycleStage
from extender.core.scheduling.group import GroupState
from extender.features.preemption import units as module
from extender.features.preemption.units import Running, Units
from serried.api.names import Disruption, GroupKey
from serried.api.reservation import Reservation, Slot
from serried.plan.steps import finish
from tests.support.budgets import budget
from tests.support.builders import pod, pod_group
from tests.support.composites import composite
from tests.support.extender_harness import GANG, SCHEDULER, Harness

MANY = 40
SIZE = 50


def read_units(world: Harness) -> Units:
    return Units(world.core.context)


def plan(world: Harness, name: str) -> BindingCycle:
    """A gang that gathers, and has a slot for each of its members."""
    group = pod_group(name).gang(SIZE).value()
    world.store.put_group(group)
    pods = [pod(f"{name}-{place}").cpu(1).scheduler(SCHEDULER).in_group(name).value() for place in range(SIZE)]
    for each in pods:
        world.store.put_pod(each)
    slots = {each.uid: Slot(each.uid, each.name, "n1") for each in pods}
    reservation = Reservation(group.key, group.uid, "", SIZE, slots)
    cycle = BindingCycle(group, reservation, started=0.0, progressed=0.0, stage=CycleStage.GATHERING)
    world.groups.states[group.key] = GroupState(0.0, cycle=cycle)
    return cycle


def read_in_steps(units: Units) -> tuple[Running, int]:
    work = units.list_running(GANG)
    steps = 1
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value, steps
        steps += 1


async def test_gangs_in_flight_are_read_in_steps(world: Harness) -> None:
    for number in range(MANY):
        plan(world, f"g{number}")
    running, steps = read_in_steps(read_units(world))
    assert len(running.units) == MANY
    assert steps > MANY // 2


async def test_budgets_by_the_thousand_make_more_steps_and_no_longer_ones(world: Harness) -> None:
    world.add(*(pod(f"p{place}").cpu(1).on("n1") for place in range(MANY)))
    world.add(*(budget(f"b{number}").selecting(app=f"x{number}").allowing(1) for number in range(1000)))
    running, steps = read_in_steps(read_units(world))
    assert len(running.units) == MANY
    assert steps > MANY // 2


async def test_the_budgets_of_a_gang_that_goes_whole_are_asked_in_steps_too(
    world: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[int] = Counter()

    def count(*_: object) -> bool:
        asked[step] += 1
        return False

    step = 0
    monkeypatch.setattr(module, "is_asked", count)
    world.add(pod_group("whole").gang(MANY).disruption(Disruption.ALL))
    world.add(*(pod(f"p{place}").cpu(1).scheduler(SCHEDULER).in_group("whole").on("n1") for place in range(MANY)))
    world.add(*(budget(f"b{number}").selecting(app=f"x{number}").allowing(1) for number in range(1000)))
    for step, _ in enumerate(read_units(world).list_running(GANG), start=1):
        assert asked[step] == 0
    assert asked.total() == MANY * 1000
    assert max(asked.values()) <= 2000


async def test_a_gang_that_has_got_another_plan_meanwhile_is_not_taken_for_the_one_that_was_there(
    world: Harness,
) -> None:
    for number in range(MANY):
        plan(world, f"g{number}")
    work = read_units(world).list_running(GANG)
    next(work)
    for number in range(MANY):
        key = GroupKey("default", f"g{number}")
        state = world.groups.states[key]
        assert state.cycle is not None
        state.cycle = BindingCycle(state.cycle.group, state.cycle.reservation, started=1.0, progressed=1.0)
    assert len(finish(work).units) < MANY // 2


def run(world: Harness, group: str, count: int, first: int = 0) -> list[str]:
    """So many members of a group run; their UIDs."""
    pods = [
        pod(f"{group}-{place}").cpu(1).scheduler(SCHEDULER).in_group(group) for place in range(first, first + count)
    ]
    world.add(*(each.on("n1") for each in pods))
    return [each.value().uid for each in pods]


def read_spares(world: Harness) -> dict[str, int]:
    """How many each gang that stands can lose, by its name."""
    allowances = finish(read_units(world).list_running(GANG)).allowances
    return {key.name: spare.count for key, spare in allowances.gangs.items()}


class TestWhatAGangCanSpare:
    async def test_is_not_promised_twice(self, world: Harness) -> None:
        uids = run(world.add(pod_group("elastic").gang(4)), "elastic", 6)
        assert read_spares(world) == {"elastic": 2}
        world.store.pending_victims.add(uids[:1], GANG)
        assert read_spares(world) == {"elastic": 1}
        world.store.pending_victims.add(uids[1:2], GANG)
        assert read_spares(world) == {"elastic": 0}

    async def test_is_there_again_when_its_members_stay_after_all(self, world: Harness) -> None:
        uids = run(world.add(pod_group("elastic").gang(4)), "elastic", 6)
        world.store.pending_victims.add(uids[:2], GANG)
        world.store.pending_victims.remove(uids[:2])
        assert read_spares(world) == {"elastic": 2}

    async def test_no_more_than_is_there_is_promised_of_a_gang_that_breaks_for_another_one(
        self, world: Harness
    ) -> None:
        uids = run(world.add(pod_group("broken").gang(4)), "broken", 4)
        world.store.pending_victims.add(uids[:1], GANG)
        assert read_spares(world) == {}

    async def test_of_a_tree_are_the_groups_that_stand_when_those_have_ended_that_end_for_others(
        self, world: Harness
    ) -> None:
        world.add(composite("top").gang(2), *(pod_group(name).gang(2).under("top") for name in "abc"))
        uids = [uid for name in "abc" for uid in run(world, name, 3)]
        assert read_spares(world) == {"top": 1, "a": 1, "b": 1, "c": 1}
        world.store.pending_victims.add(uids[:1], GANG)
        assert read_spares(world) == {"top": 1, "a": 0, "b": 1, "c": 1}
        world.store.pending_victims.add(uids[1:2], GANG)
        assert read_spares(world) == {"top": 0, "b": 1, "c": 1}


class TestAGangThatGoesWhole:
    async def test_and_is_deleted_while_what_runs_is_read_is_no_unit(self, world: Harness) -> None:
        world.add(*(pod(f"p{place}").cpu(1).on("n1") for place in range(300)))
        run(world.add(pod_group("whole").gang(MANY).disruption(Disruption.ALL)), "whole", MANY)
        work = read_units(world).list_running(GANG)
        next(work)
        for each in world.store.members.of_group(GroupKey("default", "whole")):
            world.store.put_pod(replace(each, deleting=True))
        assert [len(unit.pods) for unit in finish(work).units] == [1] * 300

    async def test_has_none_in_its_unit_who_ends_for_another_gang(self, world: Harness) -> None:
        uids = run(world.add(pod_group("whole").gang(2).disruption(Disruption.ALL)), "whole", 3)
        world.store.pending_victims.add(uids[:1], GANG)
        units = read_units(world)
        (unit,) = finish(units.list_running(GANG)).units
        assert [each.uid for each in unit.pods] == uids[1:]
        assert units.is_current(unit)
