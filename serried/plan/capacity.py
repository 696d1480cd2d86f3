"""Slots counted ahead: how many members of each class every node, and every domain, would take.

A plan needs the slots of its class on all nodes, and between two plans only a few nodes change. So the numbers are kept
and brought up to date: the first plan for a class looks at every node, each later one at those that changed since.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from operator import itemgetter

from serried.model.node import Node
from serried.model.pod import Shape
from serried.model.resources import Resources, count_slots
from serried.plan.fit import admits

LevelKey = tuple[str, ...]
"""One or more label keys, the widest first: nodes that share the values of all are one domain."""

Domain = tuple[str, ...]
"""The values of a LevelKey's labels."""

_CLASSES_KEPT = 16
_KEYS_KEPT = 8
_NAMES_KEPT = 1024
_NOTHING: Resources = {}


class Table:
    """The slots of one class. ``by_node`` has the nodes that take at least one member, ``total`` is their sum."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.request = shape, dict(shape.requests)
        self.by_node: dict[str, int] = {}
        self.total = 0
        self.version = 0
        self._sums: dict[LevelKey, tuple[Mapping[str, Domain], dict[Domain, int]]] = {}

    def fill(self, nodes: Iterable[Node], used: Mapping[str, Resources]) -> None:
        """Count every node; nothing was counted before."""
        choosy = bool(self.shape.node_selector) or self.shape.node_terms is not None
        for node in nodes:
            if not (choosy or node.taints or node.unschedulable) or admits(self.shape, node):
                free = count_slots(node.allocatable, used.get(node.name, _NOTHING), self.request)
                if free:
                    self.by_node[node.name] = free
        self.total = sum(self.by_node.values())

    def sum_by(self, key: LevelKey, homes: Mapping[str, Domain]) -> Mapping[Domain, int]:
        """Slots by domain; ``homes`` has the domain of each node that carries the key.

        Domains without a slot may be missing. Live: the next change of a node changes it.
        """
        kept = self._sums.get(key)
        if kept is not None and kept[0] is homes:
            return kept[1]
        sums: dict[Domain, int] = {}
        for name, free in self.by_node.items():
            domain = homes.get(name)
            if domain is not None:
                sums[domain] = sums.get(domain, 0) + free
        while len(self._sums) >= _KEYS_KEPT:
            del self._sums[next(iter(self._sums))]
        self._sums[key] = homes, sums
        return sums

    def put(self, name: str, free: int) -> None:
        """A node takes so many members now."""
        more = free - self.by_node.get(name, 0)
        if not more:
            return
        if free:
            self.by_node[name] = free
        else:
            del self.by_node[name]
        self.total += more
        for homes, sums in self._sums.values():
            domain = homes.get(name)
            if domain is not None:
                sums[domain] = sums.get(domain, 0) + more


class Capacity:
    """The tables of the classes that were asked for last, and the domains of the keys that were.

    ``nodes`` and ``used`` (by node name; a node without entry is empty) are read live: whoever changes them says so
    with `note_node` and `note_used`, and nothing is counted before it is asked for.
    """

    def __init__(self, nodes: Mapping[str, Node], used: Mapping[str, Resources]) -> None:
        self._nodes, self._used = nodes, used
        self._tables: OrderedDict[Shape, Table] = OrderedDict()
        # By recency: what changed since a version is at the end.
        self._changed: OrderedDict[str, int] = OrderedDict()
        self._version = 0
        self._homes: OrderedDict[LevelKey, dict[str, Domain]] = OrderedDict()
        self._domains: dict[LevelKey, dict[Domain, dict[str, None]]] = {}

    def note_used(self, name: str) -> None:
        """What is used on a node has changed."""
        self._version += 1
        self._changed[name] = self._version
        self._changed.move_to_end(name)

    def note_node(self, old: Node | None, new: Node | None) -> None:
        """A node came, changed or went."""
        node = new or old
        if node is None:
            return
        self.note_used(node.name)
        for key in list(self._homes):
            if _home(key, old) != _home(key, new):
                # Sums were made with the old domain: they are made anew. Nodes do not move every day.
                del self._homes[key], self._domains[key]

    def table(self, shape: Shape) -> Table:
        """The slots of a class, as of now. O(nodes) for a class that was not asked for lately, else O(changes)."""
        if len(self._changed) > 2 * len(self._nodes) + _NAMES_KEPT:
            self._forget()
        table = self._tables.get(shape)
        if table is None:
            table = self._tables[shape] = Table(shape)
            table.fill(self._nodes.values(), self._used)
            while len(self._tables) > _CLASSES_KEPT:
                self._tables.popitem(last=False)
        else:
            self._tables.move_to_end(shape)
            for name, version in reversed(self._changed.items()):
                if version <= table.version:
                    break
                self._count(table, name)
        table.version = self._version
        return table

    def _forget(self) -> None:
        # Nodes come and go under new names, and no table may have to hear of the old ones for ever.
        self._changed.clear()
        self._tables.clear()

    def _count(self, table: Table, name: str) -> None:
        node = self._nodes.get(name)
        fits = node is not None and admits(table.shape, node)
        used = self._used.get(name, _NOTHING)
        table.put(name, count_slots(node.allocatable, used, table.request) if node is not None and fits else 0)

    def homes(self, key: LevelKey) -> Mapping[str, Domain]:
        """The domain of each node that carries every label of the key."""
        found = self._homes.get(key)
        if found is None:
            found, domains = self._sort(key)
            self._homes[key], self._domains[key] = found, domains
            while len(self._homes) > _KEYS_KEPT:
                oldest, _ = self._homes.popitem(last=False)
                del self._domains[oldest]
        self._homes.move_to_end(key)
        return found

    def _sort(self, key: LevelKey) -> tuple[dict[str, Domain], dict[Domain, dict[str, None]]]:
        # Each domain's tuple is made once: a thousand nodes share it.
        by_values: dict[object, tuple[Domain, dict[str, None]]] = {}
        homes: dict[str, Domain] = {}
        read = itemgetter(*key)
        for name, node in self._nodes.items():
            try:
                values = read(node.labels)
            except KeyError:
                continue
            known = by_values.get(values)
            if known is None:
                known = by_values[values] = (values if len(key) > 1 else (values,)), {}
            homes[name] = known[0]
            known[1][name] = None
        return homes, dict(by_values.values())

    def domains(self, key: LevelKey) -> Mapping[Domain, Mapping[str, None]]:
        """The names of each domain's nodes."""
        self.homes(key)
        return self._domains[key]


def _home(key: LevelKey, node: Node | None) -> Domain | None:
    if node is None or any(each not in node.labels for each in key):
        return None
    return tuple([node.labels[each] for each in key])
