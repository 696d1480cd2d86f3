"""Measure how long the extender takes to explain why a gang does not fit, and which changes would make it fit.

This work is done for each request of `/debug/groups/NAMESPACE/NAME` (`extender/look/explain.py`), in slices between
which the event loop serves other calls. Measured are the whole work and the longest slice, over a Store in memory.
Times are processor time, so that other work on the machine does not count.

python -m bench.advice           JSON to bench/results/, a table to standard output; milliseconds
"""

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.machine import describe_machine, measure_noise
from extender.look.explain import Finding, Inquiries
from serried.api.names import GroupKey
from tests.support.builders import Builder, node, pod, pod_group
from tests.support.extender_harness import SCHEDULER, Harness

RESULTS = Path(__file__).parent / "results"
_ROUNDS = 5
_NODES = 5_000
_GANGS = 1_000
_MEMBERS = 6
WANTED_LONGEST = 20.0
"""The longest slice that is allowed, in milliseconds: as long as an urgent plan may block the event loop
(`planning_tasks.URGENT_SECONDS`)."""

GANG = GroupKey("default", "g")


@dataclass(frozen=True, slots=True)
class Case:
    """A gang that does not fit."""

    name: str
    members: int
    cpus: Sequence[int]
    """The CPU requests of the members, in cores; members take them in turn."""

    anywhere: bool = False
    """True if the gang has no topology constraint, False if all members need one rack."""


CASES = (
    Case("48 members in one rack", 48, (16,)),
    Case("48 members of 4 shapes in one rack", 48, (16, 15, 14, 13)),
    Case("1,000 members anywhere", 1_000, (16,), anywhere=True),
)


def build_cluster() -> list[Builder]:
    """Return 5,000 nodes of 32 CPUs in racks of 50, of which every 400th is cordoned.

    Nearly each node runs a member of another gang, with a request of 20 CPUs.
    """
    cluster: list[Builder] = []
    for place in range(_NODES):
        built = node(f"n{place:04}").cpu(32).memory("128Gi").rack(f"r{place // 50:03}")
        cluster.append(built.cordoned() if place % 400 == 7 else built)
    homes = iter(range(_GANGS * _MEMBERS))
    for number in range(_GANGS):
        cluster.append(pod_group(f"z{number}").gang(_MEMBERS))
        for member in range(_MEMBERS):
            home = f"n{next(homes) * 7919 % (_NODES - 20):04}"
            running = pod(f"z{number}-{member}").cpu(20).scheduler(SCHEDULER).in_group(f"z{number}")
            cluster.append(running.on(home).priority(5))
    return cluster


def build_gang(case: Case) -> list[Builder]:
    """Return the PodGroup and the pods of the gang that is explained."""
    group = pod_group("g").gang(case.members)
    sizes = [case.cpus[place % len(case.cpus)] for place in range(case.members)]
    pods = [pod(f"g{i}").cpu(size).scheduler(SCHEDULER).in_group("g") for i, size in enumerate(sizes)]
    return [group if case.anywhere else group.topology(), *pods]


async def measure(case: Case) -> dict[str, Any]:
    """Return the medians of `_ROUNDS` runs in milliseconds, and the changes that the advice found."""
    world = Harness(stopwatch=time.thread_time)
    world.add(*build_cluster(), *build_gang(case))
    for _ in range(5):
        world.schedule_groups()
        await world.run_tasks()
    gc.collect()
    gc.freeze()  # as the extender does with its caches
    inquiries = Inquiries(world.core, time.thread_time)
    domains = [await _require_finding(inquiries.diagnose) for _ in range(_ROUNDS)]
    advice = [await _require_finding(inquiries.advise) for _ in range(_ROUNDS)]
    gc.unfreeze()
    await world.close()
    return {
        "domains": round(statistics.median(each.spent_seconds for each in domains) * 1000, 1),
        "domains_longest": round(statistics.median(each.longest_seconds for each in domains) * 1000, 1),
        "advice": round(statistics.median(each.spent_seconds for each in advice) * 1000, 1),
        "advice_longest": round(statistics.median(each.longest_seconds for each in advice) * 1000, 1),
        "complete": all(each.complete for each in advice),
        "found": [change.change.value for change in advice[-1].advice],
    }


async def _require_finding(inquire: Callable[[GroupKey], Any]) -> Finding:
    """Return what an inquiry finds about the gang. Raise RuntimeError if the gang fits: then nothing was measured."""
    found: Finding | None = await inquire(GANG)
    if found is None:
        raise RuntimeError("the gang fits")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every case and write the result. Return 1 if a slice was longer than `WANTED_LONGEST`, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.advice", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="part of the file's name")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the result")
    options = parser.parse_args(arguments)
    noise, rows, missed = measure_noise(), [], []
    print("| gang | domains, ms | longest slice, ms | advice, ms | longest slice, ms | complete | found |")
    print("|---|---|---|---|---|---|---|")
    for case in CASES:
        found = asyncio.run(measure(case))
        rows.append({"case": case.name, **found})
        print("|", " | ".join(map(str, (case.name, *found.values()))), "|", flush=True)
        longest = max(found["domains_longest"], found["advice_longest"])
        if longest > WANTED_LONGEST:
            missed.append(f"{case.name}: a slice of {longest} ms, wanted {WANTED_LONGEST} ms")
    result = {"date": options.date, "machine": describe_machine(), "noise_before": round(noise, 2), "rows": rows}
    path: Path = options.results / f"advice-{options.date}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
