"""How cycles end: given up before anything was sent, over with all members bound, or left to the next leader."""

from collections.abc import Callable, Iterable

from extender.scheduling.activity import SchedulerActivity
from extender.scheduling.cycle import BindingCycle
from extender.scheduling.effects import Outbox, Release
from extender.scheduling.group_state import PREEMPTION_EXCLUSION_SECONDS, GroupState
from extender.scheduling.groups import Groups
from extender.scheduling.queue import Queue
from extender.scheduling.refusals import REFUSAL_SECONDS
from serried.cluster.ledger import Ledger
from serried.cluster.store import Store
from serried.model.backoff import Backoff
from serried.model.plan import PlanRequest
from serried.model.resources import Resources, add, count_slots
from serried.model.verdict import Reason, Verdict
from serried.plan.backoff import backoff

_RETRY_SECONDS = 60.0
_FREE_ATTEMPTS = 3

_PREEMPTION_SECONDS = 30.0
"""The pause after a preemption that was in vain; twice as long after each further one."""

_MAX_DOUBLINGS = 6

_REFUSED_SECONDS = REFUSAL_SECONDS / 2
"""The longest pause after evictions were refused: the next search has to know of them."""

_REJECTED = Backoff(first=10.0, cap=60.0)
"""The pauses after the scheduler had no node for a member beside its mates: each try holds their room for a moment."""

_TELLING_SECONDS = 5.0
"""How long a gang stays with what it hears of victims that have not ended."""


