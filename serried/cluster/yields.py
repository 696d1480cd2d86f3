"""Which pods are to end for which gang: their room is the gang's, from before they are evicted until they are gone."""

from collections.abc import Iterable, Iterator

from serried.cluster.touched import Touched
from serried.model.group import GroupKey


class Yields:
    """Victims by UID. The gang that waits for one is looked at whenever that one changes."""

    def __init__(self, touched: Touched) -> None:
        self._touched = touched
        self._by_uid: dict[str, GroupKey] = {}

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

    def remove(self, uids: Iterable[str]) -> None:
        """These pods are nobody's victims (any more)."""
        for uid in uids:
            self._by_uid.pop(uid, None)

    def note(self, uid: str) -> None:
        """A pod has changed, or is gone."""
        group = self._by_uid.get(uid)
        if group is not None:
            self._touched.add(group)
