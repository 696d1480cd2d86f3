"""Autoscalers as ``serried check`` finds them, by the same signs as the extender. Only values, without I/O."""

from dataclasses import dataclass

from serried.api.names import Raw, read_labels, read_map, read_objects, read_text

KARPENTER_GROUP = "karpenter.sh"
"""The API group that is served where Karpenter is installed."""

STATUS_NAMESPACE, STATUS_NAME = "kube-system", "cluster-autoscaler-status"
"""The ConfigMap that Cluster Autoscaler writes in each of its loops."""

_EXCLUDING = "DoesNotExist"


@dataclass(frozen=True, slots=True)
class Autoscalers:
    """The autoscalers of a cluster."""

    karpenter: bool = False
    """Whether the API group of Karpenter is served."""

    cluster_autoscaler: bool = False
    """Whether the ConfigMap of Cluster Autoscaler exists."""

    pool_labels: frozenset[str] | None = frozenset()
    """The label keys that the NodePools of Karpenter give to new nodes; None if NodePools could not be read."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the autoscalers that were found."""
        found = (("Karpenter", self.karpenter), ("Cluster Autoscaler", self.cluster_autoscaler))
        return tuple(name for name, is_there in found if is_there)


def read_pool_labels(pool: Raw) -> frozenset[str]:
    """Return the label keys that a NodePool gives to its nodes: of its template's labels and requirements.

    Raises ValueError for a malformed NodePool.
    """
    template = read_map(read_map(pool, "spec"), "template")
    requirements = read_objects(read_map(template, "spec"), "requirements")
    required = {read_text(each, "key") for each in requirements if read_text(each, "operator") != _EXCLUDING}
    return frozenset({*read_labels(read_map(template, "metadata"), "labels"), *required} - {""})
