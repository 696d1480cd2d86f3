"""Forecasts where and when a gang will fit that does not fit now (`find_forecast`).

The ends of running pods are simulated in the order of time. Ends without a known time come after them, node by node:
first the most likely ones, and among these the nodes that need the fewest ends in their domain. The first domain in
which the gang fits is the forecast. An exclusive domain of another gang can be used once all of its holders have ended.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from serried.api.resources import Resources, total
from serried.plan.capacity import (
    Capacity,
    CapacityFork,
    Domain,
    MemberClass,
    ShapeCounts,
    group_classes,
    make_least_class,
)
from serried.plan.preemption import reopen_full
from serried.plan.request import Overlay, Plan, PlanRequest, Snapshot
from serried.plan.tree import plan_group

_GROWTH = 1.1
"""The factor by which the slots of a domain must have grown since its last failed plan before it is planned again.

With several shapes, slots for each class may not be enough. The factor does not apply to the last plan of a domain,
when all possible ends there are simulated.
"""

_MAX_TREES_TRIED = 32
"""The number of plans for a tree regardless of growth, because slots say little about whether its groups fit."""


class Ending(NamedTuple):
    """The expected end of a pod on a node."""

    node: str

    requests: tuple[tuple[str, int], ...]
    """The requests, as in the pod's Shape."""

    at: float | None
    """The time of the end in loop seconds; None if unknown."""

    doubt: int = 0
    """A measure of how unlikely an end without a known time is soon. Ends with less doubt are simulated first."""

    holds_domain: bool = False
    """True if the pod's domain is closed to the gang while the pod is there."""

    uid: str = ""
    """The UID of the pod, or the name under which its slot is reserved."""


class NodeShare(NamedTuple):
    """The part of a node that the forecast needs."""

    requests: Resources
    """The sum of the requests of the gang's members on the node."""

    leaving: tuple[str, ...]
    """The ends (`Ending.uid`) on the node that the forecast depends on."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The place and time at which a gang is expected to fit."""

    domain: str
    """The domain of the topology key; "" without a key."""

    nodes: frozenset[str]
    """The nodes that the gang would use."""

    at: float | None
    """The expected time in loop seconds; None if these nodes are the most likely, but the time is unknown."""

    shares: Mapping[str, NodeShare] = field(default_factory=dict, compare=False)
    """The needed part by node; a node without entry is needed as a whole."""


def find_forecast(
    snapshot: Snapshot, ask: PlanRequest, endings: Iterable[Ending], capacity: Capacity | None = None
) -> Forecast | None:
    """Return the forecast for a gang that does not fit; None if it does not fit even after all ends.

    One pass over the ends: the cost is one count of the cluster, an update per end, and a few plans of one domain. For
    members of one shape the time is exact, for others it may be too late. ``capacity`` has slots that are counted
    already.
    """
    pinned = ask.pinned if ask.topology_key is not None else frozenset[str]()
    if len(pinned) > 1 or not ask.members:
        return None
    ask = reopen_full(snapshot, ask, capacity)
    simulation = _Simulation(snapshot, ask, capacity)
    simulation.count()
    timed = simulation.sort_timed(endings)
    found = _simulate(simulation, _in_time(timed))
    if found is None:
        untimed = simulation.order_untimed()
        found = _simulate(simulation, ((None, batch) for batch in untimed))
    return found


def _simulate(simulation: "_Simulation", batches: Iterable[tuple[float | None, Sequence[Ending]]]) -> Forecast | None:
    """Simulate batches of ends. Return the forecast once the gang fits; None if it never does."""
    for at, batch in batches:
        for domain in simulation.end_pods(batch):
            found = simulation.try_domain(domain) if simulation.is_promising(domain) else None
            if found is not None:
                return Forecast(found.domain, frozenset(found.nodes.values()), at, simulation.list_shares(found))
    return None


def _in_time(timed: Iterable[Ending]) -> Iterator[tuple[float | None, Sequence[Ending]]]:
    """Yield the ends in batches of equal time."""
    for at, batch in groupby(timed, key=_at):
        yield at, list(batch)


def _at(ending: Ending) -> float:
    return math.inf if ending.at is None else ending.at


