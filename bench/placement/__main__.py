"""Compare the quality of placements, on clusters of which a random 60 % is in use, in racks of 100 nodes.

There are three parts. *offline* compares Serried's planner with simple rules, and in small scenarios with the optimum.
*live* compares Serried with the native scheduler on a real control plane, one gang at a time, each with a required
rack. *mixed* runs plain pods that start and end at 70 % use, and gangs that need a rack, for several weights of the
extender's scores; with weight 0 kube-scheduler does not call prioritize. JSON goes to `bench/results/`, tables to
standard output.

    python -m bench.placement                  10 seeds of 1,000 nodes, 3 of 5,000; live on 1,000 nodes
    python -m bench.placement --quick          2 seeds of 1,000 nodes; live on 200 nodes
    python -m bench.placement --only offline   without a control plane
    python -m bench.placement --only mixed --name placement-mixed --nodes 200
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from bench.cluster import Cluster, ClusterError
from bench.cluster.nodes import RACK
from bench.cluster.progress import Report, stderr_report
from bench.contenders import NATIVE, NODES_PER_RACK, SERRIED, Contender
from bench.load.run import StuckError, open_client, read_domains
from bench.machine import describe_machine
from bench.placement.figures import Result, average, compare, render_averages, render_duels, summarize_wave
from bench.placement.ground import BrokenPromiseError, Ground
from bench.placement.live import Live
from bench.placement.mixed import Misses, measure_misses
from bench.placement.mixed_load import MixedLoad
from bench.placement.optimum import most_members
from bench.placement.play import Offline, Wave, play
from bench.placement.rules import CLASSICS, PLAN, RULES
from bench.placement.scenario import Mix, Scenario, make_nodes, make_scenario
from bench.placement.splits import Splits, measure_splits
from bench.placement.turns import RACKS, Course, make_turns, render_mixed, summarize
from serried.kube.errors import ApiError

RESULTS = Path(__file__).parent.parent / "results"
PARTS = ("offline", "live", "mixed")
CONTENDERS = (NATIVE, SERRIED)

# The share of all CPUs that the gangs request. 40 % are free before the first gang.
_LOADS = {"three quarters of the free room": 0.3, "more than the free room": 0.5}
_ONE_RACK = Mix(0.4, wishes=("required",))
_FEW = Mix(0.5, sizes=(4, 40), cpus=(4,), wishes=("required",))
_MISSES_SEED = 1


class Measurement:
    """Plays all scenarios. The results so far remain after an interruption."""

    def __init__(self, options: argparse.Namespace, report: Report) -> None:
        self.results: list[Result] = []
        self.misses: Misses | None = None
        self.splits: list[Splits] = []
        self.broken: dict[str, list[str]] = {}
        """By contender: the gangs of which only a part was bound in time."""

        self.courses: list[Course] = []
        """The runs of the mixed load."""

        self._options, self._report = options, report

    def run(self) -> None:
        """Run the chosen parts."""
        if "offline" in self._options.only:
            self._measure_offline()
        if "live" in self._options.only:
            for seed in range(self._options.live_seeds):
                for contender in CONTENDERS:
                    self._measure_live(contender, seed)
        if "mixed" in self._options.only:
            for seed in range(self._options.live_seeds):
                for weight in self._options.weights:
                    self._measure_mixed(weight, seed)

    def _measure_offline(self) -> None:
        options = self._options
        for count, seeds in ((1000, options.seeds), (5000, options.large_seeds)):
            for seed in range(seeds):
                self._report(f"{count:,} nodes, seed {seed}")
                nodes = make_nodes(count, count // NODES_PER_RACK, seed)
                for load, demand in _LOADS.items():
                    name = f"{count:,} nodes, gangs for {load}"
                    self._play_rules(make_scenario(name, seed, nodes, Mix(demand), options.waves))
        for seed in range(options.small_seeds):
            scenario = make_scenario("4 racks of 10", seed, make_nodes(40, 4, seed), _FEW, 1)
            self._play_rules(scenario, _find_optimum(scenario))
        self.misses = measure_misses(options.mixed, _MISSES_SEED)
        self.splits = [measure_splits(classes, options.mixed // 4, _MISSES_SEED) for classes in (1, 2, 3)]

    def _play_rules(self, scenario: Scenario, optimum: int | None = None) -> None:
        for name, rule in RULES.items():
            self._add(scenario, name, asyncio.run(play(scenario, Offline(rule))), optimum)

    def _measure_live(self, contender: Contender, seed: int) -> None:
        self._report(f"live, seed {seed}: {contender.title}")
        cluster = Cluster.up(contender.make_spec(self._options.nodes))
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                scenario = runner.run(self._play_live(cluster, contender, seed))
        finally:
            cluster.down()
        if contender is CONTENDERS[-1]:
            self._play_rules(scenario)

    def _measure_mixed(self, weight: int, seed: int) -> None:
        self._report(f"mixed load, seed {seed}, weight {weight}")
        spec = replace(SERRIED.make_spec(self._options.nodes), racks=RACKS, blocks=1, prioritize_weight=weight)
        cluster = Cluster.up(spec)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                self.courses.append(runner.run(self._play_mixed(cluster, weight, seed)))
        finally:
            cluster.down()

    async def _play_mixed(self, cluster: Cluster, weight: int, seed: int) -> Course:
        options, spec = self._options, cluster.spec
        turns = list(make_turns(options.turns, spec.nodes, int(spec.node_cpu), seed))
        async with open_client(cluster.kubeconfig) as client:
            domains = await read_domains(client, RACK)
            return await MixedLoad(client, domains, options.turn_patience, self._report).play(turns, weight, seed)

    async def _play_live(self, cluster: Cluster, contender: Contender, seed: int) -> Scenario:
        async with open_client(cluster.kubeconfig) as client:
            live = Live(client, contender, self._options.patience, self._report)
            nodes = await live.read_nodes()
            name = f"live, {len(nodes):,} nodes"
            scenario = make_scenario(name, seed, nodes, _ONE_RACK, self._options.waves)
            await live.fill(scenario.filler)
            waves = await play(scenario, live)
        self._add(scenario, contender.title, waves)
        self.broken.setdefault(contender.name, []).extend(live.broken)
        return scenario

    def _add(self, scenario: Scenario, rule: str, waves: Sequence[Wave], optimum: int | None = None) -> None:
        for number, wave in enumerate(waves):
            self.results.append(summarize_wave(scenario.name, scenario.seed, number, rule, wave, optimum))


def _find_optimum(scenario: Scenario) -> int:
    """Return the most members that could be placed. Exact if all members have one size and all gangs need one rack."""
    gangs = scenario.waves[0]
    slots = Ground(scenario).slots(gangs[0].cpu)
    return most_members([sum(free) for free in slots.values()], [gang.size for gang in gangs])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the result.

    Return 1 if measuring failed, if a gang was bound in part, or if it broke its topology constraint; else 0.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _parse(arguments)
    measurement = Measurement(options, stderr_report())
    code = 0
    try:
        measurement.run()
    except* (ClusterError, ApiError, StuckError, BrokenPromiseError) as errors:
        print(f"error: {errors.exceptions[0]}", file=sys.stderr)
        code = 1
    except* KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    if measurement.results or measurement.courses:
        _publish(measurement, options)
    return 1 if any(measurement.broken.values()) else code


def _publish(measurement: Measurement, options: argparse.Namespace) -> None:
    averages = average(measurement.results)
    duels = compare(measurement.results, PLAN)
    result = {
        "date": options.date,
        "machine": describe_machine(),
        "note": options.note,
        "kubernetes": NATIVE.make_spec(options.nodes).kubernetes,
        "averages": averages,
        "duels": [asdict(duel) for duel in duels],
        "mixed_classes": asdict(measurement.misses) if measurement.misses else None,
        "splits": [asdict(splits) for splits in measurement.splits],
        "broken": measurement.broken,
        "mixed": summarize(measurement.courses),
        "courses": [course.describe() for course in measurement.courses],
        "results": [result.describe() for result in measurement.results],
    }
    path: Path = options.results / f"{options.name}-{options.date}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(render_mixed(result["mixed"]), end="\n\n" if measurement.courses else "")
    print(render_averages(averages), render_duels([duel for duel in duels if duel.rival in CLASSICS], PLAN), sep="\n\n")
    if measurement.misses:
        print("", measurement.misses, *measurement.splits, sep="\n")
    for name, gangs in measurement.broken.items():
        for gang in gangs:
            print(f"DEFECT: {name} bound a part of {gang}", file=sys.stderr)
    print(f"written to {path}", file=sys.stderr)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.placement", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer seeds, a live cluster of 200 nodes, one wave")
    add("--only", nargs="+", choices=PARTS, default=list(PARTS), help="leave the other part out")
    add("--seeds", type=int, default=10, help="offline scenarios of 1,000 nodes")
    add("--large-seeds", type=int, default=3, help="offline scenarios of 5,000 nodes")
    add("--small-seeds", type=int, default=20, help="offline scenarios of 40 nodes, with the optimum")
    add(
        "--mixed",
        type=int,
        default=5000,
        help="random small gangs of two classes, and a quarter as many that have to be split",
    )
    add("--nodes", type=int, default=1000, help="nodes of the live cluster")
    add("--live-seeds", type=int, default=1, help="live scenarios, each on a cluster of its own")
    add("--waves", type=int, default=2, help="rows of gangs; before each but the first, half of all pods leave")
    add("--patience", type=float, default=60.0, help="seconds after which a gang on a live cluster counts as refused")
    add("--weights", type=int, nargs="+", default=[0, 1, 2, 5], help="of the scores, in the mixed load")
    add("--turns", type=int, default=12, help="of the mixed load")
    add("--turn-patience", type=float, default=5.0, help="seconds for which a turn of it waits for its gang")
    add("--note", default="", help="what a reader of the result has to know of the machine")
    add("--name", default="placement", help="first part of the result's file name")
    add("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="second part (default: today)")
    add("--results", type=Path, default=RESULTS, help="directory of the result")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.large_seeds, options.small_seeds, options.mixed = 2, 0, 5, 500
        options.nodes, options.live_seeds, options.waves, options.turns = min(options.nodes, 200), 1, 1, 4
    return options


if __name__ == "__main__":
    sys.exit(main())
