"""What the operator has chosen about gangs, and what follows from it for one owner."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum

from serried.model.eligibility import GangJobs, is_gang_job, is_owned_elsewhere
from serried.model.group import GangPolicy, Job
from serried.model.parent import Parent
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
class GangSettings:
    """The settings that decide about owners."""

    schedulers: Collection[str]
    """The names of the schedulers that Serried serves."""
    gang_jobs: GangJobs = GangJobs.BY_SHAPE
    elastic: Elastic = Elastic.FOLLOW
    suspended: Suspended = Suspended.KEEP
    track: Track = Track.GANGS


class Duty(Enum):
    """How far an owner concerns the controller."""

    START = "start"
    """It is a gang that has not begun: its objects are made."""
    TRACK = "track"
    """It is a Job that is no gang: its objects are made, with policy basic."""
    COMPLETE = "complete"
    """Nothing is begun. A Workload that refers to the owner makes its pods wait for PodGroups, so those are made.

    1.36 does the same, and KEP-5547 says it of restarts.
    """
    RELEASE = "release"
    """It is a suspended Job: what we made goes."""
    NONE = "none"
    """The owner is done, or somebody else's."""


def duty_of_job(job: Job, pods: Collection[Pod], settings: GangSettings) -> Duty:
    """The duty towards a Job with these pods."""
    if settings.gang_jobs is GangJobs.NONE:
        return Duty.NONE
    gang = is_gang_job(job, settings.schedulers, settings.gang_jobs)
    if not gang and not _is_ours_to_complete(job, settings):
        return Duty.NONE
    if job.suspended and settings.suspended is Suspended.DELETE and not pods and not job.completed:
        return Duty.RELEASE
    if _has_begun(pods):
        return Duty.COMPLETE
    if gang:
        return Duty.START
    return Duty.TRACK if settings.track is Track.ALL and not is_owned_elsewhere(job) else Duty.COMPLETE


def concerns_us(parent: Parent, settings: GangSettings) -> bool:
    """Whether there is any duty towards a parent."""
    ours = parent.group is None and parent.schedulers <= frozenset(settings.schedulers)
    return ours and settings.gang_jobs is not GangJobs.NONE and not parent.finished and not parent.deleting


def is_unserved(job: Job, settings: GangSettings) -> bool:
    """Whether a Job asks to be a gang of a scheduler that nobody makes gangs for."""
    asks = job.gang_policy is GangPolicy.JOB_AS_GANG and settings.gang_jobs is not GangJobs.NONE
    return asks and job.scheduler not in settings.schedulers and not job.finished


def _is_ours_to_complete(job: Job, settings: GangSettings) -> bool:
    # Whoever owns the Job: a user's Workload that refers to it is used whatever the Job's own eligibility.
    ours = job.group is None and job.scheduler in settings.schedulers
    return ours and not job.finished and not job.deleting


def _has_begun(pods: Iterable[Pod]) -> bool:
    return any(pod.node or pod.phase is not Phase.ACTIVE for pod in pods)
