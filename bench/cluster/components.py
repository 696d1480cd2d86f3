"""The three processes of ours in a cluster: extender, controller, and the stock scheduler that calls the extender."""

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
"""A component that kwokctl has started, and that can be started again over the same data."""

PROCESSES: tuple[Name, ...] = ("extender", "controller", "scheduler")
THROUGH = {"scheduler": ("env", "GOGC=400")}
"""Commands through which processes are started: our scheduler's environment is that of the manifests."""

PORTS = ("filter", "bind", "ops", "controller-ops", "scheduler")
LEASE = "serried"


def commands(
    spec: Spec, ports: Mapping[str, int], kubeconfigs: Mapping[str, Path], scheduler: Path, scheduler_config: Path
) -> dict[str, list[str]]:
    """The command line of every process."""
    return {
        "extender": _extender(spec, ports, kubeconfigs["extender"]),
        "controller": _controller(spec, ports, kubeconfigs["controller"]),
        "scheduler": run_scheduler(spec, ports, kubeconfigs["scheduler"], scheduler, scheduler_config),
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
        # One process at a time: a new one takes the Lease of a killed one at once, as in a Pod.
        "--lease-holder", "controller",
    ]  # fmt: skip


def run_scheduler(spec: Spec, ports: Mapping[str, int], kubeconfig: Path, program: Path, config: Path) -> list[str]:
    """The command line of the stock scheduler."""
    return [
        str(program), f"--config={config}", f"--bind-address={LOOPBACK}", f"--secure-port={ports['scheduler']}",
        f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}",
        "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
        *([f"--feature-gates={','.join(spec.scheduler_gates)}"] if spec.scheduler_gates else ()),
    ]  # fmt: skip
