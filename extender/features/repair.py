"""Repair of gangs: the slot of a dead member is kept for its replacement, and a gang below its quorum is reported.

A bound member that ends without success leaves a vacancy, i.e. its slot, whose resources stay counted as used. The
Store opens the vacancy in the same step (`serried.cluster.usage`). This feature notes the time of the vacancy, assigns
it to the replacement pod, and closes it when it is no longer needed: another member has taken the place, the owner
wants fewer members, or no replacement was created in time. Vacancies are not persisted. A standby has them, too. If the
API server starts to serve another version of the PodGroup API, a new Store is built, which inherits them
(`serried.cluster.earlier_slots`). A restart finds only the slots of members whose pods still exist (decision 31).

A gang is broken while it is below the quorum that it has had. With ``--broken-gangs evict``, the remaining members of a
gang are evicted if it stays broken for the grace period.

The core calls `Repairs.pre_enqueue` whenever it considers a gang. A replacement with a kept slot needs no quorum,
neither in a plan nor at bind (`permit`). A broken gang comes first in the queue (`is_urgent`), and its verdict says so
(`describe`). `GangHistory` remembers until the end of the term whether a gang has had its quorum, and since when it is
broken.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from extender.core.feature import NO_REPAIR, Feature, Memory, Repair
from extender.core.parts import Parts
from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.effects import InBackground
from extender.core.scheduling.group import GroupState
from extender.core.scheduling.planning import KeptSlots
from extender.core.scheduling.unschedulable import count_share
from extender.core.timeline import Milestone
from extender.evictions import evict
from extender.options import ALL_PERCENT, BrokenAction
from serried.api.group import Leaf, PodGroup, Tree, list_leaves
from serried.api.job import Job
from serried.api.kinds import PARENTS
from serried.api.names import BARE_KINDS, JOB, PREEMPTED, REPLICA, GroupKey, Key, OwnerRef
from serried.api.parent import OwnerKey, Parent, stages_of
from serried.api.pod import Phase, Pod
from serried.api.reservation import Reservation
from serried.api.verdict import Reason, Stage, Verdict, render
from serried.cluster.cache import Store
from serried.cluster.usage import Vacancy, find_replaced, match_replacements
from serried.ops.steps import Work
from serried.plan.quorum import GroupMembers, count_missing, has_quorum
from serried.plan.request import PlanRequest

_RETRY_SECONDS = 10.0
"""The pause before the eviction of a broken gang's members is tried again, in seconds."""


def count_wanted(store: Store, group: PodGroup, group_members: GroupMembers) -> int:
    """Return the number of members that should run at the same time; members that have succeeded do not count.

    The owner of the PodGroup, for instance a Job, gives the number. It is 0 if the owner has ended, is suspended, is
    being deleted or is gone, or if it is a Job whose success or failure is decided but that has not ended yet. If there
    is no known owner that gives a size, the number is minCount, or 0 if the gang has no members any more. For a tree it
    is the sum over its PodGroups.
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
    """Return the number of members that the PodGroup's controlling owner wants; 0 if the owner is gone.

    It is also 0 if the owner has ended, is suspended or is being deleted, or removes this PodGroup's replica. None if
    there is no such owner, or if it is of a kind whose size Serried cannot read.
    """
    owner = next((owner for owner in group.owners if owner.controller), None)
    if owner is None:
        return None
    if owner.kind == JOB:
        return 0  # the Job is gone: otherwise `job_of` would have found it
    return _count_of_parent(store, group, owner) if owner.kind in PARENTS else None


def _count_of_parent(store: Store, group: PodGroup, owner: OwnerRef) -> int | None:
    parent = store.parents.get(OwnerKey(owner.kind, Key(group.key.namespace, owner.name)))
    if parent is None:
        return 0 if owner.kind in store.membership.followed else None
    if parent.uid != owner.uid or parent.finished or parent.suspended or parent.deleting:
        return 0
    if _exceeds_replicas(parent, group.labels.get(REPLICA)):
        return 0
    sizes = {stage.name: stage.size for stage in stages_of(parent)}
    return sizes.get(group.template or "") if parent.staged else sum(sizes.values())


def _exceeds_replicas(parent: Parent, replica: str | None) -> bool:
    """Return whether the replica that a PodGroup belongs to is to be removed, because its parent was scaled down.

    ``replica`` is the replica's index, from a label, or None. For instance index "3" of a LeaderWorkerSet with 3
    replicas, whose indexes are 0 to 2. False if index or number are unknown.
    """
    return (
        replica is not None and parent.replicas is not None and replica.isdecimal() and int(replica) >= parent.replicas
    )


class RepairOutcome(StrEnum):
    """The end of a slot that was kept for a replacement, as a metric label.

    Either the replacement was bound, to the same node or to another one, or the slot was given up.
    """

    SAME_NODE = "SameNode"
    """The replacement was bound to the node of the dead member."""

    SAME_DOMAIN = "SameDomain"
    """The replacement was bound to another node; of the gang's domain, if the gang has a topology key."""

    LOST = "Lost"
    """The slot was given up: there was no replacement in time, or the namespace had kept too many slots."""


