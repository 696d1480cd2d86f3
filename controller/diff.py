"""What is to be done for one Job or one PodGroup: what is there in, actions out. Pure (KEP-5547, Controller Workflow).

Foreign objects are used as they are found and never changed; of several that match, none is chosen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from controller.names import pod_group_name, successor_name, workload_name
from controller.owners import is_ours
from controller.rules import Duty
from serried.model.group import BASIC, GroupKey, Job, PodGroup, Policy, Workload

PROTECTION = "scheduling.k8s.io/podgroup-protection"
"""Finalizer that the API server's admission stamps, and that kube-controller-manager removes where its gate is on."""


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """Create the Job's Workload; its PodGroup comes in the next round. ``replaces`` is its predecessor's UID, or ""."""

    job: Job
    name: str
    policy: Policy
    replaces: str = ""


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

    group: GroupKey
    version: str
    remaining: tuple[str, ...]


Change = CreateWorkload | CreatePodGroup | SetMinCount | Delete
Action = Change | ReportAmbiguous


class Follow(Enum):
    """How minCount follows the parallelism: by a patch, by successors (1.35, 1.36), or not at all."""

    PATCH = "patch"
    REPLACE = "replace"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Found:
    """What discovery by reference finds: the Workloads of a Job, and the PodGroups of its Workload.

    ``outdated`` are Workloads that have a successor, with their PodGroups, which come first.
    """

    workloads: Sequence[Workload] = ()
    groups: Sequence[PodGroup] = ()
    outdated: Sequence[Workload | PodGroup] = ()


def diff_job(job: Job, found: Found, duty: Duty, follow: Follow) -> Sequence[Action]:
    """The next actions for a Job, none if all is as it should be; ``follow`` is how minCount follows parallelism."""
    if duty is Duty.NONE:
        return []
    if duty is Duty.RELEASE:
        return release(job, found)
    if not found.workloads:
        return _begin(job, duty)
    if problem := _find_ambiguity(found):
        return [ReportAmbiguous(job, problem)]
    workload = found.workloads[0]
    if not found.groups and not workload.inline:
        return [CreatePodGroup(job, workload, pod_group_name(workload.key.name, workload.templates[0].name))]
    outdated = [Delete(job, item) for item in found.outdated if is_ours(item, job)]
    # Before another successor is made: of three generations, two might count once the middle one is gone.
    return outdated or _follow(job, workload, found.groups, follow)


def _begin(job: Job, duty: Duty) -> list[Action]:
    if duty is Duty.START:
        return [begin_workload(job, Policy(desired_count(job)))]
    return [begin_workload(job, BASIC)] if duty is Duty.TRACK else []


def begin_workload(job: Job, policy: Policy) -> CreateWorkload:
    """The action for a Job's first Workload."""
    return CreateWorkload(job, workload_name(job), policy)


def release(job: Job, found: Found) -> list[Change]:
    """What takes our objects of a Job away, of several steps the next one.

    PodGroups before their Workload: what dies in between is found by the Workload again.
    """
    ours: list[Change] = [Delete(job, group) for group in found.groups if is_ours(group, job)]
    return ours or [Delete(job, workload) for workload in found.workloads if is_ours(workload, job)]


def _follow(job: Job, workload: Workload, groups: Sequence[PodGroup], follow: Follow) -> Sequence[Action]:
    """What lags behind the parallelism of an elastic Job. A user's Workload, and what was made from it, never does."""
    wanted = desired_count(job)
    if follow is Follow.NEVER or not is_ours(workload, job) or not wanted:
        return []
    if follow is Follow.PATCH:
        found: list[tuple[Workload | PodGroup, Policy]] = [(workload, workload.templates[0].policy)]
        found += [(group, group.policy) for group in groups if is_ours(group, job)]
        return [SetMinCount(job, item, wanted) for item, policy in found if not agrees(policy, wanted)]
    if agrees(workload.templates[0].policy, wanted):
        return []
    # The successor comes first: at no time is there nothing that holds the Job's pods.
    return [CreateWorkload(job, successor_name(job, wanted), Policy(wanted), replaces=workload.uid)]


def desired_count(job: Job) -> int:
    """The minCount of a Job's gang; 0 for one that runs no pod now."""
    return min(job.min_count or job.at_once, job.at_once)


def agrees(policy: Policy, wanted: int | None) -> bool:
    """Whether the policy has this minCount, or none to have; None is content with any."""
    return wanted is None or not policy.is_gang or policy.min_count == wanted


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
        return f"Workloads {join_names(found.workloads)} all refer to it; exactly one must"
    workload = found.workloads[0]
    if len(workload.templates) != 1:
        return f"Workload {workload.key.name} has {len(workload.templates)} PodGroup templates; exactly one is needed"
    if len(found.groups) > 1:
        return f"PodGroups {join_names(found.groups)} were all made from Workload {workload.key.name}; one must be"
    return ""


def join_names(objects: Iterable[Workload | PodGroup]) -> str:
    """Their names, for a message."""
    return ", ".join(item.key.name for item in objects)
