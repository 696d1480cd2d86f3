"""What the planner takes and gives, which preferred levels a gang may try by now, and the order of waiting gangs."""

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
    """A few nodes' amounts over those of all the others, without a copy."""

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

    Nothing is copied: a plan must be finished before the state changes, which holds because plans run without await.
    """

    nodes: Mapping[str, Node]
    """The nodes by name, in a fixed order."""

    used: Mapping[str, Resources]
    """What bound, assumed, reserved and nominated pods use, by node name. A node without entry is empty.

    Nominated pods count if their priority is not lower than that of the members to be planned.
    """

    over: Collection[str] = ()
    """The names of the nodes on which this plan sees another use than the occupancy has."""

    rules: "Sequence[PlanRuleType]" = field(kw_only=True)
    """What decides beside the nodes themselves. Without default: a plan that forgets a rule is wrong, and silent."""

    limit: Limit = field(default_factory=Limit, compare=False, kw_only=True)
    """How much work may be done on it. Without one, as much as it takes."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What is to be placed: the members of one group, or of a tree of groups."""

    members: Sequence[Pod]
    """The waiting members in the order in which they get room, the lowest rank first; of a tree those of all parts."""

    need: int
    """How many members must be placed; with fewer none is. 0: the quorum stands, or the part of a tree does."""

    topology_key: str | None = None
    """The label key of which all members must be in one domain; None without constraint."""

    pinned: frozenset[str] = frozenset()
    """The domains that existing members occupy. None leaves the choice free, more than one is a conflict."""

    excluded: frozenset[tuple[str, str]] = frozenset()
    """The (member UID, node name) pairs that the scheduler has refused."""

    closed: frozenset[str] = frozenset()
    """The names of the nodes that no member may use."""

    unoffered: frozenset[str] = frozenset()
    """Those of ``closed`` that are so only because kube-scheduler did not offer them: maybe just for want of room."""

    taken: frozenset[str] = frozenset()
    """The domains of the topology key that other gangs have for themselves."""

    openable: frozenset[str] = frozenset()
    """Those of ``taken`` that would be open if pods were evicted: none but pods that run there hold them."""

    exclusive: bool = False
    """Whether any of ``taken`` will do as soon as the exclusive gangs there have left it."""

    levels: tuple[str, ...] = ()
    """Preferred label keys, the narrowest first: the first that has a domain with room for the quorum counts."""

    spills: bool = True
    """Whether the quorum goes over as few domains as possible if no level holds it; else it waits."""

    assigned_nodes: frozenset[str] = frozenset()
    """The nodes of existing members: others join them at the narrowest level that has room."""

    style: Style = Style.PACK

    own_slots: bool = False
    """Whether each member takes the slot that is kept for it, or none."""

    name: str = ""
    """The group's name in its tree."""

    within: tuple[tuple[str, str], ...] = ()
    """The (key, domain) pairs in which the groups above this one are, the widest first."""

    parts: tuple["PlanRequest", ...] = ()
    """Of a tree, the requests of the groups below."""

    wanted: int = 0
    """How many of the parts that do not stand yet must be placed, each whole."""

    group_priority: int | None = None
    """The priority that the group has of its own; None where its members alone have one."""

    @property
    def priority(self) -> int:
        """The priority of all members: that of the group, or else the least of theirs; 0 without members."""
        return self._find_least() if self.group_priority is None else self.group_priority

    @property
    def yielding_priority(self) -> int:
        """Nominations of others keep their room from a plan of no higher priority than this.

        kube-scheduler goes by what the pods say: where that is less than their group's, it counts.
        """
        return min(self.priority, self._find_least()) if self.members else self.priority

    def _find_least(self) -> int:
        return min((member.priority for member in self.members), default=0)

    def asks_the_same(self, other: "PlanRequest") -> bool:
        """Whether the answer to one question is that to the other: its members may be newer versions of theirs."""
        return (
            len(self.members) == len(other.members)
            and len(self.parts) == len(other.parts)
            and all(map(_is_alike, self.members, other.members))
            and replace(self, members=(), parts=()) == replace(other, members=(), parts=())
            and all(mine.asks_the_same(others) for mine, others in zip(self.parts, other.parts, strict=True))
        )

    def avoiding(self, nodes: Collection[str]) -> "PlanRequest":
        """The same question, where no member of any group may use these nodes either."""
        parts = tuple(part.avoiding(nodes) for part in self.parts)
        closed = frozenset(nodes)
        return replace(self, closed=self.closed | closed, unoffered=self.unoffered - closed, parts=parts)

    def keeping_to_offers(self, unoffered: frozenset[str]) -> "PlanRequest":
        """The same question, where no member of any group may use these nodes, as none of them was offered."""
        parts = tuple(part.keeping_to_offers(unoffered) for part in self.parts)
        more = unoffered - self.closed
        return replace(self, closed=self.closed | more, unoffered=self.unoffered | more, parts=parts)

    def reopening(self, nodes: frozenset[str]) -> "PlanRequest":
        """The same question, where the members of all groups may use these nodes though they were not offered."""
        parts = tuple(part.reopening(nodes) for part in self.parts)
        again = nodes & self.unoffered
        return replace(self, closed=self.closed - again, unoffered=self.unoffered - again, parts=parts)


