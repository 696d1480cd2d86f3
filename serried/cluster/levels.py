"""Which label stands for each level of the topology here, by what is said and by what the nodes carry."""

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


class Kinship(NamedTuple):
    """What nodes have in common, as far as levels are concerned."""

    labels: frozenset[str]
    """The labels of levels that they carry, with a value."""

    resources: frozenset[str]
    """The extended resources that they have."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The labels that may stand for one level."""

    labels: tuple[str, ...]
    """The first that at least half of the nodes carry counts."""

    said: frozenset[str] = frozenset()
    """Those that somebody has named for this cluster: without a better one, one node that carries it is enough."""


def merge_candidates(said: TopologyLevels | None, foreign: Iterable[ForeignLevels]) -> dict[str, Candidates]:
    """Return the candidates of each level: what an administrator says alone, else what others say before defaults."""
    pairs = [pair for each in foreign for pair in each.labels]
    merged: dict[str, Candidates] = {}
    for level in LEVELS:
        named = tuple(said.labels.get(level, ())) if said is not None else ()
        found = tuple(dict.fromkeys(label for name, label in pairs if name == level))
        labels = named or tuple(dict.fromkeys((*found, *list_defaults(level))))
        # A label that is called as a level was named so by somebody, too.
        merged[level] = Candidates(labels, frozenset(named or (*found, level)))
    return merged


def count_levels(
    nodes: Mapping[Kinship, int], candidates: Mapping[str, Candidates], provided: Collection[str] = ()
) -> LevelTable:
    """Return the table for nodes, of which ``nodes`` says how many have something in common.

    Any node may have what DeviceClasses have ``provided``, so all nodes stand for a resource that none of them shows.
    Of too many resources those count that differ from all nodes, then those that most nodes have.
    """
    totals: Counter[str] = Counter({"": 0})
    carried: Counter[tuple[str, str]] = Counter()
    for kinship, count in nodes.items():
        for resource in ("", *kinship.resources):
            totals[resource] += count
            for label in kinship.labels:
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
    """The table, kept up to date with the nodes and with the objects that name labels."""

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
        self._kinships: dict[str, Kinship] = {}
        self._counts: Counter[Kinship] = Counter()
        self._counted: tuple[LevelTable, dict[str, str]] | None = None
        """The table, and the level of each label in it; None if something has changed since."""

    @property
    def published(self) -> LevelTable | None:
        """What the extender that leads has found; None before."""
        declared = self.declared.get(DEFAULT)
        return declared.status if declared is not None else None

    @property
    def table(self) -> LevelTable:
        """What the nodes here say; for a process that follows nodes."""
        return self._count()[0]

    def name_label(self, label: str) -> str:
        """Return the level for which a label stands on some nodes here, "" for none."""
        return self._count()[1].get(label, "")

    def _count(self) -> tuple[LevelTable, dict[str, str]]:
        if self._counted is None:
            provided = {name for each in self._classes.values() for name in each.provides if is_extended(name)}
            table = count_levels(self._counts, self._candidates, provided)
            self._counted = table, table.name_labels()
        return self._counted

    def note_classes(self) -> None:
        """A DeviceClass came, changed or went."""
        self._counted = None

    def note_node(self, node: Node) -> None:
        """A node came or changed."""
        labels = frozenset(label for label in self._labels & node.labels.keys() if node.labels[label])
        resources = frozenset(name for name, amount in node.allocatable.items() if amount and is_extended(name))
        kinship = Kinship(labels, resources)
        if self._kinships.get(node.name) != kinship:
            self.drop_node(node.name)
            self._kinships[node.name] = kinship
            self._counts[kinship] += 1
            self._counted = None

    def drop_node(self, name: str) -> None:
        """A node went."""
        kinship = self._kinships.pop(name, None)
        if kinship is not None:
            self._counted = None
            self._counts[kinship] -= 1
            if not self._counts[kinship]:
                del self._counts[kinship]

    def put(self, held: dict[str, Said], item: Said) -> None:
        """An object that names labels came or changed; ``held`` is the map of its kind."""
        held[item.name] = item
        self._revise()

    def drop(self, held: dict[str, Said], name: str) -> None:
        """An object that names labels went."""
        held.pop(name, None)
        self._revise()

    def _revise(self) -> None:
        foreign = [held[name] for held in (self.grove, self.kueue) for name in sorted(held)]
        candidates = merge_candidates(self.declared.get(DEFAULT), foreign)
        if candidates == self._candidates:
            return
        self._candidates, self._labels, self._counted = candidates, _list_labels(candidates), None
        for node in self._nodes.values():
            self.note_node(node)


def _list_labels(candidates: Mapping[str, Candidates]) -> frozenset[str]:
    return frozenset(label for each in candidates.values() for label in each.labels)
