"""How many volumes of a CSI driver a node takes (NodeVolumeLimits), as an amount that nodes have and pods ask for.

A claim that one pod mounts is one volume wherever that goes. A volume that several pods share counts once for a node:
where it is in use already, it is taken off what the node has. So it costs no other pod there anything, and a node to
which it comes new is learnt. Volumes that are attached to a node though no pod there uses them are learnt, too.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from serried.api.node import Node
from serried.api.resources import ATTACHED
from serried.api.volume import CSINode


class Attachments:
    """The limits of nodes. ``limited`` are the drivers that have one on some node: others are not counted."""

    def __init__(self) -> None:
        self.nodes: dict[str, CSINode] = {}
        self.limited: Counter[str] = Counter()

    def equip(self, node: Node, shared: Mapping[str, int]) -> Node:
        """The node with what it takes of each driver; ``shared`` are the volumes there that several pods mount."""
        limits = self.nodes[node.name].limits if node.name in self.nodes else {}
        amounts = {name: amount for name, amount in node.allocatable.items() if not name.startswith(ATTACHED)}
        if not limits and len(amounts) == len(node.allocatable):
            return node
        amounts.update((ATTACHED + driver, limit - shared.get(driver, 0)) for driver, limit in limits.items())
        return node if amounts == node.allocatable else replace(node, allocatable=amounts)

    def put(self, found: CSINode) -> bool:
        """A CSINode came or changed; whether a driver has a limit now that had none, or the other way round."""
        old = self.nodes.get(found.name)
        self.nodes[found.name] = found
        return self._count(old.limits if old is not None else (), found.limits)

    def drop(self, name: str) -> bool:
        """A CSINode went; the same."""
        old = self.nodes.pop(name, None)
        return self._count(old.limits if old is not None else (), ())

    def _count(self, less: Iterable[str], more: Iterable[str]) -> bool:
        before = set(self.limited)
        self.limited.update(more)
        self.limited.subtract(Counter(less))
        self.limited = +self.limited
        return before != set(self.limited)
