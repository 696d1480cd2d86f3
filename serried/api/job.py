"""Jobs of ``batch/v1``, and which of them are gangs (KEP-5547 and KEP-5764, with the rulings of docs/kinds.md).

Controller and extender ask the same function: the extender must hold a Job's first pod although the Workload does not
exist yet.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from serried.api.group import Claim, Delegation, name_kind, read_claims, read_disruption, read_policy, read_topology_key
from serried.api.names import (
    ANNOTATION_PREFIX,
    DISRUPTION_MODE,
    GANG_POLICY,
    GROUP_TEMPLATE,
    REQUIRED_TOPOLOGY,
    Disruption,
    GroupKey,
    Key,
    Malformed,
    OwnerRef,
    Raw,
    attempt,
    fingerprint,
    is_deleting,
    is_label_key,
    quote,
    read_controller,
    read_flag,
    read_group,
    read_int,
    read_map,
    read_name,
    read_objects,
    read_owner_key,
    read_owner_uid,
    read_text,
    read_time,
    read_version,
)
from serried.api.preference import NO_PREFERENCE, Preference, find_preference_problem, names_levels, parse_preference
from serried.api.topology import read_wanted


class GangPolicy(StrEnum):
    """What a Job says of itself (KEP-5764); one that says nothing is judged by its shape (KEP-5547)."""

    JOB_AS_GANG = "JobAsGang"
    NO_GANG = "NoGang"


@dataclass(frozen=True, slots=True)
class Job:
    """A batch/v1 Job, with the fields that eligibility (KEP-5547) and the reconciler need.

    What ``spec.scheduling`` says counts before the annotation of the same meaning.
    """

    key: Key
    uid: str
    parallelism: int

    completions: int | None
    """None if the Job has none."""

    indexed: bool
    scheduler: str = "default-scheduler"

    group: GroupKey | None = None
    """The group that its pod template names itself (field or label): then the Job is not ours."""

    topology_key: str | None = None
    """The annotation ``scheduling.serried.dev/required-topology``: a label, or the name of a level."""

    gang_policy: GangPolicy | None = None
    """The annotation ``scheduling.serried.dev/gang-policy``."""

    disruption: Disruption | None = None
    """The annotation ``scheduling.serried.dev/disruption-mode``."""

    priority_class: str = ""
    """The PriorityClass that its pods name."""

    min_count: int | None = None
    """What ``spec.scheduling`` says; no annotation does."""

    claims: tuple[Claim, ...] = ()
    """As ``min_count``."""

    annotated: bool = False
    """Whether any of its annotations is one of ours: then its author expects something of Serried."""

    contradiction: bool = False
    """Whether field and annotation disagree on being a gang."""

    problem: str = ""
    """What is wrong in an annotation, a phrase."""

    selects_itself: bool = False
    """``manualSelector``: then nothing but owner references says which pods are the Job's."""

    owner: OwnerRef | None = None

    delegation: Delegation | None = None
    """The annotation ``scheduling.k8s.io/group-template-name``; None also if nothing controls the Job."""

    managed_by: str = ""
    """The controller that makes its pods (``spec.managedBy``); "" for kube-controller-manager."""

    suspended: bool = False
    finished: bool = False

    ending: bool = False
    """Whether it makes no more pods because it will end, though some may still run."""

    deleting: bool = False

    completed: int = 0
    """How many indexes (without indexes: pods) have succeeded."""

    given_up: int = 0
    """How many indexes have failed for good."""

    started: int | None = None
    """When it began, or was last resumed, in seconds since 1970."""

    lifetime: int | None = None
    """After how many seconds it is ended (activeDeadlineSeconds)."""

    work: int = 0
    """A number that is equal for Jobs whose pods do the same."""

    version: str = ""
    preference: Preference = NO_PREFERENCE

    wanted: frozenset[str] = frozenset()
    """The extended resources of its pods, where an annotation names a level of the topology."""

    @property
    def at_once(self) -> int:
        """How many of its pods run at a time, at most."""
        return self.parallelism if self.completions is None else min(self.parallelism, self.completions)


_JOB_CONTROLLER = "kubernetes.io/job-controller"
"""kube-controller-manager's own name in ``spec.managedBy``."""

_POLICIES: dict[str, GangPolicy] = {policy.value: policy for policy in GangPolicy}
DISRUPTION_MODES: dict[str, Disruption] = {mode.value: mode for mode in Disruption}


def decode_job(obj: object) -> Job | Malformed:
    """A Job; name and uid are required. A wrong value of an annotation is the Job's ``problem``."""
    return attempt("Job", _decode, obj)


