"""Counts how many more pods of a shape fit on each node and in each domain, so that plans need not count all nodes.

A shape (`serried.api.pod.Shape`) is all that decides on which nodes a pod fits: requests, node affinity, tolerations. A
`Capacity` belongs to the cache of the cluster and lives as long. `Capacity.table` returns the counts of a shape: the
first plan for the shape counts all nodes; later plans only count the nodes that have changed. A `Census` is made for
each plan, and corrects these counts for what only this plan sees, such as nodes that the gang must not use.
"""

from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.api.resources import SETS, Resources, count_slots
from serried.plan.fit import admits, list_required_values, weigh
from serried.plan.limit import Limit
from serried.plan.request import PlanRequest, Snapshot

LabelKeys = tuple[str, ...]
"""One or more label keys, the widest first. The nodes that have the same values for all of them form a domain."""

Domain = tuple[str, ...]
"""A domain: the values of its `LabelKeys`, in the same order; () for the whole cluster."""

PackedCounts = Sequence[tuple[Shape, "array[int]"]]
"""The number of pods that fit on each node, as one array per shape. Sender and receiver know the order of the nodes."""

_MIN_SHAPES_KEPT = 16
"""The number of shapes whose counts are always kept, however many nodes they have."""

_MAX_ENTRIES_KEPT = 1 << 20
"""The maximum number of (shape, node) counts that a `Capacity` keeps, some 60 MB.

Beyond it the counts of the shapes that were not used for the longest time are dropped.
"""

_ENTRIES_OF_A_TABLE = 16
"""The number by which each shape counts toward `_MAX_ENTRIES_KEPT`, besides one for each node on which it fits.

Shapes that fit on no node take memory, too.
"""

_MAX_KEYS_KEPT = 16
_MIN_NAMES_KEPT = 1024

_MAX_COUNTS_PACKED = 1 << 18
"""The maximum number of (shape, node) counts that a forked process sends to its parent process.

Most are a byte, and so many are read in less than a millisecond.
"""

_MAX_COUNTS_KEPT_PACKED = 1 << 20
"""The maximum number of received (shape, node) counts that are kept until a plan needs their shape."""

_UNPACKED_PER_UNIT = 20
"""The number of received counts whose reading is one unit of `Limit.spent`, i.e. takes as long as counting one node."""

_MAX_WEIGHT = 200
"""The maximum cost (`fit.weigh`) of a shape whose counts a forked process sends.

The receiver counts larger ones again.
"""

_NOTHING: Resources = {}


