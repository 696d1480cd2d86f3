"""The planner's input and output (`Snapshot`, `PlanRequest`, `Plan`), and the queue order of gangs.

The extender makes a `PlanRequest` for the waiting members of a gang, and gets a `Plan` from
`serried.plan.tree.plan_group`. `order_groups` sorts the queue. `find_allowed_levels` returns the preferred topology
levels at which a gang may be placed after it has waited for some time.
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
    """The cluster as one plan sees it: nodes, and the amounts that are in use on them.

    Its mappings are live, not copies. They must not change during a plan, and they do not, because plans run without
    await.
    """

    nodes: Mapping[str, Node]
    """The nodes by name, in a fixed order."""

    used: Mapping[str, Resources]
    """The amounts that bound, assumed, reserved and nominated pods use, by node name. A node without entry is empty.

    Nominated pods count if their priority is not lower than that of the members to be planned.
    """

    over: Collection[str] = ()
    """The names of the nodes for which ``used`` differs from the cache, for instance by nominated pods.

    Counts that the planner has kept (`Capacity`) are those of the cache, so these nodes are counted again.
    """

    rules: "Sequence[PlanRuleType]" = field(kw_only=True)
    """The kinds of rules that the planner respects beyond free resources, labels and taints, e.g. anti-affinity.

    There is no default, because a plan that lacks a rule is silently wrong.
    """

    limit: Limit = field(default_factory=Limit, compare=False, kw_only=True)
    """The time and work that the plan may take; by default unlimited."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A question to the planner: which nodes can the waiting members of a gang, or of a tree of groups, get."""

    members: Sequence[Pod]
    """The members to place, in the order of their rank. For a tree these are the members of all its groups."""

    need: int
    """The number of these members that must be placed; if fewer fit there is no plan.

    0 if the quorum is running already.
    """

    topology_key: str | None = None
    """The required label key: all members have to be in one domain of it. None if there is no such constraint."""

    pinned: frozenset[str] = frozenset()
    """The domains of ``topology_key`` in which members of the group run, where new members have to go as well.

    Empty if any domain may be chosen. With more than one there is no plan.
    """

    excluded: frozenset[tuple[str, str]] = frozenset()
    """The (member UID, node name) pairs that kube-scheduler has rejected.

    Such a member is not placed on such a node.
    """

    closed: frozenset[str] = frozenset()
    """The names of the nodes that no member may use.

    For instance, their free resources are kept for the gang at the head of the queue, or kube-scheduler did not list
    them.
    """

    unoffered: frozenset[str] = frozenset()
    """The nodes of ``closed`` that are in it only because kube-scheduler's last filter call did not list them.

    Maybe they only lack free resources, which evictions could change.
    """

    taken: frozenset[str] = frozenset()
    """The domains of ``topology_key`` that other gangs use exclusively, so that the group must not use them."""

    freeable: frozenset[str] = frozenset()
    """The domains of ``taken`` that other gangs use by running pods only, so that evictions could free them."""

    exclusive: bool = False
    """True if the group wants to have its domain exclusively.

    Victims may then be chosen to free a domain that another gang uses exclusively (``taken``).
    """

    levels: tuple[str, ...] = ()
    """The preferred label keys that the group may use now, the narrowest first.

    The first one is used that has a domain that holds the quorum.
    """

    spills: bool = True
    """True if members may use several domains when no domain of a preferred level holds the quorum.

    As few domains as possible are used. If False there is no plan then, and the group waits.
    """

    assigned_nodes: frozenset[str] = frozenset()
    """The nodes on which members of the group run.

    Members are placed near them, in the narrowest domain with enough capacity.
    """

    style: Style = Style.PACK
    """The way to place members: packed on as few nodes and domains as possible, or spread evenly."""

    own_slots: bool = False
    """True if the members replace failed ones, and may only use the vacancies (slots of failed members) kept for them.

    The caller assigns these vacancies, the functions of `serried.plan` do not read this field.
    """

    name: str = ""
    """The name of the group in its tree; "" for the root group, and for a gang without a tree."""

    within: tuple[tuple[str, str], ...] = ()
    """The (label key, domain) pairs in which the parent groups are placed, the widest first.

    Members must be there, too.
    """

    parts: tuple["PlanRequest", ...] = ()
    """The requests of the child groups; () if the group has none, i.e. is a PodGroup."""

    wanted: int = 0
    """The number of child groups in ``parts`` that must be placed, each with its quorum.

    Child groups whose quorum is running already are not counted.
    """

    group_priority: int | None = None
    """The priority set in the group itself; None if the priorities of its pods count."""

    @property
    def priority(self) -> int:
        """The group's own priority, or if it has none the lowest priority of its members; 0 without members."""
        return self._find_least() if self.group_priority is None else self.group_priority

    @property
    def yielding_priority(self) -> int:
        """The priority from which on nominated pods of other gangs keep their resources in the plan.

        The resources of nominated pods with a lower priority count as free. It is the lowest of the group's priority
        and the priorities of its members, because kube-scheduler compares the priorities of single pods.
        """
        return min(self.priority, self._find_least()) if self.members else self.priority

    def _find_least(self) -> int:
        return min((member.priority for member in self.members), default=0)

    def is_equivalent(self, other: "PlanRequest") -> bool:
        """Return whether the planner has the same answer for both requests in the same cluster.

        Members are compared by UID, priority and shape. All other fields of the requests must be equal.
        """
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
        """Return a copy in which no member may use these nodes, which kube-scheduler's filter call did not list."""
        parts = tuple(part.closing_unoffered(unoffered) for part in self.parts)
        more = unoffered - self.closed
        return replace(self, closed=self.closed | more, unoffered=self.unoffered | more, parts=parts)

    def reopening(self, nodes: frozenset[str]) -> "PlanRequest":
        """Return a copy in which members may use those of these nodes that are closed only as ``unoffered``.

        That is, kube-scheduler's last filter call did not list them, and nothing else forbids them.
        """
        parts = tuple(part.reopening(nodes) for part in self.parts)
        again = nodes & self.unoffered
        return replace(self, closed=self.closed - again, unoffered=self.unoffered - again, parts=parts)


