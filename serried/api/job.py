"""Jobs of ``batch/v1`` (`decode_job`), and which of them are gangs (`is_gang_job`).

The rules are those of KEP-5547 and KEP-5764, with the decisions in docs/kinds.md. Controller and extender use the same
function: the extender must hold a Job's first pod although the Workload does not exist yet.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from serried.api.group import (
    Delegation,
    SharedClaim,
    name_controller_kind,
    read_claims,
    read_disruption,
    read_policy,
    read_topology_key,
)
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
    decode_or_malformed,
    find_ineffective_key,
    fingerprint,
    is_deleting,
    is_label_key,
    list_metadata,
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
from serried.api.topology import read_extended_resources


class GangPolicy(StrEnum):
    """The wish of a Job's author about the Job being a gang, by a field (KEP-5764) or annotation.

    JOB_AS_GANG: it shall be a gang. NO_GANG: it shall be none. If the author has said nothing, parallelism, completions
    and completionMode decide (KEP-5547).
    """

    JOB_AS_GANG = "JobAsGang"
    NO_GANG = "NoGang"


@dataclass(frozen=True, slots=True)
class Job:
    """A batch/v1 Job, with the fields that `is_gang_job` and the controller need.

    Fields in ``spec.scheduling`` take precedence over annotations of the same meaning.
    """

    key: Key
    uid: str
    parallelism: int

    completions: int | None
    """The spec.completions; None if it is not set."""

    indexed: bool
    scheduler: str = "default-scheduler"

    group: GroupKey | None = None
    """The group that its pod template names by field or label; None if it names none.

    With such a group, Serried creates no PodGroup for the Job.
    """

    topology_key: str | None = None
    """The required topology key: a node label, or the name of a level such as ``rack``. None if the Job has none."""

    gang_policy: GangPolicy | None = None
    """The wish of the Job's author, for a gang or for none; None if the author has not said anything."""

    disruption: Disruption | None = None
    """The disruption mode of its gang; None if it is not set."""

    priority_class: str = ""
    """The PriorityClass that its pods name."""

    min_count: int | None = None
    """The minCount in ``spec.scheduling``; None if it is not set."""

    claims: tuple[SharedClaim, ...] = ()
    """The resource claims in ``spec.scheduling`` that its pods share."""

    annotated: bool = False
    """True if the Job has any annotation of Serried. Its author then expects Serried to do something with the Job."""

    contradiction: bool = False
    """True if field and annotation contradict each other: one makes the Job a gang, the other one does not.

    The field is in ``spec.scheduling``, the annotation is GANG_POLICY.
    """

    problem: str = ""
    """A phrase about an invalid annotation; "" for none."""

    stray: str = ""
    """A phrase about an annotation or label of Serried on the Job that has no effect, for instance a misspelt one.

    "" if there is none. See `names.find_ineffective_key`.
    """

    selects_itself: bool = False
    """True if the Job has ``manualSelector``, so that no label identifies its pods, only their owner references."""

    owner: OwnerRef | None = None
    """The controlling owner reference; None if nothing controls the Job."""

    delegation: Delegation | None = None
    """The template in the Workload of the Job's controller from which the Job's PodGroup is made; None for none.

    It is from the annotation ``scheduling.k8s.io/group-template-name``.
    """

    managed_by: str = ""
    """The controller that creates its pods (``spec.managedBy``); "" for kube-controller-manager."""

    suspended: bool = False
    finished: bool = False

    ending: bool = False
    """True if the Job is about to finish: no new pods are created, but some may still run."""

    deleting: bool = False

    completed: int = 0
    """The number of indexes that have succeeded. If the Job is not Indexed: the number of pods."""

    given_up: int = 0
    """The number of indexes for which no pod is created any more, because too many have failed (failedIndexes)."""

    started: int | None = None
    """The time at which it started or was last resumed, in seconds since 1970; None if it never was."""

    lifetime: int | None = None
    """The activeDeadlineSeconds; None if it has none."""

    work: int = 0
    """A hash of its pod template's spec, equal for Jobs that run the same pods (`names.fingerprint`).

    So Serried can expect such Jobs to run equally long.
    """

    version: str = ""
    preference: Preference = NO_PREFERENCE

    wanted: frozenset[str] = frozenset()
    """The extended resources that its pods request, if the Job names a topology level such as ``rack``; else empty.

    They decide which node label stands for the level: nodes with a GPU may have another one (`LevelTable.find_label`).
    """

    @property
    def at_once(self) -> int:
        """The maximum number of its pods that run at the same time, by parallelism and completions."""
        return self.parallelism if self.completions is None else min(self.parallelism, self.completions)