class CycleEndings:
    """Ends cycles. Every method is synchronous."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        groups: Groups,
        queue: Queue,
        *,
        activity: SchedulerActivity,
        outbox: Outbox,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._groups = groups
        self._queue = queue
        self._activity = activity
        self._outbox = outbox
        self._clock = clock

    def abort(self, cycle: BindingCycle, verdict: Verdict) -> None:
        """End a cycle that has not committed: all its waiting calls fail together, everything is given back."""
        size = len(cycle.reservation.slots)
        refused = self._activity.find_refused(cycle)
        unattended = not refused and not any(member.reached for _, member in cycle.list_members())
        self._close(cycle, f"serried: {verdict.reason}")
        gang, now = self._groups.states[cycle.reservation.group], self._clock()
        gang.attempts += 1
        if verdict.reason is Reason.RECORD_FAILED:
            gang.retry_at = gang.not_before = now + backoff(gang.attempts, size)
        elif verdict.reason is Reason.NO_CAPACITY:
            # Each alone finds a node, all together do not: only the scheduler knows when there will be more.
            rejected = gang.rejection is not None
            gang.not_before = now + (_REJECTED.delay(gang.attempts) if rejected else backoff(gang.attempts, size))
        elif verdict.reason is Reason.DEADLINE_EXCEEDED:
            self._put_aside(cycle)
            gang.not_before = now + backoff(gang.attempts, size)
            gang.retry_at = max(gang.not_before, now + _RETRY_SECONDS)
            gang.unattended = unattended
        elif verdict.reason is Reason.PLAN_OUTDATED and gang.attempts > _FREE_ATTEMPTS:
            # Outdated once is bad luck and is planned anew at once; again and again is something that we do not see.
            gang.not_before = now + backoff(gang.attempts - _FREE_ATTEMPTS, size)
        elif verdict.reason is Reason.VICTIMS_REMAIN:
            # It fits no better than before, and that would be all that anybody hears.
            gang.retry_at = gang.not_before = now + _TELLING_SECONDS
        elif verdict.reason is Reason.EVICTION_REFUSED and gang.attempts > _FREE_ATTEMPTS:
            pause = backoff(gang.attempts - _FREE_ATTEMPTS, size)
            gang.not_before = now + min(pause, _REFUSED_SECONDS)
        if cycle.eviction_sent:
            self._pause(gang, cycle, refused if verdict.reason is Reason.DEADLINE_EXCEEDED else frozenset())
        self._groups.say(cycle.reservation.group, verdict)
        self._groups.look_again(cycle.reservation.group)

    def withdraw(self, cycle: BindingCycle, verdict: Verdict) -> None:
        """End a cycle that may have committed, but of which no Binding was sent: it is as if it had not."""
        self._ledger.withdraw(cycle.reservation)
        self.abort(cycle, verdict)

    def finish(self, cycle: BindingCycle) -> None:
        """End a cycle whose members are bound, as far as they still exist; beyond the quorum, as far as they came."""
        gang, refused = self._groups.states[cycle.reservation.group], self._activity.find_refused(cycle)
        in_vain = cycle.eviction_sent and not (cycle.bound and cycle.bound >= cycle.reservation.slots.keys())
        self._close(cycle, "serried: the binding cycle is over")
        if in_vain and not cycle.reservation.need:
            self._pause(gang, cycle, refused)
        elif cycle.eviction_sent or cycle.reservation.committed:
            # Of members that have joined a running gang in free room nothing is learnt.
            gang.failed_preemptions = 0
            gang.taken.clear()
        gang.preemption = None
        gang.attempts = 0 if cycle.bound else gang.attempts + 1
        gang.started = gang.started or bool(cycle.reservation.committed)
        if cycle.reservation.committed:
            gang.forget_rejection()
        self._groups.look_again(cycle.reservation.group)

    def leave(self, cycle: BindingCycle) -> None:
        """End a cycle without a word and without a write: it is the next leader's."""
        uids = cycle.reservation.slots.keys() | _list_nominated(cycle)
        cycle.end("serried: this instance does not lead any more")
        self._detach(cycle)
        self._outbox.put(Release(frozenset(uids)))

    def leave_all(self) -> None:
        """End every cycle like that."""
        for gang in self._groups.states.values():
            if gang.cycle is not None:
                self.leave(gang.cycle)

    def _pause(self, gang: GroupState, cycle: BindingCycle, refused: Iterable[str]) -> None:
        """Nobody is evicted for a gang again and again: each time in vain it waits longer before the next.

        Then others go: not those again after whom the scheduler has tried these members (UIDs) in vain, without a call
        of filter, as its own plugins know more of the node. Of members that it has not tried nothing is learnt.
        """
        now = self._clock()
        pause = _PREEMPTION_SECONDS * 2.0 ** min(gang.failed_preemptions, _MAX_DOUBLINGS)
        gang.failed_preemptions += 1
        gang.no_preemption_before = now + pause
        for uid in refused:
            pod, slot = self._store.pods.get(uid), cycle.reservation.slots.get(uid)
            if pod is not None and slot is not None:
                gang.refuse(pod.shape, slot.node, self._store.nodes)
                gang.note_vain(pod.shape, slot.node, now, self._store.nodes)
        gang.prolong_refusals(now + pause + PREEMPTION_EXCLUSION_SECONDS)
        for node, uids in self._find_taken(cycle).items():
            gang.note_taken(node, uids, self._store.nodes)

    def _find_taken(self, cycle: BindingCycle) -> dict[str, frozenset[str]]:
        """By node, the pods of other schedulers that have come where victims of a cycle ended, if its slots do not fit.

        They are the slots that were planned when the first one was told to end; they have been given back by now. Who
        ran there then has taken nothing.
        """
        pods = self._store.pods
        ending = {pod.node for uid in cycle.reservation.victims if (pod := pods.get(uid)) is not None and pod.bound}
        wanted: dict[str, Resources] = {}
        for uid, slot in cycle.cleared.items():
            member = pods.get(uid)
            if member is not None and member.pending and slot.node not in ending:
                wanted[slot.node] = add(wanted.get(slot.node, {}), dict(member.shape.requests))
        full = {name for name, request in wanted.items() if not self._has_room(name, request)}
        found: dict[str, set[str]] = {}
        for pod in self._store.list_foreign(full):
            if pod.uid not in cycle.foreign:
                found.setdefault(pod.node, set()).add(pod.uid)
        return {name: frozenset(uids) for name, uids in found.items()}

    def _has_room(self, name: str, request: Resources) -> bool:
        node, used = self._store.nodes.get(name), self._store.occupancy.used.get(name, {})
        return node is None or count_slots(node.allocatable, used, request) > 0

    def _put_aside(self, cycle: BindingCycle) -> None:
        waiting = self._store.members.classify(cycle.reservation.group).waiting
        priority = self._store.priorities.find_own(cycle.reservation.group)
        ask = PlanRequest(waiting, 1, cycle.group.topology_key, cycle.pinned, group_priority=priority)
        self._queue.put_aside(cycle.reservation.group, ask)

    def _close(self, cycle: BindingCycle, error: str) -> None:
        nominated = _list_nominated(cycle) | self._list_sent(cycle)
        uids = frozenset(cycle.reservation.slots.keys() | nominated)
        cycle.end(error)
        self._detach(cycle)
        pods = (self._store.pods.get(uid) for uid in nominated - cycle.bound)
        self._outbox.put(Release(uids, tuple(pod for pod in pods if pod is not None and pod.pending)))

    def _list_sent(self, cycle: BindingCycle) -> set[str]:
        """The members that are nominated to their slots, whoever has written it: maybe an earlier term; UIDs."""
        pods, slots = self._store.pods, cycle.reservation.slots
        return {uid for uid, slot in slots.items() if uid in pods and pods[uid].nominated == slot.node}

    def _detach(self, cycle: BindingCycle) -> None:
        key = cycle.reservation.group
        if self._ledger.of_group(key) is cycle.reservation:  # else the next cycle of the group has begun
            self._ledger.unreserve(key)
        gang = self._groups.states.setdefault(key, GroupState(self._clock()))
        if gang.cycle is cycle:
            gang.cycle = None
            gang.not_before = 0.0  # a pause of members that wanted to join it says nothing of the gang


def _list_nominated(cycle: BindingCycle) -> set[str]:
    """The members that may still carry a nomination of ours; UIDs."""
    return {uid for uid, member in cycle.list_members() if member.nominated}
