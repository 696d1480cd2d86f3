"""Where and when a gang that does not fit now will find room first.

The endings of running pods are played in the order of time, and those that nobody can time after them, node by node,
the nodes with the fewest of them first. The first domain in which the gang then fits is its forecast.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

from serried.model.node import Node
from serried.model.plan import Ask, Plan, View
from serried.model.resources import Resources
from serried.plan.classes import MemberClass, group_classes
from serried.plan.fit import slots
from serried.plan.tree import plan_group

_GROWTH = 1.1
"""Members of several shapes may need more than slots for each: after a vain plan the next waits for so much more."""


class Ending(NamedTuple):
    """A pod that will leave its node, at ``at`` or, for None, nobody knows when. ``requests`` as in its Shape."""

    node: str
    requests: tuple[tuple[str, int], ...]
    at: float | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """``nodes`` of ``domain`` ("" without a topology key) are expected to have room for the gang from ``at`` on.

    None for ``at``: they are the nearest to it, and nobody can tell when.
    """

    domain: str
    nodes: frozenset[str]
    at: float | None


def foresee(view: View, ask: Ask, endings: Iterable[Ending]) -> Forecast | None:
    """The forecast for a gang that ``view`` has no room for; None if there is none even when all of that has ended.

    One pass over the endings: the cost is that of one count of the cluster, an update for each ending, and a few
    plans of one domain. For members of one shape the time is exact, for others it may be later than it need be.
    """
    pinned = ask.pinned if ask.topology_key is not None else frozenset[str]()
    if len(pinned) > 1 or not ask.members:
        return None
    stage = _Stage(view, ask)
    for at, batch in _in_time(endings):
        for domain in stage.free(batch):
            found = stage.try_domain(domain)
            if found is not None:
                return Forecast(found.domain, frozenset(found.nodes.values()), at)
    return None


def _in_time(endings: Iterable[Ending]) -> Iterator[tuple[float | None, Sequence[Ending]]]:
    """The endings in batches of one time, then those without one in batches of one node."""
    timed: list[Ending] = []
    untimed: dict[str, list[Ending]] = {}
    for ending in endings:
        if ending.at is None:
            untimed.setdefault(ending.node, []).append(ending)
        elif ending.at < math.inf:
            timed.append(ending)
    timed.sort(key=_at)
    for at, batch in groupby(timed, key=_at):
        yield at, list(batch)
    for _, unknown in sorted(untimed.items(), key=lambda item: (len(item[1]), item[0])):
        yield None, unknown


def _at(ending: Ending) -> float:
    return math.inf if ending.at is None else ending.at


class _Stage:
    """The cluster as the endings are played: what is used, and the slots of each class in each domain."""

    def __init__(self, view: View, ask: Ask) -> None:
        self._nodes, self._ask = view.nodes, ask
        self._base = view.used
        self._freed: dict[str, dict[str, int]] = {}
        self._classes = group_classes(ask.members)
        self._totals: dict[str, list[int]] = {}
        self._tried: dict[str, int] = {}
        self._inside: dict[str, dict[str, Node]] = {}
        for node in view.nodes.values():
            domain = self._domain(node.name)
            if domain is not None:
                self._inside.setdefault(domain, {})[node.name] = node
                self._count(node, domain, +1)

    def free(self, batch: Iterable[Ending]) -> list[str]:
        """Play endings; the domains that may have room for the gang now, in name order."""
        changed: set[str] = set()
        for ending in batch:
            domain = self._domain(ending.node)
            if domain is None:
                continue
            node = self._nodes[ending.node]
            self._count(node, domain, -1)
            left = self._freed.setdefault(ending.node, dict(self._base.get(ending.node, {})))
            for name, amount in ending.requests:
                left[name] = max(0, left.get(name, 0) - amount)
            self._count(node, domain, +1)
            changed.add(domain)
        return sorted(domain for domain in changed if self._is_promising(domain))

    def try_domain(self, domain: str) -> Plan | None:
        """The plan of the gang in one domain as the cluster is now."""
        self._tried[domain] = sum(self._totals[domain])
        inside = self._inside[domain]
        used: dict[str, Resources] = {name: self._used(name) for name in inside}
        pinned = frozenset({domain}) if self._ask.topology_key is not None else frozenset[str]()
        answer = plan_group(View(inside, used), replace(self._ask, pinned=pinned))
        return answer if isinstance(answer, Plan) else None

    def _is_promising(self, domain: str) -> bool:
        """Whether each class as if it were alone would do, and there is more room than at the last vain plan."""
        totals = self._totals[domain]
        members = sum(min(total, len(kind.members)) for total, kind in zip(totals, self._classes, strict=True))
        return members >= max(1, self._ask.need) and sum(totals) >= self._tried.get(domain, 0) * _GROWTH

    def _count(self, node: Node, domain: str, sign: int) -> None:
        totals = self._totals.setdefault(domain, [0] * len(self._classes))
        for place, kind in enumerate(self._classes):
            totals[place] += sign * self._slots(kind, node)

    def _slots(self, kind: MemberClass, node: Node) -> int:
        return slots(kind.shape, node, self._used(node.name))

    def _used(self, name: str) -> Resources:
        freed = self._freed.get(name)
        return self._base.get(name, {}) if freed is None else freed

    def _domain(self, name: str) -> str | None:
        """The domain of a node that the gang may use; None for no such node."""
        node = self._nodes.get(name)
        if node is None or name in self._ask.closed:
            return None
        if self._ask.topology_key is None:
            return ""
        domain = node.labels.get(self._ask.topology_key)
        return domain if not self._ask.pinned or domain in self._ask.pinned else None
