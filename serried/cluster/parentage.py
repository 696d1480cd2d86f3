"""Which group a pod of a JobSet or a LeaderWorkerSet belongs to, where that is a gang across its Jobs or StatefulSets.

The way is that of Jobs (`membership`): parent, Workload by ``controllerRef``, PodGroup by ``workloadRef``, or by its
controlling parent when its Workload is gone. A parent may have several gangs, one for each template of its Workload,
and each of them in several replicas.
"""

from collections.abc import Collection, Mapping

from serried.cluster.indexes import key_of_group, key_of_workload, reindex
from serried.cluster.inline import key_inline
from serried.cluster.kinship import Kinship
from serried.cluster.membership import is_controlled_by
from serried.model.eligibility import GangJobs
from serried.model.group import GroupKey, GroupKind, Job, Key, PodGroup, Template, Workload
from serried.model.parent import (
    REPLICA,
    WHOLE,
    Family,
    Parent,
    ParentKind,
    Place,
    gangs_of,
    is_gang_parent,
)
from serried.model.pod import Pod
from serried.plan.rank import find_rank


def provisional_of(family: Family, gang: str = WHOLE, replica: str = "") -> GroupKey:
    """The key under which a gang's pods wait until its PodGroup exists."""
    return GroupKey(*family.key, GroupKind(family.kind), gang, replica)


def find_template(workload: Workload, parent: Parent, stage: str) -> Template | None:
    """The template of a stage: that of its name, else the only one of a parent whose stages do not wait for each other.

    Never one template for stages that wait: their gang would wait for itself.
    """
    by_name = next((template for template in workload.templates if template.name == stage), None)
    if by_name is not None or parent.staged or len(workload.templates) != 1:
        return by_name
    return workload.templates[0]


