"""How much of each domain is used, so that pods that may go anywhere leave whole domains to gangs."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from serried.api.group import PodGroup
from serried.api.node import Node
from serried.api.resources import Resources

MAX_SCORE = 10
"""MaxExtenderPriority of upstream's k8s.io/kube-scheduler/extender/v1."""

MAX_KEYS = 4
"""How many topology keys are followed; a change of a node or of its use costs as many steps."""

_NOTHING: Resources = {}


class DomainUse:
    """The use of the domains of the topology keys that PodGroups ask for, required or preferred.

    ``nodes`` and ``used`` (by node name) are read live: their owner tells of changes, and amounts that are used on a
    node are replaced when they change, never changed themselves. Of more than `MAX_KEYS` keys those are followed that
    most groups ask for. A key is followed on when its last group has gone, until another one needs its place: the next
    gang of this kind needs whole domains, too.

    A change only marks its node, so that it costs nothing where nobody asks for scores.
    """

    def __init__(self, nodes: Mapping[str, Node], used: Mapping[str, Resources]) -> None:
        self._nodes = nodes
        self._used = used
        self._asked: Counter[str] = Counter()
        """How many groups ask for each key."""
        self._levels: dict[str, _Level] = {}

        self.changed: set[str] = set()
        """The nodes that came, changed or went since the last score, or on which other amounts are used."""

    def note_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        """A PodGroup has changed from ``old`` to ``new``. O(nodes) if it brings a key that is not followed yet."""
        before, after = list_keys(old), list_keys(new)
        if before == after:
            return
        self._asked.update(after)
        self._asked.subtract(before)
        for key in before - after:
            if not self._asked[key]:
                del self._asked[key]
        for key in sorted(after - before):
            self._follow(key)

    def _follow(self, key: str) -> None:
        if key in self._levels:
            return
        if len(self._levels) == MAX_KEYS:
            least = min(self._levels, key=lambda each: self._asked[each])
            if self._asked[least] >= self._asked[key]:
                return
            del self._levels[least]
        level = self._levels[key] = _Level(key)
        for name, node in self._nodes.items():
            level.put(name, node, self._used.get(name, _NOTHING))

    def forget(self, name: str) -> None:
        """Forget a node that went: names of nodes come and go by the thousand. O(keys)."""
        self.changed.discard(name)
        for level in self._levels.values():
            level.put(name, None, _NOTHING)

    def score(self, names: Sequence[str]) -> list[int]:
        """How good each of these nodes is for a pod that may go to all of them, from 0 to `MAX_SCORE`.

        O(names), and O(keys) for each node that has changed since the last score.

        The fuller a node's domain, the better, by its place among the domains of these nodes: a share of a domain that
        is hardly used must still differ from that of a whole one. A node that has no such label is in no gang's way.
        Several keys count alike. A key for which all these nodes are equal does not count; without any, all get 0.
        """
        for level in self._levels.values():
            for name in self.changed:
                level.put(name, self._nodes.get(name), self._used.get(name, _NOTHING))
        self.changed.clear()
        totals, opinions = [0.0] * len(names), 0
        for level in self._levels.values():
            shares = level.list_shares(names)
            places = _rank(shares)
            if len(places) > 1:
                opinions += 1
                totals = [total + places[share] for total, share in zip(totals, shares, strict=True)]
        scores = {total: round(MAX_SCORE * total / max(opinions, 1)) for total in set(totals)}
        return [scores[total] for total in totals]


def list_keys(group: PodGroup | None) -> set[str]:
    """The topology keys that a PodGroup asks for, required or preferred."""
    if group is None:
        return set()
    keys = {level.key for level in group.preference.levels}
    return keys if group.topology_key is None else keys | {group.topology_key}


def _rank(shares: Sequence[float]) -> Mapping[float, float]:
    """The place of each share among all of them, from 0 to 1."""
    ordered = sorted(set(shares))
    return {share: place / max(len(ordered) - 1, 1) for place, share in enumerate(ordered)}


class _Domain:
    """The sums over the nodes of one domain."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes = 0
        self.share = 0.0
        """The used share of the resource of which most is used."""

        self._room: dict[str, int] = {}
        self._used: dict[str, int] = {}

    def add(self, room: Resources, used: Resources) -> None:
        self.nodes += 1
        _count(self._room, _NOTHING, room)
        self.recount(_NOTHING, used)

    def remove(self, room: Resources, used: Resources) -> None:
        self.nodes -= 1
        _count(self._room, room, _NOTHING)
        self.recount(used, _NOTHING)

    def recount(self, before: Resources, after: Resources) -> None:
        _count(self._used, before, after)
        shares = (used / self._room[name] for name, used in self._used.items() if name in self._room)
        self.share = max(shares, default=0.0)


def _count(sums: dict[str, int], before: Resources, after: Resources) -> None:
    """The sums with ``after`` in the place of ``before``; of a resource of which there is nothing they say nothing."""
    for name, amount in after.items():
        sums[name] = sums.get(name, 0) + amount
    for name, amount in before.items():
        sums[name] = sums.get(name, 0) - amount
    for name in [name for name in (*after, *before) if not sums.get(name, 1)]:
        sums.pop(name, None)


class _Level:
    """The domains of one key, and what was counted of each node: its domain, its room and what is used there."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._domains: dict[str, _Domain] = {}
        self._homes: dict[str, _Domain] = {}
        self._counted: dict[str, tuple[Resources, Resources]] = {}

    def put(self, name: str, node: Node | None, used: Resources) -> None:
        home = self._homes.pop(name, None)
        if home is not None:
            home.remove(*self._counted.pop(name))
            if not home.nodes:
                del self._domains[home.name]
        value = None if node is None else node.labels.get(self._key)
        if node is None or value is None:
            return
        home = self._domains.get(value)
        if home is None:
            home = self._domains[value] = _Domain(value)
        home.add(node.allocatable, used)
        self._homes[name], self._counted[name] = home, (node.allocatable, used)

    def list_shares(self, names: Sequence[str]) -> list[float]:
        """The used share of each node's domain; infinite for a node without the label."""
        homes = self._homes
        return [homes[name].share if name in homes else math.inf for name in names]
