"""Slots counted ahead: how many members of each class of equal shape every node, and every domain, would take.

A plan needs the slots of its class on all nodes, and between two plans only a few nodes change. So the numbers are kept
and brought up to date: the first plan for a class looks at every node, a later one at the nodes that changed since.
"""

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.api.resources import SETS, Resources, count_slots
from serried.plan.fit import admits, list_named, weigh
from serried.plan.limit import Limit
from serried.plan.request import PlanRequest, Snapshot

LevelKey = tuple[str, ...]
"""One or more label keys, the widest first: nodes that share the values of all are one domain."""

Domain = tuple[str, ...]
"""The values of a LevelKey's labels."""

Packed = Sequence[tuple[Shape, "array[int]"]]
"""Slots by class, of each node in an order that is known."""

_MIN_CLASSES_KEPT = 16
"""How many classes are kept whatever their size."""

_MAX_ENTRIES_KEPT = 1 << 20
"""How many entries the tables of all classes may have before the oldest ones go: some 60 MB."""

_ENTRIES_OF_A_TABLE = 16
"""As how many entries a table counts that has none: shapes that fit nowhere take memory, too."""

_MAX_KEYS_KEPT = 16
_MIN_NAMES_KEPT = 1024

_MAX_SLOTS_PACKED = 1 << 18
"""How many numbers are handed over by a copy: most are a byte, and are read in less than a millisecond."""

_MAX_SLOTS_KEPT_PACKED = 1 << 20
"""How many such numbers wait to be asked for."""

_UNPACKED_PER_UNIT = 20
"""How many of them are read in the time in which one node is counted."""

_MAX_WEIGHT = 200
"""Shapes that weigh more (`fit.weigh`) are not handed over: they are counted again."""

_NOTHING: Resources = {}


