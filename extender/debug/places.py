"""Where nodes stand: the topology keys of the cluster as levels of a map, the widest first."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from serried.model.node import Node

_MAX_LEVELS = 4
"""How many levels a map has at most."""

_HOST = "kubernetes.io/hostname"

_SLICE_NODES = 100
"""After how many nodes a slice may end."""

Place = tuple[str, ...]
"""The values of the levels; "" where a node has no such label."""


class Places:
    """The levels, and the place of each node. They are found anew when a label of a node changed, or a group's key."""

    def __init__(self) -> None:
        self.levels: Place = ()
        """The keys, the widest first."""

        self._seen: dict[str, Node] = {}
        self._named: frozenset[str] = frozenset()

    def place_of(self, node: Node) -> Place:
        """Where a node stands."""
        return tuple(node.labels.get(level, "") for level in self.levels)

    def learn(self, nodes: Mapping[str, Node], named: Collection[str]) -> Iterator[None]:
        """Find the levels among the labels of the nodes; ``named`` are the keys that groups name."""
        chosen = frozenset(named)
        if chosen == self._named and not self._note_changes(nodes):
            return
        self._named = chosen
        values: dict[str, set[str]] = defaultdict(set)
        for turn, node in enumerate(list(nodes.values())):
            for key, value in node.labels.items():
                if key != _HOST and (key in chosen or "topology" in key.partition("/")[0]):
                    values[key].add(value)
            if turn % _SLICE_NODES == 0:
                yield
        self.levels = _choose(values, chosen, len(nodes))

    def _note_changes(self, nodes: Mapping[str, Node]) -> bool:
        """Whether a label of a node is another one since the last time."""
        seen = self._seen
        changed = len(seen) != len(nodes)
        for name, node in nodes.items():
            before = seen.get(name)
            if before is not node:
                changed = changed or before is None or before.labels != node.labels
                seen[name] = node
        if len(seen) != len(nodes):
            self._seen = dict(nodes)
        return changed


def _choose(values: Mapping[str, Collection[str]], named: Collection[str], nodes: int) -> Place:
    # A label with a value of its own on nearly every node is a name, and no level.
    levels = [key for key, found in values.items() if key in named or len(found) <= max(1, nodes // 2)]
    levels.sort(key=lambda key: (key not in named, len(values[key]), key))
    return tuple(sorted(levels[:_MAX_LEVELS], key=lambda key: (len(values[key]), key)))
