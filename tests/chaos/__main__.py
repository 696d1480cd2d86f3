"""The soak: faults of all kinds under a steady load, for so many minutes (`make soak`).

Writes `bench/results/soak-DATE.json`, which `python -m bench.reliability --write` makes `docs/reliability.md` of. The
exit code is 1 if a promise was broken.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from bench.cluster import Cluster, ClusterError
from bench.cluster.cluster import down
from bench.cluster.progress import stderr_report
from bench.generated import ROOT
from bench.machine import describe_machine
from tests.chaos.soak import Soak, make_spec
from tests.chaos.storm import KINDS, STILL_EACH, STILL_SECONDS, Plan

_ROUND_SECONDS = 38.0
"""How long a round takes with everything in it, roughly, if its calm is not still."""

_STILL_SECONDS = (STILL_SECONDS - Plan(0, 0).quiet) / STILL_EACH
"""How much longer it is for the still calms, on average: the number of rounds follows from the minutes."""


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
    )
    directory = Path(tempfile.mkdtemp(prefix="serried-soak-"))
    try:
        cluster = Cluster.up(make_spec(name, options.api), stderr_report())
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
    if result["hardly_in_force"]:
        print(f"in force for less than a minute: {', '.join(result['hardly_in_force'])}", file=sys.stderr)
    print(f"{json.dumps(result['totals'])}; written to {path}; the checker's log is in {directory}", file=sys.stderr)
    return 1 if result["violations"] else 0


def _interrupt(*_: object) -> NoReturn:
    # Not by SIGINT, which what is started in the background of a shell ignores.
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__.split("\n", 1)[0] if __doc__ else ""
    )
    add = parser.add_argument
    add("--minutes", type=float, default=30.0, help="about how long faults come (default: %(default)s)")
    add("--faults", nargs="+", choices=KINDS, default=list(KINDS), help="leave the others out")
    add("--seed", type=int, default=1, help="the same seed brings the same draws (default: %(default)s)")
    add("--api", choices=("native", "fallback"), default="native")
    add("--name", default="soak", help="first part of the result's file name")
    add("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="second part (default: today)")
    add("--results", type=Path, default=ROOT / "bench" / "results", help="directory of the result")
    add("--keep", action="store_true", help="leave the cluster up")
    return parser


if __name__ == "__main__":
    sys.exit(main())
