"""Run Pods of the shipped Deployments on a control plane, each with its own simulated kubelet."""

import http.client
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import yaml

from bench.cluster import Cluster, binaries, components, installation, ports
from bench.cluster.api import ApiError
from bench.cluster.installation import NAMESPACE
from bench.cluster.ports import LOOPBACK
from bench.cluster.progress import silent
from bench.cluster.waiting import wait_for
from bench.failover.kubelet import Kubelet, launch_in_pod
from bench.failover.pods import Container, read_pod

_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
_MANIFEST_PORTS = {"filter": 8910, "bind": 8911, "ops": 8912, "scheduler": 10259}
_CONTROLLER_PORTS = {"controller-ops": 8913}
_READY_SECONDS = 60.0


class Pairs:
    """Runs pairs of scheduler and extender, and controllers, on a cluster that was started without Serried.

    ``directory`` gets their files and logs. The pair whose scheduler holds the Lease ``elected_by`` leads. Call `close`
    at the end.
    """

    def __init__(self, cluster: Cluster, directory: Path, elected_by: str = components.LEASE) -> None:
        self.cluster = cluster
        self.elected_by = elected_by
        self.pods: dict[str, Kubelet] = {}
        """The Pods with an extender, by name: pairs, and extenders alone."""
        self.controllers: dict[str, Kubelet] = {}
        self.schedulers: dict[str, Kubelet] = {}
        """The schedulers that run without an extender, by name."""
        self.environment: Mapping[str, str] = {}
        """More environment variables of the Pods that are started from now on."""
        self._directory = directory
        self._program = binaries.locate(cluster.spec.kubernetes, silent, cluster.spec.scheduler)["kube-scheduler"]
        self._taken: set[int] = set()
        self._started = 0
        installation.apply(cluster.kubectl_program, cluster.kubeconfig, installation.pieces(cluster.spec))
        wait_for("our CRDs", lambda: installation.established(cluster.api), {}, _READY_SECONDS)
        port = int(cluster.server.rpartition(":")[2])
        pki = cluster.kubeconfig.parent / "pki" / "ca.crt"
        self.kubeconfigs = installation.write_kubeconfigs(cluster.api, port, pki, directory / "credentials")
        """The kubeconfig of each process. Processes read it when they start."""

    def run(self, name: str) -> Kubelet:
        """Start a pair in a Pod of this name, and return it without waiting."""
        found = self._pick(_MANIFEST_PORTS)
        containers = read_pod("serried.yaml", "serried")
        config = self._directory / f"{name}.yaml"
        config.write_text(installation.scheduler_config(self.cluster.spec, self.kubeconfigs["scheduler"], found))
        scheduler = components.scheduler_command(
            self.cluster.spec, found, self.kubeconfigs["scheduler"], self._program, config
        )
        here = {_MANIFEST_PORTS[port]: number for port, number in found.items()}
        (extender,) = [each for each in containers if each.name == "extender"]
        commands = {"scheduler": scheduler, "extender": self._python("extender", extender, here)}
        self.pods[name] = self._start(name, containers, commands, here)
        return self.pods[name]

    def run_another(self) -> Kubelet:
        """Start one more pair, with a new name."""
        self._started += 1
        return self.run(f"serried-{self._started}")

    def replace(self) -> None:
        """Kill all pairs, and start two new ones."""
        for pod in self.pods.values():
            pod.power_off()
        self.pods.clear()
        for _ in range(2):
            self.run_another()

    def run_extender(self, name: str, *flags: str) -> Kubelet:
        """Start an extender without a scheduler, with the flags of the manifest and more."""
        found = self._pick(_MANIFEST_PORTS)
        here = {_MANIFEST_PORTS[port]: number for port, number in found.items()}
        (extender,) = [each for each in read_pod("serried.yaml", "serried") if each.name == "extender"]
        command = [*self._python("extender", extender, here), *flags]
        self.pods[name] = self._start(name, [extender], {"extender": command}, here)
        return self.pods[name]

    def run_scheduler(self, name: str, config: Mapping[str, Any]) -> Kubelet:
        """Start a scheduler without an extender, with this configuration and the cluster's credentials."""
        found = self._pick({"scheduler": _MANIFEST_PORTS["scheduler"]})
        kubeconfig = self.kubeconfigs["scheduler"]
        path = self._directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**config, "clientConnection": {"kubeconfig": str(kubeconfig)}}))
        command = components.scheduler_command(self.cluster.spec, found, kubeconfig, self._program, path)
        # The shipped probes are left out: they also check the extender beside the scheduler, which is missing here.
        alone = Container("scheduler", (), sidecar=False, startup=None, liveness=None, readiness=None)
        self.schedulers[name] = self._start(name, [alone], {"scheduler": command}, {})
        return self.schedulers[name]

    def run_controller(self, name: str) -> Kubelet:
        """Start a controller in a Pod of this name."""
        found = self._pick(_CONTROLLER_PORTS)
        containers = read_pod("controller.yaml", "serried-controller")
        here = {_CONTROLLER_PORTS[port]: number for port, number in found.items()}
        (container,) = containers
        commands = {"controller": self._python("controller", container, here)}
        self.controllers[name] = self._start(name, containers, commands, here)
        return self.controllers[name]

    def delete_lease(self) -> None:
        """Delete the Lease of the election of pairs."""
        self.cluster.api.delete(self._find_lease())

    def close(self) -> None:
        """Kill all Pods."""
        for pod in (*self.pods.values(), *self.controllers.values(), *self.schedulers.values()):
            pod.power_off()

    # --- what is seen ------------------------------------------------------------------------------------------

    def lease(self, name: str = "") -> Mapping[str, Any]:
        """Return the spec of a Lease; "" names the Lease of the election of pairs."""
        spec: Mapping[str, Any] = self.cluster.api.get(self._find_lease(name))["spec"]
        return spec

    def holder(self, name: str = "") -> str:
        """Return the name of the Pod that holds a Lease; "" if none does."""
        try:
            return str(self.lease(name).get("holderIdentity") or "").rpartition("_")[0]
        except ApiError as error:
            if error.status != http.client.NOT_FOUND:
                raise
            return ""

    def renewed(self, name: str = "") -> datetime:
        """Return the time of a Lease's last renewal."""
        return datetime.fromisoformat(self.lease(name)["renewTime"])

    def leader(self) -> Kubelet | None:
        """Return the pair that holds the Lease, is ready and plans; None if there is none now."""
        pod = self.pods.get(self.holder())
        return pod if pod is not None and pod.is_ready() and self.selfcheck(pod).get("planning") else None

    def others(self, pod: Kubelet) -> list[Kubelet]:
        """Return all pairs except this one."""
        return [each for each in self.pods.values() if each is not pod]

    def selfcheck(self, pod: Kubelet) -> dict[str, Any]:
        """Return the extender's answer of `/debug/selfcheck`; empty if it does not answer."""
        try:
            answer = httpx.get(f"http://{LOOPBACK}:{pod.ports[_MANIFEST_PORTS['ops']]}/debug/selfcheck", timeout=2.0)
        except httpx.HTTPError:
            return {}
        found: dict[str, Any] = answer.json() if answer.status_code == httpx.codes.OK else {}
        return found

    # --- steps -------------------------------------------------------------------------------------------------

    def _find_lease(self, name: str = "") -> str:
        return f"{_LEASES}/{name or self.elected_by}"

    def _pick(self, named: Mapping[str, int]) -> dict[str, int]:
        found = ports.pick(list(named), self._taken)
        self._taken.update(found.values())
        return found

    def _python(self, module: str, container: Container, here: Mapping[int, int]) -> list[str]:
        """Return the container's command with this machine's ports and with the flags of the cluster's spec."""
        spec = self.cluster.spec
        more = ["--hold", "filter", *spec.serried_args] if module == "extender" else []
        flags = ["--kubeconfig", str(self.kubeconfigs[module]), "--api", spec.api, *more]
        arguments = [re.sub(r"(?<=:)\d+", lambda port: str(here[int(port[0])]), each) for each in container.arguments]
        return [sys.executable, "-m", module, *arguments, *flags]

    def _start(
        self, pod: str, containers: Sequence[Container], commands: Mapping[str, Sequence[str]], here: Mapping[int, int]
    ) -> Kubelet:
        logs = self._directory / "logs"
        launches = {
            name: partial(launch_in_pod, pod, argv, logs / f"{pod}-{name}.log", dict(self.environment))
            for name, argv in commands.items()
        }
        kubelet = Kubelet(pod, containers, launches, here)
        kubelet.start()
        return kubelet
