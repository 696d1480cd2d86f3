"""One try at a group: the request, the plan, and the reservation with which its binding cycle begins.

From the request to the reservation nothing awaits, so what the plan has seen still holds when it is reserved.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import replace

from extender.scheduling.checks import describe_claims, find_openable, find_taken
from extender.scheduling.cycle import BindingCycle
from extender.scheduling.effects import Outbox, StartCycle
from extender.scheduling.endings import CycleEndings
from extender.scheduling.group_state import GroupState, Repair
from extender.scheduling.groups import Groups
from extender.scheduling.held import HeldPods
from extender.scheduling.kept_slots import KeptSlots
from extender.scheduling.nomination import NominationPolicy
from extender.scheduling.planning import Planning
from extender.scheduling.preemption import Decision, Preemptions, describe_wait
from extender.scheduling.queue import Queue
from extender.scheduling.requests import build_request, find_next_opening
from extender.scheduling.shares import ExclusiveShares, SpentShare
from extender.scheduling.slots import describe_standing, make_reservation
from extender.scheduling.studies import Unfinished
from serried.cluster.exclusives import find_exclusive_key
from serried.cluster.ledger import Ledger
from serried.cluster.store import Store
from serried.model.backoff import Backoff
from serried.model.group import GroupKey, PodGroup
from serried.model.plan import Plan, PlanRequest
from serried.model.preference import NO_PREFERENCE
from serried.model.reservation import Reservation
from serried.model.tree import Leaf
from serried.model.verdict import Reason, Verdict
from serried.model.victim import Unit
from serried.plan.quorum import GroupMembers, Standing

_ROUND = Backoff(first=30.0, cap=120.0)
"""The pauses before a group is tried again everywhere that was refused on all nodes with room, or kept from them."""

_CONFLICT_SECONDS = 30.0
"""The pause before a group is tried again whose members contradict its constraint."""


class SchedulingCycle:
    """Plans groups, and begins their binding cycles. Every method is synchronous. ``clock`` gives loop seconds."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        queue: Queue,
        planning: Planning,
        *,
        exclusive_shares: ExclusiveShares,
        kept_slots: KeptSlots,
        preemptions: Preemptions,
        groups: Groups,
        endings: CycleEndings,
        held: HeldPods,
        outbox: Outbox,
        clock: Callable[[], float],
        nomination: NominationPolicy = NominationPolicy.AUTO,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._queue = queue
        self._planning = planning
        self._exclusive_shares = exclusive_shares
        self._kept_slots = kept_slots
        self._preemptions = preemptions
        self._groups = groups
        self._endings = endings
        self._held = held
        self._outbox = outbox
        self._clock = clock
        self._nomination = nomination

    def run(self, state: GroupState, group: PodGroup, group_members: GroupMembers, repair: Repair) -> Verdict | None:
        """Try to place a group that has its quorum, unless nothing has changed since the last try.

        What is to be said of the group then; None if that is what was said last.
        """
        now = self._clock()
        priority = self._store.priorities.find_own(group.key)
        if now < state.not_before:
            return self._go_on(state, group)
        tried = (
            tuple((pod.uid, pod.shape) for pod in group_members.waiting),
            (group_members.placed, len(group_members.terminating)),
            (group.policy, group.tree, priority),
            repair,
        )
        state.not_before = 0.0
        if group.key in self._queue and state.tried == tried and now < state.retry_at:
            return self._go_on(state, group)
        state.retry_at, state.unattended = math.inf, False
        state.tried = tried
        out = state.find_exclusions(group_members.waiting, now, self._store.nodes)
        waited = now - (now if state.quorum_since is None else state.quorum_since)
        request = build_request(group, group_members, out.pairs, self._store.nodes, waited, repair, state.home)
        if isinstance(request, Verdict):
            self._queue.leave(group.key)
            state.retry_at = now + _CONFLICT_SECONDS  # a label of a full node is no room: nobody wakes the group for it
            return request
        place = self._queue.describe(group.key, state)
        promised = self._queue.backfill.list_promised(place, group.topology_key)
        spent = self._exclusive_shares.find_spent(group, promised=promised)
        request = replace(self._close_taken(group, request, spent), group_priority=priority)
        request = self._keep_to_offers(state, request.avoiding(out.nodes))
        try:
            answer = self._queue.plan(place, request)
        except Unfinished:
            return self._planning.describe_wait(state, request)  # and again when it is there
        if isinstance(answer, Verdict):
            forgotten = _ROUND.delay(max(1, state.attempts)) if out.pairs or request.closed else math.inf
            opens_in = find_next_opening(group, waited)
            state.retry_at = now + min(opens_in, forgotten)
            state.end_round(now + forgotten)
            if state.rejection is not None:
                state.retry_at = min(state.retry_at, state.rejection.until)  # from then on others may go for it
                answer = replace(answer, detail=state.rejection.text)
            self._planning.rest(state, group.key, answer)
            if spent is not None and not request.pinned:
                answer = replace(answer, detail=spent.describe())
            request = request.avoiding(self._queue.closed_to(place, request))
            request = request.avoiding(state.find_vain(request.members, now, self._store.nodes))
            taken = state.find_taken(self._store.pods, self._store.nodes)
            found = self._preemptions.consider(state, place, request.avoiding(taken), answer, opens_in, len(taken))
            return self._preempt(state, group, found, answer)
        self._planning.settle(group.key)
        self._begin(state, group, request, answer, self._queue.closed_to(place, request))
        claims = describe_claims(request.members, self._store)
        return Verdict(Reason.PLANNED, need=request.need or len(answer.nodes), detail=claims)

    def _keep_to_offers(self, state: GroupState, request: PlanRequest) -> PlanRequest:
        """The request on the nodes alone that the scheduler has offered, if it can be met there.

        Members that it alone can count for have no others. The others have them once something was refused.
        """
        unoffered = state.unoffered(request.members, self._clock(), self._store.nodes)
        offered = request.keeping_to_offers(unoffered)
        if not unoffered or all(pod.counted_elsewhere for pod in request.members):
            return offered
        return offered if isinstance(self._planning.plan_at_once(offered), Plan) else request

    def _close_taken(self, group: PodGroup, request: PlanRequest, spent: SpentShare | None) -> PlanRequest:
        """The request without the domains that other exclusive gangs have; without any where the share is spent.

        Then only a domain that the namespace has already could be opened by evictions.
        """
        taken = find_taken(group, self._store, self._ledger)
        openable = find_openable(group, self._store, self._ledger) if taken else taken
        if spent is not None:
            taken = spent.domains
            openable &= spent.held
        exclusive = find_exclusive_key(group) is not None and spent is None
        return replace(request, taken=taken, openable=openable, exclusive=exclusive)

    def review(self) -> set[GroupKey]:
        """The gangs that are to be planned again because others may go for them by now. Called about twice a second."""
        due = {group for group in self._preemptions.take_due() if group in self._groups.states}
        for group in due:
            state = self._groups.states[group]
            state.tried = ()
            state.no_preemption_before = self._clock()
        return due

    def forget(self, group: GroupKey) -> None:
        """A group does not wait for room any more."""
        self._queue.leave(group)
        self._preemptions.forget(group)

    def _go_on(self, state: GroupState, group: PodGroup) -> Verdict | None:
        """Nothing has changed for a group that waits; a forecast or victims may have been found for it meanwhile."""
        waited = self._queue.foresee(self._queue.describe(group.key, state))
        if waited is not None:
            waited = self._preemptions.renew(group.key, waited)
        found = self._preemptions.go_on(state, group.key)
        return waited if found is None else self._preempt(state, group, found, waited)

    def _preempt(
        self, state: GroupState, group: PodGroup, found: Decision | Verdict, waited: Verdict | None
    ) -> Verdict | None:
        """Begin what was decided; else what is said. ``waited`` is what is said if the decision does not hold."""
        if isinstance(found, Verdict):
            return found
        gone = frozenset(pod.uid for unit in found.preemption.victims for pod in unit.pods)
        if found.preemption.plan.domain in find_taken(group, self._store, self._ledger, gone):
            state.retry_at = self._clock()  # another gang has come there while victims were looked for
            return waited
        request, preemption = found
        # The head may be another one than when the search began, and so are the nodes that are kept.
        closed = self._queue.closed_to(self._queue.describe(group.key, state), request)
        if not closed.isdisjoint(preemption.plan.nodes.values()):
            state.retry_at = self._clock()
            return waited
        for unit in preemption.victims:
            if unit.planned:
                self._give_way(unit, group)
        ending = [unit for unit in preemption.victims if not unit.planned]
        self._queue.note_preempting(group.key)
        closed |= request.closed - frozenset(preemption.plan.nodes.values())
        reservation = self._begin(state, group, request, preemption.plan, closed, ending)
        if ending:
            return describe_wait(reservation, self._store.yields)
        return Verdict(Reason.PLANNED, need=reservation.need or len(reservation.slots))

    def _give_way(self, unit: Unit, to: PodGroup) -> None:
        """A gang that is planned gives all of its slots back."""
        gang = self._groups.states[unit.gang] if unit.gang is not None else None
        if gang is not None and gang.cycle is not None:
            detail = f"it gives way to {to.key.kind} {to.key} of higher priority"
            self._endings.abort(gang.cycle, Verdict(Reason.PLAN_OUTDATED, detail=detail))

    def _begin(
        self,
        state: GroupState,
        group: PodGroup,
        request: PlanRequest,
        plan: Plan,
        closed: frozenset[str],
        victims: Collection[Unit] = (),
    ) -> Reservation:
        now = self._clock()
        pods = {pod.uid: pod for pod in request.members if pod.uid in plan.nodes}
        reservation = make_reservation(group, request, plan, self._store, victims)
        self._ledger.reserve(reservation, pods)
        if request.need:
            self._kept_slots.move_out(plan)
        # Every member of a tree has a domain of its own, which an offered node may not be in.
        plain = group.preference == NO_PREFERENCE and isinstance(group.tree, Leaf)
        any_node = plain and not victims and self._nomination.allows_any_node(plan)
        cycle = BindingCycle(
            group,
            reservation,
            started=now,
            progressed=now,
            any_node=any_node,
            closed=closed,
            preempted=bool(victims),
        )
        for uid, pod in pods.items():
            if self._held.needs_activation(pod):
                cycle.put_aside(uid, pod.objection)
        members = self._store.members
        waiting = members.iterate_standing(group.key, Standing.WAITING)
        late = (pod for pod in waiting if pod.uid not in pods and members.leaf_of(pod.uid) in reservation.parts)
        cycle.note_planned(late, describe_standing(reservation, group, members))
        self.start(state, cycle)
        return reservation

    def start(self, state: GroupState, cycle: BindingCycle) -> None:
        """Begin a cycle whose reservation is held."""
        state.cycle = cycle
        self._preemptions.forget(cycle.reservation.group)
        self._queue.note_begun(cycle.reservation.group)
        self._outbox.put(StartCycle(cycle))
