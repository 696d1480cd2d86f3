"""Forecasts where and when a gang will fit that does not fit now (`find_forecast`).

`extender.features.backfill` calls it for the gang at the head of the queue. The ends of running pods are simulated in
the order of time: each frees the resources of its pod. Ends without a known time come after them, node by node: first
the nodes whose pods will probably end soonest (`Ending.doubt`). Among equals, first those that are freed after the
fewest such ends in their domain. The first domain in which the gang fits is the forecast. An exclusive domain of
another gang can be used once all pods that hold it have ended.
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
"""The factor by which the number of members that fit in a domain must grow after a failed plan, before the next plan.

For instance a domain for which a plan failed when 20 members fitted is planned again when 22 fit, because more pods
have ended. With several shapes, the plan may fail although enough members of each class fit alone. The factor does not
apply to the last plan of a domain, when all possible ends there are simulated.
"""

_MAX_TREES_TRIED = 32
"""The number of plans for a tree in one forecast to which `_GROWTH` does not apply: any growth is enough for them.

Counts of members say little about whether the groups of a tree fit.
"""


class Ending(NamedTuple):
    """The expected end of a pod on a node, which frees its resources. It may also be a slot that will be released."""

    node: str
    """The name of the pod's node."""

    requests: tuple[tuple[str, int], ...]
    """The requests of the pod, which its end frees, as in its `Shape`."""

    at: float | None
    """The time of the end, in seconds of the event loop's clock. None if unknown, infinity if the pod does not end."""

    doubt: int = 0
    """A number for ends without a known time: the higher it is, the longer the pod will probably run.

    Low ones are first.
    """

    holds_domain: bool = False
    """True if the gang of the pod uses its domain exclusively, so that no other gang may use it before this end."""

    uid: str = ""
    """The UID of the pod.

    For a slot without pod that will be released, it is the name under which the slot is reserved.
    """


class NodeShare(NamedTuple):
    """The facts that a forecast needs on one node: free resources for members, and the ends of pods that free them."""

    requests: Resources
    """The sum of the requests of those members of the gang that are forecast on the node."""

    leaving: tuple[str, ...]
    """The pods (`Ending.uid`) on the node whose ends the forecast has simulated."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The domain and nodes on which a gang is expected to fit, and when."""

    domain: str
    """The domain of the gang's topology key; "" if it requires none."""

    nodes: frozenset[str]
    """The names of the nodes that the gang would use."""

    at: float | None
    """The expected time, in seconds of the event loop's clock.

    None if the gang would fit there after ends whose time is unknown.
    """

    shares: Mapping[str, NodeShare] = field(default_factory=dict, compare=False)
    """The needed part of each node by name. A node of ``nodes`` without an entry is needed as a whole."""


