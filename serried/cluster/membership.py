"""Decides to which group a pod belongs (`Membership.resolve`), at every API level (version of the PodGroup API).

The group is found in this order (docs/contributing/workload-api.md):

1. The pod's field, then its label.
2. Its parent, such as a JobSet, if the parent's pods are gangs of the parent; else its Job.

An owner is a Job or a parent. A Workload belongs to the owner in its ``controllerRef``, and PodGroups belong to the
Workload in their ``workloadRef``. If the owner has no Workload, the PodGroups that it controls count. A Job has one
gang. The pods of a parent that use the same template of its Workload are called a stage, for instance a replicated Job
of a JobSet. Some parents consist of equal replicas, such as those of a LeaderWorkerSet. A parent has one gang for each
stage, in each of its replicas.

In v1alpha1 (1.35) every ``podGroupReplicaKey`` is a gang of its own with the template's policy (WorkloadReference).
Pods whose PodGroup does not exist yet wait under a key made from their owner, called provisional.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from serried.api.group import PodGroup, Policy, Template, Workload
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
    """Return the key of the Workload in whose object a group is defined (v1alpha1); None for all other groups."""
    return group.object_key if group.kind is GroupKind.WORKLOAD else None


def is_replica(group: GroupKey) -> bool:
    """Return whether a group is one replica of a template in a Workload of v1alpha1.

    Such a group has no object. It exists as long as a pod names it.
    """
    return group.kind is GroupKind.WORKLOAD and bool(group.replica)


def ends_with_its_pods(group: GroupKey) -> bool:
    """Return whether a group exists as long as a pod names it: a replica of v1alpha1, or a pod group of Kueue."""
    return group.kind is GroupKind.COUNTED or is_replica(group)


def build_counted(key: GroupKey) -> PodGroup:
    """Return the PodGroup value for a pod group of Kueue, which has no object. The key says how many pods it has."""
    return PodGroup(key, uid=str(key), policy=Policy(int(key.part)))


def key_inline(workload: Workload, template: Template, replica: str = "") -> GroupKey:
    """Return the key of the group that a template of a v1alpha1 Workload defines.

    With ``replica`` (the pods' podGroupReplicaKey) it is the key of this replica's group; "" for none.
    """
    return GroupKey(*workload.key, GroupKind.WORKLOAD, template.name, replica)


def build_groups(workload: Workload, named: Iterable[GroupKey]) -> dict[GroupKey, PodGroup]:
    """Return the PodGroup values of a v1alpha1 Workload, which defines its groups inline, by key.

    There is one for each template, and one for each replica among the groups that pods have ``named``.
    """
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
    """The reasons why objects may exist in the API server that the Store does not have.

    Each is a phrase, "" for none.
    """

    def __init__(self, unread: str = "") -> None:
        self.native = ""
        """The reason why Workloads and PodGroups of the level in use cannot be read."""

        self.unread = unread
        """The reason why Serried does not use PodGroups of scheduling.k8s.io, although the API server serves them."""

        self.compatible = ""
        """The reason why PodGroups of scheduler-plugins cannot be read."""

        self.needed = ""
        """The reason why a kind that every plan needs, such as Jobs, cannot be read. The Store has lost its objects."""

    def find_for(self, group: GroupKey) -> str:
        """Return the reason why the object of a group may exist although the Store does not have it; "" for none."""
        return self.compatible if group.kind is GroupKind.COMPATIBLE else self.native or self.unread


def provisional(owner_key: OwnerKey, stage: str = WHOLE, replica: str = "") -> GroupKey:
    """Return the provisional key of a gang, made from its owner because its PodGroup does not exist yet.

    A Job has one such key. A parent, such as a JobSet, has one for each stage (part of its pods with one template) in
    each replica; WHOLE and "" stand for all.
    """
    key = GroupKey(*owner_key.key, GroupKind(owner_key.kind))
    return key if owner_key.kind == JOB else key._replace(part=stage, replica=replica)


def owner_of_provisional(group: GroupKey) -> OwnerKey | None:
    """Return the owner from which a provisional key was made; None for any other key."""
    return OwnerKey(group.kind.value, group.object_key) if group.kind in OWNER_KINDS else None


class Owners:
    """Finds the Jobs and parents (such as JobSets) that own pods, and the pods of each.

    A pod may have two owners: its Job, and the parent of this Job. The maps passed in are live maps of the Store, which
    calls `update_pod` for every change of a pod.
    """

    def __init__(self, pods: Mapping[str, Pod], jobs: Mapping[Key, Job], parents: Mapping[OwnerKey, Parent]) -> None:
        self.pods = pods
        self.jobs = jobs
        self.parents = parents

        self._pods_by_owner: dict[OwnerKey, dict[str, None]] = {}
        """The UIDs of pods by owner, in the order in which the watch showed them."""

        self._pods_by_replica: dict[tuple[OwnerKey, str], dict[str, None]] = {}
        """The UIDs of pods by owner and replica. It is needed because an owner may have thousands of replicas."""

        self._started: dict[tuple[OwnerKey, str], dict[str, None]] = {}
        """The UIDs of pods that count as started, by owner and the owner's UID in the pod ("" if it has none)."""

    def find(self, owner_key: OwnerKey) -> Owner | None:
        """Return the Job or parent (such as a JobSet) with this key; None if it is not known."""
        return self.jobs.get(owner_key.key) if owner_key.kind == JOB else self.parents.get(owner_key)

    def is_awaited(self, group: GroupKey) -> bool:
        """Return whether a key is provisional, and the owner from which it was made is not in the Store (any more)."""
        owner_key = owner_of_provisional(group)
        return owner_key is not None and self.find(owner_key) is None

    def pods_of(self, owner_key: OwnerKey) -> list[Pod]:
        """Return the pods of the owner with this kind and name, whatever its UID, in the order of the watch."""
        return [self.pods[uid] for uid in self._pods_by_owner.get(owner_key, ())]

    def pods_at(self, owner_key: OwnerKey, replica: str) -> list[Pod]:
        """Return the pods in one replica of an owner (such as a LeaderWorkerSet); all its pods if the replica is ""."""
        if not replica:
            return self.pods_of(owner_key)
        return [self.pods[uid] for uid in self._pods_by_replica.get((owner_key, replica), ())]

    def with_pods(self) -> list[OwnerKey]:
        """Return all owners that have a known pod."""
        return list(self._pods_by_owner)

    def has_started(self, owner_key: OwnerKey, uid: str) -> bool:
        """Return whether at least one pod of the owner with this UID is bound or finished (`counts_as_started`).

        Pods of some parents do not say the UID of the parent. They count for any UID.
        """
        return (owner_key, uid) in self._started or (owner_key, "") in self._started

    def update_pod(self, old: Pod | None, new: Pod | None) -> set[OwnerKey]:
        """Update the indexes of pods by owner and replica, as a pod has changed from ``old`` to ``new``; None: no pod.

        Return the owners that now have their first bound or finished pod, or none any more. For them
        `Membership.is_eligible` may have changed.
        """
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
    """Return whether a pod is bound or finished, so that Serried creates no Workload any more for its owner.

    ``owner_uid`` is the UID of this owner, as far as the pod says it.

    There are two exceptions. If ``owner_uid`` is "" (not known), a pod that is being deleted does not count, because it
    may belong to an earlier owner of the name. A stranded pod (a member of a gang at another API version,
    `Pod.stranded`) does not count, because its owner has a gang, for which new objects are created.
    """
    begun = bool(pod.node) or pod.phase is not Phase.ACTIVE
    return begun and not pod.stranded and (bool(owner_uid) or not pod.deleting)


def _owners_of(pod: Pod | None) -> Iterator[tuple[OwnerKey, str]]:
    """Yield the owners that a pod names (Job, and parent such as a JobSet), each with its UID; "" if it is not said."""
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
    """Return the owners, with their UIDs, for which a pod counts as started (`counts_as_started`)."""
    return {(owner_key, uid) for owner_key, uid in owners.items() if pod is not None and counts_as_started(pod, uid)}


def _uid(pod: Pod | None) -> str:
    return pod.uid if pod is not None else ""


_LIVE, _DELETING = False, True
"""The part of an index key that says if the PodGroup is being deleted."""


@dataclass(eq=False)
class Membership:
    """Decides to which group a pod belongs, by Workloads, PodGroups, Jobs and parents (such as JobSets) of the Store.

    The maps passed in are live maps of the Store, which calls ``index_workload``, ``index_job`` and ``index_group`` for
    every change.
    """

    workloads: Mapping[Key, Workload]
    forest: Forest
    owners: Owners
    obstacles: Obstacles
    schedulers: Collection[str]
    gang_jobs: GangJobs

    followed: set[str] = field(default_factory=set, init=False)
    """The kinds of parents, such as JobSet, whose objects Serried watches."""

    _workloads_by_owner: dict[OwnerKey, tuple[Key, ...]] = field(default_factory=dict, init=False)
    """The Workloads by the owner in their ``controllerRef``."""

    _delegates: dict[OwnerKey, dict[OwnerKey, None]] = field(default_factory=dict, init=False)
    """The Jobs that use a template in the Workload of their controller (delegation), by that controller."""

    # The keys separate PodGroups that are being deleted, so that thousands of these are not searched for each pod.

    _groups_by_workload: dict[tuple[Key, bool], tuple[GroupKey, ...]] = field(default_factory=dict, init=False)
    """The PodGroups by Workload. True in the key: those that are being deleted."""

    _groups_by_replica: dict[tuple[Key, str, bool], tuple[GroupKey, ...]] = field(default_factory=dict, init=False)
    """The PodGroups by Workload and replica of a parent, which may have thousands.

    True in the key: those being deleted.
    """

    _groups_by_controller: dict[tuple[OwnerKey, str, bool], tuple[GroupKey, ...]] = field(
        default_factory=dict, init=False
    )
    """The PodGroups by controlling owner and its replica. True in the key: those that are being deleted."""

    def __post_init__(self) -> None:
        self._jobs = self.owners.jobs
        self._parents = self.owners.parents
        self._groups = self.forest.groups

    # --- changes -----------------------------------------------------------------------------------------------

    def index_workload(self, old: Workload | None, new: Workload | None) -> set[OwnerKey]:
        """Update the index of Workloads by controllerRef, as one has changed from ``old`` to ``new`` (None for none).

        Return the owners whose pods may belong to another group now.
        """
        turned = reindex(self._workloads_by_owner, owner_key_in(old), owner_key_in(new), key_of_workload(old, new))
        return turned.union(*(self._delegates.get(owner_key, ()) for owner_key in turned))

    def index_job(self, old: Job | None, new: Job | None) -> None:
        """Update the index of Jobs that use templates of their controller's Workload, as a Job has changed.

        ``old`` is None for a new Job, ``new`` is None for a deleted one.
        """
        if old is not None and old.delegation is not None:
            discard(self._delegates, _find_reference(old), owner_key_of(old))
        if new is not None and new.delegation is not None:
            self._delegates.setdefault(_find_reference(new), {})[owner_key_of(new)] = None

    def referents_of(self, workload: Workload | None) -> list[OwnerKey]:
        """Return the owner in a Workload's controllerRef, which need not exist, and the Jobs that use its templates."""
        owner_key = owner_key_in(workload)
        return [] if owner_key is None else [owner_key, *self._delegates.get(owner_key, ())]

    def index_group(self, old: PodGroup | None, new: PodGroup | None) -> set[tuple[OwnerKey, str]]:
        """Update the indexes of PodGroups, as one has changed from ``old`` to ``new``; None: no PodGroup.

        Return the owners whose pods may belong to another group now, each with a replica of the owner; "" means all its
        pods. For a Job it is always "", because a Job has one gang.
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
        """Return the Workloads of an owner that count (KEP-5547 discovery), sorted by name.

        They have the owner as controllerRef. A Workload that another Workload replaces does not count
        (`split_replaced`). Workloads that are read at the second API level (Serried's CRD beside Kubernetes' own API)
        count only if there are none of the level in use.
        """
        found = split_replaced(self.referring_to(owner), owner)[0]
        return [workload for workload in found if not workload.api] or found

    def referring_to(self, owner: Owner) -> list[Workload]:
        """Return all Workloads with an owner as controllerRef, including those that another Workload replaces.

        Left out are Workloads controlled by an earlier owner of the same name, which will be garbage collected:
        controllerRef has no UID, so their owner reference decides.
        """
        found = (self.workloads[key] for key in self._workloads_by_owner.get(_find_reference(owner), ()))
        return [each for each in found if not each.deleting and not _is_left_over(each, owner)]

    def groups_of(self, workload: Workload, owner: Owner) -> list[PodGroup]:
        """Return the PodGroups of an owner that were created from a Workload, sorted by name.

        Left out are PodGroups that are being deleted, and groups of v1alpha1 that exist only in the Workload
        (`is_replica`).
        """
        made = self._made_from(workload, self._groups_by_workload.get((workload.key, _LIVE), ()))
        return [group for group in made if is_made_for(owner, group, workload)]

    def _made_from(self, workload: Workload, keys: Iterable[GroupKey]) -> Iterator[PodGroup]:
        """Yield the PodGroups with these keys that are at the same API level as the Workload."""
        found = (self._groups[key] for key in keys)
        return (group for group in found if group.api == workload.api and not is_replica(group.key))

    def groups_controlled_by(self, owner: Owner, replica: str = "") -> list[PodGroup]:
        """Return the PodGroups that an owner controls (by UID), sorted by name.

        Only those for the ``replica`` of the owner (such as one of a LeaderWorkerSet) are returned; with "" only those
        that are for no single replica. PodGroups that are being deleted are returned only if there are no others.
        """
        for goes in (_LIVE, _DELETING):
            keys = self._groups_by_controller.get((owner_key_of(owner), replica, goes), ())
            if found := [group for key in keys if is_controlled_by(group := self._groups[key], owner)]:
                return found
        return []

    def _groups_at(self, workload: Workload, owner: Owner, template: str, replica: str) -> list[PodGroup]:
        """Return the PodGroups for one template of a Workload, and one replica of its owner; "" for no replica.

        Two at most, as two are ambiguous already. A PodGroup that is being deleted counts only if there is no other, as
        in kube-scheduler's own gang scheduling. One that an earlier owner of the same name controls does not count. For
        a Job, ``template`` and ``replica`` do not matter: all PodGroups of the Workload that are for this Job count
        (`is_made_for`).
        """
        for goes in (_LIVE, _DELETING):
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
        """Return the PodGroups for a part of an owner's pods, after the Workload of the owner was deleted.

        The part is given by ``stage`` (the pods for which the Workload had one template) and ``replica``, "" for none.
        Returned are the PodGroups whose template has the name of the stage. If there are none, the PodGroups of the
        only template are returned, unless the owner starts its stages one after the other. For a Job, all PodGroups
        that it controls are returned.
        """
        controlled = self.groups_controlled_by(owner, replica)
        if isinstance(owner, Job):
            return controlled
        names = {group.template for group in controlled}
        if stage not in names and (owner.staged or len(names) != 1):
            return []
        template = stage if stage in names else names.pop()
        return [group for group in controlled if group.template == template]

    def job_of(self, group: PodGroup) -> Job | None:
        """Return the Job whose pods are the members of a PodGroup; None for no Job, or if the Store does not have it.

        It is the Job that controls the PodGroup, else the one in the controllerRef of the PodGroup's Workload.
        """
        controller = _controlling_job(group)
        key = controller
        if key is None and (workload := _workload_key(group)) is not None:
            owner_key = owner_key_in(self.workloads.get(workload))
            key = owner_key.key if owner_key is not None and owner_key.kind == JOB else None
        job = self._jobs.get(key) if key is not None else None
        return job if job is not None and (is_controlled_by(group, job) or controller is None) else None

    def parent_of(self, group: PodGroup) -> Parent | None:
        """Return the parent, such as a JobSet, that controls a PodGroup; None if none does or the Store lacks it."""
        keys = (OwnerKey(owner.kind, Key(group.key.namespace, owner.name)) for owner in group.owners)
        parents = (parent for key in keys if (parent := self._parents.get(key)) is not None)
        return next((parent for parent in parents if is_controlled_by(group, parent)), None)

    # --- who decides -------------------------------------------------------------------------------------------

    def is_eligible(self, owner: Owner) -> bool:
        """Return whether Serried creates a Workload for an owner that has none.

        It does if the owner's pods are a gang, and if none of them is bound or finished.
        """
        return not self._has_started(owner) and self._is_gang(owner)

    def _awaits_workload(self, owner: Owner) -> bool:
        """Return whether the pods of an owner without Workload have to wait for one to be created.

        They have to if Serried creates one (`is_eligible`), or if the owner is a Job that names a template in the
        Workload of its controller (delegation), and none of its pods is bound or finished. While Workloads cannot be
        read, bound and finished pods make no difference, because the Workload may exist.
        """
        begins = bool(self.obstacles.native) or not self._has_started(owner)
        return begins and (self._is_gang(owner) or self._is_delegate(owner))

    def _is_delegate(self, owner: Owner) -> bool:
        """Return whether a Job names a template in the Workload of its controller (delegation).

        True also if this Workload does not exist yet. False if the Job has finished, is being deleted or is for another
        scheduler, or if Serried is configured to make no gangs (`GangJobs.NONE`).
        """
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
        """Return whether the pods of a parent, such as a JobSet, are gangs of the parent and not of its Jobs.

        With ``replica`` the answer is for the pods of this replica only.
        """
        has_objects = bool(self.workloads_of(parent) or self.groups_controlled_by(parent, replica))
        return has_objects or self._awaits_workload(parent)

    def governs_job(self, job: Job) -> bool:
        """Return whether the pods of a Job belong to a gang of the parent that controls the Job, such as a JobSet."""
        if job.owner is None or job.delegation is not None:
            return False
        parent = self._parents.get(OwnerKey(job.owner.kind, Key(job.key.namespace, job.owner.name)))
        return parent is not None and parent.uid == job.owner.uid and self.governs(parent)

    def _governs_pod(self, pod: Pod, place: Place) -> bool:
        """Return whether a pod belongs to a gang of its parent, such as a JobSet, and not to one of its Job.

        ``place`` is the pod's position in the parent. For a parent that the Store does not have yet the result is True
        if its kind is watched and Serried creates gangs here (not with ``--gang-jobs none``).
        """
        parent = self._parents.get(_parent_key(pod, place))
        if parent is None:
            return self._makes_gangs and place.kind in self.followed
        return place.uid in {"", parent.uid} and self.governs(parent, place.replica)

    # --- names ---------------------------------------------------------------------------------------------------

    def name_owner(self, key: GroupKey) -> str:
        """Return the Job or parent of a group as kubectl names it, such as ``job/train``; "" if it has none."""
        owner_key = self.owner_of(key)
        return name_object(owner_key.kind, owner_key.key.name) if owner_key is not None else ""

    def owner_of(self, key: GroupKey) -> OwnerKey | None:
        """Return the key of the Job or parent for which a group was created; None if there is none.

        The Job or parent need not be in the Store.
        """
        made = owner_of_provisional(key)
        if made is not None:
            return made
        composite = key.kind is GroupKind.COMPOSITE
        group = self.forest.composites.get(key.object_key) if composite else self.forest.groups.get(key)
        known = [each for each in group.owners if each.kind in OWNER_KINDS] if group is not None else []
        owner = min(known, key=lambda each: not each.controller, default=None)
        return OwnerKey(owner.kind, Key(key.namespace, owner.name)) if owner is not None else None

    def name_group(self, key: GroupKey) -> str:
        """Return kind and name of a group's object, such as ``PodGroup train-x``; "" if it does not exist yet."""
        if owner_of_provisional(key) is not None or not key.name:
            return ""
        if key.kind is GroupKind.WORKLOAD:
            return f"PodGroup {key.encoded}"
        if key.kind is GroupKind.COUNTED:
            return f"pod group {key.name}"
        return f"{'CompositePodGroup' if key.kind is GroupKind.COMPOSITE else 'PodGroup'} {key.name}"

    # --- pods --------------------------------------------------------------------------------------------------

    def find_group(self, pod: Pod) -> GroupKey | None:
        """Return the group with which a pod is scheduled; None if there is none.

        It is the group from `resolve`, or the whole tree if that is a PodGroup in a tree. The pod need not be in the
        Store, because kube-scheduler's cache may be newer.
        """
        group = self.resolve(pod)
        return self.forest.find_tree_key(group) if group is not None else None

    def resolve(self, pod: Pod) -> GroupKey | None:
        """Return the group of a pod; None if it belongs to none.

        Its key may be made from the owner (provisional), if the PodGroup does not exist yet.
        """
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
            # The template has the field but the pod lost it: the API server's feature gate was turned off.
            return self._admit(pod, job.group)
        return self._resolve_at(job, WHOLE, "")

    def _admit(self, pod: Pod, key: GroupKey) -> GroupKey:
        """Return the key under which a pod waits that names the group ``key``, or whose Job's template names it.

        That is ``key`` itself, if the pod may join the group. It may not if a Job controls the group and the pod is not
        of this Job. Then the key is `GroupKey.non_members`, which stands for all such pods of the group.
        """
        return key.non_members if self._may_not_join(pod, key) else key

    def _may_not_join(self, pod: Pod, key: GroupKey) -> bool:
        """Return whether a Job controls the gang ``key``, and the pod is not a pod of this Job.

        If such pods could join, a user could add a pod to another user's gang by a label, and it would count for the
        quorum.
        """
        controller = find_job_controller(self._groups.get(key))
        return controller is not None and (pod.owner is None or pod.owner.uid != controller.uid)

    def find_named(self, pod: Pod) -> GroupKey | None:
        """Return the group that a pod names, else the one that its Job's pod template names; None without either."""
        if pod.group is not None:
            return pod.group
        job = self._find_job(pod)
        return job.group if job is not None else None

    def _find_job(self, pod: Pod) -> Job | None:
        """Return the Job of a pod, by name and UID; None if it has none, or if the Job is not in the Store."""
        if pod.owner is None or pod.owner.kind != JOB:
            return None
        job = self._jobs.get(Key(pod.namespace, pod.owner.name))
        return job if job is not None and job.uid == pod.owner.uid else None

    def name_controller(self, non_members: Iterable[Pod]) -> str:
        """Return the name of the Job that controls the gang which these pods name but may not join; "" if none does."""
        groups = (self._groups.get(key) for pod in non_members if (key := self.find_named(pod)) is not None)
        return next((found.name for group in groups if (found := find_job_controller(group)) is not None), "")

    def _resolve_with_parent(self, pod: Pod, place: Place) -> GroupKey | None:
        parent_key = _parent_key(pod, place)
        parent = self._parents.get(parent_key)
        return provisional(parent_key) if parent is None else self._resolve_at(parent, place.stage, place.replica)

    def _resolve_at(self, owner: Owner, stage: str, replica: str) -> GroupKey | None:
        """Return the group of a part of an owner's pods; None if there is none, or more than one.

        The part is given by ``stage`` and ``replica``. A stage is the pods of a parent for which its Workload has one
        template; a Job has the stage WHOLE only. A replica is one of the equal parts of a parent, "" for none.
        """
        workloads = self.workloads_of(owner)
        if len(workloads) > 1:
            return None
        if workloads:
            return self._resolve_in(workloads[0], owner, stage, replica)
        # PodGroups stay in force while their Workload is deleted, or recreated for an elastic Job.
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
            return None  # no controller creates the PodGroup, or its pods need not wait for it
        return provisional(owner_key_of(owner), stage if template.name == stage else WHOLE, replica)

    def _await_workload(self, owner: Owner, stage: str, replica: str) -> GroupKey | None:
        """Return the provisional key of a part of an owner's pods, which wait until Workload and PodGroups are created.

        The part is given by ``stage`` (the pods that get one template of the Workload) and ``replica``, "" for none.
        None if the pods do not have to wait.
        """
        if not self._awaits_workload(owner):
            return None
        if isinstance(owner, Job):
            return provisional(owner_key_of(owner))
        gang = stage if owner.staged else WHOLE
        is_gang = any(each.name == gang for each in gangs_of(owner))
        return provisional(owner_key_of(owner), gang, replica) if is_gang else None

    def rank_of(self, pod: Pod) -> int | None:
        """Return the number of a pod in its gang, from 0; None if its pods have no numbers, or it is not known yet.

        It is the completion index if the gang is a Job's. If the gang is that of a parent, such as a JobSet, it is the
        pod's number in the parent, or in its replica. If a pod names its group itself, the number in its parent counts.
        Such a number is only known if the parent is in the Store.
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
    """Return the template of a Workload for a stage (part of the owner's pods with one template); None if it has none.

    It is the template with the stage's name, else the only template. If the owner starts a stage only when another one
    is ready, the only template does not count: a gang of both stages would wait for itself. For a Job that uses a
    template of its controller's Workload (delegation), it is the template that the Job names, or the first if it names
    none.
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
    """Split an owner's Workloads into those that count and those that are replaced by another one.

    A Workload is replaced if another one names its UID in the label REPLACES. One that Serried created is also replaced
    by a Workload of another author at the same API level. Both may exist because Serried saw the owner before the other
    Workload: watches of different kinds are not ordered.
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
    """Return whether an owner is the controller in the owner references of an object. The UID decides, not the name."""
    return any(each.controller and each.uid == owner.uid for each in item.owners)


def owner_key_in(workload: Workload | None) -> OwnerKey | None:
    """Return the owner in a Workload's controllerRef; None if it has none, or without Workload."""
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
    """Return the index key of a PodGroup: its Workload, its replica ("" for none), and True if it is being deleted.

    None if it has no Workload, or if it is defined in the Workload (v1alpha1).
    """
    if group is None or group.workload is None or group.key.kind is GroupKind.WORKLOAD:
        return None
    return Key(group.key.namespace, group.workload), group.labels.get(REPLICA, ""), group.deleting


def _place_below(group: PodGroup | None) -> tuple[OwnerKey, str, bool] | None:
    """Return the index key of a PodGroup: controlling owner, replica ("" for none), and True if it is being deleted.

    None if no Job or parent controls it. None also if a parent controls it, but it was not created from a Workload.
    """
    if group is None:
        return None
    if (job := _controlling_job(group)) is not None:
        return OwnerKey(JOB, job), "", group.deleting
    if (place := _place_in_replica(group)) is None:
        return None  # a PodGroup without Workload has only the pods that name it
    parent = next((each for each in group.owners if each.controller and each.kind in PARENTS), None)
    owner_key = None if parent is None else OwnerKey(parent.kind, Key(group.key.namespace, parent.name))
    return None if owner_key is None else (owner_key, place[1], group.deleting)


def find_job_controller(group: PodGroup | None) -> OwnerRef | None:
    """Return the owner reference to the Job that controls a PodGroup. Only pods of this Job may join the PodGroup.

    None if no Job controls it, or if the policy of the PodGroup is not gang: then any pod may join.
    """
    if group is None or not group.policy.is_gang:
        return None
    return next((each for each in group.owners if each.controller and each.kind == JOB), None)


def _controlling_job(group: PodGroup) -> Key | None:
    job = next((each for each in group.owners if each.controller and each.kind == JOB), None)
    return None if job is None else Key(group.key.namespace, job.name)


def _parent_key(pod: Pod, place: Place) -> OwnerKey:
    return OwnerKey(place.kind, Key(pod.namespace, place.parent))


def is_made_for(owner: Owner, group: PodGroup, workload: Workload) -> bool:
    """Return whether a PodGroup that was created from a Workload is for the pods of an owner of the Workload.

    Always True, except for a Job that uses a template of its controller's Workload (delegation). Then the PodGroup must
    be of the Job's template (`find_template`), and no other Job may control it.
    """
    if not isinstance(owner, Job) or owner.delegation is None:
        return True
    template = find_template(workload, owner, WHOLE)
    jobs = {each.uid for each in group.owners if each.controller and each.kind == JOB}
    return template is not None and group.template == template.name and jobs <= {owner.uid}


def _find_reference(owner: Owner) -> OwnerKey:
    """Return the owner that the Workload of an owner has in its controllerRef.

    It is the owner itself, or the controller of a Job that uses a template of this controller's Workload (delegation).
    """
    if isinstance(owner, Job) and owner.delegation is not None:
        kind, name = owner.delegation.parent
        return OwnerKey(kind, Key(owner.key.namespace, name))
    return owner_key_of(owner)


def _is_left_over(item: Workload | PodGroup, owner: Owner) -> bool:
    """Return whether an object is controlled by an earlier owner of the same name, so it will be garbage collected."""
    now = {(kind_of(owner), owner.key.name): owner.uid}
    if isinstance(owner, Job) and owner.delegation is not None and owner.owner is not None:
        now[owner.owner.kind, owner.owner.name] = owner.owner.uid
    return any(each.controller and now.get((each.kind, each.name), each.uid) != each.uid for each in item.owners)
