"""Measure pods bound per second: native gangs and gangs by Serried, plain pods with and without Serried (`make bench`).

Every contender gets a new cluster in every repetition, one cluster at a time, with the same rate limit for clients. A
small load that is not counted warms it up. JSON goes to `bench/results/`, the table to standard output.

    python -m bench.throughput            1,000 nodes, 3 repetitions
    python -m bench.throughput --quick    100 nodes, 1 repetition, fewer gangs
    python -m bench.throughput --name throughput-beside --only native serried serried-beside
    python -m bench.throughput --nodes 5000 --name throughput-plain-5000 --only plain plain-isolated plain-asked
    python -m bench.throughput --nodes 5000 --filled 70 --queue full --name throughput-filled-5000
    python -m bench.throughput --only serried plain-isolated --loads thousand steady turns beside

With `--filled` pods use that percentage of all CPUs before the load, a random part of each node. CPU seconds count from
the start of the schedulers. The column `speed` is the time of a fixed computation: compare only rows with about the
same speed.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import uvloop

from bench import comparison
from bench.cluster import Cluster
from bench.cluster.nodes import RACK
from bench.cluster.progress import Report, stderr_report
from bench.comparison import WAITING, Run
from bench.contenders import ALL, FULL, ON_REQUEST, QPS, QUICK, USUAL, Contender, Part, Workload, interleave
from bench.load.objects import Load, make_gangs
from bench.load.requests import read_writes
from bench.load.run import clear, fill, measure_all, open_client, read_domains, run_load
from bench.load.usage import read_usage
from bench.machine import QUIET, describe_machine, measure_noise, measure_speed
from serried.kube.client import ApiClient

RESULTS = Path(__file__).with_name("results")
_SETTLE_SECONDS = 2.0
"""Pause after each load, in which the schedulers observe its deletion."""

_NAMES = [contender.name for contender in ALL]
_CHOICES = [contender.name for contender in (*ALL, *ON_REQUEST)]


@dataclass(frozen=True, slots=True)
class Plan:
    """One measurement as the command line describes it."""

    contenders: tuple[Contender, ...]
    workloads: tuple[Workload, ...]
    nodes: int
    filled: int
    """Percentage of the CPUs that is in use before each load."""

    repetitions: int
    seconds: float
    """The longest time of one load, in seconds. Pods that are unbound by then stay so."""

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
        self._domains: dict[str, str] = {}
        self._report = report

    def measure(self) -> None:
        """Measure every contender in every repetition, each time on a new cluster."""
        for repetition, contender in interleave(self._plan.contenders, self._plan.repetitions):
            self.noise.append(measure_noise())
            self._report(f"repetition {repetition + 1} of {self._plan.repetitions}: {contender.title}")
            cluster = Cluster.up(contender.make_spec(self._plan.nodes))
            try:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(self._measure_on(cluster, contender, repetition))
            finally:
                cluster.down()

    async def _measure_on(self, cluster: Cluster, contender: Contender, repetition: int) -> None:
        async with open_client(cluster.kubeconfig) as client:
            self._domains = await read_domains(client, RACK)
            if self._plan.filled:
                self._report(f"  filling {await fill(client, self._plan.filled)} nodes by {self._plan.filled} %")
            await self._warm_up(client, contender)
            for workload in filter(contender.accepts, self._plan.workloads):
                run = await self._measure_undisturbed(client, cluster, contender, workload, repetition)
                self.runs.append(run)
                found = run.figures
                self._report(
                    f"  {workload.name}: {found['bound']} of {found['pods']} pods in {found['seconds']:.1f} s,"
                    f" {found['pods_per_second']:.1f} pods/s, other work took {run.others_cpu:.1f} CPU seconds"
                )

    async def _measure_undisturbed(
        self, client: ApiClient, cluster: Cluster, contender: Contender, workload: Workload, repetition: int
    ) -> Run:
        """Repeat a run until other work does not disturb it. If all attempts are disturbed, return the least so."""
        runs: list[Run] = []
        for _ in range(self._plan.attempts):
            run = await self._measure_workload(client, cluster, contender, workload, repetition)
            await self._clear(client, contender)
            if run.others_share <= QUIET:
                return run
            runs.append(run)
        return min(runs, key=lambda run: run.others_share)

    async def _measure_workload(
        self, client: ApiClient, cluster: Cluster, contender: Contender, workload: Workload, repetition: int
    ) -> Run:
        load = contender.make_load(workload, f"r{repetition}-w{self._plan.workloads.index(workload)}")
        pids = cluster.pids | {"load generator": os.getpid()}
        paused = [pids[name] for name in contender.processes] if workload.queue == "full" else []
        written, speed, begun = await read_writes(client), measure_speed(), [(time.monotonic(), read_usage(pids))]

        def begin() -> None:
            begun.append((time.monotonic(), read_usage(pids)))

        figures = await run_load(client, load, self._domains, self._plan.seconds, paused, begin)
        start, used = begun[-1]
        wall, spent = time.monotonic() - start, read_usage(pids).since(used)
        writes = await read_writes(client) - written
        return Run(
            contender=contender.name,
            workload=workload.name,
            repetition=repetition,
            figures=figures.describe(),
            wall_seconds=round(wall, 3),
            cpu_seconds={name: round(seconds, 2) for name, seconds in spent.by_name.items()},
            others_cpu=round(spent.others, 2),
            cores=os.cpu_count() or 1,
            writes=dict(writes.most_common()),
            speed_ms=round(speed, 1),
        )

    async def _warm_up(self, client: ApiClient, contender: Contender) -> None:
        gangs = make_gangs(1 if contender.cluster.isolated or not contender.plain else 0, 10)
        load = contender.make_load(Workload("", "plain", Load(plain=20 - 10 * len(gangs), gangs=gangs)), "warm-up")
        await run_load(client, load, self._domains, self._plan.seconds)
        await self._clear(client, contender)

    async def _clear(self, client: ApiClient, contender: Contender) -> None:
        await clear(client, contender.cluster.api)
        await asyncio.sleep(_SETTLE_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the result. Return 1 if measuring failed, or if pods were unbound or gangs split; else 0."""
    options = _parser().parse_args(arguments)
    plan = _make_plan(options)
    bench = Bench(plan, stderr_report())
    code = measure_all(bench.measure, [contender.make_spec(plan.nodes).name for contender in plan.contenders])
    return max(code, _publish(bench, options)) if bench.runs else code


