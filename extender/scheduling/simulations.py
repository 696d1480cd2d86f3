"""Calls of filter in which kube-scheduler only tries something out.

With its gate TopologyAwareWorkloadScheduling it places a group that has ``schedulingConstraints`` in one domain after
another, each with the nodes of that domain alone, and goes on with the best (upstream's
pkg/scheduler/schedule_one_podgroup.go). That a member's node is missing there says nothing of the node. With its gate
GenericWorkload it also tries where a gang would go if all pods of lower priority were gone (upstream's
pkg/scheduler/framework/preemption/podgrouppreemption.go). That a node is there says nothing of who runs on it.
"""

from collections.abc import Mapping, Sequence

from serried.cluster.store import Store
from serried.model.group import PodGroup
from serried.model.node import Node
from serried.model.pod import Link, Pod


def may_try_out(group: PodGroup | None, pod: Pod, store: Store) -> bool:
    """Whether the scheduler schedules the pod's gang itself, so that any call may be about a cluster that is not."""
    native = store.schedules_gangs or (group is not None and group.told_natively)
    return native and pod.link is Link.FIELD


def find_tried_domain(group: PodGroup | None, pod: Pod, names: Sequence[str], store: Store) -> str | None:
    """The domain of all offered nodes, where the scheduler may be trying one after another; else None."""
    if group is None or not group.constrained or not names or not may_try_out(group, pod, store):
        return None
    first = find_domain(group, names[0], store.nodes)
    return first if all(find_domain(group, name, store.nodes) == first for name in names) else None


def find_domain(group: PodGroup | None, name: str, nodes: Mapping[str, Node]) -> str | None:
    """The domain of the group's key in which a node is."""
    node = nodes.get(name)
    key = None if group is None else group.topology_key
    return None if node is None or key is None else node.labels.get(key)
