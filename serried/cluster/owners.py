"""Which pods a Job or a parent owns, and whether one of them has been bound or has finished."""

from collections.abc import Iterator

from serried.cluster.indexes import discard
from serried.model.group import Key
from serried.model.parent import JOB, OwnerKey
from serried.model.pod import Phase, Pod


class OwnerIndex:
    """Pods by owner. A pod may have two owners: its Job, and the parent of that."""

    def __init__(self) -> None:
        self._pods: dict[OwnerKey, dict[str, None]] = {}
        self._started: dict[tuple[OwnerKey, str], dict[str, None]] = {}
        """UIDs of the pods that are bound or finished, by owner and by the owner's UID as the pods give it."""

    def pods_of(self, owner_key: OwnerKey) -> list[str]:
        """The UIDs of the known pods of an owner of this name, whatever its own UID, in the order of arrival."""
        return list(self._pods.get(owner_key, ()))

    def owner_keys(self) -> list[OwnerKey]:
        """Every owner that has a known pod."""
        return list(self._pods)

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
            discard(self._pods, owner_key, _uid(old))
        for owner_key in after:
            self._pods.setdefault(owner_key, {})[_uid(new)] = None
        return self._follow_starts(_started(old, before), _started(new, after), _uid(old or new))

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

    Where the UID is not known, "", a pod that is being deleted may be left of an earlier owner of the name.
    """
    return (bool(pod.node) or pod.phase is not Phase.ACTIVE) and (bool(owner_uid) or not pod.deleting)


def _owners_of(pod: Pod | None) -> Iterator[tuple[OwnerKey, str]]:
    """The owners of a pod, with their UIDs as the pod gives them."""
    if pod is None:
        return
    if pod.owner is not None and pod.owner.kind == JOB:
        yield OwnerKey(JOB, Key(pod.namespace, pod.owner.name)), pod.owner.uid
    if pod.place is not None:
        yield OwnerKey(pod.place.kind, Key(pod.namespace, pod.place.parent)), pod.place.uid


def _started(pod: Pod | None, owners: dict[OwnerKey, str]) -> set[tuple[OwnerKey, str]]:
    """The owners, with their UIDs, whose eligibility this pod ends by being bound or finished."""
    return {(owner_key, uid) for owner_key, uid in owners.items() if pod is not None and counts_as_started(pod, uid)}


def _uid(pod: Pod | None) -> str:
    return pod.uid if pod is not None else ""
