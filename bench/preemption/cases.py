"""Who runs, who comes, and how few could go for them. No I/O.

The first four are those of upstream's own benchmark (test/integration/scheduler_perf/workload_preemption): every pod
that runs has to go, so only the time differs. In the last three there is something to choose.

Nodes have 4 CPUs. What runs is bound past every scheduler, to the same nodes whoever is measured.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.cluster.nodes import RACK, node_name

NODES = 100
NODE_CPU = "4"
_RACK = 10
"""Nodes in one rack."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """Pods that run, one on each of ``nodes``: without a gang, or each ``size`` of them a gang of mode ``all``."""

    nodes: tuple[int, ...]
    cpu: str
    size: int = 0

    @property
    def hosts(self) -> Iterator[str]:
        """The node of each pod, by name."""
        return map(node_name, self.nodes)


@dataclass(frozen=True, slots=True)
class Case:
    """``gangs`` of ``size`` pods come to ``crowds`` of lower priority.

    ``least`` is how many pods have to go at least, ``end_after`` how many seconds each takes to end; ``key`` is the
    topology key that each gang requires.
    """

    name: str
    crowds: tuple[Crowd, ...]
    gangs: int
    size: int
    cpu: str
    least: int
    key: str = ""
    end_after: int = 0


def _fill(nodes: Sequence[int], each: int, cpu: str) -> Crowd:
    return Crowd(tuple(node for node in nodes for _ in range(each)), cpu)


def _layer_groups(layers: int, size: int, cpu: str, span: int) -> Crowd:
    """Gangs of ``size``, as many in each layer as nodes allow, a pod of each layer on every node.

    Inside of each ``span`` neighbours a gang's nodes are drawn by lot, for each layer anew.
    """
    source = random.Random(1)
    nodes: list[int] = []
    for _ in range(layers):
        for first in range(0, NODES, span):
            nodes += source.sample(range(first, first + span), span)
    return Crowd(tuple(nodes), cpu, size)


_PLAIN = (_fill(range(NODES), 10, "40m"),)
_SMALL_AND_LARGE = (_fill(range(0, NODES, 2), 10, "380m"), _fill(range(1, NODES, 2), 2, "1900m"))

CASES = (
    Case("1,000 pods, a gang of 100", _PLAIN, 1, 100, "3970m", 1000),
    Case("1,000 pods, ten gangs of 10", _PLAIN, 10, 10, "3970m", 1000),
    Case("5 whole groups of 100, a gang of 100", (_layer_groups(5, 100, "600m", NODES),), 1, 100, "3500m", 500),
    Case("50 whole groups of 10, ten gangs of 10", (_layer_groups(5, 10, "600m", NODES),), 10, 10, "3500m", 500),
    Case("1,000 pods that take 2 s to end, a gang of 100", _PLAIN, 1, 100, "3970m", 1000, end_after=2),
    Case("600 pods, 10 or 2 on a node, a gang of 10", _SMALL_AND_LARGE, 1, 10, "3970m", 20),
    Case("50 whole groups of 10 in racks, a gang of 10", (_layer_groups(5, 10, "600m", _RACK),), 1, 10, "3500m", 50),
    Case(
        "50 whole groups of 10 in racks, a gang of 10 in one rack",
        (_layer_groups(5, 10, "600m", _RACK),),
        1,
        10,
        "3500m",
        50,
        key=RACK,
    ),
)
QUICK = (
    Case(
        "136 pods, 10 or 1 on a node, a gang of 4",
        (_fill(range(4), 10, "390m"), _fill(range(4, NODES), 1, "3900m")),
        1,
        4,
        "3970m",
        4,
    ),
)
WARM_UP = Case("warm-up", (_fill(range(NODES), 1, "400m"),), 2, 4, "3970m", 8)
