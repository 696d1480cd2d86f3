"""Which group a pod belongs to, at every API level (docs/contributing/workload-api.md).

The pod's field and label come first, then its owner: a parent (a JobSet, say) whose pods are gangs of its own,
else the Job. An owner leads to its Workload by ``controllerRef``, and that to a PodGroup by ``workloadRef``; without a
Workload, the PodGroups that the owner controls count. A Job has one gang. A parent has one for each template of its
Workload, in each of its replicas. In v1alpha1 (1.35) every ``podGroupReplicaKey`` is a gang of its own under the
template's policy (WorkloadReference). Pods whose PodGroup does not exist yet wait under a key of their owner.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from serried.api.group import PodGroup, Template, Workload
from serried.api.job import GangJobs, Job, is_gang_job
from serried.api.kinds import OWNER_KINDS, PARENTS
from serried.api.names import JOB, REPLACES, REPLICA, GroupKey, GroupKind, Key, OwnerRef, name_object
from serried.api.parent import (
    WHOLE,
    Owner,
    OwnerKey,
    Parent,
    Place,
    gangs_of,
    is_gang_parent,
    is_ours,
    kind_of,
    owner_key_of,
)
from serried.api.pod import Phase, Pod
from serried.cluster.forest import Forest
from serried.cluster.index import discard, key_of_group, key_of_workload, reindex
from serried.plan.quorum import find_rank


def workload_of(group: GroupKey) -> Key | None:
    """The Workload of which a group would be part, None for the key of a PodGroup object."""
    return group.object_key if group.kind is GroupKind.WORKLOAD else None


def is_replica(group: GroupKey) -> bool:
    """Whether a replica key made this group: it exists as long as a pod names it."""
    return group.kind is GroupKind.WORKLOAD and bool(group.replica)


def key_inline(workload: Workload, template: Template, replica: str = "") -> GroupKey:
    """The key of the group that a template of an inline Workload is, in one of its replicas if it has some."""
    return GroupKey(*workload.key, GroupKind.WORKLOAD, template.name, replica)


def build_groups(workload: Workload, named: Iterable[GroupKey]) -> dict[GroupKey, PodGroup]:
    """The groups of an inline Workload: its templates, and those of ``named`` that are replicas of one of them."""
    groups: dict[GroupKey, PodGroup] = {}
    for template in workload.templates:
        key = key_inline(workload, template)
        groups[key] = _build(workload, template, key)
        for group in named:
            if group.replica and group == key_inline(workload, template, group.replica):
                groups[group] = _build(workload, template, group)
    return groups


def _build(workload: Workload, template: Template, key: GroupKey) -> PodGroup:
    return PodGroup(
        key=key,
        uid=workload.uid,
        policy=template.policy,
        topology_key=template.topology_key,
        workload=workload.key.name,
        template=template.name,
        owners=workload.owners,
        labels=workload.labels,
        deleting=workload.deleting,
        version=workload.version,
        preference=template.preference,
    )


class Obstacles:
    """Why there may be Workloads and PodGroups that are not here: phrases, "" for no reason."""

    def __init__(self, unread: str = "") -> None:
        self.native = ""
        """Of Workloads and PodGroups at the API level in use."""

        self.unread = unread
        """Of the PodGroups of the cluster's own API, where it is not the level in use although it is served."""

        self.compatible = ""
        """Of the PodGroups of scheduler-plugins."""

        self.needed = ""
        """Of a kind without which nothing is planned, such as Jobs: what it has shown before has left the Store."""

    def to(self, group: GroupKey) -> str:
        """What keeps us from seeing the object of a group."""
        return self.compatible if group.kind is GroupKind.COMPATIBLE else self.native or self.unread


def provisional(owner_key: OwnerKey, stage: str = WHOLE, replica: str = "") -> GroupKey:
    """The key for a gang of this owner: the only one of a Job, that of a stage in a replica of a parent."""
    key = GroupKey(*owner_key.key, GroupKind(owner_key.kind))
    return key if owner_key.kind == JOB else key._replace(part=stage, replica=replica)


