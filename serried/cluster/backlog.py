"""The groups that did not fit, and which freed room could help which of them.

Groups that want the same kind of room share one bench. A bench knows an upper bound of the slots in each domain: what
the last refusal counted, and what has been freed since. Freed room wakes the groups of a bench that the bound would
hold, so its cost is that of freed nodes and benches, not of the cluster, nor of planning each group anew.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from serried.cluster.occupancy import Freed
from serried.model.group import GroupKey
from serried.model.node import Node
from serried.model.plan import PlanRequest
from serried.model.pod import Shape
from serried.model.resources import Resources
from serried.model.verdict import Reason, Verdict
from serried.plan.fit import slots

_COUNTED = frozenset({Reason.NO_CAPACITY, Reason.NO_DOMAIN_FITS, Reason.DOMAIN_FULL})
"""Refusals whose numbers are the slots of each domain, exact for members of one shape."""

_SHAPES_COUNTED = 8


@dataclass(frozen=True, slots=True)
class Demand:
    """A kind of room: what decides which nodes could help, and how many slots a plan would count on them.

    ``priority`` decides which nominations count as used. ``counted`` is whether a refusal says how many slots there
    are; where it does not, any slot that is freed could be the one that was missing.
    """

    shapes: frozenset[Shape]
    topology_key: str | None
    pinned: frozenset[str]
    closed: frozenset[str]
    priority: int
    counted: bool


@dataclass(slots=True)
class _Bench:
    """The groups with one demand, each with the slots that it needs.

    ``room`` bounds the slots by domain, ``elsewhere`` those of domains that the refusal did not name. ``deaf`` are
    groups that withdrawn nominations do not wake.
    """

    room: dict[str, int] = field(default_factory=dict)
    elsewhere: int = 0
    needs: dict[GroupKey, int] = field(default_factory=dict)
    deaf: set[GroupKey] = field(default_factory=set)


class Backlog:
    """Groups that need no planning before room is freed that could help them. ``nodes`` and ``used`` are live."""

    def __init__(self, nodes: Mapping[str, Node], used: Mapping[str, Resources]) -> None:
        self._nodes, self._used = nodes, used
        self._benches: dict[Demand, _Bench] = {}
        self._demands: dict[GroupKey, Demand] = {}

    def __contains__(self, group: GroupKey) -> bool:
        return group in self._demands

    def __iter__(self) -> Iterator[GroupKey]:
        return iter(list(self._demands))

    def __len__(self) -> int:
        return len(self._demands)

    def put(self, group: GroupKey, ask: PlanRequest, refusal: Verdict) -> None:
        """A group was refused just now."""
        counted = refusal.reason in _COUNTED and not ask.excluded and (ask.spills or not ask.levels)
        counted = counted and not ask.parts and not ask.taken and len({member.shape for member in ask.members}) == 1
        bench = self._seat(group, _demand(ask, counted=counted), max(1, ask.need) if counted else 1)
        if counted:
            named = {"": refusal.have} if ask.topology_key is None else {d.domain: d.slots for d in refusal.domains}
            bench.room = named
            bench.elsewhere = min(named.values(), default=0) if refusal.domain_count > len(named) else 0

    def put_aside(self, group: GroupKey, ask: PlanRequest) -> None:
        """A group has given its room and its stamps up: that they are free is no news to it."""
        self._seat(group, _demand(ask, counted=False), 1).deaf.add(group)

    def leave(self, group: GroupKey) -> None:
        """A group waits for room no more, or is to be planned whatever is free."""
        demand = self._demands.pop(group, None)
        if demand is None:
            return
        bench = self._benches[demand]
        del bench.needs[group]
        bench.deaf.discard(group)
        if not bench.needs:
            del self._benches[demand]

    def closed_to(self, group: GroupKey) -> frozenset[str]:
        """The nodes that were closed to a group when it was refused."""
        demand = self._demands.get(group)
        return demand.closed if demand is not None else frozenset()

    def wake(self, freed: Freed | None, withdrawn: Freed | None) -> set[GroupKey]:
        """The groups that room on these nodes could help; they leave. None is room anywhere.

        ``withdrawn`` are nodes that pods were nominated to.
        """
        woken: set[GroupKey] = set()
        for bench, demand in [(bench, demand) for demand, bench in self._benches.items()]:
            woken |= self._help(demand, bench, withdrawn) - bench.deaf
            woken |= self._help(demand, bench, freed)
        for group in woken:
            self.leave(group)
        return woken

    def _seat(self, group: GroupKey, demand: Demand, need: int) -> _Bench:
        self.leave(group)
        self._demands[group] = demand
        bench = self._benches.setdefault(demand, _Bench())
        bench.needs[group] = need
        return bench

    def _help(self, demand: Demand, bench: _Bench, freed: Freed | None) -> set[GroupKey]:
        """The groups of a bench that room on these nodes could help."""
        if freed is None:
            return set(bench.needs)
        grown = {self._add(demand, bench, name, before) for name, before in freed.items()} - {None}
        most = max((bench.room[domain] for domain in grown if domain is not None), default=0)
        return {group for group, need in bench.needs.items() if need <= most}

    def _add(self, demand: Demand, bench: _Bench, name: str, before: Resources | None) -> str | None:
        """Count what was freed on a node in; its domain if it has a slot now."""
        node = self._nodes.get(name)
        domain = _domain(demand, node)
        if node is None or domain is None:
            return None
        if not demand.counted:
            return domain if self._may_help(demand, bench, node, before) else None
        free = self._count(demand, node, self._used.get(name, {}))
        # A refusal between the two counts has seen some of it: the bound is never too low, and nobody is forgotten.
        grown = free - (0 if before is None else self._count(demand, node, before))
        bench.room[domain] = bench.room.get(domain, bench.elsewhere) + max(0, grown)
        return domain if free else None

    def _may_help(self, demand: Demand, bench: _Bench, node: Node, before: Resources | None) -> bool:
        """Whether any slot that counts is free; where there are many shapes it costs less to ask the planner."""
        used, domain = self._used.get(node.name, {}), _domain(demand, node) or ""
        many = len(demand.shapes) > _SHAPES_COUNTED
        free = [shape for shape in demand.shapes if slots(shape, node, used)] if not many else []
        if many or any(before is None or slots(shape, node, before) < slots(shape, node, used) for shape in free):
            bench.room[domain] = 1
        bench.room.setdefault(domain, 0)
        return many or bool(free)

    def _count(self, demand: Demand, node: Node, used: Resources) -> int:
        return sum(slots(shape, node, used) for shape in demand.shapes)


def _demand(ask: PlanRequest, *, counted: bool) -> Demand:
    shapes = frozenset(member.shape for member in ask.members)
    return Demand(shapes, ask.topology_key, ask.pinned, ask.closed, ask.priority, counted)


def _domain(demand: Demand, node: Node | None) -> str | None:
    """The domain in which a node could help; None for none."""
    if node is None or node.name in demand.closed:
        return None
    if demand.topology_key is None:
        return ""
    domain = node.labels.get(demand.topology_key)
    return domain if not demand.pinned or domain in demand.pinned else None