@dataclass(slots=True)
class GangHistory(Memory):
    """The facts about a gang that has run, which are remembered until the end of the term. Times are loop seconds."""

    captured = "repair"

    stood: Tree | None = None
    """The gang's tree, with each minCount, when it had its quorum last; None if it never had it in this term."""

    broken_since: float | None = None
    """The time since which the gang is below the quorum that it has had; None if it is not."""

    reported: bool = False
    """True once an Event has reported that the gang is broken; False again when it has its quorum."""

    evicting: bool = False
    """True while the remaining members of the broken gang are being evicted."""

    def mark_whole(self) -> None:
        """Note that the gang is not broken any more: it has its quorum, or does not need one."""
        self.broken_since, self.reported, self.evicting = None, False, False


def broken_since(gang: GroupState | None) -> float | None:
    """Return the loop time since which a gang is below the quorum that it has had.

    None if it is not, if it never had its quorum, or if the gang is None.
    """
    memory = gang.memory.find(GangHistory) if gang is not None else None
    return memory.broken_since if memory is not None else None


class Repairs(Feature):
    """The feature that keeps the slots of dead members for their replacements, and reports or evicts broken gangs.

    While a gang of another namespace waits for free resources, slots of one namespace are kept on at most
    ``options.share_percent`` percent of all nodes.
    """

    memories = (GangHistory,)

    def __init__(self, parts: Parts) -> None:
        context = parts.context
        self._store = context.store
        self._groups = context.groups
        self._kept_slots = KeptSlots(context.store)
        self._unschedulable = parts.queue.unschedulable
        self._share_percent = context.options.share_percent
        self._outbox = context.outbox
        self._clock = context.clock
        self._status = context.status
        self._timelines = context.timelines
        self._metrics = context.metrics
        self._rules = context.options.rules
        self._term = context.term
        self._client = parts.client

        self._broken: dict[GroupKey, None] = {}
        """The broken gangs, as a set; `list_requeues` removes those that are not broken any more."""

    # --- one group ---------------------------------------------------------------------------------------------

    def pre_enqueue(self, gang: GroupState, group: PodGroup, members: GroupMembers) -> Repair:
        """Update the kept slots of a gang, and whether it is broken. Return the replacements that need no quorum.

        These are waiting members that fit in the slots kept for them, in a PodGroup that has its quorum together with
        them. They are bound alone, as the members that still run count for the quorum. ``Repair.fitting`` also names
        members that fit in kept slots, but whose PodGroup lacks more members.
        """
        if not _has_run(gang, group, members, self._store):
            return NO_REPAIR
        memory = gang.memory.get_or_create(GangHistory)
        committed = gang.cycle is not None and bool(gang.cycle.reservation.committed)
        intact = has_quorum(group, members)
        gang.started = gang.started or intact or committed or _was_scheduled(group, members)
        if intact or (memory.stood is None and _had_current_quorum(group, members)):
            memory.stood = group.tree if group.policy.is_gang else None
        found = self._store.vacancies.of_group(group.key)
        if intact and not found:
            memory.mark_whole()
            return NO_REPAIR
        wanted = count_wanted(self._store, group, members) if gang.started else 0
        if found:
            self._close_expired(gang, found)
            self._close_unneeded(group.key, members, 0 if memory.evicting else wanted)
            self._find_replacements(group.key, members)
            self._enforce_share(group.key)
        found = self._store.vacancies.of_group(group.key)
        # The gang still has the quorum that it had: it lost no member, but its minCount has grown.
        grown = memory.stood is not None and not count_missing(memory.stood, members.placed_by_leaf)
        # While evicted members terminate, the gang still counts as being evicted.
        left = members.bound or found or (memory.evicting and members.terminating)
        if intact or grown or memory.stood is None or not wanted or not left:
            memory.mark_whole()
        elif memory.broken_since is None and not committed:  # a committed gang is just being bound
            memory.broken_since = self._clock()
            self._broken[group.key] = None
        return self._describe(gang, group, found, members)

    def _close_expired(self, state: GroupState, vacancies: Iterable[Vacancy]) -> None:
        """Close vacancies for which no replacement was bound within the configured number of seconds.

        For new ones, note the present time, from which these seconds count. If the kubelet has rejected the member that
        left a new vacancy, the gang's members with the same requests and constraints are not planned on that node for
        some minutes.
        """
        now = self._clock()
        for vacancy in vacancies:
            if vacancy.since is None:
                vacancy.since = now
                if vacancy.refusal:
                    state.refusals.exclude_after_kubelet(vacancy.pod, now, self._store)
            elif now - vacancy.since >= self._rules.seconds:
                self._close_lost(vacancy)

    def _close_unneeded(self, key: GroupKey, group_members: GroupMembers, wanted: int) -> None:
        """Close vacancies until placed members and vacancies together are no more than ``wanted``.

        For instance, with 4 members wanted and 3 placed one vacancy is kept. Those without a replacement are closed
        first, and among them those whose place another member has taken. All are closed if vacancies are kept for 0
        seconds.
        """
        placed = [*group_members.bound, *filter(self._is_placed, group_members.waiting)]
        kept = max(0, wanted - len(placed)) if self._rules.seconds else 0
        vacancies = self._store.vacancies.of_group(key)
        taken = find_replaced(vacancies, placed) | _find_occupied(vacancies, placed)
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

    def _enforce_share(self, key: GroupKey) -> None:
        """Close vacancies of a gang, the newest first, while its namespace keeps slots on too many nodes.

        Too many are more than ``options.share_percent`` percent of all nodes. Only vacancies to which no replacement
        pod is assigned are closed, and only while a gang of another namespace waits for resources.
        """
        free = [vacancy for vacancy in self._store.vacancies.of_group(key) if not vacancy.replacement]
        while free and self._exceeds_share(key.namespace):
            self._close_lost(free.pop())

    def _exceeds_share(self, namespace: str) -> bool:
        # Slots whose replacements exist do not count here: a quota counts those pods.
        if self._share_percent == ALL_PERCENT or not self._unschedulable.has_other_namespaces(namespace):
            return False
        most = count_share(self._share_percent, len(self._store.nodes))
        return self._store.vacancies.count_nodes(namespace) > most

    def _close_lost(self, vacancy: Vacancy) -> None:
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
        # A PodGroup with fewer kept slots than it lost members is not repaired: it starts anew, as a whole.
        repairable = find_repairable(group, group_members, vacancies, state.memory.get_or_create(GangHistory).stood)
        return Repair(tuple(pod for pod in replacements if self._store.members.leaf_of(pod.uid) in repairable), fitting)

    def _place_replacements(
        self, state: GroupState, group: PodGroup, replacements: Sequence[Pod], group_members: GroupMembers
    ) -> dict[str, str]:
        """Return the node of each replacement that fits in the slot kept for it now, by the replacement's UID.

        Replacements that do not fit are left out. Free resources, topology and excluded nodes count as in a plan.
        """
        key, nodes = group.topology_key, self._store.nodes
        assigned = (nodes[pod.node] for pod in group_members.find_residents(nodes) if pod.node in nodes)
        pinned = frozenset(node.labels.get(key, "") for node in assigned) if key is not None else frozenset[str]()
        out = state.find_exclusions(replacements, self._clock(), self._store)
        priority = self._store.priorities.find_object_priority(group.key)
        request = PlanRequest(replacements, 0, key, pinned, out.pairs, out.nodes, group_priority=priority)
        taken = self._store.snapshots.take(request.yielding_priority, replacements)
        return self._kept_slots.assign(request, taken.used)

    def describe(
        self, gang: GroupState, group: PodGroup, members: GroupMembers, verdict: Verdict | None
    ) -> Verdict | None:
        """Return the verdict to report for a gang: Broken, with ``verdict`` as its detail, if the gang is broken.

        Return ``verdict`` itself if the gang is not broken, or if its waiting members have a plan. Return None for a
        broken gang without waiting members: an Event reports it when the grace period is over.
        """
        if broken_since(gang) is None:
            return verdict
        broken = Verdict(Reason.BROKEN, have=members.placed, need=group.policy.min_count or 0)
        conflict = verdict is not None and verdict.reason is Reason.DOMAIN_CONFLICT
        if not (members.waiting or members.gated or members.refused or conflict):
            gang.verdict = replace(broken, detail="no replacements of the missing members exist")
            return None
        if verdict is None or verdict.reason.stage in {Stage.PLANNED, Stage.BINDING}:
            return verdict
        return replace(broken, detail=render(verdict))

    def is_urgent(self, gang: GroupState) -> bool:
        """Return whether a gang is broken, so that it goes first in the queue.

        Its members use resources, and cannot work without the others.
        """
        return broken_since(gang) is not None

    def permit(self, cycle: BindingCycle, uid: str) -> bool:
        """Return whether a replacement (UID) may be bound although its cycle gathers no quorum.

        It may if its slot is on the node that is kept for it, and if the running members of its PodGroup and the kept
        slots together are a quorum.
        """
        slot, vacancy = cycle.reservation.slots.get(uid), self._store.vacancies.of_replacement(uid)
        group = self._store.groups.get(cycle.reservation.group)
        if group is None or slot is None or vacancy is None or vacancy.pod.node != slot.node:
            return False
        vacancies, gang = self._store.vacancies.of_group(group.key), self._groups.states.get(group.key)
        memory = gang.memory.find(GangHistory) if gang is not None else None
        stood = memory.stood if memory is not None else None
        return slot.part in find_repairable(group, self._store.members.classify(group.key), vacancies, stood)

    # --- terms and time ----------------------------------------------------------------------------------------

    def end_term(self) -> None:
        """Drop the finished repairs that are not counted in the metrics yet, as another instance may lead from now on.

        Slots are kept for the rest of their time, as the next leader keeps them, too.
        """
        self._store.vacancies.filled.clear()
        self._expire(list(self._store.vacancies))

    def list_requeues(self) -> Work[Iterable[GroupKey]]:
        """Do the periodic work: count finished repairs, report broken gangs, and close slots whose time is over.

        Return a generator, which does this step by step and at the end returns all gangs for which slots are kept. The
        core then considers these gangs and calls `pre_enqueue`. Nothing changes in the cluster when the time of a slot
        is over, so no watch event would cause that.
        """
        if self._store.vacancies.filled:
            self._count_finished()
        # A gang whose PodGroup is not there yet is never considered, so its slots are dated and closed here.
        vacancies = self._store.vacancies
        self._expire([each for key in self._store.earlier_slots.awaiting for each in vacancies.of_group(key)])
        if not self._term.obstacle:
            self._report_broken_gangs()
        yield from ()
        return vacancies.groups()

    def _report_broken_gangs(self) -> None:
        for key in list(self._broken):
            gang = self._groups.states.get(key)
            if gang is not None and broken_since(gang) is not None:
                self._report_if_overdue(key, gang)
            else:
                del self._broken[key]

    def _expire(self, vacancies: Iterable[Vacancy]) -> None:
        now = self._clock()
        for vacancy in vacancies:
            if vacancy.since is None:
                vacancy.since = now
            elif now - vacancy.since >= self._rules.seconds:
                self._store.vacancies.close(vacancy)

    def recover(self, records: Sequence[Reservation]) -> None:
        """Close slots that this instance has kept as a standby, and that a leader would not have kept.

        Called at the start of a term. A standby keeps the slots of dead members, too, but assigns none to a
        replacement. So it still has slots that were filled since, or are not needed any more. The slots that stay are
        assigned to waiting replacements. The slot of a preempted member is closed if its resources belong to the
        preemptor: if one of ``records``, which are all Reservations, names the member as a victim or has a slot on the
        same node.
        """
        planned_nodes = {slot.node for each in records for slot in each.slots.values()}
        victims = {uid for each in records for uid in each.victims}
        for vacancy in self._store.vacancies:
            # On a planned node, the resources belong to the preemptor. On other nodes the slot stays open, because
            # `disruption` needs it.
            if vacancy.pod.disruption == PREEMPTED and vacancy.pod.node in planned_nodes:
                self._store.vacancies.close(vacancy)
        for key in self._store.vacancies.groups():
            group = self._store.groups.get(key)
            if group is None:
                continue  # its PodGroup is not there yet
            group_members = self._store.members.classify(key)
            self._close_taken(key, group_members.bound)
            wanted = count_wanted(self._store, group, group_members)
            self._close_unneeded(key, group_members, wanted)
            self._find_replacements(key, group_members)
        for vacancy in self._store.vacancies:
            if vacancy.pod.uid in victims:
                self._store.vacancies.close(vacancy)

    def _close_taken(self, key: GroupKey, placed: Sequence[Pod]) -> None:
        vacancies = self._store.vacancies.of_group(key)
        taken = find_replaced(vacancies, placed)
        for vacancy in vacancies:
            if id(vacancy) in taken:
                self._store.vacancies.close(vacancy)

    def begin_term(self, now: float) -> None:
        """Open vacancies for members that failed before this instance led; ``now`` is in seconds since 1970.

        Called at the start of a term. It finds failed pods that still exist, and that failed so recently that a
        replacement may still be awaited. The slot of a deleted pod is only known to an instance that has seen the
        deletion, for instance as a standby.
        """
        known = {vacancy.pod.uid for vacancy in self._store.vacancies}
        for pod in [pod for pod in self._store.pods.values() if pod.phase is Phase.FAILED and pod.node]:
            ended = pod.ends or pod.disrupted
            if ended is not None and now - ended < self._rules.seconds and pod.uid not in known:
                self._store.earlier_slots.restore_ended(pod, self._clock() - max(0.0, now - ended))

    def _count_finished(self) -> None:
        """Count in the metrics the slots whose replacement was bound since the last call."""
        filled, self._store.vacancies.filled = self._store.vacancies.filled, []
        now = self._clock()
        for vacancy, node in filled:
            outcome = RepairOutcome.SAME_NODE if node == vacancy.pod.node else RepairOutcome.SAME_DOMAIN
            self._metrics.repaired(outcome, now - (now if vacancy.since is None else vacancy.since))

    def observe(self, key: GroupKey, gang: GroupState, group: PodGroup | None) -> None:
        """If the PodGroup was deleted (``group`` is None), note that the gang is not broken any more.

        A gang is broken while fewer members than its quorum are left. With a PodGroup this does nothing.
        """
        memory = gang.memory.find(GangHistory)
        if group is None and memory is not None:
            memory.mark_whole()

    def _report_if_overdue(self, key: GroupKey, gang: GroupState) -> None:
        """Report a gang by an Event, once, if it is broken for longer than the grace period.

        With ``--broken-gangs evict``, also start to evict its remaining members.
        """
        memory = gang.memory.find(GangHistory)
        since = memory.broken_since if memory is not None else None
        if memory is None or since is None or memory.reported or self._clock() - since < self._rules.grace:
            return
        memory.reported = True
        group = self._store.groups.get(key)
        need = (group.policy.min_count or 0) if group is not None else 0
        verdict = Verdict(Reason.BROKEN, have=self._store.members.classify(key).placed, need=need)
        self._timelines.note(key, Milestone.BROKEN)
        self._status.report_broken(key, replace(verdict, detail=f"broken for {self._clock() - since:.0f} s"))
        if self._rules.broken is BrokenAction.EVICT:
            memory.evicting = True
            self._outbox.put(InBackground(partial(self._evict, key)))

    # --- what is left of a broken gang -------------------------------------------------------------------------

    async def _evict(self, key: GroupKey) -> None:
        """Evict the bound members of a broken gang, until none is left or the gang has its quorum again.

        Before each eviction it is checked whether the gang is still broken. Refused evictions are tried again after a
        pause. If the process or the term ends in between, the next leader reports the gang after another grace period,
        and evicts it then.
        """
        while left := [pod for pod in self._store.members.of_group(key) if self._is_due(key, pod.uid)]:
            for pod in left:
                if self._is_due(key, pod.uid):
                    await evict(self._client, pod)
            await asyncio.sleep(_RETRY_SECONDS)

    def _is_due(self, key: GroupKey, uid: str) -> bool:
        gang = self._groups.states.get(key)
        memory = gang.memory.find(GangHistory) if gang is not None else None
        return memory is not None and memory.evicting and self._is_running(uid)

    def _is_running(self, uid: str) -> bool:
        """Return whether a pod (UID) is bound and not being deleted; False once the term is over."""
        pod = self._store.pods.get(uid)
        return self._term.active and pod is not None and pod.bound and not pod.deleting


