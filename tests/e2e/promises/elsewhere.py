"""The control-plane shape: the cluster's own scheduler calls a Service by TLS, which leads to the leading extender.

A TCP front plays the Service. It goes by the EndpointSlice that the extenders write, as kube-proxy would.
"""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from bench.cluster import Cluster
from bench.cluster.api import ApiError
from bench.cluster.installation import MANIFESTS, NAMESPACE
from bench.failover.kubelet import Kubelet
from bench.failover.pairs import Pairs
from tests.support.certificates import Authority
from tests.support.service_proxy import ServiceProxy

PLAIN = "plain"
"""The profile beside Serried's: the cluster of these tests has a default-scheduler of its own."""

_FOLDER = MANIFESTS / "kustomize" / "control-plane"
_SLICE = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/serried-verbs"


class Elsewhere(Pairs):
    """Extenders in Pods of their own, a scheduler elsewhere, and what is between them."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        super().__init__(cluster, directory, elected_by="serried-extender")
        self._extenders = Authority(directory / "extenders", "extenders")
        self._schedulers = Authority(directory / "schedulers", "schedulers")
        self._addresses = (f"10.0.0.{number}" for number in itertools.count(1))
        cluster.kubectl("apply", "-f", str(_FOLDER / "rbac.yaml"), "-f", str(_FOLDER / "service.yaml"))
        cluster.kubectl("apply", "-k", str(MANIFESTS / "kustomize" / "marker"))

    def run(self, name: str) -> Kubelet:
        """Start an extender with the flags of the shipped component, and the ports and files of this machine."""
        certificate, key = self._extenders.sign("serried")
        files = {
            "--tls-cert-file": certificate,
            "--tls-private-key-file": key,
            "--client-ca-file": self._schedulers.file,
            "--endpoint-address": next(self._addresses),
        }
        kept = [flag for flag in _read_flags() if "-listen=" not in flag and flag.partition("=")[0] not in files]
        return self.run_extender(
            name, *kept, "--scheduler-livez=", *(f"{flag}={value}" for flag, value in files.items())
        )

    @contextmanager
    def scheduling(self) -> Iterator[None]:
        """A scheduler with the shipped config calls the Service while the body runs."""
        with ServiceProxy(lambda: self.led_to("filter")) as filters, ServiceProxy(lambda: self.led_to("bind")) as binds:
            self.run_scheduler("elsewhere", self._configure(filters, binds))
            try:
                yield
            finally:
                self.schedulers.pop("elsewhere").power_off()

    def _configure(self, filters: ServiceProxy, binds: ServiceProxy) -> Mapping[str, Any]:
        certificate, key = self._schedulers.sign("serried-scheduler")
        config: dict[str, Any] = yaml.safe_load((_FOLDER / "scheduler-config.yaml").read_text())
        for entry, front in zip(config["extenders"], (filters, binds), strict=True):
            entry["urlPrefix"] = f"https://127.0.0.1:{front.port}"
            entry["tlsConfig"] = {
                "serverName": "localhost",
                "caFile": str(self._extenders.file),
                "certFile": str(certificate),
                "keyFile": str(key),
            }
        config["profiles"][0]["schedulerName"] = PLAIN
        config["leaderElection"] = {"leaderElect": False}
        return config

    def led_to(self, port: str) -> list[int]:
        """Return the ports to which the Service leads."""
        try:
            found = self.cluster.api.get(_SLICE)
        except ApiError:
            return []
        return [each["port"] for each in found["ports"] if each["name"] == port]

    def create_plain(self, name: str) -> None:
        """A pod of the other profile."""
        container = {"name": "main", "image": "none"}
        spec = {"schedulerName": PLAIN, "terminationGracePeriodSeconds": 0, "containers": [container]}
        self.cluster.api.post("/api/v1/namespaces/default/pods", {"metadata": {"name": name}, "spec": spec})

    def is_bound(self, name: str) -> bool:
        """Return whether the pod is bound."""
        return bool(self.cluster.api.get(f"/api/v1/namespaces/default/pods/{name}")["spec"].get("nodeName"))


def _read_flags() -> list[str]:
    patches = yaml.safe_load((_FOLDER / "kustomization.yaml").read_text())["patches"]
    (patch,) = [yaml.safe_load(each["patch"]) for each in patches if each["target"]["kind"] == "Deployment"]
    (arguments,) = [step["value"] for step in patch if step["path"].endswith("/args")]
    return list(arguments)
