"""Room for members that only kube-scheduler can count for: what it does not offer may just be full.

The scene: n1 and n2 are taken by pods of low priority, n3 is free. A gang of two claims devices. kube-scheduler tells
us of n3 alone, as no other node has the CPU, whatever devices there are.
"""

from extender.core.protocol import Hold, Steer
from extender.core.scheduling.binding_cycle import CycleStage
from serried.api.names import Key, write_time
from serried.api.verdict import Reason
from tests.support.builders import PodBuilder, node, pod
from tests.support.devices import rejection_message
from tests.support.extender_harness import GANG, Harness, gang, members, small_nodes

HIGH = 100
CLAIMS = [{"name": "gpu", "resourceClaimName": "mine"}]
LAG = 5.0
NO_DEVICE_OR_CPU = rejection_message("11 Insufficient cpu", "1 cannot allocate all claims")


def claiming(count: int, priority: int = HIGH) -> list[PodBuilder]:
    return [each.cpu(2).priority(priority).with_field(CLAIMS, "spec", "resourceClaims") for each in members(count)]


def low(number: int) -> PodBuilder:
    return pod(f"low{number}").cpu(2).on(f"n{number}")


async def offer(world: Harness, *nodes: str, priority: int = HIGH, size: int = 2) -> Harness:
    """Let one member wait when kube-scheduler tries it, and then add the others."""
    first, *others = claiming(size, priority)
    world.api.graceful.update(Key("default", f"low{number}") for number in (1, 2))
    await world.add(gang(size).priority(priority), first).run_until_idle()
    assert world.filter("m0", *nodes) == Hold()
    await world.add(*others).run_until_idle()
    return world


def list_ended(world: Harness) -> list[str]:
    return sorted(key.name for key, raw in world.api.pods.items() if "deletionTimestamp" in raw["metadata"])


async def preempting(world: Harness) -> Harness:
    """The gang is to have n3, and the node of low1 or low2."""
    world.start_nominating()
    world.add(*small_nodes(3), low(1), low(2))
    await offer(world, "n3")
    assert world.binding_cycle().stage is CycleStage.PREEMPTING
    return world


def left_by_victim(world: Harness) -> tuple[str, str]:
    """The member that waits for its node, and the node."""
    return next(
        (slot.name, slot.node) for slot in world.binding_cycle().reservation.slots.values() if slot.node != "n3"
    )


async def test_a_full_node_is_made_room_on_though_it_was_not_offered(world: Harness) -> None:
    await preempting(world)
    ended = list_ended(world)
    assert len(ended) == 1
    world.delete(ended[0])
    await world.run_until_idle()
    assert [isinstance(world.filter(name), Steer) for name in ("m0", "m1")] == [True, True]
    calls = [world.bind("m0"), world.bind("m1")]
    await world.run_until_idle()
    assert [call.error for call in calls] == ["", ""]
    assert world.reasons()[-1] is Reason.SCHEDULED


async def test_nobody_ends_for_a_node_that_had_room_and_was_not_offered(world: Harness) -> None:
    world.add(node("n1").cpu(4), node("n3").cpu(2), low(1))
    await offer(world, "n3", size=3)
    for _ in range(5):
        await world.pass_time(5)
    assert list_ended(world) == []
    assert world.reasons()[-1] is Reason.NO_CAPACITY


async def test_the_gang_is_head_of_the_queue_and_is_told_when_there_will_be_room(world: Harness) -> None:
    began, soon = write_time(world.wall_time()), world.clock() + 500
    world.add(*small_nodes(3), *(low(number).started(began).active_deadline(500 * number) for number in (1, 2)))
    await offer(world, "n3", priority=0)
    head = world.core.backfill.head
    assert head is not None
    assert (head.group, sorted(head.forecast.nodes), head.forecast.at) == (GANG, ["n1", "n3"], soon)


async def test_it_is_placed_where_room_was_freed_as_soon_as_that_is_offered(world: Harness) -> None:
    await offer(world.add(*small_nodes(3), low(1), low(2)), "n3", priority=0)
    world.delete("low1")
    await world.run_until_idle()
    assert world.filter("m0", "n1", "n3") == Hold()
    await world.run_until_idle()
    assert {slot.node for slot in world.binding_cycle().reservation.slots.values()} == {"n1", "n3"}


async def test_where_others_ended_in_vain_nobody_ends_again(world: Harness) -> None:
    await preempting(world)
    member, node_name = left_by_victim(world)
    (first,) = list_ended(world)
    world.delete(first)
    await world.run_until_idle()
    await world.pass_time(LAG)
    for _ in range(2):
        world.filter(member, "n3")
        await world.run_until_idle()
    world.add(low(int(node_name[1:])))  # its controller has made it anew
    for _ in range(20):
        await world.pass_time(31)
    (second,) = list_ended(world)
    assert second != first


async def test_nor_if_it_was_given_up_without_a_call_of_filter(world: Harness) -> None:
    await preempting(world)
    member, node_name = left_by_victim(world)
    world.delete(list_ended(world)[0])
    await world.run_until_idle()
    state, pods = world.groups.states[GANG], [world.store.pods[f"pod-{member}"]]
    for _ in range(100):
        if state.cycle is None:
            break
        world.erase_nomination(member)
        world.mark_unschedulable(member, NO_DEVICE_OR_CPU)
        world.sync_pods()
        await world.pass_time(LAG)
    assert state.cycle is None
    assert state.refusals.find_exempt(pods, world.clock(), world.store) == {node_name}


async def test_nobody_gets_a_node_with_room_that_was_not_offered_after_others_have_ended(world: Harness) -> None:
    world.add(node("n0").cpu(2))
    await preempting(world)
    assert "n0" in world.binding_cycle().closed
    assert world.binding_cycle().closed.isdisjoint(
        slot.node for slot in world.binding_cycle().reservation.slots.values()
    )


async def test_what_is_said_while_others_still_end_is_no_refusal(world: Harness) -> None:
    await preempting(world)
    member, _ = left_by_victim(world)
    world.mark_unschedulable(member, NO_DEVICE_OR_CPU)
    world.sync_pods()
    await world.run_until_idle()
    assert world.binding_cycle().stage is CycleStage.PREEMPTING
    world.delete(list_ended(world)[0])
    await world.run_until_idle()
    assert world.binding_cycle().stage is CycleStage.GATHERING
    assert [isinstance(world.filter(name), Steer) for name in ("m0", "m1")] == [True, True]


async def test_an_offer_of_the_node_ends_that(world: Harness) -> None:
    await preempting(world)
    state, member = world.groups.states[GANG], world.store.pods["pod-m0"]
    state.refusals.exempt_from_evictions(member.shape, "n1", world.clock(), world.store)
    assert state.refusals.find_exempt([member], world.clock(), world.store) == {"n1"}
    state.learn_offer(member.shape, ["n1"], world.clock())
    assert state.refusals.find_exempt([member], world.clock(), world.store) == frozenset()
