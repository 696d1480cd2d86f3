"""Pods of the shipped Deployments on a control plane, each with its own kubelet."""

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
    """What runs Pods on a cluster that was started without Serried. ``directory`` is for files and logs.

    Who leads is who holds the Lease ``elected_by``.
    """

    def __init__(self, cluster: Cluster, directory: Path, elected_by: str = components.LEASE) -> None:
        self.cluster = cluster
        self.elected_by = elected_by
        self.pods: dict[str, Kubelet] = {}
        """The pairs, by name."""
        self.controllers: dict[str, Kubelet] = {}
        self.schedulers: dict[str, Kubelet] = {}
        """Those that have no extender beside them."""
        self.environment: Mapping[str, str] = {}
        """What the containers of Pods that are started from now on find in their environment besides."""
        self._directory = directory
        self._program = binaries.locate(cluster.spec.kubernetes, silent, cluster.spec.scheduler)["kube-scheduler"]
        self._taken: set[int] = set()
        self._started = 0
        installation.apply(cluster.kubectl_program, cluster.kubeconfig, installation.pieces(cluster.spec))
        wait_for("our CRDs", lambda: installation.established(cluster.api), {}, _READY_SECONDS)
        port = int(cluster.server.rpartition(":")[2])
        pki = cluster.kubeconfig.parent / "pki" / "ca.crt"
        self.kubeconfigs = installation.write_kubeconfigs(cluster.api, port, pki, directory / "credentials")
        """By process: what is written there counts for those that are started from then on."""

    def run(self, name: str) -> Kubelet:
        """Start a pair in a Pod of this name."""
        found = self._pick(_MANIFEST_PORTS)
        containers = read_pod("serried.yaml", "serried")
        config = self._directory / f"{name}.yaml"
        config.write_text(installation.scheduler_config(self.cluster.spec, self.kubeconfigs["scheduler"], found))
        scheduler = components.run_scheduler(
            self.cluster.spec, found, self.kubeconfigs["scheduler"], self._program, config
        )
        here = {_MANIFEST_PORTS[port]: number for port, number in found.items()}
        (extender,) = [each for each in containers if each.name == "extender"]
        commands = {"scheduler": scheduler, "extender": self._python("extender", extender, here)}
        self.pods[name] = self._start(name, containers, commands, here)
        return self.pods[name]

    def run_another(self) -> Kubelet:
        """Start one more pair, under a name that no Pod had."""
        self._started += 1
        return self.run(f"serried-{self._started}")

    def replace(self) -> None:
        """End every pair, and start two others."""
        for pod in self.pods.values():
            pod.vanish()
        self.pods.clear()
        for _ in range(2):
            self.run_another()

    def run_extender(self, name: str, *flags: str) -> Kubelet:
        """Start an extender alone in a Pod of this name, with these flags behind those of the manifest."""
        found = self._pick(_MANIFEST_PORTS)
        here = {_MANIFEST_PORTS[port]: number for port, number in found.items()}
        (extender,) = [each for each in read_pod("serried.yaml", "serried") if each.name == "extender"]
        command = [*self._python("extender", extender, here), *flags]
        self.pods[name] = self._start(name, [extender], {"extender": command}, here)
        return self.pods[name]

    def run_scheduler(self, name: str, config: Mapping[str, Any]) -> Kubelet:
        """Start a scheduler alone, with this config but for its credentials."""
        found = self._pick({"scheduler": _MANIFEST_PORTS["scheduler"]})
        kubeconfig = self.kubeconfigs["scheduler"]
        path = self._directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**config, "clientConnection": {"kubeconfig": str(kubeconfig)}}))
        command = components.run_scheduler(self.cluster.spec, found, kubeconfig, self._program, path)
        # Nobody probes it here: what is beside it is not its extender.
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
        """Somebody deletes the Lease of who leads."""
        self.cluster.api.delete(self._find_lease())

    def close(self) -> None:
        """End everything."""
        for pod in (*self.pods.values(), *self.controllers.values(), *self.schedulers.values()):
            pod.vanish()

    # --- what is seen ------------------------------------------------------------------------------------------

    def lease(self, name: str = "") -> Mapping[str, Any]:
        """The spec of a Lease; "" is that of who leads."""
        spec: Mapping[str, Any] = self.cluster.api.get(self._find_lease(name))["spec"]
        return spec

    def holder(self, name: str = "") -> str:
        """The Pod that holds a Lease; "" for none."""
        try:
            return str(self.lease(name).get("holderIdentity") or "").rpartition("_")[0]
        except ApiError as error:
            if error.status != http.client.NOT_FOUND:
                raise
            return ""

    def renewed(self, name: str = "") -> datetime:
        """When a Lease was renewed last."""
        return datetime.fromisoformat(self.lease(name)["renewTime"])

    def leader(self) -> Kubelet | None:
        """The pair that leads, and plans; None if there is none at this moment."""
        pod = self.pods.get(self.holder())
        return pod if pod is not None and pod.is_ready() and self.selfcheck(pod).get("planning") else None

    def others(self, pod: Kubelet) -> list[Kubelet]:
        """The pairs beside this one."""
        return [each for each in self.pods.values() if each is not pod]

    def selfcheck(self, pod: Kubelet) -> dict[str, Any]:
        """What an extender says of itself; empty if it says nothing."""
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
        """The container's command with this machine's ports, and what is asked of the cluster."""
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
