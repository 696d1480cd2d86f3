"""Ignores the topology key of a gang if it contradicts the hosts that Kueue has chosen for the members.

Kueue's topology-aware scheduling gives each member a nodeSelector with its host, or with the label of a wider level. If
the PodGroup requires a single domain of a key, and the hosts are in several domains, no plan is possible. The gang
would wait until Kueue evicts it, and might get the same hosts again. So `KueueTopology.describe_ignored_key` lets the
core ignore the key (docs/decisions/0061-kueue-chooses-hosts-first.md). An event says so (`extender.features.status`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from extender.core.feature import Feature
from extender.core.parts import Parts
from serried.api.group import PodGroup
from serried.api.interpod import HOSTNAME
from serried.api.names import join_some
from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.reservation import Reservation
from serried.plan.quorum import GroupMembers

POD_SET = "kueue.x-k8s.io/podset"
"""The label that Kueue gives each pod of a workload that it admits.

Source: Kueue 0.19, pkg/constants/constants.go.
"""

_SHOWN = 3
"""The most domains that the event names."""


class KueueTopology(Feature):
    """The feature that ignores a PodGroup's topology key if Kueue has chosen hosts in several domains of it."""

    member_labels = (POD_SET,)

    concerns = attrgetter("named_topology")

    def __init__(self, parts: Parts) -> None:
        self._store = parts.context.store
        self._nodes = parts.context.store.nodes

    def recover(self, records: Sequence[Reservation]) -> None:
        """Ignore the topology keys that contradict Kueue's choice of hosts, for the gangs of ``records``.

        Trees are left out. Called before these records of earlier terms are restored. Their slots were planned without
        these keys, so they may be in several domains.
        """
        for record in records:
            group = self._store.groups.get(record.group)
            if group is not None and group.named_topology is not None and group.branch is None:
                self._store.ignore_topology(
                    group.key, self.describe_ignored_key(group, self._store.members.classify(group.key))
                )

    def describe_ignored_key(self, group: PodGroup, members: GroupMembers) -> str:
        """Return why the PodGroup's topology key is ignored, such as "Kueue has chosen hosts in rack-1, rack-2".

        Return "" if the key counts, because the hosts are all in one domain or Kueue has chosen none.
        """
        key = group.named_topology
        if key is None:
            return ""
        domains = find_domains(key, (*members.bound, *members.waiting), self._nodes)
        if len(domains) < 2:
            return ""
        return f"Kueue has chosen hosts in {join_some(sorted(domains), _SHOWN)}"


def find_domains(key: str, pods: Iterable[Pod], nodes: Mapping[str, Node]) -> set[str]:
    """Return the domains of the topology key ``key`` in which Kueue lets the pods run.

    A pod's nodeSelector names the domain itself, or a host whose node is in it. Hosts whose node has no such label
    count as one domain, "no domain". Hosts without a node, and pods that Kueue does not manage, are ignored.
    """
    return {domain for pod in pods if POD_SET in pod.labels for domain in _list_domains(key, pod, nodes)}


def _list_domains(key: str, pod: Pod, nodes: Mapping[str, Node]) -> Iterator[str]:
    for name, value in pod.shape.node_selector:
        if name == key:
            yield value
        elif name == HOSTNAME:
            node = nodes.get(value)  # the hostname label is the node's name, except with a few providers
            if node is not None and node.labels.get(HOSTNAME) == value:
                yield node.labels.get(key, "no domain")
