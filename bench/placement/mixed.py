"""Measure how often the planner rejects a gang of several shapes that fits, on clusters small enough for a full search.

The full search is `tests.support.oracle.find_most`.
"""

import random
from dataclasses import dataclass

from bench.cluster.nodes import RACK
from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.plan.gang import plan_gang
from serried.plan.request import Plan, PlanRequest, Snapshot
from tests.support.oracle import find_most
from tests.support.rules import PLAN_RULES

_NODES, _MEMBERS, _RACKS, _CLASSES = 4, 5, 2, 2


@dataclass(frozen=True, slots=True)
class Misses:
    """The figures of some random cases."""

    tried: int
    solvable: int
    """Cases in which the gang's quorum fits."""

    missed: int
    """Solvable cases that the planner rejected."""

    fewer: int
    """Cases in which the planner placed the quorum, but fewer members than fit."""


def measure_misses(count: int, seed: int) -> Misses:
    """Plan random gangs with two shapes of members, a required rack and a random quorum."""
    source = random.Random(seed)
    solvable = missed = fewer = 0
    for _ in range(count):
        snapshot, request = _draw(source)
        most = find_most(snapshot, request)
        if most < request.need:
            continue
        solvable += 1
        plan = plan_gang(snapshot, request)
        missed += not isinstance(plan, Plan)
        fewer += isinstance(plan, Plan) and len(plan.nodes) < most
    return Misses(count, solvable, missed, fewer)


def _draw(source: random.Random) -> tuple[Snapshot, PlanRequest]:
    nodes = {f"n{index}": _draw_node(source, f"n{index}") for index in range(_NODES)}
    shapes = [_draw_shape(source) for _ in range(_CLASSES)]
    members = [Pod("default", f"p{index}", f"u{index}", source.choice(shapes)) for index in range(_MEMBERS)]
    return Snapshot(nodes, {}, rules=PLAN_RULES), PlanRequest(members, source.randint(1, _MEMBERS), RACK)


def _draw_node(source: random.Random, name: str) -> Node:
    room = {"cpu": source.randint(0, 6), "memory": source.randint(0, 6), "pods": 6}
    return Node(name, room, {RACK: f"r{source.randrange(_RACKS)}"})


def _draw_shape(source: random.Random) -> Shape:
    return Shape((("cpu", source.randint(1, 3)), ("memory", source.randint(1, 3)), ("pods", 1)))
