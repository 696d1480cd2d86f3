"""The cluster as the watches tell it: objects by identity, indexes by group, and the changes not yet looked at."""

from collections.abc import Collection, Iterable, Iterator

from serried.cluster.endings import Endings
from serried.cluster.forest import Forest
from serried.cluster.indexes import discard
from serried.cluster.inline import build_groups, is_replica, workload_of
from serried.cluster.kinship import Kinship
from serried.cluster.membership import Membership
from serried.cluster.occupancy import ClaimKind, FreedNodes, Occupancy
from serried.cluster.parentage import Parentage
from serried.cluster.uncounted import Uncounted
from serried.cluster.vacancies import Vacancies, Vacancy
from serried.cluster.volumes import Volumes
from serried.model.composite import Composite
from serried.model.device import DeviceClass
from serried.model.eligibility import GangJobs
from serried.model.group import GroupKey, GroupKind, Job, Key, PodGroup, Workload
from serried.model.node import Node
from serried.model.parent import JOB, REPLICA, Family, Parent
from serried.model.plan import Overlay, View
from serried.model.pod import Phase, Pod
from serried.model.priority import PriorityClass
from serried.model.resources import Resources, add, subtract
from serried.model.tree import list_leaves
from serried.model.volume import Volume, VolumeClaim
from serried.plan.capacity import Capacity
from serried.plan.quorum import Standing, combine, count_placed, size_up

_PARENTS = frozenset({GroupKind.JOB_SET, GroupKind.LEADER_WORKER_SET})


