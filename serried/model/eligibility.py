"""Which Jobs are gangs (KEP-5547 and KEP-5764, with the rulings of docs/api-levels.md).

The reconciler and the extender call the same function: the extender must hold a Job's first pod although the
Workload does not exist yet.
"""

from collections.abc import Collection
from enum import StrEnum

from serried.model.group import GangPolicy, Job


class GangJobs(StrEnum):
    """Which Jobs may be gangs."""

    BY_SHAPE = "by-shape"
    """Jobs that ask, and Jobs of a certain shape (KEP-5547)."""

    ASKED = "asked"
    """Jobs that ask (KEP-5764)."""

    NONE = "none"
    """No Job: nothing is made for Jobs, and no pod waits for what would have been made."""


def is_gang_job(job: Job, schedulers: Collection[str], gang_jobs: GangJobs = GangJobs.BY_SHAPE) -> bool:
    """Whether Serried makes a Workload and a PodGroup for this Job.

    A Job that says JobAsGang is one if more than one of its pods run at a time, whoever owns it; one that says NoGang
    never is. One that says nothing is a gang, where ``gang_jobs`` has it so, if it is Indexed, with
    ``parallelism == completions > 1``, and nobody else's (`is_anothers`). In any case Serried schedules its pods, it
    names neither a group nor a template of another's Workload, and its selector is the usual one. That no pod of it is
    bound or finished yet is the caller's to check: it is a fact about pods, not about the Job.
    """
    candidate = (
        job.parallelism > 1
        and job.scheduler in schedulers
        and job.group is None
        and job.delegation is None
        and not job.selects_itself
        and not job.finished
        and not job.deleting
    )
    if gang_jobs is GangJobs.NONE or not candidate or job.gang_policy is GangPolicy.NO_GANG:
        return False
    if job.gang_policy is GangPolicy.JOB_AS_GANG:
        return job.completions is None or job.completions > 1
    if gang_jobs is GangJobs.ASKED:
        return False
    return job.indexed and job.completions == job.parallelism and not is_anothers(job)


def is_anothers(job: Job) -> bool:
    """Whether another controller decides about gangs: that of something larger (JobSet, TrainJob), or the Job's own.

    kube-controller-manager, too, makes nothing for a Job that has a ``managedBy`` of another's.
    """
    return bool(job.managed_by) or (job.owner is not None and job.owner.kind != "CronJob")