class _Simulation:
    """The simulated cluster: usage after the simulated ends, and the slots of each class in each domain."""

    def __init__(self, snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None) -> None:
        self._ask = ask
        self._limit = snapshot.limit
        self._base = snapshot.used
        self._freed: dict[str, Resources] = {}
        self._simulated: dict[str, list[str]] = {}
        nodes = snapshot.nodes
        if ask.closed:
            nodes = {name: node for name, node in nodes.items() if name not in ask.closed}
        self._snapshot = replace(snapshot, nodes=nodes, used=Overlay(self._freed, snapshot.used), over=())
        origin = capacity if capacity is not None else Capacity(snapshot.nodes, snapshot.used)
        self._capacity = CapacityFork(origin, nodes, self._snapshot.used, {*snapshot.over, *ask.closed})
        self._classes: list[tuple[MemberClass, ShapeCounts]] = []
        self._least: ShapeCounts | None = None
        self._tried: dict[str, int] = {}
        self._trees_left = _MAX_TREES_TRIED if ask.parts else 0
        self._untimed: dict[str, list[Ending]] = {}
        # By domain: the ends that are not simulated yet, and the number of pods that keep it closed.
        self._not_ended: Counter[str] = Counter()
        self._holders: Counter[str] = Counter()

    def count(self) -> None:
        """Count the slots of each class before any end."""
        kinds = group_classes(self._ask.members)
        if len(kinds) > 1:
            self._least = self._capacity.table(make_least_class(kinds).shape, self._limit)
        for kind in kinds:
            table = self._capacity.table(kind.shape, self._limit)
            self._classes.append((kind, table))
            if self._ask.topology_key is not None:
                self._sum_by_domain(table)

    def sort_timed(self, endings: Iterable[Ending]) -> list[Ending]:
        """Return the relevant ends with a known time, sorted by it. The others are kept for `order_untimed`."""
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
            self._not_ended[domain] += 1
        return sorted(timed, key=_at)

    def order_untimed(self) -> list[list[Ending]]:
        """Return the ends without a known time in batches by node, the most likely first."""
        doubts = {name: max(ending.doubt for ending in those) for name, those in self._untimed.items()}
        nearest = sorted(doubts, key=lambda name: (doubts[name], len(self._untimed[name]), name))
        ended: Counter[str] = Counter()
        order: list[tuple[int, int, str]] = []
        for name in nearest:
            domain = self._domain(name) or ""
            ended[domain] += len(self._untimed[name])
            order.append((doubts[name], ended[domain], name))
        return [self._untimed[name] for _, _, name in sorted(order, key=lambda place: place)]

    def end_pods(self, batch: Iterable[Ending]) -> list[str]:
        """Simulate ends. Return the changed domains in name order."""
        changed: set[str] = set()
        for ending in batch:
            self._limit.spend()
            left = dict(self._freed.get(ending.node) or self._base.get(ending.node, {}))
            for name, amount in ending.requests:
                left[name] = max(0, left.get(name, 0) - amount)
            self._freed[ending.node] = left
            self._simulated.setdefault(ending.node, []).append(ending.uid)
            self._capacity.note_used(ending.node)
            domain = self._domain(ending.node)
            if domain is not None:
                self._not_ended[domain] -= 1
                if ending.holds_domain:
                    self._holders[domain] -= 1
                changed.add(domain)
        return sorted(changed)

    def list_shares(self, plan: Plan) -> dict[str, NodeShare]:
        """Return the part of each node of a plan that the gang needs, with the simulated ends there."""
        asked: dict[str, list[Resources]] = {}
        for member in self._ask.members:
            if member.uid in plan.nodes:
                asked.setdefault(plan.nodes[member.uid], []).append(dict(member.shape.requests))
        return {name: NodeShare(total(each), tuple(self._simulated.get(name, ()))) for name, each in asked.items()}

    def try_domain(self, domain: str) -> Plan | None:
        """Return the plan of the gang in one domain at this point of the simulation; None if it does not fit."""
        self._tried[domain] = self._total(domain)
        self._trees_left -= 1
        pinned = frozenset({domain}) if self._ask.topology_key is not None else frozenset[str]()
        answer = plan_group(self._snapshot, replace(self._ask, pinned=pinned), self._capacity)
        return answer if isinstance(answer, Plan) else None

    def is_promising(self, domain: str) -> bool:
        """Return whether each class would fit alone, with more room than at the last failed plan."""
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
                # The class that was short is checked first next time: until it has room, the others need not be
                # counted.
                self._classes.insert(0, self._classes.pop(place))
                return False
        total = self._total(domain)
        tried = self._tried.get(domain, -1)
        grown = total >= tried * _GROWTH or not self._not_ended[domain] or self._trees_left > 0
        return total > tried and grown

    def _is_taken(self, domain: str) -> bool:
        """Return whether a domain is used exclusively by others; permanently if no ending pod holds it."""
        return self._holders[domain] > 0 or (domain in self._ask.taken and domain not in self._holders)

    def _total(self, domain: str) -> int:
        return sum(self._room(table, domain) for _, table in self._classes)

    def _room(self, table: ShapeCounts, domain: str) -> int:
        return table.total if self._ask.topology_key is None else self._sum_by_domain(table).get((domain,), 0)

    def _sum_by_domain(self, table: ShapeCounts) -> Mapping[Domain, int]:
        key = (self._ask.topology_key or "",)
        return table.sum_by(key, self._capacity.domains_by_node(key))

    def _domain(self, name: str) -> str | None:
        """Return the domain of a node that the gang may use; None otherwise."""
        node = self._snapshot.nodes.get(name)
        if node is None:
            return None
        if self._ask.topology_key is None:
            return ""
        domain = node.labels.get(self._ask.topology_key)
        return domain if not self._ask.pinned or domain in self._ask.pinned else None
