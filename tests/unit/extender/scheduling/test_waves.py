"""Members that decide about each other: who has to come after others is sent when the scheduler has come to those."""

import pytest

from extender.core.protocol import Hold, Steer
from serried.api.names import Key
from tests.support.builders import NodeBuilder, PodBuilder, node, pod, pod_group
from tests.support.composites import composite
from tests.support.extender_harness import Harness, gang, members
from tests.support.leftover_records import add_leftover_record

pytestmark = pytest.mark.core

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
LEADER = {"role": "leader"}
HIGH = 100


def hosts(count: int, cpus: int = 3) -> list[NodeBuilder]:
    """Nodes n1, n2, ..., each in a zone of its own."""
    names = [f"n{index}" for index in range(1, count + 1)]
    return [node(name).cpu(cpus).label(HOSTNAME, name).label(ZONE, f"z-{name}") for name in names]


def workers(count: int) -> list[PodBuilder]:
    """A leader, m0, and those that have to be on its node."""
    leader, *others = members(count)
    return [leader.label("role", "leader"), *(each.affinity(LEADER) for each in others)]


def sent(world: Harness) -> set[str]:
    """Return the names of the members that have been nominated so far."""
    return {call.name for call in world.api.list_calls("nominate")}


async def begin(world: Harness) -> str:
    """The gang's plan is written, and nominations are on their way; the leader's node."""
    world.start_nominating()
    await world.run_until_idle()
    await world.run_tasks()
    return slot_of(world, "m0")


def slot_of(world: Harness, name: str) -> str:
    """The node that is planned for a member."""
    slot = world.ledger.slot_of(f"pod-{name}")
    assert slot is not None, name
    return slot.node


@pytest.fixture
def cluster(world: Harness) -> Harness:
    return world.add(*hosts(2), gang(3), *workers(3))


def spread_members(count: int) -> list[PodBuilder]:
    """Members m0, m1, ... that are spread over zones."""
    return [each.label("app", "ring").spread({"app": "ring"}, ZONE) for each in members(count)]


def ring(world: Harness) -> Harness:
    """Two small and two large members that are spread over two zones: as they are not alike, they come in waves."""
    small, large = spread_members(2), spread_members(4)[2:]
    return world.add(*hosts(2), gang(3), *small, *(each.cpu(2) for each in large))


@pytest.fixture
def spread(world: Harness) -> Harness:
    return ring(world)


class SpreadingScheduler:
    """kube-scheduler with the nodes of a story, each a zone of its own: a pod of the ring is offered the emptiest."""

    def __init__(self, world: Harness, *full: str) -> None:
        self.world, self.full = world, set(full)
        self.counts = {name: 0 for name in world.store.nodes if not name.startswith("spare")}

    def offer(self) -> list[str]:
        """The nodes that keep the skew, without those that are full."""
        least = min(self.counts.values())
        return [name for name, count in self.counts.items() if count == least and name not in self.full]

    def try_member(self, name: str) -> bool:
        """Offer a member the nodes that keep the skew. Return whether it gets one."""
        offered = self.offer()
        answer = self.world.filter(name, *offered) if offered else None
        if isinstance(answer, Steer):
            self.counts[answer.node] += 1
        return isinstance(answer, Steer)

    def try_members(self, *indexes: int) -> int:
        """Try members one after the other. Return how many of them get a node."""
        return sum(self.try_member(f"m{index}") for index in indexes)


async def test_a_member_with_affinity_to_another_is_sent_after_it(cluster: Harness) -> None:
    here = await begin(cluster)
    assert sent(cluster) == {"m0"}
    assert cluster.filter("m0") == Steer(here)
    await cluster.run_tasks()
    assert sent(cluster) == {"m0", "m1", "m2"}
    assert [cluster.filter(name) for name in ("m1", "m2")] == [Steer(here)] * 2
    calls = [cluster.bind(name) for name in ("m0", "m1", "m2")]
    await cluster.run_until_idle()
    assert [call.error for call in calls] == [""] * 3


async def test_one_that_comes_early_is_held_and_nothing_is_learnt_from_it(cluster: Harness) -> None:
    here = await begin(cluster)
    assert cluster.filter("m1", "n2" if here == "n1" else "n1") == Hold()
    cluster.mark_unschedulable("m2", "0/2 nodes are available: 2 node(s) didn't match pod affinity rules.")
    cluster.sync_pods()
    await cluster.pass_time(20)
    assert not cluster.groups.states[cluster.binding_cycle().reservation.group].refusals.excluded
    assert sent(cluster) == {"m0"}

    assert cluster.filter("m0") == Steer(here)
    await cluster.run_tasks()
    assert sent(cluster) == {"m0", "m1", "m2"}
    assert [cluster.filter(name) for name in ("m1", "m2")] == [Steer(here)] * 2


async def test_the_next_ones_are_sent_when_one_before_them_is_deleted(spread: Harness) -> None:
    await begin(spread)
    one, other = sorted(sent(spread))
    assert isinstance(spread.filter(one), Steer)
    await spread.run_tasks()
    assert sent(spread) == {one, other}
    spread.delete(other)
    await spread.run_until_idle()
    assert sent(spread) == {"m0", "m1", "m2", "m3"}


