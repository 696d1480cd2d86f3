"""Start the control plane by kwokctl with its binary runtime, which needs no container engine and no network.

`launch` starts kwokctl, `await_launched` waits for it, and `running` finds the processes that it started.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bench.cluster.binaries import Binaries
from bench.cluster.errors import ClusterError
from bench.cluster.ports import LOOPBACK
from bench.cluster.processes import Process, adopt, exit_code, spawn, start_time, tail
from bench.cluster.spec import Spec
from bench.cluster.state import Place

PORTS = ("apiserver", "etcd", "etcd-peer", "controller-manager", "stock-scheduler", "kwok")
# The program of kwok-controller is called kwok.
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok-controller")
STAGES = Path(__file__).with_name("stages.yaml")
_CREATE_TIMEOUT = 180.0
_PAUSE = 0.05
# kwokctl restarts a component that ends at once a few times. After these seconds it waits for the component in vain.
_DEATH_IS_FINAL = 2.0
# ServiceAccount would give every pod a token volume that no kubelet mounts here. TaintNodesByCondition taints new nodes
# until node-lifecycle-controller, which does not run here, finds them ready.
_NO_ADMISSION = "ServiceAccount,TaintNodesByCondition"
# The disabled ones either handle kubelets, or write an annotation to every node.
_CONTROLLERS = "*,-node-lifecycle-controller,-node-ipam-controller,-ttl-controller"


def configuration(
    spec: Spec, place: Place, ports: Mapping[str, int], binaries: Binaries, scheduler_config: Path
) -> dict[str, Any]:
    """Return the KwokctlConfiguration of a cluster."""
    options = {
        "runtime": "binary",
        "kubeVersion": f"v{spec.kubernetes}",
        "bindAddress": LOOPBACK,
        "securePort": True,
        "kubeAuthorization": True,
        "kubeAdmission": True,
        "quietPull": True,
        "kubeRuntimeConfig": spec.runtime_config,
        "kubeSchedulerConfig": str(scheduler_config),
        "kubeApiserverPort": ports["apiserver"],
        "etcdPort": ports["etcd"],
        "etcdPeerPort": ports["etcd-peer"],
        "kubeControllerManagerPort": ports["controller-manager"],
        "kubeSchedulerPort": ports["stock-scheduler"],
        "kwokControllerPort": ports["kwok"],
        "etcdBinary": str(binaries["etcd"]),
        "kubeApiserverBinary": str(binaries["kube-apiserver"]),
        "kubeControllerManagerBinary": str(binaries["kube-controller-manager"]),
        "kubeSchedulerBinary": str(binaries["kube-scheduler"]),
        "kubectlBinary": str(binaries["kubectl"]),
        "kwokControllerBinary": str(binaries["kwok"]),
    }
    patches = [
        {"name": name, "extraArgs": [{"key": key, "value": value} for key, value in arguments.items()]}
        for name, arguments in _arguments(spec, place).items()
    ]
    return {
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokctlConfiguration",
        "options": options,
        "componentsPatches": patches,
    }


def _arguments(spec: Spec, place: Place) -> dict[str, dict[str, str]]:
    """Return the flags of each component. kwokctl's own option would set the same feature gates in all of them."""
    qps = {"kube-api-qps": str(spec.qps), "kube-api-burst": str(spec.qps)}
    server_gates, manager_gates = _gates(spec.api_server_gates), _gates(spec.controller_manager_gates)
    manager = {"controllers": _CONTROLLERS, "leader-elect": "false", "concurrent-job-syncs": str(spec.job_syncs)}
    return {
        "etcd": {"unsafe-no-fsync": "true"},
        "kube-apiserver": _api_server_flags(spec, place) | server_gates,
        "kube-controller-manager": manager | qps | manager_gates,
        "kube-scheduler": _gates(spec.stock_gates),
    }


def _api_server_flags(spec: Spec, place: Place) -> dict[str, str]:
    more = dict(flag.split("=", 1) for flag in spec.server_flags)
    return {"disable-admission-plugins": _NO_ADMISSION} | _front_proxy(place) | more


