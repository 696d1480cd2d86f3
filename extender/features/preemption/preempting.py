"""The stage of a binding cycle in which victims are evicted: dry runs, conditions, evictions, and the wait for the end.

`Preempting.run` is this stage. The record (Reservation) names the victims before anything is done to them. At each
await the process may die and the cluster may change. Then:

- Before the first eviction, only the condition DisruptionTarget of victims has been written. The cycle can still be
  given up. After a restart the stage begins again, even if all victims have the condition: dry runs show again whether
  PodDisruptionBudgets allow the evictions, and the plan is checked again.
- After the first eviction, a restart finds at least one victim that is being deleted or gone, and the condition on all
  others. These are evicted then. Each eviction has the pod's UID as precondition. So no pod is evicted twice, and
  no new pod with the name of a victim is evicted.
- If a member is deleted after the first eviction, its slot is kept for its replacement. No more victims are evicted
  until the replacement exists and the record names it. A restart before that finds no quorum, and does not evict the
  remaining victims.
- A plan may also be for members beyond the quorum, of a gang that runs already. It needs all of these members. If one
  of them is deleted and not replaced in time, the remaining victims are not evicted. The other members are bound as far
  as the free resources suffice.
- If the gang is deleted, evictions stop. The pods evicted until then were evicted in vain.

While evictions are written, Events of type Normal are delayed. There is one for each victim, and the gang's own writes
are more urgent.

The ledger counts the slots in addition to the resources that the victims still use, so no other gang is planned there.
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
from extender.options import EvictionMethod
from serried.api.names import PREEMPTED, GroupKey, count_things
from serried.api.pod import Pod
from serried.api.reservation import Reservation, Victim, describe_preemption, name_victims
from serried.api.verdict import Reason, Verdict
from serried.kube.errors import ApiError, BudgetRefusal, Conflict, Fenced, NotFound
from serried.kube.many import do_each
from serried.kube.wire import PODS
from serried.ops.log import name_group, name_pod

log = logging.getLogger(__name__)

_EVENTS_WAIT_SECONDS = 2.0
"""For how many seconds Events are still delayed after the last eviction, or after the last victim has ended.

The members of the gang are bound then, and these writes are more urgent.
"""

_EVENTS_LONGEST_WAIT_SECONDS = 30.0
"""The maximum delay of an Event because of evictions, in seconds."""

_BIND_CALL_SECONDS = 120.0
"""For how many seconds kube-scheduler's bind calls for members are left unanswered while victims end.

