"""A group of a tree with more members than its quorum: any members that fit are the quorum, not only the first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from serried.api.node import Node
from serried.plan.gang import plan_gang
from serried.plan.request import Plan, PlanRequest, Snapshot
from serried.plan.tree import plan_group
from tests.support.builders import RACK, node, pod
from tests.support.rules import PLAN_RULES

CPUS = {"n0": 8, "n1": 4}


def cluster(cpus: Mapping[str, int]) -> Snapshot:
    """Nodes with so many CPUs, each a rack of its own."""
    found: dict[str, Node] = {name: node(name).rack(name).cpu(each).value() for name, each in cpus.items()}
    return Snapshot(found, {}, rules=PLAN_RULES)


@dataclass(frozen=True)
class Group:
    """A group whose members ask for so many CPUs; ``barred`` are (member, node) pairs."""

    cpus: Sequence[int]
    need: int = 1
    key: str | None = None
    barred: Sequence[tuple[str, str]] = field(default=())

    def ask(self, name: str) -> PlanRequest:
        """Ask for it; its members are named by the group and their number."""
        members = [pod(f"{name}{place}").cpu(cpu).value() for place, cpu in enumerate(self.cpus)]
        uid_of = {member.name: member.uid for member in members}
        barred = frozenset((uid_of[member], at) for member, at in self.barred)
        return PlanRequest(members, self.need, self.key, excluded=barred, name=name)


def root(wanted: int, *groups: Group) -> PlanRequest:
    parts = tuple(group.ask(name) for name, group in zip("abc", groups, strict=False))
    members = [member for part in parts for member in part.members]
    need = sum(sorted(part.need for part in parts)[:wanted])
    return PlanRequest(members, need, name="root", parts=parts, wanted=wanted)


def placed(ask: PlanRequest, cpus: Mapping[str, int] = CPUS) -> set[str]:
    """The members that get a node."""
    answer = plan_group(cluster(cpus), ask)
    assert isinstance(answer, Plan), answer
    return {member.name for member in ask.members if member.uid in answer.nodes}


ALONE = {
    "the first member is larger than every node": (Group((99, 2)), {"a1"}),
    "the first and the third of four are": (Group((99, 2, 99, 2), need=2), {"a1", "a3"}),
    "kube-scheduler has refused every node for the first": (
        Group((2, 2), barred=(("a0", "n0"), ("a0", "n1"))),
        {"a1"},
    ),
    "all are to be in one rack, which the largest fills": (Group((8, 2, 2, 2), need=3, key=RACK), {"a1", "a2", "a3"}),
}


@pytest.mark.parametrize(("group", "expected"), ALONE.values(), ids=ALONE)
def test_a_group_is_placed_in_a_tree_as_it_is_by_itself(group: Group, expected: set[str]) -> None:
    assert placed(root(1, group)) == expected
    alone = plan_gang(cluster(CPUS), group.ask("a"))
    assert isinstance(alone, Plan)
    assert len(alone.nodes) == len(expected)


TOGETHER = {
    "its largest member leaves the other group no room": (2, [Group((8, 2)), Group((6,))], {"n0": 8}, {"a1", "b0"}),
    "so it is if both groups have such a member": (
        2,
        [Group((8, 3)), Group((8, 5))],
        {"n0": 8},
        {"a1", "b1"},
    ),
    "of the group that is left over no member fits": (
        1,
        [Group((99, 98)), Group((99, 2))],
        {"n0": 8},
        {"b1"},
    ),
}


@pytest.mark.parametrize(("wanted", "groups", "cpus", "expected"), TOGETHER.values(), ids=TOGETHER)
def test_the_quorum_of_a_group_is_of_members_that_leave_the_others_theirs(
    wanted: int, groups: Sequence[Group], cpus: Mapping[str, int], expected: set[str]
) -> None:
    assert placed(root(wanted, *groups), cpus) == expected


def test_a_refusal_counts_all_members_of_the_group_and_not_its_first_ones_alone() -> None:
    answer = plan_group(cluster({"n0": 8}), root(2, Group((99, 98, 2), need=2), Group((2, 2, 2))))
    assert not isinstance(answer, Plan)
    assert "only 1 of 2 members fit" in answer.detail


@pytest.mark.parametrize(("groups", "kinds"), [(1, 6), (3, 3), (5, 2), (6, 6), (1, 64)])
def test_other_quorums_of_groups_with_surplus_leave_tries_for_other_domains(groups: int, kinds: int) -> None:
    """The first group has to leave the rack that only the last one can use; the others are in the other rack."""
    nodes = {
        name: node(name).cpu(cpus).rack(rack).label("large", large).value()
        for name, cpus, rack, large in (("n0", 8, "r0", "no"), ("n1", 400, "r1", "yes"))
    }
    parts = []
    for number in range(groups):
        built = [pod(f"g{number}-{kind}-{twin}").cpu(1).memory(str(kind + 1)) for kind in range(kinds) for twin in "ab"]
        members = [(each if number == 0 else each.node_selector("large", "yes")).value() for each in built]
        parts.append(PlanRequest(members, 3, RACK, name=f"g{number}"))
    last = [pod(f"last{number}").cpu(4).node_selector("large", "no").value() for number in range(2)]
    parts.append(PlanRequest(last, 2, RACK, name="last"))
    everybody = [member for part in parts for member in part.members]
    ask = PlanRequest(everybody, 3 * groups + 2, name="root", parts=tuple(parts), wanted=groups + 1)
    assert isinstance(plan_group(Snapshot(nodes, {}, rules=PLAN_RULES), ask), Plan)
