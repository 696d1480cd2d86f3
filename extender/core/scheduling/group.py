"""The groups that are looked at: what is remembered of each, and which is to be looked at again.

Beside them what is remembered of pods that filter has turned away, of kube-scheduler's signs of work, and of the term
of this instance.

A pod may name a Job or parent that no watch has shown. A watch may be late, refused, or silent without an end, so that
says nothing of the owner: the pod is held until the API server itself has answered that its owner is not there
(`extender.core.binding.effects`).
"""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cachetools import TTLCache

from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.cycle_member import Member, MemberStage
from extender.core.scheduling.refusals import NO_EXCLUSIONS, Cluster, Exclusions, Refusals
from extender.features.status.timeline import StatusSink, Timelines
from serried.api.group import PodGroup, Tree
from serried.api.names import JOB, GroupKey
from serried.api.node import Node
from serried.api.pod import Link, Pod, Shape
from serried.api.verdict import Reason, Verdict
from serried.cluster.cache import Store
from serried.cluster.ledger import Ledger
from serried.ops.metrics import ExtenderMetrics
from serried.plan.eviction import NoVictims, Preemption
from serried.plan.request import PlanRequest, Waiting
from serried.plan.steps import Deadline

_SILENT_SECONDS = 1.0

LONGEST_PREBIND_SECONDS = 900.0
"""How long kube-scheduler may take between filter and bind: bind calls of members that wait for it end then, too."""


def may_try_out(group: PodGroup | None, pod: Pod, store: Store) -> bool:
    """Return whether kube-scheduler schedules the pod's gang itself, so that a call may be about a simulation."""
    native = store.schedules_gangs or (group is not None and group.told_natively)
    return native and pod.link is Link.FIELD


class SchedulerActivity:
    """When kube-scheduler was last seen working, and which members of a cycle it has refused, or assumed.

    A gang's deadline runs only while kube-scheduler could get on with it: a busy one will still come to its members,
    and one that has assumed a member may be preparing its volumes or devices (PreBind), of which nothing is heard.
    ``last_sign`` is the loop time of the last sign of work, 0 for none yet.
    """

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self.last_sign = 0.0
        self._store = store
        self._clock = clock

    def note_call(self) -> None:
        """The scheduler has called filter, for whatever pod: it is busy, and will come to the others."""
        self.last_sign = self._clock()

    def note_pod(self, before: Pod, now: Pod) -> None:
        """The watch shows a change of a pod: where plain pods do not come to filter, it shows that they are seen to."""
        bound = now.bound and not before.bound
        refused = now.unschedulable and not before.unschedulable
        if (bound or refused) and now.scheduler in self._store.schedulers:
            self.note_call()

    def is_silent(self) -> bool:
        """Whether there was no sign for a while."""
        return self._clock() - self.last_sign > _SILENT_SECONDS

    def count_idle(self, cycle: BindingCycle) -> None:
        """Add the time since the last look to the cycle's idle time, but for what kube-scheduler has spent on others.

        All of it counts if kube-scheduler has refused a member without which there is no quorum, or one beyond it. Else
        it is no delay of the gang while kube-scheduler has assumed a member.
        """
        now, refused = self._clock(), self.find_refused(cycle)
        since = max(cycle.idle_counted, cycle.progressed)
        if self._lacks(cycle, refused):
            cycle.count_idle(now, now - since, assumed=False)
        else:
            idle = now - max(since, self.last_sign) if self.is_silent() else 0.0
            cycle.count_idle(now, idle, assumed=self._is_assumed(cycle, refused))

    def _lacks(self, cycle: BindingCycle, refused: Set[str]) -> bool:
        if not refused or cycle.reservation.committed:
            return bool(refused)
        return cycle.reservation.lacks((cycle.reservation.slots.keys() | cycle.bound) - refused)

    def has_assumed(self, cycle: BindingCycle) -> bool:
        """Return whether kube-scheduler is between filter and bind with a member that has a slot."""
        return self._is_assumed(cycle, self.find_refused(cycle))

    def _is_assumed(self, cycle: BindingCycle, refused: Set[str]) -> bool:
        since, slots, pods = self._clock() - LONGEST_PREBIND_SECONDS, cycle.reservation.slots, self._store.pods
        for uid in slots.keys() - refused:
            member, pod = cycle.member(uid), pods.get(uid)
            if member.stage is MemberStage.FILTERED and pod is not None and (member.filtered_at or 0.0) > since:
                return not may_try_out(cycle.group, pod, self._store)
        return False

    def find_refused(self, cycle: BindingCycle, among: Iterable[str] | None = None) -> frozenset[str]:
        """The members that the scheduler has tried in vain, though each has a slot; UIDs, of these if any are named."""
        slots = cycle.reservation.slots
        uids = slots if among is None else [uid for uid in among if uid in slots]
        return frozenset(uid for uid in uids if self._was_refused(cycle, uid, cycle.member(uid)))

    def _was_refused(self, cycle: BindingCycle, uid: str, member: Member) -> bool:
        pod, slot = self._store.pods.get(uid), cycle.reservation.slots.get(uid)
        if pod is None or slot is None:
            return False
        if member.stage is MemberStage.FILTERED:
            # Filter has answered its node, and then others have refused that.
            return bool(pod.said) and (pod.said != member.said or (member.sent and pod.nominated != slot.node))
        if member.stage is not MemberStage.UNSCHEDULABLE:
            return False
        if pod.objection and pod.said != member.said:
            return True  # maybe before its nomination was written, which does not have it tried again then
        # A member that nothing has told the scheduler to try again is put aside, not refused, and so is one whose
        # nomination still stands: the scheduler erases it when it has tried in vain.
        return (member.nominated or member.missed) and pod.nominated != slot.node


