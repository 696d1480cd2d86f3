"""Where and when a gang that does not fit now will find room first.

The endings of running pods are played in the order of time. Endings without a known time come after them, node by node:
first those that are doubted least, and of these those with which the fewest pods of a domain have ended. The first
domain in which the gang then fits is its forecast. A domain that others have for themselves counts once all of them
have ended.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from serried.api.resources import Resources, total
from serried.plan.capacity import Capacity, Domain, Fork, MemberClass, Table, find_least, group_classes
from serried.plan.preemption import reopen_full
from serried.plan.request import Overlay, Plan, PlanRequest, Snapshot
from serried.plan.tree import plan_group

_GROWTH = 1.1
"""By which factor the slots of a domain must have grown since a vain plan before the next one is tried there.

Members of several shapes may need more than slots for each. The last plan of a domain, when all that can end there has
ended, waits for nothing.
"""

_MAX_TREES_TRIED = 32
"""How often a tree is planned whatever has grown: how many slots there are says little of whether its groups fit."""


class Ending(NamedTuple):
    """A pod that will leave its node."""

    node: str

    requests: tuple[tuple[str, int], ...]
    """As in the pod's Shape."""

    at: float | None
    """When it leaves, in seconds since 1970; None if that is not known."""

    doubt: int = 0
    """How unlikely it is to leave soon where the time is not known: whoever is doubted less is taken to leave first."""

    holds_domain: bool = False
    """Whether its domain is closed to the gang as long as it is there."""

    uid: str = ""
    """The UID of the pod, or the name under which its slot is kept."""


class Share(NamedTuple):
    """The gang's part of a node of its forecast."""

    requests: Resources
    """The sum of the requests of the gang's members on the node."""

    leaving: tuple[str, ...]
    """The endings (`Ending.uid`) on the node that the forecast counts on."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Where a gang is expected to find room."""

    domain: str
    """The domain of the topology key, "" without a key."""

    nodes: frozenset[str]
    """The nodes that the gang would get."""

    at: float | None
    """From when on, in seconds since 1970; None if these nodes are the nearest to it, but the time is not known."""

    shares: Mapping[str, Share] = field(default_factory=dict, compare=False)
    """The gang's part of each of the nodes; of a node without an entry it is the whole node."""


def foresee(
    snapshot: Snapshot, ask: PlanRequest, endings: Iterable[Ending], capacity: Capacity | None = None
) -> Forecast | None:
    """The forecast for a gang that ``snapshot`` has no room for; None if there is none even when all of that has ended.

    One pass over the endings: the cost is that of one count of the cluster, an update for each ending, and a few
    plans of one domain. For members of one shape the time is exact, for others it may be later than it need be.
    ``capacity`` are the snapshot's slots as far as they are counted already.
    """
    pinned = ask.pinned if ask.topology_key is not None else frozenset[str]()
    if len(pinned) > 1 or not ask.members:
        return None
    ask = reopen_full(snapshot, ask, capacity)
    stage = _Stage(snapshot, ask, capacity)
    stage.count()
    timed = stage.sort(endings)
    found = _play(stage, _in_time(timed))
    if found is None:
        untimed = stage.order_untimed()
        found = _play(stage, ((None, batch) for batch in untimed))
    return found


def _play(stage: "_Stage", batches: Iterable[tuple[float | None, Sequence[Ending]]]) -> Forecast | None:
    """The forecast once enough of these have ended, one batch after the other."""
    for at, batch in batches:
        for domain in stage.free(batch):
            found = stage.try_domain(domain) if stage.is_promising(domain) else None
            if found is not None:
                return Forecast(found.domain, frozenset(found.nodes.values()), at, stage.share_out(found))
    return None


def _in_time(timed: Iterable[Ending]) -> Iterator[tuple[float | None, Sequence[Ending]]]:
    """The endings in batches of one time."""
    for at, batch in groupby(timed, key=_at):
        yield at, list(batch)


def _at(ending: Ending) -> float:
    return math.inf if ending.at is None else ending.at


