"""Measure how long the search for a gang's victims takes, and how many pods it would evict.

The gang has a higher priority than all running pods, and does not fit without evictions. Times are processor time, so
that other work on the machine does not count.

python -m bench.victims           JSON to bench/results/, a table to standard output; milliseconds
python -m bench.victims --quick   the small cases only
"""

import argparse
import gc
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from bench.machine import describe_machine, measure_noise
from serried.api.names import GroupKey
from serried.api.pod import Pod, Shape
from serried.plan.capacity import Capacity
from serried.plan.eviction import Allowances, EvictionUnit, NoVictims, Preemption, SpareMembers
from serried.plan.limit import Limit
from serried.plan.preemption import plan_victims
from serried.plan.request import PlanRequest, Snapshot
from tests.support.builders import RACK, node
from tests.support.rules import PLAN_RULES

RESULTS = Path(__file__).parent / "results"
_HIGH = 100
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class FullCluster:
    """A cluster without room: its nodes, and the units of pods that may be evicted."""

    snapshot: Snapshot
    units: Sequence[EvictionUnit]
    allowances: Allowances


@dataclass(frozen=True, slots=True)
class Case:
    """A preemptor gang and a full cluster."""

    name: str
    build: Callable[[], FullCluster]
    request: PlanRequest
    quick: bool = False
    """True for a small case, which ``--quick`` measures, too."""

    deadline: float = math.inf
    """Seconds of work after which the search must end with the best victims so far."""


