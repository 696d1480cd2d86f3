"""Autoscalers as ``serried check`` finds them, by the same signs as the extender. Only values, without I/O."""

from dataclasses import dataclass

from serried.api.names import Raw
from serried.api.node_pool import NodePool, decode_node_pool

KARPENTER_GROUP = "karpenter.sh"
"""The API group that is served where Karpenter is installed."""

STATUS_NAMESPACE, STATUS_NAME = "kube-system", "cluster-autoscaler-status"
"""The ConfigMap that Cluster Autoscaler writes in each of its loops."""


@dataclass(frozen=True, slots=True)
class Autoscalers:
    """The autoscalers of a cluster."""

    karpenter: bool = False
    """True if the API group of Karpenter is served."""

    cluster_autoscaler: bool = False
    """True if the ConfigMap of Cluster Autoscaler exists."""

    pool_labels: frozenset[str] | None = frozenset()
    """The label keys that the NodePools of Karpenter give to new nodes; None if NodePools could not be read."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the autoscalers that were found."""
        found = (("Karpenter", self.karpenter), ("Cluster Autoscaler", self.cluster_autoscaler))
        return tuple(name for name, is_there in found if is_there)


def read_pool_labels(pool: Raw) -> frozenset[str]:
    """Return the label keys of which a NodePool says that its nodes have them; none if it adds no nodes for pods."""
    found = decode_node_pool(pool)
    if not isinstance(found, NodePool) or not found.adds_nodes:
        return frozenset()
    return frozenset({*found.labels, *(each.key for each in found.requirements)})
