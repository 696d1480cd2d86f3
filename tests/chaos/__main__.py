"""The soak: faults of all kinds under a steady load, for so many minutes (`make soak`).

Writes `bench/results/soak-DATE.json`, which `python -m bench.reliability --write` makes
`docs/contributing/reliability.md` of. The exit code is 1 if a promise was broken, or if a run of the default length
had fewer faults than it is to have.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from bench.cluster import Cluster, ClusterError
from bench.cluster.cluster import down
from bench.cluster.progress import stderr_report
from bench.generated import ROOT
from bench.machine import describe_machine
from tests.chaos.gangs import MIXES
from tests.chaos.soak import Soak, make_spec
from tests.chaos.storm import KINDS, STILL_EACH, STILL_SECONDS, Plan

_ROUND_SECONDS = 43.0
"""The approximate length of a round with all kinds of faults and a calm that is not still."""

_STILL_SECONDS = (STILL_SECONDS - Plan(0, 0).quiet) / STILL_EACH
"""The average addition to a round for the still calms. The number of rounds follows from the minutes."""

MINUTES = 55.0
"""The default time during which `make soak` injects faults."""

TARGETS = {"proxy": 10_000, "kills": 300}
"""The least number of faults by kind, unless the kind is left out."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it, from nothing to nothing."""
    # Whatever ends it, the cluster is removed.
    signal.signal(signal.SIGTERM, _interrupt)
    options = _parser().parse_args(arguments)
    name = f"soak-{os.getpid()}"
    plan = Plan(
        seed=options.seed,
        rounds=max(1, round(options.minutes * 60 / (_ROUND_SECONDS + _STILL_SECONDS))),
        kinds=tuple(options.faults),
        mix=options.mix,
    )
    directory = Path(tempfile.mkdtemp(prefix="serried-soak-"))
    try:
        cluster = Cluster.up(make_spec(name, options.api, options.shape), stderr_report())
        result = Soak(cluster, plan, directory).run()
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        if not options.keep:
            down(name)
    path: Path = options.results / f"{options.name}-{options.date}.json"
    path.write_text(json.dumps({"date": options.date, "machine": describe_machine(), **result}, indent=2) + "\n")
    for line in result["violations"]:
        print(line)
    missed = find_missed(result, options.faults) if options.minutes >= MINUTES else []
    for line in missed:
        print(f"not reached: {line}", file=sys.stderr)
    print(f"{json.dumps(result['totals'])}; written to {path}; the checker's log is in {directory}", file=sys.stderr)
    return 1 if result["violations"] or missed else 0


def find_missed(result: Mapping[str, Any], kinds: Sequence[str]) -> list[str]:
    """Return what a run of the default length should have reached and has not, a phrase each."""
    totals = result["totals"]
    few = [f"{totals[kind]} of {least} {kind}" for kind, least in TARGETS.items()
           if kind in kinds and totals[kind] < least]  # fmt: skip
    return few + [f"{rule}: in force for less than a minute" for rule in result["hardly_in_force"]]


def _interrupt(*_: object) -> NoReturn:
    # Not by SIGINT, which what is started in the background of a shell ignores.
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__.split("\n", 1)[0] if __doc__ else ""
    )
    add = parser.add_argument
    add("--minutes", type=float, default=MINUTES, help="about how long faults come (default: %(default)s)")
    add("--faults", nargs="+", choices=KINDS, default=list(KINDS), help="leave the others out")
    add("--seed", type=int, default=1, help="the same seed brings the same draws (default: %(default)s)")
    add("--api", choices=("native", "fallback"), default="native")
    add("--mix", choices=tuple(MIXES), default="any", help="what the load is drawn from (default: %(default)s)")
    add("--shape", choices=("asked", "isolated"), default="asked",
        help="isolated: plain pods pass the extender by (default: %(default)s)")  # fmt: skip
    add("--name", default="soak", help="first part of the result's file name")
    add("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="second part (default: today)")
    add("--results", type=Path, default=ROOT / "bench" / "results", help="directory of the result")
    add("--keep", action="store_true", help="leave the cluster up")
    return parser


if __name__ == "__main__":
    sys.exit(main())
