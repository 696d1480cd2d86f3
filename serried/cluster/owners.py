"""The Jobs and parents that are known, the pods of each, and whether one of these has been bound or has finished."""

from collections.abc import Iterator, Mapping

from serried.cluster.indexes import discard
from serried.cluster.provisional import owner_of_provisional
from serried.model.group import GroupKey, Job, Key
from serried.model.parent import JOB, Owner, OwnerKey, Parent
from serried.model.pod import Phase, Pod


class Owners:
    """Owners by key, and their pods. A pod may have two owners: its Job, and the parent of that.

    The maps are the Store's own and live.
    """

    def __init__(self, pods: Mapping[str, Pod], jobs: Mapping[Key, Job], parents: Mapping[OwnerKey, Parent]) -> None:
        self._pods = pods
        self._jobs = jobs
        self._parents = parents

        self._pods_by_owner: dict[OwnerKey, dict[str, None]] = {}
        """UIDs in the order of arrival."""

        self._pods_by_replica: dict[tuple[OwnerKey, str], dict[str, None]] = {}
        """The same by owner and replica, of the pods that are in one: an owner may have thousands of replicas."""

        self._started: dict[tuple[OwnerKey, str], dict[str, None]] = {}
        """UIDs of the pods that are bound or finished, by owner and by the owner's UID as the pods give it."""

    def find(self, owner_key: OwnerKey) -> Owner | None:
        """The Job or parent of this name."""
        return self._jobs.get(owner_key.key) if owner_key.kind == JOB else self._parents.get(owner_key)

    def is_awaited(self, group: GroupKey) -> bool:
        """Whether this is a provisional key of pods whose Job or parent has not been seen (any more)."""
        owner_key = owner_of_provisional(group)
        return owner_key is not None and self.find(owner_key) is None

    def pods_of(self, owner_key: OwnerKey) -> list[Pod]:
        """The known pods of an owner of this name, whatever its own UID, in the order of arrival."""
        return [self._pods[uid] for uid in self._pods_by_owner.get(owner_key, ())]

    def pods_at(self, owner_key: OwnerKey, replica: str) -> list[Pod]:
        """Those of them that are in one replica; "" for all."""
        if not replica:
            return self.pods_of(owner_key)
        return [self._pods[uid] for uid in self._pods_by_replica.get((owner_key, replica), ())]

    def with_pods(self) -> list[OwnerKey]:
        """Every owner that has a known pod."""
        return list(self._pods_by_owner)

    def has_started(self, owner_key: OwnerKey, uid: str) -> bool:
        """Whether a pod is bound or finished whose owner has this UID.

        The labels of some parents' pods do not give it: those count for any UID (`counts_as_started`).
        """
        return (owner_key, uid) in self._started or (owner_key, "") in self._started

    def follow(self, old: Pod | None, new: Pod | None) -> set[OwnerKey]:
        """Follow one pod; returns the owners whose eligibility turned, by their first started pod or their last."""
        before = dict(_owners_of(old))
        after = dict(_owners_of(new))
        for owner_key in before.keys() - after.keys():
            discard(self._pods_by_owner, owner_key, _uid(old))
        for owner_key in after:
            self._pods_by_owner.setdefault(owner_key, {})[_uid(new)] = None
        self._follow_replica(_replica_of(old), _replica_of(new), _uid(old or new))
        return self._follow_starts(_started(old, before), _started(new, after), _uid(old or new))

    def _follow_replica(self, old: tuple[OwnerKey, str] | None, new: tuple[OwnerKey, str] | None, uid: str) -> None:
        if old is not None and old != new:
            discard(self._pods_by_replica, old, uid)
        if new is not None:
            self._pods_by_replica.setdefault(new, {})[uid] = None

    def _follow_starts(self, old: set[tuple[OwnerKey, str]], new: set[tuple[OwnerKey, str]], uid: str) -> set[OwnerKey]:
        turned: set[OwnerKey] = set()
        for start in old - new:
            discard(self._started, start, uid)
            if start not in self._started:
                turned.add(start[0])
        for start in new - old:
            if start not in self._started:
                turned.add(start[0])
            self._started.setdefault(start, {})[uid] = None
        return turned


def counts_as_started(pod: Pod, owner_uid: str) -> bool:
    """Whether a pod is bound or finished, so that its owner of this UID gets no gang any more.

    Where the UID is not known, "", a pod that is being deleted may be left of an earlier owner of the name. One that
    was bound as a member of a gang does not count while that gang's objects cannot be read: its owner has a gang, and
    gets new objects for it.
    """
    begun = bool(pod.node) or pod.phase is not Phase.ACTIVE
    return begun and not pod.stranded and (bool(owner_uid) or not pod.deleting)


def _owners_of(pod: Pod | None) -> Iterator[tuple[OwnerKey, str]]:
    """The owners of a pod, with their UIDs as the pod gives them."""
    if pod is None:
        return
    if pod.owner is not None and pod.owner.kind == JOB:
        yield OwnerKey(JOB, Key(pod.namespace, pod.owner.name)), pod.owner.uid
    if pod.place is not None:
        yield OwnerKey(pod.place.kind, Key(pod.namespace, pod.place.parent)), pod.place.uid


def _replica_of(pod: Pod | None) -> tuple[OwnerKey, str] | None:
    if pod is None or pod.place is None or not pod.place.replica:
        return None
    return OwnerKey(pod.place.kind, Key(pod.namespace, pod.place.parent)), pod.place.replica


def _started(pod: Pod | None, owners: dict[OwnerKey, str]) -> set[tuple[OwnerKey, str]]:
    """The owners, with their UIDs, whose eligibility this pod ends by being bound or finished."""
    return {(owner_key, uid) for owner_key, uid in owners.items() if pod is not None and counts_as_started(pod, uid)}


def _uid(pod: Pod | None) -> str:
    return pod.uid if pod is not None else ""
