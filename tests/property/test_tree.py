"""Trees of groups against trying everything, on clusters of at most eight nodes and trees of at most three levels."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product
from random import Random

from hypothesis import event, given
from hypothesis import strategies as st

from serried.api.node import Node
from serried.api.verdict import Verdict
from serried.plan.request import Plan, PlanRequest, Snapshot
from serried.plan.tree import plan_group
from tests.support.builders import RACK, node, pod
from tests.support.rules import PLAN_RULES

ZONE = "example.com/zone"
KEYS = (None, ZONE, RACK)
Claim = tuple[int, frozenset[str]]


@dataclass(frozen=True)
class Grove:
    """A cluster whose nodes take so many pods of one kind, and a tree of groups of such pods."""

    snapshot: Snapshot
    ask: PlanRequest

    @property
    def slots(self) -> dict[str, int]:
        return {name: found.allocatable["cpu"] // 1000 for name, found in self.snapshot.nodes.items()}


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    found: dict[str, Node] = {}
    for number in range(draw(st.integers(1, 8))):
        made = node(f"n{number}").label(ZONE, draw(st.sampled_from("xy"))).rack(draw(st.sampled_from("123")))
        found[f"n{number}"] = made.cpu(draw(st.integers(0, 4))).value()
    return Snapshot(found, {}, rules=PLAN_RULES)


@st.composite
def trees(draw: st.DrawFn, name: str = "t", depth: int = 2) -> PlanRequest:
    key = draw(st.sampled_from(KEYS))
    if depth == 0 or (name != "t" and draw(st.booleans())):
        size = draw(st.integers(1, 4))
        members = tuple(pod(f"{name}-{number}").cpu(1).value() for number in range(size))
        return PlanRequest(members, draw(st.integers(1, size)), key, name=name)
    parts = [draw(trees(f"{name}{number}", depth - 1)) for number in range(draw(st.integers(1, 3)))]
    wanted = draw(st.integers(1, len(parts)))
    need = sum(sorted(part.need for part in parts)[:wanted])
    members = tuple(member for part in parts for member in part.members)
    return PlanRequest(members, need, key, name=name, parts=tuple(parts), wanted=wanted)


@st.composite
def groves(draw: st.DrawFn) -> Grove:
    return Grove(draw(clusters()), draw(trees()))


def domains(grove: Grove, ask: PlanRequest, inside: frozenset[str]) -> list[frozenset[str]]:
    """The sets of nodes that a group may choose from."""
    key = ask.topology_key
    if key is None:
        return [inside]
    values = sorted({grove.snapshot.nodes[name].labels[key] for name in inside})
    return [frozenset(name for name in inside if grove.snapshot.nodes[name].labels[key] == value) for value in values]


def choices(grove: Grove, ask: PlanRequest, inside: frozenset[str]) -> Iterator[list[Claim]]:
    """Every way to choose domains and groups: how many members then go into which nodes."""
    for domain in domains(grove, ask, inside):
        if not ask.parts:
            yield [(ask.need, domain)]
            continue
        for chosen in combinations(ask.parts, ask.wanted):
            for ways in product(*(list(choices(grove, part, domain)) for part in chosen)):
                yield [claim for way in ways for claim in way]


def hold(slots: dict[str, int], claims: list[Claim]) -> bool:
    """Return whether all claims can be met at once (a matching by augmenting paths)."""
    units = [(number, inside) for number, (need, inside) in enumerate(claims) for _ in range(need)]
    taken: dict[str, list[int]] = {name: [] for name in slots}

    def assign(unit: int, seen: set[str]) -> bool:
        for name in sorted(units[unit][1] - seen):
            seen.add(name)
            if len(taken[name]) < slots[name]:
                taken[name].append(unit)
                return True
            for place, other in enumerate(taken[name]):
                if assign(other, seen):
                    taken[name][place] = unit
                    return True
        return False

    return all(assign(unit, set()) for unit in range(len(units)))


def is_solvable(grove: Grove) -> bool:
    return any(hold(grove.slots, claims) for claims in choices(grove, grove.ask, frozenset(grove.snapshot.nodes)))


def check_group(grove: Grove, ask: PlanRequest, nodes: dict[str, str]) -> bool:
    """Return whether a group is placed. Assert that it has its quorum then."""
    mine = [nodes[member.uid] for member in ask.members if member.uid in nodes]
    if not mine:
        return False
    if ask.topology_key is not None:
        assert len({grove.snapshot.nodes[name].labels[ask.topology_key] for name in mine}) == 1
    if ask.parts:
        assert sum(check_group(grove, part, nodes) for part in ask.parts) >= ask.wanted
    else:
        assert len(mine) >= ask.need
    return True


@given(grove=groves())
def test_a_plan_gives_every_group_of_the_tree_its_quorum_in_one_domain_or_nothing(grove: Grove) -> None:
    answer = plan_group(grove.snapshot, grove.ask)
    if isinstance(answer, Plan):
        assert check_group(grove, grove.ask, dict(answer.nodes))
        assert all(count <= grove.slots[name] for name, count in Counter(answer.nodes.values()).items())


@given(grove=groves())
def test_a_tree_of_one_kind_of_members_is_placed_if_it_can_be(grove: Grove) -> None:
    answer = plan_group(grove.snapshot, grove.ask)
    event("placed" if isinstance(answer, Plan) else "refused")
    assert isinstance(answer, Plan) == is_solvable(grove), answer


@given(grove=groves(), order=st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_does_not_matter(grove: Grove, order: Random) -> None:
    names = sorted(grove.snapshot.nodes)
    order.shuffle(names)
    shuffled = Snapshot({name: grove.snapshot.nodes[name] for name in names}, {}, rules=PLAN_RULES)
    assert plan_group(shuffled, grove.ask) == plan_group(grove.snapshot, grove.ask)


@given(grove=groves())
def test_an_empty_node_more_takes_nothing_away(grove: Grove) -> None:
    extra = node("more").label(ZONE, "x").rack("1").cpu(4).value()
    before = plan_group(grove.snapshot, grove.ask)
    after = plan_group(Snapshot({**grove.snapshot.nodes, "more": extra}, {}, rules=PLAN_RULES), grove.ask)
    assert not (isinstance(before, Plan) and isinstance(after, Verdict))


@given(grove=groves())
def test_what_stands_already_keeps_its_domain_and_the_rest_joins_it(grove: Grove) -> None:
    """One group of a placed tree runs: the others are placed in the domains to which it pins their parents."""
    first = plan_group(grove.snapshot, grove.ask)
    if not isinstance(first, Plan):
        return
    running = next(part for part in grove.ask.parts if any(member.uid in first.nodes for member in part.members))
    again = plan_group(grove.snapshot, settle(grove, grove.ask, running.name, dict(first.nodes)))
    if isinstance(again, Plan) and grove.ask.topology_key is not None:
        key = grove.ask.topology_key
        assigned = [first.nodes[member.uid] for member in running.members if member.uid in first.nodes]
        both = {grove.snapshot.nodes[name].labels[key] for name in [*assigned, *again.nodes.values()]}
        assert len(both) == 1


def settle(grove: Grove, ask: PlanRequest, running: str, nodes: dict[str, str]) -> PlanRequest:
    """The tree with one part of its root standing: no member of it waits."""
    stands = next(part for part in ask.parts if part.name == running)
    assigned = frozenset(nodes[member.uid] for member in stands.members if member.uid in nodes)
    key = ask.topology_key
    pinned = frozenset() if key is None else frozenset(grove.snapshot.nodes[name].labels[key] for name in assigned)
    parts = tuple(part for part in ask.parts if part is not stands)
    members = tuple(member for part in parts for member in part.members)
    wanted = max(0, ask.wanted - 1)
    need = sum(sorted(part.need for part in parts)[:wanted])
    return replace(ask, members=members, parts=parts, wanted=wanted, need=need, pinned=pinned)


@given(grove=groves(), closed=st.frozensets(st.integers(0, 7).map("n{}".format)))
def test_nodes_to_avoid_are_as_good_as_gone(grove: Grove, closed: frozenset[str]) -> None:
    left = {name: found for name, found in grove.snapshot.nodes.items() if name not in closed}
    answer = plan_group(grove.snapshot, grove.ask.closing(closed))
    if isinstance(answer, Plan):
        assert closed.isdisjoint(answer.nodes.values())
    assert isinstance(answer, Plan) == isinstance(plan_group(Snapshot(left, {}, rules=PLAN_RULES), grove.ask), Plan)