class Table:
    """The slots of one class. ``by_node`` has the nodes that take at least one member, ``total`` is their sum."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.request = dict(shape.requests)
        self.by_node: dict[str, int] = {}
        self.total = 0
        self.version = 0
        self.number = 0
        """Its number among all that a capacity has counted itself."""

        self.weight = weigh(shape)

        self._choosy = bool(shape.node_selector) or shape.node_terms is not None
        self._sums: dict[LevelKey, tuple[Mapping[str, Domain], dict[Domain, int]]] = {}

    def copy(self) -> "Table":
        """The same numbers, which may go their own way."""
        twin = Table(self.shape)
        twin.by_node = self.by_node.copy()
        twin.total = self.total
        twin.version = self.version
        twin._sums = {key: (domains_by_node, sums.copy()) for key, (domains_by_node, sums) in self._sums.items()}
        return twin

    def fill(self, nodes: Iterable[Node], used: Mapping[str, Resources], limit: Limit) -> None:
        """Count every node; nothing was counted before."""
        for node in nodes:
            limit.spend(self.weight)
            free = self.count(node, used.get(node.name, _NOTHING))
            if free:
                self.by_node[node.name] = free
        self.total = sum(self.by_node.values())

    def count(self, node: Node, used: Resources) -> int:
        """How many members the node takes on top of what is used."""
        if (self._choosy or node.taints or node.unschedulable) and not admits(self.shape, node):
            return 0
        return count_slots(node.allocatable, used, self.request)

    def sum_by(self, key: LevelKey, domains_by_node: Mapping[str, Domain]) -> Mapping[Domain, int]:
        """Slots by domain; ``domains_by_node`` has the domain of each node that carries the key.

        Domains without a slot may be missing. Live: the next change of a node changes it.
        """
        kept = self._sums.get(key)
        if kept is not None and kept[0] is domains_by_node:
            return kept[1]
        sums: dict[Domain, int] = {}
        for name, free in self.by_node.items():
            domain = domains_by_node.get(name)
            if domain is not None:
                sums[domain] = sums.get(domain, 0) + free
        while len(self._sums) >= _MAX_KEYS_KEPT:
            del self._sums[next(iter(self._sums))]
        self._sums[key] = domains_by_node, sums
        return sums

    def put(self, name: str, free: int) -> None:
        """A node has room for ``free`` members now."""
        more = free - self.by_node.get(name, 0)
        if not more:
            return
        if free:
            self.by_node[name] = free
        else:
            del self.by_node[name]
        self.total += more
        for domains_by_node, sums in self._sums.values():
            domain = domains_by_node.get(name)
            if domain is not None:
                sums[domain] = sums.get(domain, 0) + more


class Capacity:
    """The tables of the classes that were asked for last, and the domains of the keys that were.

    ``nodes`` and ``used`` (by node name; a node without entry is empty) are read live: their owner tells of changes
    with `note_node` and `note_used`, and nothing is counted before it is asked for. Amounts that are used on a node
    are replaced when they change, never changed themselves.
    """

    def __init__(
        self, nodes: Mapping[str, Node], used: Mapping[str, Resources], ground: "Capacity | None" = None
    ) -> None:
        self.ground = ground
        """The same nodes as if nothing ran on them, counted only where a refusal asks; None where none may ask."""

        self._nodes = nodes
        self._used = used
        self._tables: OrderedDict[Shape, Table] = OrderedDict()
        self.made = 0
        """How many tables were counted here."""
        self._packed: OrderedDict[Shape, tuple[array[int], Sequence[str], int]] = OrderedDict()
        """What copies have counted: slots by node, the nodes, and of which version they are."""
        self._sizes: dict[Shape, int] = {}
        """As how many entries each table counts, as it was when it was counted last."""
        self._entries = 0
        """Their sum, which with thousands of shapes would take too long to find for each new one."""
        # By recency: what changed since a version is at the end.
        self._changed: OrderedDict[str, int] = OrderedDict()
        self._version = 0
        self._forgotten = 0
        self._domains_by_node: OrderedDict[LevelKey, dict[str, Domain]] = OrderedDict()
        self._domains: dict[LevelKey, dict[Domain, dict[str, None]]] = {}

    @property
    def version(self) -> int:
        """Another one after each change."""
        return self._version

    def note_used(self, name: str) -> None:
        """What is used on a node has changed."""
        self._version += 1
        self._changed[name] = self._version
        self._changed.move_to_end(name)
        if len(self._changed) > 2 * len(self._nodes) + _MIN_NAMES_KEPT:
            self._forget()

    def note_node(self, old: Node | None, new: Node | None) -> None:
        """A node came, changed or went."""
        node = new or old
        if node is None:
            return
        self.note_used(node.name)
        if self.ground is not None:
            self.ground.note_node(old, new)
        for key in list(self._domains_by_node):
            if _domain_of(key, old) != _domain_of(key, new):
                # Sums were made with the old domain: they are made anew. Nodes do not move every day.
                del self._domains_by_node[key], self._domains[key]

    def table(self, shape: Shape, limit: Limit | None = None) -> Table:
        """The slots of a class, as of now. O(nodes) for a class that was not asked for lately, else O(changes)."""
        limit = limit or Limit()
        table = self._tables.get(shape)
        if table is None:
            table = self._unpack(shape, limit)
            if table is None:
                table = self._make(shape, limit)
                self.made += 1
                table.number = self.made
            self._keep(table)
        self._tables.move_to_end(shape)
        self.refresh(table, limit)
        return table

    def _unpack(self, shape: Shape, limit: Limit) -> Table | None:
        """The table of a class that a copy has counted, as it was then; None if it is not known."""
        found = self._packed.get(shape)
        if found is None or found[2] < self._forgotten:
            return None
        counts, names, version = found
        limit.spend(len(names) // _UNPACKED_PER_UNIT)
        del self._packed[shape]
        table = Table(shape)
        table.by_node = {name: free for name, free in zip(names, counts, strict=True) if free}
        table.total = sum(counts)
        table.version = version
        return table

    def refresh(self, table: Table, limit: Limit) -> None:
        """Bring a table of this capacity up to date."""
        self._recount(table, self._since(table.version), limit)
        table.version = self._version
        if self._tables.get(table.shape) is table:
            self._measure(table)

    def _recount(self, table: Table, names: Collection[str], limit: Limit) -> None:
        for name in names:
            limit.spend(table.weight)
            node = self._nodes.get(name)
            table.put(name, 0 if node is None else table.count(node, self._used.get(name, _NOTHING)))

    def measure_latest(self) -> tuple[int, Mapping[str, int]]:
        """How many members of the class that was asked for last there is room for: in all, and in the roomiest domain.

        That is by label key, for the keys that are known. O(domains, and nodes that have changed since).
        """
        if not self._tables:
            return 0, {}
        table = self._tables[next(reversed(self._tables))]
        self.refresh(table, Limit())
        keys = [key for key in self._domains_by_node if len(key) == 1]
        return table.total, {
            key[0]: max(table.sum_by(key, self._domains_by_node[key]).values(), default=0) for key in keys
        }

    def count_missing(self, shapes: Collection[Shape]) -> int:
        """For how many of these shapes every node would have to be looked at."""
        known = (self._tables, self._packed)
        return sum(not any(shape in each for each in known) and list_named(shape) is None for shape in shapes)

    def pack(self, since: int, names: Iterable[str]) -> Packed:
        """What was counted for the first time after so many tables (``made``), by these nodes: not all, if it is much.

        Of a copy of this capacity that is about to go away: the original takes it over by `adopt`.
        """
        order = list(names)
        fresh = [table for table in self._tables.values() if table.number > since and weigh(table.shape) <= _MAX_WEIGHT]
        return [
            (table.shape, _pack([table.by_node.get(name, 0) for name in order]))
            for table in fresh[: _MAX_SLOTS_PACKED // max(1, len(order))]
        ]

    def adopt(self, packed: Packed, names: Sequence[str], version: int) -> None:
        """Take over what a copy has counted that was as this was at a version. O(1): unpacked when it is asked for."""
        if version < self._forgotten:
            return
        for shape, counts in packed:
            self._packed[shape] = counts, names, version
            self._packed.move_to_end(shape)
        while len(self._packed) * len(names) > _MAX_SLOTS_KEPT_PACKED:
            self._packed.popitem(last=False)

    def _keep(self, table: Table) -> None:
        self._tables[table.shape] = table
        self._measure(table)
        while len(self._tables) > _MIN_CLASSES_KEPT and self._is_full():
            shape, _ = self._tables.popitem(last=False)
            self._entries -= self._sizes.pop(shape)

    def _measure(self, table: Table) -> None:
        size = _ENTRIES_OF_A_TABLE + len(table.by_node)
        self._entries += size - self._sizes.get(table.shape, 0)
        self._sizes[table.shape] = size

    def _is_full(self) -> bool:
        return self._entries > _MAX_ENTRIES_KEPT

    def _make(self, shape: Shape, limit: Limit) -> Table:
        table = Table(shape)
        table.fill(self._reach(shape), self._used, limit)
        table.version = self._version
        return table

    def _reach(self, shape: Shape) -> Iterable[Node]:
        """The nodes that may take a shape: all, unless it names those where it can go."""
        named: dict[str, None] = {}
        for key, values in list_named(shape) or [("", ())]:
            if key:
                found = (name for value in values for name in self.domains((key,)).get((value,), ()))
                named.update(dict.fromkeys(found))
            else:
                named.update(dict.fromkeys(values))
            if not values or 2 * len(named) > len(self._nodes):
                return self._nodes.values()
        return [self._nodes[name] for name in named if name in self._nodes]

    def _since(self, version: int) -> list[str]:
        names = []
        for name, changed in reversed(self._changed.items()):
            if changed <= version:
                break
            names.append(name)
        return names

    def _forget(self) -> None:
        # Nodes come and go under new names, also where nobody asks for a table: the old ones are not kept for ever.
        self._changed.clear()
        self._packed.clear()
        self._tables.clear()
        self._sizes.clear()
        self._entries = 0
        self._forgotten = self._version

    def domains_by_node(self, key: LevelKey) -> Mapping[str, Domain]:
        """The domain of each node that carries every label of the key."""
        found = self._domains_by_node.get(key)
        if found is None:
            found, domains = self._sort(key)
            self._domains_by_node[key] = found
            self._domains[key] = domains
            while len(self._domains_by_node) > _MAX_KEYS_KEPT:
                oldest, _ = self._domains_by_node.popitem(last=False)
                del self._domains[oldest]
        self._domains_by_node.move_to_end(key)
        return found

    def _sort(self, key: LevelKey) -> tuple[dict[str, Domain], dict[Domain, dict[str, None]]]:
        # Each domain's tuple is made once: a thousand nodes share it.
        by_values: dict[object, tuple[Domain, dict[str, None]]] = {}
        domains_by_node: dict[str, Domain] = {}
        read = itemgetter(*key)
        for name, node in self._nodes.items():
            try:
                values = read(node.labels)
            except KeyError:
                continue
            known = by_values.get(values)
            if known is None:
                known = by_values[values] = (values if len(key) > 1 else (values,)), {}
            domains_by_node[name] = known[0]
            known[1][name] = None
        return domains_by_node, dict(by_values.values())

    def domains(self, key: LevelKey) -> Mapping[Domain, Mapping[str, None]]:
        """The names of each domain's nodes."""
        self.domains_by_node(key)
        return self._domains[key]