def owner_of_provisional(group: GroupKey) -> OwnerKey | None:
    """The owner that a provisional key stands for, None for any other key."""
    return OwnerKey(group.kind.value, group.object_key) if group.kind in OWNER_KINDS else None


class Owners:
    """Owners by key, and their pods. A pod may have two owners: its Job, and the parent of that.

    The maps are the Store's own and live.
    """

    def __init__(self, pods: Mapping[str, Pod], jobs: Mapping[Key, Job], parents: Mapping[OwnerKey, Parent]) -> None:
        self.pods = pods
        self.jobs = jobs
        self.parents = parents

        self._pods_by_owner: dict[OwnerKey, dict[str, None]] = {}
        """UIDs in the order of arrival."""

        self._pods_by_replica: dict[tuple[OwnerKey, str], dict[str, None]] = {}
        """The same by owner and replica, of the pods that are in one: an owner may have thousands of replicas."""

        self._started: dict[tuple[OwnerKey, str], dict[str, None]] = {}
        """UIDs of the pods that are bound or finished, by owner and by the owner's UID as the pods give it."""

    def find(self, owner_key: OwnerKey) -> Owner | None:
        """The Job or parent of this name."""
        return self.jobs.get(owner_key.key) if owner_key.kind == JOB else self.parents.get(owner_key)

    def is_awaited(self, group: GroupKey) -> bool:
        """Whether this is a provisional key of pods whose Job or parent has not been seen (any more)."""
        owner_key = owner_of_provisional(group)
        return owner_key is not None and self.find(owner_key) is None

    def pods_of(self, owner_key: OwnerKey) -> list[Pod]:
        """The known pods of an owner of this name, whatever its own UID, in the order of arrival."""
        return [self.pods[uid] for uid in self._pods_by_owner.get(owner_key, ())]

    def pods_at(self, owner_key: OwnerKey, replica: str) -> list[Pod]:
        """Those of them that are in one replica; "" for all."""
        if not replica:
            return self.pods_of(owner_key)
        return [self.pods[uid] for uid in self._pods_by_replica.get((owner_key, replica), ())]

    def with_pods(self) -> list[OwnerKey]:
        """Every owner that has a known pod."""
        return list(self._pods_by_owner)

    def has_started(self, owner_key: OwnerKey, uid: str) -> bool:
        """Whether a pod is bound or finished whose owner has this UID.

        The labels of some parents' pods do not give it: those count for any UID (`counts_as_started`).
        """
        return (owner_key, uid) in self._started or (owner_key, "") in self._started

    def follow(self, old: Pod | None, new: Pod | None) -> set[OwnerKey]:
        """Follow one pod; returns the owners whose eligibility turned, by their first started pod or their last."""
        before = dict(_owners_of(old))
        after = dict(_owners_of(new))
        for owner_key in before.keys() - after.keys():
            discard(self._pods_by_owner, owner_key, _uid(old))
        for owner_key in after:
            self._pods_by_owner.setdefault(owner_key, {})[_uid(new)] = None
        self._follow_replica(_replica_of(old), _replica_of(new), _uid(old or new))
        return self._follow_starts(_started(old, before), _started(new, after), _uid(old or new))

    def _follow_replica(self, old: tuple[OwnerKey, str] | None, new: tuple[OwnerKey, str] | None, uid: str) -> None:
        if old is not None and old != new:
            discard(self._pods_by_replica, old, uid)
        if new is not None:
            self._pods_by_replica.setdefault(new, {})[uid] = None

    def _follow_starts(self, old: set[tuple[OwnerKey, str]], new: set[tuple[OwnerKey, str]], uid: str) -> set[OwnerKey]:
        turned: set[OwnerKey] = set()
        for start in old - new:
            discard(self._started, start, uid)
            if start not in self._started:
                turned.add(start[0])
        for start in new - old:
            if start not in self._started:
                turned.add(start[0])
            self._started.setdefault(start, {})[uid] = None
        return turned


