"""The groups that are looked at: what is remembered of each, and which is to be looked at again."""

import asyncio
from collections.abc import Callable

from extender.scheduling.cycle import BindingCycle
from extender.scheduling.group_state import GroupState
from extender.scheduling.status_sink import StatusSink
from serried.cluster.ledger import Ledger
from serried.cluster.members import Members
from serried.cluster.touched import Touched
from serried.metrics import ExtenderMetrics
from serried.model.group import GroupKey
from serried.model.verdict import Reason, Verdict


class Groups:
    """The memory of each group, and whether there is something to look at."""

    def __init__(
        self,
        touched: Touched,
        members: Members,
        ledger: Ledger,
        status: StatusSink,
        clock: Callable[[], float],
        *,
        metrics: ExtenderMetrics,
    ) -> None:
        self.states: dict[GroupKey, GroupState] = {}
        """What is remembered of each group that was looked at."""

        self.changed = asyncio.Event()
        """Set when there is something to look at."""

        self._touched = touched
        self._members = members
        self._ledger = ledger
        self._status = status
        self._clock = clock
        self._metrics = metrics

    def wake(self) -> None:
        """Something changed: look again."""
        self.changed.set()

    def note_news(self) -> None:
        """Cycles hear of the changes of their groups, and of their members, since the last call."""
        for key, uid in self._touched.take_members():
            state = self.states.get(key)
            cycles = (state.cycle if state is not None else None), self.cycle_of(uid)  # a commit outlasts its group
            for cycle in cycles:
                if cycle is not None:
                    cycle.note_news(uid)

    def look_again(self, key: GroupKey) -> None:
        """This group is to be looked at. That is no news of it to its cycle, which knows what has happened in it."""
        self._touched.groups.add(key)
        self.wake()

    def note_return(self, key: GroupKey) -> None:
        """The scheduler asks about a member that is held: a gang that it let wait in vain has its turn at once."""
        state = self.states.get(key)
        if state is not None and state.unattended:
            state.unattended = False
            state.tried = ()
            self.look_again(key)

    def note_study(self, key: GroupKey) -> None:
        """The answer to a study of this group is there: it asks again."""
        state = self.states.get(key)
        if state is not None and state.cycle is not None:
            state.cycle.note_refill(())
        self.look_again(key)

    def say(self, key: GroupKey, verdict: Verdict) -> None:
        """Record and publish how a group stands; the same once more when it has members, for now somebody waits."""
        state = self.states.get(key)
        if state is None:
            return
        has_members = key in self._members
        if state.verdict != verdict or (has_members and not state.had_members):
            self._measure(state, verdict.reason)
            state.verdict = verdict
            state.had_members = has_members
            self._status.say(key, verdict)

    def _measure(self, state: GroupState, reason: Reason) -> None:
        before = state.verdict.reason if state.verdict is not None else None
        if before is reason:
            return
        now = self._clock()
        if before is None or before is Reason.SCHEDULED:
            state.waiting_since = now
        else:
            self._metrics.waited(before.value, now - state.reason_since)
            if reason is Reason.SCHEDULED:
                self._metrics.started(now - state.waiting_since)
        state.reason_since = now

    def cycle_of(self, uid: str) -> BindingCycle | None:
        """The cycle in which a pod has a slot."""
        reservation = self._ledger.of_pod(uid)
        state = self.states.get(reservation.group) if reservation is not None else None
        return state.cycle if state is not None else None
