"""The command line for local clusters: up, down, status, binaries, helm."""

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Callable, Sequence

from bench.cluster import binaries, cluster, release, state
from bench.cluster.cluster import Cluster
from bench.cluster.errors import ClusterError
from bench.cluster.progress import stderr_report
from bench.cluster.spec import DEFAULT_VERSION, Spec

_SCHEDULER_HELP = "the version of kube-scheduler, if it is another one"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. JSON goes to standard output, progress and errors to standard error."""
    # So that `up` removes its half-started cluster on SIGTERM as it does on SIGINT.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing is left running", file=sys.stderr)
        return 130


def _up(options: argparse.Namespace) -> int:
    _print(Cluster.up(_spec(options), stderr_report()).describe())
    return 0


def _down(options: argparse.Namespace) -> int:
    report = stderr_report()
    found = cluster.down(options.name, report)
    report(f"{options.name} is gone" if found else f"there was no cluster {options.name} in {state.root()}")
    return 0


def _status(options: argparse.Namespace) -> int:
    found = cluster.status(options.name)
    _print(found)
    return 0 if found or options.name is None else 1


def _binaries(options: argparse.Namespace) -> int:
    located = binaries.locate(options.kubernetes, stderr_report(), options.scheduler)
    _print({name: str(path) for name, path in located.paths.items()})
    return 0


def _helm(_options: argparse.Namespace) -> int:
    _print({version: str(binaries.locate_helm(version, stderr_report())) for version in release.HELM_VERSIONS})
    return 0


def _print(value: object) -> None:
    print(json.dumps(value, indent=2))


def _spec(options: argparse.Namespace) -> Spec:
    return Spec(
        name=options.name,
        nodes=options.nodes,
        racks=options.racks,
        blocks=options.blocks or max(1, min(options.racks, options.racks // 5)),
        zones=options.zones,
        kubernetes=options.kubernetes,
        scheduler=options.scheduler,
        api=options.api,
        hold=options.hold,
        node_cpu=options.node_cpu,
        node_memory=options.node_memory,
        node_pods=options.node_pods,
        serried=not options.no_serried,
        gates=options.gates,
        server_gates=tuple(options.server_gate),
        manager_gates=tuple(options.manager_gate),
        qps=options.qps,
        serried_args=tuple(shlex.split(options.serried_args)),
        isolated=options.isolated,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="start a cluster and leave it running")
    up.set_defaults(run=_up)
    _add_up_options(up)
    down = commands.add_parser("down", help="remove a cluster, whatever state it is in")
    down.add_argument("--name", required=True)
    down.set_defaults(run=_down)
    status = commands.add_parser("status", help="describe all clusters, or one")
    status.add_argument("--name")
    status.set_defaults(run=_status)
    fetch = commands.add_parser("binaries", help="only find, download or build the binaries")
    fetch.add_argument("--kubernetes", default=DEFAULT_VERSION, metavar="VERSION")
    fetch.add_argument("--scheduler", default="", metavar="VERSION", help=_SCHEDULER_HELP)
    fetch.set_defaults(run=_binaries)
    charts = commands.add_parser("helm", help="only find, download or build the versions of Helm that tests use")
    charts.set_defaults(run=_helm)
    return parser


def _add_up_options(up: argparse.ArgumentParser) -> None:
    add = up.add_argument
    add("--name", required=True)
    add("--nodes", type=int, default=100)
    add("--racks", type=int, default=10)
    add("--blocks", type=int, default=0, help="default: one for five racks")
    add("--zones", type=int, default=1)
    add("--kubernetes", default=DEFAULT_VERSION, metavar="VERSION")
    add("--scheduler", default="", metavar="VERSION", help=_SCHEDULER_HELP)
    add("--api", choices=("native", "fallback"), default="native")
    add("--hold", choices=("auto", "filter", "gate"), default="auto")
    add("--node-cpu", default="32")
    add("--node-memory", default="256Gi")
    add("--node-pods", type=int, default=110)
    add("--no-serried", action="store_true", help="only the control plane and the nodes")
    add("--gates", choices=("on", "off"), default="off", help="native gang scheduling in the stock scheduler")
    add("--server-gate", action="append", default=[], metavar="NAME=true", help="one more gate of the API server")
    add("--manager-gate", action="append", default=[], metavar="NAME=true", help="one of kube-controller-manager")
    add("--qps", type=int, default=5000, help="client rate of the schedulers and kube-controller-manager")
    add("--isolated", action="store_true", help="our scheduler calls the extender for marked pods only")
    add("--serried-args", default="", metavar="ARGS", help="one string of further arguments for the extender")


if __name__ == "__main__":
    sys.exit(main())
