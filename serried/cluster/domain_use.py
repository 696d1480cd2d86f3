"""Scores nodes for pods of no gang, so that whole topology domains stay empty for gangs (`DomainUse.score`).

The scores lead such pods into domains that are in use already. kube-scheduler gets them by its prioritize calls.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from serried.api.group import PodGroup
from serried.api.node import Node
from serried.api.resources import Resources

MAX_SCORE = 10
"""MaxExtenderPriority of upstream's k8s.io/kube-scheduler/extender/v1."""

MAX_KEYS = 4
"""The maximum number of topology keys whose domains are counted. Each change of a node or its usage costs O(keys)."""

_NOTHING: Resources = {}


class DomainUse:
    """The used share of each domain's resources, for the topology keys that PodGroups require or prefer.

    The Store owns it. ``nodes`` and ``used`` (by node name) are live maps; their owner adds changed nodes to
    ``changed``. Values of ``used`` are replaced, never modified. If groups have more than `MAX_KEYS` keys, the most
    frequent ones are counted. After the last group with a key was deleted, the key stays until another key needs its
    place, because the next gang may need whole domains, too.

    The sums of the changed nodes are updated only when `score` is called.
    """

    def __init__(self, nodes: Mapping[str, Node], used: Mapping[str, Resources]) -> None:
        self._nodes = nodes
        self._used = used
        self._asked: Counter[str] = Counter()
        """The number of PodGroups by topology key."""
        self._levels: dict[str, _Level] = {}

        self.changed: set[str] = set()
        """The nodes that were added, changed or deleted, or whose usage has changed, since the last `score`."""

    def note_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        """Update which topology keys are counted, as a PodGroup has changed from ``old`` to ``new``; None: no PodGroup.

        O(nodes) for a new key.
        """
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
        """Remove a deleted node, so that memory does not grow with the names of earlier nodes. O(keys)."""
        self.changed.discard(name)
        for level in self._levels.values():
            level.put(name, None, _NOTHING)

    def score(self, names: Sequence[str]) -> list[int]:
        """Return a score from 0 to `MAX_SCORE` for each node that is feasible for a pod; higher is better.

        The more used a node's domain is, the higher its score. Domains are compared by rank, not by their used share,
        so that a hardly used domain still differs from an empty one. For a topology key, a node that lacks it as a
        label scores highest: it is in no domain that a gang may need. The score is the average over the keys; keys
        for which all nodes are equal are left out. If no key is left, all nodes get 0. O(names), and O(keys) for each
        changed node.
        """
        for level in self._levels.values():
            for name in self.changed:
                level.put(name, self._nodes.get(name), self._used.get(name, _NOTHING))
        self.changed.clear()
        totals, opinions = [0.0] * len(names), 0
        for level in self._levels.values():
            shares = level.list_shares(names)
            places = _relative_places(shares)
            if len(places) > 1:
                opinions += 1
                totals = [total + places[share] for total, share in zip(totals, shares, strict=True)]
        scores = {total: round(MAX_SCORE * total / max(opinions, 1)) for total in set(totals)}
        return [scores[total] for total in totals]


def list_keys(group: PodGroup | None) -> set[str]:
    """Return the required and preferred topology keys of a PodGroup; none without a PodGroup."""
    if group is None:
        return set()
    keys = {level.key for level in group.preference.levels}
    return keys if group.topology_key is None else keys | {group.topology_key}


def _relative_places(shares: Sequence[float]) -> Mapping[float, float]:
    """Return the rank of each share among the different values, scaled from 0 (lowest) to 1 (highest), by share.

    For instance for 0.1, 0.1, 0.5 and 0.9 return {0.1: 0, 0.5: 0.5, 0.9: 1}.
    """
    ordered = sorted(set(shares))
    return {share: place / max(len(ordered) - 1, 1) for place, share in enumerate(ordered)}


class _Domain:
    """The allocatable and the used resources of one domain, summed over its nodes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes = 0
        self.share = 0.0
        """The used share of the most used resource."""

        self._allocatable: dict[str, int] = {}
        self._used: dict[str, int] = {}

    def add(self, allocatable: Resources, used: Resources) -> None:
        self.nodes += 1
        _replace_amounts(self._allocatable, _NOTHING, allocatable)
        self.recount(_NOTHING, used)

    def remove(self, allocatable: Resources, used: Resources) -> None:
        self.nodes -= 1
        _replace_amounts(self._allocatable, allocatable, _NOTHING)
        self.recount(used, _NOTHING)

    def recount(self, before: Resources, after: Resources) -> None:
        _replace_amounts(self._used, before, after)
        shares = (used / self._allocatable[name] for name, used in self._used.items() if name in self._allocatable)
        self.share = max(shares, default=0.0)


def _replace_amounts(sums: dict[str, int], before: Resources, after: Resources) -> None:
    """Subtract the amounts ``before`` from the sums and add the amounts ``after``. Sums that become 0 are removed."""
    for name, amount in after.items():
        sums[name] = sums.get(name, 0) + amount
    for name, amount in before.items():
        sums[name] = sums.get(name, 0) - amount
    for name in [name for name in (*after, *before) if not sums.get(name, 1)]:
        sums.pop(name, None)


class _Level:
    """The domains of one topology key, and how each node was counted: its domain, allocatable and used resources."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._domains: dict[str, _Domain] = {}
        self._domain_of: dict[str, _Domain] = {}
        self._counted: dict[str, tuple[Resources, Resources]] = {}

    def put(self, name: str, node: Node | None, used: Resources) -> None:
        home = self._domain_of.pop(name, None)
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
        self._domain_of[name], self._counted[name] = home, (node.allocatable, used)

    def list_shares(self, names: Sequence[str]) -> list[float]:
        """Return for each node the used share of its domain's most used resource; infinity if it is in no domain."""
        homes = self._domain_of
        return [homes[name].share if name in homes else math.inf for name in names]
