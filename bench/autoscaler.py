"""Measure what a mixed queue of gangs buys beside the real Karpenter: nodes for gangs that never start should be none.

Gangs of 2 to 16 members come and go, each member as large as a node; some are whole at once, some get their members one
by one, some never get the last one, some are withdrawn while they wait, some need more than the NodePool may buy. Plain
pods come between them. Each member asks for a number of milli-CPUs that is its gang's alone, so Karpenter's log says of
each NodeClaim for which gang it was made. JSON goes to `bench/results/`, the table to standard output.

    python -m bench.autoscaler                  an hour
    python -m bench.autoscaler --minutes 10     ten minutes
    python -m bench.autoscaler --without        gangs do not ask and are held by filter, for comparison
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.cluster import Cluster, ClusterError, Spec
from bench.cluster.api import ApiError
from bench.cluster.nodes import ZONE
from bench.cluster.progress import Report, stderr_report
from bench.karpenter import NODE_CPU, VERSION, Batch, Karpenter, at_work
from bench.machine import describe_machine, measure_noise

RESULTS = Path(__file__).parent / "results"
ZONES = ("zone-0", "zone-1")
POOL = "mixed"
POOL_NODES = 40
"""The largest number of nodes that Karpenter may buy for the NodePool. The cluster has six of its own."""

NAMESPACE = "mixed"
KINDS = {"whole": 45, "late": 15, "lacking": 15, "withdrawn": 10, "too large": 5, "plain": 10}
"""The kinds of gangs that are created, with the weights by which they are drawn.

The members of a late gang come one by one; a lacking gang never gets its last one; a withdrawn one is deleted soon; one
that is too large needs more nodes than the NodePool may have; a plain pod belongs to no gang.
"""

STARTING = frozenset({"whole", "late", "plain"})
"""The kinds whose pods should run. For gangs of the other kinds no node should be bought."""

_FIRST_MILLI_CPU = 30_000
"""The largest request: nearly a node, because the kwok provider counts requests against a NodePool's limits."""

_PAUSE = 0.25
_DRAIN_SECONDS = 300.0
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_API = "scheduling.serried.dev/v1beta1"
_GROUPS = f"/apis/{_API}/namespaces/{NAMESPACE}/podgroups"

Raw = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang, or one plain pod, created together. Times are in seconds, ``at`` since the beginning of the run."""

    number: int
    kind: str
    size: int
    at: float
    key: str
    """The topology key that it needs, "" for none."""

    runs: float
    """The time for which the pods run."""

    withdrawn_after: float
    """The time after which a gang that should never start is deleted."""

    spacing: float
    """The time between two of its members."""

    @property
    def name(self) -> str:
        """The name of the PodGroup, and the beginning of the pods' names."""
        return f"g{self.number}"

    @property
    def milli_cpu(self) -> int:
        """The request of each pod of the gang. Pods of other gangs have other requests."""
        return _FIRST_MILLI_CPU + self.number

    @property
    def pods(self) -> int:
        """The number of the gang's pods that are created."""
        return self.size - 1 if self.kind == "lacking" else self.size


@dataclass(slots=True)
class GangLife:
    """The observed life of a gang. Times are in seconds since the beginning; None for an event that never happened."""

    gang: Gang
    created: int = 0
    """The number of its pods that are created."""

    whole: float | None = None
    """The time at which the last member was created."""

    bound: float | None = None
    """The time at which all members were seen bound."""

    ended: float | None = None
    """The time at which the gang was deleted."""

    broken: bool = False
    """True if a pod of the gang disappeared before the gang had ended."""


def draw(minutes: float, seed: int) -> list[Gang]:
    """Draw the gangs that are created within ``minutes``, sorted by time. Equal seeds give equal gangs."""
    source, gangs, at = random.Random(seed), list[Gang](), 0.0
    while (at := at + source.uniform(4.0, 20.0)) < minutes * 60:
        kind = source.choices(list(KINDS), list(KINDS.values()))[0]
        size = {"plain": 1, "too large": POOL_NODES + 20}.get(kind) or source.choice((2, 3, 4, 4, 6, 8, 8, 12, 16))
        gangs.append(
            Gang(
                number=len(gangs) + 1,
                kind=kind,
                size=size,
                at=at,
                key="" if kind == "plain" or source.random() < 0.5 else ZONE,
                runs=source.uniform(10.0, 60.0),
                withdrawn_after=source.uniform(0.5, 6.0) if kind == "withdrawn" else source.uniform(40.0, 90.0),
                spacing=source.uniform(0.5, 5.0) if kind == "late" else 0.0,
            )
        )
    return gangs


