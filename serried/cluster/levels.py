"""Computes which node label stands for each topology level, such as rack or zone (`Levels.table`).

The Store owns a `Levels` and reports nodes and objects to it. Sources are the configuration by administrators, Kueue
and Grove, and the labels that nodes carry.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from serried.api.device import DeviceClass
from serried.api.node import Node
from serried.api.preference import LEVELS
from serried.api.topology import (
    DEFAULT,
    MAX_POOLS,
    ForeignLevels,
    LabelCount,
    LevelTable,
    Pool,
    TopologyLevels,
    is_extended,
    list_defaults,
)

Said = TypeVar("Said", TopologyLevels, ForeignLevels)


class NodeProfile(NamedTuple):
    """The properties of a node that matter for topology levels. Nodes are counted by their profile."""

    labels: frozenset[str]
    """The keys of those candidate labels (`Candidates`) that the node carries with a value that is not empty."""

    resources: frozenset[str]
    """The names of the extended resources of which the node has some allocatable."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The node labels that may stand for one level of the topology, such as rack or zone."""

    labels: tuple[str, ...]
    """The label keys in order of preference. The first one that at least half of the nodes carry is chosen."""

    configured: frozenset[str] = frozenset()
    """The labels among ``labels`` that were configured for this cluster, so they are no mere defaults.

    If no label is on half of the nodes, the first one of these that at least one node carries is chosen.
    """


def merge_candidates(declared: TopologyLevels | None, foreign: Iterable[ForeignLevels]) -> dict[str, Candidates]:
    """Return the candidate labels by level.

    For each level they are the labels that an administrator has ``declared``. If there are none, they are those that
    objects of Kueue and Grove (``foreign``) name, followed by Serried's defaults.
    """
    pairs = [pair for each in foreign for pair in each.labels]
    merged: dict[str, Candidates] = {}
    for level in LEVELS:
        named = tuple(declared.labels.get(level, ())) if declared is not None else ()
        found = tuple(dict.fromkeys(label for name, label in pairs if name == level))
        labels = named or tuple(dict.fromkeys((*found, *list_defaults(level))))
        # A label with the name of the level was configured by somebody, too.
        merged[level] = Candidates(labels, frozenset(named or (*found, level)))
    return merged


def count_levels(
    nodes: Mapping[NodeProfile, int], candidates: Mapping[str, Candidates], provided: Collection[str] = ()
) -> LevelTable:
    """Return the node label of each topology level: for all nodes, and for the nodes with each extended resource.

    ``nodes`` is the number of nodes by profile, ``candidates`` are the labels to choose from by level. ``provided`` are
    the extended resources that DeviceClasses provide. If no node lists one, its devices may be on any node, so for it
    all nodes count.

    At most MAX_POOLS resources are in the result. Those with other labels than all nodes together have are preferred,
    then those on the most nodes.
    """
    totals: Counter[str] = Counter({"": 0})
    carried: Counter[tuple[str, str]] = Counter()
    for profile, count in nodes.items():
        for resource in ("", *profile.resources):
            totals[resource] += count
            for label in profile.labels:
                carried[resource, label] += count
    everywhere, *pools = (
        Pool(resource, total, dict(_choose(resource, total, carried, candidates))) for resource, total in totals.items()
    )
    pools += [everywhere._replace(resource=resource) for resource in provided if resource not in totals]
    pools.sort(key=lambda pool: (pool.label_by_level == everywhere.label_by_level, -pool.nodes, pool.resource))
    table = {level: each.labels for level, each in candidates.items()}
    return LevelTable(table, (everywhere, *pools[:MAX_POOLS]))


def _choose(
    resource: str, total: int, carried: Mapping[tuple[str, str], int], candidates: Mapping[str, Candidates]
) -> Iterator[tuple[str, LabelCount]]:
    for level, each in candidates.items():
        found = [LabelCount(label, count) for label in each.labels if (count := carried.get((resource, label), 0))]
        usual = (one for one in found if 2 * one.nodes >= total)
        chosen = next(usual, None) or next((one for one in found if one.label in each.configured), None)
        if chosen is not None:
            yield level, chosen


