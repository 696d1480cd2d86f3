"""How long one plan takes: ``python -m bench.planner`` prints one JSON object, milliseconds by case."""

import json
import statistics
import time

from serried.model.node import Node
from serried.model.plan import Ask, Plan, View
from serried.model.pod import Pod, Shape
from serried.plan.gang import plan_gang
from serried.testing.builders import RACK, node, pod

_ROUNDS = 25
_CASES = ((20, 1000, 10), (200, 1000, 10), (512, 5000, 50))


def _cluster(nodes: int, racks: int) -> dict[str, Node]:
    names = [f"node-{index:05d}" for index in range(nodes)]
    return {name: node(name).rack(f"rack-{index % racks:03d}").value() for index, name in enumerate(names)}


def _members(count: int, shape: Shape) -> list[Pod]:
    return [Pod("default", f"p-{index}", f"uid-{index}", shape, index=index) for index in range(count)]


def _measure(view: View, ask: Ask) -> dict[str, float]:
    taken = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        result = plan_gang(view, ask)
        taken.append((time.perf_counter() - start) * 1000)
        if not isinstance(result, Plan):
            raise SystemExit(f"refused: {result}")
    figures = {"min": min(taken), "median": statistics.median(taken), "max": max(taken)}
    return {name: round(value, 2) for name, value in figures.items()}


def main() -> None:
    """Plan gangs of one class on half-used clusters, with a rack key and without."""
    shape = pod("p").cpu(1).memory("1Gi").value().shape
    results: dict[str, dict[str, float]] = {}
    for members, nodes, racks in _CASES:
        cluster = _cluster(nodes, racks)
        used = {name: {"cpu": 1000 * (index % 16), "pods": index % 16} for index, name in enumerate(cluster)}
        ask = Ask(_members(members, shape), members, RACK)
        results[f"{members}@{nodes}/{racks}"] = _measure(View(cluster, used), ask)
        results[f"{members}@{nodes}"] = _measure(View(cluster, used), Ask(ask.members, members))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
