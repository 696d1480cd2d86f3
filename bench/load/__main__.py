"""The command line of the load generator: runs one load on a running cluster."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import uvloop

from bench.cluster.nodes import RACK
from bench.load.objects import Link, Load, make_gangs
from bench.load.run import clear, open_client, read_domains, run_load


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one load, and print its figures as JSON. The exit code is 1 if a pod was not bound or a gang was split."""
    options = _parser().parse_args(arguments)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(_run(options))
    print(json.dumps(figures, indent=2))
    return 0 if figures["bound"] == figures["pods"] and not figures["split_gangs"] else 1


async def _run(options: argparse.Namespace) -> dict[str, Any]:
    load = Load(
        run=options.run or f"load-{int(time.time())}",
        scheduler=options.scheduler,
        plain=options.plain,
        gangs=make_gangs(options.gangs, options.size, options.key),
        link=options.link,
        cpu=options.cpu,
    )
    async with open_client(options.kubeconfig) as client:
        domains = await read_domains(client, options.key or RACK)
        figures = await run_load(client, load, domains, options.seconds)
        if not options.keep:
            await clear(client, options.link)
    return figures.describe()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=main.__doc__)
    add = parser.add_argument
    add("--kubeconfig", type=Path, required=True)
    add("--scheduler", default="serried", help="schedulerName of every pod (default: %(default)s)")
    add("--link", choices=get_args(Link), default="native", help="how pods find their group (default: %(default)s)")
    add("--plain", type=int, default=0, help="pods of no gang")
    add("--gangs", type=int, default=0)
    add("--size", type=int, default=20, help="pods of one gang")
    add("--key", default="", help=f"topology key of every gang, for example {RACK}")
    add("--cpu", default="1", help="request of one pod")
    add("--seconds", type=float, default=300.0, help="how long to wait for the last pod")
    add("--run", default="", help="name of the run, the prefix of every object")
    add("--keep", action="store_true", help="leave the objects in the cluster")
    return parser


if __name__ == "__main__":
    sys.exit(main())
