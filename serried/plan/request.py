"""The planner's input and output (`Snapshot`, `PlanRequest`, `Plan`), and the queue order of gangs.

`order_groups` sorts the queue. `open_levels` returns the preferred levels that a gang may try after some time of
waiting.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from serried.api.names import GroupKey
from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.preference import Level, Style
from serried.api.resources import Resources
from serried.plan.limit import Limit

if TYPE_CHECKING:
    from serried.plan.rule import PlanRuleType


class Overlay(Mapping[str, Resources]):
    """A mapping by node name that replaces the amounts of a few nodes in another mapping, without copying it."""

    def __init__(self, over: Mapping[str, Resources], base: Mapping[str, Resources]) -> None:
        self._over = over
        self._base = base

    def __getitem__(self, node: str) -> Resources:
        return self._over[node] if node in self._over else self._base[node]

    def __iter__(self) -> Iterator[str]:
        return iter(self._over.keys() | self._base.keys())

    def __len__(self) -> int:
        return len(self._over.keys() | self._base.keys())


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster as one plan sees it.

    Its mappings are live, not copies. A plan must be finished before they change; it is, because plans run without
    await.
    """

    nodes: Mapping[str, Node]
    """The nodes by name, in a fixed order."""

    used: Mapping[str, Resources]
    """The resources used by bound, assumed, reserved and nominated pods, by node name. A node without entry is empty.

    Nominated pods count if their priority is not lower than that of the members to be planned.
    """

    over: Collection[str] = ()
    """The names of the nodes whose entry in ``used`` differs from the usage in the cache (`Occupancy`)."""

    rules: "Sequence[PlanRuleType]" = field(kw_only=True)
    """The rules that restrict nodes further.

    There is no default, because a plan that lacks a rule is silently wrong.
    """

    limit: Limit = field(default_factory=Limit, compare=False, kw_only=True)
    """The maximum amount of work for the plan; by default unlimited."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A question to the planner: the members of one group, or of a tree of groups, that need nodes."""

    members: Sequence[Pod]
    """The waiting members in the order of placement, the lowest rank first; for a tree those of all parts."""

    need: int
    """The minimum number of members to place; with fewer there is no plan. 0 if the quorum is already running."""

    topology_key: str | None = None
    """The label key whose value must be the same for the nodes of all members; None without constraint."""

    pinned: frozenset[str] = frozenset()
    """The domains of existing members. Empty if any domain may be chosen; more than one is a conflict."""

    excluded: frozenset[tuple[str, str]] = frozenset()
    """The (member UID, node name) pairs that kube-scheduler has rejected."""

    closed: frozenset[str] = frozenset()
    """The names of the nodes that no member may use."""

    unoffered: frozenset[str] = frozenset()
    """The part of ``closed`` that kube-scheduler's last filter call did not list, maybe only for lack of resources."""

    taken: frozenset[str] = frozenset()
    """The domains of the topology key that other gangs use exclusively."""

    openable: frozenset[str] = frozenset()
    """The part of ``taken`` that evictions could free, because only running pods occupy these domains."""

    exclusive: bool = False
    """True if the group wants a domain exclusively: it may use a domain of ``taken`` once that is free."""

    levels: tuple[str, ...] = ()
    """The preferred label keys, the narrowest first. The first one with a domain that fits the quorum is used."""

    spills: bool = True
    """True if the quorum may use several domains, as few as possible, when no preferred level fits; else it waits."""

    assigned_nodes: frozenset[str] = frozenset()
    """The nodes of existing members. New members are placed near them, at the narrowest level with enough room."""

    style: Style = Style.PACK

    own_slots: bool = False
    """True if each member may only use the slot that is reserved for it."""

    name: str = ""
    """The name of the group in its tree; "" for the root."""

    within: tuple[tuple[str, str], ...] = ()
    """The (key, domain) pairs that the parent groups are restricted to, the widest first."""

    parts: tuple["PlanRequest", ...] = ()
    """For a tree, the requests of the child groups."""

    wanted: int = 0
    """The minimum number of ``parts`` that must be placed, besides those whose quorum is running.

    A part is placed whole.
    """

    group_priority: int | None = None
    """The priority set for the group; None if the priorities of the members count."""

    @property
    def priority(self) -> int:
        """The priority of all members: the group's own, or else the lowest of the members; 0 without members."""
        return self._find_least() if self.group_priority is None else self.group_priority

    @property
    def yielding_priority(self) -> int:
        """The priority up to which nominated pods of other gangs keep their resources from this plan.

        kube-scheduler compares the priorities in the pods, so the lowest one counts if it is below that of the group.
        """
        return min(self.priority, self._find_least()) if self.members else self.priority

    def _find_least(self) -> int:
        return min((member.priority for member in self.members), default=0)

    def is_equivalent(self, other: "PlanRequest") -> bool:
        """Return whether both requests have the same answer. Members may differ in fields that plans do not use."""
        return (
            len(self.members) == len(other.members)
            and len(self.parts) == len(other.parts)
            and all(map(_is_alike, self.members, other.members))
            and replace(self, members=(), parts=()) == replace(other, members=(), parts=())
            and all(mine.is_equivalent(others) for mine, others in zip(self.parts, other.parts, strict=True))
        )

    def closing(self, nodes: Collection[str]) -> "PlanRequest":
        """Return a copy of the request in which no member of any group may use these nodes."""
        parts = tuple(part.closing(nodes) for part in self.parts)
        closed = frozenset(nodes)
        return replace(self, closed=self.closed | closed, unoffered=self.unoffered - closed, parts=parts)

    def closing_unoffered(self, unoffered: frozenset[str]) -> "PlanRequest":
        """Return a copy of the request in which no member may use these nodes, which kube-scheduler did not list."""
        parts = tuple(part.closing_unoffered(unoffered) for part in self.parts)
        more = unoffered - self.closed
        return replace(self, closed=self.closed | more, unoffered=self.unoffered | more, parts=parts)

    def reopening(self, nodes: frozenset[str]) -> "PlanRequest":
        """Return a copy of the request in which all members may use those of these nodes that are in ``unoffered``."""
        parts = tuple(part.reopening(nodes) for part in self.parts)
        again = nodes & self.unoffered
        return replace(self, closed=self.closed - again, unoffered=self.unoffered - again, parts=parts)