class Store:
    """Holds nodes, pods, PodGroups, Workloads, Jobs and their parents. Every transition is O(what the object touches).

    ``touched`` collects the groups that a change may concern, and ``orphaned`` the pods that left a group and belong
    to none now; the reader empties both. ``withdrawn`` counts the nominations that ended without the pod having gone
    there, ``withdrawn_nodes`` has the nodes that they named: room for others, like ``Occupancy.freed``, but no news to
    a gang that has just given its own stamps up.
    ``obstacle`` says why there may be Workloads and PodGroups that are not here, ``compatible_obstacle`` the same of
    PodGroups of scheduler-plugins. ``capacity`` has counted ahead what plans ask for. ``vacancies`` are the slots of
    bound members of gangs that have ended without success; who reads them closes those that nobody wants. Maps are
    public to read, and only these methods change them.
    """

    def __init__(self, schedulers: Collection[str], gang_jobs: GangJobs = GangJobs.BY_SHAPE) -> None:
        self.schedulers = frozenset(schedulers)
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.groups: dict[GroupKey, PodGroup] = {}
        self.workloads: dict[Key, Workload] = {}
        self.jobs: dict[Key, Job] = {}
        self.parents: dict[Family, Parent] = {}
        self.priority_classes: dict[str, PriorityClass] = {}
        self.occupancy = Occupancy(self._note_used)
        self.capacity = Capacity(self.nodes, self.occupancy.used)
        self.endings = Endings(self.jobs)
        self.vacancies = Vacancies(self.occupancy)
        self.membership = Membership(self.jobs, self.groups, self.workloads, self.schedulers, gang_jobs)
        self.volumes = Volumes()
        self.uncounted = Uncounted()
        self.forest = Forest(self.groups)
        self._kinship = Kinship()
        self.parentage = Parentage(self.parents, self.groups, self.workloads, self._kinship, self.schedulers, gang_jobs)
        self.withdrawn = 0
        self.withdrawn_nodes = FreedNodes()
        self.obstacle = ""
        self.compatible_obstacle = ""
        self.touched: set[GroupKey] = set()
        self.orphaned: set[str] = set()
        self._group_of: dict[str, GroupKey] = {}
        self._leaf_of: dict[str, GroupKey] = {}
        self._members: dict[GroupKey, dict[str, None]] = {}
        self._nominated: dict[str, Pod] = {}
        self._uids: dict[Key, str] = {}

    # --- reading -----------------------------------------------------------------------------------------------

    def group_of(self, uid: str) -> GroupKey | None:
        """The group of a known pod, maybe provisional; None for a pod of no group or an unknown pod."""
        return self._group_of.get(uid)

    def leaf_of(self, uid: str) -> str:
        """The PodGroup of a member within its tree; "" for a pod whose group is in none."""
        return self._leaf_of[uid].name if uid in self._leaf_of else ""

    def members(self, group: GroupKey) -> list[Pod]:
        """Every known pod of the group, also bound and finished ones, in the order of arrival."""
        return [self.pods[uid] for uid in self._members.get(group, ())]

    def iterate_members(self, group: GroupKey) -> Iterator[Pod]:
        """The same one by one, for those who look for the first of a kind."""
        return (self.pods[uid] for uid in self._members.get(group, ()))

    def count_placed(self, group: GroupKey) -> int:
        """How many members of a group that is no tree count toward its quorum: ``stand(group).placed``."""
        found = self.groups.get(group)
        job = self.membership.job_of(found) if found is not None else None
        min_count = (found.policy.min_count or 0) if found is not None else 0
        return count_placed(self.iterate_members(group), job, min_count)

    def stand(self, group: GroupKey, without: Collection[str] = ()) -> Standing:
        """How the group stands, as if the pods ``without`` (UIDs) were not there."""
        found = self.groups.get(group)
        members = [pod for pod in self.members(group) if pod.uid not in without]
        if found is None or found.tree is None:
            return self._size_up(found, members)
        below: dict[str, list[Pod]] = {leaf.name: [] for leaf in list_leaves(found.tree)}
        for pod in members:
            below.setdefault(self.leaf_of(pod.uid), []).append(pod)
        leaves = {name: self.groups.get(GroupKey(group.namespace, name)) for name in below}
        return combine({name: self._size_up(leaves[name], pods) for name, pods in below.items()})

    def _size_up(self, group: PodGroup | None, members: Iterable[Pod]) -> Standing:
        job = self.membership.job_of(group) if group is not None else None
        min_count = (group.policy.min_count or 0) if group is not None else 0
        return size_up(members, self.schedulers, job, min_count, self.parents)

    def member_groups(self) -> list[GroupKey]:
        """The groups that have a pod, with or without a PodGroup object."""
        return list(self._members)

    def pods_of_job(self, job: Key) -> list[Pod]:
        """The known pods that a Job of this name controls, whatever its UID."""
        return self.pods_of(Family(JOB, job))

    def pods_of(self, family: Family) -> list[Pod]:
        """The known pods of a Job or parent of this name, whatever its UID."""
        return [self.pods[uid] for uid in self._kinship.pods_of(family)]

    def lacks_owner(self, group: GroupKey) -> bool:
        """Whether this is a provisional key of pods whose Job or parent has not been seen (any more)."""
        if group.kind is GroupKind.JOB:
            return group.object_key not in self.jobs
        return group.kind in _PARENTS and Family(group.kind, group.object_key) not in self.parents

    def uid_of(self, pod: Key) -> str | None:
        """The UID of the pod that has this name now."""
        return self._uids.get(pod)

    def rank_of(self, uid: str) -> int | None:
        """The rank of a member in its gang; None for an unknown pod, or where nothing numbers the members."""
        pod = self.pods.get(uid)
        return self.parentage.rank_of(pod) if pod is not None else None

    def resolve(self, pod: Pod) -> GroupKey | None:
        """The group of a pod that need not be known: the scheduler's cache may be ahead of ours."""
        group = self._resolve_own(pod)
        return self.forest.lift(group) if group is not None else None

    def _resolve_own(self, pod: Pod) -> GroupKey | None:
        if pod.group is None and self.parentage.claims(pod):
            return self.parentage.resolve(pod)
        job = Family(JOB, Key(pod.namespace, pod.owner.name)) if pod.owner is not None else None
        started = pod.owner is not None and job is not None and self._kinship.has_started(job, pod.owner.uid)
        # A running gang whose objects cannot be seen looks like a Job that began without any.
        started = started and not self.obstacle
        return self.membership.resolve(pod, job_started=started)

    def view(self, priority: int, members: Iterable[Pod], leaving: Iterable[Vacancy] = ()) -> View:
        """The cluster for one plan of ``members``: nominations of equal or higher priority count as used.

        Slots that are kept count as used, too, but for those that the members would be ``leaving``. The cost is that
        of the nominated pods and these slots, not of the cluster: nothing is copied that they do not touch.
        """
        own = {pod.uid for pod in members}
        used: dict[str, Resources] = {}
        for vacancy in leaving:
            node = self.occupancy.node_of(vacancy.claimant)
            if node is not None:
                used[node] = subtract(used.get(node) or self.occupancy.used[node], dict(vacancy.pod.shape.requests))
        for pod in self._nominated.values():
            if pod.priority < priority or pod.uid in own or self.occupancy.node_of(pod.uid) is not None:
                continue
            base = used.get(pod.nominated) or self.occupancy.used.get(pod.nominated, {})
            used[pod.nominated] = add(base, dict(pod.shape.requests))
        if not used:
            return View(self.nodes, self.occupancy.used)
        return View(self.nodes, Overlay(used, self.occupancy.used), used.keys())

    def meet_obstacle(self, what: str) -> None:
        """What keeps us from seeing Workloads and PodGroups, a phrase; "" for nothing (any more)."""
        turned = bool(self.obstacle) is not bool(what)
        self.obstacle = self.parentage.obstacle = what
        if turned:
            self._rejoin(self._kinship.families())
        self._touch_missing()

    def meet_compatible_obstacle(self, what: str) -> None:
        """What keeps us from seeing PodGroups of scheduler-plugins, a phrase; "" for nothing (any more)."""
        self.compatible_obstacle = what
        self._touch_missing()

    def obstacle_to(self, group: GroupKey) -> str:
        """What keeps us from seeing the object of a group."""
        return self.compatible_obstacle if group.kind is GroupKind.COMPATIBLE else self.obstacle

    def _touch_missing(self) -> None:
        self.touched.update(group for group in self._members if group not in self.groups)

    # --- nodes -------------------------------------------------------------------------------------------------

    def put_node(self, node: Node) -> None:
        """A node came or changed; a heartbeat that changes nothing of ours frees nothing."""
        old = self.nodes.get(node.name)
        if old is not None and _same_room(old, node):
            return
        self.nodes[node.name] = node
        self.capacity.note_node(old, node)
        self.occupancy.note_room(node.name)
        self._put_anew(self.uncounted.note_node(old, node))

    def drop_node(self, name: str) -> None:
        """A node went. Its pods keep their claims until they go themselves."""
        old = self.nodes.pop(name, None)
        self.capacity.note_node(old, None)
        self._put_anew(self.uncounted.note_node(old, None))

    def _note_used(self, name: str) -> None:
        self.capacity.note_used(name)

    # --- pods --------------------------------------------------------------------------------------------------

    def put_pod(self, pod: Pod) -> None:
        """A pod came or changed. Its shape asks for what is counted, on the nodes that reach its volumes."""
        pod = self.volumes.confine(self.uncounted.relax(pod))
        old = self.pods.get(pod.uid)
        self.pods[pod.uid] = pod
        self._uids[Key(pod.namespace, pod.name)] = pod.uid
        if old is not None and old.bound and pod.phase is Phase.FAILED:
            self._vacate(old, pod.refusal)
        self._claim(pod)
        if pod.bound:
            self.vacancies.fill(pod.uid, pod.node)
        elif not pod.pending:
            self.vacancies.disinherit(pod.uid)
        self._nominate(pod.uid, pod if pod.nominated and pod.pending else None)
        if pod.phase is Phase.SUCCEEDED and (old is None or old.phase is not Phase.SUCCEEDED):
            self.endings.learn(pod)
        turned = self._kinship.follow(old, pod)
        self._join(pod)
        self._rejoin(turned)

    def drop_pod(self, uid: str) -> None:
        """A pod went."""
        pod = self.pods.pop(uid, None)
        if pod is None:
            return
        key = Key(pod.namespace, pod.name)
        if self._uids.get(key) == uid:
            del self._uids[key]
        if pod.bound:
            self._vacate(pod)
        self.vacancies.disinherit(uid)
        self.occupancy.forget(uid)
        self.volumes.forget(uid)
        self.uncounted.forget(uid)
        self._nominate(uid, None)
        turned = self._kinship.follow(pod, None)
        self._leave(uid)
        self._rejoin(turned)

    def _vacate(self, pod: Pod, refusal: str = "") -> None:
        # Before its claims go, so that nobody finds the room free first; whether the slot is wanted, others know.
        key = self._group_of.get(pod.uid)
        group = self.groups.get(key) if key is not None else None
        if group is not None and group.policy.is_gang and not group.deleting and pod.scheduler in self.schedulers:
            self.vacancies.open(group.key, pod, refusal)

    def _claim(self, pod: Pod) -> None:
        if pod.bound:
            self.occupancy.claim(pod.uid, ClaimKind.BOUND, pod.node, pod.shape.requests)
        elif pod.node:
            self.occupancy.forget(pod.uid)
        else:
            self.occupancy.release(pod.uid, ClaimKind.BOUND)

    def _nominate(self, uid: str, pod: Pod | None) -> None:
        # A nomination counts as used in every view: when it goes without the pod having gone there, that is room.
        before = self._nominated.pop(uid, None)
        if pod is not None:
            self._nominated[uid] = pod
        if before is None or (pod is not None and pod.nominated == before.nominated):
            return
        if self.occupancy.node_of(uid) != before.nominated:
            self.withdrawn += 1
            self.withdrawn_nodes.add(before.nominated)

    def _join(self, pod: Pod) -> None:
        own = self._resolve_own(pod)
        group = self.forest.lift(own) if own is not None else None
        before = self._group_of.get(pod.uid)
        if before != group:
            self._leave(pod.uid)
            if group is not None:
                self._group_of[pod.uid] = group
                self._members.setdefault(group, {})[pod.uid] = None
                self._note_named(group)
        if own is not None and own != group:
            self._leaf_of[pod.uid] = own
        else:
            self._leaf_of.pop(pod.uid, None)
        if group is not None:
            self.touched.add(group)
        elif before is not None or pod.held_by_gate:
            self.orphaned.add(pod.uid)

    def _leave(self, uid: str) -> None:
        self._leaf_of.pop(uid, None)
        group = self._group_of.pop(uid, None)
        if group is not None:
            discard(self._members, group, uid)
            self.touched.add(group)
            if group not in self._members and is_replica(group):
                self.drop_group(group)

    def _note_named(self, group: GroupKey) -> None:
        key = workload_of(group)
        workload = self.workloads.get(key) if key is not None else None
        if workload is not None and workload.inline and group not in self.groups:
            self._put_inline(workload, [group])

    def _put_inline(self, workload: Workload, named: Iterable[GroupKey]) -> None:
        for group in build_groups(workload, named).values():
            if self.groups.get(group.key) != group:
                self.put_group(group)

    def _rejoin(self, families: Iterable[Family]) -> None:
        for family in families:
            for sibling in self.pods_of(family):
                self._join(sibling)

    # --- groups, workloads, jobs -------------------------------------------------------------------------------

    def put_group(self, group: PodGroup) -> None:
        """A PodGroup came or changed."""
        old = self.groups.get(group.key)
        self.groups[group.key] = group
        self.touched.add(group.key)
        if group.deleting or (old is not None and old.uid != group.uid):
            self.vacancies.close_group(group.key)
        if old is None or _group_facts(old) != _group_facts(group):
            self._rejoin(self._index_group(old, group))
        moved = old is None or (old.parent, old.deleting) != (group.parent, group.deleting)
        self._replant(self.forest.index_group(old, group), *([group.key] if moved else []))

    def drop_group(self, key: GroupKey) -> None:
        """A PodGroup went: its unbound members are held again, with reason PodGroupMissing."""
        old = self.groups.pop(key, None)
        if old is not None:
            self.touched.add(key)
            self.vacancies.close_group(key)
            self._rejoin(self._index_group(old, None))
            trees = self.forest.index_group(old, None)
            self._replant(trees, *trees)

    def put_composite(self, composite: Composite) -> None:
        """A CompositePodGroup came or changed."""
        trees = self.forest.put_composite(composite)
        self._replant(trees, *trees)

    def drop_composite(self, key: Key) -> None:
        """A CompositePodGroup went: the unbound members of its tree are held again."""
        trees = self.forest.drop_composite(key)
        self._replant(trees, *trees)

    def _replant(self, trees: Iterable[GroupKey], *moved: GroupKey) -> None:
        """Build trees anew in which something changed; the members of ``moved`` may belong elsewhere now."""
        for tree in trees:
            self.touched.add(tree)
            built = self.forest.build(tree)
            if built is None:
                self.drop_group(tree)
            elif self.groups.get(tree) != built:
                self.put_group(built)
        for key in moved:
            for pod in self.members(key):
                self._join(pod)

    def put_workload(self, workload: Workload) -> None:
        """A Workload came or changed."""
        old = self.workloads.get(workload.key)
        self.workloads[workload.key] = workload
        if workload.inline:
            self._put_inline(workload, [group for group in self._members if workload_of(group) == workload.key])
        self._rejoin(self._index_workload(old, workload))

    def drop_workload(self, key: Key) -> None:
        """A Workload went."""
        old = self.workloads.pop(key, None)
        if old is None:
            return
        families = self._index_workload(old, None)
        if old.inline:
            for group in [group for group in self.groups if workload_of(group) == key]:
                self.drop_group(group)
        self._rejoin(families)

    def put_volume(self, volume: Volume) -> None:
        """A PersistentVolume came or changed."""
        self._put_anew(self.volumes.put_volume(volume))

    def drop_volume(self, name: str) -> None:
        """A PersistentVolume went."""
        self._put_anew(self.volumes.drop_volume(name))

    def put_volume_claim(self, claim: VolumeClaim) -> None:
        """A PersistentVolumeClaim came or changed."""
        self._put_anew(self.volumes.put_claim(claim))

    def drop_volume_claim(self, key: Key) -> None:
        """A PersistentVolumeClaim went."""
        self._put_anew(self.volumes.drop_claim(key))

    def _put_anew(self, pods: Iterable[Pod]) -> None:
        for pod in pods:
            self.put_pod(self.uncounted.restore(pod))

    def put_device_class(self, found: DeviceClass) -> None:
        """A DeviceClass came or changed."""
        self._put_anew(self.uncounted.put_class(found))

    def drop_device_class(self, name: str) -> None:
        """A DeviceClass went."""
        self._put_anew(self.uncounted.drop_class(name))

    def put_priority_class(self, found: PriorityClass) -> None:
        """A PriorityClass came or changed."""
        self.priority_classes[found.name] = found

    def drop_priority_class(self, name: str) -> None:
        """A PriorityClass went."""
        self.priority_classes.pop(name, None)

    def put_job(self, job: Job) -> None:
        """A Job came or changed."""
        old = self.jobs.get(job.key)
        self.jobs[job.key] = job
        if old is None:
            for pod in self.pods_of_job(job.key):  # that were listed before their Job
                if pod.phase is Phase.SUCCEEDED:
                    self.endings.learn(pod)
        if old is None or _job_facts(old) != _job_facts(job):
            self._rejoin([Family(JOB, job.key)])
        elif _progress(old) != _progress(job):
            # Its pods belong where they did; only how its gang stands may be another.
            groups = {self._group_of.get(pod.uid) for pod in self.pods_of_job(job.key)}
            groups.update(group.key for group in self.membership.groups_controlled_by(job))
            self.touched.update(key for key in groups if key is not None)

    def drop_job(self, key: Key) -> None:
        """A Job went."""
        if self.jobs.pop(key, None) is not None:
            self._rejoin([Family(JOB, key)])

    def put_parent(self, parent: Parent) -> None:
        """A JobSet or a LeaderWorkerSet came or changed."""
        old = self.parents.get(parent.family)
        self.parents[parent.family] = parent
        if old != parent:
            self._rejoin([parent.family])

    def drop_parent(self, family: Family) -> None:
        """A JobSet or a LeaderWorkerSet went."""
        if self.parents.pop(family, None) is not None:
            self._rejoin([family])

    def _index_group(self, old: PodGroup | None, new: PodGroup | None) -> set[Family]:
        return _of_jobs(self.membership.index_group(old, new)) | self.parentage.index_group(old, new)

    def _index_workload(self, old: Workload | None, new: Workload | None) -> set[Family]:
        return _of_jobs(self.membership.index_workload(old, new)) | self.parentage.index_workload(old, new)


def _same_room(old: Node, new: Node) -> bool:
    return (old.allocatable, old.labels, old.taints, old.unschedulable) == (
        new.allocatable,
        new.labels,
        new.taints,
        new.unschedulable,
    )


def _group_facts(group: PodGroup) -> tuple[object, ...]:
    return group.workload, group.template, group.labels.get(REPLICA), group.owners, group.deleting


def _job_facts(job: Job) -> tuple[object, ...]:
    return (
        *(job.uid, job.parallelism, job.completions, job.indexed, job.group, job.gang_policy, job.scheduler),
        *(job.owner, job.finished, job.deleting),
    )


def _progress(job: Job) -> tuple[object, ...]:
    return job.completed, job.given_up, job.suspended, job.ending


def _of_jobs(jobs: Iterable[Key]) -> set[Family]:
    return {Family(JOB, job) for job in jobs}
