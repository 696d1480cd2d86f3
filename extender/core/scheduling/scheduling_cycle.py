"""One try to place a gang, from the request to the reservation; and the end of its binding cycle.

`GroupScheduler.consider` calls `SchedulingCycle.schedule`, which makes a request, plans it, reserves the slots and
starts a binding cycle. It does not await, so the state that the plan was made from still holds when its slots are
reserved. `CycleEndings` ends a binding cycle in one of three ways: it is aborted before any Binding was sent, finished
when all its members are bound, or left to the next leader.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from extender.core.feature import Decision, Feature, Refused, Repair
from extender.core.scheduling.binding_cycle import BindingCycle, describe_gang_state
from extender.core.scheduling.effects import Context, Release, StartCycle
from extender.core.scheduling.group import GroupState
from extender.core.scheduling.open_slots import OpenSlots, merge_waves
from extender.core.scheduling.planning import KeptSlots, Planning
from extender.core.scheduling.planning_tasks import Unfinished
from extender.core.scheduling.queue import Queue
from extender.core.scheduling.request import (
    build_request,
    describe_caveats,
    describe_preemption,
    find_next_level_wait,
)
from extender.options import NominationPolicy
from serried.api.group import Leaf, PodGroup
from serried.api.names import GroupKey
from serried.api.pod import Pod
from serried.api.preference import NO_PREFERENCE
from serried.api.reservation import Reservation, Slot, Victim
from serried.api.verdict import Reason, Trait, Verdict
from serried.cluster.cache import Store
from serried.kube.retry import Backoff, gang_backoff
from serried.plan.eviction import EvictionUnit
from serried.plan.quorum import GroupMembers, MemberState
from serried.plan.request import Plan, PlanRequest

_RETRY_SECONDS = 60.0
_FREE_ATTEMPTS = 3

_MAX_EVICTION_REFUSED_SECONDS = 30.0
"""The longest backoff in seconds after the API server has refused evictions.

It is short enough that the next search for victims still avoids the pods that could not be evicted.
"""

_REJECTION_BACKOFF = Backoff(first=10.0, cap=60.0)
"""The backoff after kube-scheduler had no node for one member while the others had theirs: 10 s, doubled up to 60 s.

