"""Members in classes of equal shape, and the slots of each class as one plan may use them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from serried.model.plan import PlanRequest, Snapshot
from serried.model.pod import Pod, Shape
from serried.model.resources import Resources, count_slots
from serried.plan.capacity import Capacity, Domain, LevelKey, Table
from serried.plan.fit import admits
from serried.plan.steps import Work

NodeSlots = tuple[int, str]
"""Slots, and the name of the node (or of the domain) that has them."""

_NOTHING: Resources = {}


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
        self._snapshot = snapshot
        self._closed = ask.closed
        self._capacity = capacity or Capacity(snapshot.nodes, snapshot.used)
        self._special = tuple(name for name in {*snapshot.over, *ask.closed} if name in snapshot.nodes)
        self._corrected: dict[MemberClass, dict[str, int]] = {}
        self._tables: dict[MemberClass, Table] = {}

    def count(self, kind: MemberClass) -> Work[None]:
        """Count the slots of a class ahead, in steps."""
        self._tables[kind] = yield from self._capacity.count(kind.shape)
        self._correct(kind)
        yield

    def _table(self, kind: MemberClass) -> Table:
        # Kept for as long as the plan: a plan of many classes must not count one again because it asked for others.
        found = self._tables.get(kind)
        if found is None:
            found = self._tables[kind] = self._capacity.table(kind.shape)
        return found

    def node_slots(self, kind: MemberClass, names: Iterable[str] | None) -> list[NodeSlots]:
        """(slots, node name) of those nodes that take at least one member; None means all nodes."""
        by_node = self._table(kind).by_node
        if not self._special:
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
        homes = self._capacity.homes(key)
        table = self._table(kind)
        sums = table.sum_by(key, homes)
        if not self._special:
            return sums
        corrected = dict(sums)
        for name, more in self._differences(kind, table):
            if name in homes:
                corrected[homes[name]] = corrected.get(homes[name], 0) + more
        return corrected

    def domains(self, key: LevelKey) -> Mapping[Domain, Mapping[str, None]]:
        """The names of the nodes in each domain."""
        return self._capacity.domains(key)

    def home(self, key: LevelKey, node: str) -> Domain | None:
        """The domain in which a node is; None if it lacks a label."""
        return self._capacity.homes(key).get(node)

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
        return found

    def _count(self, kind: MemberClass, name: str) -> int:
        node = self._snapshot.nodes[name]
        if name in self._closed or not admits(kind.shape, node):
            return 0
        return count_slots(node.allocatable, self.used(name), kind.request)
