"""Serried's planner on the clusters of `truth.worlds`, decoded as the feed decodes objects."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from serried.api.device import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
    decode_device_class,
    decode_device_taint_rule,
    decode_resource_claim,
    decode_resource_slice,
)
from serried.api.interpod import Namespace
from serried.api.names import GroupKey
from serried.api.node import decode_node
from serried.api.pod import Pod, decode_pod
from serried.api.verdict import Verdict
from serried.api.volume import (
    CSIDriver,
    CSINode,
    StorageCapacity,
    StorageClass,
    Volume,
    VolumeClaim,
    decode_csi_driver,
    decode_csi_node,
    decode_storage_capacity,
    decode_storage_class,
    decode_volume,
    decode_volume_claim,
)
from serried.cluster.cache import Store
from serried.cluster.rule import KindState
from serried.plan.eviction import Allowances, EvictionUnit, NoVictims, Preemption
from serried.plan.gang import plan_gang
from serried.plan.preemption import plan_victims
from serried.plan.request import Plan, PlanRequest
from serried.plan.tree import plan_group
from serried.rules.all import RULES
from tests.support.builders import require_valid
from tests.support.preemption import HIGH
from tests.support.rules import run_deferred_work
from tests.support.truth.rules import Cluster, Raw

_STORAGE: dict[str, tuple[type, Callable[[object], Any]]] = {
    "PersistentVolume": (Volume, decode_volume),
    "PersistentVolumeClaim": (VolumeClaim, decode_volume_claim),
    "StorageClass": (StorageClass, decode_storage_class),
    "CSIStorageCapacity": (StorageCapacity, decode_storage_capacity),
    "CSIDriver": (CSIDriver, decode_csi_driver),
    "CSINode": (CSINode, decode_csi_node),
}
_DEVICES: dict[str, tuple[type, Callable[[object], Any]]] = {
    "DeviceClass": (DeviceClass, decode_device_class),
    "ResourceSlice": (ResourceSlice, decode_resource_slice),
    "ResourceClaim": (ResourceClaim, decode_resource_claim),
    "DeviceTaintRule": (DeviceTaintRule, decode_device_taint_rule),
}


class SerriedPlanner:
    """A Store filled with a cluster, and the planner's answers for additional pods."""

    def __init__(self, cluster: Cluster) -> None:
        self.store = Store(["default-scheduler"], rules=RULES)
        self.store.note_state(Namespace, KindState.KNOWN)
        for name, labels in cluster.namespaces.items():
            self.store.put_object(Namespace(name, labels))
        for kinds in (_STORAGE, _DEVICES):
            found = [each for each in cluster.storage if each["kind"] in kinds]
            for kind, _ in kinds.values() if found else ():
                self.store.note_state(kind, KindState.KNOWN)
            for each in found:
                self.store.put_object(require_valid(kinds[each["kind"]][1](each)))
        for node in cluster.nodes:
            self.store.put_node(require_valid(decode_node(node)))
        for index, pod in enumerate(cluster.pods):
            self.store.put_pod(read_pod(pod, f"bound-{index}"))

    def list_feasible(self, pod: Raw) -> frozenset[str]:
        """Return the names of the nodes on which the planner would place a pod."""
        names = self.store.nodes.keys()
        found = {name: self.plan([pod], closed=frozenset(names - {name})) for name in names}
        return frozenset(name for name, answer in found.items() if isinstance(answer, Plan))

    def is_exact(self, members: Sequence[Raw]) -> bool:
        """Return whether the planner counts all rules of the members, and leaves none to kube-scheduler."""
        with self._waiting(members) as waiting:
            return not any(pod.uncountable for pod in waiting)

    def plan(
        self,
        members: Sequence[Raw],
        need: int | None = None,
        topology_key: str | None = None,
        closed: frozenset[str] = frozenset(),
    ) -> Plan | Verdict:
        """Plan the members as one gang. Each member's UID is its number."""
        with self._waiting(members) as waiting:
            ask = self._ask(waiting, need, topology_key)
            snapshot = self.store.snapshots.take(ask.priority, waiting)
            return plan_gang(snapshot, replace(ask, closed=closed), self.store.capacity)

    def plan_tree(
        self, members: Sequence[Raw], first: int, needs: tuple[int, int] | None = None, wanted: int = 2
    ) -> Plan | Verdict:
        """Plan a tree of two groups: the first ``first`` members, and the others.

        ``needs`` are the quorums, by default all members; ``wanted`` is the number of groups that the tree needs.
        """
        with self._waiting(members) as waiting:
            whole = self._ask(waiting, None, None)
            groups = [("a", waiting[:first]), ("b", waiting[first:])]
            least = needs or (first, len(waiting) - first)
            parts = tuple(
                replace(whole, members=each, need=need, name=name)
                for (name, each), need in zip(groups, least, strict=True)
            )
            need = sum(sorted(least)[:wanted])
            ask = replace(whole, parts=parts, need=need, wanted=wanted, name="root")
            return plan_group(self.store.snapshots.take(ask.priority, waiting), ask, self.store.capacity)

    def plan_victims(
        self, members: Sequence[Raw], need: int | None, topology_key: str | None, priorities: Sequence[int]
    ) -> Preemption | NoVictims:
        """Return the victims for members of priority ``HIGH``. ``priorities`` are those of the running pods."""
        with self._waiting(members) as waiting:
            running = (self.store.pods[f"bound-{index}"] for index in range(len(priorities)))
            units = [EvictionUnit((pod,), priority) for pod, priority in zip(running, priorities, strict=True)]
            snapshot = self.store.snapshots.take(HIGH, waiting)
            return plan_victims(snapshot, self._ask(waiting, need, topology_key), HIGH, units, Allowances())

    def add_members(self, members: Sequence[Raw]) -> None:
        """Add the members to the Store as pending pods. Each member's UID is its number."""
        for index, member in enumerate(members):
            found = read_pod(member, str(index))
            self.store.put_pod(replace(found, group=GroupKey(found.namespace, "g")))
        run_deferred_work(self.store)

    def ask(self, count: int, need: int, topology_key: str | None) -> PlanRequest:
        """Return the request for the first ``count`` members that `bring` added, as they are in the Store now."""
        return self._ask([self.store.pods[str(index)] for index in range(count)], need, topology_key)

    @contextmanager
    def _waiting(self, members: Sequence[Raw]) -> Iterator[list[Pod]]:
        """Add the members as pending pods while the body runs; yield them."""
        self.add_members(members)
        try:
            yield [self.store.pods[str(index)] for index in range(len(members))]
        finally:
            for index in range(len(members)):
                self.store.drop_pod(str(index))

    def _ask(self, waiting: Sequence[Pod], need: int | None, topology_key: str | None) -> PlanRequest:
        # As in the extender's request: pods with missing objects, or without usable volumes, fit on no node.
        lost = [pod.uid for pod in waiting if pod.missing or pod.obstacle]
        nowhere = [(uid, node) for uid in lost for node in self.store.nodes]
        return PlanRequest(waiting, len(waiting) if need is None else need, topology_key, excluded=frozenset(nowhere))


def read_pod(pod: Raw, uid: str) -> Pod:
    """Decode a pod with this UID, as the feed does."""
    return require_valid(decode_pod({**pod, "metadata": {**pod["metadata"], "uid": uid}}))