def _is_alike(one: Pod, other: Pod) -> bool:
    return one is other or (one.uid, one.priority, one.shape) == (other.uid, other.priority, other.shape)


@dataclass(frozen=True, slots=True)
class Plan:
    """A node for each member; an answer of the planner."""

    domain: str
    """The value of the required key that all nodes share; "" without a key."""

    nodes: Mapping[str, str]
    """The node name by member UID."""

    spare: int = 0
    """The number of further members that fit in the domain; an estimate if members have different shapes."""

    waves: tuple[tuple[str, ...], ...] = ()
    """The UIDs of the members in waves, see `list_waves`; () if all members may be tried in any order."""

    keys: tuple[str, ...] = ()
    """The label keys that the rules between members use. Nodes with the same values for them are interchangeable."""


@dataclass(frozen=True, slots=True)
class OpenLevels:
    """The preferred levels that a gang may use at some point in time."""

    keys: tuple[str, ...]
    """The label keys, the narrowest first."""

    next_in: float
    """The seconds until the gang may use a further level; infinity if it may use all."""

    waited: float = 0.0
    """The seconds that the gang has waited."""

    @property
    def spills(self) -> bool:
        """True if the gang may use several domains when no single one is large enough."""
        return self.next_in == math.inf


def open_levels(levels: Sequence[Level], waited: float) -> OpenLevels:
    """Return the levels for a gang whose quorum has been complete for ``waited`` seconds.

    Each level may be used after the waits of the levels before it.
    """
    keys: list[str] = []
    opens = 0.0
    for level in levels:
        if opens > waited:
            break
        keys.append(level.key)
        opens += level.wait
    return OpenLevels(tuple(keys), opens - waited if opens > waited else math.inf, waited)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A group with a complete quorum in the queue."""

    group: GroupKey
    priority: int

    since: float
    """The time at which the quorum became complete, in seconds of any one clock."""

    broken: bool = False
    """True if the gang ran and has lost its quorum: its remaining members use resources for nothing."""

    rejected: bool = False
    """True if kube-scheduler found no node for a member regardless of free resources.

    No resources are kept for the gang.
    """


QueueKey = tuple[int, bool, float, GroupKey]
"""The sort key of a group in the queue: the group with the smallest key goes first."""


@dataclass(frozen=True, slots=True)
class Ageing:
    """The rule by which waiting raises a group's priority."""

    seconds_per_level: float = math.inf
    """The seconds after which a group's priority counts as the next higher level; infinity for never."""

    levels: Sequence[int] = ()
    """The existing priorities, ascending without repeats. The highest is the maximum for raised priorities."""

    def raise_priority(self, waiting: Waiting, now: float) -> int:
        """Return the raised priority of a group; ``now`` is on the clock of ``since``."""
        waited = now - waiting.since
        steps = int(waited // self.seconds_per_level) if 0 < waited < math.inf else 0
        if not steps:
            return waiting.priority
        above = self.levels[bisect_right(self.levels, waiting.priority) :]
        return above[min(steps, len(above)) - 1] if above else waiting.priority

    def sort_key(self, waiting: Waiting, now: float) -> QueueKey:
        """Return the sort key of a group: raised priority, then broken groups, then the longest wait, then the name."""
        return -self.raise_priority(waiting, now), not waiting.broken, waiting.since, waiting.group


def order_groups(waiting: Iterable[Waiting], ageing: Ageing, now: float) -> list[Waiting]:
    """Return the groups in queue order, see `Ageing.sort_key`."""
    return sorted(waiting, key=lambda group: ageing.sort_key(group, now))
