"""Which waiting pods are nominated to which node, and the nominations that have ended."""

from collections.abc import Iterable, Iterator

from serried.cluster.occupancy import FreedNodes, Occupancy
from serried.model.pod import Pod


class Nominations:
    """The nominated pods. Their requests count as used for every plan of no higher priority (`Snapshots`)."""

    def __init__(self, occupancy: Occupancy) -> None:
        self.withdrawn = 0
        """How many nominations have ended without the pod having gone to the node."""

        self.withdrawn_nodes = FreedNodes()
        """The nodes that these named: room for others, like ``Occupancy.freed_nodes``.

        It is no news to a gang that has just given its own nominations up.
        """

        self._occupancy = occupancy
        self._pods: dict[str, Pod] = {}

    @property
    def uids(self) -> frozenset[str]:
        """The nominated pods."""
        return frozenset(self._pods)

    def __iter__(self) -> Iterator[Pod]:
        return iter(self._pods.values())

    def of_others(self, priority: int, own: Iterable[str]) -> Iterable[Pod]:
        """The nominated pods of at least this priority that count nowhere yet, except those with the UIDs ``own``."""
        uids = frozenset(own)
        return [
            pod
            for pod in self._pods.values()
            if pod.priority >= priority and pod.uid not in uids and self._occupancy.node_of(pod.uid) is None
        ]

    def follow(self, uid: str, pod: Pod | None) -> None:
        """A pod is nominated, or (None) is not any more. Its claims are up to date already."""
        before = self._pods.pop(uid, None)
        if pod is not None:
            self._pods[uid] = pod
        if before is None or (pod is not None and pod.nominated == before.nominated):
            return
        if self._occupancy.node_of(uid) != before.nominated:
            self.withdrawn += 1
            self.withdrawn_nodes.add(before.nominated)
