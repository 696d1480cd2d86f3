"""What happens to a gang after it was bound: slots of dead members are kept, and a broken gang is told of.

A member that ends without success leaves a vacancy (`serried.cluster.usage`), which the cache opens in the same step.
Here it is dated, given to the member that comes in its place, and closed when nobody wants it any more: when others
have its place, or the owner wants fewer members. All of that is memory. A standby has the same, and the next cache of
this process gets it (`serried.cluster.earlier_slots`); a restart finds the slots of members whose pods are still there
(decision 31).

Of a gang of disruption mode ``all`` all members go when somebody ends one of them. Whoever disrupts a pod writes the
condition DisruptionTarget first, and ends the pod right after it; from then on those that go with it are ended, too. It
does not matter who it was, nor whether kube-scheduler has asked before (decision 25).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from enum import StrEnum

from extender.core.scheduling.effects import Context, Evict, EvictTogether, Preempt
from extender.core.scheduling.group import NO_REPAIR, GroupState, Repair
from extender.core.scheduling.planning import KeptSlots
from extender.core.scheduling.request import find_assigned_domain, find_repairable
from extender.core.scheduling.unschedulable import UnschedulableGroups, find_most
from extender.features.status.timeline import Milestone
from extender.options import ALL_PERCENT, Broken, Disrupted, Method
from serried.api.group import PodGroup
from serried.api.job import Job
from serried.api.kinds import PARENTS
from serried.api.names import BARE_KINDS, JOB, PREEMPTED, REPLICA, GroupKey, Key, OwnerRef
from serried.api.parent import OwnerKey, Parent, stages_of
from serried.api.pod import Phase, Pod
from serried.api.verdict import Reason, Stage, Verdict, render, render_disruption
from serried.cluster.cache import Store
from serried.cluster.priorities import DisruptionGroup
from serried.cluster.usage import Vacancy, find_taken, match_replacements
from serried.plan.quorum import GroupMembers, count_missing, is_whole
from serried.plan.request import PlanRequest


def count_wanted(store: Store, group: PodGroup, group_members: GroupMembers) -> int:
    """How many members are to run at a time, without those that need no pod any more.

    0 if the owner has ended, or is about to, is suspended, is being deleted or is gone. If no known owner says a
    number, it is what minCount still takes, as long as a member is left. A tree wants what its PodGroups want.
    """
    below = ((store.groups.get(group.key.leaf(name)), each) for name, each in group_members.leaves.items())
    return sum(_count_of_leaf(store, leaf, each) for leaf, each in below if leaf is not None)


def _count_of_leaf(store: Store, group: PodGroup, group_members: GroupMembers) -> int:
    job = store.membership.job_of(group)
    if job is not None:
        return _count_of_job(job)
    size = _count_of_owner(store, group)
    if size is None:
        left = group_members.bound or group_members.waiting or group_members.gated or group_members.refused
        size = (group.policy.min_count or 0) if left else 0
    return max(0, size - (group_members.placed - len(group_members.bound)))


def _count_of_job(job: Job) -> int:
    if job.finished or job.ending or job.suspended or job.deleting:
        return 0
    if job.completions is None:
        return job.parallelism
    return max(0, min(job.parallelism, job.completions - job.completed - job.given_up))


def _count_of_owner(store: Store, group: PodGroup) -> int | None:
    """The size that the group's controlling owner gives it, 0 if that is gone, None if it says nothing."""
    owner = next((owner for owner in group.owners if owner.controller), None)
    if owner is None:
        return None
    if owner.kind == JOB:
        return 0  # else it would be known
    return _count_of_parent(store, group, owner) if owner.kind in PARENTS else None


def _count_of_parent(store: Store, group: PodGroup, owner: OwnerRef) -> int | None:
    parent = store.parents.get(OwnerKey(owner.kind, Key(group.key.namespace, owner.name)))
    if parent is None:
        return 0 if owner.kind in store.membership.followed else None
    if parent.uid != owner.uid or parent.finished or parent.deleting or _is_beyond(parent, group.labels.get(REPLICA)):
        return 0
    sizes = {stage.name: stage.size for stage in stages_of(parent)}
    return sizes.get(group.template or "") if parent.staged else sum(sizes.values())


def _is_beyond(parent: Parent, replica: str | None) -> bool:
    """Whether the parent's number of replicas does not reach up to this one (any more)."""
    return (
        replica is not None and parent.replicas is not None and replica.isdecimal() and int(replica) >= parent.replicas
    )


class RepairOutcome(StrEnum):
    """What became of a slot that was kept."""

    SAME_NODE = "SameNode"
    SAME_DOMAIN = "SameDomain"
    LOST = "Lost"


