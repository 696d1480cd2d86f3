"""Cycles that go on while the cluster changes: members that end, leave, are bound, or are refused by the scheduler."""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain

from extender.scheduling.activity import SchedulerActivity
from extender.scheduling.cycle import BindingCycle, CycleStage
from extender.scheduling.effects import ActivateIdle, Nominate, Outbox
from extender.scheduling.endings import CycleEndings
from extender.scheduling.group_state import GroupState
from extender.scheduling.groups import Groups
from extender.scheduling.member import MemberStage
from extender.scheduling.moves import Moves
from extender.scheduling.offers import Offers
from extender.scheduling.permit import Permit
from extender.scheduling.preemption import describe_wait
from extender.scheduling.slots import adjust_quorum
from extender.scheduling.term import Term
from serried.cluster.ledger import Ledger
from serried.cluster.store import Store
from serried.model.group import PodGroup
from serried.model.pod import Phase
from serried.model.verdict import Reason, Verdict
from serried.plan.quorum import Standing, find_standing


class CycleTending:
    """Brings cycles up to date, or ends them. Every method is synchronous. ``clock`` gives loop seconds."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        groups: Groups,
        term: Term,
        *,
        permit: Permit,
        moves: Moves,
        offers: Offers,
        endings: CycleEndings,
        activity: SchedulerActivity,
        outbox: Outbox,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._groups = groups
        self._term = term
        self._permit = permit
        self._moves = moves
        self._offers = offers
        self._endings = endings
        self._activity = activity
        self._outbox = outbox
        self._clock = clock

    def review(self, cycle: BindingCycle) -> None:
        """See to what has to be seen to from time to time while members are sent to their slots."""
        self._outbox.put(ActivateIdle(cycle))
        self._activity.count_idle(cycle)
        refused = self._offers.find_refused(cycle, cycle.reservation.slots.keys())
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
            self._endings.abort(cycle, Verdict(Reason.POD_GROUP_MISSING))
            return None
        news = self._take_news(cycle)
        refusal = self._offers.drop_refused(cycle, news)
        if refusal is not None:
            self._endings.abort(cycle, refusal)
            return None
        self._look_at(cycle, news)
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
        self._moves.drop_surplus(cycle, error)
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
            and find_standing(pod, self._store.schedulers) is Standing.WAITING
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
            return describe_wait(reservation, self._store.yields)
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
            self._moves.refill(state, cycle, group)
        elif cycle.freed_slots and cycle.stage is CycleStage.PREEMPTING:
            self._moves.fill_freed(cycle, group)

    def _tend_member(self, cycle: BindingCycle, uid: str) -> None:
        pod = self._store.pods.get(uid)
        slot = cycle.reservation.slots[uid]
        member = cycle.member(uid)
        if pod is None or pod.deleting or pod.phase is not Phase.ACTIVE:
            if cycle.stage is CycleStage.PREEMPTING and cycle.eviction_sent:
                cycle.free_slot(slot, self._clock())
            self._moves.drop(cycle, uid, "the pod is being deleted")
        elif uid not in cycle.reservation.committed and self._store.members.group_of(uid) != cycle.reservation.group:
            self._moves.drop(cycle, uid, "the pod has left the group")
        elif pod.node == slot.node and not member.bound:
            cycle.mark_bound(uid, self._clock())
        elif pod.node and pod.node != slot.node:
            error = f"the pod is bound to {pod.node}"
            if cycle.taken_up and uid in cycle.reservation.committed:
                # An earlier term may have moved its slot without a word: the rest of the commit has to follow.
                cycle.note_binding_sent()
            cycle.mark_bound_elsewhere(uid, f"serried: {error}")
            self._moves.drop(cycle, uid, error)
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
        if cycle is None or pod is None or uid in cycle.reservation.committed:
            return
        if cycle.member(uid).stage in (MemberStage.SENDING, MemberStage.BOUND):
            return
        if cycle.reservation.slots[uid].node != node:
            return
        self._offers.note_refusal(cycle, pod, names)
        self._offers.note_vain(cycle, pod)
        self._offers.close(cycle, pod)
        cycle.close_call(uid, f"serried: the scheduler refused {node}")
        if self._moves.replace(cycle, pod):
            return
        self._offers.refuse_domain(cycle, pod, names)
        self._moves.drop(cycle, uid, f"the scheduler refused {node}")
        if cycle.reservation.committed or not cycle.reservation.need:
            return  # a member beyond the quorum; those that are committed are only ever rolled forward
        if cycle.out_of_reach() and not self._moves.leave_out(cycle, cycle.reservation.slots):
            detail = f"the scheduler refused node {node} for {pod.name}"
            self._endings.abort(cycle, Verdict(Reason.PLAN_OUTDATED, detail=detail))

    def note_room(self, cycle: BindingCycle) -> None:
        """Its victims have ended: the group's reason says that it waits for the scheduler now."""
        self._groups.look_again(cycle.reservation.group)

    def note_failure(self, cycle: BindingCycle, uid: str, error: str) -> None:
        """A committed member's Binding was refused, and is tried again: the group's reason says so meanwhile."""
        slot = cycle.reservation.slots.get(uid)
        if slot is not None:
            cycle.note_failure(uid, f"the Binding of {slot.name} failed and is tried again: {error}")
            self._groups.look_again(cycle.reservation.group)