def counts_as_started(pod: Pod, owner_uid: str) -> bool:
    """Whether a pod is bound or finished, so that its owner of this UID gets no gang any more.

    Where the UID is not known, "", a pod that is being deleted may be left of an earlier owner of the name. One that
    was bound as a member of a gang does not count while that gang's objects cannot be read: its owner has a gang, and
    gets new objects for it.
    """
    begun = bool(pod.node) or pod.phase is not Phase.ACTIVE
    return begun and not pod.stranded and (bool(owner_uid) or not pod.deleting)


def _owners_of(pod: Pod | None) -> Iterator[tuple[OwnerKey, str]]:
    """The owners of a pod, with their UIDs as the pod gives them."""
    if pod is None:
        return
    if pod.owner is not None and pod.owner.kind == JOB:
        yield OwnerKey(JOB, Key(pod.namespace, pod.owner.name)), pod.owner.uid
    if pod.place is not None:
        yield OwnerKey(pod.place.kind, Key(pod.namespace, pod.place.parent)), pod.place.uid


def _replica_of(pod: Pod | None) -> tuple[OwnerKey, str] | None:
    if pod is None or pod.place is None or not pod.place.replica:
        return None
    return OwnerKey(pod.place.kind, Key(pod.namespace, pod.place.parent)), pod.place.replica


def _started(pod: Pod | None, owners: dict[OwnerKey, str]) -> set[tuple[OwnerKey, str]]:
    """The owners, with their UIDs, whose eligibility this pod ends by being bound or finished."""
    return {(owner_key, uid) for owner_key, uid in owners.items() if pod is not None and counts_as_started(pod, uid)}


def _uid(pod: Pod | None) -> str:
    return pod.uid if pod is not None else ""


_STAYS, _GOES = False, True
"""Whether a PodGroup is being deleted, as a part of its place in an index."""