async def test_a_restart_between_two_of_them_sends_the_next_after_those_before(cluster: Harness) -> None:
    await add_leftover_record(cluster, "m0", "m1", "m2")
    await cluster.recovery.recover()
    await begin(cluster)
    assert sent(cluster) == {"m0"}
    cluster.filter("m0")
    await cluster.run_tasks()
    assert sent(cluster) == {"m0", "m1", "m2"}
    calls = [cluster.bind(name) for name in ("m0", "m1", "m2")]
    await cluster.run_until_idle()
    assert [call.error for call in calls] == [""] * 3


async def test_so_does_one_between_members_that_are_spread_though_a_record_names_them_by_node(spread: Harness) -> None:
    await spread.run_until_idle()
    planned = {uid: slot.node for uid, slot in spread.binding_cycle().reservation.slots.items()}
    later = ring(Harness())
    later.api.records.update(spread.api.records)
    try:
        await later.recovery.recover()
        await begin(later)
        assert {uid: slot.node for uid, slot in later.binding_cycle().reservation.slots.items()} == planned
        assert {planned[f"pod-{name}"] for name in sent(later)} == {"n1", "n2"}
        assert len(sent(later)) == 2
    finally:
        await later.close()


ORDERS = [
    pytest.param([0, 1, 2, 3, 4, 5], id="in their order"),
    pytest.param([5, 4, 3, 2, 1, 0], id="the last one first"),
    pytest.param([2, 5, 1, 4, 0, 3], id="some order"),
]


@pytest.mark.parametrize("order", ORDERS)
async def test_alike_members_take_the_slots_in_turn_in_any_order(world: Harness, order: list[int]) -> None:
    world.add(*hosts(3, cpus=2), *spread_members(6))
    assert [world.filter(name) for name in ("m0", "m4")] == [Hold()] * 2
    world.add(gang(6)).start_nominating()
    await world.run_until_idle()
    assert not sent(world)
    assert {call.name for call in world.api.list_calls("activate")} == {"m0", "m4"}
    scheduler = SpreadingScheduler(world)
    assert scheduler.try_members(*order) == 6
    calls = [world.bind(f"m{index}") for index in range(6)]
    await world.run_until_idle()
    assert [call.error for call in calls] == [""] * 6
    assert scheduler.counts == {"n1": 2, "n2": 2, "n3": 2}
    assert not sent(world)


@pytest.mark.parametrize("order", ORDERS)
async def test_so_do_members_with_ranks_and_each_has_its_own_where_they_come_in_order(
    world: Harness, order: list[int]
) -> None:
    world.add(*hosts(3, cpus=2), gang(6), *(each.index(rank) for rank, each in enumerate(spread_members(6))))
    world.start_nominating()
    await world.run_until_idle()
    planned = [slot_of(world, f"m{rank}") for rank in range(6)]
    assert planned == ["n1", "n2", "n3"] * 2
    scheduler = SpreadingScheduler(world)
    assert scheduler.try_members(*order) == 6
    assert scheduler.counts == {"n1": 2, "n2": 2, "n3": 2}
    assert not sent(world)
    if order == sorted(order):
        assert [slot_of(world, f"m{rank}") for rank in range(6)] == planned


async def test_one_that_is_refused_where_it_was_called_is_called_to_another_node(world: Harness) -> None:
    world.add(*hosts(3, cpus=2), gang(6), *spread_members(6))
    world.start_nominating()
    await world.run_until_idle()
    assert isinstance(world.filter("m3", "elsewhere"), Hold)
    await world.run_until_idle()
    tried = world.pod("m3").nominated
    assert isinstance(world.filter("m3", "elsewhere"), Hold)
    await world.run_until_idle()
    again = world.pod("m3").nominated
    assert again not in {tried, ""}
    assert world.filter("m3", again) == Steer(again)


@pytest.mark.needs("preemptions")
@pytest.mark.parametrize("order", ORDERS)
async def test_so_they_do_while_victims_end(world: Harness, order: list[int]) -> None:
    lows = [pod(f"low{index}").cpu(2).on(f"n{index}").priority(0) for index in range(1, 4)]
    urgent = [each.priority(HIGH) for each in spread_members(6)]
    world.api.graceful.update(Key("default", f"low{index}") for index in range(1, 4))
    world.add(*hosts(3, cpus=2), *lows, gang(6).priority(HIGH), *urgent)
    world.start_nominating()
    await world.run_until_idle()
    first, *others = order
    world.delete("low3")
    await world.run_until_idle()
    scheduler = SpreadingScheduler(world, "n1", "n2")
    assert scheduler.try_members(first, *others) == 1
    world.delete("low1")
    world.delete("low2")
    await world.run_until_idle()
    scheduler.full.clear()
    assert scheduler.try_members(*others) == 5
    assert not sent(world)


