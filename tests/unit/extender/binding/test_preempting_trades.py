"""While victims end, a member takes the node of a mate that is free: it waits at bind sooner, and keeps others off."""

from collections.abc import Sequence

import pytest

from extender.core.protocol import Hold, Steer
from extender.core.scheduling.binding_cycle import BindingCycle
from serried.api.names import GroupKey, GroupKind, Key
from tests.support.builders import PodBuilder, node, pod, pod_group
from tests.support.composites import composite
from tests.support.extender_harness import SCHEDULER, Harness, gang, members, small_nodes

HIGH = 100


def urgent(count: int) -> list[PodBuilder]:
    return [each.cpu(2).priority(HIGH) for each in members(count)]


async def start(world: Harness, pods: Sequence[PodBuilder]) -> Harness:
    """A gang needs as many nodes as it has members; those that run there end gracefully."""
    names = [f"low{index}" for index in range(1, len(pods) + 1)]
    world.api.graceful.update(Key("default", name) for name in names)
    world.add(*small_nodes(len(pods)), *(pod(name).cpu(2).on(name.replace("low", "n")).priority(0) for name in names))
    world.start_nominating()
    await world.add(gang(len(pods)).priority(HIGH), *pods).run_until_idle()
    return world


def find_member(world: Harness, node: str) -> str:
    """Return the name of the member that has its slot on a node."""
    return next(slot.name for slot in world.binding_cycle().reservation.slots.values() if slot.node == node)


async def free(world: Harness, node: str) -> None:
    world.delete(node.replace("n", "low"))
    await world.run_until_idle()


async def test_it_is_sent_there_and_its_mate_gets_its_own_node(world: Harness) -> None:
    await start(world, urgent(2))
    first, second = find_member(world, "n1"), find_member(world, "n2")
    await free(world, "n1")
    assert world.filter(second, "n1") == Steer("n1")
    assert (find_member(world, "n1"), find_member(world, "n2")) == (second, first)


async def test_it_is_sent_there_too_if_only_the_scheduler_has_seen_the_victim_end(world: Harness) -> None:
    await start(world, urgent(2))
    first, second = find_member(world, "n1"), find_member(world, "n2")
    assert world.filter(second, "n1") == Steer("n1")
    assert (find_member(world, "n1"), find_member(world, "n2")) == (second, first)


async def test_the_mate_is_nominated_to_its_new_node(world: Harness) -> None:
    await start(world, urgent(2))
    first, second = find_member(world, "n1"), find_member(world, "n2")
    assert world.pod(first).nominated == "n1"
    await free(world, "n1")
    world.filter(second, "n1")
    await world.run_until_idle()
    assert world.pod(first).nominated == "n2"


async def test_all_of_them_are_bound_in_the_end(world: Harness) -> None:
    await start(world, urgent(2))
    first, second = find_member(world, "n1"), find_member(world, "n2")
    await free(world, "n1")
    world.filter(second, "n1")
    calls = [world.bind(second)]
    await world.run_until_idle()
    assert calls[0].waiting
    await free(world, "n2")
    assert world.filter(first, "n2") == Steer("n2")
    calls.append(world.bind(first))
    await world.run_until_idle()
    assert [call.error for call in calls] == ["", ""]
    assert (world.node_of(second), world.node_of(first)) == ("n1", "n2")


async def test_a_mate_that_the_scheduler_has_sent_there_keeps_its_node(world: Harness) -> None:
    await start(world, urgent(2))
    first, second = find_member(world, "n1"), find_member(world, "n2")
    await free(world, "n1")
    assert world.filter(first, "n1") == Steer("n1")
    assert isinstance(world.filter(second, "n1"), Hold)
    assert find_member(world, "n1") == first


async def test_members_of_two_podgroups_of_a_tree_keep_their_nodes_which_are_in_two_racks(world: Harness) -> None:
    racked = [node(f"n{place}").cpu(2).rack("r1" if place < 3 else "r2") for place in range(1, 5)]
    names = [f"low{place}" for place in range(1, 5)]
    world.api.graceful.update(Key("default", name) for name in names)
    world.add(*racked, *(pod(name).cpu(2).on(name.replace("low", "n")).priority(0) for name in names))
    world.start_nominating()
    world.add(composite("root").gang(2).priority(HIGH))
    for group in ("a", "b"):
        world.add(pod_group(group).gang(2).child_of("root").topology())
        world.add(*[pod(f"{group}{i}").cpu(2).priority(HIGH).scheduler(SCHEDULER).in_group(group) for i in (0, 1)])
    await world.run_until_idle()
    cycle = world.binding_cycle(GroupKey("default", "root", GroupKind.COMPOSITE))
    before = {slot.name: slot.node for slot in cycle.reservation.slots.values()}
    freed = min(before.values())
    await free(world, freed)
    others = [slot.name for slot in cycle.reservation.slots.values() if slot.part != find_part(cycle, freed)]
    assert all(isinstance(world.filter(name, freed), Hold) for name in others)
    assert {slot.name: slot.node for slot in cycle.reservation.slots.values()} == before


def find_part(cycle: BindingCycle, node: str) -> str:
    """The PodGroup of whose member the slot on a node is."""
    return next(slot.part for slot in cycle.reservation.slots.values() if slot.node == node)


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param([each.index(place) for place, each in enumerate(urgent(2))], id="they have ranks"),
        pytest.param([urgent(2)[0], urgent(2)[1].memory("1Gi")], id="they ask for different things"),
    ],
)
async def test_members_that_are_not_alike_wait_for_their_own_nodes(world: Harness, pods: list[PodBuilder]) -> None:
    await start(world, pods)
    second = find_member(world, "n2")
    await free(world, "n1")
    assert isinstance(world.filter(second, "n1"), Hold)
    assert find_member(world, "n2") == second
