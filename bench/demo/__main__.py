"""Start a cluster, run the demo on it, and remove the cluster, also after an error or a signal.

    python -m bench.demo                                  a live table on a terminal, else a line for each change
    python -m bench.demo --cast docs/images/demo.cast     records the lines as an asciicast, and as a picture beside it

On a terminal the cluster is kept until Enter or Ctrl-C. The exit code is 1 if a promise was broken.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import FrameType

from bench.cluster import Cluster, ClusterError
from bench.cluster.cluster import down, status
from bench.cluster.processes import start_time
from bench.cluster.progress import stderr_report
from bench.demo.cast import make_spec
from bench.demo.recording import record
from bench.demo.stage import open_stage
from bench.demo.story import BrokenPromiseError, Story
from serried.kube.errors import ApiError

_PREFIX = "demo-"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit code. The cluster is removed in any case."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cast", type=Path, metavar="FILE", help="write an asciicast, and a picture beside it (.svg)")
    options = parser.parse_args(arguments)
    # A shell starts background jobs with SIGINT ignored. The other signals are forwarded as SIGINT, so set it again.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in _SIGNALS[1:]:
        signal.signal(number, _interrupt)
    name = f"{_PREFIX}{os.getpid()}"
    try:
        _remove_leftovers()
        return _run(name, options.cast)
    except (BrokenPromiseError, ClusterError, ApiError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        # A second Ctrl-C must not interrupt the removal.
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        down(name)
        print("the cluster is gone", file=sys.stderr)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    # asyncio has a handler of its own for SIGINT while its loop runs.
    signal.raise_signal(signal.SIGINT)


def _remove_leftovers() -> None:
    """Remove the clusters of earlier demos whose process was killed before it could remove them."""
    for found in status():
        pid = found["name"].removeprefix(_PREFIX)
        if found["name"].startswith(_PREFIX) and pid.isdecimal() and start_time(int(pid)) is None:
            down(found["name"])


def _run(name: str, cast: Path | None) -> int:
    cluster = Cluster.up(make_spec(name), stderr_report())
    print(f"The live page: {cluster.debug_url}/", flush=True)
    with nullcontext() if cast is None else record(cast):
        with open_stage() as stage:
            summary = asyncio.run(Story(cluster, stage).run())
        for line in summary:
            print(f"- {line}")
    print(f"Why each gang stands where it does: {cluster.debug_url}/")
    print(f"kubectl --kubeconfig {cluster.kubeconfig} get jobs,pods,podgroups.scheduling.serried.dev", flush=True)
    if sys.stdout.isatty() and sys.stdin.isatty():
        input("Enter ends the demo and removes the cluster. ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