@dataclass(eq=False)
class Membership:
    """Resolves pods to groups over the Store's maps, and keeps the indexes that this needs.

    The maps are the Store's own: this class reads them, and hears of every change by ``index_workload`` and
    ``index_group``.
    """

    workloads: Mapping[Key, Workload]
    forest: Forest
    owners: Owners
    obstacles: Obstacles
    schedulers: Collection[str]
    gang_jobs: GangJobs

    followed: set[str] = field(default_factory=set, init=False)
    """The kinds of parents that are watched."""

    _workloads_by_owner: dict[OwnerKey, tuple[Key, ...]] = field(default_factory=dict, init=False)
    """By ``controllerRef``."""

    _delegates: dict[OwnerKey, dict[OwnerKey, None]] = field(default_factory=dict, init=False)
    """The Jobs that have their template in the Workload of what controls them, by that."""

    # Each has the PodGroups that are being deleted apart: thousands of such are not looked through for each pod.

    _groups_by_workload: dict[tuple[Key, bool], tuple[GroupKey, ...]] = field(default_factory=dict, init=False)

    _groups_by_replica: dict[tuple[Key, str, bool], tuple[GroupKey, ...]] = field(default_factory=dict, init=False)
    """By Workload and replica: a parent may have thousands of replicas."""

    _groups_by_controller: dict[tuple[OwnerKey, str, bool], tuple[GroupKey, ...]] = field(
        default_factory=dict, init=False
    )
    """By controlling owner and replica."""

    def __post_init__(self) -> None:
        self._jobs = self.owners.jobs
        self._parents = self.owners.parents
        self._groups = self.forest.groups

    # --- changes -----------------------------------------------------------------------------------------------

    def index_workload(self, old: Workload | None, new: Workload | None) -> set[OwnerKey]:
        """Follow one change; returns the owners whose pods may belong elsewhere now."""
        turned = reindex(self._workloads_by_owner, owner_key_in(old), owner_key_in(new), key_of_workload(old, new))
        return turned.union(*(self._delegates.get(owner_key, ()) for owner_key in turned))

    def index_job(self, old: Job | None, new: Job | None) -> None:
        """Follow one change."""
        if old is not None and old.delegation is not None:
            discard(self._delegates, _referent(old), owner_key_of(old))
        if new is not None and new.delegation is not None:
            self._delegates.setdefault(_referent(new), {})[owner_key_of(new)] = None

    def referents_of(self, workload: Workload | None) -> list[OwnerKey]:
        """The owner to which a Workload refers, if it exists or not, and the Jobs that have a template in it."""
        owner_key = owner_key_in(workload)
        return [] if owner_key is None else [owner_key, *self._delegates.get(owner_key, ())]

    def index_group(self, old: PodGroup | None, new: PodGroup | None) -> set[tuple[OwnerKey, str]]:
        """Follow one change; returns the owners whose pods may belong elsewhere now, each with the replica of these.

        The replica is "" where it concerns all pods of the owner. Of a Job it always does: its gang is one, whatever
        labels the PodGroup has.
        """
        key = key_of_group(old, new)
        reindex(self._groups_by_workload, _place_in_workload(old), _place_in_workload(new), key)
        replicas = reindex(self._groups_by_replica, _place_in_replica(old), _place_in_replica(new), key)
        controllers = reindex(self._groups_by_controller, _place_below(old), _place_below(new), key)
        named = ((self.referents_of(self.workloads.get(workload)), replica) for workload, replica, _ in replicas)
        turned = {(owner_key, replica) for owner_keys, replica in named for owner_key in owner_keys}
        turned |= {(owner_key, replica) for owner_key, replica, _ in controllers}
        return {(owner_key, "" if owner_key.kind == JOB else replica) for owner_key, replica in turned}

    # --- Workloads and PodGroups of an owner -------------------------------------------------------------------

    def workloads_of(self, owner: Owner) -> list[Workload]:
        """The Workloads that refer to this owner and count (KEP-5547 discovery), by name.

        Of Workloads at two levels, those of the level in use do.
        """
        found = split_replaced(self.referring_to(owner), owner)[0]
        return [workload for workload in found if not workload.api] or found

    def referring_to(self, owner: Owner) -> list[Workload]:
        """As ``workloads_of``, those that have been replaced among them.

        A Workload whose controlling owner is another one of the same name is a left-over of that, on its way to garbage
        collection, and no match: controllerRef has no UID.
        """
        found = (self.workloads[key] for key in self._workloads_by_owner.get(_referent(owner), ()))
        return [each for each in found if not each.deleting and not _is_left_over(each, owner)]

    def groups_of(self, workload: Workload, owner: Owner) -> list[PodGroup]:
        """The owner's PodGroups made from this Workload, by name, without those that are being deleted.

        Replicas are none of them: only their own pods name them.
        """
        made = self._made_from(workload, self._groups_by_workload.get((workload.key, _STAYS), ()))
        return [group for group in made if is_made_for(owner, group, workload)]

    def _made_from(self, workload: Workload, keys: Iterable[GroupKey]) -> Iterator[PodGroup]:
        """Those of these PodGroups, which name the Workload, that live where it does."""
        found = (self._groups[key] for key in keys)
        return (group for group in found if group.api == workload.api and not is_replica(group.key))

    def groups_controlled_by(self, owner: Owner, replica: str = "") -> list[PodGroup]:
        """The PodGroups of one replica that this very owner controls, by name: what is left without its Workload.

        Those that are being deleted count while there is no other.
        """
        for goes in (_STAYS, _GOES):
            keys = self._groups_by_controller.get((owner_key_of(owner), replica, goes), ())
            if found := [group for key in keys if is_controlled_by(group := self._groups[key], owner)]:
                return found
        return []

    def _groups_at(self, workload: Workload, owner: Owner, template: str, replica: str) -> list[PodGroup]:
        """The PodGroups for one place, not more than two: more than one are none.

        One that is being deleted governs while there is no other, as natively. One of an earlier owner of the name does
        not: it goes with that. Every PodGroup of a Job's Workload is the Job's, whatever it says of places.
        """
        for goes in (_STAYS, _GOES):
            if isinstance(owner, Job):
                there = self._made_from(workload, self._groups_by_workload.get((workload.key, goes), ()))
                made = (group for group in there if is_made_for(owner, group, workload))
            else:
                there = self._made_from(workload, self._groups_by_replica.get((workload.key, replica, goes), ()))
                made = (group for group in there if group.template == template)
            if here := [group for group in islice(made, 2) if not _is_left_over(group, owner)]:
                return here
        return []

    def _groups_left_at(self, owner: Owner, stage: str, replica: str) -> list[PodGroup]:
        """The same without a Workload: by the rule of `find_template`, for they say which templates it had."""
        controlled = self.groups_controlled_by(owner, replica)
        if isinstance(owner, Job):
            return controlled
        names = {group.template for group in controlled}
        if stage not in names and (owner.staged or len(names) != 1):
            return []
        template = stage if stage in names else names.pop()
        return [group for group in controlled if group.template == template]

    def job_of(self, group: PodGroup) -> Job | None:
        """The Job whose gang this is, None if it is nobody's or not known."""
        controller = _controlling_job(group)
        key = controller
        if key is None and (workload := _workload_key(group)) is not None:
            owner_key = owner_key_in(self.workloads.get(workload))
            key = owner_key.key if owner_key is not None and owner_key.kind == JOB else None
        job = self._jobs.get(key) if key is not None else None
        return job if job is not None and (is_controlled_by(group, job) or controller is None) else None

    # --- who decides -------------------------------------------------------------------------------------------

    def is_eligible(self, owner: Owner) -> bool:
        """Whether Serried makes a Workload for an owner without one: it is a gang, and no pod of it has started."""
        return not self._has_started(owner) and self._is_gang(owner)

    def _awaits_workload(self, owner: Owner) -> bool:
        """Whether the owner's pods wait for a Workload, if it has none.

        A running gang whose objects cannot be seen looks like an owner that began without any.
        """
        begins = bool(self.obstacles.native) or not self._has_started(owner)
        return begins and (self._is_gang(owner) or self._is_delegate(owner))

    def _is_delegate(self, owner: Owner) -> bool:
        """Whether a Job waits for the Workload of what controls it."""
        if not isinstance(owner, Job) or owner.delegation is None or owner.finished or owner.deleting:
            return False
        return self._makes_gangs and owner.scheduler in self.schedulers

    def _has_started(self, owner: Owner) -> bool:
        return self.owners.has_started(owner_key_of(owner), owner.uid)

    def _is_gang(self, owner: Owner) -> bool:
        if isinstance(owner, Job):
            return is_gang_job(owner, self.schedulers, self.gang_jobs)
        return self._makes_gangs and is_gang_parent(owner, self.schedulers)

    @property
    def _makes_gangs(self) -> bool:
        return self.gang_jobs is not GangJobs.NONE

    def governs(self, parent: Parent, replica: str = "") -> bool:
        """Whether the parent's pods, in this replica, are gangs of its own, so that its Jobs have no say."""
        has_objects = bool(self.workloads_of(parent) or self.groups_controlled_by(parent, replica))
        return has_objects or self._awaits_workload(parent)

    def governs_job(self, job: Job) -> bool:
        """Whether the Job's pods are a gang, or a part of one, of the parent that controls it."""
        if job.owner is None or job.delegation is not None:
            return False
        parent = self._parents.get(OwnerKey(job.owner.kind, Key(job.key.namespace, job.owner.name)))
        return parent is not None and parent.uid == job.owner.uid and self.governs(parent)

    def _governs_pod(self, pod: Pod, place: Place) -> bool:
        """Whether the pod's parent decides about its group, and not its Job.

        A parent that has not been seen yet may: its kind is followed, so it will be.
        """
        parent = self._parents.get(_parent_key(pod, place))
        if parent is None:
            return self._makes_gangs and place.kind in self.followed
        return place.uid in {"", parent.uid} and self.governs(parent, place.replica)

    # --- names ---------------------------------------------------------------------------------------------------

    def name_owner(self, key: GroupKey) -> str:
        """The Job or parent that a group was made for, as kubectl names it (``job/train``); "" without one."""
        owner_key = self.owner_of(key)
        return name_object(owner_key.kind, owner_key.key.name) if owner_key is not None else ""

    def owner_of(self, key: GroupKey) -> OwnerKey | None:
        """The Job or parent that a group was made for, whether it is known or not; None without one."""
        made = owner_of_provisional(key)
        if made is not None:
            return made
        composite = key.kind is GroupKind.COMPOSITE
        group = self.forest.composites.get(key.object_key) if composite else self.forest.groups.get(key)
        known = [each for each in group.owners if each.kind in OWNER_KINDS] if group is not None else []
        owner = min(known, key=lambda each: not each.controller, default=None)
        return OwnerKey(owner.kind, Key(key.namespace, owner.name)) if owner is not None else None

    def name_group(self, key: GroupKey) -> str:
        """The object that a group has its name from: ``PodGroup train-x``; "" for a group that has none yet."""
        if owner_of_provisional(key) is not None or not key.name:
            return ""
        if key.kind is GroupKind.WORKLOAD:
            return f"PodGroup {key.encoded}"
        return f"{'CompositePodGroup' if key.kind is GroupKind.COMPOSITE else 'PodGroup'} {key.name}"

    # --- pods --------------------------------------------------------------------------------------------------

    def find_group(self, pod: Pod) -> GroupKey | None:
        """The group with which a pod is scheduled: as ``resolve``, but of a PodGroup in a tree it is the tree.

        The Store need not know the pod: the scheduler's cache may be ahead of ours.
        """
        group = self.resolve(pod)
        return self.forest.lift(group) if group is not None else None

    def resolve(self, pod: Pod) -> GroupKey | None:
        """The group of a pod, maybe provisional; None for a pod of no group."""
        if pod.group is not None:
            return self._admit(pod, pod.group)
        job = self._find_job(pod)
        delegates = job is not None and job.delegation is not None
        if pod.place is not None and not delegates and self._governs_pod(pod, pod.place):
            return self._resolve_with_parent(pod, pod.place)
        if pod.owner is None or pod.owner.kind != JOB:
            return None
        if job is None:
            return provisional(OwnerKey(JOB, Key(pod.namespace, pod.owner.name)))
        if job.group is not None:
            # Its pods have lost the field that its template has: the API server's gate is off by now.
            return self._admit(pod, job.group)
        return self._resolve_at(job, WHOLE, "")

    def _admit(self, pod: Pod, key: GroupKey) -> GroupKey:
        """The group that a pod, or its Job's template, names; as a stranger if it may not be a member."""
        return key.strangers if self._is_stranger(pod, key) else key

    def _is_stranger(self, pod: Pod, key: GroupKey) -> bool:
        """Whether the gang is a Job's and the pod is not: else whoever writes labels could make up its quorum."""
        controller = find_job_controller(self._groups.get(key))
        return controller is not None and (pod.owner is None or pod.owner.uid != controller.uid)

    def find_named(self, pod: Pod) -> GroupKey | None:
        """The group that a pod names, or else the template of its Job; None if neither does."""
        if pod.group is not None:
            return pod.group
        job = self._find_job(pod)
        return job.group if job is not None else None

    def _find_job(self, pod: Pod) -> Job | None:
        """The Job of a pod, None if it has none or that has not been seen."""
        if pod.owner is None or pod.owner.kind != JOB:
            return None
        job = self._jobs.get(Key(pod.namespace, pod.owner.name))
        return job if job is not None and job.uid == pod.owner.uid else None

    def name_controller(self, strangers: Iterable[Pod]) -> str:
        """The Job to which the gang belongs that these pods name."""
        groups = (self._groups.get(key) for pod in strangers if (key := self.find_named(pod)) is not None)
        return next((found.name for group in groups if (found := find_job_controller(group)) is not None), "")

    def _resolve_with_parent(self, pod: Pod, place: Place) -> GroupKey | None:
        parent_key = _parent_key(pod, place)
        parent = self._parents.get(parent_key)
        return provisional(parent_key) if parent is None else self._resolve_at(parent, place.stage, place.replica)

    def _resolve_at(self, owner: Owner, stage: str, replica: str) -> GroupKey | None:
        """The group of the pods at one place of their owner."""
        workloads = self.workloads_of(owner)
        if len(workloads) > 1:
            return None
        if workloads:
            return self._resolve_in(workloads[0], owner, stage, replica)
        # What counts is the PodGroup: a Workload that is deleted, or made anew for an elastic Job, changes nothing.
        if left := self._groups_left_at(owner, stage, replica):
            return left[0].key if len(left) == 1 else None
        return self._await_workload(owner, stage, replica)

    def _resolve_in(self, workload: Workload, owner: Owner, stage: str, replica: str) -> GroupKey | None:
        template = find_template(workload, owner, stage)
        if template is None:
            return None
        if workload.inline:
            return key_inline(workload, template, replica)
        if groups := self._groups_at(workload, owner, template.name, replica):
            return groups[0].key if len(groups) == 1 else None
        if not self._makes_gangs or not template.policy.is_gang:
            return None  # nobody would make the PodGroup, or nobody waits for it
        return provisional(owner_key_of(owner), stage if template.name == stage else WHOLE, replica)

    def _await_workload(self, owner: Owner, stage: str, replica: str) -> GroupKey | None:
        """The key under which pods wait whose owner has neither Workload nor PodGroups; None if they do not wait."""
        if not self._awaits_workload(owner):
            return None
        if isinstance(owner, Job):
            return provisional(owner_key_of(owner))
        gang = stage if owner.staged else WHOLE
        is_gang = any(each.name == gang for each in gangs_of(owner))
        return provisional(owner_key_of(owner), gang, replica) if is_gang else None

    def rank_of(self, pod: Pod) -> int | None:
        """The pod's number, from 0, in what its gang was made for: its Job, or its parent or the replica of that.

        None where that does not number its pods. A group that pods name themselves counts as its parent's.
        """
        place = pod.place
        if place is None or pod.index is None or PARENTS[place.kind].labels.index:
            return pod.index
        parent = self._parents.get(_parent_key(pod, place))
        if parent is not None and parent.uid != place.uid:
            parent = None
        asks = parent is not None and parent.asks  # also when its objects have gone since
        if pod.group is None and not asks and not self._governs_pod(pod, place):
            return pod.index
        return find_rank(place, pod.index, parent) if parent is not None else None