_PAUSE_SECONDS = 30.0
"""The pause before the API server is asked again, after an answer that lets somebody wait on."""


class Waiter(NamedTuple):
    """Who waits: all pods of one owner, or one pod whose labels do not say which owner of the name is its own."""

    owner: str
    """The UID of the owner, "" where only the pod is known."""

    pod: str = ""
    """The UID of that pod. It was made after its owner, so whatever owner of the name exists may be the one."""

    def has_lost(self, found: str) -> bool:
        """Whether its owner does not exist, where the owner of this name has the UID ``found``, "" for none."""
        return not found or bool(self.owner and self.owner != found)


def find_waiter(key: GroupKey, pod: Pod) -> Waiter:
    """As what a pod waits under this key of its owner."""
    if key.kind == JOB:
        uid = pod.owner.uid if pod.owner is not None else ""
    else:
        uid = pod.place.uid if pod.place is not None else ""
    return Waiter(uid) if uid else Waiter("", pod.uid)


class AwaitedOwner:
    """What is known of one such owner. Times are loop seconds; ``patience`` is how long it may be late.

    An owner of the same name that was deleted before, or is made later, is another one: each pod waits for its own.
    """

    def __init__(self, patience: float) -> None:
        self.doubt = ""
        """Why those who have waited long enough wait on, a phrase; "" before the API server was asked."""

        self._patience = patience

        self._since: dict[Waiter, float] = {}
        """Since when each was seen that waits."""

        self._lost: set[Waiter] = set()
        """Those whose owner does not exist."""

        self._next = -math.inf
        """When the API server may be asked again: not before the last question is over, however long it takes."""

    def is_due(self, now: float) -> bool:
        """Whether somebody has waited long enough, so that the API server may be asked."""
        return now >= self._next and any(now - since > self._patience for since in self._since.values())

    def is_lost(self, key: GroupKey, pod: Pod) -> bool:
        """Whether the owner of a pod, which waits under this key, does not exist."""
        return bool(self._lost) and find_waiter(key, pod) in self._lost

    def ask(self, key: GroupKey, members: Sequence[Pod], now: float) -> frozenset[Waiter]:
        """Follow the pods that there are; for whom the API server is to be asked now, nobody if it is not."""
        self._lost &= {find_waiter(key, pod) for pod in members}
        waiting = {find_waiter(key, pod): None for pod in members if pod.pending}
        self._since = {each: self._since.get(each, now) for each in waiting if each not in self._lost}
        if not self.is_due(now):
            return frozenset()
        self._next = math.inf
        return frozenset(each for each, since in self._since.items() if now - since > self._patience)

    def note_found(self, asked: Set[Waiter], found: str, now: float) -> None:
        """The API server has an owner of this name with the UID ``found``, "" if it has none."""
        lost = {each for each in asked if each.has_lost(found)}
        self._lost |= lost
        self._since = {each: since for each, since in self._since.items() if each not in lost}
        self._note(now, "it exists, and no watch has shown it yet" if asked - lost else "")

    def note_unknown(self, why: str, now: float) -> None:
        """The API server has not said whether the owner exists."""
        self._note(now, f"cannot tell whether it exists: {why}")

    def _note(self, now: float, doubt: str) -> None:
        self.doubt = doubt
        self._next = now + _PAUSE_SECONDS


