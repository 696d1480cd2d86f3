"""What `throughput` compares: ways of scheduling gangs, ways of scheduling plain pods, and the loads of each of them.

Plain pods go three ways: by a stock scheduler, by ours in an isolated installation, where it does not ask about them
(`plain-isolated`), and by ours where it asks about every pod (`plain-asked`).
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bench.cluster import Spec
from bench.cluster.nodes import RACK
from bench.cluster.spec import Hold
from bench.comparison import WAITING
from bench.load.objects import Load, make_gangs

NODES_PER_RACK = 100
QPS = 5000

_NATIVE_GATES = ("GenericWorkload=true", "TopologyAwareWorkloadScheduling=true")

Name = Literal[
    "plain", "native", "serried", "serried-beside", "serried-together", "serried-gate", "plain-isolated", "plain-asked"
]


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the table: ``gangs`` of ``size`` pods, or ``plain`` pods; ``key`` "" for no constraint.

    ``queue`` is ``live`` if pods are created while the schedulers work, ``full`` if all pods exist before they begin.
    """

    name: str
    plain: int = 0
    gangs: int = 0
    size: int = 0
    key: str = ""
    queue: Literal["live", "full"] = "live"

    def make_load(self, run: str, scheduler: str) -> Load:
        """The load of one run."""
        return Load(run, scheduler, plain=self.plain, gangs=make_gangs(self.gangs, self.size, self.key))


def _with_full_queues(workloads: tuple[Workload, ...]) -> tuple[Workload, ...]:
    return workloads + tuple(replace(one, name=f"{one.name}{WAITING}", queue="full") for one in workloads)


FULL = _with_full_queues(
    (
        Workload("1,000 plain pods", plain=1000),
        Workload("50 gangs of 20", gangs=50, size=20),
        Workload("50 gangs of 20, each in one rack", gangs=50, size=20, key=RACK),
        Workload("5 gangs of 200", gangs=5, size=200),
        Workload("5 gangs of 200, each in one rack", gangs=5, size=200, key=RACK),
        Workload("1 gang of 1,000", gangs=1, size=1000),
    )
)
QUICK = _with_full_queues(
    (
        Workload("100 plain pods", plain=100),
        Workload("5 gangs of 20", gangs=5, size=20),
        Workload("5 gangs of 20, each in one rack", gangs=5, size=20, key=RACK),
    )
)


@dataclass(frozen=True, slots=True)
class Contender:
    """One way of scheduling: its cluster, its schedulerName, and the processes that do it.

    ``plain`` is whether it gets plain pods, or gangs. With ``isolated`` only marked pods are asked about. Waiting
    members are held as ``hold`` says; ``args`` are more flags of the extender. With ``native`` kube-scheduler's own
    gang scheduling is on, whichever scheduler it is.
    """

    name: Name
    title: str
    scheduler: str
    processes: tuple[str, ...]
    plain: bool = False
    isolated: bool = False
    native: bool = False
    hold: Hold = "auto"
    args: tuple[str, ...] = ()

    def make_spec(self, nodes: int) -> Spec:
        """A cluster of ``nodes`` nodes in racks of 100, the same for all but gates and processes of ours.

        Its name is this process's own: two measurements at once disturb, but do not remove each other's clusters.
        """
        racks = max(2, nodes // NODES_PER_RACK)
        return Spec(
            name=f"bench-{self.name}-{os.getpid()}",
            nodes=nodes,
            racks=racks,
            blocks=max(1, racks // 5),
            qps=QPS,
            gates="on" if self.native else "off",
            scheduler_gates=_NATIVE_GATES if self.native else (),
            serried=self.scheduler == _OURS,
            isolated=self.isolated,
            hold=self.hold,
            serried_args=self.args,
        )

    def takes(self, workload: Workload) -> bool:
        """Whether the workload is one for this contender."""
        return bool(workload.plain) == self.plain


_STOCK, _OURS = "default-scheduler", "serried"
_BOTH = ("scheduler", "extender")
PLAIN = Contender("plain", "plain pods, stock scheduler", _STOCK, ("kube-scheduler",), plain=True)
NATIVE = Contender("native", "native gangs, gates on", _STOCK, ("kube-scheduler",), native=True)
SERRIED = Contender("serried", "Serried, gates off", _OURS, _BOTH)
BESIDE = Contender("serried-beside", "Serried beside native gangs, gates on", _OURS, _BOTH, native=True)
TOGETHER = Contender(
    "serried-together",
    "Serried, one judged for all alike",
    _OURS,
    _BOTH,
    args=("--alike-members=together",),
)
GATED = Contender("serried-gate", "Serried, gates off, members held by gates", _OURS, _BOTH, hold="gate")
ISOLATED = Contender("plain-isolated", "plain pods, Serried isolated", _OURS, _BOTH, plain=True, isolated=True)
ASKED = Contender("plain-asked", "plain pods, Serried asked about each", _OURS, _BOTH, plain=True)
ALL = (PLAIN, NATIVE, SERRIED, ISOLATED, ASKED)
"""Those of the comparison of pods per second."""

ON_REQUEST = (BESIDE, TOGETHER)
"""Those that are measured where they are asked for by name."""


def in_turns(contenders: Sequence[Contender], repetitions: int) -> Iterator[tuple[int, Contender]]:
    """Every contender in every repetition, each time another one first: what drifts, drifts for all."""
    for repetition in range(repetitions):
        shift = repetition % len(contenders)
        for contender in (*contenders[shift:], *contenders[:shift]):
            yield repetition, contender
