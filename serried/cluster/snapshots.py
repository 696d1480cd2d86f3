"""The cluster as one plan sees it."""

from collections.abc import Iterable, Mapping

from serried.cluster.nominations import Nominations
from serried.cluster.occupancy import Occupancy
from serried.cluster.vacancies import Vacancy
from serried.model.node import Node
from serried.model.plan import Overlay, Snapshot
from serried.model.pod import Pod
from serried.model.resources import Resources, add, subtract


class Snapshots:
    """Takes snapshots. A snapshot costs what the nominated pods and kept slots cost, whatever the cluster's size."""

    def __init__(self, nodes: Mapping[str, Node], occupancy: Occupancy, nominations: Nominations) -> None:
        self._nodes = nodes
        self._occupancy = occupancy
        self._nominations = nominations

    def take(self, priority: int, members: Iterable[Pod], leaving: Iterable[Vacancy] = ()) -> Snapshot:
        """The cluster for one plan of ``members``, which have this priority.

        Nominations of others count as used if their priority is equal or higher. So do slots that are kept, except for
        those in ``leaving``, which the members would give up.
        """
        used: dict[str, Resources] = {}
        for vacancy in leaving:
            node = self._occupancy.node_of(vacancy.claimant)
            if node is not None:
                used[node] = subtract(used.get(node) or self._occupancy.used[node], dict(vacancy.pod.shape.requests))
        for pod in self._nominations.of_others(priority, (member.uid for member in members)):
            base = used.get(pod.nominated) or self._occupancy.used.get(pod.nominated, {})
            used[pod.nominated] = add(base, dict(pod.shape.requests))
        if not used:
            return Snapshot(self._nodes, self._occupancy.used)
        return Snapshot(self._nodes, Overlay(used, self._occupancy.used), used.keys())

    def count_freed(self) -> tuple[int, int]:
        """How often room has become free so far, and how often a nomination has ended: if neither grows, none has."""
        return self._occupancy.freed, self._nominations.withdrawn
