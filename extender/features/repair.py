"""Slots of dead members are kept for those that come in their place, and a broken gang is told of.

A member that ends without success leaves a vacancy (`serried.cluster.usage`), which the cache opens in the same step.
Here it is dated, given to the member that comes in its place, and closed when nobody wants it any more: when others
have its place, or the owner wants fewer members. All of that is memory. A standby has the same, and the next cache of
this process gets it (`serried.cluster.earlier_slots`); a restart finds the slots of members whose pods are still there
(decision 31).

What is left of a gang that stays broken is evicted where that is asked for (``--broken-gangs evict``).

Each look at a gang that has run settles all that (`pre_enqueue`): a member whose slot is kept needs no quorum, neither
in a plan nor at the permit (`permit`), and a broken gang comes first (`is_urgent`) and says so (`describe`). Whether a
gang has stood, and since when it is broken, is remembered of each (`Losses`) until the term ends.
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
from extender.core.scheduling.unschedulable import find_most
from extender.core.timeline import Milestone
from extender.evictions import evict
from extender.options import ALL_PERCENT, Broken
from serried.api.group import Leaf, PodGroup, Tree, list_leaves
from serried.api.job import Job
from serried.api.kinds import PARENTS
from serried.api.names import BARE_KINDS, JOB, PREEMPTED, REPLICA, GroupKey, Key, OwnerRef
from serried.api.parent import OwnerKey, Parent, stages_of
from serried.api.pod import Phase, Pod
from serried.api.reservation import Reservation
from serried.api.verdict import Reason, Stage, Verdict, render
from serried.cluster.cache import Store
from serried.cluster.usage import Vacancy, find_taken, match_replacements
from serried.ops.steps import Work
from serried.plan.quorum import GroupMembers, count_missing, is_whole
from serried.plan.request import PlanRequest

_RETRY_SECONDS = 10.0
"""The pause before the members of a broken gang that are left are evicted once more."""


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
    if parent.uid != owner.uid or parent.finished or parent.suspended or parent.deleting:
        return 0
    if _is_beyond(parent, group.labels.get(REPLICA)):
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


@dataclass(slots=True)
class Losses(Memory):
    """What is remembered of a gang that has run. Times are loop seconds."""

    captured = "repair"

    stood: Tree | None = None
    """Its tree when its quorum was seen to stand last."""

    broken_since: float | None = None
    """When it fell below its quorum; None if it stands."""

    reported: bool = False
    """Whether that was told."""

    evicting: bool = False
    """Whether what is left of it is being evicted."""

    def note_whole(self) -> None:
        """It stands."""
        self.broken_since, self.reported, self.evicting = None, False, False


def broken_since(gang: GroupState | None) -> float | None:
    """Since when a gang is below its quorum that has stood, in loop seconds; None if it is not."""
    memory = gang.memory.find(Losses) if gang is not None else None
    return memory.broken_since if memory is not None else None


class Repairs(Feature):
    """Tends vacancies and broken gangs. Every method but one is synchronous.

    It asks for the eviction of a gang that stays broken, if the rules say so. While a group of another namespace waits
    for room, slots are kept on ``options.share_percent`` of all nodes for one namespace at most.
    """

    memories = (Losses,)

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
        """The gangs that were seen broken, until they are looked at and are not."""

    # --- one group ---------------------------------------------------------------------------------------------

    def pre_enqueue(self, gang: GroupState, group: PodGroup, members: GroupMembers) -> Repair:
        """Bring the vacancies of a group, and whether it is broken, up to date. Any state of its cycle will do."""
        if not _has_run(gang, group, members, self._store):
            return NO_REPAIR
        memory = gang.memory.of(Losses)
        committed = gang.cycle is not None and bool(gang.cycle.reservation.committed)
        intact = is_whole(group, members)
        gang.started = gang.started or intact or committed or _was_scheduled(group, members)
        if intact or (memory.stood is None and _stood_once(group, members)):
            memory.stood = group.tree if group.policy.is_gang else None
        found = self._store.vacancies.of_group(group.key)
        if intact and not found:
            memory.note_whole()
            return NO_REPAIR
        wanted = count_wanted(self._store, group, members) if gang.started else 0
        if found:
            self._close_old(gang, found)
            self._trim(group.key, members, 0 if memory.evicting else wanted)
            self._find_replacements(group.key, members)
            self._keep_to_share(group.key)
        found = self._store.vacancies.of_group(group.key)
        # What has stood still does: the gang lost nobody, but is to have more.
        grown = memory.stood is not None and not count_missing(memory.stood, members.placed_by_leaf)
        # An evicted member has its time to end: until then its gang is still being evicted.
        left = members.bound or found or (memory.evicting and members.terminating)
        if intact or grown or memory.stood is None or not wanted or not left:
            memory.note_whole()
        elif memory.broken_since is None and not committed:  # else its first members are just being bound
            memory.broken_since = self._clock()
            self._broken[group.key] = None
        return self._describe(gang, group, found, members)

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
        mended = find_repairable(group, group_members, vacancies, state.memory.of(Losses).stood)
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

    def describe(
        self, gang: GroupState, group: PodGroup, members: GroupMembers, verdict: Verdict | None
    ) -> Verdict | None:
        """Return what is said of a gang that stands at ``verdict``: if it is broken, that first of all.

        Where nobody waits there is nobody to tell: the gang is just marked, until the grace is over.
        """
        if broken_since(gang) is None:
            return verdict
        broken = Verdict(Reason.BROKEN, have=members.placed, need=group.policy.min_count or 0)
        conflict = verdict is not None and verdict.reason is Reason.DOMAIN_CONFLICT
        if not (members.waiting or members.gated or members.refused or conflict):
            gang.verdict = replace(broken, detail="no replacements of the others exist")
            return None
        if verdict is None or verdict.reason.stage in {Stage.PLANNED, Stage.BINDING}:
            return verdict
        return replace(broken, detail=render(verdict))

    def is_urgent(self, gang: GroupState) -> bool:
        """Return whether a gang is broken: what is left of it holds room, and does nothing with it."""
        return broken_since(gang) is not None

    def permit(self, cycle: BindingCycle, uid: str) -> bool:
        """Return whether a member has the slot that is kept for it, and its PodGroup, which runs, is whole with those.

        The member is one for which a slot is kept.
        """
        slot, vacancy = cycle.reservation.slots.get(uid), self._store.vacancies.of_replacement(uid)
        group = self._store.groups.get(cycle.reservation.group)
        if group is None or slot is None or vacancy is None or vacancy.pod.node != slot.node:
            return False
        vacancies, gang = self._store.vacancies.of_group(group.key), self._groups.states.get(group.key)
        memory = gang.memory.find(Losses) if gang is not None else None
        stood = memory.stood if memory is not None else None
        return slot.part in find_repairable(group, self._store.members.classify(group.key), vacancies, stood)

    # --- terms and time ----------------------------------------------------------------------------------------

    def end_term(self) -> None:
        """Others see to the gangs now; what was seen so far says nothing of them when our turn comes again.

        Slots stay kept, for as long as they would be: whoever is next knows as much of them.
        """
        self._store.vacancies.filled.clear()
        self._age(list(self._store.vacancies))

    def hints(self) -> Work[Iterable[GroupKey]]:
        """See that the time of kept slots ends; return the gangs that have some: it passes without any change."""
        if self._store.vacancies.filled:
            self._note_filled()
        # Of gangs that have no object yet nobody looks at the group.
        vacancies = self._store.vacancies
        self._age([each for key in self._store.earlier_slots.awaiting for each in vacancies.of_group(key)])
        if not self._term.obstacle:
            self._review_broken()
        yield from ()
        return vacancies.groups()

    def _review_broken(self) -> None:
        for key in list(self._broken):
            gang = self._groups.states.get(key)
            if gang is not None and broken_since(gang) is not None:
                self._review(key, gang)
            else:
                del self._broken[key]

    def _age(self, vacancies: Iterable[Vacancy]) -> None:
        now = self._clock()
        for vacancy in vacancies:
            if vacancy.since is None:
                vacancy.since = now
            elif now - vacancy.since >= self._rules.seconds:
                self._store.vacancies.close(vacancy)

    def recover(self, records: Sequence[Reservation]) -> None:
        """Our turn begins, and the records promise slots on nodes: close what only a standby has kept.

        It gives no slot to a replacement, so it keeps those that were taken since, and those that nobody wants. Nor is
        one kept of a member that ended for another gang: its room is that one's.
        """
        promised = {slot.node for each in records for slot in each.slots.values()}
        victims = {uid for each in records for uid in each.victims}
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
        for vacancy in self._store.vacancies:
            if vacancy.pod.uid in victims:
                self._store.vacancies.close(vacancy)

    def _close_taken(self, key: GroupKey, placed: Sequence[Pod]) -> None:
        vacancies = self._store.vacancies.of_group(key)
        taken = find_taken(vacancies, placed)
        for vacancy in vacancies:
            if id(vacancy) in taken:
                self._store.vacancies.close(vacancy)

    def begin_term(self, now: float) -> None:
        """Our turn begins, at ``now`` in seconds since 1970: keep the slots of members that have failed of late.

        Their pods are still there. Of one that was deleted only those know who have seen it: a standby does.
        """
        known = {vacancy.pod.uid for vacancy in self._store.vacancies}
        for pod in [pod for pod in self._store.pods.values() if pod.phase is Phase.FAILED and pod.node]:
            ended = pod.ends or pod.disrupted
            if ended is not None and now - ended < self._rules.seconds and pod.uid not in known:
                self._store.earlier_slots.recall(pod, self._clock() - max(0.0, now - ended))

    def _note_filled(self) -> None:
        """Count the repairs that are done."""
        filled, self._store.vacancies.filled = self._store.vacancies.filled, []
        now = self._clock()
        for vacancy, node in filled:
            outcome = RepairOutcome.SAME_NODE if node == vacancy.pod.node else RepairOutcome.SAME_DOMAIN
            self._metrics.repaired(outcome, now - (now if vacancy.since is None else vacancy.since))

    def observe(self, key: GroupKey, gang: GroupState, group: PodGroup | None) -> None:
        """Forget that a gang is broken whose PodGroup is not there: nobody asks for that now."""
        memory = gang.memory.find(Losses)
        if group is None and memory is not None:
            memory.note_whole()

    def _review(self, key: GroupKey, gang: GroupState) -> None:
        """Report a gang that is broken for too long, once, and have it evicted if the rules say so."""
        memory = gang.memory.find(Losses)
        since = memory.broken_since if memory is not None else None
        if memory is None or since is None or memory.reported or self._clock() - since < self._rules.grace:
            return
        memory.reported = True
        group = self._store.groups.get(key)
        need = (group.policy.min_count or 0) if group is not None else 0
        verdict = Verdict(Reason.BROKEN, have=self._store.members.classify(key).placed, need=need)
        self._timelines.note(key, Milestone.BROKEN)
        self._status.report_broken(key, replace(verdict, detail=f"broken for {self._clock() - since:.0f} s"))
        if self._rules.broken is Broken.EVICT:
            memory.evicting = True
            self._outbox.put(InBackground(partial(self._evict, key)))

    # --- what is left of a broken gang -------------------------------------------------------------------------

    async def _evict(self, key: GroupKey) -> None:
        """Evict the bound members one after the other, until none is left or the gang is whole again.

        Before each one it is looked again: a gang that was repaired meanwhile keeps what it has. Dying half-way, or at
        the end of the term, leaves a broken gang, which the next process reports, and evicts, after a grace of its own.
        """
        while left := [pod for pod in self._store.members.of_group(key) if self._is_due(key, pod.uid)]:
            for pod in left:
                if self._is_due(key, pod.uid):
                    await evict(self._client, pod)
            await asyncio.sleep(_RETRY_SECONDS)

    def _is_due(self, key: GroupKey, uid: str) -> bool:
        gang = self._groups.states.get(key)
        memory = gang.memory.find(Losses) if gang is not None else None
        return memory is not None and memory.evicting and self._runs(uid)

    def _runs(self, uid: str) -> bool:
        """Whether a pod is bound and nobody has ended it yet; not asked for any more once the term is over."""
        pod = self._store.pods.get(uid)
        return self._term.active and pod is not None and pod.bound and not pod.deleting


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


def find_repairable(
    group: PodGroup, group_members: GroupMembers, vacancies: Iterable[Vacancy], stood: Tree | None
) -> frozenset[str]:
    """The PodGroups that run and that the kept slots make whole, by name; the others start anew.

    Whole is what ``stood`` when the quorum did last: a gang that is to grow lacks what it lost, not what it is to get.
    None is for a gang that ran before this process looked: then every PodGroup that runs is mended. Whoever is being
    deleted has a slot yet, which will be kept.
    """
    kept = Counter(vacancy.leaf for vacancy in vacancies)
    before = {leaf.name: leaf.need for leaf in list_leaves(stood)} if stood is not None else {}

    def is_mended(leaf: Leaf, each: GroupMembers) -> bool:
        need = min(leaf.need, before.get(leaf.name, leaf.need))
        return stood is None or each.need(need) <= kept[leaf.name] + len(each.terminating)

    below = ((leaf, group_members.leaves[leaf.name]) for leaf in list_leaves(group.tree))
    return frozenset(leaf.name for leaf, each in below if each.bound and is_mended(leaf, each))


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


def _has_run(gang: GroupState, group: PodGroup, members: GroupMembers, store: Store) -> bool:
    """Whether a group may have run, or a member of it; of others there is nothing to repair."""
    memory = gang.memory.find(Losses)
    known = memory is not None and (memory.stood is not None or memory.broken_since is not None)
    committed = gang.cycle is not None and bool(gang.cycle.reservation.committed)
    placed = committed or members.placed or members.terminating or is_whole(group, members)
    return bool(known or gang.started or group.scheduled or group.key in store.vacancies or placed)