class Fork(Capacity):
    """A capacity as it would be if some nodes were used otherwise, or not there; it may then go on its own way.

    ``others`` are these nodes. The original must stay as it is.
    """

    def __init__(
        self, origin: Capacity, nodes: Mapping[str, Node], used: Mapping[str, Resources], others: Collection[str]
    ) -> None:
        super().__init__(nodes, used)
        self._origin = origin
        self._others = others

    def domains_by_node(self, key: LevelKey) -> Mapping[str, Domain]:
        """The domain of each node that carries every label of the key."""
        return self._origin.domains_by_node(key)

    def domains(self, key: LevelKey) -> Mapping[Domain, Mapping[str, None]]:
        """The names of each domain's nodes."""
        return self._origin.domains(key)

    def _make(self, shape: Shape, limit: Limit) -> Table:
        table = self._origin.table(shape, limit).copy()
        self._recount(table, {*self._others, *self._changed}, limit)
        table.version = self._version
        return table

    def _is_full(self) -> bool:
        return False


def _pack(counts: Sequence[int]) -> "array[int]":
    most = max(counts, default=0)
    return array("B" if most < 1 << 8 else "H" if most < 1 << 16 else "q", counts)


def _domain_of(key: LevelKey, node: Node | None) -> Domain | None:
    if node is None or any(each not in node.labels for each in key):
        return None
    return tuple([node.labels[each] for each in key])