@dataclass(slots=True)
class Search:
    """A gang that was refused, for which victims may be looked for."""

    ask: PlanRequest
    waiting: Waiting
    refusal: Verdict

    opens_at: float
    """From when it may try a wider level, in loop seconds; infinite if none is left."""

    runs: bool = False
    """Whether victims are being looked for."""

    again_at: float | None = None
    """From when freed room leads to another search after one in vain, in loop seconds; None before any."""

    deadline: Deadline = field(default_factory=Deadline)
    restarts: int = 0

    freed: tuple[int, ...] = ()
    """How often room of each kind had been freed when it was refused."""

    taken: int = 0
    """On how many nodes pods of other schedulers have the room that was made for it: nobody else is to end there."""

    finding: str = ""
    """What was found for it, a phrase; "" if nothing was yet, or it says nothing to whoever waits."""

    asked: PlanRequest | None = None
    """The question that was refused, with no node closed but those that were to it: what the refusal's numbers are of.

    None if it is ``ask``.
    """

    def tell(self) -> Verdict:
        """The refusal, and what was found."""
        others = "pods of another scheduler have the room that others left for it, so nobody else goes there"
        taken = f"on {self.taken} nodes {others}" if self.taken else ""
        return replace(self.refusal, detail=", ".join(filter(None, (self.refusal.detail, self.finding, taken))))


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


@dataclass(slots=True)
class GroupState:
    """The memory of one group. Times are loop seconds.

    ``started`` is whether its quorum has ever stood, as far as can be told; ``stood`` its tree when we saw that.
    ``assigned_domain`` is where its members run: it outlasts nodes that are gone. ``broken_since`` is when it fell
    below its quorum, ``reported`` whether that was told, ``evicting`` whether what is left of it is being evicted.
    """

    first_seen: float
    verdict: Verdict | None = None

    had_members: bool = False
    """Whether it had members when the verdict was said last."""

    awaited: AwaitedOwner | None = None
    """What is known of the owner while no watch has shown it."""

    reason_since: float = 0.0
    """Since when the verdict has its reason."""

    waiting_since: float = 0.0
    """Since when it is not Scheduled."""

    quorum_since: float | None = None
    """Since when its members are enough, as far as their creation times tell; None if they are not."""

    hindered: float = -math.inf
    """When it was seen last that more than members was missing: their creation times say nothing of that."""

    cycle: BindingCycle | None = None

    entry: QueueEntry = field(default_factory=QueueEntry)
    """When it is planned again."""

    refusals: Refusals = field(default_factory=Refusals)
    """The refusals of kube-scheduler and of kubelets that the group has met."""

    started: bool = False
    stood: Tree | None = None
    assigned_domain: str = ""
    broken_since: float | None = None
    reported: bool = False
    evicting: bool = False

    search: Search | None = None
    """For whom victims may be looked for, since it was refused last; None while it does not wait for room."""

    preemption: Preemption | NoVictims | None = None
    """What the last search for victims has found."""

    disrupted: set[str] = field(default_factory=set)
    """The UIDs of members that somebody disrupts, or that go with one: what was to follow has followed."""

    leaving: set[str] = field(default_factory=set)
    """The UIDs of those of them that are being ended together, until they are gone or it is given up."""

    def end_term(self) -> None:
        """Another instance may lead from now on; what that one does and says, nobody here sees."""
        self.verdict = None  # it may not be told yet
        self.awaited = None  # it may come, and go, unseen
        self.quorum_since = None  # it may break, and stand again
        self.entry.ask_again()  # else a gang that waits would not be planned when our turn comes again, nor told of
        # Who was to be ended may not be yet, and nobody goes on with it: it follows again.
        self.disrupted.clear()
        self.leaving.clear()

    def find_exclusions(self, pods: Collection[Pod], now: float, cluster: Cluster) -> Exclusions:
        """Return the nodes that are closed to these members by what was refused."""
        return self.refusals.find_exclusions(pods, now, cluster) if self.refusals.closed else NO_EXCLUSIONS

    def unoffered(self, pods: Iterable[Pod], now: float, nodes: Mapping[str, Node]) -> frozenset[str]:
        """Return the nodes that kube-scheduler has offered to none of these members; none while that is not known."""
        return self.refusals.unoffered(pods, now, nodes) if self.refusals.offers else frozenset()

    def find_rejection(self, waiting: Iterable[Pod], now: float, cluster: Cluster) -> str:
        """Return why the gang cannot run whatever room there is, a phrase; "" if nothing (more) is known of that.

        A rejection that has ended has the gang planned again.
        """
        if self.refusals.rejection is None:
            return ""
        found = self.refusals.find_rejection(waiting, now, cluster)
        if not found:
            self.entry.ask_again()
        return found

    def learn_offer(self, shape: Shape, names: Iterable[str], now: float) -> bool:
        """Note that kube-scheduler has these nodes, and no others, for a class. Return whether one is new.

        A new node ends the rest after a rejection.
        """
        offered = frozenset(names)
        rested = self.cycle is None and self.refusals.try_new_nodes(offered)
        if rested:
            self.entry.end_backoff()
        return self.refusals.learn_offer(shape, offered, now) or rested