class ShapeCounts:
    """The number of pods of one shape that fit on each node besides the pods that are there.

    ``by_node`` has the nodes on which at least one fits, ``total`` is the sum. ``version`` is the `Capacity.version`
    for which the counts are right.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.request = dict(shape.requests)
        self.by_node: dict[str, int] = {}
        self.total = 0
        self.version = 0
        self.number = 0
        """The position in the order in which the `Capacity` has counted shapes, from 1.

        It is 0 for counts from a fork.
        """

        self.weight = weigh(shape)

        self._choosy = bool(shape.node_selector) or shape.node_terms is not None
        self._sums: dict[LabelKeys, tuple[Mapping[str, Domain], dict[Domain, int]]] = {}

    def copy(self) -> "ShapeCounts":
        """Return an independent copy."""
        twin = ShapeCounts(self.shape)
        twin.by_node = self.by_node.copy()
        twin.total = self.total
        twin.version = self.version
        twin._sums = {key: (domains_by_node, sums.copy()) for key, (domains_by_node, sums) in self._sums.items()}
        return twin

    def fill(self, nodes: Iterable[Node], used: Mapping[str, Resources], limit: Limit) -> None:
        """Count for each of ``nodes`` how many pods of the shape fit.

        Called once, before nodes are counted again one by one. ``used`` has the amounts in use by node name; a node
        without entry is empty. The work is reported to ``limit``, which raises TooLong if the plan takes too much time.
        """
        for node in nodes:
            limit.spend(self.weight)
            free = self.count(node, used.get(node.name, _NOTHING))
            if free:
                self.by_node[node.name] = free
        self.total = sum(self.by_node.values())

    def count(self, node: Node, used: Resources) -> int:
        """Return how many more pods fit on the node, on which the amounts ``used`` are in use."""
        if (self._choosy or node.taints or node.unschedulable) and not admits(self.shape, node):
            return 0
        return count_slots(node.allocatable, used, self.request)

    def sum_by(self, key: LabelKeys, domains_by_node: Mapping[str, Domain]) -> Mapping[Domain, int]:
        """Return the sum of the counts of each domain, i.e. of the nodes with equal values for the labels ``key``.

        ``domains_by_node`` has the domain of each node for this key.
        A domain in which no pod fits may be missing. The returned mapping is live: `set_count` updates it.
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

    def set_count(self, name: str, free: int) -> None:
        """Set how many pods fit on a node, and update all sums."""
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
    """Counts for all shapes of recent plans how many pods fit on each node, and knows the domains of the nodes.

    ``nodes`` and ``used`` (amounts in use by node name; a node without entry is empty) are live mappings. Their owner
    must call `note_node` and `note_used` after each change, and must replace the amounts of a node instead of modifying
    them. Changed nodes are counted again when a plan asks for a shape.
    """

    def __init__(
        self, nodes: Mapping[str, Node], used: Mapping[str, Resources], without_pods: "Capacity | None" = None
    ) -> None:
        self.without_pods = without_pods
        """The capacity of the same nodes if no pods were running; None if it is not kept. Only explanations use it."""

        self._nodes = nodes
        self._used = used
        self._tables: OrderedDict[Shape, ShapeCounts] = OrderedDict()
        self.made = 0
        """The number of shapes that were counted here so far, without those that came from a fork."""
        self._packed: OrderedDict[Shape, tuple[array[int], Sequence[str], int]] = OrderedDict()
        """The counts from forked processes by shape.

        With them are the node names in the same order, and their version.
        """
        self._sizes: dict[Shape, int] = {}
        """The number of entries of each shape, as of its last update."""
        self._entries = 0
        """The sum of the sizes, kept because summing up thousands of tables for each new one would be slow."""
        # In order of change, so that the nodes changed since a version are at the end.
        self._changed: OrderedDict[str, int] = OrderedDict()
        self._version = 0
        self._forgotten = 0
        self._domains_by_node: OrderedDict[LabelKeys, dict[str, Domain]] = OrderedDict()
        self._domains: dict[LabelKeys, dict[Domain, dict[str, None]]] = {}

    @property
    def version(self) -> int:
        """The number of changes of nodes and usage so far. The same version means the same state of all nodes."""
        return self._version

    def note_used(self, name: str) -> None:
        """Record that the amounts in use on a node have changed, so that the node is counted again."""
        self._version += 1
        self._changed[name] = self._version
        self._changed.move_to_end(name)
        if len(self._changed) > 2 * len(self._nodes) + _MIN_NAMES_KEPT:
            self._reset()

    def note_node(self, old: Node | None, new: Node | None) -> None:
        """Record that a node has changed, so that it is counted again.

        ``old`` is None if it is new, ``new`` if it was deleted.
        """
        node = new or old
        if node is None:
            return
        self.note_used(node.name)
        if self.without_pods is not None:
            self.without_pods.note_node(old, new)
        for key in list(self._domains_by_node):
            if _domain_of(key, old) != _domain_of(key, new):
                # The sums used the old domain and are computed again. Nodes rarely change their domain.
                del self._domains_by_node[key], self._domains[key]

    def table(self, shape: Shape, limit: Limit | None = None) -> ShapeCounts:
        """Return the up-to-date counts of a shape.

        That takes O(nodes) if the shape is new, otherwise O(changed nodes). The work is reported to ``limit``, which
        raises TooLong if the plan takes too much time; None means no limit.
        """
        limit = limit or Limit()
        table = self._tables.get(shape)
        if table is None:
            table = self._unpack(shape, limit)
            if table is None:
                table = self._count_table(shape, limit)
                self.made += 1
                table.number = self.made
            self._add(table)
        self._tables.move_to_end(shape)
        self.refresh(table, limit)
        return table

    def _unpack(self, shape: Shape, limit: Limit) -> ShapeCounts | None:
        """Return the counts of a shape that came from a forked process.

        They may be right for an earlier `Capacity.version` than the present one. Return None if there are none, or if
        this object has dropped all counts since that version. The work is reported to ``limit``.
        """
        found = self._packed.get(shape)
        if found is None or found[2] < self._forgotten:
            return None
        counts, names, version = found
        limit.spend(len(names) // _UNPACKED_PER_UNIT)
        del self._packed[shape]
        table = ShapeCounts(shape)
        table.by_node = {name: free for name, free in zip(names, counts, strict=True) if free}
        table.total = sum(counts)
        table.version = version
        return table

    def refresh(self, table: ShapeCounts, limit: Limit) -> None:
        """Count again, in ``table``, how many pods fit on the nodes that have changed since its version.

        ``table`` must come from this capacity. The work is reported to ``limit``, which raises TooLong if the plan
        takes too much time.
        """
        self._recount(table, self._list_changed(table.version), limit)
        table.version = self._version
        if self._tables.get(table.shape) is table:
            self._update_size(table)

    def _recount(self, table: ShapeCounts, names: Collection[str], limit: Limit) -> None:
        for name in names:
            limit.spend(table.weight)
            node = self._nodes.get(name)
            table.set_count(name, 0 if node is None else table.count(node, self._used.get(name, _NOTHING)))

    def measure_latest_shape(self) -> tuple[int, Mapping[str, int]]:
        """Return how many pods of the latest plan's shape fit, in the whole cluster and in the best domains.

        The second result has for each label key, e.g. ``zone``, how many fit in the domain that holds the most. It has
        only label keys that plans have used. It takes O(domains), and O(nodes changed since the latest plan).
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
        """Return for how many of these shapes a plan would have to count all nodes, because there are no counts yet."""
        known = (self._tables, self._packed)
        return sum(not any(shape in each for each in known) and list_required_values(shape) is None for shape in shapes)

    def export_tables(self, since: int, names: Iterable[str]) -> PackedCounts:
        """Return the counts of the shapes that were counted after ``made`` had the value ``since``.

        ``made`` is the number of shapes counted here so far. So a forked process gets the shapes that it has counted
        itself, if ``since`` is the value of ``made`` at the fork. It sends the result to its parent process, which
        calls `import_tables`. For each shape there is one count per node, in the order of ``names``. If there are too
        many counts, the last shapes are left out.
        """
        order = list(names)
        fresh = [table for table in self._tables.values() if table.number > since and weigh(table.shape) <= _MAX_WEIGHT]
        return [
            (table.shape, _pack([table.by_node.get(name, 0) for name in order]))
            for table in fresh[: _MAX_COUNTS_PACKED // max(1, len(order))]
        ]

    def import_tables(self, packed: PackedCounts, names: Sequence[str], version: int) -> None:
        """Take over the counts from a forked process: for each shape one count per node, in the order of ``names``.

        ``version`` is the `Capacity.version` for which they are right. It takes O(shapes), because the counts are only
        read when a plan needs their shape. Does nothing if this object has dropped all counts since that version.
        """
        if version < self._forgotten:
            return
        for shape, counts in packed:
            self._packed[shape] = counts, names, version
            self._packed.move_to_end(shape)
        while len(self._packed) * len(names) > _MAX_COUNTS_KEPT_PACKED:
            self._packed.popitem(last=False)

    def _add(self, table: ShapeCounts) -> None:
        self._tables[table.shape] = table
        self._update_size(table)
        while len(self._tables) > _MIN_SHAPES_KEPT and self._is_full():
            shape, _ = self._tables.popitem(last=False)
            self._entries -= self._sizes.pop(shape)

    def _update_size(self, table: ShapeCounts) -> None:
        size = _ENTRIES_OF_A_TABLE + len(table.by_node)
        self._entries += size - self._sizes.get(table.shape, 0)
        self._sizes[table.shape] = size

    def _is_full(self) -> bool:
        return self._entries > _MAX_ENTRIES_KEPT

    def _count_table(self, shape: Shape, limit: Limit) -> ShapeCounts:
        table = ShapeCounts(shape)
        table.fill(self._list_candidates(shape), self._used, limit)
        table.version = self._version
        return table

    def _list_candidates(self, shape: Shape) -> Iterable[Node]:
        """Return the nodes to count for a shape.

        Return all nodes, or fewer if the node selector or node affinity limits the shape to some hosts or label values.
        """
        named: dict[str, None] = {}
        for key, values in list_required_values(shape) or [("", ())]:
            if key:
                found = (name for value in values for name in self.domains((key,)).get((value,), ()))
                named.update(dict.fromkeys(found))
            else:
                named.update(dict.fromkeys(values))
            if not values or 2 * len(named) > len(self._nodes):
                return self._nodes.values()
        return [self._nodes[name] for name in named if name in self._nodes]

    def _list_changed(self, version: int) -> list[str]:
        names = []
        for name, changed in reversed(self._changed.items()):
            if changed <= version:
                break
            names.append(name)
        return names

    def _reset(self) -> None:
        # Nodes with new names appear all the time, even if no table is used, so old names have to be dropped.
        self._changed.clear()
        self._packed.clear()
        self._tables.clear()
        self._sizes.clear()
        self._entries = 0
        self._forgotten = self._version

    def domains_by_node(self, key: LabelKeys) -> Mapping[str, Domain]:
        """Return the domain of each node by node name: its values of the labels ``key``.

        A node that lacks one of the labels is not listed.
        """
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

    def _sort(self, key: LabelKeys) -> tuple[dict[str, Domain], dict[Domain, dict[str, None]]]:
        # All nodes of a domain share one tuple.
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

    def domains(self, key: LabelKeys) -> Mapping[Domain, Mapping[str, None]]:
        """Return the names of the nodes in each domain of the label keys ``key``, as the keys of a mapping."""
        self.domains_by_node(key)
        return self._domains[key]


class CapacityFork(Capacity):
    """A copy of the capacity ``origin`` for one plan, in which the nodes ``others`` have another usage or are missing.

    It counts only these nodes itself, and takes the other counts from ``origin``. Changes are recorded in the fork
    only. ``origin`` must not change while the fork is used.
    """

    def __init__(
        self, origin: Capacity, nodes: Mapping[str, Node], used: Mapping[str, Resources], others: Collection[str]
    ) -> None:
        super().__init__(nodes, used)
        self._origin = origin
        self._others = others

    def domains_by_node(self, key: LabelKeys) -> Mapping[str, Domain]:
        """Return the domain of each node (its values of the labels ``key``) by node name, as ``origin`` does."""
        return self._origin.domains_by_node(key)

    def domains(self, key: LabelKeys) -> Mapping[Domain, Mapping[str, None]]:
        """Return the names of the nodes in each domain of the label keys ``key``, as ``origin`` does."""
        return self._origin.domains(key)

    def _count_table(self, shape: Shape, limit: Limit) -> ShapeCounts:
        table = self._origin.table(shape, limit).copy()
        self._recount(table, {*self._others, *self._changed}, limit)
        table.version = self._version
        return table

    def _is_full(self) -> bool:
        return False


def _pack(counts: Sequence[int]) -> "array[int]":
    most = max(counts, default=0)
    return array("B" if most < 1 << 8 else "H" if most < 1 << 16 else "q", counts)


def _domain_of(key: LabelKeys, node: Node | None) -> Domain | None:
    if node is None or any(each not in node.labels for each in key):
        return None
    return tuple([node.labels[each] for each in key])


NodeCount = tuple[int, str]
"""The number of members with equal shapes that fit on a node, and the node's name. The name may also be a domain's."""


@dataclass(frozen=True, slots=True, eq=False)
class MemberClass:
    """The members of a gang that have equal shapes: equal requests, node affinity and so on.

    ``request`` is what each member requests. The members are in the order in which they are placed. Two classes are
    equal only if they are the same object.
    """

    shape: Shape
    request: Resources
    members: tuple[Pod, ...]


def group_classes(members: Iterable[Pod]) -> list[MemberClass]:
    """Group members by shape: members with equal requests and constraints form one class.

    The classes are in the order of their first members.
    """
    # Decoded pods share Shape objects. Comparing identities first hashes a shape once, not once per member.
    kinds: dict[int, list[Pod]] = {}
    equals: dict[Shape, list[Pod]] = {}
    for member in members:
        twins = kinds.get(id(member.shape))
        if twins is None:
            twins = kinds[id(member.shape)] = equals.setdefault(member.shape, [])
        twins.append(member)
    return [MemberClass(shape, dict(shape.requests), tuple(twins)) for shape, twins in equals.items()]


def make_least_class(classes: Sequence[MemberClass]) -> MemberClass:
    """Return a class of fictitious members, of which at least as many fit as of any mix of the members of ``classes``.

    A fictitious member requests the smallest amount of each resource that all classes request, and has the tolerations
    of all. So the number that fits is an upper bound, for members of several shapes together. For instance classes with
    2 CPUs and 3 GPUs, and with 4 CPUs, give members with 2 CPUs.
    """
    least = dict(classes[0].request)
    for kind in classes[1:]:
        least = {name: min(amount, kind.request[name]) for name, amount in least.items() if name in kind.request}
    tolerations = dict.fromkeys(each for kind in classes for each in kind.shape.tolerations)
    return MemberClass(Shape(tuple(sorted(least.items())), tolerations=tuple(tolerations)), least, ())


class Census:
    """The number of members of each class that fit on each node and in each domain, as one plan sees it.

    A class has members of equal shape. The counts of a `Capacity` are corrected for the nodes that this gang must not
    use (``ask.closed``), and for nodes on which the plan counts other usage (``snapshot.over``, e.g. with nominated
    pods). Without a ``capacity`` all nodes of the snapshot are counted. It lives as long as the plan.
    """

    def __init__(self, snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None) -> None:
        self.limit = snapshot.limit
        self._snapshot = snapshot
        self._closed = ask.closed
        self._capacity = capacity or Capacity(snapshot.nodes, snapshot.used)
        self._special = tuple(name for name in {*snapshot.over, *ask.closed} if name in snapshot.nodes)
        self._corrected: dict[MemberClass, dict[str, int]] = {}
        self._tables: dict[MemberClass, ShapeCounts] = {}
        self._closed_to: dict[MemberClass, frozenset[str]] = {}

    def close(self, kind: MemberClass, names: frozenset[str]) -> None:
        """Exclude nodes for the equal members ``kind``, so that none fits there. Must be called before `count`."""
        if names:
            self._closed_to[kind] = names

    def count(self, kind: MemberClass) -> None:
        """Count how many of the equal members ``kind`` fit on each node.

        Must be called before the methods that return counts.
        """
        self._tables[kind] = self._capacity.table(kind.shape, self.limit)
        self._correct(kind)

    def _table(self, kind: MemberClass) -> ShapeCounts:
        # A plan with many classes must not count a table again because the capacity has dropped it meanwhile.
        found = self._tables.get(kind)
        if found is None:
            found = self._tables[kind] = self._capacity.table(kind.shape, self.limit)
        return found

    def node_counts(self, kind: MemberClass, names: Iterable[str] | None) -> list[NodeCount]:
        """Return (count, node name) for each of the named nodes on which one of the equal members ``kind`` fits.

        None as ``names`` means all nodes.
        """
        by_node = self._table(kind).by_node
        if not self._special and kind not in self._closed_to:
            return [(by_node[name], name) for name in (by_node if names is None else names) if name in by_node]
        corrected = self._correct(kind)
        known = by_node.keys() | corrected.keys() if names is None else names
        node_counts = [(corrected[name] if name in corrected else by_node.get(name, 0), name) for name in known]
        return [room for room in node_counts if room[0]]

    def total(self, kind: MemberClass) -> int:
        """Return how many of the equal members ``kind`` fit in the whole cluster."""
        table = self._table(kind)
        return table.total + sum(more for _, more in self._differences(kind, table))

    def totals(self, kind: MemberClass, key: LabelKeys) -> Mapping[Domain, int]:
        """Return how many of the equal members ``kind`` fit in each domain of the label keys ``key``.

        A domain in which none fits may be missing.
        """
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

    def domains(self, key: LabelKeys) -> Mapping[Domain, Mapping[str, None]]:
        """Return the names of the nodes in each domain of the label keys ``key``, as the keys of a mapping."""
        return self._capacity.domains(key)

    def count_empty(self, kind: MemberClass, key: LabelKeys) -> Mapping[Domain, int] | None:
        """Return how many of the equal members ``kind`` would fit in each domain if no pods were running.

        ``key`` has the label keys of the domains; () means the whole cluster as one domain. Nodes that the gang must
        not use are included. Return None if the numbers are unknown.
        """
        if self._capacity.without_pods is None or any(name.startswith(SETS) for name in kind.request):
            return None
        table = self._capacity.without_pods.table(kind.shape, self.limit)
        return table.sum_by(key, self._capacity.domains_by_node(key)) if key else {(): table.total}

    def domain_of(self, key: LabelKeys, node: str) -> Domain | None:
        """Return the domain of a node, i.e. its values of the labels ``key``; None if it lacks one of them."""
        return self._capacity.domains_by_node(key).get(node)

    def label(self, key: str, node: str) -> str:
        """Return the value of a label of a node; "" if it does not have the label."""
        return self._snapshot.nodes[node].labels.get(key, "")

    def used(self, node: str) -> Resources:
        """Return the amounts that are in use on a node, as this plan sees it."""
        return self._snapshot.used.get(node, _NOTHING)

    def allocatable(self, node: str) -> Resources:
        """Return the allocatable amounts of a node."""
        return self._snapshot.nodes[node].allocatable

    def _differences(self, kind: MemberClass, table: ShapeCounts) -> list[tuple[str, int]]:
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
