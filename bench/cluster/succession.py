"""Restart the control plane of a running cluster in another version or with other feature gates, with the same data.

API server, kube-controller-manager and the stock scheduler are restarted, as in an upgrade. etcd, the nodes, and
Serried's extender and controller keep running. The entry is `Cluster.upgrade`.
"""

import signal
from collections.abc import Mapping

from bench.cluster import kwok
from bench.cluster.binaries import Binaries
from bench.cluster.processes import Process, spawn, stop
from bench.cluster.spec import Spec
from bench.cluster.state import Place

Flags = Mapping[str, str]
"""Flags by name; "" for a flag to leave out."""


def list_flags(spec: Spec) -> dict[str, Flags]:
    """Return the flags that depend on the spec, by component, in the order in which components are started."""
    return {
        "kube-apiserver": {"feature-gates": spec.api_server_gates, "runtime-config": spec.runtime_config},
        "kube-controller-manager": {"feature-gates": spec.controller_manager_gates},
        "kube-scheduler": {"feature-gates": spec.stock_gates},
    }


def write_command(argv: tuple[str, ...], program: str, flags: Flags) -> list[str]:
    """Return a command line for another program, in which ``flags`` replace the flags of the same names."""
    names = tuple(f"--{name}=" for name in flags)
    kept = [argument for argument in argv[1:] if not argument.startswith(names)]
    return [program, *kept, *(f"--{name}={value}" for name, value in flags.items() if value)]


def stop_components(processes: Mapping[str, Process], spec: Spec) -> None:
    """End the components whose flags depend on the spec, and wait until they have ended."""
    stop([processes[name] for name in list_flags(spec)], signal.SIGTERM)


def start_component(component: str, old: Process, place: Place, programs: Binaries, spec: Spec) -> Process:
    """Start a component with the spec's program and flags, and with the other arguments of ``old``."""
    command = write_command(old.argv, str(programs[component]), list_flags(spec)[component])
    started = spawn(command, kwok.log_of(place, component), place.kwok)
    kwok.record_pid(place, component, started.pid)
    return started
