"""What is to be done for one Job or one PodGroup: what is there in, actions out. Pure (KEP-5547, Controller Workflow).

Foreign objects are used as they are found and never changed; of several that match, none is chosen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from controller.names import pod_group_name, workload_name
from controller.rules import Duty
from serried.model.group import BASIC, Job, Key, PodGroup, Policy, Workload

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "serried"
JOB_UID = "scheduling.serried.dev/job-uid"
"""These labels are what tells our objects from others'."""

PROTECTION = "scheduling.k8s.io/podgroup-protection"
"""Finalizer that the API server's admission stamps, and that kube-controller-manager removes where its gate is on."""


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """Create the Job's Workload; its PodGroup comes in the next round."""

    job: Job
    name: str
    policy: Policy


@dataclass(frozen=True, slots=True)
class CreatePodGroup:
    """Create the PodGroup of the Job's Workload."""

    job: Job
    workload: Workload
    name: str


@dataclass(frozen=True, slots=True)
class SetMinCount:
    """Change minCount in an object of ours to that of the Job as it is now."""

    job: Job
    item: Workload | PodGroup
    count: int


@dataclass(frozen=True, slots=True)
class ReplaceWorkload:
    """Delete our Workload and create its successor: where minCount cannot be changed."""

    job: Job
    workload: Workload
    policy: Policy


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object of ours, if it still is the one that was seen."""

    job: Job
    item: Workload | PodGroup


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


Change = CreateWorkload | CreatePodGroup | SetMinCount | ReplaceWorkload | Delete
Action = Change | ReportAmbiguous


class Follow(Enum):
    """How minCount follows the parallelism: by a patch, by objects made anew (1.35, 1.36), or not at all."""

    PATCH = "patch"
    RENEW = "renew"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Found:
    """What discovery by reference finds: the Workloads of a Job, and the PodGroups of its Workload.

    Without a Workload, the PodGroups that the Job controls.
    """

    workloads: Sequence[Workload] = ()
    groups: Sequence[PodGroup] = ()


def diff_job(job: Job, found: Found, duty: Duty, follow: Follow) -> list[Action]:
    """The next actions for a Job, none if all is as it should be; ``follow`` is how minCount follows parallelism."""
    if duty is Duty.NONE:
        return []
    if duty is Duty.RELEASE:
        return _release(job, found)
    if not found.workloads:
        return _begin(job, found, duty, follow)
    if problem := _find_ambiguity(found):
        return [ReportAmbiguous(job, problem)]
    workload = found.workloads[0]
    if not found.groups and not workload.inline:
        return [CreatePodGroup(job, workload, pod_group_name(workload.key.name, workload.templates[0].name))]
    return _follow(job, workload, found.groups, follow)


def _begin(job: Job, found: Found, duty: Duty, follow: Follow) -> list[Action]:
    # A PodGroup of ours without a Workload: its successor was not made yet when the last process ended.
    half = follow is Follow.RENEW and any(is_ours(group, job) and group.policy.is_gang for group in found.groups)
    if duty is Duty.START or half:
        return [CreateWorkload(job, workload_name(job), Policy(desired_count(job)))]
    return [CreateWorkload(job, workload_name(job), BASIC)] if duty is Duty.TRACK else []


def _release(job: Job, found: Found) -> list[Action]:
    """PodGroups before their Workload: what dies in between is found by the Workload again."""
    ours: list[Action] = [Delete(job, group) for group in found.groups if is_ours(group, job)]
    return ours or [Delete(job, workload) for workload in found.workloads if is_ours(workload, job)]


def _follow(job: Job, workload: Workload, groups: Sequence[PodGroup], follow: Follow) -> list[Action]:
    """What lags behind the parallelism of an elastic Job. A user's Workload, and what was made from it, never does."""
    wanted = desired_count(job)
    if follow is Follow.NEVER or not is_ours(workload, job) or not wanted:
        return []
    lagging: list[Workload | PodGroup] = [] if _agrees(workload.templates[0].policy, wanted) else [workload]
    lagging += [group for group in groups if is_ours(group, job) and not _agrees(group.policy, wanted)]
    if follow is Follow.PATCH:
        return [SetMinCount(job, item, wanted) for item in lagging]
    return [_renew(job, item, wanted) for item in lagging[:1]]


def _renew(job: Job, item: Workload | PodGroup, wanted: int) -> Action:
    # The Workload at once, and the PodGroup once it is gone: all the time one of the two holds the Job's pods.
    if isinstance(item, Workload):
        return ReplaceWorkload(job, item, Policy(wanted))
    return Delete(job, item)


def desired_count(job: Job) -> int:
    """The minCount of a Job's gang; 0 for one that runs no pod now."""
    return min(job.min_count or job.at_once, job.at_once)


def _agrees(policy: Policy, wanted: int) -> bool:
    return not policy.is_gang or policy.min_count == wanted


def is_ours(item: Workload | PodGroup, job: Job) -> bool:
    """Whether we made it for this very Job; owner references alone are no proof, others write them too."""
    return item.labels.get(MANAGED_BY) == MANAGER and item.labels.get(JOB_UID) == job.uid


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