def find_template(workload: Workload, owner: Owner, stage: str) -> Template | None:
    """The template of a stage: that of its name, else the only one of an owner whose stages do not wait for each other.

    Never one template for stages that wait: their gang would wait for itself. A Job may name one of its controller's.
    """
    if isinstance(owner, Job) and owner.delegation is not None:
        wanted = owner.delegation.template
        return next((template for template in workload.templates if wanted in {"", template.name}), None)
    by_name = next((template for template in workload.templates if template.name == stage), None)
    waits = isinstance(owner, Parent) and bool(owner.staged)
    if by_name is not None or waits or len(workload.templates) != 1:
        return by_name
    return workload.templates[0]


def split_replaced(workloads: Iterable[Workload], owner: Owner) -> tuple[list[Workload], list[Workload]]:
    """Those that count, and those that are replaced: by a successor, or, if we made them, by somebody else's.

    We may have made ours only because we saw theirs later than its owner: one file may have the two in any order, and
    the API server shows each kind in its own time.
    """
    found = list(workloads)
    named = {workload.labels.get(REPLACES) for workload in found}
    levels = {workload.api for workload in found if not is_ours(workload, owner)}
    counting: list[Workload] = []
    replaced: list[Workload] = []
    for each in found:
        is_replaced = each.uid in named or (each.api in levels and is_ours(each, owner))
        (replaced if is_replaced else counting).append(each)
    return counting, replaced