class Levels:
    """The node label of each topology level. The Store updates it for each changed node or object that names labels."""

    def __init__(self, nodes: Mapping[str, Node], classes: Mapping[str, DeviceClass]) -> None:
        self._nodes = nodes
        self._classes = classes
        self.declared: dict[str, TopologyLevels] = {}
        self.kueue: dict[str, ForeignLevels] = {}
        """The Topologies of Kueue by name."""
        self.grove: dict[str, ForeignLevels] = {}
        """The ClusterTopologyBindings of Grove by name."""
        self._candidates = merge_candidates(None, ())
        self._labels = _list_labels(self._candidates)
        self._profiles: dict[str, NodeProfile] = {}
        self._counts: Counter[NodeProfile] = Counter()
        self._counted: tuple[LevelTable, dict[str, str]] | None = None
        """The table, and the level of each label in it (`LevelTable.name_labels`); None if they have to be computed."""

    @property
    def published(self) -> LevelTable | None:
        """The node label of each topology level as in the status of the TopologyLevels object.

        The leading extender writes it; None before that.
        """
        declared = self.declared.get(DEFAULT)
        return declared.status if declared is not None else None

    @property
    def table(self) -> LevelTable:
        """The node label of each topology level such as rack, computed from the nodes when it is needed.

        Only valid in a process that watches nodes, such as the extender.
        """
        return self._count()[0]

    def name_label(self, label: str) -> str:
        """Return the level that a node label stands for; "" if it stands for none."""
        return self._count()[1].get(label, "")

    def _count(self) -> tuple[LevelTable, dict[str, str]]:
        if self._counted is None:
            provided = {name for each in self._classes.values() for name in each.provides if is_extended(name)}
            table = count_levels(self._counts, self._candidates, provided)
            self._counted = table, table.name_labels()
        return self._counted

    def note_classes(self) -> None:
        """Discard the computed `table`, because a DeviceClass, which may provide an extended resource, has changed.

        The table has labels by extended resource. It is computed again when it is needed next.
        """
        self._counted = None

    def note_node(self, node: Node) -> None:
        """Count a node that was added or changed."""
        labels = frozenset(label for label in self._labels & node.labels.keys() if node.labels[label])
        resources = frozenset(name for name, amount in node.allocatable.items() if amount and is_extended(name))
        profile = NodeProfile(labels, resources)
        if self._profiles.get(node.name) != profile:
            self.drop_node(node.name)
            self._profiles[node.name] = profile
            self._counts[profile] += 1
            self._counted = None

    def drop_node(self, name: str) -> None:
        """Remove a deleted node from the counts."""
        profile = self._profiles.pop(name, None)
        if profile is not None:
            self._counted = None
            self._counts[profile] -= 1
            if not self._counts[profile]:
                del self._counts[profile]

    def put(self, held: dict[str, Said], item: Said) -> None:
        """Add or replace an object that names labels of levels.

        ``held`` is the map for its kind: ``declared``, ``kueue`` or ``grove`` of this `Levels`.
        """
        held[item.name] = item
        self._update_candidates()

    def drop(self, held: dict[str, Said], name: str) -> None:
        """Remove an object that names labels of levels.

        ``held`` is the map for its kind: ``declared``, ``kueue`` or ``grove`` of this `Levels`.
        """
        held.pop(name, None)
        self._update_candidates()

    def _update_candidates(self) -> None:
        foreign = [held[name] for held in (self.grove, self.kueue) for name in sorted(held)]
        candidates = merge_candidates(self.declared.get(DEFAULT), foreign)
        if candidates == self._candidates:
            return
        self._candidates, self._labels, self._counted = candidates, _list_labels(candidates), None
        for node in self._nodes.values():
            self.note_node(node)


def _list_labels(candidates: Mapping[str, Candidates]) -> frozenset[str]:
    return frozenset(label for each in candidates.values() for label in each.labels)