def fill(nodes: int, each: int, priorities: Sequence[int] = (0,), gang_size: int = 0) -> FullCluster:
    """Return a cluster of nodes with 32 CPUs in racks of 100, each node full with ``each`` pods.

    With a gang size, pods on adjacent nodes form gangs of that size, which are evicted whole. With several priorities,
    pods have random ones and two sizes, and about a fifth of the CPUs is free.
    """
    source = random.Random(1)
    values = [
        node(f"n{place:05}").rack(f"rack-{place // 100:03}").cpu(32).memory("128Gi").value() for place in range(nodes)
    ]
    sizes = (32_000 // each,) if len(priorities) == 1 else (19_000 // each, 32_000 // each)
    shapes = [Shape((("cpu", size), ("pods", 1))) for size in sizes]
    used: dict[str, dict[str, int]] = {value.name: {"cpu": 0, "pods": 0} for value in values}
    pods = []
    for place in range(nodes * each):
        name = values[place // each].name
        shape = source.choice(shapes)
        pods.append(Pod("load", f"p{place}", f"p{place}", shape, node=name, started=source.randrange(1_000_000)))
        used[name] = {key: used[name][key] + amount for key, amount in shape.requests}
    snapshot = Snapshot({value.name: value for value in values}, used, rules=PLAN_RULES)
    if not gang_size:
        return FullCluster(snapshot, [EvictionUnit((pod,), source.choice(priorities)) for pod in pods], Allowances())
    units = []
    gangs = {}
    for first in range(0, len(pods), gang_size):
        gang = GroupKey("load", f"g{first}")
        gangs[gang] = SpareMembers(0)
        units.append(EvictionUnit(tuple(pods[first : first + gang_size]), 0, gang))
    return FullCluster(snapshot, units, Allowances(gangs))


def ask_gang(count: int, cpus: Sequence[int], key: str | None = RACK, name: str = "m") -> PlanRequest:
    """Return the request for a gang of ``count`` members, which have the sizes in turn (in cores)."""
    shapes = [Shape((("cpu", cpu * 1000), ("pods", 1))) for cpu in cpus]
    members = [Pod("default", f"{name}{i}", f"{name}{i}", shapes[i % len(shapes)], index=i) for i in range(count)]
    return PlanRequest(members, count, key, name=name)


def ask_tree(groups: int, size: int, cpu: int) -> PlanRequest:
    """Return the request for a tree of groups of equal size, each in one rack."""
    parts = tuple(ask_gang(size, [cpu], name=f"g{place}-") for place in range(groups))
    members = [member for part in parts for member in part.members]
    return PlanRequest(members, groups * size, name="root", parts=parts, wanted=groups)


def list_cases() -> list[Case]:
    """Return all cases, small ones first."""
    small: Callable[[], FullCluster] = lambda: fill(100, 10)  # noqa: E731
    whole: Callable[[], FullCluster] = lambda: fill(100, 10, gang_size=20)  # noqa: E731
    many: Callable[[], FullCluster] = lambda: fill(5_000, 10)  # noqa: E731
    odd: Callable[[], FullCluster] = lambda: fill(5_000, 10, priorities=(0, 1, 2, 5, 10))  # noqa: E731
    return [
        Case("100 nodes, 1,000 pods: 100 members, a node each", small, ask_gang(100, [32], None), quick=True),
        Case("100 nodes, 1,000 pods: 10 members, a node each", small, ask_gang(10, [32], None), quick=True),
        Case("100 nodes, 50 whole groups of 20", whole, ask_gang(10, [32], None), quick=True),
        Case("50,000 pods: a rack of 100 members, a node each", many, ask_gang(100, [32])),
        Case("50,000 pods: a rack of 100 members, an eighth of a node each", many, ask_gang(100, [4])),
        Case("50,000 pods: 1,000 members anywhere", many, ask_gang(1_000, [4], None)),
        Case("50,000 pods: a rack is too small", many, ask_gang(101, [32])),
        Case("50,000 pods in 2,500 whole groups: a rack", lambda: fill(5_000, 10, gang_size=20), ask_gang(50, [32])),
        Case("50,000 pods of five priorities: a rack of 100", odd, ask_gang(100, [16])),
        Case("50,000 pods of five priorities: 500 anywhere", odd, ask_gang(500, [16], None)),
        Case("50,000 pods of five priorities: a rack of 100 in four shapes", odd, ask_gang(100, [16, 14, 12, 10])),
        Case("50,000 pods of five priorities: a tree of 5 groups of 20", odd, ask_tree(5, 20, 16)),
        Case("a deadline after 1 s: a rack of 100 in four shapes", odd, ask_gang(100, [16, 14, 12, 10]), deadline=1.0),
        Case("a deadline after 1 s: a tree of 5 groups of 20", odd, ask_tree(5, 20, 16), deadline=1.0),
    ]  # fmt: skip


def measure(case: Case, cluster: FullCluster) -> dict[str, float | int | str]:
    """Return the median milliseconds of `_ROUNDS` searches, and the victims of the last one."""
    spent = []
    found: Preemption | NoVictims | None = None
    for _ in range(_ROUNDS):
        capacity = Capacity(cluster.snapshot.nodes, cluster.snapshot.used)
        gc.collect()
        gc.freeze()  # as the extender does with its caches
        limit = Limit(time.thread_time, content_after=case.deadline)
        begun = time.thread_time()
        snapshot = replace(cluster.snapshot, limit=limit)
        found = plan_victims(snapshot, case.request, _HIGH, cluster.units, cluster.allowances, capacity)
        spent.append((time.thread_time() - begun) * 1000)
        gc.unfreeze()
    return {
        "milliseconds": round(statistics.median(spent), 1),
        **_describe_victims(found),
    }


def describe_case(case: Case, cluster: FullCluster) -> dict[str, float | int | str | None]:
    """Return the keys of a row by which pages select it. ``deadline`` is in seconds, None if there is none."""
    running = sum(len(unit.pods) for unit in cluster.units)
    deadline = None if math.isinf(case.deadline) else case.deadline
    return {"case": case.name, "nodes": len(cluster.snapshot.nodes), "running": running, "deadline": deadline}


def _describe_victims(found: Preemption | NoVictims | None) -> dict[str, float | int | str]:
    if not isinstance(found, Preemption):
        return {"victims": 0, "broken": 0, "highest": ""}
    damages = found.cost.damages
    return {
        "victims": sum(damage.pods for damage in damages),
        "broken": sum(damage.broken for damage in damages),
        "highest": damages[0].priority if damages else "",
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every case and write the result."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.victims", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the small cases only")
    parser.add_argument("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="part of the file's name")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the result")
    options = parser.parse_args(arguments)
    noise, rows = measure_noise(), []
    print("| gang and cluster | work, ms | pods | gangs broken | highest priority |")
    print("|---|---|---|---|---|")
    for case in list_cases():
        if options.quick and not case.quick:
            continue
        cluster = case.build()
        found = measure(case, cluster)
        rows.append({**describe_case(case, cluster), **found})
        print("|", " | ".join(map(str, (case.name, *found.values()))), "|", flush=True)
    result = {"date": options.date, "machine": describe_machine(), "noise_before": round(noise, 2), "victims": rows}
    path: Path = options.results / f"victims-{options.date}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
