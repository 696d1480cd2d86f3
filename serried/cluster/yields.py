"""Which pods are to end for which gang: their room is the gang's, from before they are evicted until they are gone."""

from collections.abc import Iterable, Iterator, Mapping

from serried.cluster.touched import Touched
from serried.model.group import GroupKey
from serried.model.pod import Pod


class Yields:
    """Victims by UID. The gang that waits for one is looked at whenever that one changes."""

    def __init__(self, touched: Touched, pods: Mapping[str, Pod]) -> None:
        self._touched = touched
        self._pods = pods
        self._by_uid: dict[str, GroupKey] = {}

        self._let_off: set[str] = set()
        """Known pods that were victims and are none any more."""

    def __contains__(self, uid: str) -> bool:
        return uid in self._by_uid

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_uid)

    def __len__(self) -> int:
        return len(self._by_uid)

    def of_pod(self, uid: str) -> GroupKey | None:
        """The gang that a pod ends for; None if it is no victim."""
        return self._by_uid.get(uid)

    def add(self, uids: Iterable[str], group: GroupKey) -> None:
        """These pods end for this gang."""
        self._by_uid.update(dict.fromkeys(uids, group))
        self._let_off -= self._by_uid.keys()

    def remove(self, uids: Iterable[str]) -> None:
        """These pods are nobody's victims (any more)."""
        for uid in uids:
            self._by_uid.pop(uid, None)
            if uid in self._pods:
                self._let_off.add(uid)

    def was_let_off(self, uid: str) -> bool:
        """Whether a pod that is there was a victim once: that it is preempted may not have been taken back yet."""
        return uid in self._let_off

    def note(self, uid: str) -> None:
        """A pod has changed, or is gone."""
        if uid not in self._pods:
            self._let_off.discard(uid)
        group = self._by_uid.get(uid)
        if group is not None:
            self._touched.add(group)
