"""What an owner should hear of the gangs that it asks for, or seems to: reasons and messages of events."""

from collections.abc import Iterable

from controller.diff.duty import Duty, GangSettings, is_unserved
from serried.model.eligibility import GangJobs
from serried.model.group import Job, Workload
from serried.model.parent import MOST_TEMPLATES, Owner, Parent, ParentKind, gangs_of, kind_of

Complaint = tuple[str, str]
"""Reason and message."""


def find_complaints(owner: Owner, duty: Duty, settings: GangSettings) -> list[Complaint]:
    """What is wrong with an owner, or not as its author may think."""
    if isinstance(owner, Job):
        return find_complaints_of_job(owner, duty, settings)
    if settings.gang_jobs is GangJobs.NONE or owner.finished or owner.deleting:
        return []
    return find_complaints_of_parent(owner, settings.schedulers)


def find_complaints_of_job(job: Job, duty: Duty, settings: GangSettings) -> list[Complaint]:
    """The same for a Job."""
    name = job.key.name
    complaints: list[Complaint] = []
    if is_unserved(job, settings):
        said = f"Job {name} asks to be a gang, and its scheduler {job.scheduler} is none that Serried serves"
        complaints.append(("SchedulerNotGangAware", said))
    if duty is Duty.NONE:
        return complaints
    if job.problem:
        complaints.append(_explain_problem(job))
    if job.contradiction:
        said = f"spec.scheduling of Job {name} says otherwise than its gang-policy annotation, and counts"
        complaints.append(("GangPolicyIgnored", said))
    return complaints


def find_complaints_of_parent(parent: Parent, schedulers: Iterable[str]) -> list[Complaint]:
    """The same for a parent that has not ended."""
    name = f"{parent.kind} {parent.key.name}"
    if parent.problem:
        return [_explain_problem(parent)]
    if not parent.asks:
        return []
    foreign = sorted(parent.schedulers - frozenset(schedulers))
    if foreign:
        said = f"{name} asks for gangs, and its scheduler {', '.join(foreign)} is none that Serried serves"
        return [("SchedulerNotGangAware", said)]
    if parent.obstacle:
        return [("NoGang", f"{name} makes pods wait for the node of another ({parent.obstacle}), so it is no gang")]
    if (count := len(gangs_of(parent))) > MOST_TEMPLATES:
        return [("NoGang", f"{name} has {count} stages, and a Workload holds {MOST_TEMPLATES} gangs: it is none")]
    said = f"{name} is one gang, so what its Jobs say of gangs does not count"
    ignored = [("GangPolicyIgnored", said)] if parent.jobs_ask else []
    return [("GangPerStage", _explain_stages(parent)), *ignored] if parent.staged else ignored


def explain_upstream(workload: Workload, job: Job) -> Complaint:
    """Why a Job that would be a gang by its shape is none: kube-controller-manager was faster."""
    said = f"kube-controller-manager made Workload {workload.key.name} of Job {job.key.name} with policy basic, so it"
    return "NoGang", f"{said} is no gang; spec.scheduling.schedulingPolicy.gang makes it one"


def explain_obstacle(owner: Owner, obstacle: str) -> Complaint:
    """Why nothing can be made for an owner now."""
    return "FailedWorkloadCreate", f"Failed to create Workload for {kind_of(owner)} {owner.key.name}: {obstacle}"


def _explain_problem(owner: Owner) -> Complaint:
    said = f"Failed to compile Workload for {kind_of(owner)} {owner.key.name}: {owner.problem}"
    return "FailedWorkloadCompilation", said


def _explain_stages(parent: Parent) -> str:
    if parent.kind is ParentKind.LEADER_WORKER_SET:
        return (
            f"The workers of {parent.kind} {parent.key.name} start after their leader ({parent.staged}), "
            "so those of each replica are a gang without it"
        )
    return (
        f"The replicated Jobs of {parent.kind} {parent.key.name} start one after the other ({parent.staged}), "
        "so each of more than one pod is a gang of its own"
    )
