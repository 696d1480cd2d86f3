"""Whom the scheduler tells what it has decided, and of that the last milestones of each group, in bounded memory."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from serried.api.names import GroupKey
from serried.api.reservation import Victim
from serried.api.verdict import Stage, Verdict


class StatusSink(Protocol):
    """Where verdicts go: condition, event, ``/debug``."""

    def say(self, group: GroupKey, verdict: Verdict) -> None:
        """The group stands like this now."""

    def describe_hold(self, group: GroupKey) -> str:
        """What a held member is told: whose gang it is, and why that waits. It may not change with every try."""

    def report_broken(self, group: GroupKey, verdict: Verdict) -> None:
        """The gang has been broken for longer than the grace."""

    def report_disrupted(self, group: GroupKey, text: str) -> None:
        """Members of the gang are ended because one of them was disrupted."""

    def report_preemption(self, group: GroupKey, text: str) -> None:
        """Others are about to be evicted for the gang."""

    def report_victim(self, victim: Victim, text: str) -> None:
        """A pod is about to be evicted for a gang."""

    async def mark_preempted(self, group: GroupKey, text: str) -> None:
        """Write first of all that one group is evicted as a whole for a gang; never raises ApiError."""

    async def unmark_preempted(self, group: GroupKey) -> None:
        """Take that back, as some of it stays; never raises ApiError."""


_MAX_GROUPS = 10_000
"""How many groups are remembered; the one of which nothing was heard for longest is forgotten first."""

_MAX_REACHED = 16
"""How many milestones of a group are."""


class Milestone(StrEnum):
    """A milestone in the life of a group."""

    SEEN = "seen"
    """It was looked at for the first time."""

    QUORUM = "quorum"
    """Its quorum exists."""

    PREEMPTING = "preempting"
    """Others are ended for it."""

    PLANNED = "planned"

    STEERED = "steered"
    """The first member was sent to its node."""

    AT_BIND = "atBind"
    """The first member is at its bind call."""

    COMMITTED = "committed"
    """The quorum is at bind."""

    BOUND = "bound"
    """The quorum is bound."""

    GIVEN_UP = "givenUp"
    """A plan led to nothing."""

    BROKEN = "broken"
    PREEMPTED = "preempted"
    """It ends for others, or goes with a member that does."""


_MILESTONES = {
    Stage.PREEMPTING: Milestone.PREEMPTING,
    Stage.PLANNED: Milestone.PLANNED,
    Stage.BINDING: Milestone.COMMITTED,
    Stage.BOUND: Milestone.BOUND,
    Stage.BROKEN: Milestone.BROKEN,
    Stage.GIVEN_UP: Milestone.GIVEN_UP,
}

_ONCE_A_ROUND = frozenset({Milestone.STEERED, Milestone.AT_BIND, Milestone.COMMITTED, Milestone.QUORUM})
"""Milestones of which only the first after the last plan, or the last loss of the quorum, counts."""

_ROUNDS = frozenset({Milestone.PLANNED, Milestone.BROKEN, Milestone.SEEN})


_BEGINS = frozenset({Milestone.SEEN, Milestone.BROKEN})
"""Milestones at which a way to a bound quorum begins."""


class Reached(NamedTuple):
    """A milestone, and when it was reached, in seconds since 1970."""

    milestone: Milestone
    at: float


class Timelines:
    """The last milestones of every group. ``wall`` gives seconds since 1970."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self.on_bound: Callable[[GroupKey, Sequence[Reached]], None] = lambda _group, _way: None
        """Called when a group's quorum is bound, with its milestones since it was first seen, or broken."""

        self._wall = wall
        self._events: OrderedDict[GroupKey, list[Reached]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._events)

    def of_group(self, group: GroupKey) -> tuple[Reached, ...]:
        """The milestones of a group, the oldest first."""
        return tuple(self._events.get(group, ()))

    def take(self, group: GroupKey, verdict: Verdict) -> None:
        """A group stands like this now: note the milestones that this means."""
        if group not in self._events:
            self.note(group, Milestone.SEEN)
        if verdict.reason.stage not in {Stage.FORMING, Stage.BROKEN}:
            self.note(group, Milestone.QUORUM)
        if verdict.reason.stage in _MILESTONES:
            self.note(group, _MILESTONES[verdict.reason.stage])

    def note(self, group: GroupKey, milestone: Milestone) -> None:
        """A group reaches a milestone now; one that it has reached already in this round is no news."""
        events = self._events.get(group)
        if events is None:
            events = self._begin(group)
        if events and (events[-1].milestone is milestone or (milestone in _ONCE_A_ROUND and _has(events, milestone))):
            return
        events.append(Reached(milestone, self._wall()))
        if len(events) > _MAX_REACHED:
            del events[2]  # the first ones say since when it is known, and complete
        self._events.move_to_end(group)
        if milestone is Milestone.BOUND:
            self._report_bound(group, events)

    def _report_bound(self, group: GroupKey, events: list[Reached]) -> None:
        begin = max((place for place, event in enumerate(events) if event.milestone in _BEGINS), default=len(events))
        way = events[begin:]
        # A gang that was bound when this process began has no way that anybody has seen.
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
