"""The stage of a binding cycle in which others end for its gang: dry runs, conditions, evictions, and the wait.

The record names the victims before anything is done to them. What holds at each await from there:

- before the first eviction: nothing has happened to anybody; the cycle may be given up, a restart begins anew, also
  when it finds the conditions on all of them: budgets are asked, and the plan is judged, as it is then;
- after it: a restart finds one that ends or is gone, and that all who are left say that they end: it goes on with
  them. Each eviction has the pod's UID as precondition, so none is evicted twice, and none that was made anew under
  its name;
- a member that is deleted after it leaves its slot to the one that comes in its place. Until that one has come, and the
  record names it, nobody else is evicted. A restart before that finds no quorum, and lets off who is left;
- of members beyond the quorum all have to be there for that; if nobody comes in the place of one, those that are not
  evicted by then stay, and the others get what room there is;
- whoever evicts for a gang that is gone by then stops: what was evicted by then has ended in vain, nobody else does.

When evictions are written, Events of type Normal wait: each victim has one, and the gang waits for its room.

Meanwhile the slots are claimed beside what the victims still use, so no other plan finds room there (`Ledger`).
"""

import asyncio
import logging
import math
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum

from extender.core.parts import Parts
from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.effects import WriteBurst
from extender.core.scheduling.permit import Permit
from extender.core.timeline import Milestone
from extender.evictions import Rehearsal, find_running, mark, unmark
from extender.features.preemption.units import Units
from extender.options import Method
from serried.api.names import PREEMPTED, GroupKey
from serried.api.pod import Pod
from serried.api.reservation import Reservation, Victim, describe_end, name_some
from serried.api.verdict import Reason, Verdict
from serried.kube.errors import ApiError, BudgetRefusal, Conflict, Fenced, NotFound
from serried.kube.many import do_each
from serried.kube.wire import PODS
from serried.ops.log import name_group

log = logging.getLogger(__name__)

_AFTERMATH_SECONDS = 2.0
"""How long Events give way beyond the last eviction, or the last end: the members of the gang are to be bound."""

_LONGEST_SECONDS = 30.0
"""How long Events wait at the most, whoever is evicted for whom meanwhile."""

_BIND_SECONDS = 120.0
"""How long bind calls may be open while victims end: they are open while the others gather, too (15 minutes in all)."""

_REPLACEMENT_SECONDS = 30.0
"""How long those who were evicted for a gang are not in vain yet though a member was deleted: another one may come."""

_RETRY_SECONDS = 5.0
"""The pause after which victims are looked at anew that were not evicted."""

_KEPT_OFF = Verdict(Reason.PLAN_OUTDATED, detail="other pods or volumes keep members off their nodes by now")
_FULL = Verdict(Reason.PLAN_OUTDATED, detail="the room beside its victims was taken, or has gone")


