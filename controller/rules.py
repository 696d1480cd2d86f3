"""What the operator has chosen about Jobs, and what follows from it for one Job. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum

from serried.model.eligibility import GangJobs, is_gang_job, is_owned_elsewhere
from serried.model.group import GangPolicy, Job
from serried.model.pod import Phase, Pod


class Elastic(StrEnum):
    """What a gang does when its Job's parallelism changes: minCount follows, or stays as it was."""

    FOLLOW = "follow"
    REFUSE = "refuse"


class Suspended(StrEnum):
    """What a suspended Job keeps: its objects, or nothing until it is resumed (KEP-5547, beta)."""

    KEEP = "keep"
    DELETE = "delete"


class Track(StrEnum):
    """Which Jobs get objects: gangs only, or all, with policy basic where they are no gangs."""

    GANGS = "gangs"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that decide about Jobs. ``schedulers`` are the names that Serried serves."""

    schedulers: Collection[str]
    gang_jobs: GangJobs = GangJobs.BY_SHAPE
    elastic: Elastic = Elastic.FOLLOW
    suspended: Suspended = Suspended.KEEP
    track: Track = Track.GANGS


class Duty(Enum):
    """How far a Job concerns the controller.

    START: a gang that has not begun, whose objects are made. TRACK: the same for a Job that is no gang, with policy
    basic. COMPLETE: nothing is begun, but a Workload that refers to the Job makes its pods wait for a PodGroup, so that
    is made (1.36 does the same, KEP-5547 says it of restarts). RELEASE: it is suspended, and what we made goes. NONE:
    the Job is done, or somebody else's.
    """

    START = "start"
    TRACK = "track"
    COMPLETE = "complete"
    RELEASE = "release"
    NONE = "none"


def duty_for(job: Job, pods: Collection[Pod], rules: Rules) -> Duty:
    """The duty towards a Job with these pods."""
    if rules.gang_jobs is GangJobs.NONE:
        return Duty.NONE
    gang = is_gang_job(job, rules.schedulers, rules.gang_jobs)
    if not gang and not _is_ours_to_complete(job, rules):
        return Duty.NONE
    if job.suspended and rules.suspended is Suspended.DELETE and not pods and not job.completed:
        return Duty.RELEASE
    if _has_begun(pods):
        return Duty.COMPLETE
    if gang:
        return Duty.START
    return Duty.TRACK if rules.track is Track.ALL and not is_owned_elsewhere(job) else Duty.COMPLETE


def is_unserved(job: Job, rules: Rules) -> bool:
    """Whether a Job asks to be a gang of a scheduler that nobody makes gangs for."""
    asks = job.gang_policy is GangPolicy.JOB_AS_GANG and rules.gang_jobs is not GangJobs.NONE
    return asks and job.scheduler not in rules.schedulers and not job.finished


def _is_ours_to_complete(job: Job, rules: Rules) -> bool:
    # Whoever owns the Job: a user's Workload that refers to it is used whatever the Job's own eligibility.
    ours = job.group is None and job.scheduler in rules.schedulers
    return ours and not job.finished and not job.deleting


def _has_begun(pods: Iterable[Pod]) -> bool:
    return any(pod.node or pod.phase is not Phase.ACTIVE for pod in pods)