def _publish(bench: Bench, options: argparse.Namespace) -> int:
    summary = comparison.summarize(bench.runs)
    defects = comparison.find_defects(summary)
    result = _describe(bench, options, summary, defects)
    path: Path = options.results / f"{options.name}-{options.date}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(comparison.render_table(summary))
    for entry in result["targets"]:
        print("{target}, {contender}: {value:.3g}, wanted {bound:g}".format(**entry), file=sys.stderr)
    for defect in defects:
        print(f"DEFECT: {defect}", file=sys.stderr)
    for disturbance in result["disturbances"]:
        print(f"note: {disturbance}", file=sys.stderr)
    print(f"written to {path}", file=sys.stderr)
    if any(row["unbound"] or row["split_gangs"] for row in summary):
        return 1  # figures of a run that broke a promise must not be published
    return 0


def _describe(
    bench: Bench, options: argparse.Namespace, summary: list[dict[str, Any]], defects: list[str]
) -> dict[str, Any]:
    result = {
        "date": options.date,
        "machine": describe_machine(),
        "kubernetes": ALL[0].make_spec(options.nodes).kubernetes,
        "nodes": options.nodes,
        "filled": options.filled,
        "qps": QPS,
        "noise_before": [round(share, 2) for share in bench.noise],
        "disturbances": comparison.find_disturbances(bench.runs, QUIET),
        "ratios": comparison.ratios(summary),
        "to_plain": comparison.ratios_to_plain(summary),
        "shares": comparison.shares(summary),
        "defects": defects,
        "summary": summary,
        "runs": [asdict(run) for run in bench.runs],
    }
    return result | {"targets": comparison.compute_targets([result])}


def _make_plan(options: argparse.Namespace) -> Plan:
    if options.quick:
        options.nodes, options.repetitions = min(options.nodes, 100), 1
    workloads = QUICK if options.quick else FULL
    twins = {one.name for one in workloads if f"{one.name}{WAITING}" in {other.name for other in workloads}}
    workloads = tuple(
        one
        for one in workloads
        if one.part in options.loads
        and (options.queue in (one.queue, "both") or (one.queue == "live" and one.name not in twins))
    )
    contenders = tuple(contender for contender in (*ALL, *ON_REQUEST) if contender.name in options.only)
    return Plan(
        contenders, workloads, options.nodes, options.filled, options.repetitions, options.seconds, options.attempts
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.throughput", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="100 nodes, one repetition, fewer gangs")
    add("--nodes", type=int, default=1000)
    add("--filled", type=int, default=0, metavar="PERCENT", help="use that much of all CPUs before")
    add("--queue", choices=["live", "full", "both"], default="both", help="pods come while schedulers work, or before")
    add("--loads", nargs="+", choices=get_args(Part), default=USUAL, help="which loads (default: %(default)s)")
    add("--repetitions", type=int, default=3)
    add("--seconds", type=float, default=300.0, help="how long one load may take")
    add("--attempts", type=int, default=3, help="how often a run that other work disturbs is made, at most")
    add("--only", nargs="+", choices=_CHOICES, default=_NAMES, help="leave the others out")
    add("--name", default="throughput", help="first part of the result's file name")
    add("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="second part (default: today)")
    add("--results", type=Path, default=RESULTS, help="directory of the result")
    return parser


if __name__ == "__main__":
    sys.exit(main())