class Preempting:
    """Runs the stage. ``clock`` gives loop seconds."""

    def __init__(self, parts: Parts, units: Units) -> None:
        context = parts.context
        self.eviction_writes = WriteBurst(context.clock, _AFTERMATH_SECONDS, _LONGEST_SECONDS)
        """The time in which it writes, and in which one victim after the other ends."""

        self._client = parts.client
        self._store = context.store
        self._term = context.term
        self._nominator = parts.nominator
        self._records = parts.records
        self._permit = Permit(context)
        self._reassignments = parts.reassignments
        self._units = units
        self._method = context.options.preempt_by
        self._status = context.status
        self._timelines = context.timelines
        self._metrics = context.metrics
        self._clock = context.clock
        self._timeout_seconds = context.options.preemption_timeout_seconds

    async def run(self, cycle: BindingCycle) -> Verdict | None:
        """Have the victims of a cycle end; None when none is left, or it is over, else why it is given up."""
        reservation = cycle.reservation
        rehearsal = Rehearsal(self._client, self._store, self._method)
        pending = _PendingPreemption(cycle, list(reservation.victims.values()), rehearsal, set(reservation.slots))
        try:
            with self.eviction_writes:
                refusal = await self._prepare(pending)
            refusal = refusal or await self._end_all(pending)
        except Exception:
            await self._take_back(pending.told, pending.whole, pending.find_going())
            raise
        await self._take_back(pending.told, pending.whole, pending.find_going())
        if self._term.leads():
            outcome = "Withdrawn" if cycle.over else "Cleared"
            self._metrics.preemption_ended(outcome if refusal is None else refusal.reason.value)
        return refusal

    async def let_off(self, reservation: Reservation) -> None:
        """Nobody is evicted (any more) for a reservation of an earlier term: take back what that one has said."""
        self._store.pending_victims.remove(reservation.victims)
        marked = self._list_marked(reservation.victims.values())
        await self._take_back(marked, self._store.disruption_groups.list_whole({victim.uid for victim in marked}))

    async def let_off_forgotten(self) -> None:
        """Take back what earlier terms have said of pods that are in no record: that went with the gang it was for.

        To be called when all records are held, and before anybody is planned. Who could not be told stays, too: nobody
        follows one that does not end, and kube-controller-manager takes conditions back that are two minutes old.
        """
        pods = (pod for pod in self._store.pods.values() if pod.says_victim and pod.bound and not pod.deleting)
        left = [Victim(pod.uid, pod.namespace, pod.name) for pod in pods if pod.uid not in self._store.pending_victims]
        await self._take_back(left, self._store.disruption_groups.list_whole({victim.uid for victim in left}))

    async def _prepare(self, pending: "_PendingPreemption") -> Verdict | None:
        """All that comes before the first eviction; why there is none."""
        await pending.rehearsal.prepare()
        begun = self._has_begun(pending)
        if not begun:
            if pending.cycle.taken_up:
                self._tell(pending, self._list_marked(pending.victims))  # the earlier term has said it of these
            refusal = await self._rehearse(pending) or self._judge_plan(pending)
            if refusal is not None or self._is_over(pending.cycle):
                return refusal
        self._tell(pending, pending.victims)
        await self._announce(pending)
        refusal = None if begun else self._judge_plan(pending)
        if refusal is None:
            pending.cycle.note_eviction_sent(self._store.list_foreign(pending.cycle.reservation.nodes))
            # Whoever ends first leaves room at once: the scheduler is to keep others off it while the last ones go.
            self._nominator.nominate_all(pending.cycle)
        return refusal

    async def _end_all(self, pending: "_PendingPreemption") -> Verdict | None:
        cycle = pending.cycle
        deadline = self._clock() + self._find_longest_grace(pending.victims) + self._timeout_seconds
        running = len(pending.victims)
        while not self._is_over(cycle):
            cycle.changed.clear()  # before the look: what ends during the writes below is not waited for
            left = self._list_left(pending)
            if len(left) < running:
                running = len(left)
                self.eviction_writes.prolong()
            if not left and not self._is_short(cycle):
                return None
            late = bool(left) and self._clock() > deadline
            refusal = None if self._awaits_replacements(cycle) else self._judge(cycle)
            if refusal is not None or late:
                return refusal or _describe_rest(pending.victims, left)
            if cycle.reached is not None and self._clock() > cycle.reached + _BIND_SECONDS:
                cycle.close_calls("serried: others have to end first, and take their time; it is tried again")
            begun = bool(pending.again)
            refusal = await self._go_on(pending, left)
            if refusal is not None:
                return refusal
            if not begun and not self._is_over(cycle):
                # The scheduler has cleared the nominations of those that it tried while nobody ended on their nodes.
                self._nominator.nominate_all(cycle)
            await self._wait(cycle)
        return None

    async def _go_on(self, pending: "_PendingPreemption", left: Iterable[Victim]) -> Verdict | None:
        """Evict who is due, but only for a gang that is there to be bound, and of which a restart would know that.

        Why nobody else is to go: the slots would not do any more.
        """
        if pending.is_ready():
            if due := self._list_due(pending, left):
                if self._is_full(pending.cycle):
                    return _FULL
                with self.eviction_writes:
                    await self._end_due(pending, due)
        elif not (pending.cycle.out_of_reach() or pending.is_recorded()):
            await self._record(pending)
        return None

    def _list_due(self, pending: "_PendingPreemption", left: Iterable[Victim]) -> list[Victim]:
        now = self._clock()
        due = [victim for victim in left if now >= pending.again.get(victim.uid, 0.0)]
        # Node by node: whose node is free goes to bind, and the scheduler tries it no more.
        return sorted(due, key=self._find_node)

    async def _end_due(self, pending: "_PendingPreemption", due: Sequence[Victim]) -> None:
        now = self._clock()
        ended = await do_each(due, lambda victim: self._end(pending, victim))
        for victim, end in zip(due, ended, strict=True):
            pending.again[victim.uid] = now + _RETRY_SECONDS if end is _End.REFUSED else math.inf
        # The API server has put a reason of its own into the condition (EvictionByEvictionAPI); by ours
        # kube-scheduler knows that the pod ends for a nominated one
        # (pkg/scheduler/framework/preemption/preemption.go: PodTerminatingByPreemption). Most are gone by now.
        text = describe_end(pending.group)
        evicted = [victim for victim, end in zip(due, ended, strict=True) if end is _End.EVICTED]
        await do_each(evicted, lambda victim: self._mark_ending(victim, text))

    # --- readings ----------------------------------------------------------------------------------------------

    def _is_over(self, cycle: BindingCycle) -> bool:
        return cycle.over or not self._term.leads()

    def _list_left(self, pending: "_PendingPreemption") -> list[Victim]:
        """Those that have not ended; for lost members beyond the quorum, whom nobody replaces, nobody else is to."""
        left = [victim for victim in pending.victims if self._runs(victim)]
        cycle = pending.cycle
        if cycle.reservation.need or not cycle.list_lost() or not self._is_late(cycle):
            return left
        going = pending.find_going()
        return [victim for victim in left if victim.uid in going or self._find(victim) is None]

    def _runs(self, victim: Victim) -> bool:
        """Whether a victim still uses its node: also while it ends."""
        pod = self._store.pods.get(victim.uid)
        return pod is not None and pod.bound

    def _find_node(self, victim: Victim) -> str:
        pod = self._store.pods.get(victim.uid)
        return pod.node if pod is not None else ""

    def _find_longest_grace(self, victims: Iterable[Victim]) -> int:
        """The longest that any of those that are there has for its end, in seconds."""
        pods = (self._store.pods.get(victim.uid) for victim in victims)
        return max((pod.grace for pod in pods if pod is not None), default=0)

    def _find(self, victim: Victim) -> Pod | None:
        return find_running(self._store.pods, victim)

    def _has_begun(self, pending: "_PendingPreemption") -> bool:
        """Whether an earlier term may have evicted some of them already.

        All of them have said so before the first one is evicted. A condition on some may be kube-scheduler's, or of a
        term that evicted nobody; so may it be on all of them, as long as all of them run and nobody ends them.
        """
        left = [pod for victim in pending.victims if (pod := self._find(victim)) is not None]
        gone = len(left) < len(pending.victims)
        return pending.cycle.taken_up and gone and all(pod.disruption == PREEMPTED for pod in left)

    def _list_marked(self, victims: Iterable[Victim]) -> list[Victim]:
        """Those that say that they are preempted."""
        pods = ((victim, self._store.pods.get(victim.uid)) for victim in victims)
        return [victim for victim, pod in pods if pod is not None and pod.disruption == PREEMPTED]

    def _judge(self, cycle: BindingCycle) -> Verdict | None:
        if cycle.over:
            return None
        if self._permit.find_group(cycle) is None:
            return Verdict(Reason.POD_GROUP_MISSING)
        if self._is_short(cycle):
            return Verdict(Reason.PLAN_OUTDATED, detail="planned members were deleted, or have lost their slots")
        return None

    def _is_short(self, cycle: BindingCycle) -> bool:
        """Whether too few members are left for the quorum, and the tree does not stand without their PodGroup."""
        return cycle.out_of_reach() and not self._reassignments.drop_parts(cycle, cycle.reservation.slots)

    def _awaits_replacements(self, cycle: BindingCycle) -> bool:
        """Whether the quorum lacks members that were deleted after the first eviction, and others may come for them."""
        if not cycle.freed_slots or not self._is_short(cycle):
            return False
        return not self._is_late(cycle) and self._permit.find_group(cycle) is not None

    def _is_late(self, cycle: BindingCycle) -> bool:
        """Whether nobody is expected any more in the place of members that were deleted; of others nobody ever is."""
        return self._clock() > cycle.freed_at + _REPLACEMENT_SECONDS

    def _judge_plan(self, pending: "_PendingPreemption") -> Verdict | None:
        """Why the first victim must not go: the slots would not do, somebody has joined them, or others wait for it.

        Of members beyond the quorum all slots have to do: each victim goes for one of them. No gang breaks for these.
        """
        cycle = pending.cycle
        refusal = self._judge(cycle)
        if refusal is not None or cycle.over:
            return refusal
        is_full = self._is_full(cycle)
        if is_full or self._permit.breaks_rules(cycle):
            return _FULL if is_full else _KEPT_OFF
        if not cycle.reservation.need:
            if cycle.reservation.slots.keys() != pending.recorded or cycle.list_lost():
                return Verdict(Reason.PLAN_OUTDATED, detail="planned members were deleted, or have lost their slots")
            if self._units.breaks(cycle.reservation.victims):
                return Verdict(Reason.PLAN_OUTDATED, detail="a gang cannot spare its members any more")
        if self._have_joined(pending.victims):
            return Verdict(Reason.PLAN_OUTDATED, detail="a group that would go whole has grown")
        contest = self._units.find_contest({self._find_node(victim) for victim in pending.victims})
        return Verdict(Reason.PLAN_OUTDATED, detail=contest) if contest else None

    def _is_full(self, cycle: BindingCycle) -> bool:
        """Whether too few slots for the quorum would do, if all victims had ended; beyond it, not all of them."""
        reservation = cycle.reservation
        fit = {uid for uid in reservation.slots if self._permit.find_misfit(cycle, uid) is None}
        if not reservation.need:
            return len(fit) < len(reservation.slots)
        return reservation.lacks(fit) and reservation.lacks(fit | cycle.bound)

    def _have_joined(self, victims: Iterable[Victim]) -> bool:
        """Whether members run that would have to go whole with victims, and are none."""
        uids = {victim.uid for victim in victims if victim.group}
        disruption_groups = {
            disruption_group
            for uid in uids
            if (disruption_group := self._store.disruption_groups.of_pod(uid)) is not None
        }
        return any(
            pod.uid not in uids
            for disruption_group in disruption_groups
            for pod in self._store.disruption_groups.list_running(disruption_group)
        )

    # --- steps -------------------------------------------------------------------------------------------------

    async def _rehearse(self, pending: "_PendingPreemption") -> Verdict | None:
        """Why a victim could not be evicted; None if all could."""
        refused = await pending.rehearsal.run(pending.victims)
        if not refused:
            return None
        log.info("victims may not be evicted", extra=name_group(pending.group) | {"pods": len(refused)})
        self._units.refusals.add(pending.group, refused)
        first = next(victim for victim in pending.victims if victim.uid in refused)
        return Verdict(Reason.EVICTION_REFUSED, detail=f"{first.namespace}/{first.name}: {refused[first.uid]}")

    def _tell(self, pending: "_PendingPreemption", victims: Sequence[Victim]) -> None:
        """Of these it is said, or will be, that they are evicted."""
        pending.told[:] = victims
        pending.whole[:] = self._store.disruption_groups.list_whole({victim.uid for victim in victims})

    async def _record(self, pending: "_PendingPreemption") -> None:
        """Write the slots of those that have come since, so that a restart goes on with them; then look at all anew."""
        slots = frozenset(pending.cycle.reservation.slots)
        try:
            await self._records.write(pending.cycle.group, pending.cycle.reservation)
        except ApiError as error:
            log.warning("replacements are not recorded yet", extra=name_group(pending.group) | {"err": str(error)})
            return
        pending.recorded.update(slots)
        pending.cycle.changed.set()

    async def _announce(self, pending: "_PendingPreemption") -> None:
        """Say it first: a condition on each victim and each group that goes whole, and events that name both sides."""
        text, victims = describe_end(pending.group), pending.victims
        names = name_some(victims)
        self._timelines.note(pending.group, Milestone.PREEMPTING)
        self._status.report_preemption(
            pending.group, f"{len(victims)} pods of lower priority are evicted for it: {names}"
        )
        for victim in victims:
            if self._find(victim) is not None:
                self._status.report_victim(victim, text)
        for group in pending.whole:
            self._timelines.note(group, Milestone.PREEMPTED)
        await do_each(pending.whole, lambda group: self._status.mark_preempted(group, text))
        await do_each(victims, lambda victim: self._mark_running(victim, text))

    async def _mark_running(self, victim: Victim, text: str) -> None:
        pod = self._find(victim)
        if pod is not None and pod.disruption != PREEMPTED:
            await mark(self._client, victim, text)

    async def _end(self, pending: "_PendingPreemption", victim: Victim) -> "_End":
        """What the API server says: once it has taken it, the victim ends by itself, however late the watch says so."""
        if not pending.is_ready():
            return _End.REFUSED  # a member was deleted under the evictions
        if victim.uid in pending.again:
            # It was refused before, maybe for want of the condition, which could not be written then.
            await self._mark_running(victim, describe_end(pending.group))
        pod = self._find(victim)
        if pod is None or self._is_over(pending.cycle):
            return _End.GONE
        try:
            end = await self._end_pod(pending, pod)
        except NotFound:
            return _End.GONE
        except Conflict:
            # Another UID, says the API server, or a webhook something else: the watch knows.
            return _End.GONE if self._find(victim) is None else _End.REFUSED
        except BudgetRefusal:
            log.info("a disruption budget keeps a victim for now", extra={"pod": victim.name})
        except ApiError as error:
            log.warning("could not evict a victim", extra={"pod": victim.name, "err": str(error)})
        else:
            self._metrics.evicted(self._classify(victim), pod.namespace)
            return end
        return _End.REFUSED

    async def _end_pod(self, pending: "_PendingPreemption", pod: Pod) -> "_End":
        if self._method is Method.DELETION:
            await self._client.delete(PODS, pod.namespace, pod.name, pod.uid)
            return _End.DELETED
        if not pending.rehearsal.is_guarded(pod):
            try:
                await self._client.delete(PODS, pod.namespace, pod.name, pod.uid)
            except (NotFound, Fenced):
                raise
            except ApiError as error:
                # No such role, a webhook, or serried-extender-deletions does not find the condition: who may evict
                # needs none of them.
                log.info("a victim is evicted, not deleted", extra={"pod": pod.name, "err": str(error)})
            else:
                return _End.DELETED
        await self._client.evict(pod.namespace, pod.name, pod.uid)
        return _End.EVICTED

    async def _mark_ending(self, victim: Victim, text: str) -> None:
        if self._runs(victim) and self._term.leads():
            await mark(self._client, victim, text)

    def _classify(self, victim: Victim) -> str:
        if victim.group:
            return "Group"
        return "Member" if self._store.members.group_of(victim.uid) is not None else "Plain"

    async def _take_back(
        self, victims: Iterable[Victim], whole: Iterable[GroupKey], going: AbstractSet[str] = frozenset()
    ) -> None:
        """Nobody who still runs is evicted any more: so nobody may say so, but those that are ``going`` (UIDs).

        The watch may not have shown yet that these end.
        """
        if not self._term.leads():
            return
        running = [victim for victim in victims if victim.uid not in going]
        left = [victim for victim in running if (pod := self._find(victim)) and pod.disruption in ("", PREEMPTED)]
        staying = set(self._store.disruption_groups.list_whole({victim.uid for victim in left} | going))
        staying.difference_update(self._store.disruption_groups.list_whole(going))
        await do_each((each for each in whole if each in staying), self._status.unmark_preempted)
        await do_each(left, lambda victim: unmark(self._client, victim))

    async def _wait(self, cycle: BindingCycle) -> None:
        try:
            async with asyncio.timeout(_RETRY_SECONDS):
                await cycle.changed.wait()
        except TimeoutError:
            pass