def is_controlled_by(item: Workload | PodGroup, owner: Owner) -> bool:
    """Whether the owner is the object's controlling one; one of the same name but another UID is not."""
    return any(each.controller and each.uid == owner.uid for each in item.owners)


def owner_key_in(workload: Workload | None) -> OwnerKey | None:
    """The owner that a Workload refers to, None without one of a kind that we know."""
    if workload is None:
        return None
    if workload.job is not None:
        return OwnerKey(JOB, Key(workload.key.namespace, workload.job))
    if workload.parent is None:
        return None
    kind, name = workload.parent
    return OwnerKey(kind, Key(workload.key.namespace, name))


def _workload_key(group: PodGroup | None) -> Key | None:
    return None if group is None or group.workload is None else Key(group.key.namespace, group.workload)


def _place_in_workload(group: PodGroup | None) -> tuple[Key, bool] | None:
    key = _workload_key(group)
    return None if group is None or key is None else (key, group.deleting)


def _place_in_replica(group: PodGroup | None) -> tuple[Key, str, bool] | None:
    """Workload and replica of a PodGroup that is an object; one that is part of its Workload is found by its name."""
    if group is None or group.workload is None or group.key.kind is GroupKind.WORKLOAD:
        return None
    return Key(group.key.namespace, group.workload), group.labels.get(REPLICA, ""), group.deleting


