"""The groups that did not fit, and which freed room could help which of them.

Groups that want the same kind of room share one entry. An entry knows an upper bound of the slots in each domain: what
the last refusal counted, and what has been freed since. Freed room wakes the groups of an entry that the bound would
hold, so its cost is that of freed nodes and entries, not of the cluster, nor of planning each group anew.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from serried.cluster.occupancy import Freed
from serried.model.group import Key
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
class _Entry:
    """The groups with one demand, each with the slots that it needs.

    ``room`` bounds the slots by domain, ``elsewhere`` those of domains that the refusal did not name. ``yielded`` are
    groups that gave their nominations up themselves: withdrawn ones do not wake them.
    """

    room: dict[str, int] = field(default_factory=dict)
    elsewhere: int = 0
    needs: dict[Key, int] = field(default_factory=dict)
    yielded: set[Key] = field(default_factory=set)


class Backlog:
    """Groups that need no planning before room is freed that could help them. ``nodes`` and ``used`` are live."""

    def __init__(self, nodes: Mapping[str, Node], used: Mapping[str, Resources]) -> None:
        self._nodes, self._used = nodes, used
        self._entries: dict[Demand, _Entry] = {}
        self._demands: dict[Key, Demand] = {}

    def __contains__(self, group: Key) -> bool:
        return group in self._demands

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._demands))

    def __len__(self) -> int:
        return len(self._demands)

    def put(self, group: Key, ask: PlanRequest, refusal: Verdict) -> None:
        """A group was refused just now."""
        counted = refusal.reason in _COUNTED and not ask.excluded and (ask.spills or not ask.levels)
        counted = counted and not ask.parts and not ask.taken and len({member.shape for member in ask.members}) == 1
        entry = self._enter(group, _demand(ask, counted=counted), max(1, ask.need) if counted else 1)
        if counted:
            named = {"": refusal.have} if ask.topology_key is None else {d.domain: d.slots for d in refusal.domains}
            entry.room = named
            entry.elsewhere = min(named.values(), default=0) if refusal.domain_count > len(named) else 0

    def put_aside(self, group: Key, ask: PlanRequest) -> None:
        """A group has given its room and its stamps up: that they are free is no news to it."""
        self._enter(group, _demand(ask, counted=False), 1).yielded.add(group)

    def leave(self, group: Key) -> None:
        """A group waits for room no more, or is to be planned whatever is free."""
        demand = self._demands.pop(group, None)
        if demand is None:
            return
        entry = self._entries[demand]
        del entry.needs[group]
        entry.yielded.discard(group)
        if not entry.needs:
            del self._entries[demand]

    def closed_to(self, group: Key) -> frozenset[str]:
        """The nodes that were closed to a group when it was refused."""
        demand = self._demands.get(group)
        return demand.closed if demand is not None else frozenset()

    def wake(self, freed: Freed | None, withdrawn: Freed | None) -> set[Key]:
        """The groups that room on these nodes could help; they leave. None is room anywhere.

        ``withdrawn`` are nodes that pods were nominated to.
        """
        woken: set[Key] = set()
        for entry, demand in [(entry, demand) for demand, entry in self._entries.items()]:
            woken |= self._help(demand, entry, withdrawn) - entry.yielded
            woken |= self._help(demand, entry, freed)
        for group in woken:
            self.leave(group)
        return woken

    def _enter(self, group: Key, demand: Demand, need: int) -> _Entry:
        self.leave(group)
        self._demands[group] = demand
        entry = self._entries.setdefault(demand, _Entry())
        entry.needs[group] = need
        return entry

    def _help(self, demand: Demand, entry: _Entry, freed: Freed | None) -> set[Key]:
        """The groups of an entry that room on these nodes could help."""
        if freed is None:
            return set(entry.needs)
        grown = {self._add(demand, entry, name, before) for name, before in freed.items()} - {None}
        most = max((entry.room[domain] for domain in grown if domain is not None), default=0)
        return {group for group, need in entry.needs.items() if need <= most}

    def _add(self, demand: Demand, entry: _Entry, name: str, before: Resources | None) -> str | None:
        """Count what was freed on a node in; its domain if it has a slot now."""
        node = self._nodes.get(name)
        domain = _domain(demand, node)
        if node is None or domain is None:
            return None
        if not demand.counted:
            return domain if self._may_help(demand, entry, node, before) else None
        free = self._count(demand, node, self._used.get(name, {}))
        # A refusal between the two counts has seen some of it: the bound is never too low, and nobody is forgotten.
        grown = free - (0 if before is None else self._count(demand, node, before))
        entry.room[domain] = entry.room.get(domain, entry.elsewhere) + max(0, grown)
        return domain if free else None

    def _may_help(self, demand: Demand, entry: _Entry, node: Node, before: Resources | None) -> bool:
        """Whether any slot that counts is free; where there are many shapes it costs less to ask the planner."""
        used, domain = self._used.get(node.name, {}), _domain(demand, node) or ""
        many = len(demand.shapes) > _SHAPES_COUNTED
        free = [shape for shape in demand.shapes if slots(shape, node, used)] if not many else []
        if many or any(before is None or slots(shape, node, before) < slots(shape, node, used) for shape in free):
            entry.room[domain] = 1
        entry.room.setdefault(domain, 0)
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
