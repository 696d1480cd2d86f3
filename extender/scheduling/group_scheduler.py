"""Decides which group is planned when, and begins, tends and ends cycles.

The loop (`extender.loop`) takes the touched groups in queue order and has each considered: synchronously, from the
state at that instant, so that no await lies between reading the state and reserving in it. What follows outside of this
process (nominations, the task of a cycle, evictions) is put into the outbox.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from extender.scheduling.activity import SchedulerActivity
from extender.scheduling.checks import (
    describe_claims,
    find_conflict,
    find_shortage,
    find_taken,
    is_foreign,
    is_suspended,
)
from extender.scheduling.cycle import BindingCycle
from extender.scheduling.effects import Activate, ActivateIdle, Nominate, Outbox, StartCycle
from extender.scheduling.endings import CycleEndings
from extender.scheduling.group_state import GroupState, Mending
from extender.scheduling.groups import Groups
from extender.scheduling.held import HeldPods
from extender.scheduling.member import MemberStage
from extender.scheduling.moves import Moves
from extender.scheduling.nomination import NominationPolicy
from extender.scheduling.offers import Offers
from extender.scheduling.permit import Permit
from extender.scheduling.planning import Planning
from extender.scheduling.queue import Queue
from extender.scheduling.repairs import Repairs
from extender.scheduling.requests import build_request, find_next_opening
from extender.scheduling.seats import Seats
from extender.scheduling.slots import adjust_quorum, make_reservation
from extender.scheduling.studies import Studies, Unfinished
from extender.scheduling.term import Term
from serried.cluster.ledger import Ledger
from serried.cluster.store import Store
from serried.model.group import GroupKey, PodGroup
from serried.model.plan import Plan, PlanRequest
from serried.model.pod import Phase, Pod
from serried.model.preference import NO_PREFERENCE
from serried.model.tree import Leaf
from serried.model.verdict import Reason, Verdict
from serried.plan.order import Waiting
from serried.plan.quorum import GroupMembers

_EXCLUDED_SECONDS = 30.0
_CONFLICT_SECONDS = 30.0
_ERROR_SECONDS = 10.0


class GroupScheduler:
    """The one who begins cycles, and has them ended. Every method is synchronous.

    ``job_unknown_deadline`` is for how many seconds a pod whose Job is not known is held.
    """

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        groups: Groups,
        held: HeldPods,
        *,
        term: Term,
        queue: Queue,
        studies: Studies,
        planning: Planning,
        seats: Seats,
        repairs: Repairs,
        permit: Permit,
        moves: Moves,
        offers: Offers,
        endings: CycleEndings,
        activity: SchedulerActivity,
        outbox: Outbox,
        clock: Callable[[], float],
        nomination: NominationPolicy = NominationPolicy.AUTO,
        job_unknown_deadline: float = 30.0,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._groups = groups
        self._held = held
        self._term = term
        self._queue = queue
        self._studies = studies
        self._planning = planning
        self._seats = seats
        self._repairs = repairs
        self._permit = permit
        self._moves = moves
        self._offers = offers
        self._endings = endings
        self._activity = activity
        self._outbox = outbox
        self._clock = clock
        self._nomination = nomination
        self._job_unknown_deadline = job_unknown_deadline

    # --- terms -------------------------------------------------------------------------------------------------

    def end_term(self) -> None:
        """Another instance may lead from now on: all that goes on here ends, and nothing is written about it.

        The records say what follows: the next leader takes up what was planned and rolls forward what was committed.
        """
        self._term.end()
        self._endings.leave_all()
        self._forget_seen()
        for gang in self._groups.states.values():
            gang.verdict = None  # it may not be told yet, or another instance may say otherwise

    def stand_by(self) -> None:
        """Another instance leads. A new term looks at every group; pods without one may still have to be let go."""
        self._store.touched.groups.clear()
        self._store.touched.orphans &= self._store.pods.keys()
        self._forget_seen()

    def _forget_seen(self) -> None:
        self._repairs.end_term(self._groups.states.values())
        self._studies.clear()

    def meet_obstacle(self, what: str) -> None:
        """What keeps this term from planning, a phrase; "" for nothing (any more). Every group is looked at again."""
        if self._term.obstacle and not what:
            # What was promised before was not known yet.
            self._repairs.end_term(self._groups.states.values())
        self._term.obstacle = what
        self._store.touched.update(self._store.groups, self._store.members.groups(), self._groups.states)
        self._groups.wake()

    # --- who is looked at --------------------------------------------------------------------------------------

    def take_touched(self) -> set[GroupKey]:
        """The groups that a change may concern. Pods that have lost their group are let go."""
        touched = self._store.touched.take_groups()
        for uid in self._store.touched.take_orphans():
            if self._store.members.group_of(uid) is None:
                self._let_go(uid)
        return touched

    def take_woken(self) -> set[GroupKey]:
        """The waiting groups that freed room could help."""
        states = self._groups.states
        return {key for key in self._queue.take_woken() if key in states and states[key].cycle is None}

    def tick(self) -> set[GroupKey]:
        """See to what has to be seen to from time to time; the groups whose time has come."""
        now = self._clock()
        self._queue.review()
        for key, gang in list(self._groups.states.items()):
            if gang.cycle is not None and gang.cycle.steers:
                self._outbox.put(ActivateIdle(gang.cycle))
                self._activity.count_idle(gang.cycle)
            elif gang.verdict is not None and gang.verdict.reason is Reason.JOB_UNKNOWN and not gang.passed:
                self.consider(key)
            if not self._term.obstacle:
                self._repairs.review(key, gang)
        self._store.touched.update(self._store.vacancies.groups())  # their time passes without any change
        # Held before its Job or its own object was known here, or while the caches were filled: it is no gang's.
        self._held.review(now)
        for uid in [uid for uid in self._held if self._store.members.group_of(uid) is None]:
            self._let_go(uid)
        return {key for key, gang in self._groups.states.items() if self._planning.is_due(gang)}

    def in_turn(self, due: set[GroupKey]) -> list[GroupKey]:
        """These groups in the order in which they are looked at."""
        return [waiting.group for waiting in self._queue.order(self.describe(key) for key in due)]

    def describe(self, key: GroupKey) -> Waiting:
        """A group as the queue sees it."""
        gang = self._groups.states.get(key)
        # A member that has just ended counts at once: whoever was looked at first would get the room.
        broken = (gang is not None and gang.broken_since is not None) or key in self._store.vacancies
        return self._queue.describe(key, gang.quorum_since if gang is not None else None, broken=broken)

    def put_off(self, key: GroupKey) -> None:
        """Considering a group has failed: it is tried again after a pause."""
        if key in self._groups.states:
            self._groups.states[key].retry_at = self._clock() + _ERROR_SECONDS

    # --- one group ---------------------------------------------------------------------------------------------

    def consider(self, key: GroupKey) -> None:
        """Look at one group and do what its state asks for."""
        group = self._store.groups.get(key)
        self._repairs.note_filled()
        if group is None and not self._store.members.of_group(key):
            self._forget(key)
            return
        if group is not None and group.parent is not None:
            self._forget(key)  # its members are its tree's
            return
        gang = self._groups.states.setdefault(key, GroupState(self._clock()))
        if gang.cycle is not None:  # whose members are looked at one by one there
            verdict = self._tend(gang)
        else:
            members = self._store.members.of_group(key)
            if is_foreign(group, members, self._store):
                self._drop(key)
                return
            verdict = self._assess(key, gang, group, members)
        if verdict is not None:
            self._groups.say(key, verdict)

    def _forget(self, key: GroupKey) -> None:
        gang = self._groups.states.get(key)
        if gang is None:
            return
        if gang.cycle is not None and not gang.cycle.reservation.committed:
            self._endings.abort(gang.cycle, Verdict(Reason.POD_GROUP_MISSING))
        if gang.cycle is None:
            self._drop(key)

    def _drop(self, key: GroupKey) -> None:
        self._queue.leave(key)
        self._store.vacancies.close_group(key)
        del self._groups.states[key]

    def _assess(self, key: GroupKey, gang: GroupState, group: PodGroup | None, members: list[Pod]) -> Verdict | None:
        if group is None or group.deleting:
            self._repairs.forget(gang)
            return self._assess_missing(key, gang, members)
        group_members = self._store.members.classify(key)
        if not group.policy.is_gang and group.topology_key is None:
            for pod in group_members.waiting:
                self._let_go(pod.uid)
            return Verdict(Reason.SCHEDULED, have=group_members.placed) if group_members.placed else None
        mending = self._repairs.settle(gang, group, group_members)
        return self._repairs.judge(gang, group, group_members, self._advance(gang, group, group_members, mending))

    def _advance(
        self, gang: GroupState, group: PodGroup, group_members: GroupMembers, mending: Mending
    ) -> Verdict | None:
        shortage = find_shortage(group, group_members, self._store, mending)
        if shortage is not None or not group_members.waiting:
            self._queue.leave(group.key)
        quiet = shortage is not None and not (group_members.waiting or group_members.gated or group_members.refused)
        if quiet and (group.scheduled or (gang.verdict is None and is_suspended(group, self._store))):
            return None  # nobody waits: it ran, and its pods are going one by one, or none are wanted yet
        if shortage is not None:
            if not group_members.refused:  # those exist: the gang keeps its place in the queue
                gang.quorum_since = None
            return shortage
        if gang.quorum_since is None:
            gang.quorum_since = self._clock()
        if not group_members.waiting:
            return find_conflict(group, group_members, self._store.nodes) or Verdict(
                Reason.SCHEDULED, have=group_members.placed
            )
        if self._term.obstacle:
            self._queue.leave(group.key)
            return Verdict(Reason.RECORDS_UNREADABLE, detail=self._term.obstacle)
        return self._try(gang, group, group_members, mending)

    def _assess_missing(self, key: GroupKey, gang: GroupState, members: list[Pod]) -> Verdict | None:
        if not any(pod.pending for pod in members):
            return None
        if not self._store.owners.is_awaited(key):
            gang.passed = False
            obstacle, gap = self._store.obstacles.to(key), self._store.forest.find_gap(key)
            return Verdict(Reason.API_MISSING if obstacle else Reason.POD_GROUP_MISSING, detail=obstacle or gap)
        if not gang.passed and self._clock() - gang.first_seen > self._job_unknown_deadline:
            # A pod whose Job does not exist is on its way to garbage collection; holding it longer helps nobody.
            gang.passed = True
        if gang.passed:
            for pod in members:
                self._let_go(pod.uid)
        return Verdict(Reason.JOB_UNKNOWN)

    def _try(self, gang: GroupState, group: PodGroup, group_members: GroupMembers, mending: Mending) -> Verdict | None:
        now = self._clock()
        priority = self._store.priorities.find_own(group.key)
        if now < gang.not_before:
            return self._queue.foresee(self.describe(group.key))
        tried = (
            tuple((pod.uid, pod.shape) for pod in group_members.waiting),
            (group_members.placed, len(group_members.terminating)),
            (group.policy, group.tree, priority),
            mending,
        )
        gang.not_before = 0.0
        if group.key in self._queue and gang.tried == tried and now < gang.retry_at:
            return self._queue.foresee(self.describe(group.key))
        gang.retry_at, gang.tried = math.inf, tried
        excluded = gang.exclusions(group_members.waiting, now, self._store.nodes)
        waited = now - (now if gang.quorum_since is None else gang.quorum_since)
        ask = build_request(group, group_members, excluded, self._store.nodes, waited, mending, gang.home)
        if isinstance(ask, Verdict):
            self._queue.leave(group.key)
            gang.retry_at = now + _CONFLICT_SECONDS  # a label of a full node is no room: nobody wakes the group for it
            return ask
        ask = replace(ask, taken=find_taken(group, self._store, self._ledger), group_priority=priority)
        ask = ask.avoiding(gang.unoffered(ask.members, now, self._store.nodes))
        place = self.describe(group.key)
        try:
            answer = self._queue.plan(place, ask)
        except Unfinished:
            return self._planning.describe_wait(gang, ask)  # and again when it is there
        if isinstance(answer, Verdict):
            forgotten = _EXCLUDED_SECONDS if excluded or ask.closed else math.inf
            gang.retry_at = now + min(find_next_opening(group, waited), forgotten)
            self._planning.rest(gang, group.key, answer)
            return answer
        self._studies.settle(group.key)
        self._begin(gang, group, ask, answer, self._queue.closed_to(place, ask))
        claims = describe_claims(ask.members, self._store)
        return Verdict(Reason.PLANNED, need=ask.need or len(answer.nodes), detail=claims)

    def _begin(self, gang: GroupState, group: PodGroup, ask: PlanRequest, plan: Plan, closed: frozenset[str]) -> None:
        now = self._clock()
        pods = {pod.uid: pod for pod in ask.members if pod.uid in plan.nodes}
        reservation = make_reservation(group, ask, plan, self._store)
        self._ledger.reserve(reservation, pods)
        if ask.need:
            self._seats.move_out(plan)
        # Every member of a tree has a domain of its own, which an offered node may not be in.
        plain = group.preference == NO_PREFERENCE and isinstance(group.tree, Leaf)
        any_node = plain and self._nomination.allows_any_node(plan)
        cycle = BindingCycle(group, reservation, now, now, any_node=any_node, closed=closed)
        for uid, pod in pods.items():
            if self._held.needs_activation(pod):
                cycle.mark_unschedulable(uid)
        self.start(gang, cycle)

    def start(self, gang: GroupState, cycle: BindingCycle) -> None:
        """Begin a cycle whose reservation is held."""
        gang.cycle = cycle
        self._queue.note_begun(cycle.reservation.group)
        self._outbox.put(StartCycle(cycle))

    # --- a group in a cycle ------------------------------------------------------------------------------------

    def _tend(self, gang: GroupState) -> Verdict | None:
        cycle = gang.cycle
        if cycle is None:
            return None
        committed, group = bool(cycle.reservation.committed), self._permit.find_group(cycle)
        if not committed and group is None:
            self._endings.abort(cycle, Verdict(Reason.POD_GROUP_MISSING))
            return None
        if (refusal := self._offers.drop_refused(cycle)) is not None:
            self._endings.abort(cycle, refusal)
            return None
        for uid in list(cycle.reservation.slots):
            self._tend_member(cycle, uid)
        if group is None:
            # What was committed is all that a group gets that is gone, or that was made anew under its name.
            self._moves.drop_surplus(cycle, "its PodGroup is gone, or was made anew")
        else:
            self._tend_quorum(gang, cycle, group)
        for uid in cycle.at_bind - cycle.reservation.slots.keys():
            cycle.close_call(uid, "serried: the pod has no slot any more")
        cycle.changed.set()
        if committed:
            need = len(cycle.reservation.committed)
            return Verdict(Reason.BINDING, have=len(cycle.bound), need=need, detail=cycle.find_failure())
        return None

    def _tend_quorum(self, gang: GroupState, cycle: BindingCycle, group: PodGroup) -> None:
        reservation = cycle.reservation
        if reservation.need and not reservation.committed:
            adjust_quorum(cycle, group, self._store, self._ledger)
        elif not reservation.need and self._permit.count_missing(cycle, group):
            # It was planned for a gang that stands. Whoever has no slot of its own waits for the others now.
            self._moves.drop_surplus(cycle, "its gang is below its quorum by now")
        if cycle.steers and not self._term.obstacle:
            self._moves.refill(gang, cycle, group)

    def _tend_member(self, cycle: BindingCycle, uid: str) -> None:
        pod, slot, member = self._store.pods.get(uid), cycle.reservation.slots[uid], cycle.member(uid)
        if pod is None or pod.deleting or pod.phase is not Phase.ACTIVE:
            self._moves.drop(cycle, uid, "the pod is being deleted")
        elif uid not in cycle.reservation.committed and self._store.members.group_of(uid) != cycle.reservation.group:
            self._moves.drop(cycle, uid, "the pod has left the group")
        elif pod.node == slot.node and not member.bound:
            cycle.mark_bound(uid, self._clock())
        elif pod.node and pod.node != slot.node:
            error = f"the pod is bound to {pod.node}"
            cycle.mark_bound_elsewhere(uid, f"serried: {error}")
            self._moves.drop(cycle, uid, error)
        elif pod.unschedulable and member.stage is MemberStage.WAITING:
            cycle.mark_unschedulable(uid)
            if cycle.steers and not member.nominated:
                self._outbox.put(Nominate(cycle, (uid,)))

    def refuse(self, uid: str, node: str) -> None:
        """The scheduler knows that a member's planned node will not do: move that slot, or plan the gang anew.

        A member that the quorum does not need just loses its slot. Nothing happens if the plan is another by now.
        """
        cycle, pod = self._groups.cycle_of(uid), self._store.pods.get(uid)
        if cycle is None or pod is None or uid in cycle.reservation.committed:
            return
        if cycle.member(uid).stage in (MemberStage.SENDING, MemberStage.BOUND):
            return
        if cycle.reservation.slots[uid].node != node:
            return
        self._groups.states[cycle.reservation.group].refuse(pod.shape, node, self._clock(), self._store.nodes)
        self._offers.close(cycle, pod)
        cycle.close_call(uid, f"serried: the scheduler refused {node}")
        if self._moves.replace(cycle, pod):
            return
        self._moves.drop(cycle, uid, f"the scheduler refused {node}")
        if cycle.reservation.committed:
            return  # a member beyond the quorum; those that are committed are only ever rolled forward
        if cycle.out_of_reach() and not self._moves.leave_out(cycle, cycle.reservation.slots):
            detail = f"the scheduler refused node {node} for {pod.name}"
            self._endings.abort(cycle, Verdict(Reason.PLAN_OUTDATED, detail=detail))

    def note_failure(self, cycle: BindingCycle, uid: str, error: str) -> None:
        """A committed member's Binding was refused, and is tried again: the group's reason says so meanwhile."""
        slot = cycle.reservation.slots.get(uid)
        if slot is not None:
            cycle.note_failure(uid, f"the Binding of {slot.name} failed and is tried again: {error}")
            self._groups.look_again(cycle.reservation.group)

    def _let_go(self, uid: str) -> None:
        # The pod belongs to no gang (any more): the scheduler must hear of it, or it waits for its 5 minute flush.
        pod = self._store.pods.get(uid)
        was_held = self._held.forget(uid)
        if pod is not None and pod.pending and (was_held or pod.held_by_gate):
            self._outbox.put(Activate(pod))
