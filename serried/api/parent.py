"""JobSets and LeaderWorkerSets: parents of several Jobs or StatefulSets, whose pods may be gangs across them.

Labels and meanings are those of the modules sigs.k8s.io/jobset 0.12 (``jobset.x-k8s.io/v1alpha2``) and sigs.k8s.io/lws
0.9 (``leaderworkerset.x-k8s.io/v1``).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from serried.api.group import PodGroup, Workload
from serried.api.job import (
    DISRUPTION_MODES,
    GangJobs,
    GangPolicy,
    Job,
    NoGang,
    find_no_gang,
    find_problem,
    is_annotated,
    tell_unserved,
)
from serried.api.names import (
    DISRUPTION_MODE,
    GANG_POLICY,
    JOB,
    PARENT_APIS,
    REQUIRED_TOPOLOGY,
    Disruption,
    GroupKey,
    Key,
    Malformed,
    ParentKind,
    Part,
    Raw,
    attempt,
    find_stray,
    is_deleting,
    list_parts,
    read_group,
    read_index,
    read_int,
    read_key,
    read_map,
    read_name,
    read_objects,
    read_required,
    read_text,
    read_uid,
    read_version,
)
from serried.api.preference import NO_PREFERENCE, Preference, names_levels, parse_preference
from serried.api.topology import read_wanted

MOST_TEMPLATES = 8
"""How many PodGroup templates a Workload may have."""


class OwnerKey(NamedTuple):
    """The name of a Job or a parent among all kinds of owners."""

    kind: str
    """``JOB``, or the value of a ParentKind."""
    key: Key


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod stands in its parent, as its labels say."""

    kind: ParentKind
    parent: str

    stage: str
    """The name of a replicated Job, or ``LEADER`` or ``WORKERS``."""

    replica: str = ""
    """The index of the replica, "" where there are none."""

    uid: str = ""
    """The UID of the parent, "" where the labels do not give it."""

    job: int = 0
    """The index of the pod's Job in the replicated Job; 0 where there is one Job only."""


LEADER = "leader"
WORKERS = "workers"


class Stage(NamedTuple):
    """Pods that are created together."""

    name: str

    size: int
    """How many of them run at a time, in each replica if there are replicas."""


class Span(NamedTuple):
    """The ranks of a stage's pods."""

    stage: str

    first: int
    """The lowest rank."""

    each: int
    """How many ranks each Job of the stage has."""


WHOLE = ""
"""The name of the stage that all stages form together."""


@dataclass(frozen=True, slots=True)
class Parent:
    """A JobSet or a LeaderWorkerSet. Of its status only ``finished`` is read."""

    kind: ParentKind
    key: Key
    uid: str
    stages: tuple[Stage, ...]
    schedulers: frozenset[str]

    gang_policy: str = ""
    """The word of its annotation, "" without one."""

    annotated: bool = False
    """Whether any of its annotations is one of Serried's."""

    staged: str = ""
    """The field that makes a later stage wait for an earlier one to run, "" if all are created at once."""

    obstacle: str = ""
    """The field that makes pods of one stage wait for each other, "" for none."""

    replicas: int | None = None
    """How often it has all its stages; None for a kind without replicas."""

    group: GroupKey | None = None
    """The group that a pod template names itself."""

    jobs_ask: bool = False
    """Whether a template of a child Job asks to be a gang."""

    topology_key: str | None = None
    preference: Preference = NO_PREFERENCE

    wanted: frozenset[str] = frozenset()
    """The extended resources of its pods, where an annotation names a level of the topology."""

    disruption: Disruption | None = None

    priority_class: str = ""
    """The PriorityClass that all pod templates name alike."""

    problem: str = ""
    """What is wrong in an annotation, a phrase."""

    stray: str = ""
    """Which annotation or label of Serried's has no effect, a phrase (`names.find_stray`); "" for none."""

    spans: tuple[Span, ...] = ()
    """The ranks of a JobSet's pods, in the order of its replicated Jobs."""

    finished: bool = False
    """The only field that is read from the status."""
    deleting: bool = False
    version: str = field(default="", compare=False)

    @property
    def asks(self) -> bool:
        """Whether it asks for gangs."""
        return self.gang_policy == PARENT_APIS[self.kind].gang_policy


