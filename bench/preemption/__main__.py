"""Measure preemption by gangs of higher priority: the victims, and the seconds until the gangs are bound.

Compared are native preemption, and Serried's with members held by filter and by scheduling gates. Every contender gets
a new cluster in every repetition, one cluster at a time. There the same pods run on the same nodes; they are created
with a node name, so no scheduler binds them. Then the same gangs are created. A small case that is not counted warms
the cluster up. JSON goes to `bench/results/`, the table to standard output.

    python -m bench.preemption            100 nodes, all cases, 3 repetitions
    python -m bench.preemption --quick    a small case, 1 repetition
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop

from bench.cluster import Cluster, Spec
from bench.cluster.progress import Report, stderr_report
from bench.comparison import Run, find_disturbances
from bench.contenders import GATED, NATIVE, SERRIED, Contender, interleave
from bench.load.requests import read_writes
from bench.load.run import clear, measure_all, open_client
from bench.load.usage import read_usage
from bench.machine import QUIET, describe_machine, measure_noise
from bench.preemption.cases import CASES, NODE_CPU, NODES, QUICK, WARM_UP, Case
from bench.preemption.figures import compute_figures, find_defects, render_table, summarize
from bench.preemption.objects import CaseRun, priority_classes
from bench.preemption.run import create_preemptors, fill, settle
from serried.kube.client import ApiClient

RESULTS = Path(__file__).parents[1] / "results"
CONTENDERS = (NATIVE, SERRIED, GATED)
_PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


@dataclass(frozen=True, slots=True)
class Plan:
    """One measurement as the command line describes it."""

    cases: tuple[Case, ...]
    repetitions: int
    seconds: float
    """The longest time of one case, in seconds. Pods that are unbound by then stay so."""

    attempts: int
    """The number of tries for a run that other work disturbs."""


class Bench:
    """Carries out a plan."""

    def __init__(self, plan: Plan, report: Report) -> None:
        self.runs: list[Run] = []
        """The finished runs. They remain after an interruption, so that it still gives a result."""

        self.noise: list[float] = []
        """The share of the cores that was busy before each cluster."""

        self._plan = plan
        self._report = report

    def measure(self) -> None:
        """Measure every contender in every repetition."""
        for repetition, contender in interleave(CONTENDERS, self._plan.repetitions):
            self._report(f"repetition {repetition + 1} of {self._plan.repetitions}: {contender.title}")
            self.measure_contender(contender, repetition)

    def measure_contender(self, contender: Contender, repetition: int) -> None:
        """Measure all cases with one contender, on a new cluster."""
        self.noise.append(measure_noise())
        cluster = Cluster.up(make_spec(contender))
        try:
            for priority_class in priority_classes():
                cluster.api.post(_PRIORITY_CLASSES, priority_class)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._measure_on(cluster, contender, repetition))
        finally:
            cluster.down()

    async def _measure_on(self, cluster: Cluster, contender: Contender, repetition: int) -> None:
        async with open_client(cluster.kubeconfig) as client:
            await self._measure_case(client, cluster, contender, WARM_UP, repetition)
            for case in self._plan.cases:
                run = await self._measure_undisturbed(client, cluster, contender, case, repetition)
                self.runs.append(run)
                self._report(f"  {case.name}: {run.figures}, other work took {run.others_cpu:.1f} CPU seconds")

    async def _measure_undisturbed(
        self, client: ApiClient, cluster: Cluster, contender: Contender, case: Case, repetition: int
    ) -> Run:
        """Repeat a run until other work does not disturb it. If all attempts are disturbed, return the least so."""
        runs: list[Run] = []
        for _ in range(self._plan.attempts):
            runs.append(await self._measure_case(client, cluster, contender, case, repetition))
            if runs[-1].others_share <= QUIET:
                return runs[-1]
        return min(runs, key=lambda run: run.others_share)

    async def _measure_case(
        self, client: ApiClient, cluster: Cluster, contender: Contender, case: Case, repetition: int
    ) -> Run:
        place = self._plan.cases.index(case) if case in self._plan.cases else "w"
        case_run = CaseRun(case, f"r{repetition}-c{place}", contender.scheduler)
        pids = cluster.pids | {"load generator": os.getpid()}
        async with fill(client, case_run) as watch:
            written = await read_writes(client)
            used = read_usage(pids)
            begun = time.monotonic()
            await create_preemptors(client, case_run, watch, self._plan.seconds)
            wall = time.monotonic() - begun
            spent = read_usage(pids).since(used)
            writes = await read_writes(client) - written
            await settle()
            figures = compute_figures(case, watch.candidates.values(), watch.preemptors.values(), begun)
        await clear(client, "native")
        await settle()
        return Run(
            contender=contender.name,
            workload=case.name,
            repetition=repetition,
            figures=figures.describe(),
            wall_seconds=round(wall, 3),
            cpu_seconds={name: round(seconds, 2) for name, seconds in spent.by_name.items()},
            others_cpu=round(spent.others, 2),
            cores=os.cpu_count() or 1,
            writes=dict(writes.most_common()),
        )


def make_spec(contender: Contender) -> Spec:
    """Return the cluster of a contender: nodes as in upstream's benchmark, in ten racks."""
    spec = contender.make_spec(NODES)
    return replace(spec, racks=NODES // 10, node_cpu=NODE_CPU, node_memory="32Gi", name=f"preempt-{spec.name}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the result. Return 1 if measuring failed or a promise was broken, else 0."""
    options = _parser().parse_args(arguments)
    cases, repetitions = (QUICK, 1) if options.quick else (options.cases or CASES, options.repetitions)
    bench = Bench(Plan(cases, repetitions, options.seconds, options.attempts), stderr_report())
    code = measure_all(bench.measure, [make_spec(contender).name for contender in CONTENDERS])
    return max(code, publish(bench, options)) if bench.runs else code


def publish(bench: Bench, options: argparse.Namespace) -> int:
    """Write the result and print the table. Return 1 if a gang was not bound, or if one was evicted in part; else 0."""
    summary = summarize(bench.runs)
    result = _describe(bench, options.date, summary)
    path: Path = options.results / f"preemption-{options.date}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(render_table(summary))
    for defect in result["defects"]:
        print(f"DEFECT: {defect}", file=sys.stderr)
    for disturbance in result["disturbances"]:
        print(f"note: {disturbance}", file=sys.stderr)
    print(f"written to {path}", file=sys.stderr)
    return 1 if any(row["unbound"] or row["torn"] for row in summary) else 0


def _describe(bench: Bench, date: str, summary: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "date": date,
        "machine": describe_machine(),
        "kubernetes": make_spec(NATIVE).kubernetes,
        "native_gates": make_spec(NATIVE).stock_gates,
        "nodes": NODES,
        "noise_before": [round(share, 2) for share in bench.noise],
        "disturbances": find_disturbances(bench.runs, QUIET),
        "defects": find_defects(summary),
        "summary": summary,
        "runs": [asdict(run) for run in bench.runs],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.preemption", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="a small case, one repetition")
    add("--repetitions", type=int, default=3)
    add("--cases", type=_pick, help="only these, by their numbers, the first is 0, with commas between them")
    add("--seconds", type=float, default=120.0, help="how long one case may take")
    add("--attempts", type=int, default=2, help="how often a run that other work disturbs is made, at most")
    add("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="part of the result's file name")
    add("--results", type=Path, default=RESULTS, help="directory of the result")
    return parser


def _pick(numbers: str) -> tuple[Case, ...]:
    return tuple(CASES[int(number)] for number in numbers.split(","))


if __name__ == "__main__":
    sys.exit(main())