class _Stage:
    """The cluster as the endings are played: what is used, and the slots of each class in each domain."""

    def __init__(self, snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None) -> None:
        self._ask = ask
        self._limit = snapshot.limit
        self._base = snapshot.used
        self._freed: dict[str, Resources] = {}
        self._played: dict[str, list[str]] = {}
        nodes = snapshot.nodes
        if ask.closed:
            nodes = {name: node for name, node in nodes.items() if name not in ask.closed}
        self._snapshot = replace(snapshot, nodes=nodes, used=Overlay(self._freed, snapshot.used), over=())
        origin = capacity if capacity is not None else Capacity(snapshot.nodes, snapshot.used)
        self._capacity = Fork(origin, nodes, self._snapshot.used, {*snapshot.over, *ask.closed})
        self._classes: list[tuple[MemberClass, Table]] = []
        self._least: Table | None = None
        self._tried: dict[str, int] = {}
        self._trees_left = _MAX_TREES_TRIED if ask.parts else 0
        self._untimed: dict[str, list[Ending]] = {}
        # How many endings of each domain have not been played yet, and how many of those that close it.
        self._left: Counter[str] = Counter()
        self._holders: Counter[str] = Counter()

    def count(self) -> None:
        """Count the slots of each class as they are now."""
        kinds = group_classes(self._ask.members)
        if len(kinds) > 1:
            self._least = self._capacity.table(find_least(kinds).shape, self._limit)
        for kind in kinds:
            table = self._capacity.table(kind.shape, self._limit)
            self._classes.append((kind, table))
            if self._ask.topology_key is not None:
                self._sums(table)

    def sort(self, endings: Iterable[Ending]) -> list[Ending]:
        """The endings that matter and have a time, by that; those without one are kept for `order_untimed`."""
        timed: list[Ending] = []
        for ending in endings:
            self._limit.spend()
            domain = self._domain(ending.node)
            if domain is None:
                continue
            if ending.holds_domain:
                self._holders[domain] += 1
            if ending.at is None:
                self._untimed.setdefault(ending.node, []).append(ending)
            elif ending.at < math.inf:
                timed.append(ending)
            else:
                continue
            self._left[domain] += 1
        return sorted(timed, key=_at)

    def order_untimed(self) -> list[list[Ending]]:
        """The endings without a time in batches of one node, as they are expected."""
        doubts = {name: max(ending.doubt for ending in those) for name, those in self._untimed.items()}
        nearest = sorted(doubts, key=lambda name: (doubts[name], len(self._untimed[name]), name))
        ended: Counter[str] = Counter()
        order: list[tuple[int, int, str]] = []
        for name in nearest:
            domain = self._domain(name) or ""
            ended[domain] += len(self._untimed[name])
            order.append((doubts[name], ended[domain], name))
        return [self._untimed[name] for _, _, name in sorted(order, key=lambda place: place)]

    def free(self, batch: Iterable[Ending]) -> list[str]:
        """Play endings; the domains in which something ends, in name order."""
        changed: set[str] = set()
        for ending in batch:
            self._limit.spend()
            left = dict(self._freed.get(ending.node) or self._base.get(ending.node, {}))
            for name, amount in ending.requests:
                left[name] = max(0, left.get(name, 0) - amount)
            self._freed[ending.node] = left
            self._played.setdefault(ending.node, []).append(ending.uid)
            self._capacity.note_used(ending.node)
            domain = self._domain(ending.node)
            if domain is not None:
                self._left[domain] -= 1
                if ending.holds_domain:
                    self._holders[domain] -= 1
                changed.add(domain)
        return sorted(changed)

    def share_out(self, plan: Plan) -> dict[str, Share]:
        """The gang's part of each node of a plan, with the endings that have been played there."""
        asked: dict[str, list[Resources]] = {}
        for member in self._ask.members:
            if member.uid in plan.nodes:
                asked.setdefault(plan.nodes[member.uid], []).append(dict(member.shape.requests))
        return {name: Share(total(each), tuple(self._played.get(name, ()))) for name, each in asked.items()}

    def try_domain(self, domain: str) -> Plan | None:
        """The plan of the gang in one domain as the cluster is now."""
        self._tried[domain] = self._total(domain)
        self._trees_left -= 1
        pinned = frozenset({domain}) if self._ask.topology_key is not None else frozenset[str]()
        answer = plan_group(self._snapshot, replace(self._ask, pinned=pinned), self._capacity)
        return answer if isinstance(answer, Plan) else None

    def is_promising(self, domain: str) -> bool:
        """Whether each class as if it were alone would do, and there is more room than at the last vain plan."""
        if self._is_taken(domain):
            return False
        if self._least is not None:
            self._capacity.refresh(self._least, self._limit)
            if self._room(self._least, domain) < max(1, self._ask.need):
                return False
        spare = len(self._ask.members) - max(1, self._ask.need)
        for place, (kind, table) in enumerate(self._classes):
            self._limit.spend()
            self._capacity.refresh(table, self._limit)
            spare -= max(0, len(kind.members) - self._room(table, domain))
            if spare < 0:
                # Who was short now is asked first next time: the others need not be counted before it has room.
                self._classes.insert(0, self._classes.pop(place))
                return False
        total = self._total(domain)
        tried = self._tried.get(domain, -1)
        grown = total >= tried * _GROWTH or not self._left[domain] or self._trees_left > 0
        return total > tried and grown

    def _is_taken(self, domain: str) -> bool:
        """Whether others have a domain for themselves, as far as endings are played; for good if nobody is there."""
        return self._holders[domain] > 0 or (domain in self._ask.taken and domain not in self._holders)

    def _total(self, domain: str) -> int:
        return sum(self._room(table, domain) for _, table in self._classes)

    def _room(self, table: Table, domain: str) -> int:
        return table.total if self._ask.topology_key is None else self._sums(table).get((domain,), 0)

    def _sums(self, table: Table) -> Mapping[Domain, int]:
        key = (self._ask.topology_key or "",)
        return table.sum_by(key, self._capacity.domains_by_node(key))

    def _domain(self, name: str) -> str | None:
        """The domain of a node that the gang may use; None for no such node."""
        node = self._snapshot.nodes.get(name)
        if node is None:
            return None
        if self._ask.topology_key is None:
            return ""
        domain = node.labels.get(self._ask.topology_key)
        return domain if not self._ask.pinned or domain in self._ask.pinned else None
