"""The stage of a binding cycle in which victims are evicted: dry runs, conditions, evictions, and the wait for the end.

`Preempting.run` is this stage. The record (Reservation) names the victims before anything is done to them. From there
on, at each await:

- Before the first eviction, no pod was changed but for its condition. The cycle may be given up. A restart begins
  again, even if it finds the conditions on all victims: it asks the budgets and checks the plan anew.
- After the first eviction, a restart finds a victim that is being deleted or gone, and the conditions on all others. It
  goes on with them. Each eviction has the pod's UID as precondition, so no pod is evicted twice, and no new pod of the
  same name is evicted.
- A member that is deleted after the first eviction leaves its slot to its replacement. No more victims are evicted
  until the replacement exists and the record names it. A restart before that finds no quorum, and spares the other
  victims.
- For members beyond the quorum, all of them have to exist. If one gets no replacement in time, the victims that were
  not evicted stay, and the other members get the room that there is.
- If the gang is deleted, evictions stop. The victims that were evicted by then have ended in vain.

While evictions are written, Events of type Normal wait: each victim has one, and the gang needs its room first.

The slots are counted in addition to what the victims still use, so no other plan finds room there (`Ledger`).
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
from extender.evictions import Rehearsal, find_running, remove_disruption_target, set_disruption_target
from extender.features.preemption.units import Units
from extender.options import Method
from serried.api.names import PREEMPTED, GroupKey
from serried.api.pod import Pod
from serried.api.reservation import Reservation, Victim, describe_end, name_some
from serried.api.verdict import Reason, Verdict
from serried.kube.errors import ApiError, BudgetRefusal, Conflict, Fenced, NotFound
from serried.kube.many import do_each
from serried.kube.wire import PODS
from serried.ops.log import name_group, name_pod

log = logging.getLogger(__name__)

_AFTERMATH_SECONDS = 2.0
"""The time for which Events wait after the last eviction or end of a victim, as members are bound then; in seconds."""

_LONGEST_SECONDS = 30.0
"""The longest time for which Events wait."""

_BIND_SECONDS = 120.0
"""The time for which bind calls stay open while victims end. They stay open at the barrier, too; at most 15 minutes."""

_REPLACEMENT_SECONDS = 30.0
"""The time in which a replacement of a deleted member is expected, after victims were evicted for the gang."""

_RETRY_SECONDS = 5.0
"""The pause before the eviction of a victim is tried again."""

_KEPT_OFF = Verdict(Reason.PLAN_OUTDATED, detail="other pods or volumes keep members off their nodes by now")
_FULL = Verdict(Reason.PLAN_OUTDATED, detail="the room beside its victims was taken, or has gone")


class Preempting:
    """Evicts the victims of binding cycles; one instance for all cycles. ``clock`` gives loop seconds."""

    def __init__(self, parts: Parts, units: Units) -> None:
        context = parts.context
        self.eviction_writes = WriteBurst(context.clock, _AFTERMATH_SECONDS, _LONGEST_SECONDS)
        """On while evictions are written and while victims end: Events wait."""

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
        """Evict the victims of a cycle, and wait until they have ended.

        Return None when none is left, or when the cycle is over; else why the cycle is given up.
        """
        reservation = cycle.reservation
        rehearsal = Rehearsal(self._client, self._store, self._method)
        pending = _PendingPreemption(cycle, list(reservation.victims.values()), rehearsal, set(reservation.slots))
        try:
            with self.eviction_writes:
                refusal = await self._prepare(pending)
            refusal = refusal or await self._end_all(pending)
        except Exception:
            await self._unmark(pending.marked, pending.whole, pending.find_going())
            raise
        await self._unmark(pending.marked, pending.whole, pending.find_going())
        if self._term.leads():
            outcome = "Withdrawn" if cycle.over else "Cleared"
            self._metrics.preemption_ended(outcome if refusal is None else refusal.reason.value)
        return refusal

    async def let_off(self, reservation: Reservation) -> None:
        """Spare the victims of an earlier term's reservation, and remove the conditions that the term has written."""
        self._store.pending_victims.remove(reservation.victims)
        marked = self._list_marked(reservation.victims.values())
        await self._unmark(marked, self._store.disruption_groups.list_whole({victim.uid for victim in marked}))

    async def let_off_forgotten(self) -> None:
        """Remove the conditions of earlier terms' victims that no record names: the record was deleted with its gang.

        Call when all records are held, and before the first plan. A condition that could not be removed does no harm:
        kube-controller-manager removes it after two minutes.
        """
        pods = (pod for pod in self._store.pods.values() if pod.says_victim and pod.bound and not pod.deleting)
        left = [Victim(pod.uid, pod.namespace, pod.name) for pod in pods if pod.uid not in self._store.pending_victims]
        await self._unmark(left, self._store.disruption_groups.list_whole({victim.uid for victim in left}))

    async def _prepare(self, pending: "_PendingPreemption") -> Verdict | None:
        """Do all steps before the first eviction. Return why nothing may be evicted; None to go on."""
        await pending.rehearsal.list_budgets()
        begun = self._has_begun(pending)
        if not begun:
            if pending.cycle.taken_up:
                self._note_marked(pending, self._list_marked(pending.victims))  # by the earlier term
            refusal = await self._rehearse(pending) or self._revalidate(pending)
            if refusal is not None or self._is_over(pending.cycle):
                return refusal
        self._note_marked(pending, pending.victims)
        await self._announce(pending)
        refusal = None if begun else self._revalidate(pending)
        if refusal is None:
            pending.cycle.note_eviction_sent(self._store.list_foreign(pending.cycle.reservation.nodes))
            # The first victim frees its room at once. Nominations keep other pods off it until the last one has ended.
            self._nominator.nominate_all(pending.cycle)
        return refusal

    async def _end_all(self, pending: "_PendingPreemption") -> Verdict | None:
        cycle = pending.cycle
        deadline = self._clock() + self._find_longest_grace(pending.victims) + self._timeout_seconds
        running = len(pending.victims)
        while not self._is_over(cycle):
            cycle.changed.clear()  # first, so that a victim that ends during the writes below is not missed
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
                # kube-scheduler clears a nomination when it tries the member before a victim ends on the node.
                self._nominator.nominate_all(cycle)
            await self._wait(cycle)
        return None

    async def _go_on(self, pending: "_PendingPreemption", left: Iterable[Victim]) -> Verdict | None:
        """Evict the victims that are due, but only if all members exist and the record names their slots.

        Return why no more victims may be evicted: the slots no longer fit. None to go on.
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
        # Node by node, so that the member of the first free node can go to bind early.
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
        """Return the victims that still have to go: those that run.

        If the gang needs no quorum any more and members of it were deleted without replacement in time, only victims
        that are being evicted count: the others stay.
        """
        left = [victim for victim in pending.victims if self._runs(victim)]
        cycle = pending.cycle
        if cycle.reservation.need or not cycle.list_lost() or not self._replacement_overdue(cycle):
            return left
        going = pending.find_going()
        return [victim for victim in left if victim.uid in going or self._find(victim) is None]

    def _runs(self, victim: Victim) -> bool:
        """Return whether a victim still uses its node, also while it is being deleted."""
        pod = self._store.pods.get(victim.uid)
        return pod is not None and pod.bound

    def _find_node(self, victim: Victim) -> str:
        pod = self._store.pods.get(victim.uid)
        return pod.node if pod is not None else ""

    def _find_longest_grace(self, victims: Iterable[Victim]) -> int:
        """Return the longest grace period of the victims that still exist, in seconds."""
        pods = (self._store.pods.get(victim.uid) for victim in victims)
        return max((pod.grace for pod in pods if pod is not None), default=0)

    def _find(self, victim: Victim) -> Pod | None:
        return find_running(self._store.pods, victim)

    def _has_begun(self, pending: "_PendingPreemption") -> bool:
        """Return whether an earlier term has evicted some of the victims: one is gone, all others have the condition.

        All victims get the condition before the first eviction. A condition alone shows nothing: it may be
        kube-scheduler's, or that of a term that ended before the first eviction.
        """
        left = [pod for victim in pending.victims if (pod := self._find(victim)) is not None]
        gone = len(left) < len(pending.victims)
        return pending.cycle.taken_up and gone and all(pod.disruption == PREEMPTED for pod in left)

    def _list_marked(self, victims: Iterable[Victim]) -> list[Victim]:
        """Return the victims that have the condition DisruptionTarget for a preemption."""
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
        """Return whether too few members are left for the quorum, and the tree needs their PodGroup."""
        return cycle.out_of_reach() and not self._reassignments.drop_parts(cycle, cycle.reservation.slots)

    def _awaits_replacements(self, cycle: BindingCycle) -> bool:
        """Return whether the quorum lacks members deleted after the first eviction, and replacements may still come."""
        if not cycle.freed_slots or not self._is_short(cycle):
            return False
        return not self._replacement_overdue(cycle) and self._permit.find_group(cycle) is not None

    def _replacement_overdue(self, cycle: BindingCycle) -> bool:
        """Return whether the replacements of deleted members should have been created by now."""
        return self._clock() > cycle.freed_at + _REPLACEMENT_SECONDS

    def _revalidate(self, pending: "_PendingPreemption") -> Verdict | None:
        """Check the plan again before the first eviction. Return why nothing may be evicted; None if all is well.

        The slots may no longer fit, a victim's group may have grown, or another scheduler may want the room. For
        members beyond the quorum all slots have to fit, as each victim belongs to one of them, and no gang may break.
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
        """Return whether too few slots will fit once all victims have ended; beyond the quorum, all have to fit."""
        reservation = cycle.reservation
        fit = {uid for uid in reservation.slots if self._permit.find_misfit(cycle, uid) is None}
        if not reservation.need:
            return len(fit) < len(reservation.slots)
        return reservation.lacks(fit) and reservation.lacks(fit | cycle.bound)

    def _have_joined(self, victims: Iterable[Victim]) -> bool:
        """Return whether a disruption group of victims has new running members, which are not victims."""
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
        """Try the evictions by dry run. Return the verdict about the first refusal; None if there is none."""
        refused = await pending.rehearsal.find_refused(pending.victims)
        if not refused:
            return None
        text = "the API server refuses to evict victims, so the gang is planned anew without them"
        log.info(text, extra=name_group(pending.group) | {"pods": len(refused)})
        self._units.refusals.add(pending.group, refused)
        first = next(victim for victim in pending.victims if victim.uid in refused)
        return Verdict(Reason.EVICTION_REFUSED, detail=f"{first.namespace}/{first.name}: {refused[first.uid]}")

    def _note_marked(self, pending: "_PendingPreemption", victims: Sequence[Victim]) -> None:
        """Remember the victims, and their groups, whose conditions have to be removed if they stay."""
        pending.marked[:] = victims
        pending.whole[:] = self._store.disruption_groups.list_whole({victim.uid for victim in victims})

    async def _record(self, pending: "_PendingPreemption") -> None:
        """Write the slots of replacements into the record, so that a restart goes on with them."""
        slots = frozenset(pending.cycle.reservation.slots)
        try:
            await self._records.write(pending.cycle.group, pending.cycle.reservation)
        except ApiError as error:
            text = "could not write the slots of replaced members into the Reservation, so evictions wait; trying again"
            log.warning(text, extra=name_group(pending.group) | {"err": str(error)})
            return
        pending.recorded.update(slots)
        pending.cycle.changed.set()

    async def _announce(self, pending: "_PendingPreemption") -> None:
        """Write the conditions of all victims and of groups evicted as a whole, and emit events about both sides."""
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
            await set_disruption_target(self._client, victim, text)

    async def _end(self, pending: "_PendingPreemption", victim: Victim) -> "_End":
        """Evict or delete one victim, and return what the API server answered; the watch may show it later."""
        if not pending.is_ready():
            return _End.REFUSED  # a member was deleted meanwhile
        if victim.uid in pending.again:
            # The last try may have been refused because the condition could not be written.
            await self._mark_running(victim, describe_end(pending.group))
        pod = self._find(victim)
        if pod is None or self._is_over(pending.cycle):
            return _End.GONE
        try:
            end = await self._end_pod(pending, pod)
        except NotFound:
            return _End.GONE
        except Conflict:
            # Either the UID differs, or a webhook answered so: the watch shows which.
            return _End.GONE if self._find(victim) is None else _End.REFUSED
        except BudgetRefusal:
            log.info("a PodDisruptionBudget refuses the eviction of a victim; trying again", extra=name_pod(victim))
        except ApiError as error:
            log.warning("could not evict a victim; trying again", extra=name_pod(victim) | {"err": str(error)})
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
                # The role may be missing, a webhook may refuse, or serried-extender-deletions may not see the condition
                # yet. None of them matters for an eviction.
                log.info("could not delete a victim, so it is evicted", extra=name_pod(pod) | {"err": str(error)})
            else:
                return _End.DELETED
        await self._client.evict(pod.namespace, pod.name, pod.uid)
        return _End.EVICTED

    async def _mark_ending(self, victim: Victim, text: str) -> None:
        if self._runs(victim) and self._term.leads():
            await set_disruption_target(self._client, victim, text)

    def _classify(self, victim: Victim) -> str:
        if victim.group:
            return "Group"
        return "Member" if self._store.members.group_of(victim.uid) is not None else "Plain"

    async def _unmark(
        self, victims: Iterable[Victim], whole: Iterable[GroupKey], going: AbstractSet[str] = frozenset()
    ) -> None:
        """Remove the conditions of victims that stay, and of the groups ``whole`` that stay.

        ``going`` are the UIDs of victims that were evicted, which the watch may not have shown yet.
        """
        if not self._term.leads():
            return
        running = [victim for victim in victims if victim.uid not in going]
        left = [victim for victim in running if (pod := self._find(victim)) and pod.disruption in ("", PREEMPTED)]
        staying = set(self._store.disruption_groups.list_whole({victim.uid for victim in left} | going))
        staying.difference_update(self._store.disruption_groups.list_whole(going))
        await do_each((each for each in whole if each in staying), self._status.unmark_preempted)
        await do_each(left, lambda victim: remove_disruption_target(self._client, victim))

    async def _wait(self, cycle: BindingCycle) -> None:
        try:
            async with asyncio.timeout(_RETRY_SECONDS):
                await cycle.changed.wait()
        except TimeoutError:
            pass


