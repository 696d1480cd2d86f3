"""A PodGroup by itself and the only one of a tree: whatever is asked of them has one answer."""

from dataclasses import dataclass, replace

from hypothesis import event, given
from hypothesis import strategies as st

from extender.core.scheduling.request import build_request, find_conflict, find_shortage
from extender.features.repair import count_wanted
from serried.api.group import PodGroup
from serried.api.names import GroupKey, GroupKind
from serried.api.verdict import Reason, Verdict
from serried.cluster.cache import Store
from serried.plan.quorum import GroupMembers, count_missing, has_quorum
from serried.plan.request import Plan, PlanRequest
from serried.plan.tree import plan_group
from serried.rules.all import RULES
from tests.support.builders import NodeBuilder, PodBuilder, PodGroupBuilder, node, pod, pod_group
from tests.support.composites import composite
from tests.support.oracle import find_most
from tests.support.strategies import Problem, problems

SCHEDULER = "serried"
GPU = "example.com/gpu"
ALONE = GroupKey("default", "g")
TREE = GroupKey("default", "root", GroupKind.COMPOSITE)
STATES = ("waits", "waits", "waits", "runs", "runs", "gated", "refused", "ends", "succeeded")
NODES = st.sampled_from(["n0", "n1", "n2", "gone"])


@dataclass(frozen=True)
class Stand:
    """The members of a gang in their states, on a few nodes."""

    group: PodGroupBuilder
    pods: tuple[PodBuilder, ...]
    nodes: tuple[NodeBuilder, ...]

    def look(self, *, parent: str = "") -> tuple[Store, PodGroup, GroupMembers]:
        """The gang by itself, or as the only one below ``parent``."""
        store, key = Store([SCHEDULER], rules=RULES), TREE if parent else ALONE
        for found in self.nodes:
            store.put_node(found.value())
        if parent:
            store.put_composite(composite(parent).gang(1).value())
        store.put_group((self.group.child_of(parent) if parent else self.group).value())
        for member in self.pods:
            store.put_pod(member.value())
        return store, store.groups[key], store.members.classify(key)


def put(member: PodBuilder, state: str, home: str) -> PodBuilder:
    match state:
        case "runs":
            return member.on(home)
        case "gated":
            return member.gate("example.com/later")
        case "refused":
            return member.request(GPU, 1).unschedulable(message=f"0/3 nodes are available: 3 Insufficient {GPU}.")
        case "ends":
            return member.on(home).deleting()
        case "succeeded":
            return member.phase("Succeeded")
    return member


@st.composite
def stands(draw: st.DrawFn) -> Stand:
    group = pod_group("g").gang(draw(st.integers(1, 4)))
    racks = draw(st.lists(st.sampled_from(["r1", "r1", "r2", ""]), min_size=3, max_size=3))
    found = [node(f"n{number}").cpu(draw(st.integers(0, 3))) for number in range(3)]
    pods = []
    for number in range(draw(st.integers(0, 5))):
        member = pod(f"p{number}").cpu(1).scheduler(SCHEDULER).in_group("g")
        pods.append(put(member, draw(st.sampled_from(STATES)), draw(NODES)))
    return Stand(
        group.topology() if draw(st.booleans()) else group,
        tuple(pods),
        tuple(each.rack(rack) if rack else each for each, rack in zip(found, racks, strict=True)),
    )


def describe(verdict: Verdict | None) -> tuple[Reason, int, int] | None:
    """Return what is compared of a verdict: all but the name of the PodGroup in it."""
    return None if verdict is None else (verdict.reason, verdict.have, verdict.need)


@given(stand=stands())
def test_what_is_missing_is_the_same_and_said_with_the_same_numbers(stand: Stand) -> None:
    store, alone, members = stand.look()
    forest, tree, leaves = stand.look(parent="root")
    assert has_quorum(alone, members) == has_quorum(tree, leaves)
    assert count_missing(alone.tree, members.placed_by_leaf) == count_missing(tree.tree, leaves.placed_by_leaf)
    assert store.members.count_placed(ALONE) == {"": members.placed}
    assert forest.members.count_placed(TREE) == {"g": members.placed}
    assert count_wanted(store, alone, members) == count_wanted(forest, tree, leaves)
    shortage = find_shortage(alone, members, store)
    event("enough" if shortage is None else shortage.reason)
    assert describe(shortage) == describe(find_shortage(tree, leaves, forest))


@given(stand=stands())
def test_who_runs_where_it_must_not_is_found_in_both(stand: Stand) -> None:
    store, alone, members = stand.look()
    forest, tree, leaves = stand.look(parent="root")
    conflict, below = find_conflict(alone, members, store.nodes), find_conflict(tree, leaves, forest.nodes)
    event("in order" if conflict is None else "in conflict")
    assert below == (conflict and replace(conflict, detail=f"g: {conflict.detail}"))


@given(stand=stands())
def test_the_same_members_are_asked_for_and_placed_if_they_can_be(stand: Stand) -> None:
    store, alone, members = stand.look()
    forest, tree, leaves = stand.look(parent="root")
    if find_shortage(alone, members, store) is not None or not members.waiting:
        return
    request = build_request(alone, members, frozenset(), store.nodes, 0.0)
    below = build_request(tree, leaves, frozenset(), forest.nodes, 0.0)
    if isinstance(request, Verdict) or isinstance(below, Verdict):
        assert describe(request if isinstance(request, Verdict) else None) == describe(
            below if isinstance(below, Verdict) else None
        )
        return
    (part,) = below.parts
    assert replace(part, name="") == request
    single = plan_group(store.snapshots.take(0, request.members), request)
    nested = plan_group(forest.snapshots.take(0, below.members), below)
    event("placed" if isinstance(single, Plan) else "refused")
    assert isinstance(single, Plan) == isinstance(nested, Plan)


@given(problem=problems(most_nodes=4, most_members=5))
def test_the_tree_of_one_gang_is_placed_exactly_when_the_gang_can_be(problem: Problem) -> None:
    part = replace(problem.ask, name="g")
    root = PlanRequest(
        part.members,
        part.need,
        excluded=part.excluded,
        name="root",
        parts=(part,),
        wanted=int(part.need > 0),
    )
    plan = plan_group(problem.snapshot, root)
    assert isinstance(plan, Plan) == (find_most(problem.snapshot, part) >= max(part.need, 1))
