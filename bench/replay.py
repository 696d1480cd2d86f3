"""Replay upstream's own benchmark of gangs: its cases with native gangs, and with Serried.

The cases are those of Kubernetes 1.37.1, in test/integration/scheduler_perf/podgroup: gangscheduling and tas, each in
its performance-config.yaml. Sizes are upstream's: nodes of 4 CPUs and 32 GiB, a hundred in each rack, PodGroups whose
minCount is their size, pods of 100m and 100 MiB. Upstream runs everything in one process; here each component is a
process, and they share the machine's cores. So `--share` creates only a part of the PodGroups, and the table has
upstream's number of pods, too. Not replayed are the cases of 6,000 and 9,000 pods, which only have more PodGroups, and
those of basicscheduling, which have no gangs. Those of workload_preemption are in bench.preemption.

    python -m bench.replay                            a third of the PodGroups on 5,000 nodes, 1 repetition
    python -m bench.replay --share 1 --queue live     all of them
    python -m bench.replay --quick                    upstream's small cases, as they are, on 100 nodes

As upstream does, pods are created while the schedulers work; in the rows with `all waiting` they exist before. The runs
are made by bench.throughput. JSON goes to `bench/results/`, the table to standard output.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.cluster import Spec
from bench.cluster.nodes import RACK
from bench.cluster.progress import stderr_report
from bench.comparison import WAITING, find_disturbances, summarize
from bench.contenders import NATIVE, QPS, SERRIED, Contender, Workload
from bench.load.objects import Load, make_gangs
from bench.load.run import measure_all
from bench.machine import QUIET, describe_machine
from bench.throughput import RESULTS, Bench, Plan

NODES = 5000
_SMALL = 100
_NODES_PER_RACK = 100
_GANGS, _RACKS = "GangScheduling", "TopologyAwareScheduling"


@dataclass(frozen=True, slots=True)
class Replayed(Contender):
    """A contender whose cluster has upstream's kind of nodes, and a zone for each rack."""

    def make_spec(self, nodes: int) -> Spec:
        """Return a cluster of ``nodes`` nodes of 4 CPUs, 32 GiB and 110 pods."""
        racks = max(2, nodes // _NODES_PER_RACK)
        spec = Contender.make_spec(self, nodes)
        return replace(spec, racks=racks, blocks=racks, zones=racks, node_cpu="4", node_memory="32Gi")


@dataclass(frozen=True, slots=True)
class Case(Workload):
    """One of upstream's workloads, or a part of it."""

    upstream_pods: int = 0
    """The number of pods of the whole workload in upstream's benchmark."""

    def shrink(self, share: int) -> "Case":
        """Return the case with one in ``share`` of its gangs, but at least one."""
        gangs = self.load.gangs[: max(1, len(self.load.gangs) // share)]
        return replace(self, load=replace(self.load, gangs=gangs))

    def with_full_queue(self) -> "Case":
        """Return the case with all pods created before the schedulers start."""
        return replace(self, name=f"{self.name}{WAITING}", queue="full")


def _case(test: str, workload: str, gangs: int, size: int) -> Case:
    load = Load(gangs=make_gangs(gangs, size, RACK if test == _RACKS else ""), cpu="100m", memory="100Mi")
    return Case(f"{test}/{workload}", "racks" if test == _RACKS else "gangs", load, upstream_pods=load.pods)


CASES = (
    _case(_GANGS, "5000Nodes_1000Gangs_3000Pods", 1000, 3),
    _case(_GANGS, "5000Nodes_3Gangs_3000Pods_1000PerGroup", 3, 1000),
    _case(_RACKS, "5000Nodes_750Gangs_3000Pods", 750, 4),
    _case(_RACKS, "5000Nodes_3Gangs_3000Pods_1000PerGroup", 3, 1000),
)
SMALL = (_case(_GANGS, "100Nodes_10Gangs", 10, 3), _case(_RACKS, "100Nodes_10Gangs", 10, 3))
CONTENDERS = tuple(
    Replayed(one.name, one.title, one.scheduler, one.processes, one.cluster) for one in (NATIVE, SERRIED)
)


def choose_cases(cases: Sequence[Case], share: int, queue: str) -> tuple[Case, ...]:
    """Return the cases to run, each with one in ``share`` of its gangs.

    ``queue`` is ``live`` for pods that are created while the schedulers work, ``full`` for pods that all exist before,
    or ``both``.
    """
    parts = [case.shrink(share) for case in cases]
    waiting = [case.with_full_queue() for case in parts]
    return (*(parts if queue != "full" else ()), *(waiting if queue != "live" else ()))


def find_ratios(summary: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return median pods per second divided by those of native gangs, by case and contender."""
    rates = {(row["workload"], row["contender"]): row["pods_per_second"]["median"] for row in summary}
    found: dict[str, dict[str, float]] = {}
    for (case, contender), rate in rates.items():
        if contender != NATIVE.name and (native := rates.get((case, NATIVE.name))):
            found.setdefault(case, {})[contender] = round(rate / native, 2)
    return found


def render_table(result: Mapping[str, Any]) -> str:
    """Return a Markdown table with a line for each case. The cells of a contender that left pods unbound are empty."""
    rates = {
        (row["workload"], row["contender"]): row["pods_per_second"]["median"]
        for row in result["summary"]
        if not row["unbound"]
    }
    lines = [
        "| upstream's case | its pods | pods here | native, pods/s | Serried | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for case in result["cases"]:
        cells = [case["name"], f"{case['upstream_pods']:,}", f"{case['pods']:,}"]
        for contender in (NATIVE.name, SERRIED.name):
            rate = rates.get((case["name"], contender))
            cells.append("" if rate is None else f"{rate:.0f}")
            if contender != NATIVE.name:
                ratio = result["ratios"].get(case["name"], {}).get(contender)
                cells.append("" if rate is None or ratio is None else f"{ratio:g}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the cases and write the result.

    Return 1 if measuring failed, or if Serried left pods unbound or split a gang over racks; else 0.
    """
    options = _parse(arguments)
    cases = choose_cases(SMALL if options.quick else CASES, options.share, options.queue)
    contenders = tuple(contender for contender in CONTENDERS if contender.name in options.only)
    plan = Plan(
        contenders, cases, options.nodes, 0, options.repetitions, seconds=options.seconds, attempts=options.attempts
    )
    bench = Bench(plan, stderr_report())
    code = measure_all(bench.measure, [contender.make_spec(plan.nodes).name for contender in contenders])
    return max(code, _publish(bench, cases, options)) if bench.runs else code


def _publish(bench: Bench, cases: Sequence[Case], options: argparse.Namespace) -> int:
    summary = summarize(bench.runs)
    result = {
        "date": options.date,
        "machine": describe_machine(),
        "kubernetes": CONTENDERS[0].make_spec(options.nodes).kubernetes,
        "nodes": options.nodes,
        "share": options.share,
        "qps": QPS,
        "noise_before": [round(share, 2) for share in bench.noise],
        "disturbances": find_disturbances(bench.runs, QUIET),
        "cases": [
            {"name": case.name, "pods": case.load.pods, "upstream_pods": case.upstream_pods, "queue": case.queue}
            for case in cases
        ],
        "ratios": find_ratios(summary),
        "summary": summary,
        "runs": [asdict(run) for run in bench.runs],
    }
    path: Path = options.results / f"{options.name}-{options.date}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(render_table(result))
    for disturbance in result["disturbances"]:
        print(f"note: {disturbance}", file=sys.stderr)
    print(f"written to {path}", file=sys.stderr)
    ours = [row for row in summary if row["contender"] != NATIVE.name]
    return int(any(row["unbound"] or row["split_gangs"] for row in ours))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.replay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [contender.name for contender in CONTENDERS]
    add = parser.add_argument
    add("--quick", action="store_true", help=f"upstream's small cases on {_SMALL} nodes, all of their pods")
    add("--nodes", type=int, default=NODES)
    add("--share", type=int, default=3, help="take one part of so many of each case's gangs")
    add("--queue", choices=["live", "full", "both"], default="both", help="pods come while schedulers work, or before")
    add("--repetitions", type=int, default=1)
    add("--seconds", type=float, default=120.0, help="how long one load may take")
    add("--attempts", type=int, default=1, help="how often a run that other work disturbs is made, at most")
    add("--only", nargs="+", choices=names, default=names, help="leave the others out")
    add("--name", default="replay", help="first part of the result's file name")
    add("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="second part (default: today)")
    add("--results", type=Path, default=RESULTS, help="directory of the result")
    options = parser.parse_args(arguments)
    if options.quick:
        options.nodes, options.share = min(options.nodes, _SMALL), 1
    return options


if __name__ == "__main__":
    sys.exit(main())