def _gates(gates: str) -> dict[str, str]:
    return {"feature-gates": gates} if gates else {}


def _front_proxy(place: Place) -> dict[str, str]:
    """Return the API server's flags for a front proxy.

    kwokctl leaves them out, and kube-schedulers log errors if the API server does not publish these settings.
    """
    return {
        "requestheader-client-ca-file": str(place.kwok / "pki" / "ca.crt"),
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
    }


def stock_scheduler_config(qps: int) -> dict[str, Any]:
    """Return the configuration of the cluster's own scheduler: the defaults, with another rate limit."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"qps": qps, "burst": qps},
    }


def launch(spec: Spec, place: Place, ports: Mapping[str, int], binaries: Binaries) -> Process:
    """Write kwokctl's configuration and start kwokctl, which starts the control plane. Call `await_launched` next."""
    place.directory.mkdir(parents=True, exist_ok=True)
    scheduler = place.directory / "stock-scheduler.yaml"
    scheduler.write_text(yaml.safe_dump(stock_scheduler_config(spec.qps)))
    config = place.directory / "kwokctl.yaml"
    settings = yaml.safe_dump(configuration(spec, place, ports, binaries, scheduler))
    config.write_text(f"{settings}---\n{STAGES.read_text()}")
    command = [str(binaries["kwokctl"]), "--name", spec.name, "--config", str(config), "create", "cluster",
               # No node Leases: nothing here reads them, and thousands of renewals would slow down the API server.
               "--node-lease-duration-seconds", "0", "--kubeconfig", ""]  # fmt: skip
    return spawn(command, place.logs / "kwokctl.log", place.directory, _environment(place))


def await_launched(place: Place, kwokctl: Process) -> None:
    """Wait until kwokctl has started the control plane.

    Raise ClusterError if kwokctl fails, or soon after a component has died, which kwokctl itself notices much later.
    """
    deadline = time.monotonic() + _CREATE_TIMEOUT
    dead_since: dict[tuple[str, int], float] = {}
    while (code := exit_code(kwokctl.pid)) is None and time.monotonic() < deadline:
        for component in _dead(place):
            if time.monotonic() - dead_since.setdefault(component, time.monotonic()) > _DEATH_IS_FINAL:
                name, pid = component
                log = place.kwok / "logs" / f"{name}.log"
                raise ClusterError(f"{name} (pid {pid}) died while starting. Last lines of {log}:\n{tail(log)}")
        time.sleep(_PAUSE)
    if code != 0:
        ending = "did not end in time" if code is None else f"ended with {code}"
        raise ClusterError(f"kwokctl {ending}. Last lines of {kwokctl.log}:\n{tail(kwokctl.log)}")


def _dead(place: Place) -> list[tuple[str, int]]:
    pids = {name: _pid(place.kwok / "pids" / f"{name}.pid") for name in COMPONENTS}
    return [(name, pid) for name, pid in pids.items() if pid and start_time(pid) is None]


def _environment(place: Place) -> dict[str, str]:
    # A user's own KWOK_ settings would override the configuration file.
    clean = {key: value for key, value in os.environ.items() if not key.startswith("KWOK_")}
    return clean | {"KWOK_WORKDIR": str(place.kwok.parent.parent)}


def running(place: Place) -> dict[str, Process]:
    """Return the running components that kwokctl recorded, by name.

    A recorded pid counts only if the process is certainly of this cluster.
    """
    found = {}
    for component in COMPONENTS:
        pid = _pid(place.kwok / "pids" / f"{component}.pid")
        process = adopt(pid, log_of(place, component)) if pid else None
        # Every component has the cluster's directory in its arguments. A process that was given the same pid later
        # does not have it.
        if process is not None and any(str(place.kwok) in argument for argument in process.argv):
            found[component] = process
    return found


def log_of(place: Place, component: str) -> Path:
    """Return the path of a component's log."""
    return place.kwok / "logs" / f"{component}.log"


def record_pid(place: Place, component: str, pid: int) -> None:
    """Record the pid of a component that this package, and not kwokctl, has restarted."""
    (place.kwok / "pids" / f"{component}.pid").write_text(str(pid))


def _pid(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
