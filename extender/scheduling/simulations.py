"""Calls of filter in which kube-scheduler only tries something out.

With its gate TopologyAwareWorkloadScheduling it places a group that has ``schedulingConstraints`` in one domain after
another, each with the nodes of that domain alone, and goes on with the best (upstream's
pkg/scheduler/schedule_one_podgroup.go). That a member's node is missing there says nothing of the node.
"""

from collections.abc import Mapping, Sequence

from serried.cluster.store import Store
from serried.model.group import PodGroup
from serried.model.node import Node
from serried.model.pod import Link, Pod


def find_tried_domain(group: PodGroup | None, pod: Pod, names: Sequence[str], store: Store) -> str | None:
    """The domain of all offered nodes, where the scheduler may be trying one after another; else None."""
    if group is None or not group.constrained or pod.link is not Link.FIELD or not names:
        return None
    if not store.schedules_gangs and not group.told_natively:
        return None
    first = find_domain(group, names[0], store.nodes)
    return first if all(find_domain(group, name, store.nodes) == first for name in names) else None


def find_domain(group: PodGroup | None, name: str, nodes: Mapping[str, Node]) -> str | None:
    """The domain of the group's key in which a node is."""
    node = nodes.get(name)
    key = None if group is None else group.topology_key
    return None if node is None or key is None else node.labels.get(key)