Owner: TypeAlias = Job | Parent
"""What pods and their groups are made for."""


def kind_of(owner: Owner) -> str:
    """The kind of an owner, as the API calls it."""
    return owner.kind.value if isinstance(owner, Parent) else JOB


def api_group_of(owner: Owner) -> str:
    """The API group of an owner."""
    return PARENT_APIS[owner.kind].group if isinstance(owner, Parent) else "batch"


def api_version_of(owner: Owner) -> str:
    """The apiVersion of an owner."""
    return PARENT_APIS[owner.kind].api_version if isinstance(owner, Parent) else "batch/v1"


def owner_key_of(owner: Owner) -> OwnerKey:
    """The name of an owner among all kinds."""
    return OwnerKey(kind_of(owner), owner.key)


def stages_of(parent: Parent) -> tuple[Stage, ...]:
    """The stages that start by themselves, in each replica: one of all its pods, or each where they wait for others."""
    return parent.stages if parent.staged else (Stage(WHOLE, sum(stage.size for stage in parent.stages)),)


def gangs_of(parent: Parent) -> tuple[Stage, ...]:
    """The gangs of a parent, in each replica. One pod alone is no gang."""
    return tuple(stage for stage in stages_of(parent) if stage.size > 1)


def is_gang_parent(parent: Parent, schedulers: Collection[str]) -> bool:
    """Whether Serried makes a Workload and PodGroups for this parent.

    That no pod of it is bound or finished yet is the caller's to check, as with Jobs (`eligibility.is_gang_job`).
    """
    return (
        parent.asks
        and 0 < len(gangs_of(parent)) <= MOST_TEMPLATES
        and not parent.obstacle
        and parent.schedulers <= frozenset(schedulers)
        and parent.group is None
        and not parent.finished
        and not parent.deleting
    )


def find_no_gang_parent(parent: Parent, schedulers: Collection[str]) -> NoGang | None:
    """Why a parent that does not ask is no gang; None if it asks, or its pods or its Jobs are to be gangs otherwise."""
    if parent.asks or parent.group is not None or parent.jobs_ask:
        return None
    if parent.gang_policy == GangPolicy.NO_GANG.value:
        return NoGang("it says so")
    foreign = sorted(parent.schedulers - frozenset(schedulers))
    if foreign:
        return tell_unserved(foreign[0], schedulers)
    if not gangs_of(parent):
        return NoGang("it runs one pod at a time")
    return NoGang("it does not ask", f"the annotation {GANG_POLICY}: {PARENT_APIS[parent.kind].gang_policy}")


def explain_no_gang(owner: Owner, schedulers: Collection[str], gang_jobs: GangJobs) -> NoGang | None:
    """Why an owner is no gang (`find_no_gang`, `find_no_gang_parent`)."""
    if isinstance(owner, Job):
        return find_no_gang(owner, schedulers, gang_jobs)
    return find_no_gang_parent(owner, schedulers)


JOB_SET_NAME = "jobset.sigs.k8s.io/jobset-name"
JOB_SET_UID = "jobset.sigs.k8s.io/jobset-uid"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
JOB_INDEX = "jobset.sigs.k8s.io/job-index"
"""Labels of a JobSet's Jobs and of their pods."""

SET_NAME = "leaderworkerset.sigs.k8s.io/name"
GROUP_INDEX = "leaderworkerset.sigs.k8s.io/group-index"
WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
"""Labels of a LeaderWorkerSet's pods: the leader's worker index is 0."""

JOB_SET_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
JOB_SET_NODE_SELECTOR = "alpha.jobset.sigs.k8s.io/node-selector"
SET_EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"