Each try reserves resources for a moment that other pods could use.
"""

_VICTIMS_REMAIN_SECONDS = 5.0
"""The backoff in seconds after victims have not ended in time: until they end, the gang does not fit."""


def _find_backoff(reason: Reason, gang: GroupState, size: int) -> float:
    """Return the seconds for which a gang backs off after its binding cycle was aborted for ``reason``; 0 for none.

    ``size`` is the number of members with a slot.
    """
    attempts = gang.entry.attempts
    if reason is Reason.NO_CAPACITY and gang.refusals.rejection is not None:
        return _REJECTION_BACKOFF.delay(attempts)
    if Trait.BACKS_OFF in reason.traits:
        return gang_backoff(attempts, size)
    if reason is Reason.VICTIMS_REMAIN:
        return _VICTIMS_REMAIN_SECONDS
    if attempts <= _FREE_ATTEMPTS:
        return 0.0  # the first attempts may fail by bad luck; more of them have a cause that the Store does not show
    if reason is Reason.EVICTION_REFUSED:
        return min(gang_backoff(attempts - _FREE_ATTEMPTS, size), _MAX_EVICTION_REFUSED_SECONDS)
    return gang_backoff(attempts - _FREE_ATTEMPTS, size) if reason is Reason.PLAN_OUTDATED else 0.0


class CycleEndings:
    """Ends binding cycles and releases their slots. Every method is synchronous."""

    def __init__(self, context: Context, queue: Queue) -> None:
        self._store = context.store
        self._ledger = context.ledger
        self._groups = context.groups
        self._features = context.features
        self._queue = queue
        self._activity = context.groups.activity
        self._outbox = context.outbox
        self._clock = context.clock

    def abort(self, cycle: BindingCycle, verdict: Verdict) -> None:
        """End a cycle that has not committed, and report why. Fail its bind calls and release its slots.

        The gang is requeued. For some reasons, or after several such cycles, it backs off first (`_find_backoff`).
        """
        size = len(cycle.reservation.slots)
        refused = self._activity.find_rejected(cycle)
        unattended = not refused and not any(member.reached for _, member in cycle.list_members())
        self._close(cycle, f"serried: {verdict.reason}")
        gang, now = self._groups.states[cycle.reservation.group], self._clock()
        gang.entry.attempts += 1
        if verdict.reason is Reason.DEADLINE_EXCEEDED:
            self._queue_released(cycle)
            gang.entry.unattended = unattended
        pause = _find_backoff(verdict.reason, gang, size)
        if pause:
            gang.entry.back_off(now + pause)
        if Trait.RETRIED in verdict.reason.traits:
            gang.entry.retry_by(now + max(pause, _RETRY_SECONDS if verdict.reason is Reason.DEADLINE_EXCEEDED else 0.0))
        self._notify_features(gang, cycle, refused, verdict)
        self._groups.report(cycle.reservation.group, verdict)
        self._groups.mark_dirty(cycle.reservation.group)

    def withdraw(self, cycle: BindingCycle, verdict: Verdict) -> None:
        """End a cycle as `abort` does, though its record may say Committed: no Binding of it was sent yet."""
        self._ledger.withdraw(cycle.reservation)
        self.abort(cycle, verdict)

    def finish(self, cycle: BindingCycle) -> None:
        """End a cycle whose members with a slot are all bound, or are not expected to reach bind. Requeue the gang.

        Members beyond the quorum may still wait, for another plan.
        """
        gang, refused = self._groups.states[cycle.reservation.group], self._activity.find_rejected(cycle)
        self._close(cycle, "serried: the binding cycle has ended")
        gang.entry.attempts = 0 if cycle.bound else gang.entry.attempts + 1
        if cycle.reservation.committed:
            gang.started = True
            gang.refusals.drop_rejection()
            gang.refusals.reset_preemptions()
        self._notify_features(gang, cycle, refused, None)
        self._groups.mark_dirty(cycle.reservation.group)

    def _notify_features(
        self, gang: GroupState, cycle: BindingCycle, refused: frozenset[str], verdict: Verdict | None
    ) -> None:
        if gang.memory or cycle.preempted:
            for feature in self._features[Feature.ended]:
                feature.ended(gang, cycle, refused, verdict)

    def hand_over(self, cycle: BindingCycle) -> None:
        """End a cycle when the term ends, without a report or a write: the next leader continues with its record."""
        uids = cycle.reservation.slots.keys() | _list_nominated(cycle)
        cycle.end("serried: this instance no longer leads")
        self._detach(cycle)
        self._outbox.put(Release(frozenset(uids)))

    def hand_over_all(self) -> None:
        """End all cycles when the term ends, without reports or writes."""
        for gang in self._groups.states.values():
            if gang.cycle is not None:
                self.hand_over(gang.cycle)

    def _queue_released(self, cycle: BindingCycle) -> None:
        waiting = self._store.members.classify(cycle.reservation.group).waiting
        priority = self._store.priorities.find_object_priority(cycle.reservation.group)
        ask = PlanRequest(waiting, 1, cycle.group.topology_key, cycle.pinned, group_priority=priority)
        self._queue.put_released(cycle.reservation.group, ask)

    def _close(self, cycle: BindingCycle, error: str) -> None:
        nominated = _list_nominated(cycle) | self._list_nominated_to_slots(cycle)
        uids = frozenset(cycle.reservation.slots.keys() | nominated)
        cycle.end(error)
        self._detach(cycle)
        pods = (self._store.pods.get(uid) for uid in nominated - cycle.bound)
        self._outbox.put(Release(uids, tuple(pod for pod in pods if pod is not None and pod.pending)))

    def _list_nominated_to_slots(self, cycle: BindingCycle) -> set[str]:
        """Return the UIDs of members that are nominated to the nodes of their slots, maybe by an earlier term."""
        pods, slots = self._store.pods, cycle.reservation.slots
        return {uid for uid, slot in slots.items() if uid in pods and pods[uid].nominated == slot.node}

    def _detach(self, cycle: BindingCycle) -> None:
        key = cycle.reservation.group
        if self._ledger.of_group(key) is cycle.reservation:  # else the group has a newer reservation
            self._ledger.unreserve(key)
        gang = self._groups.states.setdefault(key, GroupState(self._clock()))
        if gang.cycle is cycle:
            gang.cycle = None
            gang.entry.end_backoff()  # the pause was for members that were to join this cycle, not for the gang


def _list_nominated(cycle: BindingCycle) -> set[str]:
    """Return the UIDs of members that this cycle has nominated."""
    return {uid for uid, member in cycle.list_members() if member.nominated}


_ROUND_BACKOFF = Backoff(first=30.0, cap=120.0)
"""After which time a gang may use all nodes again, once it only fits on nodes that were refused for its members.

