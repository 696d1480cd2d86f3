"""Stories of gangs that need nodes which do not exist yet, told with the real Karpenter beside Serried."""

from collections.abc import Sequence
from typing import Any

from bench.cluster import Cluster
from bench.cluster.nodes import ZONE
from bench.karpenter import Batch, Karpenter
from tests.support.cluster_stage import ClusterStage, eventually

GATE = "scheduling.serried.dev/held"
MEMBER_CPU = "30"
"""So much CPU that a node holds one member, and that no node of the cluster has it while the cluster is filled."""

ZONES = ("zone-0", "zone-1")


class KarpenterStage(ClusterStage):
    """A namespace with a NodePool of the same name, in a cluster whose own nodes are full."""

    karpenter: Karpenter

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        super().__init__(cluster, namespace)
        self._earlier = len(self.karpenter.list_batches())

    def await_ready(self) -> None:
        """New members are held by scheduling gate, and no node of the cluster itself has room for one."""
        eventually("the way of holding", lambda: self.selfcheck()["hold"]["way"] == "gate")
        self.fill()

    def close(self) -> None:
        """Clear the namespace, and take the NodePool's nodes away."""
        super().close()
        self.karpenter.delete_pool(self.namespace)
        eventually("no node of Karpenter's", lambda: not (self.claims() or self.nodes()), 60)

    # --- what people do ----------------------------------------------------------------------------------------

    def fill(self) -> None:
        """A plain pod takes most of each node of the cluster itself."""
        nodes = [each["metadata"]["name"] for each in self.cluster.api.get("/api/v1/nodes")["items"]]
        for node in nodes:
            self.create_pods([f"filler-{node}"], cpu=MEMBER_CPU, nodeName=node)

    def create_pool(self, zones: Sequence[str] = ZONES, **fields: Any) -> None:
        """A NodePool that buys nodes in these zones; ``fields`` are those of Karpenter.create_pool."""
        self.karpenter.create_pool(self.namespace, zones, **fields)
        eventually("a ready NodePool", lambda: self.karpenter.pool_is_ready(self.namespace))

    def submit(self, name: str, size: int, members: int | None = None, key: str | None = None) -> None:
        """A gang of ``size`` whose members fill a node each; ``members`` of them exist, all unless that is said."""
        self.create_group(name, size, key)
        self.add_members(name, size if members is None else members)

    def add_members(self, name: str, count: int, start: int = 0) -> None:
        """So many members of a gang are created, numbered from ``start``."""
        self.create_pods([f"{name}-{number}" for number in range(start, start + count)], name, cpu=MEMBER_CPU)

    def buy_by_plain_pod(self, name: str) -> None:
        """A plain pod for which there is no room, and the node that Karpenter buys for it: one batch has passed."""
        self.create_pods([name], cpu=MEMBER_CPU)
        self.await_bound(name, 1, 60)

    # --- what people see ---------------------------------------------------------------------------------------

    def claims(self) -> list[dict[str, Any]]:
        """The NodeClaims of the namespace's NodePool."""
        return self.karpenter.list_claims(self.namespace)

    def nodes(self) -> list[dict[str, Any]]:
        """The Nodes that were bought for the namespace's NodePool."""
        return self.karpenter.list_nodes(self.namespace)

    def batches(self) -> list[Batch]:
        """What Karpenter has bought since the story began."""
        return self.karpenter.list_batches(self._earlier)

    def zones(self, prefix: str = "") -> set[str]:
        """The zones in which the bound pods are."""
        labels = {
            each["metadata"]["name"]: each["metadata"]["labels"]
            for each in self.cluster.api.get("/api/v1/nodes")["items"]
        }
        return {labels[node][ZONE] for node in self.bound(prefix).values()}

    def gated(self, prefix: str) -> list[str]:
        """The names of the pods that Serried's scheduling gate holds."""
        return sorted(pod["metadata"]["name"] for pod in self.pods(prefix) if is_gated(pod))

    def said_by_karpenter(self, pod: str) -> list[str]:
        """What Karpenter's events say about a pod."""
        found = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [
            str(each["message"])
            for each in found
            if each["involvedObject"]["name"] == pod and "karpenter" in (each["source"].get("component") or "")
        ]


def is_gated(pod: dict[str, Any]) -> bool:
    """Whether Serried's scheduling gate is on a pod."""
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates", ()))
