"""The slots of members when kube-scheduler comes in another order than the plan's, or earlier than a write."""

from collections.abc import Mapping, Sequence

import pytest

from extender.core.protocol import Hold, Steer
from tests.support.builders import NodeBuilder, PodBuilder, node, pod, pod_group
from tests.support.extender_harness import Harness, gang, members, small_nodes

pytestmark = pytest.mark.core

HOSTNAME, ZONE, ROW = "kubernetes.io/hostname", "topology.kubernetes.io/zone", "example.com/row"
RING = {"app": "ring"}


def slot_of(world: Harness, name: str) -> str:
    """The node that is planned for a member; "" if it has no slot."""
    slot = world.ledger.slot_of(f"pod-{name}")
    return slot.node if slot is not None else ""


class SpreadingScheduler:
    """kube-scheduler of a story: it offers the nodes that keep all members within a skew of 1 by each of their keys."""

    def __init__(self, world: Harness, domains: Mapping[str, Sequence[str]], room: int, running: Sequence[str]) -> None:
        """``domains`` are those of each node, one for each key; ``room`` is how many a node takes."""
        self._world = world
        self._domains = domains
        self._room = room
        self.taken: dict[str, str] = dict(enumerate_names(running))

    def _offer(self) -> list[str]:
        return [name for name in self._domains if self._has_room(name) and self._keeps_skew(name)]

    def _has_room(self, name: str) -> bool:
        return list(self.taken.values()).count(name) < self._room

    def _keeps_skew(self, name: str) -> bool:
        here = [self._domains[node] for node in self.taken.values()]
        for place, domain in enumerate(self._domains[name]):
            every = {each[place] for each in self._domains.values()}
            counts = {each: sum(at[place] == each for at in here) for each in every}
            if counts[domain] + 1 - min(counts.values()) > 1:
                return False
        return True

    def try_member(self, name: str) -> bool:
        """Try a member on its nomination first, then on all nodes that do; return whether it has one now."""
        offered, nominated = self._offer(), self._world.pod(name).nominated
        for names in [[nominated]] if nominated in offered else [], offered:
            answer = self._world.filter(name, *names) if names else None
            if isinstance(answer, Steer):
                self.taken[name] = answer.node
                return True
        return False


def enumerate_names(nodes: Sequence[str]) -> list[tuple[str, str]]:
    """Running members m0, m1, ... on these nodes."""
    return [(f"m{index}", name) for index, name in enumerate(nodes)]


async def settle(world: Harness) -> None:
    await world.run_tasks()
    world.sync_pods()


def zones() -> list[NodeBuilder]:
    return [node(f"n{at}").cpu(3).label(HOSTNAME, f"n{at}").label(ZONE, f"z{at}") for at in (1, 2, 3)]


def ring(count: int, first: int = 0) -> list[PodBuilder]:
    """Members that are spread over zones."""
    return [each.with_field(RING, "metadata", "labels").spread(RING, ZONE) for each in members(count, first=first)]


BY_ZONE = {f"n{at}": (f"z{at}",) for at in (1, 2, 3)}


async def take_the_other_s(world: Harness, scheduler: SpreadingScheduler) -> str:
    """Try the second member of a node first, then the first, whose own slot comes too early. Return the latter."""
    late = [f"m{index}" for index in range(3, 9)]
    one, two = [name for name in late if slot_of(world, name) == slot_of(world, "m3")]
    assert scheduler.try_member(two)
    assert scheduler.try_member(one)
    await settle(world)
    return one


async def test_a_member_that_joins_a_gang_takes_a_mate_s_slot_if_its_own_comes_too_early(world: Harness) -> None:
    running = [each.on(f"n{at}") for at, each in enumerate(ring(3), 1)]
    await world.add(*zones(), gang(3), *running).run_until_idle()
    world.add(*ring(6, first=3)).start_nominating()
    await world.run_until_idle()
    one = await take_the_other_s(world, SpreadingScheduler(world, BY_ZONE, 3, ["n1", "n2", "n3"]))
    assert slot_of(world, one)
    assert not world.api.list_calls("nominate")


async def test_so_does_one_beyond_the_quorum_after_the_commit(world: Harness) -> None:
    world.add(*zones(), gang(3), *ring(9)).start_nominating()
    await world.run_until_idle()
    scheduler = SpreadingScheduler(world, BY_ZONE, 3, [])
    assert all(scheduler.try_member(f"m{index}") for index in range(3))
    for index in range(3):
        world.bind(f"m{index}")
    await world.run_until_idle()
    assert world.binding_cycle().reservation.committed
    assert slot_of(world, await take_the_other_s(world, scheduler))


CELLS = [(1, 1), (2, 2), (3, 3), (1, 2), (2, 3), (3, 1)]


@pytest.mark.parametrize("order", [[0, 4, 1, 2, 3, 5], [5, 4, 3, 2, 1, 0], [2, 5, 1, 4, 0, 3], [3, 0, 5, 1, 4, 2]])
async def test_with_two_constraints_each_member_takes_the_first_slot_so_that_the_rest_finds_one(
    world: Harness, order: list[int]
) -> None:
    names = {f"n{zone}{row}": (f"z{zone}", f"r{row}") for zone, row in CELLS}
    nodes = [
        node(name).cpu(1).label(HOSTNAME, name).label(ZONE, zone).label(ROW, row) for name, (zone, row) in names.items()
    ]
    world.add(*nodes, gang(6), *(each.spread(RING, ROW) for each in ring(6))).start_nominating()
    await world.run_until_idle()
    scheduler = SpreadingScheduler(world, names, 1, [])
    assert [scheduler.try_member(f"m{index}") for index in order] == [True] * 6


async def test_a_slot_is_not_taken_whose_member_is_being_nominated(world: Harness) -> None:
    world.add(*small_nodes(3, 1), gang(3), *members(3))
    world.api.hold("nominate")
    world.start_nominating()
    await world.run_until_idle()
    planned = {name: slot_of(world, name) for name in ("m0", "m1", "m2")}
    assert world.filter("m0", planned["m1"]) == Hold()
    world.api.release("nominate")
    await world.run_until_idle()
    assert {name: world.pod(name).nominated for name in planned} == planned


async def test_the_next_one_is_called_where_the_one_before_it_was_refused(world: Harness) -> None:
    world.add(*zones(), gang(4), *ring(6)).start_nominating()
    await world.run_until_idle()
    for name in ("m3", "m4", "m3", "m3"):
        assert world.filter(name, "elsewhere") == Hold()
        await world.run_until_idle()
    assert {call.name for call in world.api.list_calls("nominate")} == {"m3"}
    world.delete("m3")
    await world.run_until_idle()
    assert world.pod("m4").nominated == slot_of(world, "m4")


async def test_a_cycle_remembers_nothing_of_members_of_other_gangs(world: Harness) -> None:
    others = [pod(f"h{index}").cpu(1).in_group("h") for index in range(3)]
    await world.add(*small_nodes(6, 1), gang(3), *members(3), pod_group("h").gang(3), *others).run_until_idle()
    assert world.filter("m0", *(slot_of(world, f"h{index}") for index in range(3))) == Hold()
    assert {uid for uid, _ in world.binding_cycle().list_members()} == {"pod-m0", "pod-m1", "pod-m2"}
