"""A gang that is planned gives its slots to one of higher priority: all of them, at once, and nobody ends for it."""

import pytest

from extender.core.protocol import Hold, Steer
from extender.core.scheduling.binding_cycle import CycleStage
from extender.options import PreemptionMode
from serried.api.names import GroupKey, Key
from serried.api.verdict import Reason
from tests.support.builders import PodBuilder, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, BindCall, Harness, gang, members, small_nodes

LOW = 1
HIGH = 100
OTHER = GroupKey("default", "h")


def lesser(count: int) -> list[PodBuilder]:
    """Members h0, h1, ... of gang h, a node each."""
    return [pod(f"h{i}").cpu(2).scheduler(SCHEDULER).in_group("h").priority(LOW) for i in range(count)]


def greater(count: int) -> list[PodBuilder]:
    """Members of gang g, a node each."""
    return [each.cpu(2).priority(HIGH) for each in members(count)]


async def plan_lesser(world: Harness, nodes: int = 2, count: int = 2) -> Harness:
    """Gang h is planned; no member has come to its bind call yet."""
    await world.add(*small_nodes(nodes), pod_group("h").gang(count).priority(LOW), *lesser(count)).run_until_idle()
    return world


async def hold_at_bind(world: Harness, name: str) -> BindCall:
    assert isinstance(world.filter(name), Steer)
    call = world.bind(name)
    await world.run_until_idle()
    assert call.waiting
    return call


async def test_members_that_wait_at_bind_are_let_go_and_the_other_gang_is_bound(world: Harness) -> None:
    await plan_lesser(world)
    held = await hold_at_bind(world, "h0")
    await world.add(gang(2).priority(HIGH), *greater(2)).run_until_idle()
    assert held.error
    assert "releases its nodes for PodGroup default/g" in next(
        each.detail for key, each in world.heard.verdicts if key == OTHER and each.reason is Reason.PLAN_OUTDATED
    )
    assert isinstance(world.filter("h0"), Hold)
    calls = [await_bind(world, f"m{index}") for index in range(2)]
    await world.run_until_idle()
    assert [call.error for call in calls] == ["", ""]
    assert world.reasons(OTHER)[-1] is Reason.NO_CAPACITY
    assert world.api.list_evicted() == []
    assert Key("default", "h") not in world.api.records


def await_bind(world: Harness, name: str) -> BindCall:
    assert isinstance(world.filter(name), Steer)
    return world.bind(name)


async def test_it_is_planned_anew_where_there_is_room_beside_the_other_one(world: Harness) -> None:
    await plan_lesser(world, nodes=3)
    await world.add(gang(2).priority(HIGH), *greater(2)).run_until_idle()
    assert world.reasons()[-1] is Reason.PLANNED
    await world.add(node("n4").cpu(2)).run_until_idle()
    assert {slot.node for slot in world.binding_cycle(OTHER).reservation.slots.values()}.isdisjoint(
        slot.node for slot in world.binding_cycle().reservation.slots.values()
    )


async def test_it_goes_before_anybody_of_its_priority_who_runs(world: Harness) -> None:
    await plan_lesser(world)
    await world.add(node("n3").cpu(2), pod("runs").cpu(2).on("n3").priority(LOW)).run_until_idle()
    await world.add(gang(2).priority(HIGH), *greater(2)).run_until_idle()
    assert world.api.list_evicted() == []
    assert {slot.node for slot in world.binding_cycle().reservation.slots.values()} == {"n1", "n2"}


async def test_beside_victims_that_run_it_gives_way_when_they_are_told_to_end(world: Harness) -> None:
    await plan_lesser(world)
    world.api.graceful.add(Key("default", "runs"))
    await world.add(node("n3").cpu(2), pod("runs").cpu(2).on("n3").priority(LOW)).run_until_idle()
    await world.add(gang(3).priority(HIGH), *greater(3)).run_until_idle()
    assert world.api.list_evicted() == ["runs"]
    assert world.binding_cycle().stage is CycleStage.PREEMPTING
    assert [victim.name for victim in world.binding_cycle().reservation.victims.values()] == ["runs"]
    assert world.ledger.of_group(OTHER) is None


@pytest.mark.parametrize("priority", [LOW, LOW - 1])
async def test_for_a_gang_of_no_higher_priority_it_stays(world: Harness, priority: int) -> None:
    await plan_lesser(world)
    held = await hold_at_bind(world, "h0")
    await world.add(
        gang(2).priority(priority), *(each.cpu(2).priority(priority) for each in members(2))
    ).run_until_idle()
    assert held.waiting
    assert world.reasons()[-1] is Reason.NO_CAPACITY


async def test_where_it_would_not_help_it_stays(world: Harness) -> None:
    await plan_lesser(world)
    held = await hold_at_bind(world, "h0")
    await world.add(gang(3).priority(HIGH), *greater(3)).run_until_idle()
    assert held.waiting


async def test_one_that_is_being_committed_is_bound(world: Harness) -> None:
    await plan_lesser(world)
    world.api.hold("replace")
    calls = [await_bind(world, "h0"), await_bind(world, "h1")]
    await world.run_until_idle()
    await world.add(gang(2).priority(HIGH), *greater(2)).run_until_idle()
    world.api.release("replace")
    await world.run_until_idle()
    assert [call.error for call in calls] == ["", ""]


async def test_one_that_waits_for_victims_of_its_own_keeps_their_room(world: Harness) -> None:
    world.api.graceful.add(Key("default", "runs"))
    world.add(*small_nodes(1), pod("runs").cpu(2).on("n1").priority(0))
    await world.add(pod_group("h").gang(1).priority(LOW), *lesser(1)).run_until_idle()
    assert world.binding_cycle(OTHER).stage is CycleStage.PREEMPTING
    await world.add(gang(1).priority(HIGH), *greater(1)).run_until_idle()
    assert world.binding_cycle(OTHER).stage is CycleStage.PREEMPTING
    assert world.reasons(GANG)[-1] is Reason.NO_CAPACITY


async def test_one_whose_victims_have_just_ended_keeps_their_room(world: Harness) -> None:
    world.add(*small_nodes(1), pod("runs").cpu(2).on("n1").priority(0))
    await world.add(pod_group("h").gang(1).priority(LOW), *lesser(1)).run_until_idle()
    world.delete("runs")
    await world.run_until_idle()
    assert world.binding_cycle(OTHER).stage is CycleStage.GATHERING
    await world.add(gang(1).priority(HIGH), *greater(1)).run_until_idle()
    assert world.ledger.slot_of("pod-h0")
    assert world.reasons(GANG)[-1] is Reason.NO_CAPACITY


async def test_members_that_come_to_a_gang_that_runs_keep_their_slots(world: Harness) -> None:
    world.add(*small_nodes(2), pod_group("h").gang(1).priority(LOW), lesser(1)[0].on("n1"))
    await world.add(pod("h1").cpu(2).scheduler(SCHEDULER).in_group("h").priority(LOW)).run_until_idle()
    assert world.ledger.slot_of("pod-h1")
    world.add(gang(1).priority(HIGH), *greater(1))
    await world.run_until_idle()
    assert world.ledger.slot_of("pod-h1")


async def test_where_preemption_is_off_it_stays() -> None:
    world = Harness(preemption=PreemptionMode.OFF)
    await plan_lesser(world)
    held = await hold_at_bind(world, "h0")
    await world.add(gang(2).priority(HIGH), *greater(2)).run_until_idle()
    assert held.waiting
    await world.close()
