"""The control-plane shape: the cluster's own scheduler calls a Service by TLS, which leads to whichever extender leads.

A TCP front plays the Service. It goes by the EndpointSlice that the extenders write, as kube-proxy would.
"""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.cluster import Cluster, Spec
from bench.cluster.api import ApiError
from bench.cluster.installation import MANIFESTS, NAMESPACE
from bench.failover.pairs import Pairs
from bench.failover.witness import Witness
from tests.support.certificates import Authority
from tests.support.cluster_stage import eventually
from tests.support.clusters import running
from tests.support.front import Front

pytestmark = [pytest.mark.e2e, pytest.mark.full]

FOLDER = MANIFESTS / "kustomize" / "control-plane"
SLICE = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/serried-verbs"
PLAIN = "plain"
"""The profile beside Serried's: the cluster of these tests has a default-scheduler of its own."""


class Shape:
    """Two extenders, a scheduler elsewhere, and what is between them."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.pairs = Pairs(cluster, directory)
        self._extenders = Authority(directory / "extenders", "extenders")
        self._schedulers = Authority(directory / "schedulers", "schedulers")

    def install(self) -> None:
        self.cluster.kubectl("apply", "-f", str(FOLDER / "rbac.yaml"), "-f", str(FOLDER / "service.yaml"))
        self.cluster.kubectl("apply", "-k", str(MANIFESTS / "kustomize" / "marker"))

    def run_extender(self, name: str, address: str) -> None:
        """With the flags of the shipped component, and the ports and files of this machine."""
        certificate, key = self._extenders.sign("serried")
        files = {
            "--tls-cert-file": certificate,
            "--tls-private-key-file": key,
            "--client-ca-file": self._schedulers.file,
            "--endpoint-address": address,
        }
        kept = [flag for flag in self._flags() if "-listen=" not in flag and flag.partition("=")[0] not in files]
        self.pairs.run_extender(
            name, *kept, "--scheduler-livez=", *(f"{flag}={value}" for flag, value in files.items())
        )

    def _flags(self) -> list[str]:
        patches = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["patches"]
        (patch,) = [yaml.safe_load(each["patch"]) for each in patches if each["target"]["kind"] == "Deployment"]
        (arguments,) = [step["value"] for step in patch if step["path"].endswith("/args")]
        return list(arguments)

    def run_scheduler(self, filters: Front, binds: Front) -> None:
        """With the shipped config."""
        certificate, key = self._schedulers.sign("serried-scheduler")
        config: dict[str, Any] = yaml.safe_load((FOLDER / "scheduler-config.yaml").read_text())
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
        self.pairs.run_scheduler("elsewhere", config)

    def led_to(self, port: str) -> list[int]:
        """Where the Service leads."""
        try:
            found = self.cluster.api.get(SLICE)
        except ApiError:
            return []
        return [each["port"] for each in found["ports"] if each["name"] == port]

    def create_plain(self, name: str) -> None:
        container = {"name": "main", "image": "none"}
        spec = {"schedulerName": PLAIN, "terminationGracePeriodSeconds": 0, "containers": [container]}
        self.cluster.api.post("/api/v1/namespaces/default/pods", {"metadata": {"name": name}, "spec": spec})

    def is_bound(self, name: str) -> bool:
        return bool(self.cluster.api.get(f"/api/v1/namespaces/default/pods/{name}")["spec"].get("nodeName"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane without Serried."""
    with running(Spec(name="front", nodes=12, racks=4, serried=False, hold="filter"), tmp_path_factory) as started:
        yield started


@pytest.fixture
def shape(bare: Cluster, tmp_path: Path) -> Iterator[Shape]:
    made = Shape(bare, tmp_path)
    try:
        made.install()
        yield made
    finally:
        made.pairs.close()


def test_a_scheduler_elsewhere_calls_whichever_extender_leads(shape: Shape) -> None:
    pairs = shape.pairs
    with Front(lambda: shape.led_to("filter")) as filters, Front(lambda: shape.led_to("bind")) as binds:
        shape.run_scheduler(filters, binds)
        # Neither Serried's own pods nor any others wait for it: nobody answers yet.
        shape.create_plain("before")
        eventually("a pod of another profile", lambda: shape.is_bound("before"))

        for name, address in (("extender-a", "10.0.0.1"), ("extender-b", "10.0.0.2")):
            shape.run_extender(name, address)
        eventually("both are ready", lambda: all(pod.is_ready() for pod in pairs.pods.values()), 60)
        holder = eventually("one leads", lambda: pairs.holder("serried-extender"))
        eventually("the Service leads to it", lambda: shape.led_to("bind") == [pairs.pods[holder].ports[8911]])
        witness = Witness(shape.cluster, "front")
        witness.create("before", 4)
        eventually("a gang", lambda: witness.count_bound("before") == 4)

        leader = pairs.pods[holder]
        leader.spoil("extender")
        leader.send("extender", signal.SIGKILL)
        witness.create("after", 4)
        eventually("the next gang", lambda: witness.count_bound("after") == 4, 90)
        assert pairs.holder("serried-extender") != holder
        assert witness.defects == []
        witness.clear()