def _is_alike(one: Pod, other: Pod) -> bool:
    return one is other or (one.uid, one.priority, one.shape) == (other.uid, other.priority, other.shape)


@dataclass(frozen=True, slots=True)
class Plan:
    """Where each member goes."""

    domain: str
    """The value of the required key that all nodes share; "" without a key."""

    nodes: Mapping[str, str]
    """Node name by member UID."""

    spare: int = 0
    """How many more members of their kind the domain has room for; an estimate where classes are mixed."""

    waves: tuple[tuple[str, ...], ...] = ()
    """Where members decide about each other, their UIDs by when they may be tried: after those before; () for all."""

    keys: tuple[str, ...] = ()
    """The label keys of nodes by which they do: to all others of them nodes with equal labels are the same."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What is open to a gang by now."""

    keys: tuple[str, ...]
    """The label keys that it may try, the narrowest first."""

    next_in: float
    """In how many seconds more is open; infinite if all is."""

    waited: float = 0.0
    """How many seconds it has waited."""

    @property
    def spills(self) -> bool:
        """Whether the gang may take several domains if none is large enough."""
        return self.next_in == math.inf


def open_levels(levels: Sequence[Level], waited: float) -> Opening:
    """What is open to a gang whose quorum stands for ``waited`` seconds: each level after the waits before it."""
    keys: list[str] = []
    opens = 0.0
    for level in levels:
        if opens > waited:
            break
        keys.append(level.key)
        opens += level.wait
    return Opening(tuple(keys), opens - waited if opens > waited else math.inf, waited)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A group whose quorum exists."""

    group: GroupKey
    priority: int

    since: float
    """When its members were first enough for the quorum, in seconds of any one clock."""

    broken: bool = False
    """Whether it ran and has lost its quorum: what is left of it holds room, and does nothing with it."""

    rejected: bool = False
    """Whether the scheduler had no node for a member of it, whatever room there is: it keeps nobody's place."""


Turn = tuple[int, bool, float, GroupKey]
"""Where a group stands in the queue: of two, the one with the smaller turn goes first."""


@dataclass(frozen=True, slots=True)
class Ageing:
    """How waiting counts: as a higher priority."""

    step: float = math.inf
    """After how many seconds each a group counts with the next higher level; infinite for never."""

    levels: Sequence[int] = ()
    """The priorities that exist, ascending and without repeats. No group rises above the highest of them."""

    def raised(self, waiting: Waiting, now: float) -> int:
        """The priority that a group counts with; ``now`` is on the clock of ``since``."""
        waited = now - waiting.since
        steps = int(waited // self.step) if 0 < waited < math.inf else 0
        if not steps:
            return waiting.priority
        above = self.levels[bisect_right(self.levels, waiting.priority) :]
        return above[min(steps, len(above)) - 1] if above else waiting.priority

    def place(self, waiting: Waiting, now: float) -> Turn:
        """Where a group stands in the queue: of two, the one with the smaller place goes first."""
        return -self.raised(waiting, now), not waiting.broken, waiting.since, waiting.group


def order_groups(waiting: Iterable[Waiting], ageing: Ageing, now: float) -> list[Waiting]:
    """Highest priority first, as waiting has raised it; then broken groups, then the longest complete, then by key."""
    return sorted(waiting, key=lambda group: ageing.place(group, now))
