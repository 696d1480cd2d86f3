"""The effects that decisions ask for, before any is carried out."""

import pytest

from extender.core.scheduling.binding_cycle import CycleStage
from extender.core.scheduling.effects import Activate, Effect, Nominate, Outbox, Release, StartCycle
from extender.options import NominationPolicy
from tests.support.builders import pod_group
from tests.support.extender_harness import GANG, Harness, gang, members, small_nodes

pytestmark = pytest.mark.core


def decide(world: Harness) -> list[Effect]:
    """Gang g is looked at; what that asks for."""
    world.group_scheduler.consider(GANG)
    return world.core.outbox.drain()


async def begin(world: Harness) -> Harness:
    """Gang g of two is planned, and its record is written."""
    await world.add(*small_nodes(3), gang(2), *members(2)).run_until_idle()
    assert world.binding_cycle().stage is CycleStage.GATHERING
    return world


class TestTheOutbox:
    def test_gives_each_effect_once_in_the_order_in_which_they_came(self) -> None:
        outbox, effects = Outbox(), [Release(frozenset({"a"})), Release(frozenset({"b"}))]
        for effect in effects:
            outbox.put(effect)
        assert outbox.drain() == effects
        assert outbox.drain() == []


class TestADecision:
    async def test_about_a_gang_that_fits_holds_its_slots_and_asks_for_its_cycle(self, world: Harness) -> None:
        world.add(*small_nodes(2), gang(2), *members(2))
        effects = decide(world)
        assert effects == [StartCycle(world.binding_cycle())]
        assert len(world.ledger) == 1

    async def test_writes_nothing_itself(self, world: Harness) -> None:
        world.add(*small_nodes(2), gang(2), *members(2))
        decide(world)
        await world.run_tasks()
        assert world.api.calls == []

    async def test_about_a_gang_that_does_not_fit_asks_for_nothing(self, world: Harness) -> None:
        world.add(*small_nodes(1, cpus=1), gang(2), *members(2))
        assert decide(world) == []

    async def test_about_held_pods_of_no_gang_has_them_tried(self, world: Harness) -> None:
        world.add(*members(1))
        world.filter("m0", "n1")
        world.add(pod_group("g"))
        assert decide(world) == [Activate(world.store.pods["pod-m0"])]

    async def test_to_give_up_a_cycle_takes_nominations_off_and_no_slot_is_left(self) -> None:
        world = Harness(nomination=NominationPolicy.ALWAYS)
        world.start_nominating()
        await begin(world)
        world.store.drop_group(GANG)
        (effect,) = decide(world)
        assert isinstance(effect, Release)
        assert effect.uids == {"pod-m0", "pod-m1"}
        assert {pod.name for pod in effect.pods} == {"m0", "m1"}
        assert not len(world.ledger)
        await world.close()

    async def test_that_a_node_will_not_do_sends_the_member_to_another(self, world: Harness) -> None:
        cycle = (await begin(world)).binding_cycle()
        node = cycle.reservation.slots["pod-m0"].node
        world.core.cycle_updates.handle_rejected_node("pod-m0", node)
        assert world.core.outbox.drain() == [Nominate(cycle, ("pod-m0",))]
        assert cycle.reservation.slots["pod-m0"].node != node


async def test_the_runner_carries_out_what_was_decided(world: Harness) -> None:
    world.add(*small_nodes(2), gang(2), *members(2))
    world.group_scheduler.consider(GANG)
    world.core.runner.carry_out()
    await world.run_tasks()
    assert world.binding_cycle().stage is CycleStage.GATHERING


async def test_an_effect_that_came_before_the_end_of_a_term_is_not_written_after_it(world: Harness) -> None:
    world.add(*members(1))
    world.filter("m0", "n1")
    world.add(pod_group("g"))
    world.group_scheduler.consider(GANG)
    world.core.end_term()
    await world.run_tasks()
    assert world.api.calls == []
    assert world.core.outbox.drain() == []
