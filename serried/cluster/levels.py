"""Computes the table of topology levels (`LevelTable`) from configuration and from the labels of the nodes."""

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
    Carried,
    ForeignLevels,
    LevelTable,
    Pool,
    TopologyLevels,
    is_extended,
    list_defaults,
)

Said = TypeVar("Said", TopologyLevels, ForeignLevels)


class NodeProfile(NamedTuple):
    """The properties of a node that matter for levels. Nodes are counted by their profile."""

    labels: frozenset[str]
    """The candidate labels that the node carries with a value."""

    resources: frozenset[str]
    """The extended resources that the node has."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The node labels that could stand for one level of the topology, such as rack or zone."""

    labels: tuple[str, ...]
    """The labels in order. The first one that at least half of the nodes carry is chosen."""

    said: frozenset[str] = frozenset()
    """The labels configured for this cluster. If no label is on half of the nodes, one node with it is enough."""


def merge_candidates(said: TopologyLevels | None, foreign: Iterable[ForeignLevels]) -> dict[str, Candidates]:
    """Return the candidates of each level.

    They are the labels that an administrator has configured; without such, those of Kueue and Grove, then defaults.
    """
    pairs = [pair for each in foreign for pair in each.labels]
    merged: dict[str, Candidates] = {}
    for level in LEVELS:
        named = tuple(said.labels.get(level, ())) if said is not None else ()
        found = tuple(dict.fromkeys(label for name, label in pairs if name == level))
        labels = named or tuple(dict.fromkeys((*found, *list_defaults(level))))
        # A label with the name of the level was configured by somebody, too.
        merged[level] = Candidates(labels, frozenset(named or (*found, level)))
    return merged


def count_levels(
    nodes: Mapping[NodeProfile, int], candidates: Mapping[str, Candidates], provided: Collection[str] = ()
) -> LevelTable:
    """Return the table for nodes, given as numbers of nodes by profile.

    Resources of DeviceClasses (``provided``) may be on any node, so the pool of one that no node lists is all nodes. If
    there are too many resources, pools whose labels differ from those of all nodes are preferred, then large ones.
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
    pools.sort(key=lambda pool: (pool.meant == everywhere.meant, -pool.nodes, pool.resource))
    table = {level: each.labels for level, each in candidates.items()}
    return LevelTable(table, (everywhere, *pools[:MAX_POOLS]))


def _choose(
    resource: str, total: int, carried: Mapping[tuple[str, str], int], candidates: Mapping[str, Candidates]
) -> Iterator[tuple[str, Carried]]:
    for level, each in candidates.items():
        found = [Carried(label, count) for label in each.labels if (count := carried.get((resource, label), 0))]
        usual = (one for one in found if 2 * one.nodes >= total)
        chosen = next(usual, None) or next((one for one in found if one.label in each.said), None)
        if chosen is not None:
            yield level, chosen


class Levels:
    """The table of levels, updated by the Store with every change of a node or of an object that names labels."""

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
        """The table and its `name_labels`; None if they have to be computed again."""

    @property
    def published(self) -> LevelTable | None:
        """The table in the status of TopologyLevels, which the leading extender writes; None before its first write."""
        declared = self.declared.get(DEFAULT)
        return declared.status if declared is not None else None

    @property
    def table(self) -> LevelTable:
        """The table computed from the nodes. Only for a process that watches nodes."""
        return self._count()[0]

    def name_label(self, label: str) -> str:
        """Return the level of a label in the table; "" if it has none."""
        return self._count()[1].get(label, "")

    def _count(self) -> tuple[LevelTable, dict[str, str]]:
        if self._counted is None:
            provided = {name for each in self._classes.values() for name in each.provides if is_extended(name)}
            table = count_levels(self._counts, self._candidates, provided)
            self._counted = table, table.name_labels()
        return self._counted

    def note_classes(self) -> None:
        """Recompute the table when it is needed next, because a DeviceClass has changed."""
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
        """Add or replace an object that names labels; ``held`` is the map of its kind."""
        held[item.name] = item
        self._update_candidates()

    def drop(self, held: dict[str, Said], name: str) -> None:
        """Remove an object that names labels; ``held`` is the map of its kind."""
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