def _find_occupied(vacancies: Sequence[Vacancy], placed: Iterable[Pod]) -> set[int]:
    """Return the ``id()`` of each vacancy on whose node a placed member may already have replaced the dead one.

    That is a member of the same name, of the same owner and index, or of the same owner and shape.
    """
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


def find_repairable(
    group: PodGroup, group_members: GroupMembers, vacancies: Iterable[Vacancy], stood: Tree | None
) -> frozenset[str]:
    """Return the names of the running PodGroups that have their quorum again once the kept slots are filled.

    Other PodGroups of the gang cannot be repaired: their replacements wait for a whole quorum. ``vacancies`` are the
    kept slots; a member that is being deleted counts like one, because its slot will be kept.

    ``stood`` is the tree when the gang had its quorum last. If minCount has grown since, the smaller number counts, as
    only lost members have to be replaced. ``stood`` is None for a gang that ran before this process saw it; then all
    running PodGroups are returned.
    """
    kept = Counter(vacancy.leaf for vacancy in vacancies)
    before = {leaf.name: leaf.need for leaf in list_leaves(stood)} if stood is not None else {}

    def is_repaired(leaf: Leaf, each: GroupMembers) -> bool:
        need = min(leaf.need, before.get(leaf.name, leaf.need))
        return stood is None or each.need(need) <= kept[leaf.name] + len(each.terminating)

    below = ((leaf, group_members.leaves[leaf.name]) for leaf in list_leaves(group.tree))
    return frozenset(leaf.name for leaf, each in below if each.bound and is_repaired(leaf, each))


