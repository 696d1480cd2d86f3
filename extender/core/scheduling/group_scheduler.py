"""Decides when each group is considered, and what to do for it.

The loop in `extender.wiring` collects the groups that may have changed, and calls `GroupScheduler.consider` for each,
in queue order. `consider` is synchronous and works on the state of that instant: it plans a group without a binding
cycle (`scheduling_cycle`), and updates the cycle of any other group (`cycle_updates`). What has to be written or
started (nominations, the task of a cycle, evictions) is put into the outbox.
"""

from dataclasses import replace
from operator import itemgetter

from extender.core.feature import NO_REPAIR, Feature, Repair
from extender.core.scheduling.awaited_owner import AwaitedOwner
from extender.core.scheduling.cycle_updates import CycleUpdates
from extender.core.scheduling.effects import Activate, Context, LookUpOwner
from extender.core.scheduling.first_quorums import FirstQuorums
from extender.core.scheduling.group import GroupState
from extender.core.scheduling.queue import Queue
from extender.core.scheduling.request import (
    describe_gated,
    find_assigned_domain,
    find_conflict,
    find_shortage,
    is_foreign,
    is_suspended,
)
from extender.core.scheduling.scheduling_cycle import SchedulingCycle
from serried.api.group import FirstQuorum, Leaf, PodGroup
from serried.api.names import GroupKey, GroupKind
from serried.api.pod import Pod
from serried.api.resolved import resolve_owner
from serried.api.topology import explain_missing
from serried.api.verdict import Reason, Verdict
from serried.cluster.membership import owner_of_provisional
from serried.ops.steps import Work, sort_in_steps
from serried.plan.quorum import GroupMembers, find_quorum_time, has_quorum
from serried.plan.request import QueueKey, Waiting

_ERROR_SECONDS = 10.0
"""The seconds before a group is considered again after an internal error."""

_STATES_PER_STEP = 500
"""The number of groups that are checked without a pause for filter calls, when looking for groups that are due."""

_FRESH_SECONDS = 2.0
"""The seconds within which a quorum counts as just completed, so that this instance's clock gives its time.

For older quorums, such as those before a restart, the creation times of the pods give it, which are whole seconds.
"""

_GROUPS_PER_STEP = 100
"""The number of groups whose place in the queue is computed without a pause for filter calls."""


