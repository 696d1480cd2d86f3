"""Hypothesis strategies: small clusters on which every answer can be checked by brute force."""

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.api.preference import Style
from serried.api.resources import Resources
from serried.api.selectors import Taint, Toleration
from serried.plan.request import PlanRequest, Snapshot
from tests.support.builders import RACK
from tests.support.rules import PLAN_RULES

BLOCK = "example.com/block"
POOL = "example.com/pool"
DEDICATED = Taint("dedicated", "", "NoSchedule")


@dataclass(frozen=True)
class Problem:
    """A small cluster, and the planner's request for a gang."""

    snapshot: Snapshot
    ask: PlanRequest

    def with_node(self, extra: Node) -> "Problem":
        """Return the problem with one more node, which is empty."""
        return Problem(
            Snapshot({**self.snapshot.nodes, extra.name: extra}, self.snapshot.used, rules=PLAN_RULES), self.ask
        )

    def reordered(self, names: list[str]) -> "Problem":
        """Return the problem with the nodes in this order of names."""
        nodes = {name: self.snapshot.nodes[name] for name in names}
        return Problem(Snapshot(nodes, self.snapshot.used, rules=PLAN_RULES), self.ask)


@st.composite
def amounts(draw: st.DrawFn, most: int) -> Resources:
    """Draw amounts of cpu, memory and pods, each up to ``most``."""
    return {"cpu": draw(st.integers(0, most)), "memory": draw(st.integers(0, most)), "pods": draw(st.integers(0, most))}


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    """Draw a small node in one of three racks or none, in one of two pools, sometimes tainted."""
    rack = draw(st.sampled_from(["r1", "r2", "r3", ""]))
    labels = {POOL: draw(st.sampled_from(["a", "b"]))} | ({RACK: rack} if rack else {})
    taints = draw(st.sampled_from([(), (), (DEDICATED,)]))
    cordoned = draw(st.sampled_from([False, False, False, True]))
    return Node(name, draw(amounts(6)), labels, taints, unschedulable=cordoned)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Draw a member's shape: a small request, for one node pool or any, sometimes with a toleration."""
    asked = {"cpu": draw(st.integers(0, 3)), "memory": draw(st.integers(0, 2)), "pods": 1}
    selector = draw(st.sampled_from([(), (), ((POOL, "a"),)]))
    tolerations = draw(st.sampled_from([(), (Toleration("dedicated", "Exists", "", ""),)]))
    return Shape(tuple(sorted((k, v) for k, v in asked.items() if v)), selector, None, tolerations)


@st.composite
def problems(draw: st.DrawFn, classes: int = 1, most_nodes: int = 6, most_members: int = 6) -> Problem:
    """Draw a cluster, and a gang whose members have at most ``classes`` different shapes.

    The gang may have a topology key, members pinned to a node, and pairs of member and node that are excluded.
    """
    names = [f"n{index}" for index in range(draw(st.integers(0, most_nodes)))]
    cluster = {name: draw(nodes(name)) for name in names}
    used = {name: draw(amounts(3)) for name in names if draw(st.booleans())}
    kinds = draw(st.lists(shapes(), min_size=1, max_size=classes))
    count = draw(st.integers(1, most_members))
    members = [Pod("default", f"p{i}", f"u{i}", draw(st.sampled_from(kinds))) for i in range(count)]
    pairs = st.tuples(st.sampled_from([member.uid for member in members]), st.sampled_from([*names, "gone"]))
    key = draw(st.sampled_from([RACK, RACK, None]))
    ask = PlanRequest(
        members=members,
        need=draw(st.integers(0, count)),
        topology_key=key,
        pinned=frozenset(draw(st.lists(st.sampled_from(["r1", "r2"]), max_size=1)) if key else []),
        excluded=frozenset(draw(st.lists(pairs, max_size=4))),
    )
    return Problem(Snapshot(cluster, used, rules=PLAN_RULES), ask)


@st.composite
def problems_with_preferences(draw: st.DrawFn, classes: int = 1, most_nodes: int = 6, most_members: int = 6) -> Problem:
    """Draw a problem as `problems` does, with preferred levels, a placement style, bound members and closed nodes.

    The gang may not use a closed node.
    """
    problem = draw(problems(classes, most_nodes, most_members))
    names = st.lists(st.sampled_from([*problem.snapshot.nodes, "gone"]), max_size=2)
    wishes = replace(
        problem.ask,
        levels=draw(st.sampled_from([(RACK,), (POOL,), (RACK, POOL), (POOL, RACK)])),
        spills=draw(st.booleans()),
        style=draw(st.sampled_from(Style)),
        assigned_nodes=frozenset(draw(names)),
        closed=frozenset(draw(names)),
    )
    return Problem(problem.snapshot, wishes)


@st.composite
def problems_with_blocks(draw: st.DrawFn) -> Problem:
    """Draw blocks of racks of nodes, and a gang of equal members of one CPU that prefers a rack, then a block."""
    rooms = draw(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=3))
    cluster = {
        f"b{block}-r{rack}": Node(
            f"b{block}-r{rack}", {"cpu": cpus, "pods": 9}, {BLOCK: f"b{block}", RACK: f"b{block}-r{rack}"}
        )
        for block, racks in enumerate(rooms)
        for rack, cpus in enumerate(racks)
    }
    shape = Shape((("cpu", 1), ("pods", 1)))
    size = draw(st.integers(1, max(1, sum(map(sum, rooms)))))
    members = [Pod("default", f"p{index:02d}", f"u{index:02d}", shape) for index in range(size)]
    return Problem(Snapshot(cluster, {}, rules=PLAN_RULES), PlanRequest(members, size, levels=(RACK, BLOCK)))


def without_exclusions(problem: Problem) -> Problem:
    """Return the problem without excluded pairs of member and node."""
    return Problem(problem.snapshot, replace(problem.ask, excluded=frozenset()))
