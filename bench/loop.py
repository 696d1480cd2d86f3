"""Measure how long filter waits while an odd gang is planned, and how long small gangs of another tenant wait.

The extender's core runs in one process with its scheduling loop, 5,000 nodes, most of them in use, and no API server.
A probe calls filter for a plain pod every few milliseconds; its wait is the time for which the event loop was blocked,
plus the time of the answer. Every half second a few pods end, and every second another tenant creates a small gang.

    python -m bench.loop                 JSON to bench/results/, a table to standard output; milliseconds
    python -m bench.loop --only forecast the cases whose name has this word
"""

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import uvloop

from bench.load.figures import percentile
from bench.machine import describe_machine, measure_noise
from extender.core.binding.records import Records
from extender.core.scheduling.effects import Context, Term
from extender.core.scheduling.group import GroupState
from extender.options import Options
from extender.wiring import Core
from serried.api.group import PodGroup, Policy
from serried.api.names import GroupKey
from serried.api.pod import Pod, Shape
from serried.api.reservation import Reservation, Victim
from serried.api.selectors import NodeSelectorTerm, Requirement
from serried.api.verdict import Verdict
from serried.cluster.cache import EndedMembers, Store
from serried.kube.client import ApiClient
from serried.ops.metrics import ExtenderMetrics
from serried.rules.all import RULES
from tests.support.builders import RACK, node
from tests.support.composites import composite

RESULTS = Path(__file__).parent / "results"
BLOCK = "example.com/block"
HOST = "kubernetes.io/hostname"
ODD = GroupKey("odd", "gang")
_NODES, _RACK_SIZE = 5_000, 100
_PROBE_INTERVAL, _END_INTERVAL, _SMALL_INTERVAL = 0.004, 0.5, 1.0
"""Seconds between two filter calls, two rounds of pods that end, and two small gangs."""

_WARM_UP, _SECONDS = 1.0, 8.0
WANTED_P99, WANTED_LONGEST = 10.0, 100.0
"""The longest waits of filter that are allowed, in milliseconds."""


@dataclass(frozen=True, slots=True)
class Case:
    """An odd gang, in a cluster with a number of running pods."""

    name: str
    create: Callable[["Stage"], None]
    """Puts the gang's objects into the stage's Store."""

    pods: int = 50_000


class PlanCounter(ExtenderMetrics):
    """Stands in for metrics and status reports: counts plans by outcome, and drops everything else."""

    def __init__(self) -> None:
        super().__init__()
        self.plans: Counter[str] = Counter()

    def planned(self, outcome: str, seconds: float) -> None:  # noqa: ARG002
        """Count a plan by its outcome."""
        self.plans[outcome] += 1

    def report_verdict(self, group: GroupKey, verdict: Verdict) -> None:
        """Write no condition."""

    def describe_hold(self, group: GroupKey) -> str:
        """Return a text about as long as the real one."""
        return f"Serried holds this pod for its gang: job/{group.name} ({group}) waits: NoDomainFits"

    def report_disrupted(self, group: GroupKey, text: str) -> None:
        """Send no event."""

    def report_preemption(self, group: GroupKey, text: str) -> None:
        """Send no event."""

    def report_victim(self, victim: Victim, text: str) -> None:
        """Send no event."""

    async def mark_preempted(self, group: GroupKey, text: str) -> None:
        """Write no condition."""

    async def unmark_preempted(self, group: GroupKey) -> None:
        """Write no condition."""

    def report_broken(self, group: GroupKey, verdict: Verdict) -> None:
        """Send no event."""


class SilentClient:
    """Stands in for ApiClient: requests to the API server never return."""

    async def patch_merge(self, *_: object, **__: object) -> dict[str, Any]:
        """Wait for ever, where the extender would nominate a node."""
        return await asyncio.Future()


