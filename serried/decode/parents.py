"""JobSets of ``jobset.x-k8s.io/v1alpha2``, LeaderWorkerSets of ``leaderworkerset.x-k8s.io/v1``, their pods' labels.

Labels and meanings are those of the modules sigs.k8s.io/jobset 0.12 and sigs.k8s.io/lws 0.9.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from serried.decode.fields import Raw, read_index, read_int, read_map, read_name, read_objects, read_required, read_text
from serried.decode.identity import (
    DISRUPTION_MODE,
    GANG_POLICY,
    REQUIRED_TOPOLOGY,
    is_deleting,
    read_group,
    read_key,
    read_uid,
    read_version,
)
from serried.decode.jobs import DISRUPTION_MODES, find_problem
from serried.decode.malformed import Malformed, attempt
from serried.decode.preferences import parse_preference
from serried.model.group import GangPolicy
from serried.model.parent import LEADER, PARENT_APIS, WORKERS, Parent, ParentKind, Place, Span, Stage

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
    return _build(
        obj,
        ParentKind.JOB_SET,
        pods=[read_map(read_map(template, "spec"), "template") for template in templates],
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
    return _build(
        obj,
        ParentKind.LEADER_WORKER_SET,
        pods=pods,
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


def _build(
    obj: Raw,
    kind: ParentKind,
    *,
    pods: Sequence[Raw],
    stages: tuple[Stage, ...],
    staged: str,
    obstacle: str = "",
    replicas: int | None = None,
    jobs_ask: bool = False,
    spans: tuple[Span, ...] = (),
    finished: bool = False,
) -> Parent:
    annotations = _annotations(obj)
    key = read_key(obj)
    specs = [read_map(pod, "spec") for pod in pods]
    return Parent(
        kind=kind,
        key=key,
        uid=read_uid(obj),
        stages=stages,
        schedulers=frozenset(read_name(spec, "schedulerName", "default-scheduler") for spec in specs),
        gang_policy=read_text(annotations, GANG_POLICY),
        staged=staged,
        obstacle=obstacle,
        replicas=replicas,
        group=next((group for pod in pods if (group := read_group(pod, key.namespace))), None),
        jobs_ask=jobs_ask,
        topology_key=read_name(annotations, REQUIRED_TOPOLOGY) or None,
        preference=parse_preference(annotations),
        disruption=DISRUPTION_MODES.get(read_text(annotations, DISRUPTION_MODE)),
        priority_class=_find_common(read_name(spec, "priorityClassName") for spec in specs),
        problem=find_problem(annotations, (PARENT_APIS[kind].gang_policy, GangPolicy.NO_GANG.value)),
        spans=spans,
        finished=finished,
        deleting=is_deleting(obj),
        version=read_version(obj),
    )


def _annotations(obj: Raw) -> Raw:
    return read_map(read_map(obj, "metadata"), "annotations")


def _find_common(names: Iterable[str]) -> str:
    found = set(names)
    return found.pop() if len(found) == 1 else ""