NodeSlots = tuple[int, str]
"""Slots, and the name of the node (or of the domain) that has them."""


@dataclass(frozen=True, slots=True, eq=False)
class MemberClass:
    """Members of equal shape, in the order in which they get room."""

    shape: Shape
    request: Resources
    members: tuple[Pod, ...]


def group_classes(members: Iterable[Pod]) -> list[MemberClass]:
    """Classes in the order of their first member."""
    # Decoded pods share their shapes: by identity first, a shape is hashed once and not once per member.
    kinds: dict[int, list[Pod]] = {}
    equals: dict[Shape, list[Pod]] = {}
    for member in members:
        twins = kinds.get(id(member.shape))
        if twins is None:
            twins = kinds[id(member.shape)] = equals.setdefault(member.shape, [])
        twins.append(member)
    return [MemberClass(shape, dict(shape.requests), tuple(twins)) for shape, twins in equals.items()]


def find_least(classes: Sequence[MemberClass]) -> MemberClass:
    """A class without members that asks for no more than any of these, and may go wherever one of these may.

    So there are never more members of these in any nodes than there are slots for it.
    """
    least = dict(classes[0].request)
    for kind in classes[1:]:
        least = {name: min(amount, kind.request[name]) for name, amount in least.items() if name in kind.request}
    tolerations = dict.fromkeys(each for kind in classes for each in kind.shape.tolerations)
    return MemberClass(Shape(tuple(sorted(least.items())), tolerations=tuple(tolerations)), least, ())