@dataclass(frozen=True, slots=True)
class _PendingPreemption:
    """How far the evictions for one gang are."""

    cycle: BindingCycle
    victims: Sequence[Victim]
    rehearsal: Rehearsal

    recorded: set[str]
    """The members whose slots are in the record, or were; UIDs."""

    told: list[Victim] = field(default_factory=list)
    """The victims of which it is said that they are evicted."""

    whole: list[GroupKey] = field(default_factory=list)
    """The groups of which the same is said."""

    again: dict[str, float] = field(default_factory=dict)
    """When each is to be evicted once more, by UID, in loop seconds; infinite for one that ends."""

    def is_ready(self) -> bool:
        """Whether as many members as the quorum needs are there, and all that have slots are in the record.

        Beyond the quorum all have to be there: nobody can tell which victim goes for whom.
        """
        complete = self.cycle.reservation.need or not self.cycle.list_lost()
        return bool(complete) and not self.cycle.out_of_reach() and self.is_recorded()

    def is_recorded(self) -> bool:
        """Whether all that have slots are in the record."""
        return self.cycle.reservation.slots.keys() <= self.recorded

    def find_going(self) -> frozenset[str]:
        """The UIDs of those whose end the API server has taken."""
        return frozenset(uid for uid, again in self.again.items() if again == math.inf)

    @property
    def group(self) -> GroupKey:
        """The gang's."""
        return self.cycle.reservation.group


class _End(Enum):
    """What has become of a victim."""

    GONE = "gone"
    DELETED = "deleted"
    EVICTED = "evicted"
    REFUSED = "refused"


def _describe_rest(victims: Sequence[Victim], left: Sequence[Victim]) -> Verdict:
    names = ", ".join(f"{victim.namespace}/{victim.name}" for victim in left[:3])
    return Verdict(Reason.VICTIMS_REMAIN, have=len(victims) - len(left), need=len(victims), detail=f"left are {names}")
