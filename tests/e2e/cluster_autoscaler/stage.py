"""A stage for stories with a Cluster Autoscaler that is played, in clusters of two zones with one small node each."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from bench.cluster import Cluster, Spec
from bench.cluster.nodes import ZONE
from tests.support.cluster_autoscaler import CONSUMES, ClusterAutoscaler, NodeGroup
from tests.support.cluster_stage import ClusterStage, eventually
from tests.support.clusters import run_cluster
from tests.support.foreign_autoscalers import is_served
from tests.support.go_modules import locate

Raw = dict[str, Any]

WHOLE_NODE = "3"
"""The CPU of a pod beside which no other one has room on a node."""

SPEC = Spec(name="autoscaled", nodes=2, racks=2, blocks=2, zones=2, node_cpu="4", api="fallback", hold="gate")

_APIS = ("k8s.io/autoscaler/cluster-autoscaler/apis", "v0.0.0-20240830133931-adfbe7e45277")
_CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps"
_REQUEST_CRD = "provisioningrequests.autoscaling.x-k8s.io"


@contextmanager
def autoscaled(spec: Spec, directories: pytest.TempPathFactory, *, requests: bool) -> Iterator[Cluster]:
    """A cluster in which the extender has found Cluster Autoscaler; it serves ProvisioningRequests if ``requests``."""
    crd = locate(*_APIS) / "config" / "crd" / "autoscaling.x-k8s.io_provisioningrequests.yaml"
    with run_cluster(spec, directories) as cluster:
        if requests:
            cluster.kubectl("create", "-f", str(crd))
            cluster.kubectl("wait", "crd", _REQUEST_CRD, "--for=condition=Established", "--timeout=30s")
            group, plural = "autoscaling.x-k8s.io", "provisioningrequests"
            eventually("the API of ProvisioningRequests", lambda: is_served(cluster, group, plural))
            eventually("its group", lambda: group in _list_api_groups(cluster))
        data = {"status": "autoscalerStatus: Running"}
        cluster.api.post(_CONFIG_MAPS, {"metadata": {"name": "cluster-autoscaler-status"}, "data": data})
        yield cluster


def _list_api_groups(cluster: Cluster) -> list[str]:
    return [each["name"] for each in cluster.api.get("/apis")["groups"]]


class AutoscaledStage(ClusterStage):
    """A namespace of gangs whose members fill a node each, and the autoscaler of its story."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        super().__init__(cluster, namespace)
        self.autoscaler = ClusterAutoscaler(cluster.api, [NodeGroup(f"zone-{each}", "4", 6) for each in range(2)])

    def await_ready(self) -> None:
        """The extender knows that there is a Cluster Autoscaler."""
        found = lambda: self.selfcheck()["autoscalers"]["found"] == "Cluster Autoscaler"  # noqa: E731
        eventually("an autoscaler that is found", found)

    def close(self) -> None:
        """Everything goes, the nodes that were added, too."""
        self.autoscaler.remove_all()
        super().close()

    def limit(self, nodes: int) -> None:
        """So many nodes may be added in each zone."""
        for group in self.autoscaler.groups:
            group.left = nodes

    def create_gang(self, name: str, need: int, members: int | None = None, **metadata: Any) -> None:
        """A gang that has to be in one zone, and its first members: all that it needs, or so many."""
        self.create_group(name, need, ZONE)
        self.add_members(name, need if members is None else members, **metadata)

    def add_members(self, name: str, count: int, **metadata: Any) -> None:
        """Add members to a gang."""
        first = len(self.pods(f"{name}-"))
        names = [f"{name}-{number}" for number in range(first, first + count)]
        self.create_pods(names, name, cpu=WHOLE_NODE, **metadata)

    # --- what people see ---------------------------------------------------------------------------------------

    def requests(self) -> list[Raw]:
        """The ProvisioningRequests of the namespace."""
        path = f"/apis/autoscaling.x-k8s.io/v1/namespaces/{self.namespace}/provisioningrequests"
        found: list[Raw] = self.cluster.api.get(path)["items"]
        return found

    def pod_templates(self) -> list[Raw]:
        """The PodTemplates of the namespace."""
        found: list[Raw] = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/podtemplates")["items"]
        return found

    def candidates(self) -> set[str]:
        """The names of the pods for which nodes would be added."""
        return {each["metadata"]["name"] for each in self.autoscaler.list_candidates()}

    def await_request(self, gang: str) -> Raw:
        """The one ProvisioningRequest that there is, once there is one for this gang with its PodTemplates."""

        def find() -> Raw | None:
            found = [each for each in self.requests() if each["metadata"]["name"].startswith(f"serried-{gang}-")]
            made = {each["metadata"]["name"] for each in self.pod_templates()}
            whole = found and {each["podTemplateRef"]["name"] for each in found[0]["spec"]["podSets"]} <= made
            return found[0] if whole else None

        try:
            request = eventually(f"a ProvisioningRequest of {gang}", find)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._explain(gang)}") from None
        assert len(self.requests()) == 1
        return request

    def consumed(self, gang: str) -> list[str]:
        """Return the names of the ProvisioningRequests that the members of a gang consume."""
        annotations: list[Mapping[str, str]] = [
            each["metadata"].get("annotations", {}) for each in self.pods(f"{gang}-")
        ]
        return [each[CONSUMES] for each in annotations if CONSUMES in each]

    def zones(self, gang: str) -> set[str]:
        """The zones in which the bound members of a gang are."""
        nodes = self.cluster.api.get("/api/v1/nodes")["items"]
        zones = {node["metadata"]["name"]: node["metadata"]["labels"][ZONE] for node in nodes}
        return {zones[node] for node in self.bound(f"{gang}-").values()}

    def selectors(self, gang: str) -> list[Raw]:
        """The node selectors of the members of a gang."""
        return [each["spec"].get("nodeSelector", {}) for each in self.pods(f"{gang}-")]
