"""What is to be done for one Job or one PodGroup: what is there in, actions out. Pure (KEP-5547, Controller Workflow).

Foreign objects are used as they are found and never changed; of several that match, none is chosen.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from controller.names import pod_group_name, workload_name
from serried.model.eligibility import Unasked, is_gang_job, is_owned_elsewhere
from serried.model.group import GangPolicy, Job, Key, PodGroup, Workload
from serried.model.pod import Phase, Pod

PROTECTION = "scheduling.k8s.io/podgroup-protection"
"""Finalizer that the API server's admission stamps, and that kube-controller-manager removes where its gate is on."""


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """Create the Job's Workload; its PodGroup comes in the next round."""

    job: Job
    name: str


@dataclass(frozen=True, slots=True)
class CreatePodGroup:
    """Create the PodGroup of the Job's Workload."""

    job: Job
    workload: Workload
    name: str


@dataclass(frozen=True, slots=True)
class ReportAmbiguous:
    """Tell that ordinary scheduling applies, because it is not clear which group the Job's pods form."""

    job: Job
    message: str


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Take the protection off a PodGroup, leaving ``remaining``, if it still is at ``version``."""

    group: Key
    version: str
    remaining: tuple[str, ...]


Action = CreateWorkload | CreatePodGroup | ReportAmbiguous


class Duty(Enum):
    """How far a Job concerns the controller.

    START: a gang that has not begun, whose objects are made. COMPLETE: nothing is begun, but a Workload that refers to
    the Job makes its pods wait for a PodGroup, so that is made (1.36 does the same, KEP-5547 says it of restarts).
    NONE: the Job is done, or somebody else's.
    """

    START = "start"
    COMPLETE = "complete"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Found:
    """What discovery by reference finds: the Workloads of a Job, and the PodGroups of its Workload if it has one."""

    workloads: Sequence[Workload] = ()
    groups: Sequence[PodGroup] = ()


def duty_for(job: Job, pods: Iterable[Pod], schedulers: Collection[str], unasked: Unasked = Unasked.BY_SHAPE) -> Duty:
    """The duty towards a Job with these pods."""
    if is_gang_job(job, schedulers, unasked) and not any(pod.node or pod.phase is not Phase.ACTIVE for pod in pods):
        return Duty.START
    ours = job.group is None and not is_owned_elsewhere(job) and job.scheduler in schedulers
    return Duty.COMPLETE if ours and not job.finished and not job.deleting else Duty.NONE


def is_unserved(job: Job, schedulers: Collection[str]) -> bool:
    """Whether a Job asks to be a gang of a scheduler that nobody makes gangs for."""
    return job.gang_policy is GangPolicy.JOB_AS_GANG and job.scheduler not in schedulers and not job.finished


def diff_job(job: Job, found: Found, duty: Duty) -> list[Action]:
    """The next actions for a Job; none if all is as it should be."""
    if duty is Duty.NONE:
        return []
    if not found.workloads:
        return [CreateWorkload(job, workload_name(job))] if duty is Duty.START else []
    if problem := _find_ambiguity(found):
        return [ReportAmbiguous(job, problem)]
    workload = found.workloads[0]
    if found.groups or workload.inline:
        return []
    return [CreatePodGroup(job, workload, pod_group_name(workload.key.name, workload.templates[0].name))]


def is_leaving(group: PodGroup) -> bool:
    """Whether the PodGroup is being deleted and kept by its protection."""
    return group.deleting and PROTECTION in group.finalizers


def free_group(group: PodGroup) -> RemoveFinalizer:
    """The action for a leaving PodGroup that no pod names any more, if it still is as it was seen.

    Pods that belong to it through their Job do not count: they join its successor, which may need its name.
    """
    remaining = tuple(name for name in group.finalizers if name != PROTECTION)
    return RemoveFinalizer(group.key, group.version, remaining)


def _find_ambiguity(found: Found) -> str:
    if len(found.workloads) > 1:
        return f"Workloads {_names(found.workloads)} all refer to it; exactly one must"
    workload = found.workloads[0]
    if len(workload.templates) != 1:
        return f"Workload {workload.key.name} has {len(workload.templates)} PodGroup templates; exactly one is needed"
    if len(found.groups) > 1:
        return f"PodGroups {_names(found.groups)} were all made from Workload {workload.key.name}; exactly one must be"
    return ""


def _names(objects: Iterable[Workload | PodGroup]) -> str:
    return ", ".join(item.key.name for item in objects)
