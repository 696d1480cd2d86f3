"""The groups that did not fit, and which of them freed room could help.

The queue puts refused groups in, and `UnschedulableGroups.wake` returns those to plan again. Groups that want the same
kind of room share one queueing hint. The hint has an upper bound of the slots in each domain: those that the last
refusal counted, and those freed since. Freed room wakes the groups that the bound would hold. So the cost depends on
the freed nodes and the hints, and neither on the size of the cluster nor on the number of groups.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from serried.api.interpod import list_concerns
from serried.api.names import GroupKey
from serried.api.node import Node
from serried.api.pod import Shape
from serried.api.resources import Resources
from serried.api.verdict import Mark, Verdict
from serried.cluster.usage import Freed
from serried.plan.fit import count_fitting
from serried.plan.request import PlanRequest


def find_most(share_percent: int, count: int) -> int:
    """Return how many of ``count`` nodes or domains one namespace may have: its share, rounded down, at least 1."""
    return max(1, count * share_percent // 100)


_MAX_DOUBTS = 100
"""The number of nodes in `QueueEntry.doubts` up to which a new one requeues a gang."""


@dataclass(slots=True)
class QueueEntry:
    """The queueing state of one group: when it is planned again. Times are loop seconds.

            unschedulable -- woken, changed, or its time has come (``retry_by``) --> active: it is planned
            backoff       -- its end has come (``back_off``) ----------------------> active

    `UnschedulableGroups` knows which room wakes it.
    """

    question: tuple[object, ...] = ()
    """The input of the last try, which is not repeated while the group waits for room; () to plan anyway."""

    backoff_until: float = 0.0
    """The end of the backoff; before it the group is not planned, whatever changes. 0 for none."""

    retry_at: float = math.inf
    """The time at which the group is planned again even if nothing has changed."""

    attempts: int = 0
    """The number of its cycles that have failed in a row."""

    unattended: bool = False
    """True if its last cycle timed out because kube-scheduler, being away, tried none of its members."""

    doubts: frozenset[str] = frozenset()
    """The nodes that kube-scheduler offers though the last plan had none. Each of them requeues the group once."""

    in_doubt: bool = False
    """True if the group is to be planned again because of `doubts` alone."""

    def backs_off(self, now: float) -> bool:
        """Return whether the group may not be planned yet."""
        return now < self.backoff_until

    def back_off(self, until: float) -> None:
        """Do not plan the group before this time. It replaces an earlier backoff."""
        self.backoff_until = until

    def end_backoff(self) -> None:
        """End the backoff."""
        self.backoff_until = 0.0

    def retry_by(self, at: float) -> None:
        """Plan the group again at this time at the latest."""
        self.retry_at = min(self.retry_at, at)

    def ask_again(self) -> None:
        """Plan the group again even if its request has not changed."""
        self.question = ()

    def doubt(self, names: frozenset[str]) -> bool:
        """Note that kube-scheduler offers these nodes though the last plan had none for any member.

        Return whether it is to be planned once more: one of the nodes is new since it was refused.
        """
        if names <= self.doubts or len(self.doubts) >= _MAX_DOUBTS:
            return False
        self.doubts |= names
        self.in_doubt = True
        return True

    def note_refusal(self) -> None:
        """Note that the group was planned in vain. Clear `doubts`, unless they alone were why it was planned."""
        self.doubts = self.doubts if self.in_doubt else frozenset()
        self.in_doubt = False

    def begin_try(self, question: tuple[object, ...], now: float, *, waits: bool) -> bool:
        """Begin a try with this request. Return whether there is anything new to plan.

        ``waits`` is whether the group waits for room: only then its last refusal still holds.
        """
        self.backoff_until = 0.0
        if waits and question == self.question and now < self.retry_at:
            return False
        self.question, self.retry_at, self.unattended = question, math.inf, False
        return True

    def pop_backoff(self, now: float) -> bool:
        """Return whether a backoff is over now. True once per backoff."""
        over = 0 < self.backoff_until <= now
        if over:
            self.backoff_until = 0.0
        return over

    def pop_retry(self, now: float) -> bool:
        """Return whether the retry time has come. True once per time."""
        due = self.retry_at <= now
        if due:
            self.question, self.retry_at = (), math.inf
        return due

    def pop_unattended(self) -> bool:
        """Return whether the group has waited for kube-scheduler to come back. True once."""
        was, self.unattended = self.unattended, False
        if was:
            self.question = ()
        return was


_MAX_SHAPES_COUNTED = 8
"""The number of member shapes up to which slots are counted on a freed node; with more, the group is planned."""


_MAX_HINTS = 64
"""The number of hints per namespace. Freed room is counted for each hint, so thousands of hints would cost too much."""

_OF_NAMESPACE_AT_ONCE = 4
"""The number of groups sharing the hint of their namespace that are woken at a time."""


@dataclass(frozen=True, slots=True)
class QueueingHint:
    """A kind of room: it decides which nodes could help a group, and how many slots a plan would count on them."""

    shapes: frozenset[Shape]
    """The shapes of the members."""

    topology_key: str | None

    pinned: frozenset[str]
    """The only domains that count; empty if all do."""

    closed: frozenset[str]
    """The nodes that do not count."""

    priority: int
    """The priority; it decides which nominations count as used."""

    counted: bool
    """True if the refusal says how many slots there are. Else any freed slot could be the missing one."""

    namespace: str = ""
    """The namespace whose groups share this hint, because it has too many hints; "" for a hint of its own."""

    concerns: frozenset[str] = frozenset()
    """The pods that could help by where they run (`serried.api.interpod.list_concerns`)."""


@dataclass(slots=True)
class _Waiters:
    """The groups with one hint, and the slots that they may find."""

    room: dict[str, int] = field(default_factory=dict)
    """The upper bound of the slots by domain."""

    elsewhere: int = 0
    """The upper bound for each domain that the refusal did not name."""

    needs: dict[GroupKey, int] = field(default_factory=dict)
    """The slots that each group needs."""

    released: set[GroupKey] = field(default_factory=set)
    """The groups that have released their room themselves: withdrawn nominations do not wake them."""

    untried: dict[GroupKey, None] = field(default_factory=dict)
    """The groups of a shared hint that were not woken since room was last freed, the longest wait first."""

    namespace: str = ""
    """The namespace that the hint counts for: that of its first group."""


class UnschedulableGroups:
    """The groups that need no plan before room is freed that could help them. ``nodes`` and ``used`` are live."""

    def __init__(self, nodes: Mapping[str, Node], used: Mapping[str, Resources]) -> None:
        self._nodes = nodes
        self._used = used
        self._by_hint: dict[QueueingHint, _Waiters] = {}
        self._hints: dict[GroupKey, QueueingHint] = {}
        self._counts: Counter[str] = Counter()
        """The number of hints by namespace."""
        self._waiting: Counter[str] = Counter()
        """The number of groups by namespace."""

    def __contains__(self, group: GroupKey) -> bool:
        return group in self._hints

    def __iter__(self) -> Iterator[GroupKey]:
        return iter(list(self._hints))

    def __len__(self) -> int:
        return len(self._hints)

    def put(self, group: GroupKey, request: PlanRequest, refusal: Verdict) -> None:
        """Add a group that was refused just now, and take over the slots that the refusal has counted."""
        hint, waiters = self._enlist_refused(group, request, refusal)
        self._set_bound(hint, waiters, refusal)

    def put_late(self, group: GroupKey, request: PlanRequest, refusal: Verdict) -> None:
        """Add a group as `put` does, after a refusal older than the last freed room. The caller plans it again soon.

        The bound for other groups with the hint is kept, because it counts room that this refusal has not seen.
        """
        hint, waiters = self._enlist_refused(group, request, refusal)
        if len(waiters.needs) == 1:
            self._set_bound(hint, waiters, refusal)

    def put_released(self, group: GroupKey, request: PlanRequest) -> None:
        """Add a group that has released its slots: their room and nominations do not wake it."""
        hint = self._choose_hint(group, _hint(request, counted=False))
        self._enlist(group, hint, 1).released.add(group)

    def leave(self, group: GroupKey) -> None:
        """Remove a group. Ignored if it is not here."""
        hint = self._hints.pop(group, None)
        if hint is None:
            return
        self._waiting[group.namespace] -= 1
        if not self._waiting[group.namespace]:
            del self._waiting[group.namespace]
        waiters = self._by_hint[hint]
        del waiters.needs[group]
        waiters.released.discard(group)
        waiters.untried.pop(group, None)
        if not waiters.needs:
            del self._by_hint[hint]
            self._counts[waiters.namespace] -= 1

    def holds_others(self, namespace: str) -> bool:
        """Return whether any group of another namespace waits for room."""
        return len(self._hints) > self._waiting[namespace]

    def wake(self, freed: Freed | None, withdrawn: Freed | None, reached: Collection[str] = ()) -> set[GroupKey]:
        """Remove and return the groups that room on these nodes could help; None stands for room on any node.

        ``withdrawn`` are nodes that nominations were removed from. ``reached`` says which rules are touched by pods
        that came or ended (`serried.api.interpod.find_reached`): groups with these rules may have room on any node.
        """
        woken: set[GroupKey] = set()
        for hint, waiters in self._by_hint.items():
            if hint.namespace:
                woken |= self._list_helped_in_namespace(hint, waiters, None if reached else freed, withdrawn)
            elif not hint.concerns.isdisjoint(reached):
                woken |= self._list_helped(hint, waiters, None)
            else:
                woken |= self._list_helped(hint, waiters, withdrawn) - waiters.released
                woken |= self._list_helped(hint, waiters, freed)
        for group in woken:
            self.leave(group)
        return woken

    def _choose_hint(self, group: GroupKey, hint: QueueingHint) -> QueueingHint:
        """Return the hint for a group: its own, or that of its namespace if the namespace has too many."""
        self.leave(group)
        if hint in self._by_hint or self._counts[group.namespace] < _MAX_HINTS:
            return hint
        return QueueingHint(
            frozenset(), None, frozenset(), hint.closed, priority=0, counted=False, namespace=group.namespace
        )

    def _enlist(self, group: GroupKey, hint: QueueingHint, need: int) -> _Waiters:
        self._hints[group] = hint
        self._waiting[group.namespace] += 1
        waiters = self._by_hint.get(hint)
        if waiters is None:
            waiters = self._by_hint[hint] = _Waiters(namespace=group.namespace)
            self._counts[group.namespace] += 1
        waiters.needs[group] = need
        return waiters

    def _enlist_refused(self, group: GroupKey, request: PlanRequest, refusal: Verdict) -> tuple[QueueingHint, _Waiters]:
        counted = Mark.SHAPE in refusal.reason.marks and _is_plain(request)
        hint = self._choose_hint(group, _hint(request, counted=counted))
        return hint, self._enlist(group, hint, max(1, request.need) if counted else 1)

    def _set_bound(self, hint: QueueingHint, waiters: _Waiters, refusal: Verdict) -> None:
        """Set the upper bound to the slots that a refusal has counted."""
        if not hint.counted:
            return
        named = {"": refusal.have} if hint.topology_key is None else {d.domain: d.slots for d in refusal.domains}
        waiters.room = named
        waiters.elsewhere = min(named.values(), default=0) if refusal.domain_count > len(named) else 0

    def _list_helped_in_namespace(
        self, hint: QueueingHint, waiters: _Waiters, freed: Freed | None, withdrawn: Freed | None
    ) -> set[GroupKey]:
        """Return the next few groups of a shared hint, until each was woken once since room was last freed."""
        if _is_open(hint, freed):
            waiters.untried.update(dict.fromkeys(waiters.needs))
        elif _is_open(hint, withdrawn):
            waiters.untried.update(dict.fromkeys(each for each in waiters.needs if each not in waiters.released))
        return set(islice(waiters.untried, _OF_NAMESPACE_AT_ONCE))

    def _list_helped(self, hint: QueueingHint, waiters: _Waiters, freed: Freed | None) -> set[GroupKey]:
        """Return the groups of a hint that room on these nodes could help."""
        if freed is None:
            return set(waiters.needs)
        grown = {self._add_freed(hint, waiters, name, before) for name, before in freed.items()} - {None}
        most = max((waiters.room[domain] for domain in grown if domain is not None), default=0)
        return {group for group, need in waiters.needs.items() if need <= most}

    def _add_freed(self, hint: QueueingHint, waiters: _Waiters, name: str, before: Resources | None) -> str | None:
        """Add the room freed on a node to the bound of its domain. Return the domain if a slot is free there now."""
        node = self._nodes.get(name)
        domain = _domain(hint, node)
        # A closed node that has changed (``before`` is None) may be open again.
        if node is None or domain is None or (before is not None and name in hint.closed):
            return None
        if not hint.counted:
            return domain if self._may_help(hint, waiters, node, before) else None
        free = self._count(hint, node, self._used.get(name, {}))
        # A refusal between the two counts has seen some of this room. The bound may be too high, but never too low.
        grown = free - (0 if before is None else self._count(hint, node, before))
        waiters.room[domain] = waiters.room.get(domain, waiters.elsewhere) + max(0, grown)
        return domain if free else None

    def _may_help(self, hint: QueueingHint, waiters: _Waiters, node: Node, before: Resources | None) -> bool:
        """Return whether any slot is free on a node, or there are so many shapes that planning costs less."""
        used = self._used.get(node.name, {})
        domain = _domain(hint, node) or ""
        many = len(hint.shapes) > _MAX_SHAPES_COUNTED
        free = [shape for shape in hint.shapes if count_fitting(shape, node, used)] if not many else []
        if many or (free and (before is None or _has_more(hint, free, node, before, used))):
            waiters.room[domain] = 1
        waiters.room.setdefault(domain, 0)
        return many or bool(free)

    def _count(self, hint: QueueingHint, node: Node, used: Resources) -> int:
        return sum(count_fitting(shape, node, used) for shape in hint.shapes)


def _has_more(hint: QueueingHint, free: Collection[Shape], node: Node, before: Resources, used: Resources) -> bool:
    """Return whether a node holds more members than when ``before`` was used; members of ``free`` shapes fit alone."""
    if len(hint.shapes) == 1:
        return any(count_fitting(shape, node, before) < count_fitting(shape, node, used) for shape in free)
    # Two shapes may fit together where neither has a slot more than before.
    wanted = {name for shape in hint.shapes for name, _ in shape.requests}
    return any(before.get(name, 0) > used.get(name, 0) for name in wanted)


def _is_open(hint: QueueingHint, freed: Freed | None) -> bool:
    """Return whether room was freed on any node that counts."""
    return freed is None or any(name not in hint.closed for name in freed)


def _is_plain(request: PlanRequest) -> bool:
    """Return whether the number of slots per domain alone decides: one shape, and no rule about nodes."""
    apart = (
        request.own_slots
        or request.excluded
        or request.parts
        or request.taken
        or (request.levels and not request.spills)
    )
    return not apart and len({member.shape for member in request.members}) == 1


def _hint(request: PlanRequest, *, counted: bool) -> QueueingHint:
    shapes = frozenset(member.shape for member in request.members)
    return QueueingHint(
        shapes,
        request.topology_key,
        request.pinned,
        request.closed,
        priority=request.yielding_priority,
        counted=counted,
        concerns=frozenset(name for shape in shapes for name in list_concerns(shape.requests, shape.neighbours)),
    )


def _domain(hint: QueueingHint, node: Node | None) -> str | None:
    """Return the domain in which a node could help; None for none."""
    if node is None:
        return None
    if hint.topology_key is None:
        return ""
    domain = node.labels.get(hint.topology_key)
    return domain if not hint.pinned or domain in hint.pinned else None
