"""Stories of gangs that need nodes which do not exist yet, told with the real Karpenter beside Serried."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from bench.cluster import Cluster
from bench.cluster.nodes import ZONE
from bench.karpenter import Batch, Karpenter
from tests.support.cluster_stage import ClusterStage, Raw, eventually

ASKED = "scheduling.serried.dev/asked-for-nodes"
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
TEAM = "example.com/team"
"""A label that nodes have only if the NodePool that they are of says so."""

REGISTERED = "karpenter.sh/registered"
GATE = "scheduling.serried.dev/held"
MEMBER_CPU = "30"
"""So much CPU that a node holds one member, and that no node of the cluster has it while the cluster is filled."""

NEVER = "24h"
"""After so long a node is there that no story sees."""

ZONES = ("zone-0", "zone-1")


class KarpenterStage(ClusterStage):
    """A namespace with a NodePool of the same name, in a cluster whose own nodes are full."""

    karpenter: Karpenter

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        super().__init__(cluster, namespace)
        self._earlier = len(self.karpenter.list_batches())
        self._pools: dict[str, bool] = {}
        """The NodePools of the story, each with whether its nodes come."""

    def await_ready(self) -> None:
        """New members are held by scheduling gate, and no node of the cluster itself has room for one."""
        eventually("the way of holding", lambda: self.selfcheck()["hold"]["way"] == "gate")
        self.fill()

    def close(self) -> None:
        """Clear the namespace, and take the NodePool's nodes away: each once Karpenter knows it, or it would stay."""
        super().close()
        for pool, come in self._pools.items():
            if come:
                eventually("registered nodes", partial(self._all_registered, pool), 60)
            self.karpenter.delete_claims(pool)
        eventually("no node of Karpenter's", lambda: not (self.claims() or self.nodes()), 60)
        for pool in self._pools:
            self.karpenter.delete_pool(pool)
        eventually("no NodePool", lambda: not self._pools.keys() & self.karpenter.list_pools(), 60)

    def _all_registered(self, pool: str) -> bool:
        registered = [each for each in self.karpenter.list_nodes(pool) if REGISTERED in each["metadata"]["labels"]]
        return len(registered) == len(self.karpenter.list_claims(pool))

    # --- what people do ----------------------------------------------------------------------------------------

    def fill(self) -> None:
        """A plain pod takes most of each node of the cluster itself."""
        nodes = [each["metadata"]["name"] for each in self.cluster.api.get("/api/v1/nodes")["items"]]
        for node in nodes:
            self.create_pods([f"filler-{node}"], cpu=MEMBER_CPU, nodeName=node)

    def create_pool(self, zones: Sequence[str] = ZONES, team: str = "", **fields: Any) -> None:
        """A NodePool that buys nodes in these zones, for a team if one is named.

        ``fields`` are more of those of Karpenter.create_pool.
        """
        name = f"{self.namespace}-{team}" if team else self.namespace
        if team:
            fields["labels"] = {TEAM: team}
        self._pools[name] = fields.get("delay") != NEVER
        self.karpenter.create_pool(name, zones, **fields)
        eventually("a ready NodePool", lambda: self.karpenter.pool_is_ready(name))

    def submit(
        self, name: str, size: int, members: int | None = None, key: str | None = None, selector: Raw | None = None
    ) -> None:
        """A gang of ``size`` whose members fill a node each, and have a node selector if there is one.

        ``members`` of them exist, all unless that is said.
        """
        self.create_group(name, size, key)
        self.add_members(name, size if members is None else members, selector=selector)

    def add_members(self, name: str, count: int, start: int = 0, selector: Raw | None = None) -> None:
        """So many members of a gang are created, numbered from ``start``."""
        members = [f"{name}-{number}" for number in range(start, start + count)]
        self.create_pods(members, name, cpu=MEMBER_CPU, nodeSelector=selector or {})

    def buy_by_plain_pod(self, name: str) -> None:
        """A plain pod for which there is no room, and the node that Karpenter buys for it: one batch has passed."""
        self.create_pods([name], cpu=MEMBER_CPU)
        self.await_bound(name, 1, 60)

    # --- what people see ---------------------------------------------------------------------------------------

    def claims(self) -> list[Raw]:
        """The NodeClaims of the story's NodePools."""
        return [claim for pool in self._pools for claim in self.karpenter.list_claims(pool)]

    def nodes(self) -> list[Raw]:
        """The Nodes that were bought for the story's NodePools."""
        return [node for pool in self._pools for node in self.karpenter.list_nodes(pool)]

    def list_names(self) -> set[str]:
        """The names of these Nodes."""
        return {node["metadata"]["name"] for node in self.nodes()}

    def batches(self) -> list[Batch]:
        """Return the batches of NodeClaims that Karpenter has made since the story began."""
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

    def asking(self, prefix: str) -> list[str]:
        """The names of the pods that are shown to Karpenter."""
        return sorted(
            pod["metadata"]["name"] for pod in self.pods(prefix) if ASKED in pod["metadata"].get("annotations", {})
        )

    def await_waiting(self, group: str) -> None:
        """The gang is whole, and waits for something else than members."""
        eventually(
            f"{group} waits whole", lambda: self.debug_page(group).get("reason") not in {None, "", "QuorumMissing"}
        )

    def protected_nodes(self) -> set[str]:
        """The names of the Nodes that Karpenter may not take away."""
        return {
            each["metadata"]["name"]
            for each in self.nodes()
            if each["metadata"].get("annotations", {}).get(DO_NOT_DISRUPT) == "true"
        }

    def said_by_karpenter(self, pod: str) -> list[str]:
        """Return the messages of Karpenter's events about a pod."""
        found = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [
            str(each["message"])
            for each in found
            if each["involvedObject"]["name"] == pod and "karpenter" in (each["source"].get("component") or "")
        ]


def is_gated(pod: Raw) -> bool:
    """Return whether Serried's scheduling gate is on a pod."""
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates", ()))