class Replay:
    """Creates the gangs of a queue in a cluster at their times, and deletes them when they end.

    ``lives`` has an entry for each gang that was created so far.
    """

    def __init__(self, cluster: Cluster, gangs: Sequence[Gang]) -> None:
        self.lives: list[GangLife] = []
        self._api = cluster.api
        self._pending = list(gangs)
        self._started_at = time.monotonic()

    def run(self, minutes: float, report: Report) -> None:
        """Run until all gangs were created and deleted, but at most ``_DRAIN_SECONDS`` longer than ``minutes``."""
        self._api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self._started_at, told = time.monotonic(), 0.0
        while (now := self._now()) < minutes * 60 + _DRAIN_SECONDS and (self._pending or self._list_present()):
            self._create(now)
            self._observe()
            if now - told > 60:
                told = now
                report(f"{now / 60:.0f} min: {len(self.lives)} came, {len(self._list_present())} are there")
            time.sleep(_PAUSE)

    def _now(self) -> float:
        return time.monotonic() - self._started_at

    def _list_present(self) -> list[GangLife]:
        return [life for life in self.lives if life.ended is None]

    def _create(self, now: float) -> None:
        while self._pending and self._pending[0].at <= now:
            gang = self._pending.pop(0)
            if gang.kind != "plain":
                self._api.post(_GROUPS, group_object(gang))
            self.lives.append(GangLife(gang))
        for life in self._list_present():
            gang = life.gang
            while life.created < gang.pods and gang.at + life.created * gang.spacing <= now:
                self._api.post(_PODS, pod_object(gang, life.created))
                life.created += 1
            if life.whole is None and life.created == gang.size:
                life.whole = self._now()

    def _observe(self) -> None:
        pods = self._api.get(_PODS)["items"]
        now = self._now()
        bound = Counter(_name_gang(pod) for pod in pods if pod["spec"].get("nodeName"))
        there = Counter(map(_name_gang, pods))
        over = Counter(_name_gang(pod) for pod in pods if pod.get("status", {}).get("phase") == "Succeeded")
        for life in self._list_present():
            gang = life.gang
            if life.bound is None and bound[gang.name] == gang.size:
                life.bound = now
            life.broken = there[gang.name] < life.created
            withdrawn = gang.kind not in STARTING and life.bound is None and now > gang.at + gang.withdrawn_after
            if over[gang.name] == gang.size or withdrawn or life.broken:
                self._delete(life)

    def _delete(self, life: GangLife) -> None:
        for number in range(life.created):
            self._api.delete(f"{_PODS}/{life.gang.name}-{number}")
        if life.gang.kind != "plain":
            self._api.delete(f"{_GROUPS}/{life.gang.name}")
        life.ended = self._now()


def _name_gang(pod: Raw) -> str:
    return str(pod["metadata"]["name"]).partition("-")[0]


def group_object(gang: Gang) -> Raw:
    """Return the PodGroup of a gang."""
    annotations = {"scheduling.serried.dev/required-topology": gang.key} if gang.key else {}
    spec = {"schedulingPolicy": {"gang": {"minCount": gang.size}}}
    metadata = {"name": gang.name, "annotations": annotations}
    return {"apiVersion": _API, "kind": "PodGroup", "metadata": metadata, "spec": spec}


def pod_object(gang: Gang, number: int) -> Raw:
    """Return pod ``number`` of a gang, or the plain pod."""
    labels = {} if gang.kind == "plain" else {"scheduling.serried.dev/pod-group": gang.name}
    annotations = {"bench.serried.dev/succeed-after": f"{gang.runs:.0f}s"}
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": f"{gang.milli_cpu}m"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{gang.name}-{number}", "labels": labels, "annotations": annotations},
        "spec": {"schedulerName": "serried", "containers": [container], "terminationGracePeriodSeconds": 0},
    }


@dataclass(frozen=True, slots=True)
class Bought:
    """The NodeClaims that Karpenter has made in a run."""

    claims: Mapping[int, int]
    """The number of NodeClaims by the milli-CPUs of the pods that they were made for."""

    batches: Sequence[Batch] = field(default=())


def summarize(lives: Iterable[GangLife], bought: Bought) -> Raw:
    """Return the numbers of a run: the totals, and one row for each kind."""
    found = list(lives)
    rows = [_describe(kind, [s for s in found if s.gang.kind == kind], bought.claims) for kind in KINDS]
    waited = sorted(_list_waits(found, bought.claims))
    return {
        "came": len(found),
        "broken": sum(life.broken for life in found),
        "node_claims": sum(bought.claims.values()),
        "batches": len(bought.batches),
        "wasted": sum(row["wasted"] for row in rows if row["kind"] != "withdrawn"),
        "wasted_by_withdrawn": sum(row["wasted"] for row in rows if row["kind"] == "withdrawn"),
        "seconds_with_new_nodes": _spread(waited),
        "rows": rows,
    }