class Repairs:
    """Tends vacancies and broken gangs. Every method is synchronous.

    It asks for the eviction of a gang that stays broken, if the rules say so. While a group of another namespace waits
    for room, slots are kept on ``options.share_percent`` of all nodes for one namespace at most.
    """

    def __init__(self, context: Context, unschedulable: UnschedulableGroups) -> None:
        self._store = context.store
        self._kept_slots = KeptSlots(context.store)
        self._unschedulable = unschedulable
        self._share_percent = context.options.share_percent
        self._outbox = context.outbox
        self._clock = context.clock
        self._status = context.status
        self._timelines = context.timelines
        self._metrics = context.metrics
        self._rules = context.options.rules

    # --- one group ---------------------------------------------------------------------------------------------

    def settle(self, state: GroupState, group: PodGroup, group_members: GroupMembers) -> Repair:
        """Bring the vacancies of a group, and whether it is broken, up to date. Any state of its cycle will do."""
        committed = state.cycle is not None and bool(state.cycle.reservation.committed)
        intact = is_whole(group, group_members)
        state.started = state.started or intact or committed or _was_scheduled(group, group_members)
        state.assigned_domain = find_assigned_domain(group, group_members, self._store.nodes) or state.assigned_domain
        if intact or (state.stood is None and _stood_once(group, group_members)):
            state.stood = group.tree if group.policy.is_gang else None
        found = self._store.vacancies.of_group(group.key)
        if intact and not found:
            _note_whole(state)
            return NO_REPAIR
        wanted = count_wanted(self._store, group, group_members) if state.started else 0
        if found:
            self._close_old(state, found)
            self._trim(group.key, group_members, 0 if state.evicting else wanted)
            self._find_replacements(group.key, group_members)
            self._keep_to_share(group.key)
        found = self._store.vacancies.of_group(group.key)
        # What has stood still does: the gang lost nobody, but is to have more.
        grown = state.stood is not None and not count_missing(state.stood, group_members.placed_by_leaf)
        # An evicted member has its time to end: until then its gang is still being evicted.
        left = group_members.bound or found or (state.evicting and group_members.terminating)
        if intact or grown or state.stood is None or not wanted or not left:
            _note_whole(state)
        elif state.broken_since is None and not committed:  # else its first members are just being bound
            state.broken_since = self._clock()
        return self._describe(state, group, found, group_members)

    def _close_old(self, state: GroupState, vacancies: Iterable[Vacancy]) -> None:
        """Close those whose time is over; date those that are new."""
        now = self._clock()
        for vacancy in vacancies:
            if vacancy.since is None:
                vacancy.since = now
                if vacancy.refusal:
                    state.refusals.refuse_by_kubelet(vacancy.pod, now, self._store)
            elif now - vacancy.since >= self._rules.seconds:
                self._lose(vacancy)

    def _trim(self, key: GroupKey, group_members: GroupMembers, wanted: int) -> None:
        """Close those that nobody will fill: their members are not wanted, or others have their place already."""
        placed = [*group_members.bound, *filter(self._is_placed, group_members.waiting)]
        kept = max(0, wanted - len(placed)) if self._rules.seconds else 0
        vacancies = self._store.vacancies.of_group(key)
        taken = find_taken(vacancies, placed) | _find_seated(vacancies, placed)
        vacancies.sort(key=lambda vacancy: (bool(vacancy.replacement), id(vacancy) not in taken))
        for vacancy in vacancies[: max(0, len(vacancies) - kept)]:
            self._store.vacancies.close(vacancy)

    def _is_placed(self, pod: Pod) -> bool:
        return (
            self._store.vacancies.of_replacement(pod.uid) is None and self._store.occupancy.node_of(pod.uid) is not None
        )

    def _find_replacements(self, key: GroupKey, group_members: GroupMembers) -> None:
        free = [vacancy for vacancy in self._store.vacancies.of_group(key) if not vacancy.replacement]
        unplaced = [pod for pod in group_members.waiting if self._store.occupancy.node_of(pod.uid) is None]
        waiting = [pod for pod in unplaced if self._store.vacancies.of_replacement(pod.uid) is None]
        for vacancy, pod in match_replacements(free, waiting):
            self._store.vacancies.assign(vacancy, pod.uid)

    def _keep_to_share(self, key: GroupKey) -> None:
        """Close those that are too much for one namespace while gangs of others wait, the last ones first."""
        free = [vacancy for vacancy in self._store.vacancies.of_group(key) if not vacancy.replacement]
        while free and self._exceeds_share(key.namespace):
            self._lose(free.pop())

    def _exceeds_share(self, namespace: str) -> bool:
        # Slots whose replacements are there do not count: a quota counts these.
        if self._share_percent == ALL_PERCENT or not self._unschedulable.holds_others(namespace):
            return False
        most = find_most(self._share_percent, len(self._store.nodes))
        return self._store.vacancies.count_nodes(namespace) > most

    def _lose(self, vacancy: Vacancy) -> None:
        kept = 0.0 if vacancy.since is None else self._clock() - vacancy.since
        self._store.vacancies.close(vacancy)
        self._metrics.repaired(RepairOutcome.LOST, kept)

    def _describe(
        self, state: GroupState, group: PodGroup, vacancies: Sequence[Vacancy], group_members: GroupMembers
    ) -> Repair:
        replacements = tuple(
            pod for pod in group_members.waiting if self._store.vacancies.of_replacement(pod.uid) is not None
        )
        if not replacements:
            return NO_REPAIR
        fitting = frozenset(self._place_replacements(state, group, replacements, group_members))
        replacements = tuple(pod for pod in replacements if pod.uid in fitting)
        # With fewer slots than what ran a gang is not mended but starts anew, together.
        mended = find_repairable(group, group_members, vacancies, state.stood)
        return Repair(tuple(pod for pod in replacements if self._store.members.leaf_of(pod.uid) in mended), fitting)

    def _place_replacements(
        self, state: GroupState, group: PodGroup, replacements: Sequence[Pod], group_members: GroupMembers
    ) -> dict[str, str]:
        """The replacements whose own slot takes them now, each with its node, as a plan would see it."""
        key, nodes = group.topology_key, self._store.nodes
        assigned = (nodes[pod.node] for pod in group_members.find_residents(nodes) if pod.node in nodes)
        pinned = frozenset(node.labels.get(key, "") for node in assigned) if key is not None else frozenset[str]()
        out = state.find_exclusions(replacements, self._clock(), self._store)
        priority = self._store.priorities.find_own(group.key)
        request = PlanRequest(replacements, 0, key, pinned, out.pairs, out.nodes, group_priority=priority)
        taken = self._store.snapshots.take(request.yielding_priority, replacements)
        return self._kept_slots.find(request, taken.used)

    def judge(
        self, state: GroupState, group: PodGroup, group_members: GroupMembers, verdict: Verdict | None
    ) -> Verdict | None:
        """What is said of a broken group that stands at ``verdict``: it is broken first of all.

        Where nobody waits there is nobody to tell: the gang is just marked, until the grace is over.
        """
        broken = Verdict(Reason.BROKEN, have=group_members.placed, need=group.policy.min_count or 0)
        conflict = verdict is not None and verdict.reason is Reason.DOMAIN_CONFLICT
        if not (group_members.waiting or group_members.gated or group_members.refused or conflict):
            state.verdict = replace(broken, detail="no replacements of the others exist")
            return None
        if verdict is None or verdict.reason.stage in {Stage.PLANNED, Stage.BINDING}:
            return verdict
        return replace(broken, detail=render(verdict))

    # --- terms and time ----------------------------------------------------------------------------------------

    def forget(self, state: GroupState) -> None:
        """Nobody asks for now whether a gang is broken: its PodGroup is not there."""
        _note_whole(state)

    def end_term(self, states: Iterable[GroupState]) -> None:
        """Others see to the gangs now; what was seen so far says nothing of them when our turn comes again.

        Slots stay kept, for as long as they would be: whoever is next knows as much of them.
        """
        self._store.vacancies.filled.clear()
        for state in states:
            _note_whole(state)
            state.stood = None
        self._age(list(self._store.vacancies))

    def review_awaiting(self) -> None:
        """Slots of gangs that have no object yet are looked at with no group: see that their time ends as well."""
        vacancies = self._store.vacancies
        self._age([each for key in self._store.earlier_slots.awaiting for each in vacancies.of_group(key)])

    def _age(self, vacancies: Iterable[Vacancy]) -> None:
        now = self._clock()
        for vacancy in vacancies:
            if vacancy.since is None:
                vacancy.since = now
            elif now - vacancy.since >= self._rules.seconds:
                self._store.vacancies.close(vacancy)

    def catch_up(self, promised: Collection[str]) -> None:
        """Our turn begins, and the records promise slots on these nodes: close what only a standby has kept.

        It gives no slot to a replacement, so it keeps those that were taken since, and those that nobody wants.
        """
        for vacancy in self._store.vacancies:
            # Its room is theirs for whom it ended. Elsewhere it tells who goes with it.
            if vacancy.pod.disruption == PREEMPTED and vacancy.pod.node in promised:
                self._store.vacancies.close(vacancy)
        for key in self._store.vacancies.groups():
            group = self._store.groups.get(key)
            if group is None:
                continue  # it still waits for its object
            group_members = self._store.members.classify(key)
            self._close_taken(key, group_members.bound)
            wanted = count_wanted(self._store, group, group_members)
            self._trim(key, group_members, wanted)
            self._find_replacements(key, group_members)

    def _close_taken(self, key: GroupKey, placed: Sequence[Pod]) -> None:
        vacancies = self._store.vacancies.of_group(key)
        taken = find_taken(vacancies, placed)
        for vacancy in vacancies:
            if id(vacancy) in taken:
                self._store.vacancies.close(vacancy)

    def release(self, victims: Collection[str]) -> None:
        """Keep no slot of these members: they ended for another gang, and their room is that one's."""
        for vacancy in self._store.vacancies:
            if vacancy.pod.uid in victims:
                self._store.vacancies.close(vacancy)

    def recall(self, now: float) -> None:
        """Our turn begins, at ``now`` in seconds since 1970: keep the slots of members that have failed of late.

        Their pods are still there. Of one that was deleted only those know who have seen it: a standby does.
        """
        known = {vacancy.pod.uid for vacancy in self._store.vacancies}
        for pod in [pod for pod in self._store.pods.values() if pod.phase is Phase.FAILED and pod.node]:
            ended = pod.ends or pod.disrupted
            if ended is not None and now - ended < self._rules.seconds and pod.uid not in known:
                self._store.earlier_slots.recall(pod, self._clock() - max(0.0, now - ended))

    def note_filled(self) -> None:
        """Count the repairs that are done."""
        filled, self._store.vacancies.filled = self._store.vacancies.filled, []
        now = self._clock()
        for vacancy, node in filled:
            outcome = RepairOutcome.SAME_NODE if node == vacancy.pod.node else RepairOutcome.SAME_DOMAIN
            self._metrics.repaired(outcome, now - (now if vacancy.since is None else vacancy.since))

    def review(self, key: GroupKey, state: GroupState) -> None:
        """Report a gang that is broken for too long, once, and have it evicted if the rules say so."""
        since = state.broken_since
        if since is None or state.reported or self._clock() - since < self._rules.grace:
            return
        state.reported = True
        group = self._store.groups.get(key)
        need = (group.policy.min_count or 0) if group is not None else 0
        verdict = Verdict(Reason.BROKEN, have=self._store.members.classify(key).placed, need=need)
        self._timelines.note(key, Milestone.BROKEN)
        self._status.report_broken(key, replace(verdict, detail=f"broken for {self._clock() - since:.0f} s"))
        if self._rules.broken is Broken.EVICT:
            state.evicting = True
            self._outbox.put(Evict(key))


