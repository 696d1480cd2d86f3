"""Start, change and remove one local cluster.

The entry is `Cluster.up`. The record on disk (`bench.cluster.state`) names all processes and ports, so that any later
command can open the cluster, or remove what is left of it.
"""

import signal
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.cluster import binaries, components, installation, kwok, nodes, ports, processes, state, succession
from bench.cluster.api import Api
from bench.cluster.errors import ClusterError
from bench.cluster.ports import LOOPBACK
from bench.cluster.processes import Process
from bench.cluster.progress import Report, silent
from bench.cluster.spec import Spec
from bench.cluster.state import Place, Record
from bench.cluster.waiting import answers, raise_for_dead, wait_for

_API_SERVER = ("etcd", "kube-apiserver")
_READY_TIMEOUT = 60.0
# A scheduler that is started after a killed one first waits until the Lease of the killed one expires.
_LEASE_TIMEOUT = 90.0

AnyName = components.Name | components.ControlPlaneName
"""The name of a process that can be killed and started again."""


class Cluster:
    """A running cluster. Its processes outlive this object and this process; only `down` ends them."""

    def __init__(self, place: Place, record: Record) -> None:
        self._place = place
        self._record = record
        self.api = Api(record.ports["apiserver"], place.kwok / "pki")

    @classmethod
    def up(cls, spec: Spec, report: Report = silent) -> "Cluster":
        """Start a cluster, and return when all of its processes are ready.

        Raise ClusterError if the name is in use, or if the start fails. Then everything that was started is removed.
        """
        place = state.place(spec.name)
        with place.lock(report):
            if place.directory.exists():
                raise ClusterError(
                    f"cluster {spec.name} exists already: python -m bench.cluster down --name {spec.name}"
                )
            programs = binaries.locate(spec.kubernetes, report, spec.scheduler)
            try:
                return _Start(place, programs, report).run(spec)
            except BaseException:
                _remove(place)
                raise

    @classmethod
    def open(cls, name: str) -> "Cluster":
        """Return the cluster of this name that was started before. Raise ClusterError if there is none."""
        place = state.place(name)
        record = place.read()
        if record is None:
            raise ClusterError(f"no cluster {name} in {place.root}: start it with 'up', or see 'status'")
        return cls(place, record)

    @property
    def spec(self) -> Spec:
        """The settings of the cluster."""
        return self._record.spec

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._place.kwok / "kubeconfig.yaml"

    @property
    def pki(self) -> Path:
        """The directory with the certificates of the cluster's authority and of the administrator."""
        return self._place.kwok / "pki"

    @property
    def kubeconfigs(self) -> dict[str, Path]:
        """The kubeconfig of each of Serried's processes."""
        directory = self._place.directory / "credentials"
        return {name: directory / f"{name}.kubeconfig" for name in components.PROCESSES}

    @property
    def pids(self) -> dict[str, int]:
        """The pid of every process, including those that have ended."""
        return {name: process.pid for name, process in self._record.processes.items()}

    @property
    def commands(self) -> dict[str, tuple[str, ...]]:
        """The command line of every process."""
        return {name: process.argv for name, process in self._record.processes.items()}

    @property
    def logs(self) -> dict[str, str]:
        """The path of every process's log."""
        return {name: process.log for name, process in self._record.processes.items()}

    @property
    def alive(self) -> dict[str, bool]:
        """By process: True while it runs."""
        return {name: process.alive for name, process in self._record.processes.items()}

    @property
    def server(self) -> str:
        """The API server's URL."""
        return f"https://{LOOPBACK}:{self._record.ports['apiserver']}"

    @property
    def filter_url(self) -> str:
        """URL of the extender to which the scheduler sends filter, prioritize and preempt."""
        return self._url("filter")

    @property
    def bind_url(self) -> str:
        """URL of the extender to which the scheduler sends bind."""
        return self._url("bind")

    @property
    def ops_url(self) -> str:
        """URL of the extender's probes, metrics and debug pages."""
        return self._url("ops")

    @property
    def debug_url(self) -> str:
        """URL of the extender's debug pages."""
        return f"{self.ops_url}/debug"

    @property
    def metrics_url(self) -> str:
        """URL of the extender's metrics."""
        return f"{self.ops_url}/metrics"

    @property
    def etcd_url(self) -> str:
        """URL of etcd's HTTP interface."""
        return self._url("etcd")

    @property
    def controller_url(self) -> str:
        """URL of the controller's probes and metrics."""
        return self._url("controller-ops")

    @property
    def controller_manager_url(self) -> str:
        """URL of kube-controller-manager's probes and metrics. Its certificate is self-signed."""
        return f"https://{LOOPBACK}:{self._record.ports['controller-manager']}"

    def describe(self) -> dict[str, Any]:
        """Return the JSON object that `up` and `status` print."""
        spec = self.spec
        described: dict[str, Any] = {
            "name": spec.name,
            "phase": self._record.phase,
            "kubernetes": spec.kubernetes,
            "scheduler": spec.scheduler_version,
            "api": spec.api,
            "hold": spec.hold,
            "nodes": spec.nodes,
            "server": self.server,
            "kubeconfig": str(self.kubeconfig),
            "kubectl": str(self.kubectl_program),
        }
        if spec.serried:
            names = ("debug_url", "metrics_url", "controller_url", "filter_url", "bind_url")
            described |= {name: getattr(self, name) for name in names}
        return described | {"pids": self.pids, "logs": self.logs, "alive": self.alive}

    @property
    def kubectl_program(self) -> Path:
        """The path of kubectl, of the cluster's version."""
        return self._place.directory / "kubectl"

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl as administrator and return its standard output. Raise ClusterError if it fails."""
        command = [str(self.kubectl_program), "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def kill(self, name: AnyName, number: int = signal.SIGKILL) -> None:
        """Send a signal to a process. After SIGKILL and SIGTERM, wait until the process has ended."""
        process = self._process(name)
        if number in {signal.SIGKILL, signal.SIGTERM}:
            processes.stop([process], number)
        else:
            process.send(number)

    def start(self, name: AnyName, *arguments: str) -> Process:
        """Start a process again, with the same command, ports, data and credentials. Return it without waiting.

        ``arguments`` are appended to the command; they override earlier ones. A process that runs is left alone.
        """
        process = self._process(name)
        if process.alive:
            return process
        directory = installation.REPOSITORY if name in components.PROCESSES else self._place.kwok
        through = components.THROUGH.get(name, ())
        again = processes.spawn([*process.argv, *arguments], Path(process.log), directory, through=through)
        self._save(self._record.with_processes({name: again}))
        return again

    def restart(self, name: AnyName, *arguments: str) -> None:
        """End a process with SIGTERM, start it as `start` does and wait until it is ready."""
        self.kill(name, signal.SIGTERM)
        self.start(name, *arguments)
        self.await_ready(name)

    def await_ready(self, name: AnyName) -> None:
        """Wait until a process is ready. Raise ClusterError if it ends, or after a timeout."""
        seconds = _LEASE_TIMEOUT if name == "scheduler" else _READY_TIMEOUT
        wait_for(f"{name} to be ready", lambda: self.is_ready(name), {name: self._process(name)}, seconds)

    def is_ready(self, name: AnyName) -> bool:
        """Return whether a process is ready now; the scheduler is once it holds the Lease. Raise as `Api` does."""
        match name:
            case "extender":
                return answers(f"{self.ops_url}/readyz")
            case "controller":
                return answers(f"{self.controller_url}/readyz")
            case "scheduler":
                return not ports.is_free(self._record.ports["scheduler"]) and self._lease_is_held()
            case "kube-apiserver":
                return bool(self.api.get("/readyz") == "ok")
            case "etcd":
                return bool(self.api.get("/readyz/etcd") == "ok")
            case "kube-controller-manager":
                return not ports.is_free(self._record.ports["controller-manager"])

    def upgrade(self, spec: Spec, report: Report = silent) -> None:
        """Restart the control plane with another spec: another version, or other feature gates. The data are kept.

        Extender and controller keep running; Serried's kube-scheduler is restarted if its version changes.
        """
        programs = binaries.locate(spec.kubernetes, report, spec.scheduler)
        before = self._record
        succession.stop_components(before.processes, spec)
        self._save(replace(before, spec=spec))
        for name in succession.list_flags(spec):
            started = succession.start_component(name, before.processes[name], self._place, programs, spec)
            self._save(self._record.with_processes({name: started}))
            if name == "kube-apiserver":
                wait_for("the API server", lambda: self.api.get("/readyz") == "ok", {name: started}, _READY_TIMEOUT)
        if spec.kubernetes != before.spec.kubernetes:
            self.kubectl_program.unlink()
            self.kubectl_program.symlink_to(programs["kubectl"])
        if spec.scheduler_version != before.spec.scheduler_version:
            self._replace_scheduler(programs)

    def start_serried(self, report: Report = silent) -> None:
        """Start extender, controller and scheduler in a cluster without Serried whose manifests were applied.

        They stand in for the pods of the Deployments, which no kubelet runs here.
        """
        record = Record(replace(self.spec, serried=True), "ready", self._record.ports, self._record.processes)
        programs = binaries.locate(self.spec.kubernetes, report, self.spec.scheduler)
        self._save(_Start(self._place, programs, report).start_processes(self, record))

    def _replace_scheduler(self, programs: binaries.Binaries) -> None:
        old = self._process("scheduler")
        processes.stop([old])
        command = [str(programs["kube-scheduler"]), *old.argv[1:]]
        through = components.THROUGH["scheduler"]
        again = processes.spawn(command, Path(old.log), installation.REPOSITORY, through=through)
        self._save(self._record.with_processes({"scheduler": again}))
        self.await_ready("scheduler")

    def down(self) -> None:
        """End every process of the cluster and delete its directory."""
        down(self.spec.name)

    def _lease_is_held(self) -> bool:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{installation.NAMESPACE}/leases/{components.LEASE}"
        lease = self.api.get(path)["spec"]
        # A killed scheduler stays the holder until its Lease expires, so the holder alone does not tell.
        acquired = datetime.fromisoformat(lease["acquireTime"]).timestamp() if lease.get("acquireTime") else 0.0
        held_here = str(lease.get("holderIdentity") or "").startswith(f"{socket.gethostname()}_")
        return held_here and acquired > self._process("scheduler").started_at

    def _process(self, name: AnyName) -> Process:
        if name not in self._record.processes:
            raise ClusterError(f"cluster {self.spec.name} has no {name}: it was started without Serried")
        return self._record.processes[name]

    def _save(self, record: Record) -> None:
        self._record = record
        self._place.write(record)

    def _url(self, port: str) -> str:
        return f"http://{LOOPBACK}:{self._record.ports[port]}"


class _Start:
    """The steps of `Cluster.up`. The record on disk is written first, so that a half-started cluster can be removed."""

    def __init__(self, place: Place, programs: binaries.Binaries, report: Report) -> None:
        self._place = place
        self._programs = programs
        self._report = report

    def run(self, spec: Spec) -> Cluster:
        record = self._reserve(spec)
        self._report(f"starting Kubernetes {spec.kubernetes} with kwokctl")
        kwokctl = kwok.launch(spec, self._place, record.ports, self._programs)
        self._place.write(record.with_processes({"kwokctl": kwokctl}))
        kwok.await_launched(self._place, kwokctl)
        record = self._add(record, kwok.running(self._place))
        self._require_components(record)
        cluster = Cluster(self._place, record)
        cluster.kubectl_program.symlink_to(self._programs["kubectl"])
        needed = {name: record.processes[name] for name in _API_SERVER}
        wait_for("the API server", lambda: cluster.api.get("/readyz") == "ok", needed, _READY_TIMEOUT)
        record = self._restart_ended(record)
        self._create_nodes(cluster, record)
        if spec.serried:
            record = self._start_serried(cluster, record)
        return self._finish(record)

    def _reserve(self, spec: Spec) -> Record:
        with ports.reservation(self._place.root):
            names = (*kwok.PORTS, *components.PORTS)
            record = Record(spec, "starting", ports.pick(names, state.recorded_ports(state.places())), {})
            self._place.write(record)
        return record

    def _require_components(self, record: Record) -> None:
        missing = [name for name in kwok.COMPONENTS if name not in record.processes]
        if missing:
            log = self._place.kwok / "logs" / f"{missing[0]}.log"
            raise ClusterError(f"{', '.join(missing)} died at once. Last lines of {log}:\n{processes.tail(log)}")

    def _restart_ended(self, record: Record) -> Record:
        # kube-controller-manager ends after 20 s without an API server, which may need longer on a busy machine.
        for name, process in record.processes.items():
            processes.reap(process.pid)
            if not process.alive:
                again = processes.spawn(list(process.argv), Path(process.log), self._place.kwok)
                record = self._add(record, {name: again})
        return record

    def _create_nodes(self, cluster: Cluster, record: Record) -> None:
        spec = record.spec
        self._report(f"creating {spec.nodes} nodes in {spec.racks} racks")
        nodes.create_nodes(cluster.api, spec)
        wait_for(
            f"{spec.nodes} ready nodes",
            lambda: nodes.ready_nodes(cluster.api) >= spec.nodes,
            record.processes,
            _READY_TIMEOUT,
        )

    def _start_serried(self, cluster: Cluster, record: Record) -> Record:
        spec = record.spec
        self._report(f"applying {', '.join(installation.pieces(spec))}")
        installation.apply(cluster.kubectl_program, cluster.kubeconfig, installation.pieces(spec))
        wait_for("our CRDs", lambda: installation.established(cluster.api), record.processes, _READY_TIMEOUT)
        return self.start_processes(cluster, record)

    def start_processes(self, cluster: Cluster, record: Record) -> Record:
        """Start extender, controller and scheduler, and return the record with them once they are ready."""
        self._report("starting extender, controller and scheduler")
        for name, command in self._commands(cluster, record).items():
            log, through = self._place.logs / f"{name}.log", components.THROUGH.get(name, ())
            process = processes.spawn(command, log, installation.REPOSITORY, through=through)
            record = self._add(record, {name: process})
        started = Cluster(self._place, record)
        for name in components.PROCESSES:
            raise_for_dead(record.processes, "while starting")
            self._report(f"waiting for {name}")
            started.await_ready(name)
        return record

    def _commands(self, cluster: Cluster, record: Record) -> Mapping[str, list[str]]:
        directory = self._place.directory
        kubeconfigs = installation.write_kubeconfigs(
            cluster.api,
            record.ports["apiserver"],
            self._place.kwok / "pki" / "ca.crt",
            directory / "credentials",
            installation.name_accounts(record.spec),
        )
        config = directory / "scheduler.yaml"
        config.write_text(installation.scheduler_config(record.spec, kubeconfigs["scheduler"], record.ports))
        return components.commands(record.spec, record.ports, kubeconfigs, self._programs["kube-scheduler"], config)

    def _finish(self, record: Record) -> Cluster:
        raise_for_dead(record.processes, "at the end of up")
        ready = Record(record.spec, "ready", record.ports, record.processes)
        self._place.write(ready)
        self._report("ready")
        return Cluster(self._place, ready)

    def _add(self, record: Record, started: Mapping[str, Process]) -> Record:
        record = record.with_processes(started)
        self._place.write(record)
        return record


def down(name: str, report: Report = silent) -> bool:
    """Remove a cluster in any state. Return False if there was none of this name."""
    place = state.place(name)
    with place.lock(report):
        found = place.directory.exists()
        _remove(place)
    return found


def status(name: str | None = None) -> list[dict[str, Any]]:
    """Return JSON objects about all clusters, or about the one of this name.

    One that is half-started or half-removed has the phase broken, and fewer keys.
    """
    found = [place for place in state.places() if name in {None, place.name}]
    return [_describe(place) for place in found]


def _describe(place: Place) -> dict[str, Any]:
    record = place.read()
    if record is None:
        return {"name": place.name, "phase": "broken", "directory": str(place.directory)}
    try:
        return Cluster(place, record).describe()
    except KeyError:
        alive = {name: process.alive for name, process in record.processes.items()}
        return {"name": place.name, "phase": "broken", "directory": str(place.directory), "alive": alive}


def _remove(place: Place) -> None:
    record = place.read()
    known = dict(record.processes) if record else {}
    ours = [process for name, process in known.items() if name in components.PROCESSES]
    rest = [process for name, process in known.items() if name not in components.PROCESSES]
    processes.stop(ours)
    processes.stop(rest, signal.SIGKILL)
    # An `up` that was killed may have recorded kwokctl, but not yet the processes that kwokctl started.
    processes.stop(kwok.running(place).values(), signal.SIGKILL)
    place.remove()
