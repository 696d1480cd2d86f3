"""The control plane of a running cluster as another version, or with other gates, over the same data.

etcd, the nodes and the extender and controller of Serried run on; what is restarted is what an upgrade restarts.
"""

import signal
from collections.abc import Mapping

from bench.cluster import kwok
from bench.cluster.binaries import Binaries
from bench.cluster.processes import Process, spawn, stop
from bench.cluster.spec import Spec
from bench.cluster.state import Place

Flags = Mapping[str, str]
"""Flags by name; an empty value is a flag that is not set."""


def list_flags(spec: Spec) -> dict[str, Flags]:
    """What a spec decides of the command line of each component, in the order in which they are started."""
    return {
        "kube-apiserver": {"feature-gates": spec.api_server_gates, "runtime-config": spec.runtime_config},
        "kube-controller-manager": {"feature-gates": spec.controller_manager_gates},
        "kube-scheduler": {"feature-gates": spec.stock_gates},
    }


def write_command(argv: tuple[str, ...], program: str, flags: Flags) -> list[str]:
    """A command line of another program, with these flags instead of its own."""
    names = tuple(f"--{name}=" for name in flags)
    kept = [argument for argument in argv[1:] if not argument.startswith(names)]
    return [program, *kept, *(f"--{name}={value}" for name, value in flags.items() if value)]


def end(processes: Mapping[str, Process], spec: Spec) -> None:
    """End the components that a spec decides about."""
    stop([processes[name] for name in list_flags(spec)], signal.SIGTERM)


def begin(component: str, old: Process, place: Place, programs: Binaries, spec: Spec) -> Process:
    """Start a component again, as the spec says."""
    command = write_command(old.argv, str(programs[component]), list_flags(spec)[component])
    started = spawn(command, kwok.log_of(place, component), place.kwok)
    kwok.note_pid(place, component, started.pid)
    return started