def _had_current_quorum(group: PodGroup, group_members: GroupMembers) -> bool:
    """Return whether the group is known to have had its quorum, with the minCount that it has now.

    That is known if its spec was never changed (generation 1), and it was scheduled: its condition
    PodGroupInitiallyScheduled (PodGroupScheduled in v1alpha2) is True, or a bound member names a PodGroup of an
    apiVersion that the API server does not serve any more, in place of which this group was created.
    """
    stranded = any(pod.stranded for pod in group_members.bound)
    return (group.scheduled or stranded) and group.generation <= 1


def _was_scheduled(group: PodGroup, group_members: GroupMembers) -> bool:
    """Return whether the group had its quorum before this process saw it, as far as the API server's objects show.

    They show it by the group's condition. It is written some time after the Bindings, so the annotation that Serried
    writes with each Binding counts, too. Groups without conditions (`BARE_KINDS`, for instance pod groups of Kueue) had
    it if one member is bound, as gangs are bound as a whole.
    """
    bound = group_members.bound
    return group.scheduled or (group.key.kind in BARE_KINDS and bool(bound)) or any(pod.told for pod in bound)


def _has_run(gang: GroupState, group: PodGroup, members: GroupMembers, store: Store) -> bool:
    """Return whether a member of the group may have run. If not, there is nothing to repair, and no work is needed.

    It may have if the group's condition, its kept slots, its committed binding cycle or its placed members show it, if
    this process remembers it, or if the group has policy basic, which needs no quorum.
    """
    memory = gang.memory.find(GangHistory)
    known = memory is not None and (memory.stood is not None or memory.broken_since is not None)
    committed = gang.cycle is not None and bool(gang.cycle.reservation.committed)
    placed = committed or members.placed or members.terminating or has_quorum(group, members)
    return bool(known or gang.started or group.scheduled or group.key in store.vacancies or placed)
