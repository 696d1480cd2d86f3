"""Running units are read as far as the limit lets it, however many gangs are in flight, and budgets written."""

from functools import partial
from itertools import count

import pytest

from extender.core.scheduling.binding_cycle import BindingCycle, CycleStage
from extender.core.scheduling.group import GroupState
from extender.features.preemption.units import Units
from serried.api.names import Disruption
from serried.api.reservation import Reservation, Slot
from serried.plan.limit import Limit, TooLong
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


async def test_each_gang_in_flight_that_is_read_is_charged(world: Harness) -> None:
    for number in range(MANY):
        plan(world, f"g{number}")
    limit = Limit()
    assert len(read_units(world).list_candidates(GANG, limit=limit).units) == MANY
    assert limit.spent >= MANY * SIZE


async def test_so_are_all_budgets_that_are_asked_about_a_pod(world: Harness) -> None:
    world.add(*(pod(f"p{place}").cpu(1).on("n1") for place in range(MANY)))
    world.add(*(budget(f"b{number}").selecting(app=f"x{number}").disruptions_allowed(1) for number in range(1000)))
    with pytest.raises(TooLong):
        read_units(world).list_candidates(GANG, limit=Limit(partial(next, count()), seconds=MANY // 2))


def run(world: Harness, group: str, count: int, first: int = 0) -> list[str]:
    """Add running members of a group. Return their UIDs."""
    pods = [
        pod(f"{group}-{place}").cpu(1).scheduler(SCHEDULER).in_group(group) for place in range(first, first + count)
    ]
    world.add(*(each.on("n1") for each in pods))
    return [each.value().uid for each in pods]


def read_spares(world: Harness) -> dict[str, int]:
    """Return how many members each gang that stands can lose, by the name of the gang."""
    allowances = read_units(world).list_candidates(GANG).allowances
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
        world.add(composite("top").gang(2), *(pod_group(name).gang(2).child_of("top") for name in "abc"))
        uids = [uid for name in "abc" for uid in run(world, name, 3)]
        assert read_spares(world) == {"top": 1, "a": 1, "b": 1, "c": 1}
        world.store.pending_victims.add(uids[:1], GANG)
        assert read_spares(world) == {"top": 1, "a": 0, "b": 1, "c": 1}
        world.store.pending_victims.add(uids[1:2], GANG)
        assert read_spares(world) == {"top": 0, "b": 1, "c": 1}


class TestAGangThatGoesWhole:
    async def test_has_none_in_its_unit_who_ends_for_another_gang(self, world: Harness) -> None:
        uids = run(world.add(pod_group("whole").gang(2).disruption(Disruption.ALL)), "whole", 3)
        world.store.pending_victims.add(uids[:1], GANG)
        units = read_units(world)
        (unit,) = units.list_candidates(GANG).units
        assert [each.uid for each in unit.pods] == uids[1:]
        assert units.is_current(unit)