@dataclass(frozen=True, slots=True)
class Repair:
    """What of a gang is being repaired."""

    replacements: tuple[Pod, ...] = ()
    """The members that take their kept slots alone, without a quorum: with the gang that runs, they are its quorum.

    A replacement that finds no room in its own slot is a member like any other.
    """

    fitting: frozenset[str] = frozenset()
    """The UIDs of all members whose own kept slot takes them now, so that the queue need not wake them for room."""


NO_REPAIR = Repair()
"""Nothing is to be repaired."""


@dataclass(slots=True, eq=False)
class Groups:
    """The memory of each group, and whether there is something to look at."""

    _store: Store
    _ledger: Ledger
    _status: StatusSink
    _timelines: Timelines
    _clock: Callable[[], float]
    _metrics: ExtenderMetrics

    states: dict[GroupKey, GroupState] = field(default_factory=dict, init=False)
    """What is remembered of each group that was looked at."""

    cleared: dict[GroupKey, BindingCycle] = field(default_factory=dict, init=False)
    """The cycles for which others went, and whose members are tried in an order: they carry no nominations."""

    changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when there is something to look at."""

    held: "HeldPods" = field(init=False)
    """The pods that filter has turned away."""

    activity: SchedulerActivity = field(init=False)
    """When kube-scheduler was seen at work last."""

    def __post_init__(self) -> None:
        self.held = HeldPods(self._store.pods)
        self.activity = SchedulerActivity(self._store, self._clock)

    def wake(self) -> None:
        """Something changed: look again."""
        self.changed.set()

    def note_news(self) -> None:
        """Cycles hear of the changes of their groups, and of their members, since the last call."""
        for key, uid in self._store.dirty.take_members():
            state = self.states.get(key)
            cycles = (state.cycle if state is not None else None), self.cycle_of(uid)  # a commit outlasts its group
            for cycle in cycles:
                if cycle is not None:
                    cycle.note_news(uid)

    def look_again(self, key: GroupKey) -> None:
        """This group is to be looked at. That is no news of it to its cycle, which knows what has happened in it."""
        self._store.dirty.groups.add(key)
        self.wake()

    def is_due(self, state: GroupState) -> bool:
        """Whether a time has come for which a gang waits. Once: who cannot be planned then waits for a change."""
        now = self._clock()
        rested = state.entry.pop_backoff(now)
        if rested and state.cycle is not None:
            state.cycle.note_refill(())
        again = state.cycle is None and state.entry.pop_retry(now)
        return rested or again

    def note_return(self, key: GroupKey) -> None:
        """The scheduler asks about a member that is held: a gang that it let wait in vain has its turn at once."""
        state = self.states.get(key)
        if state is not None and state.entry.pop_unattended():
            self.look_again(key)

    def note_task(self, key: GroupKey) -> None:
        """The answer to a planning task of this group is there: it asks again."""
        state = self.states.get(key)
        if state is not None and state.cycle is not None:
            state.cycle.note_refill(())
        self.look_again(key)

    def say(self, key: GroupKey, verdict: Verdict) -> None:
        """Record and publish how a group stands; the same once more when it has members, for now somebody waits."""
        state = self.states.get(key)
        if state is None:
            return
        has_members = key in self._store.members
        if state.verdict != verdict or (has_members and not state.had_members):
            self._measure(state, key.namespace, verdict.reason)
            state.verdict = verdict
            state.had_members = has_members
            self._timelines.take(key, verdict)
            self._status.say(key, verdict)

    def _measure(self, state: GroupState, namespace: str, reason: Reason) -> None:
        before = state.verdict.reason if state.verdict is not None else None
        if before is reason:
            return
        now = self._clock()
        if before is None or before is Reason.SCHEDULED:
            state.waiting_since = now
        else:
            self._metrics.waited(before.value, now - state.reason_since)
            if reason is Reason.SCHEDULED:
                self._metrics.started(now - state.waiting_since, namespace)
        state.reason_since = now

    def drop_ended_cleared(self) -> None:
        """Forget those of ``cleared`` that go on no more."""
        for key, cycle in [*self.cleared.items()]:
            if key not in self.states or self.states[key].cycle is not cycle:
                del self.cleared[key]

    def cycle_of(self, uid: str) -> BindingCycle | None:
        """The cycle in which a pod has a slot."""
        reservation = self._ledger.of_pod(uid)
        state = self.states.get(reservation.group) if reservation is not None else None
        return state.cycle if state is not None else None


_STRANGER_SECONDS = 360.0
"""How long a pod that is not known is remembered.