def read_place(labels: Raw) -> Place | None:
    """The place of a pod by its labels; None if it has none, or lacks some of the labels."""
    if name := read_text(labels, JOB_SET_NAME):
        stage = read_text(labels, REPLICATED_JOB)
        uid = read_text(labels, JOB_SET_UID)
        job = read_index(labels, JOB_INDEX) or 0
        return _shared_place(ParentKind.JOB_SET, name, stage, "", uid, job) if stage else None
    if name := read_text(labels, SET_NAME):
        replica = read_text(labels, GROUP_INDEX)
        stage = LEADER if read_text(labels, WORKER_INDEX) == "0" else WORKERS
        return _shared_place(ParentKind.LEADER_WORKER_SET, name, stage, replica, "", 0) if replica else None
    return None


@lru_cache(maxsize=8192)
def _shared_place(kind: ParentKind, parent: str, stage: str, replica: str, uid: str, job: int) -> Place:
    return Place(kind, parent, stage, replica, uid=uid, job=job)


def decode_job_set(obj: object) -> Parent | Malformed:
    """A JobSet; name and uid are required, and a name for each replicated Job."""
    return attempt("JobSet", _decode_job_set, obj)


def decode_leader_worker_set(obj: object) -> Parent | Malformed:
    """A LeaderWorkerSet; name and uid are required."""
    return attempt("LeaderWorkerSet", _decode_leader_worker_set, obj)


def _decode_job_set(obj: Raw) -> Parent:
    spec = read_map(obj, "spec")
    jobs = read_objects(spec, "replicatedJobs")
    templates = [read_map(job, "template") for job in jobs]
    annotated = [_annotations(obj), *(_annotations(template) for template in templates)]
    pods = [read_map(read_map(template, "spec"), "template") for template in templates]
    parts = [Part(JOB, read_map(template, "metadata"), "of a template of Jobs") for template in templates]
    return Parent(
        **_read_common(obj, ParentKind.JOB_SET, pods),
        stray=find_stray([*list_parts(ParentKind.JOB_SET, obj, pods), *parts]),
        stages=tuple(_read_stage(job) for job in jobs),
        staged=_read_order(spec, jobs),
        obstacle="exclusive-topology" if any(_is_exclusive(annotations) for annotations in annotated) else "",
        jobs_ask=any(read_text(one, GANG_POLICY) == GangPolicy.JOB_AS_GANG.value for one in annotated[1:]),
        spans=tuple(_read_spans(jobs)),
        finished=_is_finished(read_map(obj, "status")),
    )


def _read_stage(job: Raw) -> Stage:
    spec = read_map(read_map(job, "template"), "spec")
    running = read_int(spec, "parallelism", 1)
    if spec.get("completions") is not None:
        running = min(running, read_int(spec, "completions"))
    return Stage(read_required(job, "name"), max(0, read_int(job, "replicas", 1)) * max(0, running))


def _read_spans(jobs: Sequence[Raw]) -> Iterator[Span]:
    """The ranks of each replicated Job's pods: ordered by replicated Job, then by Job, then by completion index."""
    first = 0
    for job in jobs:
        spec = read_map(read_map(job, "template"), "spec")
        parallelism = read_int(spec, "parallelism", 1)
        each = max(0, read_int(spec, "completions", parallelism))
        yield Span(read_required(job, "name"), first, each)
        first += max(0, read_int(job, "replicas", 1)) * each


def _read_order(spec: Raw, jobs: Sequence[Raw]) -> str:
    if any(read_objects(job, "dependsOn") for job in jobs):
        return "dependsOn"
    return "startupPolicy" if read_text(read_map(spec, "startupPolicy"), "startupPolicyOrder") == "InOrder" else ""


def _is_exclusive(annotations: Raw) -> bool:
    """Whether JobSet refuses a Job's other pods until its first pod is scheduled (pkg/webhooks/pod_webhook.go)."""
    return JOB_SET_EXCLUSIVE in annotations and JOB_SET_NODE_SELECTOR not in annotations