_BUILT_IN_CONTROLLER = "kubernetes.io/job-controller"
"""The value of ``spec.managedBy`` that names kube-controller-manager, as if the field were not set."""

_POLICIES: dict[str, GangPolicy] = {policy.value: policy for policy in GangPolicy}
DISRUPTION_MODES: dict[str, Disruption] = {mode.value: mode for mode in Disruption}


def decode_job(obj: object) -> Job | Malformed:
    """Decode a Job; name and uid are required. An invalid annotation is no error: it becomes `Job.problem`."""
    return decode_or_malformed("Job", _decode, obj)


def _decode(obj: Raw) -> Job:
    spec = read_map(obj, "spec")
    status = read_map(obj, "status")
    template = read_map(spec, "template")
    pod_spec = read_map(template, "spec")
    annotations = read_map(read_map(obj, "metadata"), "annotations")
    key = read_owner_key(obj)
    annotated = _POLICIES.get(read_text(annotations, GANG_POLICY))
    managed_by = read_name(spec, "managedBy")
    managed_by = "" if managed_by == _BUILT_IN_CONTROLLER else managed_by
    said = _read_scheduling(read_map(spec, "scheduling"))
    # The field spec.scheduling is addressed to the Job's controller, the annotation to Serried.
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
        stray=find_ineffective_key(list_metadata("Job", obj, [template])),
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
        wanted=read_extended_resources((pod_spec,)) if names_levels(topology_key, preference) else frozenset(),
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
    kind = name_controller_kind(read_text(controller, "apiVersion").rpartition("/")[0], read_text(controller, "kind"))
    return Delegation((kind, read_name(controller, "name")), read_name(annotations, GROUP_TEMPLATE))


@dataclass(frozen=True, slots=True)
class _Scheduling:
    """The ``spec.scheduling`` of a Job (1.37, JobSchedulingConfiguration). A field that is None or empty is not set."""

    gang_policy: GangPolicy | None = None
    min_count: int | None = None
    topology_key: str | None = None
    disruption: Disruption | None = None
    claims: tuple[SharedClaim, ...] = ()


def _read_scheduling(scheduling: Raw) -> _Scheduling:
    if not scheduling:
        return _NO_SCHEDULING
    gang_policy, min_count = _read_gang(scheduling)
    return _Scheduling(
        gang_policy=gang_policy,
        min_count=min_count,
        topology_key=read_topology_key(scheduling),
        disruption=read_disruption(scheduling),
        claims=read_claims(scheduling),
    )


_NO_SCHEDULING = _Scheduling()


def _read_gang(scheduling: Raw) -> tuple[GangPolicy | None, int | None]:
    """Return the gang policy and the minCount in ``spec.scheduling``; None for what is not set.

    A gang without minCount needs as many members as the Job's parallelism.
    """
    policy = read_map(scheduling, "schedulingPolicy")
    if not policy:
        return None, None
    if policy.get("gang") == {}:
        return GangPolicy.JOB_AS_GANG, None
    read = read_policy(scheduling)
    return GangPolicy.JOB_AS_GANG if read.is_gang else GangPolicy.NO_GANG, read.min_count