Then they fail, and kube-scheduler tries the members again. Later, while the gang waits for its quorum, bind calls are
left unanswered again; kube-scheduler's timeout is 15 minutes for both together.
"""

_REPLACEMENT_SECONDS = 30.0
"""For how many seconds Serried waits for the replacement of a member that was deleted after the first eviction."""

_RETRY_SECONDS = 5.0
"""The pause before the eviction of a victim is tried again, in seconds."""

_KEPT_OFF = Verdict(
    Reason.PLAN_OUTDATED, detail="other pods or volumes prevent members from using their planned nodes now"
)
_FULL = Verdict(
    Reason.PLAN_OUTDATED, detail="other pods took free resources that the gang needs beside those of its victims"
)


class Preempting:
    """Evicts the victims of binding cycles; one instance serves all cycles. `Preemptions` owns it.

    ``units`` knows which pods must be evicted together. Before the first eviction of a cycle, it is asked again whether
    pods of another scheduler would take the freed resources, and whether a gang would fall below its quorum.
    """

    def __init__(self, parts: Parts, units: Units) -> None:
        context = parts.context
        self.eviction_writes = WriteBurst(context.clock, _EVENTS_WAIT_SECONDS, _EVENTS_LONGEST_WAIT_SECONDS)
        """Is on while evictions are written and while victims end: Events are delayed as long."""

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
        """Evict the victims of a cycle, and wait until their pods are gone.

        Return None when all are gone, or when the cycle or the term has ended meanwhile. Return a verdict if the
        preemption fails, so that the caller gives up the cycle. Also then the condition DisruptionTarget is removed
        from victims that were not evicted, unless this instance has lost leadership or the call is cancelled.
        """
        reservation = cycle.reservation
        rehearsal = Rehearsal(self._client, self._store, self._method)
        pending = _PendingPreemption(cycle, list(reservation.victims.values()), rehearsal, set(reservation.slots))
        try:
            with self.eviction_writes:
                refusal = await self._prepare(pending)
            refusal = refusal or await self._evict_all(pending)
        except Exception:
            await self._remove_conditions(pending.with_condition, pending.whole_groups, pending.list_accepted())
            raise
        await self._remove_conditions(pending.with_condition, pending.whole_groups, pending.list_accepted())
        if self._term.leads():
            outcome = "Withdrawn" if cycle.over else "Cleared"
            self._metrics.preemption_ended(outcome if refusal is None else refusal.reason.value)
        return refusal

    async def spare_victims(self, reservation: Reservation) -> None:
        """Let the victims of an earlier term run on, as its ``reservation`` was dropped at recovery.

        They do not count as victims any more, and the conditions DisruptionTarget that the earlier term wrote on them
        are removed.
        """
        self._store.pending_victims.remove(reservation.victims)
        marked = self._list_with_condition(reservation.victims.values())
        await self._remove_conditions(
            marked, self._store.disruption_groups.list_whole({victim.uid for victim in marked})
        )

    async def remove_stale_conditions(self) -> None:
        """Remove the conditions DisruptionTarget that earlier terms wrote on victims that no record names any more.

        This happens when a gang is deleted, and its record with it, while no instance leads. Call at the start of a
        term, after the victims of all records are known and before the first plan. A failure does no harm:
        kube-controller-manager removes such a condition after two minutes.
        """
        pods = (pod for pod in self._store.pods.values() if pod.is_marked_victim and pod.bound and not pod.deleting)
        left = [Victim(pod.uid, pod.namespace, pod.name) for pod in pods if pod.uid not in self._store.pending_victims]
        await self._remove_conditions(left, self._store.disruption_groups.list_whole({victim.uid for victim in left}))

    async def _prepare(self, pending: "_PendingPreemption") -> Verdict | None:
        """Do all steps before the first eviction: dry run, check of the plan, conditions and Events, nominations.

        Return why no pod may be evicted; None if evictions may start, or if the cycle or the term is over. If an
        earlier term has evicted some victims already, there is no dry run and no check.
        """
        await pending.rehearsal.list_budgets()
        begun = self._was_begun_earlier(pending)
        if not begun:
            if pending.cycle.from_earlier_term:
                self._remember_conditions(pending, self._list_with_condition(pending.victims))  # by the earlier term
            refusal = await self._dry_run(pending) or self._revalidate(pending)
            if refusal is not None or self._is_over(pending.cycle):
                return refusal
        self._remember_conditions(pending, pending.victims)
        await self._announce(pending)
        refusal = None if begun else self._revalidate(pending)
        if refusal is None:
            pending.cycle.note_eviction_sent(self._store.list_foreign(pending.cycle.reservation.nodes))
            # The first victim may free its resources long before the last one. Until then nominations keep other pods
            # off its node.
            self._nominator.nominate_all(pending.cycle)
        return refusal

    async def _evict_all(self, pending: "_PendingPreemption") -> Verdict | None:
        cycle = pending.cycle
        deadline = self._clock() + self._find_longest_grace(pending.victims) + self._timeout_seconds
        running = len(pending.victims)
        while not self._is_over(cycle):
            cycle.changed.clear()  # first, so that a victim that ends during the writes below is not missed
            left = self._list_remaining(pending)
            if len(left) < running:
                running = len(left)
                self.eviction_writes.prolong()
            if not left and not self._lacks_members(cycle):
                return None
            late = bool(left) and self._clock() > deadline
            refusal = None if self._awaits_replacements(cycle) else self._check_members(cycle)
            if refusal is not None or late:
                return refusal or _describe_rest(pending.victims, left)
            if cycle.first_reached_at is not None and self._clock() > cycle.first_reached_at + _BIND_CALL_SECONDS:
                cycle.close_calls("serried: evicted pods have to end first: kube-scheduler tries the pod again")
            begun = bool(pending.retry_at)
            refusal = await self._evict_if_ready(pending, left)
            if refusal is not None:
                return refusal
            if not begun and not self._is_over(cycle):
                # kube-scheduler clears a nomination if it tries the member before a victim on that node has ended.
                self._nominator.nominate_all(cycle)
            await self._wait(cycle)
        return None

    async def _evict_if_ready(self, pending: "_PendingPreemption", left: Iterable[Victim]) -> Verdict | None:
        """Evict those of the victims ``left`` that were not tried yet, or whose pause after a failure is over.

        This needs all required members, and a record that names their slots. If only the record is missing, write it
        instead. Return a verdict if the slots no longer fit, so that no more pods are evicted; else None.
        """
        if pending.is_ready():
            if due := self._list_due(pending, left):
                if self._lacks_fitting_slots(pending.cycle):
                    return _FULL
                with self.eviction_writes:
                    await self._evict_due(pending, due)
        elif not (pending.cycle.out_of_reach() or pending.is_recorded()):
            await self._record_replacements(pending)
        return None

    def _list_due(self, pending: "_PendingPreemption", left: Iterable[Victim]) -> list[Victim]:
        now = self._clock()
        due = [victim for victim in left if now >= pending.retry_at.get(victim.uid, 0.0)]
        # Node by node, so that the first node is free early, and kube-scheduler can send its member to bind.
        return sorted(due, key=self._find_node)

    async def _evict_due(self, pending: "_PendingPreemption", due: Sequence[Victim]) -> None:
        now = self._clock()
        ended = await do_each(due, lambda victim: self._evict_one(pending, victim))
        for victim, end in zip(due, ended, strict=True):
            pending.retry_at[victim.uid] = now + _RETRY_SECONDS if end is _EvictionResult.REFUSED else math.inf
        # The API server has put its own reason into the condition (EvictionByEvictionAPI). Serried writes its reason
        # again, because by it kube-scheduler knows that the pod ends for a nominated one
        # (pkg/scheduler/framework/preemption/preemption.go: PodTerminatingByPreemption). Most are gone by now.
        text = describe_preemption(pending.group)
        evicted = [victim for victim, end in zip(due, ended, strict=True) if end is _EvictionResult.EVICTED]
        await do_each(evicted, lambda victim: self._mark_ending(victim, text))

    # --- readings ----------------------------------------------------------------------------------------------

    def _is_over(self, cycle: BindingCycle) -> bool:
        return cycle.over or not self._term.leads()

    def _list_remaining(self, pending: "_PendingPreemption") -> list[Victim]:
        """Return the victims that have to end before the members are bound: those that are still on their nodes.

        There is one exception. If the plan is for members beyond the quorum, and one of these members was deleted and
        has not been replaced in time, victims that were not evicted yet are left out, because they will not be evicted.
        """
        left = [victim for victim in pending.victims if self._is_on_node(victim)]
        cycle = pending.cycle
        if cycle.reservation.need or not cycle.list_lost() or not self._replacement_overdue(cycle):
            return left
        going = pending.list_accepted()
        return [victim for victim in left if victim.uid in going or self._find(victim) is None]

    def _is_on_node(self, victim: Victim) -> bool:
        """Return whether a victim still uses resources of its node. True also while its pod is being deleted."""
        pod = self._store.pods.get(victim.uid)
        return pod is not None and pod.bound

    def _find_node(self, victim: Victim) -> str:
        pod = self._store.pods.get(victim.uid)
        return pod.node if pod is not None else ""

    def _find_longest_grace(self, victims: Iterable[Victim]) -> int:
        """Return the longest termination grace period of the victims that still exist, in seconds; 0 if none does."""
        pods = (self._store.pods.get(victim.uid) for victim in victims)
        return max((pod.grace for pod in pods if pod is not None), default=0)

    def _find(self, victim: Victim) -> Pod | None:
        return find_running(self._store.pods, victim)

    def _was_begun_earlier(self, pending: "_PendingPreemption") -> bool:
        """Return whether an earlier term has already evicted some of the victims.

        That is so if a victim is gone or being deleted, and all others have the condition DisruptionTarget: it is
        written to all victims before the first eviction. The condition alone proves nothing. kube-scheduler may have
        written it, or a term that ended before its first eviction.
        """
        left = [pod for victim in pending.victims if (pod := self._find(victim)) is not None]
        gone = len(left) < len(pending.victims)
        return pending.cycle.from_earlier_term and gone and all(pod.disruption == PREEMPTED for pod in left)

    def _list_with_condition(self, victims: Iterable[Victim]) -> list[Victim]:
        """Return the victims whose pods have the condition DisruptionTarget with reason PreemptionByScheduler."""
        pods = ((victim, self._store.pods.get(victim.uid)) for victim in victims)
        return [victim for victim, pod in pods if pod is not None and pod.disruption == PREEMPTED]

    def _check_members(self, cycle: BindingCycle) -> Verdict | None:
        if cycle.over:
            return None
        if self._permit.find_group(cycle) is None:
            return Verdict(Reason.POD_GROUP_MISSING)
        if self._lacks_members(cycle):
            return Verdict(Reason.PLAN_OUTDATED, detail="planned members were deleted, or lost their planned nodes")
        return None

    def _lacks_members(self, cycle: BindingCycle) -> bool:
        """Return whether too few planned members are left to bind the gang.

        In a tree of PodGroups, a PodGroup that is short of members is dropped from the plan if the tree has its quorum
        without it. Then the answer is False.
        """
        return cycle.out_of_reach() and not self._reassignments.drop_incomplete_groups(cycle, cycle.reservation.slots)

    def _awaits_replacements(self, cycle: BindingCycle) -> bool:
        """Return whether to wait for replacements of members.

        True if the quorum lacks members that were deleted after the first eviction, their replacements are not overdue,
        and the PodGroup still exists.
        """
        if not cycle.freed_slots or not self._lacks_members(cycle):
            return False
        return not self._replacement_overdue(cycle) and self._permit.find_group(cycle) is not None

    def _replacement_overdue(self, cycle: BindingCycle) -> bool:
        """Return whether the replacements of the members that were deleted last should have been created by now."""
        return self._clock() > cycle.freed_at + _REPLACEMENT_SECONDS

    def _revalidate(self, pending: "_PendingPreemption") -> Verdict | None:
        """Check the plan again right before the first eviction. Return why no pod may be evicted; None if all is well.

        Evictions would be in vain if the slots no longer fit, if a group that is evicted as a whole has got new pods,
        or if a pod of another scheduler waits that would take the freed resources. A plan for members beyond the quorum
        is stricter: all its slots must fit, as it is not known which victim makes way for which member. And it must not
        bring another gang below its quorum.
        """
        cycle = pending.cycle
        refusal = self._check_members(cycle)
        if refusal is not None or cycle.over:
            return refusal
        lacks_slots = self._lacks_fitting_slots(cycle)
        if lacks_slots or self._permit.breaks_rules(cycle):
            return _FULL if lacks_slots else _KEPT_OFF
        if not cycle.reservation.need:
            if cycle.reservation.slots.keys() != pending.recorded or cycle.list_lost():
                return Verdict(Reason.PLAN_OUTDATED, detail="planned members were deleted, or lost their planned nodes")
            if self._units.breaks_a_gang(cycle.reservation.victims):
                return Verdict(
                    Reason.PLAN_OUTDATED,
                    detail="the evictions would leave another gang with fewer than minCount members",
                )
        if self._has_new_members(pending.victims):
            return Verdict(Reason.PLAN_OUTDATED, detail="a group whose pods are evicted together has new pods")
        contest = self._units.find_contest({self._find_node(victim) for victim in pending.victims})
        return Verdict(Reason.PLAN_OUTDATED, detail=contest) if contest else None

    def _lacks_fitting_slots(self, cycle: BindingCycle) -> bool:
        """Return whether too few slots would fit on their nodes once all victims have ended.

        Slots for the quorum are enough. In a plan for members beyond the quorum, all slots have to fit.
        """
        reservation = cycle.reservation
        fit = {uid for uid in reservation.slots if self._permit.find_misfit(cycle, uid) is None}
        if not reservation.need:
            return len(fit) < len(reservation.slots)
        return reservation.misses_quorum(fit) and reservation.misses_quorum(fit | cycle.bound)

    def _has_new_members(self, victims: Iterable[Victim]) -> bool:
        """Return whether a group whose pods are evicted together has running pods that are not among the victims.

        They were created after the victims were chosen.
        """
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

    async def _dry_run(self, pending: "_PendingPreemption") -> Verdict | None:
        """Ask the API server by dry run whether all victims may be evicted.

        Return a verdict about the first victim that it refuses to evict; None if there is none. Refused pods are
        remembered, so that the next search for victims leaves them out.
        """
        refused = await pending.rehearsal.find_refused(pending.victims)
        if not refused:
            return None
        text = "the API server refuses to evict victims, so Serried plans the gang again without them"
        log.info(text, extra=name_group(pending.group) | {"pods": len(refused)})
        self._units.refused_evictions.add(pending.group, refused)
        first = next(victim for victim in pending.victims if victim.uid in refused)
        return Verdict(Reason.EVICTION_REFUSED, detail=f"{first.namespace}/{first.name}: {refused[first.uid]}")

    def _remember_conditions(self, pending: "_PendingPreemption", victims: Sequence[Victim]) -> None:
        """Remember that ``victims`` have the condition DisruptionTarget, or are about to get it.

        Also remember the groups of which no member will run after the evictions: their own status gets the condition,
        too. Later, the condition is removed from those of these victims and groups that are not evicted after all.
        """
        pending.with_condition[:] = victims
        pending.whole_groups[:] = self._store.disruption_groups.list_whole({victim.uid for victim in victims})

    async def _record_replacements(self, pending: "_PendingPreemption") -> None:
        """Write the record again after members were replaced, so that it names the slots of the replacements.

        A restart then continues with the replacements. A failure is logged; evictions wait, and the caller retries.
        """
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
        """Write the condition DisruptionTarget to all victims, and to groups of which no member will run any more.

        Emit an Event about the gang, and one about each victim and each of these groups. Victims that are gone or being
        deleted by now get neither condition nor Event.
        """
        text, victims = describe_preemption(pending.group), pending.victims
        names = name_victims(victims)
        self._timelines.note(pending.group, Milestone.PREEMPTING)
        self._status.report_preemption(
            pending.group, f"Serried evicts {count_things(len(victims), 'pod')} of lower priority for the gang: {names}"
        )
        for victim in victims:
            if self._find(victim) is not None:
                self._status.report_victim(victim, text)
        for group in pending.whole_groups:
            self._timelines.note(group, Milestone.PREEMPTED)
        await do_each(pending.whole_groups, lambda group: self._status.mark_preempted(group, text))
        await do_each(victims, lambda victim: self._mark_running(victim, text))

    async def _mark_running(self, victim: Victim, text: str) -> None:
        pod = self._find(victim)
        if pod is not None and pod.disruption != PREEMPTED:
            await set_disruption_target(self._client, victim, text)

    async def _evict_one(self, pending: "_PendingPreemption", victim: Victim) -> "_EvictionResult":
        """Evict or delete one victim. Return what has become of it, by the API server's answer; never raise ApiError.

        If a required member was deleted meanwhile, or the record does not name all slots, send nothing and return
        REFUSED, so that the caller tries again later. If the cycle or the term is over, return GONE.
        """
        if not pending.is_ready():
            return _EvictionResult.REFUSED  # a member was deleted meanwhile
        if victim.uid in pending.retry_at:
            # The last try may have been refused because the condition could not be written.
            await self._mark_running(victim, describe_preemption(pending.group))
        pod = self._find(victim)
        if pod is None or self._is_over(pending.cycle):
            return _EvictionResult.GONE
        try:
            end = await self._evict_or_delete(pending, pod)
        except NotFound:
            return _EvictionResult.GONE
        except Conflict:
            # Either the UID differs, or a webhook answered so: the watch shows which.
            return _EvictionResult.GONE if self._find(victim) is None else _EvictionResult.REFUSED
        except BudgetRefusal:
            log.info("a PodDisruptionBudget refuses the eviction of a victim; trying again", extra=name_pod(victim))
        except ApiError as error:
            log.warning("could not evict a victim; trying again", extra=name_pod(victim) | {"err": str(error)})
        else:
            self._metrics.evicted(self._classify(victim), pod.namespace)
            return end
        return _EvictionResult.REFUSED

    async def _evict_or_delete(self, pending: "_PendingPreemption", pod: Pod) -> "_EvictionResult":
        if self._method is EvictionMethod.DELETION:
            await self._client.delete(PODS, pod.namespace, pod.name, pod.uid)
            return _EvictionResult.DELETED
        if not pending.rehearsal.has_budget(pod):
            try:
                await self._client.delete(PODS, pod.namespace, pod.name, pod.uid)
            except (NotFound, Fenced):
                raise
            except ApiError as error:
                # The role may be missing, a webhook may refuse, or serried-extender-deletions may not see the condition
                # yet. None of them matters for an eviction.
                log.info("could not delete a victim, so it is evicted", extra=name_pod(pod) | {"err": str(error)})
            else:
                return _EvictionResult.DELETED
        await self._client.evict(pod.namespace, pod.name, pod.uid)
        return _EvictionResult.EVICTED

    async def _mark_ending(self, victim: Victim, text: str) -> None:
        if self._is_on_node(victim) and self._term.leads():
            await set_disruption_target(self._client, victim, text)

    def _classify(self, victim: Victim) -> str:
        if victim.group:
            return "Group"
        return "Member" if self._store.members.group_of(victim.uid) is not None else "Plain"

    async def _remove_conditions(
        self, victims: Iterable[Victim], whole: Iterable[GroupKey], evicted: AbstractSet[str] = frozenset()
    ) -> None:
        """Remove the condition DisruptionTarget from the victims that are not evicted after all, and from their groups.

        ``evicted`` are the UIDs of those ``victims`` whose eviction the API server has accepted; they keep the
        condition. ``whole`` are the groups whose own status has the condition, because all their running pods were to
        be evicted. It is removed from a group if at least one of these pods is not evicted. Does nothing if this
        instance no longer leads.
        """
        if not self._term.leads():
            return
        running = [victim for victim in victims if victim.uid not in evicted]
        left = [victim for victim in running if (pod := self._find(victim)) and pod.disruption in ("", PREEMPTED)]
        staying = set(self._store.disruption_groups.list_whole({victim.uid for victim in left} | evicted))
        staying.difference_update(self._store.disruption_groups.list_whole(evicted))
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
    """The progress of the evictions for one gang; lives as long as the call of `Preempting.run` for its cycle."""

    cycle: BindingCycle
    victims: Sequence[Victim]
    rehearsal: Rehearsal

    recorded: set[str]
    """The UIDs of the members whose slots have been written into the record, in this or an earlier write."""

    with_condition: list[Victim] = field(default_factory=list)
    """The victims that have the condition DisruptionTarget, or are about to get it."""

    whole_groups: list[GroupKey] = field(default_factory=list)
    """The groups of which no member will run any more: their own status has the condition DisruptionTarget, too."""

    retry_at: dict[str, float] = field(default_factory=dict)
    """The loop time of the next try, by the UID of each victim that was tried.

    Infinite if the API server has accepted the eviction, or the victim is gone.
    """

    def is_ready(self) -> bool:
        """Return whether victims may be evicted now: the record names all slots, and enough members exist.

        For a gang that starts, that is its quorum. For members beyond the quorum of a running gang, it is all members
        of the plan, as it is not known which victim makes way for which member.
        """
        complete = self.cycle.reservation.need or not self.cycle.list_lost()
        return bool(complete) and not self.cycle.out_of_reach() and self.is_recorded()

    def is_recorded(self) -> bool:
        """Return whether the record names all members that have slots."""
        return self.cycle.reservation.slots.keys() <= self.recorded

    def list_accepted(self) -> frozenset[str]:
        """Return the UIDs of the victims whose eviction the API server has accepted, or that are gone."""
        return frozenset(uid for uid, at in self.retry_at.items() if at == math.inf)

    @property
    def group(self) -> GroupKey:
        """The key of the gang for which the victims are evicted."""
        return self.cycle.reservation.group


class _EvictionResult(Enum):
    """The result of one try to evict a victim: the pod is gone, or is deleted or evicted now, or the try failed."""

    GONE = "gone"
    """The pod is gone or being deleted, or the cycle is over: nothing is left to do."""

    DELETED = "deleted"
    EVICTED = "evicted"

    REFUSED = "refused"
    """The API server has rejected the request or not answered, or it was too early: try again."""


def _describe_rest(victims: Sequence[Victim], left: Sequence[Victim]) -> Verdict:
    names = ", ".join(f"{victim.namespace}/{victim.name}" for victim in left[:3])
    return Verdict(
        Reason.VICTIMS_REMAIN, have=len(victims) - len(left), need=len(victims), detail=f"these pods remain: {names}"
    )
