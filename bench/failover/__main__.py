"""How long nothing is bound after whoever leads was struck, in each way, with the shipped Pods and their probes.

Two pairs of scheduler and extender run on a control plane, each under a stand-in of a kubelet. A gang is created, the
leader struck while it is under way, and another gang created: what is told is the time to its first Binding, and to the
last of both. Several control planes are struck at the same time, for most of the time is waiting. JSON goes to
`bench/results/`, the table to standard output.

    python -m bench.failover                      all ways, 4 repetitions on each of 3 control planes
    python -m bench.failover --only frozen loop   some ways
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.cluster import Cluster, ClusterError, Spec
from bench.cluster.cluster import down
from bench.cluster.progress import Report, stderr_report
from bench.failover.pairs import Pairs
from bench.failover.run import Strike, strike
from bench.failover.ways import WAYS
from bench.machine import describe_machine, measure_noise

RESULTS = Path(__file__).parents[1] / "results"
BOUND_SECONDS = 20.0
"""The Lease's duration and five seconds."""


def spec_of(lane: int) -> Spec:
    """A small cluster."""
    return Spec(name=f"failover-{lane}", nodes=12, racks=4, serried=False, hold="filter")


def run_lane(lane: int, ways: Sequence[str], repetitions: int, report: Report) -> list[Strike]:
    """All strikes on one control plane."""
    seen: list[Strike] = []
    cluster = Cluster.up(spec_of(lane))
    try:
        with tempfile.TemporaryDirectory(prefix="serried-failover-") as directory:
            pairs = Pairs(cluster, Path(directory))
            try:
                for _ in range(2):
                    pairs.run_another()
                for repetition in range(repetitions):
                    for name in ways:
                        seen.append(strike(pairs, name, WAYS[name], f"r{repetition}-{name}"))
                        report(f"{lane}.{repetition} {seen[-1]}")
            finally:
                pairs.close()
    except ClusterError as error:
        report(f"error: {error}")
    finally:
        cluster.down()
    return seen


def summarize(seen: Sequence[Strike], ways: Sequence[str]) -> list[dict[str, Any]]:
    """One row a way."""
    rows = []
    for name in ways:
        found = [each for each in seen if each.way == name]
        if not found:
            continue
        first = sorted(each.first for each in found)
        rows.append(
            {
                "case": WAYS[name].title,
                "strikes": len(found),
                "first_p50": _pick(first, 0.5),
                "first_p99": _pick(first, 0.99),
                "whole_p99": max(each.whole for each in found),
                "half_longest": max(each.half for each in found),
                "leader_changed": sum(each.leader_changed for each in found),
            }
        )
    return rows


def _pick(ordered: Sequence[float], share: float) -> float:
    """The value that this share does not exceed; of fewer than a hundred, the 99th is the last."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the exit code is 1 if something was bound too late, twice, or not at all."""
    options = _parser().parse_args(arguments)
    ways, report = options.only or list(WAYS), stderr_report()
    noise = measure_noise()
    try:
        with ThreadPoolExecutor(options.planes) as lanes:
            runs = [lanes.submit(run_lane, lane, ways, options.repetitions, report) for lane in range(options.planes)]
        seen = [strike for run in runs for strike in run.result()]
    finally:
        for lane in range(options.planes):
            down(spec_of(lane).name)
    rows = summarize(seen, ways)
    defects = [defect for each in seen for defect in each.defects]
    defects += [f"{each.way}: {each.first} s" for each in seen if each.first > BOUND_SECONDS]
    expected = len(ways) * options.repetitions * options.planes
    result = {
        "date": options.date,
        "machine": describe_machine(),
        "kubernetes": spec_of(0).kubernetes,
        "noise_before": round(noise, 2),
        "control_planes": options.planes,
        "bound_seconds": BOUND_SECONDS,
        "strikes": len(seen),
        "missing": expected - len(seen),
        "defects": defects,
        "rows": rows,
        "seen": [asdict(each) for each in seen],
    }
    path: Path = options.results / f"failover-{options.date}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    for row in rows:
        print(" | ".join(str(cell) for cell in row.values()))
    for defect in defects:
        print(f"DEFECT: {defect}", file=sys.stderr)
    print(f"written to {path}", file=sys.stderr)
    return 1 if defects or len(seen) < expected else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.failover", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=list(WAYS), help="these ways alone")
    add("--repetitions", type=int, default=4, help="on each control plane")
    add("--planes", type=int, default=3, help="how many control planes are struck at the same time")
    add("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="part of the result's file name")
    add("--results", type=Path, default=RESULTS, help="directory of the result")
    return parser


if __name__ == "__main__":
    sys.exit(main())