@pytest.mark.needs("preemptions")
async def test_one_of_a_later_wave_waits_while_victims_end_though_a_mate_s_node_is_free(world: Harness) -> None:
    lows = [pod(f"low{index}").cpu(4).on(f"n{index}").priority(0) for index in range(1, 4)]
    small, large = spread_members(3), spread_members(6)[3:]
    urgent = [*(each.priority(HIGH) for each in small), *(each.cpu(2).priority(HIGH) for each in large)]
    world.api.graceful.update(Key("default", f"low{index}") for index in range(1, 4))
    world.add(*hosts(3, cpus=4), *lows, gang(6).priority(HIGH), *urgent)
    world.start_nominating()
    await world.run_until_idle()
    first, later = (wave.uids for wave in world.binding_cycle().open_slots.waves)
    assert len(first) == len(later) == 3
    world.delete("low1")
    await world.run_until_idle()
    answers = {uid: world.filter(uid.removeprefix("pod-"), "n1") for uid in (*later, *first)}
    assert [answers[uid] for uid in later] == [Hold()] * 3
    assert [answers[uid] for uid in first].count(Steer("n1")) == 1


async def test_a_restart_between_them_lets_them_take_the_slots_in_turn_again(world: Harness) -> None:
    def build(world: Harness) -> Harness:
        return world.add(*hosts(3, cpus=2), gang(6), *spread_members(6))

    await build(world).run_until_idle()
    later = build(Harness())
    later.api.records.update(world.api.records)
    try:
        await later.recovery.recover()
        later.start_nominating()
        await later.run_until_idle()
        assert SpreadingScheduler(later).try_members(4, 0, 5, 3, 1, 2) == 6
        calls = [later.bind(f"m{index}") for index in range(6)]
        await later.run_until_idle()
        assert [call.error for call in calls] == [""] * 6
        assert not sent(later)
    finally:
        await later.close()


async def test_one_that_the_scheduler_forgets_comes_anew_and_others_may_have_its_slot(world: Harness) -> None:
    world.add(*hosts(3, cpus=2), gang(6), *spread_members(6))
    world.start_nominating()
    await world.run_until_idle()
    scheduler = SpreadingScheduler(world)
    assert scheduler.try_members(0, 1) == 2
    call = world.bind("m0")
    await world.run_tasks()
    scheduler.counts[slot_of(world, "m0")] -= 1
    call.disconnect()
    await world.run_until_idle()
    assert scheduler.try_members(5, 4, 3, 2, 0) == 5
    assert scheduler.counts == {"n1": 2, "n2": 2, "n3": 2}


async def test_what_is_in_no_sample_is_nominated_to_one_member_after_the_other(world: Harness) -> None:
    world.add(*hosts(3, cpus=2), gang(5), *spread_members(6))
    world.start_nominating()
    await world.run_until_idle()
    for name in ("m3", "m4", "m5"):
        assert isinstance(world.filter(name, "elsewhere"), Hold)
    await world.run_until_idle()
    assert sent(world) == {"m3"}
    assert world.filter("m3", slot_of(world, "m3")) == Steer(world.pod("m3").nominated)
    await world.run_until_idle()
    assert sent(world) == {"m3", "m4"}
    world.delete("m4")
    await world.run_until_idle()
    await world.pass_time(1)
    assert sent(world) == {"m3", "m4", "m5"}


async def test_a_slot_moves_to_any_node_that_is_alike_while_there_is_room_to_spare(world: Harness) -> None:
    spares = [node(f"spare{index}").cpu(9).label(ZONE, f"z-n{index}").label(HOSTNAME, "s") for index in range(1, 4)]
    world.add(*hosts(3, cpus=2), *spares, gang(6), *spread_members(6))
    world.start_nominating()
    await world.run_until_idle()
    taken = [world.filter(f"m{index}", f"n{index % 3 + 1}") for index in range(6)]
    assert taken == [Steer(f"n{index % 3 + 1}") for index in range(6)]


async def test_workers_of_a_tree_are_planned_after_the_leader_in_another_group_and_sent_after_it(
    world: Harness,
) -> None:
    leader, *others = workers(3)
    groups = [pod_group("a").gang(2).child_of("root"), pod_group("b").gang(1).child_of("root")]
    world.add(*hosts(2), composite("root").gang(2), *groups, leader.in_group("b"))
    world.add(*(each.in_group("a") for each in others))
    here = await begin(world)
    assert sent(world) == {"m0"}
    assert world.filter("m0") == Steer(here)
    await world.run_tasks()
    assert sent(world) == {"m0", "m1", "m2"}
    assert [world.filter(name) for name in ("m1", "m2")] == [Steer(here)] * 2


async def test_a_leader_is_not_where_its_workers_in_another_group_find_no_room(world: Harness) -> None:
    leader, *others = workers(3)
    groups = [pod_group("a").gang(2).child_of("root"), pod_group("b").gang(1).child_of("root")]
    world.add(*hosts(2), composite("root").gang(2), *groups, leader.in_group("b"))
    world.add(*(each.in_group("a") for each in others), *(pod(f"old{at}").cpu(1).on("n1") for at in range(2)))
    await world.run_until_idle()
    assert {name: slot_of(world, name) for name in ("m0", "m1", "m2")} == dict.fromkeys(("m0", "m1", "m2"), "n2")