def _decode(obj: Raw) -> Job:
    spec = read_map(obj, "spec")
    status = read_map(obj, "status")
    template = read_map(spec, "template")
    pod_spec = read_map(template, "spec")
    annotations = read_map(read_map(obj, "metadata"), "annotations")
    key = read_owner_key(obj)
    annotated = _POLICIES.get(read_text(annotations, GANG_POLICY))
    managed_by = read_name(spec, "managedBy")
    managed_by = "" if managed_by == _JOB_CONTROLLER else managed_by
    said = _read_scheduling(read_map(spec, "scheduling"))
    # With this field a user asks the Job's controller, with the annotation us.
    asked = None if managed_by else said.gang_policy
    indexed = read_text(spec, "completionMode") == "Indexed"
    topology_key = said.topology_key or read_name(annotations, REQUIRED_TOPOLOGY) or None
    preference = parse_preference(annotations)
    return Job(
        key=key,
        uid=read_owner_uid(obj),
        parallelism=read_int(spec, "parallelism", 1),
        completions=None if spec.get("completions") is None else read_int(spec, "completions"),
        indexed=indexed,
        scheduler=read_name(pod_spec, "schedulerName", "default-scheduler"),
        group=read_group(template, key.namespace),
        topology_key=topology_key,
        gang_policy=asked or annotated,
        disruption=said.disruption or DISRUPTION_MODES.get(read_text(annotations, DISRUPTION_MODE)),
        priority_class=read_name(pod_spec, "priorityClassName"),
        min_count=said.min_count,
        claims=said.claims,
        annotated=is_annotated(annotations),
        contradiction=None not in (asked, annotated) and asked is not annotated,
        problem=find_problem(annotations, _POLICIES),
        selects_itself=read_flag(spec, "manualSelector"),
        owner=read_controller(obj),
        delegation=_read_delegation(read_map(obj, "metadata"), annotations),
        managed_by=managed_by,
        suspended=read_flag(spec, "suspend"),
        deleting=is_deleting(obj),
        lifetime=read_int(spec, "activeDeadlineSeconds") or None,
        work=fingerprint(template),
        version=read_version(obj),
        preference=preference,
        wanted=read_wanted((pod_spec,)) if names_levels(topology_key, preference) else frozenset(),
        **_read_status(status, indexed=indexed),
    )


def _read_status(status: Raw, *, indexed: bool) -> dict[str, Any]:
    return {
        "finished": _has_condition(status, "Complete", "Failed"),
        "ending": _has_condition(status, "SuccessCriteriaMet", "FailureTarget"),
        "completed": _count_indexes(status, "completedIndexes") if indexed else read_int(status, "succeeded"),
        "given_up": _count_indexes(status, "failedIndexes"),
        "started": read_time(status, "startTime"),
    }


def _read_delegation(metadata: Raw, annotations: Raw) -> Delegation | None:
    references = read_objects(metadata, "ownerReferences")
    controller = next((each for each in references if read_flag(each, "controller")), None)
    if controller is None or GROUP_TEMPLATE not in annotations:
        return None
    kind = name_kind(read_text(controller, "apiVersion").rpartition("/")[0], read_text(controller, "kind"))
    return Delegation((kind, read_name(controller, "name")), read_name(annotations, GROUP_TEMPLATE))


@dataclass(frozen=True, slots=True)
class _Scheduling:
    """``spec.scheduling`` (1.37, JobSchedulingConfiguration); None or empty where it leaves something open."""

    gang_policy: GangPolicy | None = None
    min_count: int | None = None
    topology_key: str | None = None
    disruption: Disruption | None = None
    claims: tuple[Claim, ...] = ()


def _read_scheduling(scheduling: Raw) -> _Scheduling:
    if not scheduling:
        return _UNSAID
    gang_policy, min_count = _read_gang(scheduling)
    return _Scheduling(
        gang_policy=gang_policy,
        min_count=min_count,
        topology_key=read_topology_key(scheduling),
        disruption=read_disruption(scheduling),
        claims=read_claims(scheduling),
    )


_UNSAID = _Scheduling()


def _read_gang(scheduling: Raw) -> tuple[GangPolicy | None, int | None]:
    """The policy and the minCount of a Job, which is None where it follows the parallelism."""
    policy = read_map(scheduling, "schedulingPolicy")
    if not policy:
        return None, None
    if policy.get("gang") == {}:
        return GangPolicy.JOB_AS_GANG, None
    read = read_policy(scheduling)
    return GangPolicy.JOB_AS_GANG if read.is_gang else GangPolicy.NO_GANG, read.min_count


