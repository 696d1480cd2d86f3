"""Measure how often the planner splits a gang over more blocks or racks than needed, on small clusters.

The clusters are small enough for a full search (`tests.support.oracle.find_fewest`).
"""

import random
from dataclasses import dataclass

from bench.cluster.nodes import RACK
from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.plan.gang import plan_gang
from serried.plan.request import Plan, PlanRequest, Snapshot
from tests.support.oracle import count_domains, find_fewest
from tests.support.rules import PLAN_RULES

BLOCK = "example.com/block"
_MOST_BLOCKS, _MOST_RACKS, _NODES, _MEMBERS = 3, 3, 1, 6


@dataclass(frozen=True, slots=True)
class Splits:
    """The figures of some random gangs."""

    classes: int
    """Number of different shapes of a gang's members."""

    tried: int
    split: int
    """Gangs that fitted the cluster, but no single block."""

    more_blocks: int
    """Split gangs that used more blocks than needed."""

    more_racks: int
    """Split gangs that used the fewest blocks, but more racks than needed."""


def measure_splits(classes: int, count: int, seed: int) -> Splits:
    """Plan random gangs that prefer a rack, then a block, and need several of both."""
    source = random.Random(seed)
    split = blocks = racks = 0
    for _ in range(count):
        snapshot, request = _draw(source, classes)
        fewest = find_fewest(snapshot, request, (BLOCK, RACK))
        if fewest is None or fewest[0] == 1:
            continue
        split += 1
        plan = plan_gang(snapshot, request)
        used = count_domains(snapshot, plan.nodes.values(), (BLOCK, RACK)) if isinstance(plan, Plan) else ()
        blocks += not used or used[0] > fewest[0]
        racks += bool(used) and used[0] == fewest[0] and used > fewest
    return Splits(classes, count, split, blocks, racks)


def _draw(source: random.Random, classes: int) -> tuple[Snapshot, PlanRequest]:
    nodes = [
        _draw_node(source, f"b{block}", f"b{block}-r{rack}", place)
        for block in range(source.randint(2, _MOST_BLOCKS))
        for rack in range(source.randint(1, _MOST_RACKS))
        for place in range(_NODES)
    ]
    shapes = [_draw_shape(source) for _ in range(classes)]
    members = [Pod("default", f"p{index}", f"u{index}", source.choice(shapes)) for index in range(_MEMBERS)]
    return Snapshot({node.name: node for node in nodes}, {}, rules=PLAN_RULES), PlanRequest(
        members, _MEMBERS, levels=(RACK, BLOCK)
    )


def _draw_node(source: random.Random, block: str, rack: str, place: int) -> Node:
    room = {"cpu": source.randint(1, 6), "memory": source.randint(1, 6), "pods": 6}
    return Node(f"{rack}-n{place}", room, {BLOCK: block, RACK: rack})


def _draw_shape(source: random.Random) -> Shape:
    return Shape((("cpu", source.randint(1, 3)), ("memory", source.randint(1, 3)), ("pods", 1)))
