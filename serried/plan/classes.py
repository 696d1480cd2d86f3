"""Members in classes of equal shape, and the slots of each class on each node, counted once per plan."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from serried.model.node import Node
from serried.model.plan import View
from serried.model.pod import Pod, Shape
from serried.model.resources import Resources, count_slots
from serried.plan.fit import admits

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


class Census:
    """Slots by class and node on one view. Counts on demand and remembers, so it lives as long as one plan."""

    def __init__(self, view: View) -> None:
        self._used = view.used
        self._known: dict[MemberClass, dict[str, int]] = {}

    def count(self, kind: MemberClass, nodes: Sequence[Node]) -> list[tuple[int, str]]:
        """(slots, node name) of those nodes that take at least one member, in the order of ``nodes``."""
        known = self._known.setdefault(kind, {})
        rooms = []
        for node in nodes:
            name = node.name
            free = known.get(name)
            if free is None:
                free = known[name] = self._count_anew(kind, node)
            if free:
                rooms.append((free, name))
        return rooms

    def used(self, node: str) -> Resources:
        """What the view says is used on a node."""
        return self._used.get(node, _NOTHING)

    def _count_anew(self, kind: MemberClass, node: Node) -> int:
        if not admits(kind.shape, node):
            return 0
        return count_slots(node.allocatable, self._used.get(node.name, _NOTHING), kind.request)
