"""The control plane, started by kwokctl with its binary runtime: no container engine, no network."""

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
# kwokctl calls its own component by another name than the program.
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok-controller")
STAGES = Path(__file__).with_name("stages.yaml")
_CREATE_TIMEOUT = 180.0
_PAUSE = 0.05
# kwokctl starts a component that ends at once a few times before it waits for it in vain.
_DEATH_IS_FINAL = 2.0
# ServiceAccount would give every pod a token volume that no kubelet mounts here. TaintNodesByCondition taints new nodes
# until node-lifecycle-controller, which does not run here, finds them ready.
_NO_ADMISSION = "ServiceAccount,TaintNodesByCondition"
# The others either look after kubelets, or write an annotation into every node.
_CONTROLLERS = "*,-node-lifecycle-controller,-node-ipam-controller,-ttl-controller"


def configuration(
    spec: Spec, place: Place, ports: Mapping[str, int], binaries: Binaries, scheduler_config: Path
) -> dict[str, Any]:
    """The KwokctlConfiguration of a cluster."""
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
    """Flags of single components; kwokctl's own option would set feature gates in all of them."""
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


def _gates(said: str) -> dict[str, str]:
    return {"feature-gates": said} if said else {}


def _front_proxy(place: Place) -> dict[str, str]:
    """What every real API server publishes and kwokctl leaves out: schedulers look for it and complain without it."""
    return {
        "requestheader-client-ca-file": str(place.kwok / "pki" / "ca.crt"),
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
    }


def stock_scheduler_config(qps: int) -> dict[str, Any]:
    """The cluster's own scheduler: as shipped, but for the client's rate."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"qps": qps, "burst": qps},
    }


def launch(spec: Spec, place: Place, ports: Mapping[str, int], binaries: Binaries) -> Process:
    """Let kwokctl start the control plane; `await_launched` says whether it did."""
    place.directory.mkdir(parents=True, exist_ok=True)
    scheduler = place.directory / "stock-scheduler.yaml"
    scheduler.write_text(yaml.safe_dump(stock_scheduler_config(spec.qps)))
    config = place.directory / "kwokctl.yaml"
    settings = yaml.safe_dump(configuration(spec, place, ports, binaries, scheduler))
    config.write_text(f"{settings}---\n{STAGES.read_text()}")
    command = [str(binaries["kwokctl"]), "--name", spec.name, "--config", str(config), "create", "cluster",
               # No lease: nothing here reads one, and renewing thousands costs the API server.
               "--node-lease-duration-seconds", "0", "--kubeconfig", ""]  # fmt: skip
    return spawn(command, place.logs / "kwokctl.log", place.directory, _environment(place))


def await_launched(place: Place, kwokctl: Process) -> None:
    """Return when the API server answers; raise as soon as a component has died, long before kwokctl gives up."""
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
    """The components that kwokctl has recorded as started and that are surely of this cluster."""
    found = {}
    for component in COMPONENTS:
        pid = _pid(place.kwok / "pids" / f"{component}.pid")
        process = adopt(pid, log_of(place, component)) if pid else None
        # The cluster's directory stands in the arguments of every component: a pid that the system has given to
        # somebody else since does not have it.
        if process is not None and any(str(place.kwok) in argument for argument in process.argv):
            found[component] = process
    return found


def log_of(place: Place, component: str) -> Path:
    """The log of a component."""
    return place.kwok / "logs" / f"{component}.log"


def note_pid(place: Place, component: str, pid: int) -> None:
    """A component was started anew, by somebody else than kwokctl."""
    (place.kwok / "pids" / f"{component}.pid").write_text(str(pid))


def _pid(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0
