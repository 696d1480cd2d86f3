"""Which Jobs are gangs (KEP-5547, with the rulings of docs/api-levels.md).

The reconciler and the extender call the same function: the extender must hold a Job's first pod although the
Workload does not exist yet.
"""

from collections.abc import Collection

from serried.model.group import Job


def is_gang_job(job: Job, schedulers: Collection[str]) -> bool:
    """Whether Serried makes a Workload and a PodGroup for this Job.

    True for an Indexed Job with ``parallelism == completions > 1`` whose pods Serried schedules, unless its template
    names a group itself or another controller than a CronJob owns it. That no pod of it is bound or finished yet
    is the caller's to check: it is a fact about pods, not about the Job.
    """
    owned_elsewhere = job.owner is not None and job.owner.kind != "CronJob"
    return (
        job.indexed
        and job.parallelism > 1
        and job.completions == job.parallelism
        and job.scheduler in schedulers
        and job.group is None
        and not owned_elsewhere
        and not job.finished
        and not job.deleting
    )
