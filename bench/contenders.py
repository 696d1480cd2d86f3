"""The contenders that `bench.throughput` compares, and their workloads.

A contender is one way to schedule gangs or plain pods. Plain pods have three contenders: the stock scheduler (`plain`),
Serried's scheduler in an isolated installation, where it does not call the extender for plain pods (`plain-isolated`),
and Serried's scheduler where it calls the extender for every pod (`plain-asked`). The ceiling is `bindings`: the load
generator sends the Bindings itself, without a scheduler.
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
"""A group of workloads, as the flag ``--loads`` names it."""

USUAL: tuple[Part, ...] = ("plain", "gangs", "racks", "large", "large-racks", "thousand")
"""The parts that are measured by default."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the table: a kind of load that each contender gets."""

    name: str
    part: Part
    load: Load
    """The load as a template: `Contender.make_load` adds the run's name and the scheduler's."""

    queue: Literal["live", "full"] = "live"
    """live: pods are created while the schedulers work. full: all pods exist before the schedulers start."""

    @property
    def beside(self) -> bool:
        """True if plain pods are created at a fixed rate, alone or beside gangs."""
        return self.load.pace.plain > 0


def _with_full_queues(workloads: tuple[Workload, ...]) -> tuple[Workload, ...]:
    """Return the workloads, and a copy with a full queue of each whose pods are all created at once.

    A workload of a single gang gets no copy: one gang makes no queue.
    """
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
    """One way to schedule pods."""

    name: Name
    title: str
    scheduler: str
    """The schedulerName of its pods."""

    processes: tuple[str, ...]
    """The processes that do the scheduling; the others are stopped or idle."""

    cluster: Spec
    """The contender's own settings of the cluster; `make_spec` adds the rest."""

    plain: bool = False
    """True if the contender schedules plain pods, False if it schedules gangs."""

    def make_spec(self, nodes: int) -> Spec:
        """Return the contender's cluster, with ``nodes`` nodes in racks of 100.

        Clusters of contenders differ in feature gates and in Serried's processes only. The name contains the process
        id, so that two measurements at a time do not remove each other's clusters.
        """
        racks = max(2, nodes // NODES_PER_RACK)
        name = f"bench-{self.name}-{os.getpid()}"
        return replace(self.cluster, name=name, nodes=nodes, racks=racks, blocks=max(1, racks // 5), qps=QPS)

    def accepts(self, workload: Workload) -> bool:
        """Return whether this contender is measured with the workload."""
        if workload.beside:
            return self.cluster.isolated or not self.plain
        if self.scheduler == BINDINGS:
            return bool(workload.load.plain) and workload.queue == "full"
        return bool(workload.load.plain) == self.plain

    def make_load(self, workload: Workload, run: str) -> Load:
        """Return the load of one run, whose pods have ``run`` in their names."""
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
"""The contenders that are measured by default."""

ON_REQUEST = (BESIDE, FALLBACK)
"""The contenders that are measured only if a flag names them."""


def interleave(contenders: Sequence[Contender], repetitions: int) -> Iterator[tuple[int, Contender]]:
    """Yield the number of the repetition and a contender, for every contender in every repetition.

    Each repetition starts with another contender, so that a slow change of the machine affects all of them.
    """
    for repetition in range(repetitions):
        shift = repetition % len(contenders)
        for contender in (*contenders[shift:], *contenders[:shift]):
            yield repetition, contender