def _is_finished(status: Raw) -> bool:
    return any(
        read_text(condition, "type") in {"Completed", "Failed"} and read_text(condition, "status") == "True"
        for condition in read_objects(status, "conditions")
    )


def _decode_leader_worker_set(obj: Raw) -> Parent:
    spec = read_map(obj, "spec")
    template = read_map(spec, "leaderWorkerTemplate")
    pods = [read_map(template, name) for name in ("leaderTemplate", "workerTemplate") if template.get(name) is not None]
    staged = "startupPolicy" if read_text(spec, "startupPolicy") == "LeaderReady" else ""
    if SET_EXCLUSIVE in _annotations(obj):
        staged = "exclusive-topology"  # the workers are created when the leader is scheduled
    return Parent(
        **_read_common(obj, ParentKind.LEADER_WORKER_SET, pods),
        stray=find_stray(list_parts(ParentKind.LEADER_WORKER_SET, obj, pods)),
        stages=(Stage(LEADER, 1), Stage(WORKERS, max(0, read_int(template, "size", 1) - 1))),
        staged=staged,
        replicas=_read_replicas(spec),
    )


def _read_replicas(spec: Raw) -> int:
    """The number of replicas, with the replicas that a rolling update may add."""
    replicas = max(0, read_int(spec, "replicas", 1))
    rolling = read_map(read_map(spec, "rolloutStrategy"), "rollingUpdateConfiguration")
    surge = rolling.get("maxSurge")
    if isinstance(surge, str) and surge.removesuffix("%").isdecimal():
        more = -(-replicas * int(surge.removesuffix("%")) // 100)
    else:
        more = read_int(rolling, "maxSurge")
    return replicas + min(max(0, more), replicas)


def _read_common(obj: Raw, kind: ParentKind, pods: Sequence[Raw]) -> dict[str, Any]:
    """What is read alike of both kinds; ``pods`` are their pod templates."""
    annotations = _annotations(obj)
    key = read_key(obj)
    specs = [read_map(pod, "spec") for pod in pods]
    topology_key = read_name(annotations, REQUIRED_TOPOLOGY) or None
    preference = parse_preference(annotations)
    return {
        "kind": kind,
        "key": key,
        "uid": read_uid(obj),
        "schedulers": frozenset(read_name(spec, "schedulerName", "default-scheduler") for spec in specs),
        "gang_policy": read_text(annotations, GANG_POLICY),
        "annotated": is_annotated(annotations),
        "group": next((group for pod in pods if (group := read_group(pod, key.namespace))), None),
        "topology_key": topology_key,
        "preference": preference,
        "wanted": read_wanted(specs) if names_levels(topology_key, preference) else frozenset(),
        "disruption": DISRUPTION_MODES.get(read_text(annotations, DISRUPTION_MODE)),
        "priority_class": _find_common(read_name(spec, "priorityClassName") for spec in specs),
        "problem": find_problem(annotations, (PARENT_APIS[kind].gang_policy, GangPolicy.NO_GANG.value)),
        "deleting": is_deleting(obj),
        "version": read_version(obj),
    }


def _annotations(obj: Raw) -> Raw:
    return read_map(read_map(obj, "metadata"), "annotations")


def _find_common(names: Iterable[str]) -> str:
    found = set(names)
    return found.pop() if len(found) == 1 else ""


MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "serried"
JOB_UID = "scheduling.serried.dev/job-uid"
PARENT_UID = "scheduling.serried.dev/parent-uid"


def labels_for(owner: Owner) -> dict[str, str]:
    """The labels of everything that is made for an owner."""
    return {MANAGED_BY: MANAGER, PARENT_UID if isinstance(owner, Parent) else JOB_UID: owner.uid}


def is_ours(item: Workload | PodGroup, owner: Owner) -> bool:
    """Whether we made it for this very owner; owner references alone are no proof, others write them too."""
    return all(item.labels.get(name) == value for name, value in labels_for(owner).items())
