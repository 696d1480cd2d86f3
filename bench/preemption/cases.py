"""The cases: running pods, preemptor gangs, and the fewest victims that are possible. No I/O.

The first four cases are those of upstream's own benchmark (test/integration/scheduler_perf/workload_preemption): every
running pod has to be evicted, so contenders differ in time only. In the last three, fewer victims are enough.

Nodes have 4 CPUs. The running pods are created with a node name, and are on the same nodes for all contenders.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.cluster.nodes import RACK, node_name

NODES = 100
NODE_CPU = "4"
_RACK = 10
"""Number of nodes in one rack."""


@dataclass(frozen=True, slots=True)
class RunningPods:
    """A group of equal running pods, which may be evicted."""

    nodes: tuple[int, ...]
    """For each pod: the index of its node."""

    cpu: str
    size: int = 0
    """If not 0, each ``size`` pods are a gang with disruption mode ``all``, which is evicted whole."""

    @property
    def hosts(self) -> Iterator[str]:
        """The name of each pod's node."""
        return map(node_name, self.nodes)


@dataclass(frozen=True, slots=True)
class Case:
    """Running pods of low priority, and preemptor gangs that do not fit without evictions."""

    name: str
    running: tuple[RunningPods, ...]
    gangs: int
    """Number of preemptor gangs."""

    size: int
    """Members of each preemptor gang."""

    cpu: str
    """CPU request of a preemptor's member."""

    least: int
    """The fewest pods that have to be evicted."""

    key: str = ""
    """Topology key that each preemptor gang requires; "" for none."""

    end_after: int = 0
    """Seconds that each victim takes to end."""


def _fill(nodes: Sequence[int], each: int, cpu: str) -> RunningPods:
    return RunningPods(tuple(node for node in nodes for _ in range(each)), cpu)


def _layer_groups(layers: int, size: int, cpu: str, span: int) -> RunningPods:
    """Return running gangs of ``size`` pods, with ``layers`` pods on each node.

    The pods of a gang are on random nodes among ``span`` adjacent ones, drawn again for each layer.
    """
    source = random.Random(1)
    nodes: list[int] = []
    for _ in range(layers):
        for first in range(0, NODES, span):
            nodes += source.sample(range(first, first + span), span)
    return RunningPods(tuple(nodes), cpu, size)


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
