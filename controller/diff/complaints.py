"""Which warnings an owner gets about its gangs."""

from collections.abc import Iterable

from controller.diff.duty import Duty, GangSettings, is_unserved
from controller.diff.sentences import (
    Sentence,
    tell_contradiction,
    tell_foreign_scheduler,
    tell_jobs_ignored,
    tell_many_stages,
    tell_problem,
    tell_stages,
    tell_waiting_pods,
)
from serried.model.eligibility import GangJobs
from serried.model.group import Job
from serried.model.parent import MOST_TEMPLATES, Owner, Parent, gangs_of


def find_complaints(owner: Owner, duty: Duty, settings: GangSettings) -> list[Sentence]:
    """What is wrong with an owner, or has another effect than its author may expect."""
    if isinstance(owner, Job):
        return find_complaints_of_job(owner, duty, settings)
    if settings.gang_jobs is GangJobs.NONE or owner.finished or owner.deleting:
        return []
    return find_complaints_of_parent(owner, settings.schedulers)


def find_complaints_of_job(job: Job, duty: Duty, settings: GangSettings) -> list[Sentence]:
    """What is wrong with a Job."""
    complaints = [tell_foreign_scheduler(job, [job.scheduler])] if is_unserved(job, settings) else []
    if duty is Duty.NONE:
        return complaints
    if job.problem:
        complaints.append(tell_problem(job))
    if job.contradiction:
        complaints.append(tell_contradiction(job))
    return complaints


def find_complaints_of_parent(parent: Parent, schedulers: Iterable[str]) -> list[Sentence]:
    """What is wrong with a parent that has not ended; ``schedulers`` are those that Serried serves."""
    if parent.problem:
        return [tell_problem(parent)]
    if not parent.asks:
        return []
    foreign = sorted(parent.schedulers - frozenset(schedulers))
    if foreign:
        return [tell_foreign_scheduler(parent, foreign)]
    if parent.obstacle:
        return [tell_waiting_pods(parent)]
    if (count := len(gangs_of(parent))) > MOST_TEMPLATES:
        return [tell_many_stages(parent, count)]
    ignored = [tell_jobs_ignored(parent)] if parent.jobs_ask else []
    return [tell_stages(parent), *ignored] if parent.staged else ignored