Longer than kube-scheduler leaves a pod alone (5 minutes, looked at every 30 s): it asks again before that.
"""

_MAX_STRANGERS = 50_000


class HeldPods:
    """The pods that filter has turned away, by UID, so that those which turn out to need no gang can be woken.

    A pod that our watch does not show is a stranger: the watch may be late, or the pod gone. It is remembered until
    kube-scheduler would have asked about it again by itself; of too many, the oldest are forgotten. ``len`` and
    iteration are over the pods that are known. ``pods`` is the Store's own map.
    """

    def __init__(self, pods: Mapping[str, Pod]) -> None:
        self._pods = pods
        self._known: dict[str, None] = {}
        self._now = 0.0
        self._strangers: TTLCache[str, None] = TTLCache(_MAX_STRANGERS, _STRANGER_SECONDS, timer=lambda: self._now)

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __contains__(self, uid: str) -> bool:
        return uid in self._known or uid in self._strangers

    def note(self, uid: str, now: float) -> None:
        """Filter has turned this pod away at this time."""
        self._now = now
        self._strangers.pop(uid, None)
        (self._known if uid in self._pods else self._strangers)[uid] = None

    def forget(self, uid: str) -> bool:
        """This pod is held no longer; whether it was."""
        # Asked for each filter answer, when nearly always nobody is a stranger: a pop would look at the clock first.
        was_stranger = self._strangers.currsize > 0 and self._strangers.pop(uid, "") is None
        return was_stranger or self._known.pop(uid, "") is None

    def needs_activation(self, pod: Pod) -> bool:
        """Whether the scheduler has put a pod aside, and tries it again only when a write of ours wakes it."""
        return pod.unschedulable or pod.uid in self

    def review(self, now: float) -> None:
        """Keep only pods that may still be waiting; strangers that the watch has shown meanwhile are known now."""
        self._now = now
        for uid in [uid for uid in self._strangers if uid in self._pods]:
            del self._strangers[uid]
            self._known[uid] = None
        self._known = {uid: None for uid in self._known if uid in self._pods and self._pods[uid].pending}


class Term:
    """One term after the other. ``holds_lease`` is asked whether the term has not run out by now."""

    def __init__(self, holds_lease: Callable[[], bool]) -> None:
        self.holds_lease = holds_lease

        self.active = False
        """Whether this term looks at groups at all."""

        self.recovering = False
        """Whether it is just taking over what earlier terms have left."""

        self.obstacle = ""
        """Why it cannot plan any group yet, a phrase; "" for no reason."""

    def leads(self) -> bool:
        """Whether this instance may write at this moment."""
        return (self.active or self.recovering) and self.holds_lease()

    @property
    def plans(self) -> bool:
        """Whether groups are looked at, and planned."""
        return self.active and not self.obstacle

    def end(self) -> None:
        """Another instance may lead from now on."""
        self.active = False
        self.recovering = False
        self.obstacle = ""
