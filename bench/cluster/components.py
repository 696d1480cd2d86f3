"""The command lines of Serried's processes in a cluster: extender, controller, and the scheduler that calls them."""

import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from bench.cluster.installation import NAMESPACE
from bench.cluster.ports import LOOPBACK
from bench.cluster.spec import Spec

Name = Literal["extender", "controller", "scheduler"]
ControlPlaneName = Literal["etcd", "kube-apiserver", "kube-controller-manager"]
"""A component that kwokctl starts, and that can be started again with the same data."""

PROCESSES: tuple[Name, ...] = ("extender", "controller", "scheduler")
THROUGH = {"scheduler": ("env", "GOGC=400")}
"""By process: a prefix of its command. The scheduler gets the environment variables that the manifests set."""

PORTS = ("filter", "bind", "ops", "controller-ops", "scheduler")
LEASE = "serried"


def commands(
    spec: Spec, ports: Mapping[str, int], kubeconfigs: Mapping[str, Path], scheduler: Path, scheduler_config: Path
) -> dict[str, list[str]]:
    """Return the command line of each process."""
    return {
        "extender": _extender(spec, ports, kubeconfigs["extender"]),
        "controller": _controller(spec, ports, kubeconfigs["controller"]),
        "scheduler": scheduler_command(spec, ports, kubeconfigs["scheduler"], scheduler, scheduler_config),
    }


def _extender(spec: Spec, ports: Mapping[str, int], kubeconfig: Path) -> list[str]:
    return [
        sys.executable, "-m", "extender", "--kubeconfig", str(kubeconfig),
        "--filter-listen", f"{LOOPBACK}:{ports['filter']}",
        "--bind-listen", f"{LOOPBACK}:{ports['bind']}",
        "--ops-listen", f"{LOOPBACK}:{ports['ops']}",
        "--lease", f"{NAMESPACE}/{LEASE}",
        # kube-scheduler signs its Lease with the host name and a random suffix.
        "--lease-holder-prefix", socket.gethostname(),
        "--hold", spec.hold if spec.gate_policy else "filter",
        "--api", spec.api,
        "--isolated", "on" if spec.isolated else "off",
        *spec.serried_args,
    ]  # fmt: skip


def _controller(spec: Spec, ports: Mapping[str, int], kubeconfig: Path) -> list[str]:
    return [
        sys.executable, "-m", "controller", "--kubeconfig", str(kubeconfig),
        "--ops-listen", f"{LOOPBACK}:{ports['controller-ops']}", "--api", spec.api,
        # The same identity after a restart: a new process acquires the Lease of a killed one at once.
        "--lease-holder", "controller",
    ]  # fmt: skip


def scheduler_command(spec: Spec, ports: Mapping[str, int], kubeconfig: Path, program: Path, config: Path) -> list[str]:
    """Return the command line of the kube-scheduler that calls the extender."""
    return [
        str(program), f"--config={config}", f"--bind-address={LOOPBACK}", f"--secure-port={ports['scheduler']}",
        f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}",
        "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
        *([f"--feature-gates={','.join(spec.scheduler_gates)}"] if spec.scheduler_gates else ()),
    ]  # fmt: skip
