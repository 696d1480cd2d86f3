"""The autoscalers that ``serried check`` finds in a cluster. Only values and decoding, without I/O.

The signs are those by which the extender finds them: the API group of Karpenter, the ConfigMap of Cluster Autoscaler.
"""

from dataclasses import dataclass

from serried.api.names import Raw
from serried.api.node_pool import NodePool, decode_node_pool

KARPENTER_GROUP = "karpenter.sh"
"""The API group of Karpenter. If the API server serves it, Karpenter counts as installed."""

STATUS_NAMESPACE, STATUS_NAME = "kube-system", "cluster-autoscaler-status"
"""Namespace and name of the ConfigMap that Cluster Autoscaler updates all the time.

If it exists, Cluster Autoscaler counts as installed.
"""


@dataclass(frozen=True, slots=True)
class Autoscalers:
    """The autoscalers of a cluster."""

    karpenter: bool = False
    """True if the API group of Karpenter is served."""

    cluster_autoscaler: bool = False
    """True if the ConfigMap of Cluster Autoscaler exists."""

    pool_labels: frozenset[str] | None = frozenset()
    """The label keys that new nodes of Karpenter's NodePools have; None if NodePools could not be read."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the autoscalers that were found."""
        found = (("Karpenter", self.karpenter), ("Cluster Autoscaler", self.cluster_autoscaler))
        return tuple(name for name, is_there in found if is_there)


def read_pool_labels(pool: Raw) -> frozenset[str]:
    """Return the label keys that new nodes of a Karpenter NodePool have, by its template's labels and its requirements.

    Return an empty set for a NodePool that is malformed, or that adds no nodes for pending pods.
    """
    found = decode_node_pool(pool)
    if not isinstance(found, NodePool) or not found.adds_nodes:
        return frozenset()
    return frozenset({*found.labels, *(each.key for each in found.requirements)})