class Parentage:
    """Resolves pods over the Store's maps, and keeps the indexes that this needs.

    The maps are the Store's own: this class reads them and is told of every change by ``index_*``. ``followed`` are the
    kinds of parents that are watched, ``obstacle`` is as in the Store.
    """

    def __init__(
        self,
        parents: Mapping[Family, Parent],
        groups: Mapping[GroupKey, PodGroup],
        workloads: Mapping[Key, Workload],
        kinship: Kinship,
        schedulers: Collection[str],
        gang_jobs: GangJobs,
    ) -> None:
        self.followed: set[ParentKind] = set()
        self.obstacle = ""
        self._parents, self._groups, self._workloads = parents, groups, workloads
        self._kinship, self._schedulers = kinship, schedulers
        self._makes_gangs = gang_jobs is not GangJobs.NONE
        self._workloads_by_family: dict[Family, tuple[Key, ...]] = {}
        self._groups_by_replica: dict[tuple[Key, str], tuple[GroupKey, ...]] = {}
        self._groups_by_controller: dict[tuple[Family, str], tuple[GroupKey, ...]] = {}

    def index_workload(self, old: Workload | None, new: Workload | None) -> set[Family]:
        """Follow one change; returns the parents whose pods may belong elsewhere now."""
        return reindex(self._workloads_by_family, _family(old), _family(new), key_of_workload(old, new))

    def index_group(self, old: PodGroup | None, new: PodGroup | None) -> set[Family]:
        """Follow one change; returns the parents whose pods may belong elsewhere now."""
        places = reindex(self._groups_by_replica, _replica(old), _replica(new), key_of_group(old, new))
        families = {family for workload, _ in places if (family := _family(self._workloads.get(workload))) is not None}
        heads = reindex(self._groups_by_controller, _controller(old), _controller(new), key_of_group(old, new))
        return families | {family for family, _ in heads}

    def workloads_of(self, parent: Parent) -> list[Workload]:
        """The Workloads that refer to this parent, by name; those that a namesake controls are left-overs of it."""
        found = (self._workloads[key] for key in self._workloads_by_family.get(parent.family, ()))
        return [workload for workload in found if not workload.deleting and not _owned_by_namesake(workload, parent)]

    def groups_at(self, workload: Workload, template: str, replica: str = "") -> list[PodGroup]:
        """The PodGroups of one replica that were made from a template, by name."""
        found = (self._groups[key] for key in self._groups_by_replica.get((workload.key, replica), ()))
        return [group for group in found if group.template == template and not group.deleting]

    def groups_controlled_by(self, parent: Parent, replica: str = "") -> list[PodGroup]:
        """The PodGroups of one replica that this very parent controls, by name: what is left without its Workload."""
        found = (self._groups[key] for key in self._groups_by_controller.get((parent.family, replica), ()))
        return [group for group in found if not group.deleting and is_controlled_by(group, parent)]

    def is_eligible(self, parent: Parent) -> bool:
        """Whether Serried makes a Workload for the parent, if it has none."""
        started = self._kinship.has_started(parent.family, parent.uid)
        return self._makes_gangs and not started and is_gang_parent(parent, self._schedulers)

    def governs(self, parent: Parent, replica: str = "") -> bool:
        """Whether the parent's pods, in this replica, are gangs of its own, so that its Jobs have no say."""
        return bool(self.workloads_of(parent) or self.groups_controlled_by(parent, replica)) or self._awaits(parent)

    def _awaits(self, parent: Parent) -> bool:
        """Whether the parent's pods wait for a Workload, if it has none.

        A running gang whose objects cannot be seen looks like a parent that began without any.
        """
        unseen = bool(self.obstacle) and self._makes_gangs and is_gang_parent(parent, self._schedulers)
        return unseen or self.is_eligible(parent)

    def governs_job(self, job: Job) -> bool:
        """Whether the Job's pods are a gang, or a part of one, of the parent that controls it."""
        if job.owner is None:
            return False
        parent = self._parents.get(Family(job.owner.kind, Key(job.key.namespace, job.owner.name)))
        return parent is not None and parent.uid == job.owner.uid and self.governs(parent)

    def claims(self, pod: Pod) -> bool:
        """Whether the pod's parent decides about its group, and not its Job.

        One that has not been seen yet may: it is followed, so it will be.
        """
        if pod.place is None:
            return False
        parent = self._parents.get(_family_of(pod, pod.place))
        if parent is None:
            return self._makes_gangs and pod.place.kind in self.followed
        return pod.place.uid in {"", parent.uid} and self.governs(parent, pod.place.replica)

    def rank_of(self, pod: Pod) -> int | None:
        """The pod's number, from 0, in what its gang was made for: its Job, JobSet or LeaderWorkerSet's replica.

        None where that does not number its pods. A group that pods name themselves counts as its parent's.
        """
        place = pod.place
        if place is None or pod.index is None or place.kind is not ParentKind.JOB_SET:
            return pod.index
        parent = self._parents.get(_family_of(pod, place))
        if parent is not None and parent.uid != place.uid:
            parent = None
        asks = parent is not None and parent.asks  # also when its objects have gone since
        if pod.group is None and not asks and not self.claims(pod):
            return pod.index
        return find_rank(place, pod.index, parent) if parent is not None else None

    def resolve(self, pod: Pod) -> GroupKey | None:
        """The group of a pod that its parent claims, maybe provisional; None for a pod of no group."""
        if pod.place is None:
            return None
        family = _family_of(pod, pod.place)
        parent = self._parents.get(family)
        if parent is None:
            return provisional_of(family)
        workloads = self.workloads_of(parent)
        if workloads:
            return self._resolve_in(workloads[0], parent, pod.place) if len(workloads) == 1 else None
        return self._resolve_without(parent, pod.place)

    def _resolve_without(self, parent: Parent, place: Place) -> GroupKey | None:
        """The group of a pod whose parent has no Workload (any more)."""
        groups = self._groups_left(parent, place)
        if groups:
            return groups[0].key if len(groups) == 1 else None
        stage = WHOLE if not parent.staged else place.stage
        waits = self._awaits(parent) and any(gang.name == stage for gang in gangs_of(parent))
        return provisional_of(parent.family, stage, place.replica) if waits else None

    def _groups_left(self, parent: Parent, place: Place) -> list[PodGroup]:
        """The PodGroups for a place, by the rule of `find_template`: they say which templates the Workload had."""
        controlled = self.groups_controlled_by(parent, place.replica)
        names = {group.template for group in controlled}
        if place.stage not in names and (parent.staged or len(names) != 1):
            return []
        template = place.stage if place.stage in names else names.pop()
        return [group for group in controlled if group.template == template]

    def _resolve_in(self, workload: Workload, parent: Parent, place: Place) -> GroupKey | None:
        template = find_template(workload, parent, place.stage)
        if template is None:
            return None
        if workload.inline:
            return key_inline(workload, template, place.replica)
        groups = self.groups_at(workload, template.name, place.replica)
        if groups:
            return groups[0].key if len(groups) == 1 else None
        if not self._makes_gangs:
            return None  # nobody would make the PodGroup
        gang = place.stage if template.name == place.stage else WHOLE
        return provisional_of(parent.family, gang, place.replica) if template.policy.is_gang else None


def _family_of(pod: Pod, place: Place) -> Family:
    return Family(place.kind, Key(pod.namespace, place.parent))


def _family(workload: Workload | None) -> Family | None:
    if workload is None or workload.parent is None:
        return None
    kind, name = workload.parent
    return Family(kind, Key(workload.key.namespace, name))


def _replica(group: PodGroup | None) -> tuple[Key, str] | None:
    if group is None or group.workload is None or group.key.kind is GroupKind.WORKLOAD:
        return None
    return Key(group.key.namespace, group.workload), group.labels.get(REPLICA, "")


def _controller(group: PodGroup | None) -> tuple[Family, str] | None:
    if group is None or (place := _replica(group)) is None:
        return None  # also one that was made from no Workload: only pods that name it are its
    owner = next((owner for owner in group.owners if owner.controller and owner.kind in set(ParentKind)), None)
    return None if owner is None else (Family(owner.kind, Key(group.key.namespace, owner.name)), place[1])


def _owned_by_namesake(workload: Workload, parent: Parent) -> bool:
    return any(
        owner.controller and (owner.kind, owner.name) == (parent.kind, parent.key.name) and owner.uid != parent.uid
        for owner in workload.owners
    )