def _find_seated(vacancies: Sequence[Vacancy], placed: Iterable[Pod]) -> set[int]:
    """The vacancies (by ``id``) on whose node a member of the same kind is placed: maybe it came in their place."""
    by_node: dict[str, list[Pod]] = {}
    for pod in placed:
        by_node.setdefault(pod.node, []).append(pod)
    assigned = {vacancy.pod.node for vacancy in vacancies}
    pairs = [
        pair
        for node in assigned & by_node.keys()
        for pair in match_replacements([each for each in vacancies if each.pod.node == node], by_node[node])
    ]
    return {id(vacancy) for vacancy, _ in pairs}


def _stood_once(group: PodGroup, group_members: GroupMembers) -> bool:
    """Whether the quorum that the group asks for now has stood, by its condition: nothing of it was changed since.

    Of objects made anew for a gang that was bound under others, nothing was changed either.
    """
    stranded = any(pod.stranded for pod in group_members.bound)
    return (group.scheduled or stranded) and group.generation <= 1


def _was_scheduled(group: PodGroup, group_members: GroupMembers) -> bool:
    """Whether the quorum has stood before this process looked, as far as the API can tell.

    Two kinds of groups have no condition to say so: there a bound member does, as none is bound before the others. Of
    the others, the condition is written only some time after the Bindings, and these say it themselves.
    """
    bound = group_members.bound
    return group.scheduled or (group.key.kind in BARE_KINDS and bool(bound)) or any(pod.told for pod in bound)