class Census:
    """What `Capacity` has counted, corrected for what only this plan sees. It lives as long as one plan.

    Other numbers hold on the nodes that are closed to the gang, and on those whose use the snapshot sees differently
    (nominated pods). ``capacity`` None counts the whole snapshot anew.
    """

    def __init__(self, snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None) -> None:
        self.limit = snapshot.limit
        self._snapshot = snapshot
        self._closed = ask.closed
        self._capacity = capacity or Capacity(snapshot.nodes, snapshot.used)
        self._special = tuple(name for name in {*snapshot.over, *ask.closed} if name in snapshot.nodes)
        self._corrected: dict[MemberClass, dict[str, int]] = {}
        self._tables: dict[MemberClass, Table] = {}
        self._closed_to: dict[MemberClass, frozenset[str]] = {}

    def close(self, kind: MemberClass, names: frozenset[str]) -> None:
        """Some nodes are closed to a class, which is not counted yet."""
        if names:
            self._closed_to[kind] = names

    def count(self, kind: MemberClass) -> None:
        """Count the slots of a class ahead."""
        self._tables[kind] = self._capacity.table(kind.shape, self.limit)
        self._correct(kind)

    def _table(self, kind: MemberClass) -> Table:
        # Kept for as long as the plan: a plan of many classes must not count one again because it asked for others.
        found = self._tables.get(kind)
        if found is None:
            found = self._tables[kind] = self._capacity.table(kind.shape, self.limit)
        return found

    def node_slots(self, kind: MemberClass, names: Iterable[str] | None) -> list[NodeSlots]:
        """(slots, node name) of those nodes that take at least one member; None means all nodes."""
        by_node = self._table(kind).by_node
        if not self._special and kind not in self._closed_to:
            return [(by_node[name], name) for name in (by_node if names is None else names) if name in by_node]
        corrected = self._correct(kind)
        known = by_node.keys() | corrected.keys() if names is None else names
        node_slots = [(corrected[name] if name in corrected else by_node.get(name, 0), name) for name in known]
        return [room for room in node_slots if room[0]]

    def total(self, kind: MemberClass) -> int:
        """The slots of a class in the whole cluster."""
        table = self._table(kind)
        return table.total + sum(more for _, more in self._differences(kind, table))

    def totals(self, kind: MemberClass, key: LevelKey) -> Mapping[Domain, int]:
        """The slots of a class by domain; domains without a slot may be missing."""
        domains_by_node = self._capacity.domains_by_node(key)
        table = self._table(kind)
        sums = table.sum_by(key, domains_by_node)
        if not self._special and kind not in self._closed_to:
            return sums
        corrected = dict(sums)
        for name, more in self._differences(kind, table):
            if name in domains_by_node:
                corrected[domains_by_node[name]] = corrected.get(domains_by_node[name], 0) + more
        return corrected

    def domains(self, key: LevelKey) -> Mapping[Domain, Mapping[str, None]]:
        """The names of the nodes in each domain."""
        return self._capacity.domains(key)

    def count_empty(self, kind: MemberClass, key: LevelKey) -> Mapping[Domain, int] | None:
        """As ``totals`` if nothing ran on any node; under () the whole cluster. None where it is not known.

        Nodes that are closed to the gang count, too.
        """
        if self._capacity.ground is None or any(name.startswith(SETS) for name in kind.request):
            return None
        table = self._capacity.ground.table(kind.shape, self.limit)
        return table.sum_by(key, self._capacity.domains_by_node(key)) if key else {(): table.total}

    def domain_of(self, key: LevelKey, node: str) -> Domain | None:
        """The domain in which a node is; None if it lacks a label."""
        return self._capacity.domains_by_node(key).get(node)

    def label(self, key: str, node: str) -> str:
        """The value of a node's label, "" without it."""
        return self._snapshot.nodes[node].labels.get(key, "")

    def used(self, node: str) -> Resources:
        """What the snapshot says is used on a node."""
        return self._snapshot.used.get(node, _NOTHING)

    def allocatable(self, node: str) -> Resources:
        """What a node has."""
        return self._snapshot.nodes[node].allocatable

    def _differences(self, kind: MemberClass, table: Table) -> list[tuple[str, int]]:
        return [(name, free - table.by_node.get(name, 0)) for name, free in self._correct(kind).items()]

    def _correct(self, kind: MemberClass) -> dict[str, int]:
        found = self._corrected.get(kind)
        if found is None:
            found = self._corrected[kind] = {name: self._count(kind, name) for name in self._special}
            found.update(dict.fromkeys(self._closed_to.get(kind, ()), 0))
        return found

    def _count(self, kind: MemberClass, name: str) -> int:
        node = self._snapshot.nodes[name]
        if name in self._closed or not admits(kind.shape, node):
            return 0
        return count_slots(node.allocatable, self.used(name), kind.request)
