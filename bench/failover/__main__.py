"""Measure for how long no pod is bound after the leader failed, for each kind of failure (way), with the shipped Pods.

Two pairs of scheduler and extender run on a control plane, each under a simulated kubelet with the shipped probes. A
gang is created; the leader is made to fail (a strike) while the gang is being planned or bound; then another gang is
created. Measured are the seconds from the strike to the first Binding of the second gang, and to the last Binding of
both. The API server's audit log shows whether a pod was bound twice, and how many Bindings were rejected. A strike is
mostly waiting, so several control planes are measured at the same time. JSON goes to `bench/results/`, the table to
standard output.

    python -m bench.failover                      all ways, 4 repetitions on each of 3 control planes
    python -m bench.failover --only frozen loop   some ways
    python -m bench.failover --minutes 10         starts no strike after 10 minutes
"""

import argparse
import http.client
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.cluster import Cluster, ClusterError, Spec
from bench.cluster.api import ApiError
from bench.cluster.cluster import down
from bench.cluster.progress import Report, stderr_report
from bench.failover.bindings import make_binding_log_flags
from bench.failover.bounds import bounds, read_pace
from bench.failover.pairs import Pairs
from bench.failover.rolling import Rolled, roll
from bench.failover.run import Strike, strike
from bench.failover.ways import WAYS
from bench.machine import describe_machine, measure_noise

RESULTS = Path(__file__).parents[1] / "results"
BOUND_SECONDS = 20.0
"""The longest time in seconds that a failover may take: the Lease's duration plus 5 s."""

_FAILURES = (ClusterError, ApiError, OSError, http.client.HTTPException)
"""The errors that end one strike; the others are made all the same."""


def make_spec(lane: int, flags: tuple[str, ...] = ()) -> Spec:
    """Return a small cluster without Serried, with more flags of its API server."""
    return Spec(name=f"failover-{lane}", nodes=12, racks=4, serried=False, hold="filter", server_flags=flags)


@dataclass(slots=True)
class Lane:
    """The strikes on one control plane. Several lanes run at the same time, each in a thread."""

    number: int
    strikes: list[Strike] = field(default_factory=list)
    rolled: list[Rolled] = field(default_factory=list)
    """The rolling update after the strikes; empty if it failed."""

    failures: list[str] = field(default_factory=list)
    """One sentence for each error, and for each strike after which gangs were not bound or pairs not ready in time."""


def run_lane(lane: Lane, ways: Sequence[str], repetitions: int, until: float, report: Report) -> None:
    """Make all strikes on one control plane, and then a rolling update. Errors are added to the lane's failures.

    No strike begins after ``until`` (monotonic clock).
    """
    try:
        with tempfile.TemporaryDirectory(prefix="serried-failover-") as directory:
            cluster = Cluster.up(make_spec(lane.number, make_binding_log_flags(Path(directory))))
            try:
                pairs = Pairs(cluster, Path(directory))
                try:
                    pairs.replace()
                    _strike_all(lane, pairs, order_ways(ways, repetitions, lane.number), until, report)
                    lane.rolled.append(roll(pairs, "rolling"))
                    report(f"{lane.number}: {lane.rolled[-1]}")
                finally:
                    pairs.close()
            finally:
                cluster.down()
    except _FAILURES as error:
        lane.failures.append(f"control plane {lane.number}: {error}")
        report(f"error: {lane.failures[-1]}")


def _strike_all(lane: Lane, pairs: Pairs, names: Sequence[str], until: float, report: Report) -> None:
    for number, name in enumerate(names):
        if time.monotonic() > until:
            return
        try:
            lane.strikes.append(strike(pairs, name, WAYS[name], f"s{number}-{name}"))
            report(f"{lane.number}: {lane.strikes[-1]}")
        except _FAILURES as error:
            lane.failures.append(f"{name}: {error}")
            report(f"error: {lane.failures[-1]}")
            pairs.replace()


def order_ways(ways: Sequence[str], repetitions: int, lane: int) -> list[str]:
    """Return all ways, repeated. Each lane begins with another way, so that lanes do not strike alike at a time."""
    begin = lane * 3 % len(ways)
    return [*ways[begin:], *ways[:begin]] * repetitions


