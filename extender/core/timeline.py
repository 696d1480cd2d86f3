"""The sink to which decisions are reported, and the last milestones of each group, in bounded memory.

Decisions call `StatusSink` through ``Context.status``; `Timelines` keeps when each group reached which milestone.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from serried.api.names import GroupKey
from serried.api.reservation import Victim
from serried.api.verdict import Stage, Verdict


class StatusSink(Protocol):
    """Receives the verdicts and reports of the core, for conditions, events and ``/debug``."""

    def report_verdict(self, group: GroupKey, verdict: Verdict) -> None:
        """Report the present verdict of a group."""

    def describe_hold(self, group: GroupKey) -> str:
        """Return the text with which filter holds a member: its gang, and why that waits.

        The text must not change with every try, or kube-scheduler writes a new event each time.
        """

    def report_broken(self, group: GroupKey, verdict: Verdict) -> None:
        """Report a gang that has been broken for longer than the grace period."""

    def report_disrupted(self, group: GroupKey, text: str) -> None:
        """Report that members of a gang are deleted because another member was disrupted."""

    def report_preemption(self, group: GroupKey, text: str) -> None:
        """Report that victims are about to be evicted for a gang."""

    def report_victim(self, victim: Victim, text: str) -> None:
        """Report that a pod is about to be evicted for a gang."""

    async def mark_preempted(self, group: GroupKey, text: str) -> None:
        """Write the condition of a group that is about to be evicted as a whole; never raises ApiError."""

    async def unmark_preempted(self, group: GroupKey) -> None:
        """Remove that condition, because some members are not evicted; never raises ApiError."""


_MAX_GROUPS = 10_000
"""The largest number of groups; the one without a milestone for longest is dropped first."""

_MAX_REACHED = 16
"""The largest number of milestones per group."""


class Milestone(StrEnum):
    """A milestone in the life of a group."""

    SEEN = "seen"
    """The scheduler has assessed the group for the first time."""

    QUORUM = "quorum"
    """The quorum of the group exists."""

    PREEMPTING = "preempting"
    """Victims are evicted for the group."""

    PLANNED = "planned"

    STEERED = "steered"
    """Filter has answered the planned node of the first member."""

    AT_BIND = "atBind"
    """The bind call of the first member is open."""

    COMMITTED = "committed"
    """The quorum is at bind."""

    BOUND = "bound"
    """The quorum is bound."""

    GIVEN_UP = "givenUp"
    """The plan was given up."""

    BROKEN = "broken"
    PREEMPTED = "preempted"
    """The group is evicted for a gang, or deleted because one of its members was."""


_MILESTONES = {
    Stage.PREEMPTING: Milestone.PREEMPTING,
    Stage.PLANNED: Milestone.PLANNED,
    Stage.BINDING: Milestone.COMMITTED,
    Stage.BOUND: Milestone.BOUND,
    Stage.BROKEN: Milestone.BROKEN,
    Stage.GIVEN_UP: Milestone.GIVEN_UP,
}

_ONCE_A_ROUND = frozenset({Milestone.STEERED, Milestone.AT_BIND, Milestone.COMMITTED, Milestone.QUORUM})
"""Milestones noted once per round: only the first one after the last plan or loss of the quorum counts."""

_ROUNDS = frozenset({Milestone.PLANNED, Milestone.BROKEN, Milestone.SEEN})
"""Milestones with which a new round begins."""

_BEGINS = frozenset({Milestone.SEEN, Milestone.BROKEN})
"""Milestones from which the time to a bound quorum is measured."""


class Reached(NamedTuple):
    """A milestone, and when it was reached, in seconds since 1970."""

    milestone: Milestone
    at: float


class Timelines:
    """The last milestones of every group, over all terms of this process. ``wall`` gives seconds since 1970."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self.on_bound: Callable[[GroupKey, Sequence[Reached]], None] = lambda _group, _way: None
        """Called when a group's quorum is bound, with its milestones since it was first seen or last broken."""

        self._wall = wall
        self._events: OrderedDict[GroupKey, list[Reached]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._events)

    def of_group(self, group: GroupKey) -> tuple[Reached, ...]:
        """Return the milestones of a group, oldest first; () if none is known."""
        return tuple(self._events.get(group, ()))

    def note_verdict(self, group: GroupKey, verdict: Verdict) -> None:
        """Note the milestones that a group has reached with this verdict."""
        if group not in self._events:
            self.note(group, Milestone.SEEN)
        if verdict.reason.stage not in {Stage.FORMING, Stage.BROKEN}:
            self.note(group, Milestone.QUORUM)
        if verdict.reason.stage in _MILESTONES:
            self.note(group, _MILESTONES[verdict.reason.stage])

    def note(self, group: GroupKey, milestone: Milestone) -> None:
        """Note that a group reaches a milestone now. A milestone already reached in this round is ignored."""
        events = self._events.get(group)
        if events is None:
            events = self._begin(group)
        if events and (events[-1].milestone is milestone or (milestone in _ONCE_A_ROUND and _has(events, milestone))):
            return
        events.append(Reached(milestone, self._wall()))
        if len(events) > _MAX_REACHED:
            del events[2]  # the first two say since when the group is known, and since when it has its quorum
        self._events.move_to_end(group)
        if milestone is Milestone.BOUND:
            self._report_bound(group, events)

    def _report_bound(self, group: GroupKey, events: list[Reached]) -> None:
        begin = max((place for place, event in enumerate(events) if event.milestone in _BEGINS), default=len(events))
        way = events[begin:]
        # A gang that was bound before this process began has no plan here, so there is no time to measure.
        if any(event.milestone is Milestone.PLANNED for event in way):
            self.on_bound(group, way)

    def _begin(self, group: GroupKey) -> list[Reached]:
        events: list[Reached] = []
        self._events[group] = events
        if len(self._events) > _MAX_GROUPS:
            self._events.popitem(last=False)
        return events


def _has(events: list[Reached], milestone: Milestone) -> bool:
    for event in reversed(events):
        if event.milestone is milestone:
            return True
        if event.milestone is Milestone.BROKEN or (event.milestone in _ROUNDS and milestone is not Milestone.QUORUM):
            return False
    return False