def find_problem(annotations: Raw, policies: Iterable[str]) -> str:
    """What the author has to correct in these annotations, "" if nothing.

    The admission policies that we ship refuse the same, where they are installed. ``policies`` are the values of
    GANG_POLICY that the kind knows.
    """
    for name, words in ((GANG_POLICY, policies), (DISRUPTION_MODE, DISRUPTION_MODES)):
        word = annotations.get(name)
        if word is not None and word not in words:
            return f"annotation {name} is {quote(word)}, and must be one of {', '.join(words)}"
    key = annotations.get(REQUIRED_TOPOLOGY)
    if key is not None and not is_label_key(key):
        return f"annotation {REQUIRED_TOPOLOGY} is {quote(key)}, which is no label key"
    return find_preference_problem(annotations)


def is_annotated(annotations: Raw) -> bool:
    """Whether any of these annotations is Serried's."""
    return any(name.startswith(ANNOTATION_PREFIX) for name in annotations)


def _has_condition(status: Raw, *types: str) -> bool:
    """Whether one of these conditions is True."""
    return any(
        read_text(condition, "type") in types and read_text(condition, "status") == "True"
        for condition in read_objects(status, "conditions")
    )


def _count_indexes(status: Raw, name: str) -> int:
    """How many indexes a list like ``1,3-5`` names."""
    text = read_text(status, name)
    try:
        return sum(_measure(part) for part in text.split(",")) if text else 0
    except ValueError:
        raise ValueError(f"{name} is no list of indexes") from None


def _measure(interval: str) -> int:
    first, _, last = interval.partition("-")
    return int(last or first) - int(first) + 1


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


class NoGang(NamedTuple):
    """Why a Job, or something larger, is no gang: phrases without full stops."""

    why: str

    remedy: str = ""
    """With what it would be one if it were created anew; "" where its author wants none, or nothing helps."""


def find_no_gang(job: Job, schedulers: Collection[str], gang_jobs: GangJobs = GangJobs.BY_SHAPE) -> NoGang | None:
    """Why `is_gang_job` says no; None where it says yes, and of a Job whose pods are of a group of another's.

    The first of several reasons; ``schedulers`` is not empty.
    """
    if job.group is not None or job.delegation is not None or is_gang_job(job, schedulers, gang_jobs):
        return None
    remedies = (
        (job.finished or job.deleting, NoGang("it has ended")),
        (job.scheduler not in schedulers, tell_unserved(job.scheduler, schedulers)),
        (job.gang_policy is GangPolicy.NO_GANG, NoGang("it says so")),
        (gang_jobs is GangJobs.NONE, NoGang("here no Job is (--gang-jobs none)")),
        (job.selects_itself, NoGang("it has a manualSelector", "no spec.manualSelector")),
        (job.at_once <= 1, NoGang("it runs one pod at a time", "a larger parallelism, and completions")),
        (gang_jobs is GangJobs.ASKED, NoGang("here only Jobs that ask are (--gang-jobs asked)", ASKING)),
        (bool(job.managed_by), NoGang(f"{job.managed_by} makes its pods (spec.managedBy)", ASKING)),
        (is_anothers(job), NoGang(f"{job.owner.kind} {job.owner.name} controls it" if job.owner else "", ASKING)),
        (not job.indexed, NoGang("it is not Indexed", f"completionMode: Indexed, or {ASKING}")),
        (
            True,
            NoGang(
                f"its parallelism is {job.parallelism}, and its completions are {job.completions}",
                f"as many completions as parallelism, or {ASKING}",
            ),
        ),
    )
    return next(found for holds, found in remedies if holds)


ASKING = f"the annotation {GANG_POLICY}: {GangPolicy.JOB_AS_GANG}"


def tell_unserved(scheduler: str, schedulers: Collection[str]) -> NoGang:
    """Pods are another scheduler's; ``schedulers`` are those that Serried serves."""
    return NoGang(f"Serried does not serve its scheduler {scheduler}", f"schedulerName {min(schedulers)}")


def is_anothers(job: Job) -> bool:
    """Whether another controller decides about gangs: that of something larger (JobSet, TrainJob), or the Job's own.

    kube-controller-manager, too, makes nothing for a Job that has a ``managedBy`` of another's.
    """
    return bool(job.managed_by) or (job.owner is not None and job.owner.kind != "CronJob")