class UnwrittenRecords(Records):
    """Records of binding cycles that are never written to the API server."""

    def __init__(self, client: ApiClient) -> None:
        super().__init__(client, "v1", "bench")
        self.planned: dict[GroupKey, asyncio.Event] = defaultdict(asyncio.Event)
        """By group: set once the group has a plan."""

    def check_size(self, group: PodGroup, reservation: Reservation) -> None:
        """Note that the group has a plan. The extender calls this for each plan without victims, before it is tried."""
        super().check_size(group, reservation)
        self.planned[reservation.group].set()


class Stage:
    """The core of an extender around one Store. Binding cycles begin and never end, because no request returns."""

    def __init__(self) -> None:
        self.reporter = PlanCounter()
        self.store = Store(["serried"], ended=EndedMembers.KEEP_SLOTS, rules=RULES)
        term = Term(lambda: True)
        client = cast("ApiClient", SilentClient())
        self.records = UnwrittenRecords(client)
        self.core = Core(
            client,
            Context(self.store, term, self.reporter, self.reporter, Options(), asyncio.get_running_loop().time),
            self.records,
        )
        term.active = True
        self.service = self.core.service
        self.service.synced = True

    def fill(self, pods: int) -> None:
        """Add 5,000 nodes of 32 CPUs in racks and blocks, and pods that use 20 CPUs of each node.

        Every other pod has an activeDeadlineSeconds, so that forecasts know its end.
        """
        for index in range(_NODES):
            rack = index // _RACK_SIZE
            built = node(f"n{index}").rack(f"rack-{rack}").label(BLOCK, f"block-{rack // 5}").label(HOST, f"n{index}")
            self.store.put_node(built.cpu(32).memory("128Gi").value())
        each = max(1, pods // _NODES)
        shape = Shape((("cpu", 20_000 // each), ("pods", 1)))
        now = int(time.time())
        for index in range(pods):
            lifetime = 600 + index % 5_000 if index % 2 else None
            bound = Pod("load", f"p{index}", f"p{index}", shape, "serried", f"n{index % _NODES}")
            self.store.put_pod(_with_end(bound, now, lifetime))

    def add_gang(self, key: GroupKey, shapes: Sequence[Shape], topology_key: str | None = None) -> None:
        """Add a gang with one member for each shape."""
        self.store.put_group(PodGroup(key, f"uid-{key}", Policy(len(shapes)), topology_key=topology_key))
        self.add_members(key, shapes)

    def add_members(self, key: GroupKey, shapes: Sequence[Shape]) -> None:
        """Add the pods of a gang, one for each shape."""
        for index, shape in enumerate(shapes):
            name = f"{key.name}-{index}"
            self.store.put_pod(Pod(key.namespace, name, f"{key}-{name}", shape, "serried", group=key, index=index))


@dataclass(slots=True)
class Run:
    """The figures of one run. Times are milliseconds."""

    waits: list[float] = field(default_factory=list)
    """The wait of each filter call."""

    small: list[float] = field(default_factory=list)
    """The time from creation to plan of each small gang."""

    plans: dict[str, int] = field(default_factory=dict)
    """The number of plans by outcome."""


def _with_end(bound: Pod, now: int, lifetime: int | None) -> Pod:
    """Return the pod as started at ``now`` with a deadline ``lifetime`` seconds later; without one if it is None."""
    return Pod(
        bound.namespace,
        bound.name,
        bound.uid,
        bound.shape,
        bound.scheduler,
        bound.node,
        started=now if lifetime else None,
        lifetime=lifetime,
    )


# --- the odd gangs ---------------------------------------------------------------------------------------------------


def _shapes(kinds: int, members: int, cpu: int) -> list[Shape]:
    return [Shape((("cpu", cpu + index % kinds), ("pods", 1))) for index in range(members)]


def mixed(kinds: int, members: int, cpu: int, topology_key: str | None) -> Callable[[Stage], None]:
    """Return the `create` of a case: a gang with ``kinds`` different shapes of about ``cpu`` millicores."""
    return lambda stage: stage.add_gang(ODD, _shapes(kinds, members, cpu), topology_key)


def local(stage: Stage) -> None:
    """Create a gang of 100 members that each need another node, as with local volumes. One of these nodes is full."""
    shapes = []
    for index in range(100):
        terms = (NodeSelectorTerm((Requirement(HOST, "In", (f"n{index * 7}",)),)),)
        shapes.append(Shape((("cpu", 30_000 if index == 99 else 1_000), ("pods", 1)), (), terms))
    stage.add_gang(ODD, shapes)


def tree(stage: Stage) -> None:
    """Create a tree of twenty groups of forty members in two shapes. Each group needs one rack, all need one block."""
    top = composite("top").namespace(ODD.namespace).gang(20).topology(BLOCK)
    stage.store.put_composite(top.value())
    for place in range(20):
        key = GroupKey(ODD.namespace, f"g{place}")
        stage.store.put_group(PodGroup(key, f"uid-{place}", Policy(40), topology_key=RACK, parent="top"))
        stage.add_members(key, _shapes(2, 40, 11_000))


def excluded(stage: Stage) -> None:
    """Create a gang of 1,000 members of one shape, for which kube-scheduler has rejected one node."""
    shapes = _shapes(1, 1_000, 11_000)
    gang = GroupState(stage.core.clock())
    gang.refusals.exclude_node(shapes[0], "n7", stage.store)
    stage.core.groups.states[ODD] = gang
    stage.add_gang(ODD, shapes)


def flood(shapes: int) -> Callable[[Stage], None]:
    """Return the `create` of a case: 10,000 gangs of one namespace that fit in no rack, with ``shapes`` shapes."""

    def create(stage: Stage) -> None:
        for number in range(10_000):
            pair = [Shape((("cpu", 30_000 + number % shapes), ("pods", 1)))] * 2
            stage.add_gang(GroupKey(ODD.namespace, f"flood-{number}"), pair, RACK)

    return create


def choosy(stage: Stage) -> None:
    """Create a gang of 100 members, each with a thousand node selector terms of its own that match no node."""
    shapes = []
    for index in range(100):
        wanted = (Requirement("none", "Exists"), *(Requirement(RACK, "In", (f"no-{index}-{n}",)) for n in range(1_000)))
        terms = tuple(NodeSelectorTerm((each,)) for each in wanted)
        shapes.append(Shape((("cpu", 1_000), ("pods", 1)), (), terms))
    stage.add_gang(ODD, shapes)


CASES = (
    Case("nothing odd", lambda _: None),
    Case("128 members in 32 shapes, no rack has room", mixed(32, 128, 11_000, RACK)),
    Case("128 members in 128 shapes, no rack has room", mixed(128, 128, 11_000, RACK)),
    Case("1,300 members in 32 shapes, anywhere", mixed(32, 1_300, 11_000, None)),
    Case("1,300 members in 32 shapes, no rack has room", mixed(32, 1_300, 11_000, RACK)),
    Case("100 members with local volumes, one has no room", local),
    Case("a tree of 20 groups of 40 in two shapes, no block has room", tree),
    Case("1,000 members, one node excluded", excluded),
    Case("forecast, 4 shapes, 5,000 pods", mixed(4, 100, 30_000, RACK), 5_000),
    Case("forecast, 16 shapes, 5,000 pods", mixed(16, 100, 30_000, RACK), 5_000),
    Case("forecast, 4 shapes, 50,000 pods", mixed(4, 100, 30_000, RACK)),
    Case("forecast, 16 shapes, 50,000 pods", mixed(16, 100, 30_000, RACK)),
    Case("one namespace: 10,000 gangs of one shape", flood(1)),
    Case("one namespace: 10,000 gangs of 10,000 shapes", flood(10_000)),
    Case("one namespace: a gang of 10,000 members in 10,000 shapes", mixed(10_000, 10_000, 11_000, None)),
    Case("one namespace: 100 members with 1,000 selectors each", choosy),
)


# --- one run ---------------------------------------------------------------------------------------------------------


async def watch(case: Case) -> Run:
    """Run an extender for 8 s after the odd gang was created. Return the waits of filter calls and small gangs."""
    stage, run = Stage(), Run()
    stage.fill(case.pods)
    gc.collect()
    gc.freeze()  # as the extender does with its caches
    gc.set_threshold(50_000, 20, 50)
    stage.store.dirty.clear_groups()
    async with run_beside(stage, run):
        await probe(stage, Run(), _WARM_UP)
        case.create(stage)
        stage.core.groups.wake()
        await probe(stage, run, _SECONDS)
    run.plans = dict(stage.reporter.plans)
    return run


@asynccontextmanager
async def run_beside(stage: Stage, run: Run) -> AsyncIterator[None]:
    """While the body runs: run the scheduling loop, end pods, and create small gangs."""
    tasks = [asyncio.create_task(each) for each in (stage.core.loop.run(), _end_pods(stage), _create_small(stage, run))]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await stage.core.tasks.close()


async def probe(stage: Stage, run: Run, seconds: float) -> None:
    """Call filter for a plain pod every few milliseconds, and add the waits to ``run``."""
    plain = Pod("load", "plain", "plain", Shape((("cpu", 1), ("pods", 1))), "serried")
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        await asyncio.sleep(_PROBE_INTERVAL)
        stage.service.filter(plain, ["n1"])
        run.waits.append((time.perf_counter() - begun - _PROBE_INTERVAL) * 1000)


async def _end_pods(stage: Stage) -> None:
    for turn in range(1_000_000):
        await asyncio.sleep(_END_INTERVAL)
        for uid in [f"p{turn + _NODES * layer}" for layer in range(10)]:
            stage.store.drop_pod(uid)
        stage.core.groups.wake()


async def _create_small(stage: Stage, run: Run) -> None:
    for turn in range(1_000_000):
        await asyncio.sleep(_SMALL_INTERVAL)
        key, begun = GroupKey("other", f"small-{turn}"), time.perf_counter()
        stage.add_gang(key, _shapes(1, 4, 1_000))
        stage.core.groups.wake()
        await stage.records.planned[key].wait()
        run.small.append((time.perf_counter() - begun) * 1000)


def measure(case: Case, runs: int) -> dict[str, Any]:
    """Return the row of a case: medians over some runs, and the plans of the last run."""
    found: list[Run] = []
    for _ in range(runs):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found.append(runner.run(watch(case)))
        gc.unfreeze()
    return {
        "case": case.name,
        "filter_p50": _median(found, lambda run: percentile(sorted(run.waits), 50)),
        "filter_p99": _median(found, lambda run: percentile(sorted(run.waits), 99)),
        "filter_longest": _median(found, lambda run: max(run.waits)),
        "small_gangs_median": _median(found, lambda run: statistics.median(run.small) if run.small else None),
        "small_gangs_longest": _median(found, lambda run: max(run.small, default=None)),
        "plans": found[-1].plans,
    }


def _median(runs: Sequence[Run], read: Callable[[Run], float | None]) -> float | None:
    found = [value for value in map(read, runs) if value is not None]
    return round(statistics.median(found), 2) if found else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every case and write the result. Return 1 if filter waited too long in one, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.loop", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="runs of each case, for medians")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--name", default="loop", help="how the file's name begins")
    parser.add_argument("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="part of the file's name")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the result")
    options = parser.parse_args(arguments)
    noise, rows = measure_noise(), []
    print(
        "| gang | filter p50, ms | p99 | longest | other gangs planned after, median | longest |\n"
        "|---|---|---|---|---|---|"
    )
    for case in CASES:
        if options.only in case.name:
            rows.append(measure(case, options.runs))
            print("|", " | ".join(str(rows[-1][name]) for name in rows[-1] if name != "plans"), "|", flush=True)
    machine = {**describe_machine(), "busy_with_other_work_before": round(noise, 2), "runs": options.runs}
    result = {"date": options.date, "machine": machine, "nodes": _NODES, "rows": rows}
    path: Path = options.results / f"{options.name}-{options.date}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    missed = [row for row in rows if row["filter_p99"] > WANTED_P99 or row["filter_longest"] > WANTED_LONGEST]
    for row in missed:
        print(f"missed: {row['case']}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