def find_forecast(
    snapshot: Snapshot, ask: PlanRequest, endings: Iterable[Ending], capacity: Capacity | None = None
) -> Forecast | None:
    """Return where and when a gang will fit that does not fit now; None if it will not even after all ends.

    The result is None as well for a gang that is pinned to several domains, or has no members. ``endings`` are the ends
    of running pods that may free resources. ``capacity`` has counts of earlier plans: how many pods of a shape fit on
    each node. If it is None, all nodes are counted anew. For members of one shape the time is exact, for members of
    several shapes it may be too late. The cost is one count of the cluster, an update per end, and a few plans of one
    domain.
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
    """Let pods end, one batch after another. Return the forecast once the gang fits; None if it never does.

    Each batch has the time of its ends, None if unknown.
    """
    for at, batch in batches:
        for domain in simulation.end_pods(batch):
            found = simulation.try_domain(domain) if simulation.is_promising(domain) else None
            if found is not None:
                return Forecast(found.domain, frozenset(found.nodes.values()), at, simulation.list_shares(found))
    return None


def _in_time(timed: Iterable[Ending]) -> Iterator[tuple[float | None, Sequence[Ending]]]:
    """Yield the ends, which are sorted by time, in batches of equal time."""
    for at, batch in groupby(timed, key=_at):
        yield at, list(batch)


def _at(ending: Ending) -> float:
    return math.inf if ending.at is None else ending.at


class _Simulation:
    """The cluster after some running pods have ended, and how many members of each class fit in each domain then.

    A class has the members of one shape (equal requests and constraints). Call `count`, then `sort_timed`, then
    `end_pods` for one batch of ends after another.
    """

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
        # By domain: the number of ends that are not simulated yet, and of pods that use it exclusively.
        self._not_ended: Counter[str] = Counter()
        self._holders: Counter[str] = Counter()

    def count(self) -> None:
        """Count how many members of each class (equal requests and constraints) fit before any pod has ended."""
        kinds = group_classes(self._ask.members)
        if len(kinds) > 1:
            self._least = self._capacity.table(make_least_class(kinds).shape, self._limit)
        for kind in kinds:
            table = self._capacity.table(kind.shape, self._limit)
            self._classes.append((kind, table))
            if self._ask.topology_key is not None:
                self._sum_by_domain(table)

    def sort_timed(self, endings: Iterable[Ending]) -> list[Ending]:
        """Return the ends with a known time in domains that the gang may use, in the order of time.

        Ends without a known time are kept for `order_untimed`. Pods that never end (at infinity) are dropped.
        """
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
        """Return the ends without a known time in batches, one per node.

        Nodes whose pods will probably end soonest come first, see `Ending.doubt`.
        """
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
        """Free the resources of the pods of a batch. Return the domains in which pods have ended, in name order."""
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
        """Return what the members of a plan need on each node, and which pods have ended there, by node name."""
        asked: dict[str, list[Resources]] = {}
        for member in self._ask.members:
            if member.uid in plan.nodes:
                asked.setdefault(plan.nodes[member.uid], []).append(dict(member.shape.requests))
        return {name: NodeShare(total(each), tuple(self._simulated.get(name, ()))) for name, each in asked.items()}

    def try_domain(self, domain: str) -> Plan | None:
        """Return a plan for the gang in a domain after the ends simulated so far; None if it does not fit."""
        self._tried[domain] = self._total(domain)
        self._trees_left -= 1
        pinned = frozenset({domain}) if self._ask.topology_key is not None else frozenset[str]()
        answer = plan_group(self._snapshot, replace(self._ask, pinned=pinned), self._capacity)
        return answer if isinstance(answer, Plan) else None

    def is_promising(self, domain: str) -> bool:
        """Return whether a plan for a domain is worth trying.

        These conditions must all be met:
        - No other gang uses the domain exclusively.
        - If each class (members of equal shape) is counted as if it were alone, enough members for the quorum fit.
        - More members fit than at the last plan for the domain, which has failed. They must be more by the factor
          `_GROWTH`. But one more is enough for a tree in the first `_MAX_TREES_TRIED` plans of the forecast, and for
          any gang once all ends in the domain are simulated.
        """
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
                # The class of which too few fit is checked first next time. Until enough of it fit, no other class
                # needs to be counted.
                self._classes.insert(0, self._classes.pop(place))
                return False
        total = self._total(domain)
        tried = self._tried.get(domain, -1)
        grown = total >= tried * _GROWTH or not self._not_ended[domain] or self._trees_left > 0
        return total > tried and grown

    def _is_taken(self, domain: str) -> bool:
        """Return whether another gang uses a domain exclusively after the ends simulated so far."""
        return self._holders[domain] > 0 or (domain in self._ask.taken and domain not in self._holders)

    def _total(self, domain: str) -> int:
        return sum(self._room(table, domain) for _, table in self._classes)

    def _room(self, table: ShapeCounts, domain: str) -> int:
        return table.total if self._ask.topology_key is None else self._sum_by_domain(table).get((domain,), 0)

    def _sum_by_domain(self, table: ShapeCounts) -> Mapping[Domain, int]:
        key = (self._ask.topology_key or "",)
        return table.sum_by(key, self._capacity.domains_by_node(key))

    def _domain(self, name: str) -> str | None:
        """Return the domain of a node; None if the gang may not use the node or its domain."""
        node = self._snapshot.nodes.get(name)
        if node is None:
            return None
        if self._ask.topology_key is None:
            return ""
        domain = node.labels.get(self._ask.topology_key)
        return domain if not self._ask.pinned or domain in self._ask.pinned else None
