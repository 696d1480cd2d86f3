"""Which group a pod belongs to: the field, then the label, then its Job, at every API level (docs/api-levels.md)."""

from collections.abc import Collection, Iterable, Mapping

from serried.cluster.indexes import key_of_group, key_of_workload, reindex
from serried.cluster.inline import is_replica
from serried.decode.identity import REPLACES
from serried.model.eligibility import GangJobs, is_gang_job
from serried.model.group import GroupKey, GroupKind, Job, Key, PodGroup, Workload
from serried.model.parent import Parent
from serried.model.pod import Pod


def provisional(job: Key) -> GroupKey:
    """The key under which a Job's pods wait until its PodGroup exists."""
    return GroupKey(*job, GroupKind.JOB)


class Membership:
    """Resolves pods to groups over the Store's maps, and keeps the two indexes that this needs.

    The maps are the Store's own: this class reads them and is told of every change by ``index_*``.
    """

    def __init__(
        self,
        jobs: Mapping[Key, Job],
        groups: Mapping[GroupKey, PodGroup],
        workloads: Mapping[Key, Workload],
        schedulers: Collection[str],
        gang_jobs: GangJobs,
    ) -> None:
        self._jobs, self._groups, self._workloads = jobs, groups, workloads
        self._schedulers, self._gang_jobs = schedulers, gang_jobs
        self._workloads_by_job: dict[Key, tuple[Key, ...]] = {}
        self._groups_by_workload: dict[Key, tuple[GroupKey, ...]] = {}
        self._groups_by_job: dict[Key, tuple[GroupKey, ...]] = {}

    def index_workload(self, old: Workload | None, new: Workload | None) -> set[Key]:
        """Follow one change; returns the Jobs whose pods may belong elsewhere now."""
        return reindex(self._workloads_by_job, _job_key(old), _job_key(new), key_of_workload(old, new))

    def index_group(self, old: PodGroup | None, new: PodGroup | None) -> set[Key]:
        """Follow one change; returns the Jobs whose pods may belong elsewhere now."""
        touched = reindex(self._groups_by_workload, _workload_key(old), _workload_key(new), key_of_group(old, new))
        jobs = {job for key in touched if (job := _job_key(self._workloads.get(key))) is not None}
        return jobs | reindex(self._groups_by_job, _controlling_job(old), _controlling_job(new), key_of_group(old, new))

    def workloads_of(self, job: Job) -> list[Workload]:
        """The Workloads that refer to this Job (KEP-5547 discovery), by name.

        A Workload whose controlling owner is another Job of the same name is a left-over of that Job, on its way to
        garbage collection, and no match: controllerRef has no UID.
        """
        return split_replaced(self.referring_to(job))[0]

    def referring_to(self, job: Job) -> list[Workload]:
        """As ``workloads_of``, those that have been replaced among them."""
        found = (self._workloads[key] for key in self._workloads_by_job.get(job.key, ()))
        return [w for w in found if not w.deleting and not _owned_by_namesake(w, job)]

    def groups_of(self, workload: Workload) -> list[PodGroup]:
        """The PodGroups made from this Workload, by name. Replicas are not: only their own pods name them."""
        found = (self._groups[key] for key in self._groups_by_workload.get(workload.key, ()))
        return [group for group in found if not group.deleting and not is_replica(group.key)]

    def groups_controlled_by(self, job: Job) -> list[PodGroup]:
        """The PodGroups that this very Job controls, by name: what is left of its gang while its Workload is gone."""
        found = (self._groups[key] for key in self._groups_by_job.get(job.key, ()))
        return [group for group in found if not group.deleting and is_controlled_by(group, job)]

    def job_of(self, group: PodGroup) -> Job | None:
        """The Job whose gang this is, None if it is nobody's or not known."""
        key = _controlling_job(group)
        if key is None and (workload := _workload_key(group)) is not None:
            key = _job_key(self._workloads.get(workload))
        job = self._jobs.get(key) if key is not None else None
        return job if job is not None and (is_controlled_by(group, job) or _controlling_job(group) is None) else None

    def resolve(self, pod: Pod, *, job_started: bool) -> GroupKey | None:
        """The group of a pod, maybe provisional; None for a pod of no group.

        ``job_started`` is whether a pod of the same Job (by UID) is bound or finished: then a Job that has no Workload
        gets none any more.
        """
        if pod.group is not None:
            return pod.group
        if pod.owner is None or pod.owner.kind != "Job":
            return None
        key = Key(pod.namespace, pod.owner.name)
        job = self._jobs.get(key)
        if job is None or job.uid != pod.owner.uid:
            return provisional(key)
        return self._resolve_job(job, job_started=job_started)

    def _resolve_job(self, job: Job, *, job_started: bool) -> GroupKey | None:
        workloads = self.workloads_of(job)
        if len(workloads) > 1 or any(len(workload.templates) != 1 for workload in workloads):
            return None
        # What counts is the PodGroup: a Workload that is deleted, or made anew for an elastic Job, changes nothing.
        groups = self.groups_of(workloads[0]) if workloads else self.groups_controlled_by(job)
        if groups:
            return groups[0].key if len(groups) == 1 else None
        if self._gang_jobs is GangJobs.NONE:
            return None  # nobody would make the PodGroup
        if workloads:
            gang = workloads[0].templates[0].policy.is_gang
        else:
            gang = not job_started and is_gang_job(job, self._schedulers, self._gang_jobs)
        return provisional(job.key) if gang else None


def _job_key(workload: Workload | None) -> Key | None:
    return None if workload is None or workload.job is None else Key(workload.key.namespace, workload.job)


def _workload_key(group: PodGroup | None) -> Key | None:
    return None if group is None or group.workload is None else Key(group.key.namespace, group.workload)


def split_replaced(workloads: Iterable[Workload]) -> tuple[list[Workload], list[Workload]]:
    """Those that count, and those whose successor is among them."""
    found = list(workloads)
    replaced = {workload.labels.get(REPLACES) for workload in found}
    return [w for w in found if w.uid not in replaced], [w for w in found if w.uid in replaced]


def is_controlled_by(item: Workload | PodGroup, head: Job | Parent) -> bool:
    """Whether the Job or parent is the object's controlling owner; one of the same name but another UID is not."""
    return any(owner.controller and owner.uid == head.uid for owner in item.owners)


def _controlling_job(group: PodGroup | None) -> Key | None:
    owner = next((o for o in group.owners if o.controller and o.kind == "Job"), None) if group is not None else None
    return None if group is None or owner is None else Key(group.key.namespace, owner.name)


def _owned_by_namesake(workload: Workload, job: Job) -> bool:
    return any(
        o.controller and o.kind == "Job" and o.name == job.key.name and o.uid != job.uid for o in workload.owners
    )