class GroupScheduler:
    """Considers groups, one at a time: plans them, updates their cycles, and reports their verdicts.

    One instance serves all terms of the process. Every method is synchronous.
    """

    def __init__(
        self,
        context: Context,
        queue: Queue,
        scheduling_cycle: SchedulingCycle,
        cycle_updates: CycleUpdates,
    ) -> None:
        self._store = context.store
        self._groups = context.groups
        self._held = context.groups.held
        self._term = context.term
        self._queue = queue
        self._features = context.features
        self._scheduling_cycle = scheduling_cycle
        self._cycle_updates = cycle_updates
        self._endings = cycle_updates.endings
        self._outbox = context.outbox
        self._clock = context.clock
        self._unknown_seconds = context.options.job_unknown_seconds
        self._begun = context.wall() - context.clock()
        """The start of the loop clock in seconds since 1970.

        It is the same for all groups, so equal times stay equal.
        """

        self._first_quorums = FirstQuorums()

    # --- terms -------------------------------------------------------------------------------------------------

    def end_term(self) -> None:
        """End all binding cycles without writing anything, because another instance may lead from now on.

        The next leader continues them from the records: it takes over planned gangs, and binds the rest of committed
        ones.
        """
        self._term.end()
        self._endings.hand_over_all()
        self._drop_seen()
        for state in self._groups.states.values():
            state.end_term()

    def begin_term(self, now: float) -> None:
        """Begin to plan. This instance leads, and the records of earlier terms are read.

        ``now`` is the time in seconds since 1970.
        """
        self._begun = now - self._clock()
        for feature in self._features[Feature.begin_term]:
            feature.begin_term(now)

    def drop_queued(self) -> None:
        """Forget which groups have changed. Called while another instance leads.

        Nothing is lost, as a new term considers every group. Pods that belong to no group any more stay noted, unless
        they are deleted: when this instance leads, it may have to make kube-scheduler retry them.
        """
        self._store.dirty.clear_groups()
        self._store.dirty.orphans &= self._store.pods.keys()
        self._drop_seen()

    def _drop_seen(self) -> None:
        self._queue.end_term()
        self._first_quorums.clear()
        self._end_features()

    def _end_features(self) -> None:
        """Drop what features (`Feature`: backfill, preemption, repair and the like) remember of groups and of the term.

        Called when a term ends, while another instance leads, and when planning becomes possible again.
        """
        for state in self._groups.states.values():
            state.memory.clear()
        for feature in self._features[Feature.end_term]:
            feature.end_term()

    def set_obstacle(self, what: str) -> None:
        """Set the phrase that says why no group can be planned; "" if groups can be.

        An example is that records cannot be read. All groups are considered again.
        """
        if self._term.obstacle and not what:
            # Until now features have decided without knowing the records.
            self._end_features()
        self._term.obstacle = what
        self._store.dirty.update(self._store.groups, self._store.members.groups(), self._groups.states)
        # The last term may have ended before it activated these pods, which belong to no group.
        self._store.dirty.orphans.update(uid for uid, pod in self._store.pods.items() if pod.held_by_gate)
        self._groups.wake()

    # --- which groups are considered ---------------------------------------------------------------------------

    def take_dirty(self) -> set[GroupKey]:
        """Return the groups that may have changed since the last call.

        Also make kube-scheduler retry pods that belong to no group any more, because filter would now let them start.
        """
        self._groups.pass_on_changes()
        dirty = self._store.dirty.take_groups()
        for uid in self._store.dirty.take_orphans():
            if self._store.members.group_of(uid) is None:
                self._activate(uid)
        return dirty

    def take_woken(self) -> set[GroupKey]:
        """Return the waiting groups that resources freed since the last call could help.

        Groups with a binding cycle are left out. Empty while the API server does not serve a kind that Serried needs.
        """
        if self._store.obstacles.needed:
            return set()
        states = self._groups.states
        return {key for key in self._queue.take_woken() if key in states and states[key].cycle is None}

    def run_periodic_work(self) -> Work[set[GroupKey]]:
        """Do the work of queue, features and cycles that depends on time. Return the groups that have to be considered.

        Called twice a second. It is a generator, and filter calls are answered between its steps. The caller has to
        carry out the effects of a step before the next one, because the term may end in between.
        """
        now = self._clock()
        if self._store.obstacles.needed:
            return set()
        self._queue.refresh_periodically()
        due: set[GroupKey] = set()
        for feature in self._features[Feature.list_requeues]:
            if feature.busy:
                due.update((yield from feature.list_requeues()))
        due |= yield from self._review_groups(now)
        # Filter held these pods before the watches had shown their owner or the pod itself. They belong to no gang.
        self._held.prune(now)
        for uid in [uid for uid in self._held if self._store.members.group_of(uid) is None]:
            self._activate(uid)
        return due | (self._store.pending_victims.take_changed() & self._groups.states.keys())

    def _review_groups(self, now: float) -> Work[set[GroupKey]]:
        due: set[GroupKey] = set()
        for number, (key, state) in enumerate(list(self._groups.states.items()), start=1):
            if number % _STATES_PER_STEP == 0:
                yield
            if self._groups.states.get(key) is not state:
                continue  # it was dropped between two steps
            if state.cycle is not None and state.cycle.accepts_members:
                self._cycle_updates.check_periodically(state.cycle)
            elif state.awaited is not None and state.awaited.is_due(now):
                self.consider(key)
            if self._groups.pop_due(state):
                due.add(key)
        return due

    def sort_in_queue_order(self, due: set[GroupKey]) -> Work[list[GroupKey]]:
        """Return these groups in the order in which they are planned.

        It is a generator, so that filter calls are answered between its steps.
        """
        placed: list[tuple[QueueKey, GroupKey]] = []
        for number, key in enumerate(due, start=1):
            placed.append((self._queue.sort_key(self._describe(key)), key))
            if number % _GROUPS_PER_STEP == 0:
                yield
        if len(placed) < _GROUPS_PER_STEP:
            return [key for _, key in sorted(placed)]
        return [key for _, key in (yield from sort_in_steps(placed, key=itemgetter(0)))]

    def _describe(self, key: GroupKey) -> Waiting:
        return self._queue.describe(key, self._groups.states.get(key))

    def retry_later(self, key: GroupKey) -> None:
        """Have a group considered again after some seconds, because `consider` has raised an error."""
        if key in self._groups.states:
            self._groups.states[key].entry.retry_by(self._clock() + _ERROR_SECONDS)

    # --- one group ---------------------------------------------------------------------------------------------

    def consider(self, key: GroupKey) -> None:
        """Consider one group now: plan it, or update its binding cycle, and report its verdict.

        If the group is gone, or is planned as a part of a tree, end its cycle and drop its state. But a committed cycle
        is continued until all its members are bound or deleted.
        """
        self._groups.pass_on_changes()
        if self._store.obstacles.needed:
            self._report_missing_kind(key)
            return
        group = self._store.groups.get(key)
        gone = group is None and not self._store.members.of_group(key)
        if gone or (group is not None and group.parent is not None):  # the root of the tree is planned
            self._forget(key)
            return
        state = self._groups.states.setdefault(key, GroupState(self._clock()))
        if group is not None and not self._term.obstacle and self._may_lose_members(key, state):
            # Before the records are read it is not known which of the ending pods are victims.
            self._observe(key, state, group)
        # CycleUpdates checks the members of a cycle one by one.
        verdict = self._cycle_updates.update(state) if state.cycle is not None else self._assess(key, state, group)
        if verdict is not None:
            self._groups.report(key, verdict)

    def _report_missing_kind(self, key: GroupKey) -> None:
        """Report API_MISSING for a waiting group without a cycle: the API server does not serve a kind that is needed.

        Nothing else is done for the group meanwhile.
        """
        group, members = self._store.groups.get(key), self._store.members.of_group(key)
        if (group is not None and group.parent is not None) or is_foreign(group, members, self._store):
            return
        if any(pod.pending for pod in members):
            state = self._groups.states.setdefault(key, GroupState(self._clock()))
            if state.cycle is None:
                self._groups.report(key, Verdict(Reason.API_MISSING, detail=self._store.obstacles.needed))

    def _forget(self, key: GroupKey) -> None:
        state = self._groups.states.get(key)
        if state is None:
            return
        if state.cycle is not None and state.cycle.reservation.committed:
            self._cycle_updates.update(state)  # a committed cycle ends once each of its members is bound or deleted
        elif state.cycle is not None:
            self._endings.abort(state.cycle, Verdict(Reason.POD_GROUP_MISSING))
        if state.cycle is None:
            self._drop(key)

    def _drop(self, key: GroupKey) -> None:
        self._scheduling_cycle.dequeue(key)
        self._store.vacancies.close_group(key)
        del self._groups.states[key]

    def _assess(self, key: GroupKey, state: GroupState, group: PodGroup | None) -> Verdict | None:
        members = self._store.members.of_group(key)
        if is_foreign(group, members, self._store):
            self._drop(key)
            return None
        if group is None:
            return self._assess_missing(key, state, members)
        group_members = self._store.members.classify(key)
        if group.waits_for_gated_members and group_members.gated:
            self._scheduling_cycle.dequeue(key)
            return describe_gated(group_members, need=1)
        if group.schedules_individually:
            for pod in (*group_members.waiting, *group_members.refused):
                self._activate(pod.uid)
            return Verdict(Reason.SCHEDULED, have=group_members.placed) if group_members.placed else None
        repair = (
            self._find_repair(state, group, group_members) if self._has_run(state, group, group_members) else NO_REPAIR
        )
        verdict = self._advance(state, group, group_members, repair)
        return self._describe_group(state, group, group_members, verdict)

    def _find_repair(self, state: GroupState, group: PodGroup, group_members: GroupMembers) -> Repair:
        """Return the waiting members that replace deleted ones, and so may be placed without a quorum.

        Also note in ``state`` the domain in which the placed members of the group run.
        """
        domain = find_assigned_domain(group, group_members, self._store.nodes)
        state.assigned_domain = domain or state.assigned_domain
        repair = NO_REPAIR
        for feature in self._features[Feature.pre_enqueue]:
            repair |= feature.pre_enqueue(state, group, group_members)
        return repair

    def _describe_group(
        self, state: GroupState, group: PodGroup, group_members: GroupMembers, verdict: Verdict | None
    ) -> Verdict | None:
        for feature in self._features[Feature.describe]:
            if state.memory or feature.describes_all:
                verdict = feature.describe(state, group, group_members, verdict)
        return verdict

    def _may_lose_members(self, key: GroupKey, state: GroupState) -> bool:
        """Return whether members of a group may be ending, or are being replaced."""
        return bool(state.memory) or key in self._store.vacancies or self._store.members.has_disrupted(key)

    def _observe(self, key: GroupKey, state: GroupState, group: PodGroup | None) -> None:
        for feature in self._features[Feature.observe]:
            feature.observe(key, state, group)

    def _has_run(self, state: GroupState, group: PodGroup, group_members: GroupMembers) -> bool:
        """Return whether a member of the group may have run before.

        That is so if a member is placed or was before, and also if a feature (preemption, repair or the like) has
        stored a `Memory` of the group, i.e. has dealt with it. True for groups whose quorum needs no member.
        """
        ran = state.started or group.scheduled or group.key in self._store.vacancies or bool(state.memory)
        return bool(ran or group_members.placed or group_members.terminating or has_quorum(group, group_members))

    def _find_rejection(self, state: GroupState, group: PodGroup, group_members: GroupMembers) -> str:
        """Return kube-scheduler's message if it had no node for one member while other members had theirs, else "".

        Such a group could not start even with free resources (`GroupState.find_rejection`). The message is dropped if
        the quorum is complete without that member.
        """
        found = state.find_rejection((*group_members.waiting, *group_members.refused), self._clock(), self._store)
        if found and state.refusals.rejection is not None and isinstance(group.tree, Leaf):
            others = sum(pod.uid != state.refusals.rejection.member for pod in group_members.waiting)
            if group_members.need(group.tree.need) <= others:
                state.refusals.rejection = None  # the nodes stay closed, or the next plan would use them again
                return ""
        return found

    def _advance(
        self, state: GroupState, group: PodGroup, group_members: GroupMembers, repair: Repair
    ) -> Verdict | None:
        shortage = find_shortage(group, group_members, self._store, repair)
        rejection = self._find_rejection(state, group, group_members)
        if shortage is not None or not group_members.waiting:
            self._scheduling_cycle.dequeue(group.key)
        if shortage is not None:
            fits_nowhere = shortage.reason is Reason.NO_CAPACITY and rejection
            shortage = replace(shortage, detail=rejection) if fits_nowhere else shortage
            return self._note_shortage(state, group, group_members, shortage)
        group = self._constrain(group, group_members)
        state.ran = state.ran or group_members.placed > 0
        if state.quorum_since is None:
            state.quorum_since = self._find_quorum_time(state, group, group_members)
        if not group_members.waiting:
            return find_conflict(group, group_members, self._store.nodes) or Verdict(
                Reason.SCHEDULED, have=group_members.placed
            )
        if self._term.obstacle:
            self._queue.leave(group.key)
            return Verdict(Reason.RECORDS_UNREADABLE, detail=self._term.obstacle)
        return self._scheduling_cycle.schedule(state, group, group_members, repair)

    def _constrain(self, group: PodGroup, group_members: GroupMembers) -> PodGroup:
        """Decide whether the topology key of a group is to be ignored, and store the decision in the Store.

        Features decide it (`Feature.describe_ignored_key`), e.g. `KueueTopology`, because Kueue has chosen hosts in
        several domains of the key. Return the group as the Store has it then: if the key is ignored, the returned
        group has none. Trees, and groups to which no such feature applies, are returned as they are.
        """
        asked = [each for each in self._features[Feature.describe_ignored_key] if each.concerns(group)]
        if not asked or group.branch is not None:
            return group
        why = next(filter(None, (each.describe_ignored_key(group, group_members) for each in asked)), "")
        if why != (group.ignored.why if group.ignored is not None else ""):
            self._store.ignore_topology(group.key, why)
        return self._store.groups[group.key]

    def _note_shortage(
        self, state: GroupState, group: PodGroup, group_members: GroupMembers, shortage: Verdict
    ) -> Verdict | None:
        quiet = not (group_members.waiting or group_members.gated or group_members.refused)
        over = group.scheduled or (state.verdict is None and is_suspended(group, self._store))
        if quiet and over and not self._has_place_to_keep(state, group):
            return None  # no member waits: the gang has run and is ending, or its owner is suspended
        if group_members.refused:
            shortage = self._activate_refused(state, group, group_members, shortage)
        else:  # a gang whose members exist keeps its place in the queue
            self._note_quorum_lost(state, group, group_members)
            if shortage.reason is not Reason.QUORUM_MISSING:
                state.hindered = self._clock()
        return shortage

    def _activate_refused(
        self, state: GroupState, group: PodGroup, group_members: GroupMembers, shortage: Verdict
    ) -> Verdict:
        """Have kube-scheduler try members that no node can take according to the planner, which knows less.

        Its filter calls may offer nodes for them. But a feature, such as the one that requests nodes from an
        autoscaler, may decide that these members keep Serried's scheduling gate (`Feature.keep_gated`). Then
        kube-scheduler does not try them, and the feature's verdict is returned. Otherwise return ``shortage``, the
        verdict so far.
        """
        for feature in self._features[Feature.keep_gated]:
            found = feature.keep_gated(state, group, group_members, shortage) if feature.describes_all else None
            if found is not None:
                return found
        for pod in group_members.refused:
            if pod.held_by_gate and not pod.awaits:
                self._activate(pod.uid)
        return shortage

    def _find_quorum_time(self, state: GroupState, group: PodGroup, group_members: GroupMembers) -> float:
        """Return the loop time since when the quorum exists. It may lie before the start of this process or term.

        If the gang had a quorum before, has lost it and has not run, it is the time of its first quorum.
        """
        now, created = self._clock(), find_quorum_time(group.tree, group_members)
        since = now if created is None else created - self._begun
        found = max(state.hindered, now if now - since < _FRESH_SECONDS else since)
        if state.ran or not (self._first_quorums or group.first_quorum):
            return found
        kept = self._first_quorums.find(group, now, self._begun)
        return found if kept is None else min(kept, found)

    def _has_place_to_keep(self, state: GroupState, group: PodGroup) -> bool:
        """Return whether a gang had a quorum and has not run since, so that its place in the queue has to be kept."""
        written = group.first_quorum
        return not state.ran and (state.quorum_since is not None or (written is not None and written.lost is None))

    def _note_quorum_lost(self, state: GroupState, group: PodGroup, group_members: GroupMembers) -> None:
        """Note that a gang has no quorum any more. If it has not run, keep its place in the queue for a day.

        Called for each consideration of a gang without a quorum.
        """
        if state.ran or group_members.placed:
            state.ran = group_members.placed > 0
            if self._first_quorums:
                self._first_quorums.drop(group)
        elif state.quorum_since is not None or group.first_quorum is not None:
            self._first_quorums.note_lost(group, state.quorum_since, self._clock(), self._begun)
        state.quorum_since = None

    def find_place(self, key: GroupKey) -> FirstQuorum | None:
        """Return the place of a gang in the queue for its condition FirstQuorum, i.e. since when it had a quorum.

        None if the gang has run, or never had a quorum. A gang that has lost its quorum has its place until a member is
        bound, or for a day.
        """
        group, state = self._store.groups.get(key), self._groups.states.get(key)
        if group is None or state is None or state.ran:
            return None
        if state.quorum_since is not None:
            return FirstQuorum(int(state.quorum_since + self._begun))
        return self._first_quorums.describe(group, self._begun)

    def _assess_missing(self, key: GroupKey, state: GroupState, members: list[Pod]) -> Verdict | None:
        if state.memory:
            self._observe(key, state, None)
        self._scheduling_cycle.dequeue(key)  # so that no nodes are kept for it, and no victims are searched for
        if not any(pod.pending for pod in members):
            state.awaited = None  # no pod waits for the owner any more
            return None
        if key.kind is GroupKind.NON_MEMBERS:
            return Verdict(Reason.NOT_ITS_POD_GROUP, key=self._store.membership.name_controller(members))
        if not self._store.owners.is_awaited(key):
            state.awaited = None
            obstacle = self._store.obstacles.find_for(key)
            if obstacle:
                return Verdict(Reason.API_MISSING, detail=obstacle)
            gap = self._store.forest.find_gap(key)
            return self._find_unknown_level(key) or Verdict(Reason.POD_GROUP_MISSING, detail=gap)
        return self._await_owner(key, state, members)

    def _find_unknown_level(self, key: GroupKey) -> Verdict | None:
        """Return LEVEL_UNKNOWN if the owner of a group names a topology level that the cluster has not; else None.

        The controller makes no PodGroup for such an owner.
        """
        owner_key = owner_of_provisional(key)
        owner = self._store.owners.find(owner_key) if owner_key is not None else None
        table = self._store.levels.published
        missing = resolve_owner(owner, table).missing if owner is not None else ""
        if owner is None or not missing:
            return None
        return Verdict(Reason.LEVEL_UNKNOWN, key=missing, detail=explain_missing(missing, owner.wanted, table))

    def _await_owner(self, key: GroupKey, state: GroupState, members: list[Pod]) -> Verdict:
        if state.awaited is None:
            state.awaited = AwaitedOwner(self._unknown_seconds)
        asking = state.awaited.ask(key, members, self._clock())
        if asking:
            self._outbox.put(LookUpOwner(key, asking))
        for pod in members:
            if state.awaited.is_lost(key, pod):
                # The garbage collector will delete a pod without its owner; there is no reason to hold it.
                self._activate(pod.uid)
        return Verdict(Reason.JOB_UNKNOWN, detail=state.awaited.doubt)

    def _activate(self, uid: str) -> None:
        # The pod belongs to no gang (any more). Without a write kube-scheduler would not try it for 5 minutes.
        pod = self._store.pods.get(uid)
        was_held = self._held.discard(uid)
        if pod is not None and pod.pending and (was_held or pod.held_by_gate):
            self._outbox.put(Activate(pod))
