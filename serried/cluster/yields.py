"""Which pods are to end for which gang: their room is the gang's, from before they are evicted until they are gone."""

from collections.abc import Collection, Iterable, Iterator, KeysView, Mapping

from serried.cluster.touched import Touched
from serried.model.group import GroupKey
from serried.model.pod import Pod


class Yields:
    """Victims by UID. The gang that waits for them is looked at when the last one has ended, and before with the tick.

    A thousand victims change thousands of times, and each look is as long as the gang is large.
    """

    def __init__(self, touched: Touched, pods: Mapping[str, Pod]) -> None:
        self._touched = touched
        self._pods = pods
        self._by_uid: dict[str, GroupKey] = {}

        self._left: dict[GroupKey, dict[str, str]] = {}
        """The victims of each gang that have not ended, as far as the watch has shown it, with their nodes."""

        self._by_node: dict[str, set[str]] = {}
        """Those that are on each node."""

        self._changed: set[GroupKey] = set()
        """The gangs of which a victim has changed since they were taken last."""

        self._let_off: set[str] = set()
        """Known pods that were victims and are none any more."""

    def __contains__(self, uid: str) -> bool:
        return uid in self._by_uid

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_uid)

    def __len__(self) -> int:
        return len(self._by_uid)

    @property
    def uids(self) -> KeysView[str]:
        """The victims of all gangs, live."""
        return self._by_uid.keys()

    def of_pod(self, uid: str) -> GroupKey | None:
        """The gang that a pod ends for; None if it is no victim."""
        return self._by_uid.get(uid)

    def add(self, uids: Iterable[str], group: GroupKey) -> None:
        """These pods end for this gang."""
        fresh = dict.fromkeys(uids, group)
        running = [uid for uid in fresh if self._runs(uid)]
        self._by_uid.update(fresh)
        for uid in running:
            node = self._pods[uid].node
            self._left.setdefault(group, {})[uid] = node
            self._by_node.setdefault(node, set()).add(uid)
        self._let_off.difference_update(fresh)

    def remove(self, uids: Iterable[str]) -> None:
        """These pods are nobody's victims (any more)."""
        for uid in uids:
            group = self._by_uid.pop(uid, None)
            if group is not None and group in self._left:
                self._end(group, uid)
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
        if group is None:
            return
        self._changed.add(group)
        if group in self._left and not self._runs(uid):
            self._end(group, uid)
            if group not in self._left:
                self._touched.add(group)

    def are_on(self, node: str) -> bool:
        """Whether a node has victims, of whomever, that have not ended."""
        return node in self._by_node

    def list_on(self, node: str) -> Collection[str]:
        """The victims of a node, of whomever, that have not ended."""
        return self._by_node.get(node, ())

    def count_left(self, group: GroupKey) -> int:
        """How many victims of a gang have not ended."""
        return len(self._left.get(group, ()))

    def take_changed(self) -> set[GroupKey]:
        """The gangs of which a victim has changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _runs(self, uid: str) -> bool:
        pod = self._pods.get(uid)
        return pod is not None and pod.bound

    def _end(self, group: GroupKey, uid: str) -> None:
        left = self._left[group]
        node = left.pop(uid, None)
        if node is not None:
            on_node = self._by_node.get(node, set())
            on_node.discard(uid)
            if not on_node:
                self._by_node.pop(node, None)
        if not left:
            del self._left[group]
