"""Measure the controller in three parts, each on a new cluster: suspended Jobs, running Jobs, and very many Jobs.

JSON goes to `bench/results/`, two tables to standard output: the phases, and the targets with the measured values.

    python -m bench.jobs                  60 s at 100 Jobs/s; 5 to 80 running Jobs/s; 10,000 Jobs at once
    python -m bench.jobs --quick          the same with few Jobs
    python -m bench.jobs --api native     on an API server that serves the Workload API
    python -m bench.jobs --own-core       the API server has one core for itself
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import uvloop

from bench.cluster import Cluster, ClusterError, Spec
from bench.cluster.progress import Report, stderr_report
from bench.cluster.spec import Api
from bench.contenders import QPS
from bench.jobs import verdicts
from bench.jobs.figures import Phase
from bench.jobs.objects import Batch
from bench.jobs.run import Bench, measure_flood, measure_steady, open_bench, pin_api_server
from bench.jobs.verdicts import Verdict
from bench.load.run import StuckError
from bench.machine import QUIET, describe_machine, measure_noise
from serried.kube.errors import ApiError

RESULTS = Path(__file__).parent.parent / "results"
PARTS = ("steady", "running", "flood")
_NODES = 100


class Measurement:
    """Runs the parts one after the other. The results so far remain after an interruption."""

    def __init__(self, options: argparse.Namespace, report: Report) -> None:
        self.phases: list[Phase] = []
        self.verdicts: list[Verdict] = []
        self.noise: list[float] = []
        """The share of the cores that was busy before each part."""

        self.more: dict[str, Any] = {}
        """More keys of the result: memory, rest and restart."""

        self._options, self._report = options, report

    def run(self) -> None:
        """Run the chosen parts, each on a new cluster."""
        parts = {"steady": self._steady, "running": self._running, "flood": self._flood}
        for name in self._options.only:
            self.noise.append(round(measure_noise(), 2))
            self._report(f"{name}, {self._options.api}")
            self._on_cluster(name, parts[name])

    async def _steady(self, bench: Bench) -> None:
        async for phase in measure_steady(bench, self._options.rate, self._options.seconds):
            self._add(phase)
        before, plain, gang, after = self.phases[-4:]
        self.verdicts += [
            *verdicts.judge_creation(gang),
            *verdicts.judge_creates(gang),
            *verdicts.judge_creates(plain),
            *verdicts.judge_own_cpu(gang),
            *verdicts.judge_own_syncs(gang, plain),
            *verdicts.judge_manager_syncs([before, after], plain),
            *verdicts.judge_manager_syncs([before, after], gang),
        ]

    async def _running(self, bench: Bench) -> None:
        rungs: list[Phase] = []
        for rate in self._options.rates:
            batch = Batch(f"running-{rate:.0f}", round(rate * self._options.rung), state="running")
            rungs.append(await bench.measure(batch, rate))
            self._add(rungs[-1])
            if not verdicts.is_sustained(rungs[-1]):
                break
        self.verdicts += verdicts.judge_ladder(rungs)

    async def _flood(self, bench: Bench) -> None:
        count = self._options.jobs
        phase, memory, rest, restart = await measure_flood(bench, count, self._options.rest)
        self._add(phase)
        self.more |= {"memory": asdict(memory), "rest": asdict(rest), "restart": asdict(restart)}
        self.verdicts += [
            *verdicts.judge_flood(phase),
            *verdicts.judge_creates(phase),
            *verdicts.judge_memory(count, memory),
            *verdicts.judge_rest(rest),
            *verdicts.judge_restart(count, restart),
        ]

    def _add(self, phase: Phase) -> None:
        self.phases.append(phase)
        text = f"{phase.jobs} Jobs at {phase.rate:.1f}/s, other work took {phase.others_share:.0%} of the machine"
        self._report(f"  {phase.name}: {text}")

    def _on_cluster(self, part: str, measure: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
        nodes = _NODES if part == "running" else 2
        name = f"bench-jobs-{part}-{os.getpid()}"
        options = self._options
        spec = Spec(name, nodes, racks=2, blocks=1, api=options.api, qps=QPS, job_syncs=options.job_syncs)
        cluster = Cluster.up(spec)
        try:
            with (
                pin_api_server(cluster.pids) if options.own_core else nullcontext(),
                asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            ):
                runner.run(_measure(cluster, measure, options.patience))
        finally:
            cluster.down()


async def _measure(cluster: Cluster, measure: Callable[[Bench], Coroutine[Any, Any, None]], patience: float) -> None:
    async with open_bench(cluster, patience) as bench:
        await measure(bench)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the result. Return 1 if measuring failed, else 0: a missed target is no error."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _parse(arguments)
    measurement = Measurement(options, stderr_report())
    code = 0
    try:
        measurement.run()
    except* (ClusterError, ApiError, StuckError, OSError) as errors:
        print(f"error: {errors.exceptions[0]}", file=sys.stderr)
        code = 1
    except* KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    if measurement.phases:
        _publish(measurement, options)
    return code


def _publish(measurement: Measurement, options: argparse.Namespace) -> None:
    result = {
        "date": options.date,
        "machine": describe_machine(),
        "kubernetes": Spec("any").kubernetes,
        "api": options.api,
        "qps": QPS,
        "job_syncs": options.job_syncs,
        "own_core": options.own_core,
        "noise_before": measurement.noise,
        "disturbed": [phase.name for phase in measurement.phases if phase.others_share > QUIET],
        "verdicts": [asdict(verdict) for verdict in measurement.verdicts],
        "phases": [phase.describe() for phase in measurement.phases],
    }
    path: Path = options.results / f"{options.name}-{options.date}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result | measurement.more, indent=2) + "\n")
    print(verdicts.render_phases(measurement.phases))
    print(verdicts.render_verdicts(measurement.verdicts))
    for name in result["disturbed"]:
        print(f"note: {name} was disturbed by other work", file=sys.stderr)
    print(f"written to {path}", file=sys.stderr)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.jobs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="10 s at 20 Jobs/s, two rungs of 5 s, 200 Jobs at once, 10 s of rest")
    add("--api", choices=get_args(Api), default="fallback")
    add("--only", nargs="+", choices=PARTS, default=list(PARTS), help="leave the others out")
    add("--rate", type=float, default=100.0, help="suspended Jobs a second")
    add("--seconds", type=float, default=60.0, help="how long they are created")
    add("--rates", type=float, nargs="+", default=[5.0, 10.0, 20.0, 40.0, 80.0], help="running Jobs a second")
    add("--rung", type=float, default=20.0, help="seconds at each of these rates")
    add("--jobs", type=int, default=10_000, help="Jobs that are created at once")
    add("--rest", type=float, default=30.0, help="seconds of rest that are measured")
    add("--patience", type=float, default=600.0, help="how long to wait for the last object of a phase")
    add("--job-syncs", type=int, default=20, help="--concurrent-job-syncs of kube-controller-manager")
    add("--own-core", action="store_true", help="the API server has one core alone, all else shares the others")
    add("--name", default="jobs", help="first part of the result's file name")
    add("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="second part (default: today)")
    add("--results", type=Path, default=RESULTS, help="directory of the result")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rate, options.seconds, options.rates, options.rung = 20.0, 10.0, [2.0, 5.0], 5.0
        options.jobs, options.rest = 200, 10.0
    return options


if __name__ == "__main__":
    sys.exit(main())