30 s at first, doubled up to 120 s with each further binding cycle that fails.
"""

_CONFLICT_SECONDS = 30.0
"""The seconds after which a gang is tried again whose bound members contradict its topology key."""


class SchedulingCycle:
    """Plans gangs and starts their binding cycles. Every method is synchronous."""

    def __init__(
        self,
        context: Context,
        queue: Queue,
        planning: Planning,
        endings: CycleEndings,
    ) -> None:
        self._store = context.store
        self._ledger = context.ledger
        self._queue = queue
        self._planning = planning
        self._features = context.features
        self._kept_slots = KeptSlots(context.store)
        self._groups = context.groups
        self.endings = endings
        self._held = context.groups.held
        self._outbox = context.outbox
        self._clock = context.clock
        self._nomination = context.options.nomination

    def schedule(
        self, state: GroupState, group: PodGroup, group_members: GroupMembers, repair: Repair
    ) -> Verdict | None:
        """Plan a gang that has its quorum, and start its binding cycle if it fits. Return the verdict to report.

        While the gang backs off, it is not planned. Nor is it if its members, their shapes and its priority are those
        of the last try, no freed resources may help it, and no retry is due. Then only features act, such as
        preemption: they may have found victims meanwhile. ``repair`` are the members that replace deleted ones. Return
        None if the last verdict still holds.
        """
        if state.entry.backs_off(self._clock()) or not self._has_new_input(state, group, group_members, repair):
            return self._revisit(state, group)
        request = self._build_request(state, group, group_members, repair)
        if isinstance(request, Verdict):
            self._queue.leave(group.key)
            state.entry.retry_by(self._clock() + _CONFLICT_SECONDS)  # a changed node label does not requeue a group
            return request
        place = self._queue.describe(group.key, state)
        for feature in self._features[Feature.pre_filter]:
            if feature.concerns(group):
                request = feature.pre_filter(state, group, place, request)
        request = self._limit_to_offers(state, request)
        try:
            answer = self._queue.plan(place, request)
        except Unfinished:
            return self._planning.describe_wait(state, request)  # the finished task requeues the group
        if isinstance(answer, Verdict):
            opens_in = find_next_level_wait(group, self._find_wait(state))
            return self._handle_no_plan(Refused(state, group, place, request, opens_in), answer)
        self._planning.drop_plans(group.key)
        self._begin(state, group, request, answer, self._queue.list_kept_nodes(place, request))
        claims = describe_caveats(request.members, self._store)
        return Verdict(Reason.PLANNED, need=request.need or len(answer.nodes), detail=claims)

    def _has_new_input(self, state: GroupState, group: PodGroup, group_members: GroupMembers, repair: Repair) -> bool:
        """Return whether a gang has to be planned, for instance as its planner input is not that of the last try.

        The input is its members, their shapes, the group with its priority, and ``repair`` (members that replace
        deleted ones). Also True if a retry is due, or if the gang is not unschedulable, for instance as resources were
        freed.
        """
        planner_input = (
            tuple((pod.uid, pod.shape) for pod in group_members.waiting),
            (group_members.placed, len(group_members.terminating)),
            (group.policy, group.tree, self._store.priorities.find_object_priority(group.key)),
            repair,
        )
        return state.entry.begin_try(planner_input, self._clock(), waits=group.key in self._queue)

    def _build_request(
        self, state: GroupState, group: PodGroup, group_members: GroupMembers, repair: Repair
    ) -> PlanRequest | Verdict:
        out = state.find_exclusions(group_members.waiting, self._clock(), self._store)
        waited = self._find_wait(state)
        request = build_request(
            group, group_members, out.pairs, self._store.nodes, waited, repair, state.assigned_domain
        )
        if isinstance(request, Verdict):
            return request
        return replace(request, group_priority=self._store.priorities.find_object_priority(group.key)).closing(
            out.nodes
        )

    def _find_wait(self, state: GroupState) -> float:
        """Return for how many seconds the gang has had its quorum; 0 if it has none."""
        return 0.0 if state.quorum_since is None else self._clock() - state.quorum_since

    def _handle_no_plan(self, refused: Refused, refusal: Verdict) -> Verdict | None:
        """Handle a gang that the planner has rejected: set its next retry, and let features search for victims.

        Return the verdict to report.
        """
        state, request, now = refused.gang, refused.request, self._clock()
        forgotten = (
            _ROUND_BACKOFF.delay(max(1, state.entry.attempts)) if request.excluded or request.closed else math.inf
        )
        state.entry.retry_by(now + min(refused.opens_in, forgotten))
        state.entry.note_refusal()
        refusals = state.refusals
        if refusals.excluded:
            refusals.end_exclusions_at(now + forgotten)
        if refusals.rejection is not None:
            state.entry.retry_by(refusals.rejection.until)  # until then no pod is evicted for the gang
            refusal = replace(refusal, detail=refusals.rejection.text)
        elif refusals.excluded and (said := refusals.describe_after_filter(request.members)):
            refusal = replace(refusal, detail="; ".join(filter(None, (refusal.detail, said))))
        self._planning.back_off(state, refused.group.key, refusal)
        for feature in self._features[Feature.post_filter]:
            if feature.concerns(refused.group):
                found = feature.post_filter(refused, refusal)
                if isinstance(found, Decision):
                    return self._preempt(state, refused.group, found, refusal)
                refusal = found
        return refusal

    def _limit_to_offers(self, state: GroupState, request: PlanRequest) -> PlanRequest:
        """Return the request, limited to the nodes that kube-scheduler has lately offered to some member.

        If the gang does not fit on them, or its plan for them cannot be made at once, return ``request``. But if all
        members request devices or resources that only kube-scheduler can count, limit them to the offered nodes in any
        case.
        """
        unoffered = state.list_unoffered(request.members, self._clock(), self._store.nodes)
        offered = request.closing_unoffered(unoffered)
        if not unoffered or all(pod.only_scheduler_counts for pod in request.members):
            return offered
        return offered if isinstance(self._planning.plan_at_once(offered), Plan) else request

    def dequeue(self, group: GroupKey) -> None:
        """Remove a gang that no longer waits from the queue.

        Drop the state that features have stored for the time of its wait (`Memory.for_wait`).
        """
        self._queue.leave(group)
        if group in self._groups.states:
            self._groups.states[group].memory.end_wait()

    def _revisit(self, state: GroupState, group: PodGroup) -> Verdict | None:
        """Let features act for a gang that is not planned again: it backs off, or a plan would fail as the last did.

        A feature may have found victims for it meanwhile. Then begin a cycle with these victims. Return the verdict to
        report; None for none.
        """
        place, said = self._queue.describe(group.key, state), None
        for feature in self._features[Feature.revisit]:
            found = feature.revisit(state, group, place, said)
            if isinstance(found, Decision):
                return self._preempt(state, group, found, said)
            said = found
        return said

    def _preempt(self, state: GroupState, group: PodGroup, found: Decision, waited: Verdict | None) -> Verdict | None:
        """Begin a cycle with victims, as a feature has decided. Return the verdict to report.

        If the decision ``found`` is outdated, have the gang planned again, and return ``waited``: the verdict with
        which the gang waits in the meantime.
        """
        request, plan = found.request, found.plan
        # While victims were searched for, another gang may have become the head, so that other nodes are kept, or
        # another gang may have been planned in the domain.
        closed = self._queue.list_closed_nodes(self._queue.describe(group.key, state), request)
        if not (self._is_valid(group, found) and closed.isdisjoint(plan.nodes.values())):
            state.entry.retry_by(self._clock())
            return waited
        for unit in found.victims:
            if unit.planned:
                self._abort_victim(unit, group)
        ending = [unit for unit in found.victims if not unit.planned]
        self._queue.note_preempting(group.key)
        closed |= request.closed - frozenset(plan.nodes.values())
        reservation = self._begin(state, group, request, plan, closed, ending)
        if ending:
            return describe_preemption(reservation, self._store.pending_victims)
        return Verdict(Reason.PLANNED, need=reservation.need or len(reservation.slots))

    def _is_valid(self, group: PodGroup, found: Decision) -> bool:
        gone = frozenset(pod.uid for unit in found.victims for pod in unit.pods)
        concerned = (feature for feature in self._features[Feature.allows_plan] if feature.concerns(group))
        return all(feature.allows_plan(group, found.plan, gone) for feature in concerned)

    def _abort_victim(self, unit: EvictionUnit, to: PodGroup) -> None:
        """Abort the cycle of a gang that has to make way for the gang ``to``, and is planned but not bound.

        ``unit`` are the pods of that gang which have to make way together.
        """
        gang = self._groups.states[unit.gang] if unit.gang is not None else None
        if gang is not None and gang.cycle is not None:
            detail = f"the gang releases its nodes for {to.key.kind} {to.key} of higher priority"
            self.endings.abort(gang.cycle, Verdict(Reason.PLAN_OUTDATED, detail=detail))

    def _begin(
        self,
        state: GroupState,
        group: PodGroup,
        request: PlanRequest,
        plan: Plan,
        closed: frozenset[str],
        victims: Collection[EvictionUnit] = (),
    ) -> Reservation:
        now = self._clock()
        pods = {pod.uid: pod for pod in request.members if pod.uid in plan.nodes}
        reservation = make_reservation(group, request, plan, self._store, victims)
        self._ledger.reserve(reservation, pods)
        if request.need:
            self._kept_slots.release_unused(plan)
        any_node = not victims and self._needs_no_nomination(group, plan)
        waves = merge_waves(plan.waves, pods, self._store.members.leaf_of)
        cycle = BindingCycle(
            *(group, reservation),
            started=now,
            progressed=now,
            open_slots=OpenSlots(waves, plan.keys if any_node else None),
            closed=closed,
            preempted=bool(victims),
        )
        self._note_members(cycle, pods)
        self.start(state, cycle)
        return reservation

    def _note_members(self, cycle: BindingCycle, pods: Mapping[str, Pod]) -> None:
        """Note in a new cycle which members kube-scheduler has rejected already, and which wait without a slot.

        ``pods`` are the members with a slot, by UID. kube-scheduler tries a rejected one again only after a write to
        the pod. Waiting members without a slot are noted as late (`BindingCycle.note_late`): they may get a slot during
        the cycle, and are bound then as well.
        """
        for uid, pod in pods.items():
            if self._held.needs_activation(pod):
                cycle.mark_rejected_before(uid, pod.said)
        members, reservation = self._store.members, cycle.reservation
        waiting = members.iterate_in_state(cycle.group.key, MemberState.WAITING)
        late = (pod for pod in waiting if pod.uid not in pods and members.leaf_of(pod.uid) in reservation.parts)
        cycle.note_planned(late, describe_gang_state(reservation, cycle.group, members))

    def _needs_no_nomination(self, group: PodGroup, plan: Plan) -> bool:
        """Return whether members may take any offered node of the domain, so that they need no nomination.

        False for gangs with preferred levels, and for trees. For other gangs the setting (`NominationPolicy`) decides:
        ALWAYS means False, NEVER means True. AUTO means True if as many members as are planned would fit in the domain
        once more.
        """
        if group.preference != NO_PREFERENCE or not isinstance(group.tree, Leaf):
            return False  # each PodGroup of a tree has its own domain, and an offered node may be outside of it
        if self._nomination is NominationPolicy.AUTO:
            return plan.spare >= len(plan.nodes)
        return self._nomination is NominationPolicy.NEVER

    def start(self, state: GroupState, cycle: BindingCycle) -> None:
        """Start a binding cycle whose reservation is in the ledger already."""
        state.cycle = cycle
        if state.memory:
            state.memory.end_wait()
        if cycle.preempted:
            for feature in self._features[Feature.reserve]:
                feature.reserve(cycle)
        self._queue.note_begun(cycle.reservation.group)
        self._outbox.put(StartCycle(cycle))


def make_reservation(
    group: PodGroup, request: PlanRequest, plan: Plan, store: Store, victims: Iterable[EvictionUnit] = ()
) -> Reservation:
    """Return the reservation for a plan: a slot for each placed member, and the victims that have to end first."""
    names = {pod.uid: pod.name for pod in request.members}
    planned = {uid: Slot(uid, names[uid], node, store.members.leaf_of(uid)) for uid, node in plan.nodes.items()}
    parts = _find_parts(request, plan.nodes)
    need = sum(parts.values())
    return Reservation(group.key, group.uid, plan.domain, need, planned, parts=parts, victims=_list_victims(victims))


def _list_victims(units: Iterable[EvictionUnit]) -> Iterator[Victim]:
    for unit in units:
        whole = unit.gang.encoded if unit.gang is not None and unit.together else ""
        for pod in unit.pods:
            yield Victim(pod.uid, pod.namespace, pod.name, whole)


def _find_parts(request: PlanRequest, placed: Collection[str]) -> dict[str, int]:
    """Return how many members of each PodGroup of a tree must be bound together.

    ``placed`` are the UIDs of members with a slot. PodGroups without any are left out.
    """
    if not request.parts:
        found = any(member.uid in placed for member in request.members)
        return {request.name: request.need} if found else {}
    return {name: need for part in request.parts for name, need in _find_parts(part, placed).items()}