def _is_alike(one: Pod, other: Pod) -> bool:
    return one is other or (one.uid, one.priority, one.shape) == (other.uid, other.priority, other.shape)


@dataclass(frozen=True, slots=True)
class Plan:
    """The planner's answer if a gang fits: a node for each member that it places."""

    domain: str
    """The domain of the required topology key in which all nodes are; "" if no key is required."""

    nodes: Mapping[str, str]
    """The node name by member UID."""

    spare: int = 0
    """The number of further members that would fit in the domain.

    It is an estimate if members have different shapes.
    """

    waves: tuple[tuple[str, ...], ...] = ()
    """The UIDs of the members in waves; () if kube-scheduler may try the members in any order.

    kube-scheduler may try the members of one wave in any order, but only after all members of the waves before it are
    assumed.
    """

    keys: tuple[str, ...] = ()
    """The label keys by which members' rules, such as anti-affinity, distinguish nodes; () without such rules.

    Members may exchange nodes that have the same values for all of them.
    """


@dataclass(frozen=True, slots=True)
class AllowedLevels:
    """The preferred topology levels at which a gang may be placed at some point in time."""

    keys: tuple[str, ...]
    """The label keys of these levels, the narrowest first."""

    next_in: float
    """The seconds until one more level is allowed, or several domains; infinity if everything is allowed."""

    waited: float = 0.0
    """The seconds that the gang has waited so far."""

    @property
    def spills(self) -> bool:
        """True if all waits are over, so that the gang may use several domains if no single one holds it."""
        return self.next_in == math.inf


def find_allowed_levels(levels: Sequence[Level], waited: float) -> AllowedLevels:
    """Return the levels at which a gang may be placed whose quorum has been complete for ``waited`` seconds.

    ``levels`` has the narrowest level first, each with the seconds to wait before the next level is allowed.
    """
    keys: list[str] = []
    opens = 0.0
    for level in levels:
        if opens > waited:
            break
        keys.append(level.key)
        opens += level.wait
    return AllowedLevels(tuple(keys), opens - waited if opens > waited else math.inf, waited)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A gang in the queue: its quorum is complete, and it waits to be placed. The fields decide on its position."""

    group: GroupKey
    priority: int

    since: float
    """The time at which the quorum became complete, in seconds. All gangs in a queue use the same clock."""

    broken: bool = False
    """True if the gang was running and has lost its quorum. The members that still run use resources for nothing."""

    rejected: bool = False
    """True if kube-scheduler rejected all nodes for a member for reasons other than free resources.

    Then Serried does not keep free resources for the gang when it is at the head of the queue.
    """


QueueKey = tuple[int, bool, float, GroupKey]
"""The sort key of a gang in the queue; the gang with the smallest key is planned first."""


@dataclass(frozen=True, slots=True)
class Ageing:
    """The rule by which the priority of a gang rises while it waits in the queue.

    After each ``seconds_per_level`` the gang counts with the next higher priority that exists in the cluster.
    """

    seconds_per_level: float = math.inf
    """The seconds of waiting after which a gang counts with the next higher of ``levels``; infinity for never."""

    levels: Sequence[int] = ()
    """The priorities that exist in the cluster, ascending without repeats.

    A priority does not rise above the highest.
    """

    def raise_priority(self, waiting: Waiting, now: float) -> int:
        """Return the priority with which a gang in the queue counts at the time ``now``.

        ``now`` is on the same clock as ``waiting.since``, the time at which the gang's quorum became complete.
        """
        waited = now - waiting.since
        steps = int(waited // self.seconds_per_level) if 0 < waited < math.inf else 0
        if not steps:
            return waiting.priority
        above = self.levels[bisect_right(self.levels, waiting.priority) :]
        return above[min(steps, len(above)) - 1] if above else waiting.priority

    def sort_key(self, waiting: Waiting, now: float) -> QueueKey:
        """Return the sort key of a gang in the queue at the time ``now``.

        ``now`` is on the same clock as ``waiting.since``, the time at which the gang's quorum became complete. The gang
        with the highest priority (as raised while it waited) is first. Among equals, gangs that were running and have
        lost their quorum are first, then the gang that has waited longest.
        """
        return -self.raise_priority(waiting, now), not waiting.broken, waiting.since, waiting.group


def order_groups(waiting: Iterable[Waiting], ageing: Ageing, now: float) -> list[Waiting]:
    """Return the gangs in queue order at the time ``now``, see `Ageing.sort_key`."""
    return sorted(waiting, key=lambda group: ageing.sort_key(group, now))
