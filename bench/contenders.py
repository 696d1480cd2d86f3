"""What `throughput` compares: ways of scheduling gangs, ways of scheduling plain pods, and the loads of each of them.

Plain pods go three ways: by a stock scheduler, by ours in an isolated installation, where it does not ask about them
(`plain-isolated`), and by ours where it asks about every pod (`plain-asked`). The ceiling is what Bindings alone take
(`bindings`): nobody schedules, the load generator binds.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bench.cluster import Spec
from bench.cluster.nodes import RACK
from bench.comparison import WAITING
from bench.load.objects import AT_ONCE, BINDINGS, Load, Pace, make_gangs

NODES_PER_RACK = 100
QPS = 5000

_NATIVE_GATES = ("GenericWorkload=true", "TopologyAwareWorkloadScheduling=true")
_FIRST_PORT = 20000

Name = Literal[
    "plain",
    "native",
    "serried",
    "serried-beside",
    "serried-fallback",
    "serried-gate",
    "plain-isolated",
    "plain-asked",
    "bindings",
]
Part = Literal["plain", "gangs", "racks", "large", "large-racks", "thousand", "ports", "steady", "turns", "beside"]
"""The loads that are asked for by one name."""

USUAL: tuple[Part, ...] = ("plain", "gangs", "racks", "large", "large-racks", "thousand")
"""Those that are measured if no others are asked for."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the table: a load without the run's own names, and the part of all loads that it is of.

    ``queue`` is ``live`` if pods are created while the schedulers work, ``full`` if all pods exist before they begin.
    """

    name: str
    part: Part
    load: Load
    queue: Literal["live", "full"] = "live"

    @property
    def beside(self) -> bool:
        """Whether plain pods come one after the other here, alone or beside gangs."""
        return self.load.pace.plain > 0


def _with_full_queues(workloads: tuple[Workload, ...]) -> tuple[Workload, ...]:
    """All of them, and those whose pods come at once with a full queue, too. One gang alone is no queue."""
    twins = (one for one in workloads if one.load.pace == AT_ONCE and len(one.load.gangs) != 1)
    return workloads + tuple(replace(one, name=f"{one.name}{WAITING}", queue="full") for one in twins)


_BESIDE = Pace(plain=20)
_STEADY = make_gangs(50, 20)

FULL = _with_full_queues(
    (
        Workload("1,000 plain pods", "plain", Load(plain=1000)),
        Workload("50 gangs of 20", "gangs", Load(gangs=make_gangs(50, 20))),
        Workload("50 gangs of 20, each in one rack", "racks", Load(gangs=make_gangs(50, 20, RACK))),
        Workload("5 gangs of 200", "large", Load(gangs=make_gangs(5, 200))),
        Workload("5 gangs of 200, each in one rack", "large-racks", Load(gangs=make_gangs(5, 200, RACK))),
        Workload("1 gang of 1,000", "thousand", Load(gangs=make_gangs(1, 1000))),
        Workload("50 gangs of 20, each on a port", "ports", Load(gangs=make_gangs(50, 20, "", _FIRST_PORT))),
        Workload("5 gangs of 20 a second", "steady", Load(gangs=_STEADY, pace=Pace(gangs=5))),
        Workload("one gang of 20 after the other", "turns", Load(gangs=_STEADY, pace=Pace(idle=0.2))),
        Workload("20 plain pods a second", "beside", Load(plain=200, pace=_BESIDE)),
        Workload("20 plain pods a second, 50 gangs of 20", "beside", Load(plain=200, gangs=_STEADY, pace=_BESIDE)),
        Workload(
            "20 plain pods a second, 5 gangs of 20 a second",
            "beside",
            Load(plain=200, gangs=_STEADY, pace=replace(_BESIDE, gangs=5)),
        ),
    )
)
QUICK = _with_full_queues(
    (
        Workload("100 plain pods", "plain", Load(plain=100)),
        Workload("5 gangs of 20", "gangs", Load(gangs=make_gangs(5, 20))),
        Workload("5 gangs of 20, each in one rack", "racks", Load(gangs=make_gangs(5, 20, RACK))),
        Workload("5 gangs of 20, each on a port", "ports", Load(gangs=make_gangs(5, 20, "", _FIRST_PORT))),
        Workload("5 gangs of 20 a second", "steady", Load(gangs=make_gangs(5, 20), pace=Pace(gangs=5))),
        Workload("one gang of 20 after the other", "turns", Load(gangs=make_gangs(5, 20), pace=Pace(idle=0.2))),
        Workload("20 plain pods a second", "beside", Load(plain=20, pace=_BESIDE)),
        Workload(
            "20 plain pods a second, 5 gangs of 20", "beside", Load(plain=20, gangs=make_gangs(5, 20), pace=_BESIDE)
        ),
    )
)


@dataclass(frozen=True, slots=True)
class Contender:
    """One way of scheduling: its cluster, its schedulerName, and the processes that do it.

    ``plain`` is whether it gets plain pods, or gangs. ``cluster`` is what is its own of its cluster.
    """

    name: Name
    title: str
    scheduler: str
    processes: tuple[str, ...]
    cluster: Spec
    plain: bool = False

    def make_spec(self, nodes: int) -> Spec:
        """A cluster of ``nodes`` nodes in racks of 100, the same for all but gates and processes of ours.

        Its name is this process's own: two measurements at once disturb, but do not remove each other's clusters.
        """
        racks = max(2, nodes // NODES_PER_RACK)
        name = f"bench-{self.name}-{os.getpid()}"
        return replace(self.cluster, name=name, nodes=nodes, racks=racks, blocks=max(1, racks // 5), qps=QPS)

    def takes(self, workload: Workload) -> bool:
        """Whether the workload is one for this contender."""
        if workload.beside:
            return self.cluster.isolated or not self.plain
        if self.scheduler == BINDINGS:
            return bool(workload.load.plain) and workload.queue == "full"
        return bool(workload.load.plain) == self.plain

    def make_load(self, workload: Workload, run: str) -> Load:
        """The load of one run."""
        return replace(workload.load, run=run, scheduler=self.scheduler, link=self.cluster.api)


_STOCK, _OURS = "default-scheduler", "serried"
_BOTH = ("scheduler", "extender")
_ALONE = Spec("bench", serried=False)
_SERRIED = Spec("bench")
PLAIN = Contender("plain", "plain pods, stock scheduler", _STOCK, ("kube-scheduler",), _ALONE, plain=True)
NATIVE = Contender(
    "native",
    "native gangs, gates on",
    _STOCK,
    ("kube-scheduler",),
    replace(_ALONE, gates="on", scheduler_gates=_NATIVE_GATES),
)
SERRIED = Contender("serried", "Serried, gates off", _OURS, _BOTH, _SERRIED)
BESIDE = Contender(
    "serried-beside",
    "Serried beside native gangs, gates on",
    _OURS,
    _BOTH,
    replace(_SERRIED, gates="on", scheduler_gates=_NATIVE_GATES),
)
FALLBACK = Contender("serried-fallback", "Serried with CRDs", _OURS, _BOTH, replace(_SERRIED, api="fallback"))
GATED = Contender(
    "serried-gate", "Serried, gates off, members held by gates", _OURS, _BOTH, replace(_SERRIED, hold="gate")
)
ISOLATED = Contender(
    "plain-isolated", "plain pods, Serried isolated", _OURS, _BOTH, replace(_SERRIED, isolated=True), plain=True
)
ASKED = Contender("plain-asked", "plain pods, Serried asked about each", _OURS, _BOTH, _SERRIED, plain=True)
CEILING = Contender("bindings", "Bindings alone, everybody else watches", BINDINGS, (), _SERRIED, plain=True)
ALL = (PLAIN, NATIVE, SERRIED, ISOLATED, ASKED, CEILING)
"""Those of the comparison of pods per second."""

ON_REQUEST = (BESIDE, FALLBACK)
"""Those that are measured where they are asked for by name."""


def in_turns(contenders: Sequence[Contender], repetitions: int) -> Iterator[tuple[int, Contender]]:
    """Every contender in every repetition, each time another one first: what drifts, drifts for all."""
    for repetition in range(repetitions):
        shift = repetition % len(contenders)
        for contender in (*contenders[shift:], *contenders[:shift]):
            yield repetition, contender
