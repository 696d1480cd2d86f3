"""The interface through which the core reports, and the milestones that each group has reached lately.

The core calls `StatusSink` through ``Context.status``. `Timelines` keeps when each group reached which milestone, in
bounded memory.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from serried.api.names import GroupKey
from serried.api.reservation import Victim
from serried.api.verdict import Stage, Verdict


class StatusSink(Protocol):
    """Receives what the core reports of groups.

    `extender.features.status` implements it, and writes the reports into conditions, events and pages.
    """

    def report_verdict(self, group: GroupKey, verdict: Verdict) -> None:
        """Report the verdict of a group, which replaces the one before."""

    def describe_hold(self, group: GroupKey) -> str:
        """Return the text with which filter's answer holds a member of this group: the gang, and why it waits.

        The text should rarely change, because kube-scheduler writes a new event for each new text.
        """

    def report_broken(self, group: GroupKey, verdict: Verdict) -> None:
        """Report a gang that has had fewer members than its quorum for longer than the grace period."""

    def report_disrupted(self, group: GroupKey, text: str) -> None:
        """Report that Serried deletes members of a gang because another member was disrupted, such as by a drain.

        ``text`` is the message.
        """

    def report_preemption(self, group: GroupKey, text: str) -> None:
        """Report that Serried is about to evict victims for this gang; ``text`` is the message."""

    def report_victim(self, victim: Victim, text: str) -> None:
        """Report that Serried is about to evict a pod for a gang; ``text`` is the message."""

    async def mark_preempted(self, group: GroupKey, text: str) -> None:
        """Write the condition DisruptionTarget into a group all of whose members are about to be evicted.

        ``text`` is its message. Never raises ApiError.
        """

    async def unmark_preempted(self, group: GroupKey) -> None:
        """Remove the condition DisruptionTarget that `mark_preempted` has written into a group.

        Called because some members are not evicted after all.

        Never raises ApiError.
        """


_MAX_GROUPS = 10_000
"""The number of groups whose milestones are kept. The group without a new milestone for longest is dropped first."""

_MAX_REACHED = 16
"""The number of milestones that are kept per group. The first two are kept, then the latest ones."""


class Milestone(StrEnum):
    """A step in the life of a group, for its timeline on the debug pages: from the first pod to the last Binding."""

    SEEN = "seen"
    """Serried has assessed the group for the first time."""

    QUORUM = "quorum"
    """Enough members of the group exist for its quorum."""

    PREEMPTING = "preempting"
    """Serried evicts victims for the group."""

    PLANNED = "planned"
    """The group has a plan, whose slots are reserved."""

    STEERED = "steered"
    """Filter has answered with the node of a slot for the first time since the group was planned."""

    AT_BIND = "atBind"
    """The bind call of the first member is open."""

    COMMITTED = "committed"
    """The bind calls of the whole quorum are open, so its members are being bound."""

    BOUND = "bound"
    """The quorum is bound."""

    GIVEN_UP = "givenUp"
    """The plan was given up before the quorum was bound."""

    BROKEN = "broken"
    """The group ran, and has fewer members than its quorum."""
    PREEMPTED = "preempted"
    """The group is evicted for another gang, or deleted because one of its members was disrupted."""


_MILESTONES = {
    Stage.PREEMPTING: Milestone.PREEMPTING,
    Stage.PLANNED: Milestone.PLANNED,
    Stage.BINDING: Milestone.COMMITTED,
    Stage.BOUND: Milestone.BOUND,
    Stage.BROKEN: Milestone.BROKEN,
    Stage.GIVEN_UP: Milestone.GIVEN_UP,
}
"""The milestone that a group has reached, by the stage of its verdict's reason: e.g. BOUND once it is Scheduled."""

_ONCE_A_ROUND = frozenset({Milestone.STEERED, Milestone.AT_BIND, Milestone.COMMITTED, Milestone.QUORUM})
"""The milestones that are noted at most once per try to bind the quorum (see `_ROUND_BEGINS`)."""

_ROUND_BEGINS = frozenset({Milestone.PLANNED, Milestone.BROKEN, Milestone.SEEN})
"""The milestones with which a new try to bind a group's quorum begins: its plan, or the loss of its last quorum."""

_TIMED_FROM = frozenset({Milestone.SEEN, Milestone.BROKEN})
"""The milestones from the last of which the time is measured until the quorum is bound."""


class Reached(NamedTuple):
    """A milestone, and when it was reached, in seconds since 1970."""

    milestone: Milestone
    at: float


class Timelines:
    """The last milestones of all groups that this process has seen, also in earlier terms.

    ``wall`` returns seconds since 1970.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self.on_bound: Callable[[GroupKey, Sequence[Reached]], None] = lambda _group, _way: None
        """Called when a group's quorum is bound, with its milestones since it was first seen or last broken."""

        self._wall = wall
        self._events: OrderedDict[GroupKey, list[Reached]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._events)

    def of_group(self, group: GroupKey) -> tuple[Reached, ...]:
        """Return the milestones of a group, oldest first; empty if none is known."""
        return tuple(self._events.get(group, ()))

    def note_verdict(self, group: GroupKey, verdict: Verdict) -> None:
        """Note the milestones that a group has reached according to its new verdict."""
        if group not in self._events:
            self.note(group, Milestone.SEEN)
        if verdict.reason.stage not in {Stage.FORMING, Stage.BROKEN}:
            self.note(group, Milestone.QUORUM)
        if verdict.reason.stage in _MILESTONES:
            self.note(group, _MILESTONES[verdict.reason.stage])

    def note(self, group: GroupKey, milestone: Milestone) -> None:
        """Note that a group reaches a milestone now.

        Ignored if the milestone is the group's last one already. Some milestones (`_ONCE_A_ROUND`) are also
        ignored if the group has reached them since it was planned or broken last; QUORUM, since it was broken last.
        """
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
        begin = max(
            (place for place, event in enumerate(events) if event.milestone in _TIMED_FROM), default=len(events)
        )
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
        if event.milestone is Milestone.BROKEN or (
            event.milestone in _ROUND_BEGINS and milestone is not Milestone.QUORUM
        ):
            return False
    return False
