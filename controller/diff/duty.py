"""What the controller has to do for one owner, by the operator's settings and the owner's state."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum

from serried.model.eligibility import GangJobs, is_anothers, is_gang_job
from serried.model.group import GangPolicy, Job
from serried.model.parent import Parent
from serried.model.pod import Phase, Pod


class Elastic(StrEnum):
    """What happens to a gang's minCount when its Job's parallelism changes."""

    FOLLOW = "follow"
    """minCount follows."""
    REFUSE = "refuse"
    """minCount stays as it was."""


class Suspended(StrEnum):
    """What happens to the Workload and the PodGroup of a suspended Job."""

    KEEP = "keep"
    """They stay."""
    DELETE = "delete"
    """They are deleted, and created anew when the Job is resumed (KEP-5547, beta)."""


class Track(StrEnum):
    """Which Jobs get a Workload and a PodGroup."""

    GANGS = "gangs"
    """Only gangs."""
    ALL = "all"
    """All Jobs; policy basic where a Job is no gang."""


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
    """What the controller has to do for an owner."""

    START = "start"
    """Create its Workload and its PodGroups: it is a gang, and none of its pods has started."""
    TRACK = "track"
    """Create its objects with policy basic: it is a Job that is no gang."""
    COMPLETE = "complete"
    """Create no Workload, but the PodGroups of a Workload that refers to the owner: the pods wait for them.

    1.36 does the same, and KEP-5547 says it of restarts.
    """
    RELEASE = "release"
    """Delete our objects: it is a suspended Job."""
    NONE = "none"
    """Nothing: the owner has finished, or is not ours."""


def duty_of_job(job: Job, pods: Collection[Pod], settings: GangSettings) -> Duty:
    """The duty towards a Job; ``pods`` are the Job's own."""
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
    return Duty.TRACK if settings.track is Track.ALL and not is_anothers(job) else Duty.COMPLETE


def concerns_us(parent: Parent, settings: GangSettings) -> bool:
    """Whether there is any duty towards a parent."""
    ours = parent.group is None and parent.schedulers <= frozenset(settings.schedulers)
    return ours and settings.gang_jobs is not GangJobs.NONE and not parent.finished and not parent.deleting


def is_unserved(job: Job, settings: GangSettings) -> bool:
    """Whether a Job asks to be a gang, and its scheduler is none that Serried serves."""
    asks = job.gang_policy is GangPolicy.JOB_AS_GANG and settings.gang_jobs is not GangJobs.NONE
    return asks and job.scheduler not in settings.schedulers and not job.finished


def _is_ours_to_complete(job: Job, settings: GangSettings) -> bool:
    # Also of a Job that another object owns: a Workload that a user has made for it is used in any case.
    ours = job.group is None and job.scheduler in settings.schedulers
    return ours and not job.finished and not job.deleting


def _has_begun(pods: Iterable[Pod]) -> bool:
    return any((pod.node or pod.phase is not Phase.ACTIVE) and not pod.stranded for pod in pods)