def _place_below(group: PodGroup | None) -> tuple[OwnerKey, str, bool] | None:
    """The controlling owner of a PodGroup, and its replica."""
    if group is None:
        return None
    if (job := _controlling_job(group)) is not None:
        return OwnerKey(JOB, job), "", group.deleting
    if (place := _place_in_replica(group)) is None:
        return None  # also one that was made from no Workload: only pods that name it are its
    parent = next((each for each in group.owners if each.controller and each.kind in PARENTS), None)
    owner_key = None if parent is None else OwnerKey(parent.kind, Key(group.key.namespace, parent.name))
    return None if owner_key is None else (owner_key, place[1], group.deleting)


def find_job_controller(group: PodGroup | None) -> OwnerRef | None:
    """The Job to which a gang belongs: only its pods are members. None for a group that is nobody's, and no gang."""
    if group is None or not group.policy.is_gang:
        return None
    return next((each for each in group.owners if each.controller and each.kind == JOB), None)


def _controlling_job(group: PodGroup) -> Key | None:
    job = next((each for each in group.owners if each.controller and each.kind == JOB), None)
    return None if job is None else Key(group.key.namespace, job.name)


def _parent_key(pod: Pod, place: Place) -> OwnerKey:
    return OwnerKey(place.kind, Key(pod.namespace, place.parent))


