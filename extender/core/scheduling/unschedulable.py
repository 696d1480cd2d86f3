"""The groups that did not fit, and which freed room could help which of them.

Groups that want the same kind of room share one queueing hint. It knows an upper bound of the slots in each domain:
what the last refusal counted, and what has been freed since. Freed room wakes the groups that the bound would hold, so
its cost is that of freed nodes and hints, not of the cluster, nor of planning each group anew.
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
from serried.plan.fit import slots
from serried.plan.request import PlanRequest


def find_most(share_percent: int, count: int) -> int:
    """How many of so many nodes or domains one namespace may have: its share, rounded down, and never none."""
    return max(1, count * share_percent // 100)


_MAX_DOUBTS = 100
"""How many nodes that kube-scheduler offers have a gang planned once more, until it is planned for another reason."""


@dataclass(slots=True)
class QueueEntry:
    """When a group is planned again. Times are loop seconds.

        unschedulable -- woken, changed, or its time has come (``retry_by``) --> active: it is planned
        backoff       -- its end has come (``back_off``) ----------------------> active

    What wakes it is the queue's (`extender.core.scheduling.unschedulable`).
    """

    question: tuple[object, ...] = ()
    """What it was planned with last: a group that waits for room is not planned with the same again."""

    backoff_until: float = 0.0
    """Until then nothing is planned for it, whatever changes."""

    retry_at: float = math.inf
    """When it is planned again though nothing has changed."""

    attempts: int = 0
    """How many of its cycles have failed in a row."""

    unattended: bool = False
    """Whether its last cycle has ended because the scheduler, away, came to none of its members."""

    doubts: frozenset[str] = frozenset()
    """The nodes that kube-scheduler has offered to its members since a plan had found none: each is tried once."""

    in_doubt: bool = False
    """Whether `doubts` alone are why the group is to be planned again."""

    def backs_off(self, now: float) -> bool:
        """Whether it is not to be planned yet."""
        return now < self.backoff_until

    def back_off(self, until: float) -> None:
        """It is not planned before this time. A group that backs off already does so until then instead."""
        self.backoff_until = until

    def end_backoff(self) -> None:
        """It may be planned at once."""
        self.backoff_until = 0.0

    def retry_by(self, at: float) -> None:
        """It is planned again at this time at the latest."""
        self.retry_at = min(self.retry_at, at)

    def ask_again(self) -> None:
        """It is planned again though nothing of it has changed."""
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
        """Note that the group was planned in vain. Forget `doubts`, unless they alone were why it was planned."""
        self.doubts = self.doubts if self.in_doubt else frozenset()
        self.in_doubt = False

    def take(self, question: tuple[object, ...], now: float, *, waits: bool) -> bool:
        """Its turn has come, and it is to be planned with this; whether there is anything to be planned.

        ``waits`` is whether it waits for room: only then its last answer still holds.
        """
        self.backoff_until = 0.0
        if waits and question == self.question and now < self.retry_at:
            return False
        self.question, self.retry_at, self.unattended = question, math.inf, False
        return True

    def pop_backoff(self, now: float) -> bool:
        """Whether a backoff is over now; once."""
        over = 0 < self.backoff_until <= now
        if over:
            self.backoff_until = 0.0
        return over

    def pop_retry(self, now: float) -> bool:
        """Whether the time has come at which it is planned again; once."""
        due = self.retry_at <= now
        if due:
            self.question, self.retry_at = (), math.inf
        return due

    def pop_unattended(self) -> bool:
        """The scheduler is back: whether the group has waited for that; once."""
        was, self.unattended = self.unattended, False
        if was:
            self.question = ()
        return was


_MAX_SHAPES_COUNTED = 8
"""Up to how many shapes of members are counted on a freed node; with more the planner is asked at once."""


_MAX_HINTS = 64
"""How many hints a namespace may have. What is freed is counted for each, so thousands would hold up everybody."""

_OF_NAMESPACE_AT_ONCE = 4
"""How many groups that share the hint of their namespace are woken at a time."""


@dataclass(frozen=True, slots=True)
class QueueingHint:
    """A kind of room: what decides which nodes could help, and how many slots a plan would count on them."""

    shapes: frozenset[Shape]
    """Those of the members."""

    topology_key: str | None

    pinned: frozenset[str]
    """The domains that count, if there are any."""

    closed: frozenset[str]
    """Nodes that do not count."""

    priority: int
    """It decides which nominations count as used."""

    counted: bool
    """Whether the refusal says how many slots there are; else any slot that is freed could be the missing one."""

    namespace: str = ""
    """The namespace whose groups share it as that has too many hints; "" for a hint that says what is wanted."""

    concerns: frozenset[str] = frozenset()
    """Which pods could help by where they are (`serried.api.interpod.list_concerns`)."""


@dataclass(slots=True)
class _Waiters:
    """The groups with one hint."""

    room: dict[str, int] = field(default_factory=dict)
    """An upper bound of the slots by domain."""

    elsewhere: int = 0
    """The bound for each domain that the refusal did not name."""

    needs: dict[GroupKey, int] = field(default_factory=dict)
    """How many slots each group needs."""

    put_aside: set[GroupKey] = field(default_factory=set)
    """The groups that have given their room up themselves: withdrawn nominations do not wake them."""

    untried: dict[GroupKey, None] = field(default_factory=dict)
    """Where a namespace shares one: those not woken since room was freed last, the longest wait first."""

    namespace: str = ""
    """The namespace for which it counts: that of its first group."""


class UnschedulableGroups:
    """Groups that need no planning before room is freed that could help them. ``nodes`` and ``used`` are live."""

    def __init__(self, nodes: Mapping[str, Node], used: Mapping[str, Resources]) -> None:
        self._nodes = nodes
        self._used = used
        self._by_hint: dict[QueueingHint, _Waiters] = {}
        self._hints: dict[GroupKey, QueueingHint] = {}
        self._counts: Counter[str] = Counter()
        """How many hints count for each namespace."""
        self._waiting: Counter[str] = Counter()
        """How many groups of each namespace wait."""

    def __contains__(self, group: GroupKey) -> bool:
        return group in self._hints

    def __iter__(self) -> Iterator[GroupKey]:
        return iter(list(self._hints))

    def __len__(self) -> int:
        return len(self._hints)

    def put(self, group: GroupKey, request: PlanRequest, refusal: Verdict) -> None:
        """A group was refused just now."""
        hint, waiters = self._enlist_refused(group, request, refusal)
        self._limit(hint, waiters, refusal)

    def put_late(self, group: GroupKey, request: PlanRequest, refusal: Verdict) -> None:
        """As `put`, for a refusal that has counted before room was freed. The group has to be planned again soon.

        What is known for others that wait stays as it is: it counts the room of which this refusal may lack some.
        """
        hint, waiters = self._enlist_refused(group, request, refusal)
        if len(waiters.needs) == 1:
            self._limit(hint, waiters, refusal)

    def put_aside(self, group: GroupKey, request: PlanRequest) -> None:
        """A group has given its room and its nominations up: that they are free is no news to it."""
        hint = self._choose(group, _hint(request, counted=False))
        self._enlist(group, hint, 1).put_aside.add(group)

    def leave(self, group: GroupKey) -> None:
        """A group waits for room no more, or is to be planned whatever is free."""
        hint = self._hints.pop(group, None)
        if hint is None:
            return
        self._waiting[group.namespace] -= 1
        if not self._waiting[group.namespace]:
            del self._waiting[group.namespace]
        waiters = self._by_hint[hint]
        del waiters.needs[group]
        waiters.put_aside.discard(group)
        waiters.untried.pop(group, None)
        if not waiters.needs:
            del self._by_hint[hint]
            self._counts[waiters.namespace] -= 1

    def holds_others(self, namespace: str) -> bool:
        """Whether any group of another namespace waits for room."""
        return len(self._hints) > self._waiting[namespace]

    def wake(self, freed: Freed | None, withdrawn: Freed | None, reached: Collection[str] = ()) -> set[GroupKey]:
        """The groups that room on these nodes could help; they leave. None is room anywhere.

        ``withdrawn`` are nodes that pods were nominated to. ``reached`` says whom pods concern that came or left
        (`serried.api.interpod.find_reached`): for these there may be room anywhere.
        """
        woken: set[GroupKey] = set()
        for hint, waiters in self._by_hint.items():
            if hint.namespace:
                woken |= self._help_namespace(hint, waiters, None if reached else freed, withdrawn)
            elif not hint.concerns.isdisjoint(reached):
                woken |= self._help(hint, waiters, None)
            else:
                woken |= self._help(hint, waiters, withdrawn) - waiters.put_aside
                woken |= self._help(hint, waiters, freed)
        for group in woken:
            self.leave(group)
        return woken

    def _choose(self, group: GroupKey, hint: QueueingHint) -> QueueingHint:
        """The hint under which a group waits: its own, or that of its namespace if that has too many."""
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
        hint = self._choose(group, _hint(request, counted=counted))
        return hint, self._enlist(group, hint, max(1, request.need) if counted else 1)

    def _limit(self, hint: QueueingHint, waiters: _Waiters, refusal: Verdict) -> None:
        """The slots that a refusal has counted are all that there are."""
        if not hint.counted:
            return
        named = {"": refusal.have} if hint.topology_key is None else {d.domain: d.slots for d in refusal.domains}
        waiters.room = named
        waiters.elsewhere = min(named.values(), default=0) if refusal.domain_count > len(named) else 0

    def _help_namespace(
        self, hint: QueueingHint, waiters: _Waiters, freed: Freed | None, withdrawn: Freed | None
    ) -> set[GroupKey]:
        """A few groups of a namespace after the other, until each was woken since room was freed last."""
        if _is_open(hint, freed):
            waiters.untried.update(dict.fromkeys(waiters.needs))
        elif _is_open(hint, withdrawn):
            waiters.untried.update(dict.fromkeys(each for each in waiters.needs if each not in waiters.put_aside))
        return set(islice(waiters.untried, _OF_NAMESPACE_AT_ONCE))

    def _help(self, hint: QueueingHint, waiters: _Waiters, freed: Freed | None) -> set[GroupKey]:
        """The groups of a hint that room on these nodes could help."""
        if freed is None:
            return set(waiters.needs)
        grown = {self._add(hint, waiters, name, before) for name, before in freed.items()} - {None}
        most = max((waiters.room[domain] for domain in grown if domain is not None), default=0)
        return {group for group, need in waiters.needs.items() if need <= most}

    def _add(self, hint: QueueingHint, waiters: _Waiters, name: str, before: Resources | None) -> str | None:
        """Count what was freed on a node in; its domain if it has a slot now."""
        node = self._nodes.get(name)
        domain = _domain(hint, node)
        # A node that is another by now may be open again to those that were kept from it.
        if node is None or domain is None or (before is not None and name in hint.closed):
            return None
        if not hint.counted:
            return domain if self._may_help(hint, waiters, node, before) else None
        free = self._count(hint, node, self._used.get(name, {}))
        # A refusal between the two counts has seen some of it: the bound is never too low, and no group is forgotten.
        grown = free - (0 if before is None else self._count(hint, node, before))
        waiters.room[domain] = waiters.room.get(domain, waiters.elsewhere) + max(0, grown)
        return domain if free else None

    def _may_help(self, hint: QueueingHint, waiters: _Waiters, node: Node, before: Resources | None) -> bool:
        """Whether any slot that counts is free; where there are many shapes it costs less to ask the planner."""
        used = self._used.get(node.name, {})
        domain = _domain(hint, node) or ""
        many = len(hint.shapes) > _MAX_SHAPES_COUNTED
        free = [shape for shape in hint.shapes if slots(shape, node, used)] if not many else []
        if many or (free and (before is None or _has_more(hint, free, node, before, used))):
            waiters.room[domain] = 1
        waiters.room.setdefault(domain, 0)
        return many or bool(free)

    def _count(self, hint: QueueingHint, node: Node, used: Resources) -> int:
        return sum(slots(shape, node, used) for shape in hint.shapes)


def _has_more(hint: QueueingHint, free: Collection[Shape], node: Node, before: Resources, used: Resources) -> bool:
    """Whether a node holds more members of a hint than when ``before`` was used, of which ``free`` fit one by one."""
    if len(hint.shapes) == 1:
        return any(slots(shape, node, before) < slots(shape, node, used) for shape in free)
    # Two shapes may fit together where neither has a slot more than before.
    wanted = {name for shape in hint.shapes for name, _ in shape.requests}
    return any(before.get(name, 0) > used.get(name, 0) for name in wanted)


def _is_open(hint: QueueingHint, freed: Freed | None) -> bool:
    """Whether room is free on any node that counts."""
    return freed is None or any(name not in hint.closed for name in freed)


def _is_plain(request: PlanRequest) -> bool:
    """Whether the slots of each domain are all that decides: one shape, and nothing that keeps members from nodes."""
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
    """The domain in which a node could help; None for none."""
    if node is None:
        return None
    if hint.topology_key is None:
        return ""
    domain = node.labels.get(hint.topology_key)
    return domain if not hint.pinned or domain in hint.pinned else None