def _note_whole(state: GroupState) -> None:
    state.broken_since, state.reported, state.evicting = None, False, False


class Disruptions:
    """Has the rest of a gang follow a member. Every method is synchronous."""

    def __init__(self, context: Context) -> None:
        self._pods = context.store.pods
        self._members = context.store.members
        self._membership = context.store.membership
        self._forest = context.store.forest
        self._disruption_groups = context.store.disruption_groups
        self._vacancies = context.store.vacancies
        self._pending_victims = context.store.pending_victims
        self._outbox = context.outbox
        self._status = context.status
        self._timelines = context.timelines
        self._rule = context.options.disrupted
        self._method = context.options.preempt_by

    def follow(self, key: GroupKey, state: GroupState, group: PodGroup) -> None:
        """Have those ended that go with a disrupted member. What has followed once does not follow again."""
        if self._rule is Disrupted.KEEP:
            return
        for pod in self._list_disrupted(key):
            if pod.uid not in state.disrupted:
                state.disrupted.add(pod.uid)
                self._end_rest(state, DisruptionGroup(key, group.find_disrupted(self._find_part(pod))), pod)
        if state.disrupted:
            self._let_go(key, state)

    def _list_disrupted(self, key: GroupKey) -> list[Pod]:
        """The members that run, or ran until just now, and that somebody disrupts."""
        found = [pod for pod in self._members.iterate_disrupted(key) if pod.bound]
        found += [vacancy.pod for vacancy in self._vacancies.of_group(key)]
        return [pod for pod in found if self._counts(pod)]

    def _counts(self, pod: Pod) -> bool:
        if pod.uid in self._pending_victims:
            return False  # who goes with it was decided with it (`preemption`)
        if self._pending_victims.was_let_off(pod.uid) and not pod.deleting:
            return False  # it stays after all, and nobody may go with it
        if pod.disruption == PREEMPTED:
            return self._is_preempted(pod)
        return self._rule is Disrupted.ANY and bool(pod.disruption)

    def _is_preempted(self, pod: Pod) -> bool:
        """Whether a pod ends, or is gone: that it only says so may be all that ever happens to it.

        Whoever has written it may have died before the delete, or have been refused that. But a member that says that
        it follows another one goes on following, though that one is gone and nobody knows of it any more.
        """
        known = self._pods.get(pod.uid)
        return pod.deleting or pod.says_follower or known is None or not known.bound

    def _find_part(self, pod: Pod) -> str:
        own = self._membership.resolve(pod)  # whoever is gone is in no group any more
        return own.name if own is not None and own != self._forest.lift(own) else ""

    def _end_rest(self, state: GroupState, disruption_group: DisruptionGroup, pod: Pod) -> None:
        running = self._disruption_groups.list_running(disruption_group)
        # Nobody else ends one that follows: whoever was to do it is gone.
        rest = [each for each in running if each.uid != pod.uid or pod.says_follower]
        uids = tuple(each.uid for each in rest if each.uid not in state.leaving and not _is_newer(each, pod))
        if not uids:
            return
        state.disrupted.update(uids)
        others = sum(uid != pod.uid for uid in uids)
        text = render_disruption(pod.name, pod.disruption, others)
        if others:
            self._timelines.note(disruption_group.group, Milestone.PREEMPTED)
            self._status.report_disrupted(disruption_group.group, text)
        if self._ends_as_preempted(pod):
            state.leaving.update(uids, (pod.uid,))
            self._outbox.put(Preempt(disruption_group.group, uids, text))
        else:  # they leave once it is known that all of them may
            self._outbox.put(EvictTogether(disruption_group.group, uids, pod.uid))

    def _ends_as_preempted(self, pod: Pod) -> bool:
        """Whether those that go with a pod end as kube-scheduler ends its victims, without asking their budgets.

        They do not where it was evicted for a gang of ours that was given up: it was evicted because budgets count.
        """
        own_victim = pod.says_victim and self._method is Method.EVICTION
        return pod.disruption == PREEMPTED and not own_victim

    def _let_go(self, key: GroupKey, state: GroupState) -> None:
        """Keep no slot of those that go together, and remember nobody who is gone."""
        for vacancy in self._vacancies.of_group(key):
            if vacancy.pod.uid in state.leaving:
                self._vacancies.close(vacancy)
        left = {vacancy.pod.uid for vacancy in self._vacancies.of_group(key)}
        state.disrupted = {uid for uid in state.disrupted if uid in self._pods or uid in left}
        state.leaving = {uid for uid in state.leaving if uid in self._pods or uid in left}


def _is_newer(pod: Pod, disrupted: Pod) -> bool:
    """Whether a member began only after another one was disrupted: it is of the gang that was placed anew."""
    return pod.started is not None and disrupted.disrupted is not None and pod.started > disrupted.disrupted