def is_made_for(owner: Owner, group: PodGroup, workload: Workload) -> bool:
    """Whether a PodGroup of the owner's Workload is the owner's.

    All are, but for a Job that names a template of its controller's Workload: of that, and no other Job's.
    """
    if not isinstance(owner, Job) or owner.delegation is None:
        return True
    template = find_template(workload, owner, WHOLE)
    jobs = {each.uid for each in group.owners if each.controller and each.kind == JOB}
    return template is not None and group.template == template.name and jobs <= {owner.uid}


def _referent(owner: Owner) -> OwnerKey:
    """To what the owner's Workload refers: the owner, or what controls a Job that has its template there."""
    if isinstance(owner, Job) and owner.delegation is not None:
        kind, name = owner.delegation.parent
        return OwnerKey(kind, Key(owner.key.namespace, name))
    return owner_key_of(owner)


def _is_left_over(item: Workload | PodGroup, owner: Owner) -> bool:
    """Whether an earlier owner of the same name controls the object: it is on its way to garbage collection."""
    now = {(kind_of(owner), owner.key.name): owner.uid}
    if isinstance(owner, Job) and owner.delegation is not None and owner.owner is not None:
        now[owner.owner.kind, owner.owner.name] = owner.owner.uid
    return any(each.controller and now.get((each.kind, each.name), each.uid) != each.uid for each in item.owners)