def summarize(seen: Sequence[Strike], ways: Sequence[str], bounds: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return a row for each way. ``bounds`` has the longest time of each way, as computed from the manifests."""
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
                "first_bound": round(bounds[name], 1),
                "whole_p99": max(each.whole for each in found),
                "half_longest": max(each.half for each in found),
                "leader_changed": sum(each.leader_changed for each in found),
                "refused": sum(each.refused for each in found),
            }
        )
    return rows


def summarize_rolled(rolled: Sequence[Rolled]) -> dict[str, Any]:
    """Return the figures of all rolling updates together; empty if there was none."""
    if not rolled:
        return {}
    return {
        "updates": len(rolled),
        "gangs": sum(each.gangs for each in rolled),
        "slowest": max(each.slowest for each in rolled),
        "pause": max(each.pause for each in rolled),
        "half_longest": max(each.half for each in rolled),
        "refused": sum(each.refused for each in rolled),
    }


def _pick(ordered: Sequence[float], share: float) -> float:
    """Return the percentile of sorted values. Of fewer than a hundred values, the 99th percentile is the last."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the result. Return 1 if pods were bound too late, twice, or not at all; else 0."""
    options = _parser().parse_args(arguments)
    ways = options.only or list(WAYS)
    report = stderr_report()
    noise = measure_noise()
    until = time.monotonic() + 60 * options.minutes
    lanes = [Lane(number) for number in range(options.planes)]
    try:
        with ThreadPoolExecutor(options.planes) as threads:
            for run in [threads.submit(run_lane, lane, ways, options.repetitions, until, report) for lane in lanes]:
                run.result()
    finally:
        for lane in lanes:
            down(make_spec(lane.number).name)
    result = {"date": options.date, "noise_before": round(noise, 2), **describe(lanes, ways)}
    path: Path = options.results / f"failover-{options.date}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    for row in result["rows"]:
        print(" | ".join(str(cell) for cell in row.values()))
    for defect in result["defects"]:
        print(f"DEFECT: {defect}", file=sys.stderr)
    print(f"written to {path}", file=sys.stderr)
    return 1 if result["defects"] or not result["strikes"] else 0


def describe(lanes: Sequence[Lane], ways: Sequence[str]) -> dict[str, Any]:
    """Return the result of all lanes as JSON."""
    seen = [each for lane in lanes for each in lane.strikes]
    return {
        "machine": describe_machine(),
        "kubernetes": make_spec(0).kubernetes,
        "control_planes": len(lanes),
        "bound_seconds": BOUND_SECONDS,
        "strikes": len(seen),
        "first_p99": _pick(sorted(each.first for each in seen), 0.99) if seen else None,
        "rolling": summarize_rolled([each for lane in lanes for each in lane.rolled]),
        "defects": find_defects(lanes),
        "rows": summarize(seen, ways, bounds(read_pace())),
        "seen": [asdict(each) for each in seen],
    }


def find_defects(lanes: Sequence[Lane]) -> list[str]:
    """Return a sentence for each broken promise.

    A pod was bound twice, a gang was bound in part for longer than a failover may take, or the first Binding came too
    late or never.
    """
    seen = [each for lane in lanes for each in lane.strikes]
    defects = [failure for lane in lanes for failure in lane.failures]
    observed: list[tuple[str, Strike | Rolled]] = [(each.way, each) for each in seen]
    observed += [("rolling update", each) for lane in lanes for each in lane.rolled]
    for way, figures in observed:
        defects += [f"{way}: {defect}" for defect in figures.defects]
        defects += [f"{way}: a gang was bound in part for {figures.half} s"] if figures.half > BOUND_SECONDS else []
    return defects + [
        f"{each.way}: the first Binding after {each.first} s" for each in seen if each.first > BOUND_SECONDS
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.failover", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", choices=list(WAYS), help="these ways alone")
    add("--repetitions", type=int, default=4, help="on each control plane")
    add("--minutes", type=float, default=math.inf, help="no strike begins later")
    add("--planes", type=int, default=3, help="how many control planes are struck at the same time")
    add("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="part of the result's file name")
    add("--results", type=Path, default=RESULTS, help="directory of the result")
    return parser


if __name__ == "__main__":
    sys.exit(main())
