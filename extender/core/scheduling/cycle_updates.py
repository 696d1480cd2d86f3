"""Cycles that go on while the cluster changes: each look at a gang brings its cycle up to date, or ends it.

Nothing here awaits.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from extender.core.scheduling.binding_cycle import BindingCycle, CycleStage
from extender.core.scheduling.cycle_member import MemberStage
from extender.core.scheduling.effects import ActivateIdle, Context, Nominate
from extender.core.scheduling.group import GroupState
from extender.core.scheduling.offers import SETTLED_SECONDS, Offers
from extender.core.scheduling.permit import Permit, adjust_quorum
from extender.core.scheduling.planning import Planning
from extender.core.scheduling.queue import Queue
from extender.core.scheduling.reassignments import Reassignments
from extender.core.scheduling.request import describe_wait
from extender.core.scheduling.scheduling_cycle import CycleEndings
from extender.core.scheduling.seating import Seating
from serried.api.group import PodGroup
from serried.api.pod import Phase, Pod
from serried.api.verdict import Reason, Verdict
from serried.plan.quorum import MemberState, find_member_state


class CycleUpdates:
    """Brings cycles up to date, or ends them. Every method is synchronous. ``clock`` gives loop seconds."""

    def __init__(self, context: Context, queue: Queue, planning: Planning) -> None:
        self._store = context.store
        self._ledger = context.ledger
        self._groups = context.groups
        self._term = context.term
        self._permit = Permit(context)
        self.seating = Seating(context)
        self.reassignments = Reassignments(context, planning, self.seating)
        self.offers = Offers(context, self.reassignments)
        self.endings = CycleEndings(context, queue)
        self._activity = context.groups.activity
        self._outbox = context.outbox
        self._clock = context.clock

    def review(self, cycle: BindingCycle) -> None:
        """See to what has to be seen to from time to time while members are sent to their slots."""
        self.seating.open_next(cycle)
        self._outbox.put(ActivateIdle(cycle))
        self._activity.count_idle(cycle)
        refused = self.offers.find_refused(cycle, cycle.reservation.slots.keys())
        refused += self.offers.find_refused_after(cycle, cycle.reservation.slots)
        refused += self._find_displaced(cycle, cycle.reservation.slots)
        for uid in refused:
            cycle.note_news(uid)
        if refused:
            self._groups.look_again(cycle.reservation.group)

    def tend(self, state: GroupState) -> Verdict | None:
        """Bring the cycle of a group up to date; what is to be said of the group then, if anything.

        Only those members are looked at of which there is news: a gang of thousands is tended thousands of times.
        """
        cycle = state.cycle
        if cycle is None:
            return None
        try:
            return self._tend(state, cycle)
        except Exception:
            cycle.forget_looks()  # nobody knows how far it came
            raise

    def _tend(self, state: GroupState, cycle: BindingCycle) -> Verdict | None:
        committed = bool(cycle.reservation.committed)
        group = self._permit.find_group(cycle)
        if not committed and group is None:
            self.endings.abort(cycle, Verdict(Reason.POD_GROUP_MISSING))
            return None
        news = self._take_news(cycle)
        refusal = self.offers.drop_refused(cycle, news)
        if refusal is not None:
            self.endings.abort(cycle, refusal)
            return None
        self._move_refused(cycle, news)
        if cycle.over:
            return None
        self._look_at(cycle, news)
        self.seating.open_next(cycle)
        if group is None:
            # What was committed is all that a group gets that is gone, or that was made anew under its name.
            self._drop_surplus(cycle, "its PodGroup is gone, or was made anew")
        else:
            self._tend_quorum(state, cycle, group)
        cycle.changed.set()
        return self._describe(cycle)

    def _take_news(self, cycle: BindingCycle) -> Collection[str]:
        news = cycle.take_news()
        if news is None:
            mates = (pod.uid for pod in self._store.members.iterate(cycle.reservation.group))
            news = dict.fromkeys(chain(cycle.reservation.slots, mates))
            cycle.settle(())
        elif "" in news:
            cycle.settle(())
        return news

    def _drop_surplus(self, cycle: BindingCycle, error: str) -> None:
        self.reassignments.drop_surplus(cycle, error)
        self._look_at(cycle, self._take_news(cycle))  # who has lost its slot may get another one at once

    def _look_at(self, cycle: BindingCycle, uids: Iterable[str]) -> None:
        for uid in uids:
            if uid in cycle.reservation.slots:
                self._tend_member(cycle, uid)
            self._tend_late(cycle, uid)

    def _tend_late(self, cycle: BindingCycle, uid: str) -> None:
        """Note whether a member waits without a slot.

        The others' PodGroups are not in this cycle: each starts whole, in the next one.
        """
        pod = self._store.pods.get(uid)
        if uid in cycle.reservation.slots:
            cycle.drop_late(uid)
            return
        if uid in cycle.at_bind:
            cycle.close_call(uid, "serried: the pod has no slot any more")
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
        if cycle.preempts:
            return describe_wait(reservation, self._store.pending_victims)
        if cycle.preempted and cycle.stage is CycleStage.GATHERING:
            return Verdict(Reason.PLANNED, need=reservation.need or len(reservation.slots))
        return None  # it was said when the plan was made

    def _tend_quorum(self, state: GroupState, cycle: BindingCycle, group: PodGroup) -> None:
        reservation = cycle.reservation
        if reservation.need and not reservation.committed:
            adjust_quorum(cycle, group, self._store, self._ledger)
        elif not reservation.need and self._permit.count_missing(cycle, group):
            # It was planned for a gang that stands. Whoever has no slot of its own waits for the others now.
            self._drop_surplus(cycle, "its gang is below its quorum by now")
        if self._term.obstacle:
            return
        if cycle.steers:
            self.reassignments.refill(state, cycle, group)
        elif cycle.freed_slots and cycle.stage is CycleStage.PREEMPTING:
            self.reassignments.fill_freed(cycle, group)

    def _tend_member(self, cycle: BindingCycle, uid: str) -> None:
        pod = self._store.pods.get(uid)
        slot = cycle.reservation.slots[uid]
        member = cycle.member(uid)
        if pod is None or pod.deleting or pod.phase is not Phase.ACTIVE:
            if cycle.stage is CycleStage.PREEMPTING and cycle.eviction_sent:
                cycle.free_slot(slot, self._clock())
            self.reassignments.drop(cycle, uid, "the pod is being deleted")
        elif uid not in cycle.reservation.committed and self._store.members.group_of(uid) != cycle.reservation.group:
            self.reassignments.drop(cycle, uid, "the pod has left the group")
        elif pod.node == slot.node and not member.bound:
            cycle.mark_bound(uid, self._clock())
        elif pod.node and pod.node != slot.node:
            error = f"the pod is bound to {pod.node}"
            if cycle.taken_up and uid in cycle.reservation.committed:
                # An earlier term may have moved its slot without a word: the rest of the commit has to follow.
                cycle.note_binding_sent()
            cycle.mark_bound_elsewhere(uid, f"serried: {error}")
            self.reassignments.drop(cycle, uid, error)
        elif pod.unschedulable and member.stage is MemberStage.WAITING:
            cycle.mark_unschedulable(uid)
            if cycle.steers and not (member.nominated or pod.objection):
                self._outbox.put(Nominate(cycle, (uid,)))

    def refuse(self, uid: str, node: str, names: Sequence[str] = ()) -> None:
        """The scheduler knows that a member's planned node will not do: move that slot, or plan the gang anew.

        ``names`` are the nodes that it offered instead. A member that the quorum does not need just loses its slot.
        Nothing happens if the plan is another by now.
        """
        cycle = self._groups.cycle_of(uid)
        pod = self._store.pods.get(uid)
        if cycle is None or pod is None or not _is_open(cycle, uid) or cycle.reservation.slots[uid].node != node:
            return
        self.offers.note_refusal(cycle, pod, names)
        self.offers.spare_if_evicted(cycle, pod)
        self.offers.close(cycle, pod)
        cycle.close_call(uid, f"serried: the scheduler refused {node}")
        if self.reassignments.replace(cycle, pod):
            return
        self.offers.refuse_domain(cycle, pod, names)
        self._drop_lost(cycle, pod, f"the scheduler refused node {node} for {pod.name}")

    def _move_refused(self, cycle: BindingCycle, uids: Collection[str]) -> None:
        """Move the members whose nodes the scheduler has tried in vain, or plan the gang anew."""
        for uid in self.offers.find_refused_after(cycle, uids):
            pod = self._store.pods.get(uid)
            if cycle.over or pod is None or not pod.pending or uid not in cycle.reservation.slots:
                continue
            node = cycle.reservation.slots[uid].node
            self.offers.note_refusal_after(cycle, pod)
            if not self.reassignments.replace(cycle, pod):
                self._drop_lost(cycle, pod, f"the scheduler refused node {node} for {pod.name}: {pod.said}")
                # Each try has closed one more node: it is no failure that has to wait, and there is an end to them.
                self._groups.states[cycle.reservation.group].entry.end_backoff()
        for uid in self._find_displaced(cycle, uids):
            pod = self._store.pods.get(uid)
            if cycle.over or pod is None or not pod.pending or uid not in cycle.reservation.slots:
                continue  # one that is gone, or bound by now, is looked at with the others
            misfit = self._permit.find_misfit(cycle, uid)
            if misfit is not None and not self.reassignments.replace(cycle, pod):
                self._drop_lost(cycle, pod, misfit)

    def _find_displaced(self, cycle: BindingCycle, uids: Collection[str]) -> list[str]:
        """Those of these members whom the scheduler has tried in vain because others have got their room; UIDs."""
        if cycle.preempts:
            return []
        settled = cycle.idle_seconds >= SETTLED_SECONDS
        tried = self._activity.find_refused(cycle, uids) - cycle.reservation.committed if settled else ()
        aside = [uid for uid in tried if cycle.member(uid).stage is MemberStage.UNSCHEDULABLE]
        stuck = self.offers.find_stuck(cycle, uids)
        return [uid for uid in (*aside, *stuck) if self._permit.find_misfit(cycle, uid) is not None]

    def _drop_lost(self, cycle: BindingCycle, pod: Pod, detail: str) -> None:
        """A member has lost its slot, and there is no other one for it: if the quorum needs it, the cycle is over."""
        self.reassignments.drop(cycle, pod.uid, detail)
        if cycle.reservation.committed or not cycle.reservation.need:
            return  # a member beyond the quorum; those that are committed are only ever rolled forward
        if cycle.out_of_reach() and not self.reassignments.leave_out(cycle, cycle.reservation.slots):
            self.endings.abort(cycle, Verdict(Reason.PLAN_OUTDATED, detail=detail))

    def note_room(self, cycle: BindingCycle) -> None:
        """Its victims have ended: the group's reason says that it waits for the scheduler now."""
        self._groups.look_again(cycle.reservation.group)

    def note_failure(self, cycle: BindingCycle, uid: str, error: str) -> None:
        """A committed member's Binding was refused, and is tried again: the group's reason says so meanwhile."""
        slot = cycle.reservation.slots.get(uid)
        if slot is not None:
            cycle.note_failure(uid, f"the Binding of {slot.name} failed and is tried again: {error}")
            self._groups.look_again(cycle.reservation.group)


def _is_open(cycle: BindingCycle, uid: str) -> bool:
    """Whether no Binding of a member is decided, on its way, or done."""
    decided = uid in cycle.reservation.committed
    return not decided and cycle.member(uid).stage not in (MemberStage.SENDING, MemberStage.BOUND)