def _describe(kind: str, lives: Sequence[GangLife], claims: Mapping[int, int]) -> Raw:
    idle = [life for life in lives if life.bound is None]
    return {
        "kind": kind,
        "came": len(lives),
        "started": len(lives) - len(idle),
        "node_claims": sum(claims.get(life.gang.milli_cpu, 0) for life in lives),
        "wasted": sum(claims.get(life.gang.milli_cpu, 0) for life in idle),
        "beyond_size": sum(max(0, claims.get(s.gang.milli_cpu, 0) - s.gang.size) for s in lives if s not in idle),
        "seconds": _spread(sorted(s.bound - s.whole for s in lives if s.bound is not None and s.whole is not None)),
    }


def _list_waits(lives: Iterable[GangLife], claims: Mapping[int, int]) -> list[float]:
    """Return the seconds from the last member to the last Binding, for each gang for which nodes were bought."""
    return [
        life.bound - life.whole
        for life in lives
        if life.bound is not None and life.whole is not None and claims.get(life.gang.milli_cpu)
    ]


def _spread(ordered: Sequence[float]) -> Raw | None:
    if not ordered:
        return None
    worst = ordered[min(len(ordered) - 1, round(0.9 * len(ordered)))]
    return {"median": round(statistics.median(ordered), 1), "p90": round(worst, 1), "max": round(ordered[-1], 1)}


def render(summary: Raw) -> str:
    """Return the summary as a Markdown table."""
    lines = [
        "| kind | came | started | NodeClaims | for those that did not start | beyond their size | s to run, median |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in summary["rows"]:
        cells = [row[name] for name in ("kind", "came", "started", "node_claims", "wasted", "beyond_size")]
        lines.append(f"| {' | '.join(map(str, [*cells, row['seconds'] and row['seconds']['median']]))} |")
    return "\n".join(lines)


def measure(minutes: float, seed: int, *, asking: bool, report: Report) -> Raw:
    """Run one mixed queue on a cluster of its own, and return the summary. Raise ClusterError and ApiError.

    Without ``asking``, gangs do not request nodes, and filter holds their members.
    """
    with tempfile.TemporaryDirectory(prefix="serried-autoscaler-") as directory:
        cluster = Cluster.up(make_spec(asking=asking), report)
        try:
            with at_work(cluster, ZONES, Path(directory), report) as karpenter:
                karpenter.create_pool(POOL, ZONES, cpu_limit=POOL_NODES * NODE_CPU, consolidate_after="15s")
                play = Replay(cluster, draw(minutes, seed))
                play.run(minutes, report)
                return summarize(play.lives, read_bought(karpenter))
        finally:
            cluster.down()


def make_spec(*, asking: bool) -> Spec:
    """Return a small cluster of two zones. Without ``asking``, filter holds the members of gangs."""
    spec = Spec(f"bench-autoscaler-{os.getpid()}", nodes=6, racks=2, zones=2, api="fallback")
    if asking:
        return replace(spec, hold="gate", serried_args=("--ask-for", "120"))
    return replace(spec, hold="filter", serried_args=("--autoscaler", "none"))


def read_bought(karpenter: Karpenter) -> Bought:
    """Read the NodeClaims from Karpenter's log."""
    return Bought(Counter(karpenter.list_requests()), karpenter.list_batches())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the exit code is 1 if nodes were bought for gangs that did not start, or nothing could be measured."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _parse(arguments)
    noise = measure_noise()
    try:
        summary = measure(options.minutes, options.seed, asking=not options.without, report=stderr_report())
    except (ClusterError, ApiError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    result = {
        "date": options.date,
        "machine": describe_machine(),
        "kubernetes": Spec("any").kubernetes,
        "karpenter": VERSION,
        "minutes": options.minutes,
        "seed": options.seed,
        "asking": not options.without,
        "noise_before": round(noise, 2),
        **summary,
    }
    path: Path = options.results / f"{options.name}-{options.date}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(render(summary))
    print(f"written to {path}", file=sys.stderr)
    return 1 if summary["wasted"] and not options.without else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.autoscaler", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=60.0, help="how long gangs come (default: 60)")
    add("--seed", type=int, default=1, help="another queue for each (default: 1)")
    add("--without", action="store_true", help="gangs do not ask for nodes, and are held by filter")
    add("--name", default="autoscaler", help="first part of the result's file name")
    add("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="second part (default: today)")
    add("--results", type=Path, default=RESULTS, help="directory of the result")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