def find_problem(annotations: Raw, policies: Iterable[str]) -> str:
    """Return a phrase about the first annotation of Serried with an invalid value; "" if all are valid.

    ``annotations`` are those of a Job or parent, ``policies`` the valid values of GANG_POLICY for its kind. Serried's
    admission policies, if they are installed, reject the same values.
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
    """Return whether any of these annotations is one of Serried (its key begins with ANNOTATION_PREFIX)."""
    return any(name.startswith(ANNOTATION_PREFIX) for name in annotations)


def _has_condition(status: Raw, *types: str) -> bool:
    """Return whether a condition of one of these types is True."""
    return any(
        read_text(condition, "type") in types and read_text(condition, "status") == "True"
        for condition in read_objects(status, "conditions")
    )


def _count_indexes(status: Raw, name: str) -> int:
    """Return the number of indexes in the list at ``name``, 4 for ``1,3-5``; 0 if it is absent.

    Raises ValueError if it is no list of indexes.
    """
    text = read_text(status, name)
    try:
        return sum(_interval_length(part) for part in text.split(",")) if text else 0
    except ValueError:
        raise ValueError(f"{name} is no list of indexes") from None


def _interval_length(interval: str) -> int:
    first, _, last = interval.partition("-")
    return int(last or first) - int(first) + 1


class GangJobs(StrEnum):
    """The value of ``--gang-jobs``: the Jobs for which Serried creates gangs.

    BY_SHAPE: Jobs whose author asks for it, and Indexed Jobs that run all their pods together. ASKED: only Jobs whose
    author asks for it. NONE: no Jobs.
    """

    BY_SHAPE = "by-shape"
    """Jobs whose author asks for a gang (KEP-5764), and Indexed Jobs that run all their pods together (KEP-5547)."""

    ASKED = "asked"
    """Only Jobs whose author asks for a gang (KEP-5764)."""

    NONE = "none"
    """No Jobs. Serried creates no Workloads and PodGroups for Jobs, and treats their pods as plain pods."""


def is_gang_job(job: Job, schedulers: Collection[str], gang_jobs: GangJobs = GangJobs.BY_SHAPE) -> bool:
    """Return whether Serried creates a Workload and a PodGroup for this Job.

    It depends on the Job's gang policy:

    - JobAsGang: yes, if more than one pod runs at a time.
    - NoGang: no.
    - not set: yes, if ``gang_jobs`` is BY_SHAPE, the Job is Indexed with ``parallelism == completions > 1``, and no
      other controller decides about it (`is_decided_elsewhere`).

    In any case, its pods must have one of the ``schedulers``, which Serried serves. It must not name a group or a
    template, have a manualSelector, be finished, or be in deletion. With ``gang_jobs`` NONE the answer is no. The
    caller also has to check that none of its pods is bound or finished yet.
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
    return job.indexed and job.completions == job.parallelism and not is_decided_elsewhere(job)


class NoGang(NamedTuple):
    """The reason why a Job or parent is no gang (``why``), and a ``remedy``. Both are phrases without full stops."""

    why: str

    remedy: str = ""
    """The field or annotation with which the user can create the object again, so that it becomes a gang.

    "" if nothing helps, or if its author wants no gang.
    """


def find_no_gang(job: Job, schedulers: Collection[str], gang_jobs: GangJobs = GangJobs.BY_SHAPE) -> NoGang | None:
    """Return the first reason why `is_gang_job` is False for a Job with the same arguments.

    Return None if it is True. Return None also if the Job's pods belong to a group that somebody else creates.
    ``schedulers`` are those that Serried serves, and must not be empty.
    """
    if job.group is not None or job.delegation is not None or is_gang_job(job, schedulers, gang_jobs):
        return None
    remedies = (
        (job.finished or job.deleting, NoGang("it has ended")),
        (job.scheduler not in schedulers, explain_unserved(job.scheduler, schedulers)),
        (job.gang_policy is GangPolicy.NO_GANG, NoGang(f"it has the annotation {GANG_POLICY}: {GangPolicy.NO_GANG}")),
        (gang_jobs is GangJobs.NONE, NoGang("Serried makes no Job a gang here (--gang-jobs none)")),
        (job.selects_itself, NoGang("it has a manualSelector", "no spec.manualSelector")),
        (job.at_once <= 1, NoGang("it runs one pod at a time", "a larger parallelism, and completions")),
        (
            gang_jobs is GangJobs.ASKED,
            NoGang("only Jobs that ask for it are gangs here (--gang-jobs asked)", ASKING),
        ),
        (bool(job.managed_by), NoGang(f"{job.managed_by} makes its pods (spec.managedBy)", ASKING)),
        (
            is_decided_elsewhere(job),
            NoGang(f"{job.owner.kind} {job.owner.name} controls it" if job.owner else "", ASKING),
        ),
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


def explain_unserved(scheduler: str, schedulers: Collection[str]) -> NoGang:
    """Return the `NoGang` of a Job or parent whose pods have a ``scheduler`` that Serried does not serve.

    ``schedulers`` are those that Serried serves; the remedy names one of them.
    """
    return NoGang(f"Serried does not serve its scheduler {scheduler}", f"schedulerName {min(schedulers)}")


def is_decided_elsewhere(job: Job) -> bool:
    """Return whether a controller other than Serried's decides if the Job is a gang.

    That is so if another object controls the Job (such as a JobSet or TrainJob, but not a CronJob). It is also so if
    ``managedBy`` names another controller, which creates the Job's pods: like kube-controller-manager, Serried then
    creates no gang by itself.
    """
    return bool(job.managed_by) or (job.owner is not None and job.owner.kind != "CronJob")
