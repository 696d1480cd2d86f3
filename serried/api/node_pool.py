"""Karpenter's NodePools (karpenter.sh/v1): which nodes each may add, as far as a gang that asks for nodes has to know.

Decode one with `decode_node_pool`. Sources: Karpenter 1.11, pkg/apis/v1/nodepool.go and pkg/scheduling/requirements.go.
"""

from dataclasses import dataclass, field

from serried.api.names import (
    Malformed,
    Raw,
    decode_or_malformed,
    is_deleting,
    read_key,
    read_labels,
    read_map,
    read_name,
    read_objects,
)
from serried.api.resources import Resources, read_amounts
from serried.api.selectors import Labels, Requirement, Taint, read_requirements, read_taint

NODE_POOL_LABEL = "karpenter.sh/nodepool"
"""Label of each node that Karpenter has added: the name of its NodePool."""


@dataclass(frozen=True, slots=True)
class NodePool:
    """A NodePool of Karpenter: a template for nodes that Karpenter adds when pods do not fit."""

    name: str
    labels: Labels
    """The labels of its template, which each of its nodes gets."""

    requirements: tuple[Requirement, ...] = ()
    """The requirements that the labels of the pool's nodes fulfil, in addition to ``labels``."""

    taints: tuple[Taint, ...] = ()

    adds_nodes: bool = True
    """True if the pool adds nodes for pods: it is ready, is not being deleted, and has no fixed number of nodes."""

    limits: Resources = field(default_factory=dict)
    """The maximum amounts that its nodes may have in total, by resource; ``nodes`` is their number.

    A resource without an entry is not limited.
    """

    provided: Resources = field(default_factory=dict)
    """The amounts that its nodes have in total, from its status. Karpenter updates that with a delay of seconds."""

    def names_label(self, key: str) -> bool:
        """Return whether the NodePool sets or restricts a label with this key for its nodes."""
        return key in self.labels or any(each.key == key for each in self.requirements)

    def list_values(self, key: str) -> frozenset[str] | None:
        """Return the values that the label ``key`` may have on its nodes; None if the NodePool lists no values."""
        if key in self.labels:
            return frozenset((self.labels[key],))
        lists = [frozenset(each.values) for each in self.requirements if each.key == key and each.operator == "In"]
        return frozenset.intersection(*lists) if lists else None

    def count_remaining(self, provided: Resources) -> dict[str, int]:
        """Return how much the NodePool may still add before it reaches its limits, for each limited resource.

        ``provided`` are the amounts that its nodes in the cache have together. The NodePool's status has these amounts,
        too, but may be older or newer. So for each resource the larger of the two counts against the limit.
        """
        return {
            name: max(0, most - max(self.provided.get(name, 0), provided.get(name, 0)))
            for name, most in self.limits.items()
        }

    def allows_label(self, key: str, value: str) -> bool:
        """Return whether a node of the NodePool may have the label ``key`` with this value."""
        values = self.list_values(key)
        barred = any(
            each.key == key and each.operator == "NotIn" and value in each.values for each in self.requirements
        )
        return not barred and (values is None or value in values)


def decode_node_pool(obj: object) -> NodePool | Malformed:
    """Decode a NodePool; the name is required."""
    return decode_or_malformed("NodePool", _decode, obj)


def _decode(obj: Raw) -> NodePool:
    spec, status = read_map(obj, "spec"), read_map(obj, "status")
    template = read_map(spec, "template")
    inner = read_map(template, "spec")
    unready = any(map(_is_unready, read_objects(status, "conditions")))
    return NodePool(
        name=read_key(obj).name,
        labels=read_labels(read_map(template, "metadata"), "labels"),
        requirements=read_requirements(inner, "requirements"),
        taints=tuple(read_taint(raw) for raw in read_objects(inner, "taints")),
        adds_nodes=not (unready or is_deleting(obj) or spec.get("replicas") is not None),
        limits=read_amounts(spec, "limits"),
        provided=read_amounts(status, "resources"),
    )


def _is_unready(condition: Raw) -> bool:
    return read_name(condition, "type") == "Ready" and read_name(condition, "status") == "False"
