"""How long filter waits while an odd gang is planned, and how soon the gangs of others are.

The extender's core in one process with a live loop: 5,000 nodes, most of them in use, no API server. A probe asks
filter about a plain pod every few milliseconds; what it waits is what the loop was held, plus the answer itself. Every
half second a few pods end, and every second a small gang of another tenant comes.

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
_PROBE, _ENDINGS, _SMALL = 0.004, 0.5, 1.0
_WARM_UP, _SECONDS = 1.0, 8.0
WANTED_P99, WANTED_LONGEST = 10.0, 100.0


@dataclass(frozen=True, slots=True)
class Case:
    """What the odd gang looks like; ``come`` puts its objects into the store."""

    name: str
    come: Callable[["Stage"], None]
    pods: int = 50_000


class NoStatus(ExtenderMetrics):
    """Hears what the extender has to say, and counts the plans."""

    def __init__(self) -> None:
        super().__init__()
        self.plans: Counter[str] = Counter()

    def planned(self, outcome: str, seconds: float) -> None:  # noqa: ARG002
        """A plan was made or refused."""
        self.plans[outcome] += 1

    def say(self, group: GroupKey, verdict: Verdict) -> None:
        """No condition is written."""

    def describe_hold(self, group: GroupKey) -> str:
        """As long as what a held pod is told."""
        return f"Serried holds this pod for its gang: job/{group.name} ({group}) waits: NoDomainFits"

    def report_disrupted(self, group: GroupKey, text: str) -> None:
        """Nothing is listened to."""

    def report_preemption(self, group: GroupKey, text: str) -> None:
        """Nothing is listened to."""

    def report_victim(self, victim: Victim, text: str) -> None:
        """Nothing is listened to."""

    async def mark_preempted(self, group: GroupKey, text: str) -> None:
        """No condition is written."""

    async def unmark_preempted(self, group: GroupKey) -> None:
        """No condition was written."""

    def report_broken(self, group: GroupKey, verdict: Verdict) -> None:
        """No gang is broken."""


class Silent:
    """An API server that never answers."""

    async def patch_merge(self, *_: object, **__: object) -> dict[str, Any]:
        """A nomination."""
        return await asyncio.Future()


class Plans(Records):
    """Records that nobody writes. ``begun`` are the groups that have a plan."""

    def __init__(self, client: ApiClient) -> None:
        super().__init__(client, "v1", "bench")
        self.begun: dict[GroupKey, asyncio.Event] = defaultdict(asyncio.Event)

    def check_size(self, group: PodGroup, reservation: Reservation) -> None:
        """Asked of each plan without victims before its members are tried."""
        super().check_size(group, reservation)
        self.begun[reservation.group].set()


class Stage:
    """The parts of an extender around one Store. Cycles are begun, and stay as they are."""

    def __init__(self) -> None:
        self.heard = NoStatus()
        self.store = Store(["serried"], ended=EndedMembers.KEEP_SLOTS, rules=RULES)
        term = Term(lambda: True)
        client = cast("ApiClient", Silent())
        self.records = Plans(client)
        self.core = Core(
            client,
            Context(self.store, term, self.heard, self.heard, Options(), asyncio.get_running_loop().time),
            self.records,
        )
        term.active = True
        self.service = self.core.service
        self.service.synced = True

    def fill(self, pods: int) -> None:
        """Nodes with 32 CPUs in racks and blocks; pods use 20 of each, every other one has a deadline."""
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
        """A gang with a member of each shape."""
        self.store.put_group(PodGroup(key, f"uid-{key}", Policy(len(shapes)), topology_key=topology_key))
        self.add_members(key, shapes)

    def add_members(self, key: GroupKey, shapes: Sequence[Shape]) -> None:
        """Its pods."""
        for index, shape in enumerate(shapes):
            name = f"{key.name}-{index}"
            self.store.put_pod(Pod(key.namespace, name, f"{key}-{name}", shape, "serried", group=key, index=index))


@dataclass(slots=True)
class Run:
    """What one run has shown, in milliseconds."""

    waits: list[float] = field(default_factory=list)
    small: list[float] = field(default_factory=list)
    plans: dict[str, int] = field(default_factory=dict)


def _with_end(bound: Pod, now: int, lifetime: int | None) -> Pod:
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
    """A gang of so many shapes."""
    return lambda stage: stage.add_gang(ODD, _shapes(kinds, members, cpu), topology_key)


def local(stage: Stage) -> None:
    """A hundred members, each with a volume on a node of its own; on one of these there is no room."""
    shapes = []
    for index in range(100):
        terms = (NodeSelectorTerm((Requirement(HOST, "In", (f"n{index * 7}",)),)),)
        shapes.append(Shape((("cpu", 30_000 if index == 99 else 1_000), ("pods", 1)), (), terms))
    stage.add_gang(ODD, shapes)


def tree(stage: Stage) -> None:
    """Twenty groups of forty members in two shapes, a rack each, all in one block."""
    top = composite("top").namespace(ODD.namespace).gang(20).topology(BLOCK)
    stage.store.put_composite(top.value())
    for place in range(20):
        key = GroupKey(ODD.namespace, f"g{place}")
        stage.store.put_group(PodGroup(key, f"uid-{place}", Policy(40), topology_key=RACK, parent="top"))
        stage.add_members(key, _shapes(2, 40, 11_000))


def excluded(stage: Stage) -> None:
    """A thousand members, and one node that the scheduler has refused for all of them."""
    shapes = _shapes(1, 1_000, 11_000)
    gang = GroupState(stage.core.clock())
    gang.refusals.refuse(shapes[0], "n7", stage.store)
    stage.core.groups.states[ODD] = gang
    stage.add_gang(ODD, shapes)


def flood(shapes: int) -> Callable[[Stage], None]:
    """Ten thousand gangs of one namespace that fit in no rack, in so many shapes."""

    def come(stage: Stage) -> None:
        for number in range(10_000):
            pair = [Shape((("cpu", 30_000 + number % shapes), ("pods", 1)))] * 2
            stage.add_gang(GroupKey(ODD.namespace, f"flood-{number}"), pair, RACK)

    return come


def choosy(stage: Stage) -> None:
    """A hundred members, each with a thousand selectors of its own that no node meets."""
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
    """Let the odd gang come, and see how the others do."""
    stage, run = Stage(), Run()
    stage.fill(case.pods)
    gc.collect()
    gc.freeze()  # as the extender does with its caches
    gc.set_threshold(50_000, 20, 50)
    stage.store.dirty.clear_groups()
    async with run_beside(stage, run):
        await probe(stage, Run(), _WARM_UP)
        case.come(stage)
        stage.core.groups.wake()
        await probe(stage, run, _SECONDS)
    run.plans = dict(stage.heard.plans)
    return run


@asynccontextmanager
async def run_beside(stage: Stage, run: Run) -> AsyncIterator[None]:
    """The loop that plans, pods that end, and small gangs that come."""
    tasks = [asyncio.create_task(each) for each in (stage.core.loop.run(), _end_pods(stage), _send_small(stage, run))]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await stage.core.tasks.close()


async def probe(stage: Stage, run: Run, seconds: float) -> None:
    """Ask filter about a plain pod every few milliseconds."""
    plain = Pod("load", "plain", "plain", Shape((("cpu", 1), ("pods", 1))), "serried")
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        await asyncio.sleep(_PROBE)
        stage.service.filter(plain, ["n1"])
        run.waits.append((time.perf_counter() - begun - _PROBE) * 1000)


async def _end_pods(stage: Stage) -> None:
    for turn in range(1_000_000):
        await asyncio.sleep(_ENDINGS)
        for uid in [f"p{turn + _NODES * layer}" for layer in range(10)]:
            stage.store.drop_pod(uid)
        stage.core.groups.wake()


async def _send_small(stage: Stage, run: Run) -> None:
    for turn in range(1_000_000):
        await asyncio.sleep(_SMALL)
        key, begun = GroupKey("other", f"small-{turn}"), time.perf_counter()
        stage.add_gang(key, _shapes(1, 4, 1_000))
        stage.core.groups.wake()
        await stage.records.begun[key].wait()
        run.small.append((time.perf_counter() - begun) * 1000)


def measure(case: Case, runs: int) -> dict[str, Any]:
    """The medians over some runs, and the plans of the last."""
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
    """Measure every case; the exit code is 1 if filter waited too long in one."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.loop", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="of each case; medians are told")
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
