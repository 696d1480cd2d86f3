"""How often a gang of several classes is refused although it would fit, on clusters that are small enough to know."""

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
    """``tried`` random cases, of which ``solvable`` could be placed and ``missed`` of those were refused.

    ``fewer`` were placed, but with fewer members than would have fitted.
    """

    tried: int
    solvable: int
    missed: int
    fewer: int


def measure_misses(count: int, seed: int) -> Misses:
    """Plan random gangs of two classes with a required rack, the quorum being all members or some of them."""
    source = random.Random(seed)
    solvable = missed = fewer = 0
    for _ in range(count):
        snapshot, ask = _draw(source)
        most = find_most(snapshot, ask)
        if most < ask.need:
            continue
        solvable += 1
        plan = plan_gang(snapshot, ask)
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
