"""Which pods a Job or a parent has, and whether one of them has been bound or has finished."""

from collections.abc import Iterator

from serried.cluster.indexes import discard
from serried.model.group import Key
from serried.model.parent import JOB, Family
from serried.model.pod import Phase, Pod


class Kinship:
    """Follows pods. A pod may have two families: its Job's and its parent's."""

    def __init__(self) -> None:
        self._pods: dict[Family, dict[str, None]] = {}
        self._started: dict[tuple[Family, str], dict[str, None]] = {}

    def pods_of(self, family: Family) -> list[str]:
        """The UIDs of the family's known pods, whatever the UID of its head, in the order of arrival."""
        return list(self._pods.get(family, ()))

    def families(self) -> list[Family]:
        """All that have a known pod."""
        return list(self._pods)

    def has_started(self, family: Family, uid: str) -> bool:
        """Whether a pod is bound or finished whose Job or parent has this UID.

        The labels of some parents' pods do not give it: those count for any UID (`counts_as_started`).
        """
        return (family, uid) in self._started or (family, "") in self._started

    def follow(self, old: Pod | None, new: Pod | None) -> set[Family]:
        """Follow one pod; returns the families whose eligibility turned, by their first started pod or their last."""
        before, after = dict(_families(old)), dict(_families(new))
        turned: set[Family] = set()
        for family in before.keys() - after.keys():
            discard(self._pods, family, _uid(old))
        for family in after:
            self._pods.setdefault(family, {})[_uid(new)] = None
        was, now = _started(old, before), _started(new, after)
        for start in was - now:
            discard(self._started, start, _uid(old))
            if start not in self._started:
                turned.add(start[0])
        for start in now - was:
            if start not in self._started:
                turned.add(start[0])
            self._started.setdefault(start, {})[_uid(new)] = None
        return turned


def counts_as_started(pod: Pod, uid: str) -> bool:
    """Whether a pod is bound or finished, so that its Job or parent, of this UID, gets no gang any more.

    Where the UID is not known, "", a pod that is being deleted may well be left of an earlier one of the name.
    """
    return (bool(pod.node) or pod.phase is not Phase.ACTIVE) and (bool(uid) or not pod.deleting)


def _families(pod: Pod | None) -> Iterator[tuple[Family, str]]:
    """The families of a pod, and the UIDs of their heads as the pod gives them."""
    if pod is None:
        return
    if pod.owner is not None and pod.owner.kind == JOB:
        yield Family(JOB, Key(pod.namespace, pod.owner.name)), pod.owner.uid
    if pod.place is not None:
        yield Family(pod.place.kind, Key(pod.namespace, pod.place.parent)), pod.place.uid


def _started(pod: Pod | None, families: dict[Family, str]) -> set[tuple[Family, str]]:
    """The families, with their heads' UIDs, whose eligibility this pod ends by being bound or finished."""
    return {(family, uid) for family, uid in families.items() if pod is not None and counts_as_started(pod, uid)}


def _uid(pod: Pod | None) -> str:
    return pod.uid if pod is not None else ""