@dataclass(frozen=True, slots=True)
class _PendingPreemption:
    """The progress of the evictions for one gang; lives as long as its `Preempting.run`."""

    cycle: BindingCycle
    victims: Sequence[Victim]
    rehearsal: Rehearsal

    recorded: set[str]
    """The UIDs of the members whose slots are in the record, or were."""

    marked: list[Victim] = field(default_factory=list)
    """The victims that have, or will have, the condition DisruptionTarget."""

    whole: list[GroupKey] = field(default_factory=list)
    """The groups that have the same condition, as they are evicted as a whole."""

    again: dict[str, float] = field(default_factory=dict)
    """The loop time of the next eviction, by the UID of each victim tried; infinite if the API server accepted it."""

    def is_ready(self) -> bool:
        """Return whether the quorum's members exist, and the record names all slots.

        Beyond the quorum all members have to exist, as it is not known which victim belongs to which member.
        """
        complete = self.cycle.reservation.need or not self.cycle.list_lost()
        return bool(complete) and not self.cycle.out_of_reach() and self.is_recorded()

    def is_recorded(self) -> bool:
        """Return whether the record names all members that have slots."""
        return self.cycle.reservation.slots.keys() <= self.recorded

    def find_going(self) -> frozenset[str]:
        """Return the UIDs of the victims whose eviction or deletion the API server has accepted."""
        return frozenset(uid for uid, again in self.again.items() if again == math.inf)

    @property
    def group(self) -> GroupKey:
        """The key of the gang."""
        return self.cycle.reservation.group


class _End(Enum):
    """The result of one try to evict a victim."""

    GONE = "gone"
    DELETED = "deleted"
    EVICTED = "evicted"
    REFUSED = "refused"


def _describe_rest(victims: Sequence[Victim], left: Sequence[Victim]) -> Verdict:
    names = ", ".join(f"{victim.namespace}/{victim.name}" for victim in left[:3])
    return Verdict(Reason.VICTIMS_REMAIN, have=len(victims) - len(left), need=len(victims), detail=f"left are {names}")
