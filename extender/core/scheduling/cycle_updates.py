"""Updates binding cycles while the cluster changes: members join, are deleted, are rejected, or lose their nodes.

`GroupScheduler` calls `CycleUpdates.update` when something has changed about a group with a cycle, and
`check_periodically` twice a second. Nothing here awaits.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from extender.core.scheduling.binding_cycle import BindingCycle, CycleStage
from extender.core.scheduling.cycle_member import MemberStage
from extender.core.scheduling.effects import ActivateIdle, Context, Nominate
from extender.core.scheduling.group import GroupState
from extender.core.scheduling.offers import REJECTION_COUNTS_SECONDS, Offers
from extender.core.scheduling.permit import Permit, adjust_quorum
from extender.core.scheduling.planning import Planning
from extender.core.scheduling.queue import Queue
from extender.core.scheduling.reassignments import Reassignments
from extender.core.scheduling.request import describe_preemption
from extender.core.scheduling.scheduling_cycle import CycleEndings
from extender.core.scheduling.slot_assigner import SlotAssigner
from serried.api.group import PodGroup
from serried.api.pod import Phase, Pod
from serried.api.verdict import Reason, Verdict
from serried.plan.quorum import MemberState, find_member_state


class CycleUpdates:
    """Updates binding cycles, or ends them. One per core, used by all cycles. Every method is synchronous."""

    def __init__(self, context: Context, queue: Queue, planning: Planning) -> None:
        self._store = context.store
        self._ledger = context.ledger
        self._groups = context.groups
        self._term = context.term
        self._permit = Permit(context)
        self.slot_assigner = SlotAssigner(context)
        self.reassignments = Reassignments(context, planning, self.slot_assigner)
        self.offers = Offers(context, self.reassignments)
        self.endings = CycleEndings(context, queue)
        self._activity = context.groups.activity
        self._outbox = context.outbox
        self._clock = context.clock

    def check_periodically(self, cycle: BindingCycle) -> None:
        """Do what depends on time in a cycle, twice a second.

        If members have to be placed in waves, i.e. some before others, begin with the next wave if the present one has
        its nodes (`SlotAssigner.open_next`). Make kube-scheduler retry members that it has not tried for a while. Add
        the time in which kube-scheduler was idle to the cycle's idle time, on which its deadline depends. If
        kube-scheduler has rejected members, or members are stuck because they do not fit on their nodes any more,
        requeue the group, so that `update` checks these members.
        """
        self.slot_assigner.open_next(cycle)
        self._outbox.put(ActivateIdle(cycle))
        self._activity.count_idle(cycle)
        refused = self.offers.find_rejected(cycle, cycle.reservation.slots.keys())
        refused += self.offers.find_rejected_after_filter(cycle, cycle.reservation.slots)
        refused += self._find_displaced(cycle, cycle.reservation.slots)
        for uid in refused:
            cycle.mark_changed(uid)
        if refused:
            self._groups.mark_dirty(cycle.reservation.group)

    def update(self, state: GroupState) -> Verdict | None:
        """Update the binding cycle of a group after changes. End the cycle if the gang cannot start any more.

        Only members that have changed are checked (`BindingCycle.take_changed`), because a gang of thousands of members
        is updated thousands of times. Return the verdict to report; None if the last one still holds, the group has no
        cycle, or the end of the cycle has reported one.
        """
        cycle = state.cycle
        if cycle is None:
            return None
        try:
            return self._update(state, cycle)
        except Exception:
            cycle.check_all_members()  # only some of the changed members may have been checked
            raise

    def _update(self, state: GroupState, cycle: BindingCycle) -> Verdict | None:
        committed = bool(cycle.reservation.committed)
        group = self._permit.find_group(cycle)
        if not committed and group is None:
            self.endings.abort(cycle, Verdict(Reason.POD_GROUP_MISSING))
            return None
        changed = self._take_changed(cycle)
        refusal = self.offers.drop_rejected(cycle, changed)
        if refusal is not None:
            self.endings.abort(cycle, refusal)
            return None
        self._move_rejected(cycle, changed)
        if cycle.over:
            return None
        self._check_members(cycle, changed)
        self.slot_assigner.open_next(cycle)
        if group is None:
            # The PodGroup is deleted, or was created again under its name. A commit is finished, nothing more is bound.
            self._drop_surplus(cycle, "the PodGroup was deleted or recreated")
        else:
            self._update_quorum(state, cycle, group)
        cycle.changed.set()
        return self._describe(cycle)

    def _take_changed(self, cycle: BindingCycle) -> Collection[str]:
        changed = cycle.take_changed()
        if changed is None:
            mates = (pod.uid for pod in self._store.members.iterate(cycle.reservation.group))
            changed = dict.fromkeys(chain(cycle.reservation.slots, mates))
            cycle.note_checked(())
        elif "" in changed:
            cycle.note_checked(())
        return changed

    def _drop_surplus(self, cycle: BindingCycle, error: str) -> None:
        self.reassignments.drop_surplus(cycle, error)
        self._check_members(cycle, self._take_changed(cycle))  # a dropped member may get another slot at once

    def _check_members(self, cycle: BindingCycle, uids: Iterable[str]) -> None:
        for uid in uids:
            if uid in cycle.reservation.slots:
                self._update_member(cycle, uid)
            self._update_late(cycle, uid)

    def _update_late(self, cycle: BindingCycle, uid: str) -> None:
        """Note whether a member waits without a slot, so that a slot is planned for it.

        A member of a PodGroup that is not part of this cycle is not noted: its PodGroup is planned as a whole in the
        next cycle.
        """
        pod = self._store.pods.get(uid)
        if uid in cycle.reservation.slots:
            cycle.drop_late(uid)
            return
        if uid in cycle.at_bind:
            cycle.close_call(uid, "serried: no node is planned for the pod any more")
        members, reservation = self._store.members, cycle.reservation
        ours = members.group_of(uid) == reservation.group and members.leaf_of(uid) in reservation.parts
        if (
            pod is not None
            and ours
            and uid not in cycle.bound
            and find_member_state(pod, self._store.schedulers) is MemberState.WAITING
        ):
            cycle.note_late(uid, pod.shape)
        else:
            cycle.drop_late(uid)

    def _describe(self, cycle: BindingCycle) -> Verdict | None:
        reservation = cycle.reservation
        if reservation.committed:
            need = len(reservation.committed)
            return Verdict(Reason.BINDING, have=len(cycle.bound), need=need, detail=cycle.find_failure())
        if cycle.waits_for_victims:
            return describe_preemption(reservation, self._store.pending_victims)
        if cycle.preempted and cycle.stage is CycleStage.GATHERING:
            return Verdict(Reason.PLANNED, need=reservation.need or len(reservation.slots))
        return None  # PLANNED was reported when the plan was made

    def _update_quorum(self, state: GroupState, cycle: BindingCycle, group: PodGroup) -> None:
        reservation = cycle.reservation
        if reservation.need and not reservation.committed:
            adjust_quorum(cycle, group, self._store, self._ledger)
        elif not reservation.need and self._permit.count_missing(cycle, group):
            # The cycle was planned for a gang with its quorum. Without it, only kept slots may be bound one by one.
            self._drop_surplus(cycle, "the gang has fewer than minCount members now")
        if self._term.obstacle:
            return
        if cycle.accepts_members:
            self.reassignments.plan_late_members(state, cycle, group)
        elif cycle.freed_slots and cycle.stage is CycleStage.PREEMPTING:
            self.reassignments.fill_freed_slots(cycle, group)

    def _update_member(self, cycle: BindingCycle, uid: str) -> None:
        pod = self._store.pods.get(uid)
        slot = cycle.reservation.slots[uid]
        member = cycle.member(uid)
        if pod is None or pod.deleting or pod.phase is not Phase.ACTIVE:
            if cycle.stage is CycleStage.PREEMPTING and cycle.eviction_sent:
                cycle.keep_freed_slot(slot, self._clock())
            self.reassignments.drop(cycle, uid, "the pod is being deleted")
        elif uid not in cycle.reservation.committed and self._store.members.group_of(uid) != cycle.reservation.group:
            self.reassignments.drop(cycle, uid, "the pod does not belong to the group any more")
        elif pod.node == slot.node and not member.bound:
            cycle.mark_bound(uid, self._clock())
        elif pod.node and pod.node != slot.node:
            error = f"the pod is bound to {pod.node}"
            if cycle.from_earlier_term and uid in cycle.reservation.committed:
                # An earlier term may have moved this slot and bound it without a record: the commit goes on.
                cycle.note_binding_sent()
            cycle.mark_bound_elsewhere(uid, f"serried: {error}")
            self.reassignments.drop(cycle, uid, error)
        elif pod.unschedulable and member.stage is MemberStage.WAITING:
            cycle.mark_unschedulable(uid)
            if cycle.accepts_members and not (member.nominated or pod.objection):
                self._outbox.put(Nominate(cycle, (uid,)))

    def handle_rejected_node(self, uid: str, node: str, names: Sequence[str] = ()) -> None:
        """Handle that kube-scheduler's filter call shows that it rejects the ``node`` of a member's slot.

        Move the slot to another node. If there is none, drop the member; if the quorum needs the member, end the cycle,
        so that the gang is planned again without that node. ``names`` are the nodes that kube-scheduler offered
        instead. Ignored if the member's slot is on another node by now, or its Binding is committed, being sent or
        done.
        """
        cycle = self._groups.find_cycle(uid)
        pod = self._store.pods.get(uid)
        if cycle is None or pod is None or not _may_change(cycle, uid) or cycle.reservation.slots[uid].node != node:
            return
        self.offers.note_rejected_node(cycle, pod, names)
        self.offers.exempt_if_evicted(cycle, pod)
        self.offers.close_unoffered(cycle, pod)
        cycle.close_call(uid, f"serried: kube-scheduler rejected node {node}")
        if self.reassignments.reassign(cycle, pod):
            return
        self.offers.note_rejected_domain(cycle, pod, names)
        self._drop_lost(cycle, pod, f"kube-scheduler rejected node {node} for {pod.name}")

    def _move_rejected(self, cycle: BindingCycle, uids: Collection[str]) -> None:
        """Check members (UIDs), and move the slots of those for which the planned node will not do to other nodes.

        kube-scheduler has rejected that node after filter had answered it, or the member does not fit there any more.
        A member for which there is no other node is dropped. The cycle is aborted if the quorum needs the member.
        """
        for uid in self.offers.find_rejected_after_filter(cycle, uids):
            pod = self._store.pods.get(uid)
            if cycle.over or pod is None or not pod.pending or uid not in cycle.reservation.slots:
                continue
            node = cycle.reservation.slots[uid].node
            self.offers.note_rejection_after_filter(cycle, pod)
            if not self.reassignments.reassign(cycle, pod):
                self._drop_lost(cycle, pod, f"kube-scheduler rejected node {node} for {pod.name}: {pod.said}")
                # Each plan avoids one more node, so the plans end by themselves and need no backoff.
                self._groups.states[cycle.reservation.group].entry.end_backoff()
        for uid in self._find_displaced(cycle, uids):
            pod = self._store.pods.get(uid)
            if cycle.over or pod is None or not pod.pending or uid not in cycle.reservation.slots:
                continue  # _check_members handles members that are deleted or bound by now
            misfit = self._permit.find_misfit(cycle, uid)
            if misfit is not None and not self.reassignments.reassign(cycle, pod):
                self._drop_lost(cycle, pod, misfit)

    def _find_displaced(self, cycle: BindingCycle, uids: Collection[str]) -> list[str]:
        """Return those of these members (UIDs) that seem stuck because they do not fit on their nodes any more.

        Only members are checked that kube-scheduler has rejected, or for which it has not called bind in time. Empty
        while victims of the gang still run on the nodes.
        """
        if cycle.waits_for_victims:
            return []
        settled = cycle.idle_seconds >= REJECTION_COUNTS_SECONDS
        tried = self._activity.find_rejected(cycle, uids) - cycle.reservation.committed if settled else ()
        rejected = [uid for uid in tried if cycle.member(uid).stage is MemberStage.UNSCHEDULABLE]
        stuck = self.offers.find_stuck(cycle, uids)
        return [uid for uid in (*rejected, *stuck) if self._permit.find_misfit(cycle, uid) is not None]

    def _drop_lost(self, cycle: BindingCycle, pod: Pod, detail: str) -> None:
        """Drop a member from the cycle, because there is no other slot for it.

        ``detail`` says why its own slot is lost. Abort the cycle if its quorum is out of reach without the member.
        """
        self.reassignments.drop(cycle, pod.uid, detail)
        if cycle.reservation.committed or not cycle.reservation.need:
            return  # the quorum does not need this member, and committed members are bound in any case
        if cycle.out_of_reach() and not self.reassignments.drop_incomplete_groups(cycle, cycle.reservation.slots):
            self.endings.abort(cycle, Verdict(Reason.PLAN_OUTDATED, detail=detail))

    def note_victims_ended(self, cycle: BindingCycle) -> None:
        """Requeue the group of a cycle, because all victims have ended and its verdict has to say so."""
        self._groups.mark_dirty(cycle.reservation.group)

    def note_failure(self, cycle: BindingCycle, uid: str, error: str) -> None:
        """Note that the Binding of a committed member has failed with ``error`` and is repeated.

        The group is requeued, so that its verdict says so. Ignored if the member has lost its slot.
        """
        slot = cycle.reservation.slots.get(uid)
        if slot is not None:
            cycle.note_failure(uid, f"the Binding of {slot.name} failed, and Serried tries it again: {error}")
            self._groups.mark_dirty(cycle.reservation.group)


def _may_change(cycle: BindingCycle, uid: str) -> bool:
    """Return whether the slot of a member may still change: its Binding is not committed, being sent or done."""
    decided = uid in cycle.reservation.committed
    return not decided and cycle.member(uid).stage not in (MemberStage.SENDING, MemberStage.BOUND)
