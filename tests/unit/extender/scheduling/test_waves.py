"""Members that decide about each other: who has to come after others is sent when the scheduler has come to those."""

import pytest

from extender.protocol import Hold, Steer
from tests.support.builders import NodeBuilder, PodBuilder, node, pod, pod_group
from tests.support.composites import composite
from tests.support.extender_harness import Harness, gang, members
from tests.support.left_behind import leave_behind

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
LEADER = {"role": "leader"}


def hosts(count: int, cpus: int = 3) -> list[NodeBuilder]:
    """Nodes n1, n2, ..., each in a zone of its own."""
    names = [f"n{index}" for index in range(1, count + 1)]
    return [node(name).cpu(cpus).label(HOSTNAME, name).label(ZONE, f"z-{name}") for name in names]


def workers(count: int) -> list[PodBuilder]:
    """A leader, m0, and those that have to be on its node."""
    leader, *others = members(count)
    return [leader.label("role", "leader"), *(each.beside(LEADER) for each in others)]


def sent(world: Harness) -> set[str]:
    """Who has been nominated so far."""
    return {call.name for call in world.api.said("nominate")}


async def begin(world: Harness) -> str:
    """The gang's plan is written, and nominations are on their way; the leader's node."""
    world.nominate()
    await world.go()
    await world.settle()
    return slot_of(world, "m0")


def slot_of(world: Harness, name: str) -> str:
    """The node that is planned for a member."""
    slot = world.ledger.slot_of(f"pod-{name}")
    assert slot is not None, name
    return slot.node


@pytest.fixture
def cluster(world: Harness) -> Harness:
    return world.add(*hosts(2), gang(3), *workers(3))


def ring(world: Harness) -> Harness:
    """Four members that are spread over two zones."""
    pods = [each.label("app", "ring").spread({"app": "ring"}, ZONE) for each in members(4)]
    return world.add(*hosts(2), gang(3), *pods)


@pytest.fixture
def spread(world: Harness) -> Harness:
    return ring(world)


async def test_whoever_has_to_be_beside_another_is_sent_after_it(cluster: Harness) -> None:
    here = await begin(cluster)
    assert sent(cluster) == {"m0"}
    assert cluster.filter("m0") == Steer(here)
    await cluster.settle()
    assert sent(cluster) == {"m0", "m1", "m2"}
    assert [cluster.filter(name) for name in ("m1", "m2")] == [Steer(here)] * 2
    calls = [cluster.bind(name) for name in ("m0", "m1", "m2")]
    await cluster.go()
    assert [call.error for call in calls] == [""] * 3


async def test_one_that_comes_early_is_held_and_nothing_is_learnt_from_it(cluster: Harness) -> None:
    here = await begin(cluster)
    assert cluster.filter("m1", "n2" if here == "n1" else "n1") == Hold()
    cluster.give_up("m2", "0/2 nodes are available: 2 node(s) didn't match pod affinity rules.")
    cluster.watch()
    await cluster.pass_time(20)
    assert not cluster.groups.states[cluster.cycle().reservation.group].refusals
    assert sent(cluster) == {"m0"}

    assert cluster.filter("m0") == Steer(here)
    await cluster.settle()
    assert sent(cluster) == {"m0", "m1", "m2"}
    assert [cluster.filter(name) for name in ("m1", "m2")] == [Steer(here)] * 2


async def test_the_next_ones_are_sent_when_one_before_them_is_deleted(spread: Harness) -> None:
    await begin(spread)
    one, other = sorted(sent(spread))
    spread.filter(one)
    await spread.settle()
    assert sent(spread) == {one, other}
    spread.delete(other)
    await spread.go()
    assert sent(spread) == {"m0", "m1", "m2", "m3"}


async def test_a_restart_between_two_of_them_sends_the_next_after_those_before(cluster: Harness) -> None:
    await leave_behind(cluster, "m0", "m1", "m2")
    await cluster.recovery.recover()
    await begin(cluster)
    assert sent(cluster) == {"m0"}
    cluster.filter("m0")
    await cluster.settle()
    assert sent(cluster) == {"m0", "m1", "m2"}
    calls = [cluster.bind(name) for name in ("m0", "m1", "m2")]
    await cluster.go()
    assert [call.error for call in calls] == [""] * 3


async def test_so_does_one_between_members_that_are_spread_though_a_record_names_them_by_node(spread: Harness) -> None:
    await spread.go()
    planned = {uid: slot.node for uid, slot in spread.cycle().reservation.slots.items()}
    later = ring(Harness())
    later.api.records.update(spread.api.records)
    try:
        await later.recovery.recover()
        await begin(later)
        assert {uid: slot.node for uid, slot in later.cycle().reservation.slots.items()} == planned
        assert {planned[f"pod-{name}"] for name in sent(later)} == {"n1", "n2"}
        assert len(sent(later)) == 2
    finally:
        await later.close()


async def test_workers_of_a_tree_are_planned_after_the_leader_in_another_group_and_sent_after_it(
    world: Harness,
) -> None:
    leader, *others = workers(3)
    groups = [pod_group("a").gang(2).under("root"), pod_group("b").gang(1).under("root")]
    world.add(*hosts(2), composite("root").gang(2), *groups, leader.in_group("b"))
    world.add(*(each.in_group("a") for each in others))
    here = await begin(world)
    assert sent(world) == {"m0"}
    assert world.filter("m0") == Steer(here)
    await world.settle()
    assert sent(world) == {"m0", "m1", "m2"}
    assert [world.filter(name) for name in ("m1", "m2")] == [Steer(here)] * 2


async def test_a_leader_is_not_where_its_workers_in_another_group_find_no_room(world: Harness) -> None:
    leader, *others = workers(3)
    groups = [pod_group("a").gang(2).under("root"), pod_group("b").gang(1).under("root")]
    world.add(*hosts(2), composite("root").gang(2), *groups, leader.in_group("b"))
    world.add(*(each.in_group("a") for each in others), *(pod(f"old{at}").cpu(1).on("n1") for at in range(2)))
    await world.go()
    assert {name: slot_of(world, name) for name in ("m0", "m1", "m2")} == dict.fromkeys(("m0", "m1", "m2"), "n2")
