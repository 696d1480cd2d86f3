"""Readers of parents' manifests: the stages, sizes and pod templates of a JobSet or LeaderWorkerSet (`LAYOUTS`).

A stage is the pods of a parent that are created from one template: in a JobSet those of a replicated Job, in a
LeaderWorkerSet the leader, or the workers.

There is one reader for each kind of parent; `serried.api.parent.decode_parent` calls it. Sources:
sigs.k8s.io/jobset 0.12 (``jobset.x-k8s.io/v1alpha2``) and sigs.k8s.io/lws 0.9 (``leaderworkerset.x-k8s.io/v1``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from serried.api.job import GangPolicy
from serried.api.names import GANG_POLICY, Raw, read_flag, read_int, read_map, read_objects, read_required, read_text

LEADER = "leader"
WORKERS = "workers"


class Stage(NamedTuple):
    """Pods of one parent, i.e. a JobSet or LeaderWorkerSet, that are created from one template.

    In a JobSet a stage is a replicated Job; in a LeaderWorkerSet it is the leader, or the workers.
    """

    name: str

    size: int
    """The number of pods in the stage that run at the same time. For a kind with replicas: in one replica."""


class Span(NamedTuple):
    """The ranks of the pods of one stage of a JobSet. A rank is the number of a pod in the whole JobSet, from 0.

    They begin with ``first``. Each Job of the stage has ``each`` ranks, one after the other.
    """

    stage: str

    first: int
    """The lowest rank in the stage."""

    each: int
    """The number of ranks for each Job in the stage: its completions."""


class Source(NamedTuple):
    """The template of one stage, i.e. of a replicated Job, the leader or the workers, and its path in the manifest."""

    stage: Stage
    template: Raw
    """A pod template, or a Job template (if ``jobs`` is set)."""

    path: tuple[str | int, ...]
    """The path of ``template`` in the manifest: field names and list indexes."""

    jobs: int | None = None
    """The number of Jobs created from the template; None for a pod template."""

    @property
    def pod_path(self) -> tuple[str | int, ...]:
        """The path of the pod template in the manifest: field names and list indexes.

        A pod template of a Job is inside of the Job template, for instance at ``("spec", "replicatedJobs", 0,
        "template", "spec", "template")``.
        """
        return self.path if self.jobs is None else (*self.path, "spec", "template")


@dataclass(frozen=True, slots=True)
class Layout:
    """The stages, sizes and pod templates in the manifest of a parent, i.e. a JobSet or LeaderWorkerSet.

    Stages are the replicated Jobs of a JobSet, or the leader and the workers of a LeaderWorkerSet. The readers in
    LAYOUTS create it, `serried.api.parent.decode_parent` uses it.
    """

    sources: tuple[Source, ...]
    """The stages with their templates, in the order of their pods' ranks (a rank is a pod's number in the parent)."""

    pod_templates: tuple[Raw, ...]

    copies: int = 1
    """The number of replicas in the manifest, each with the pods of all stages; 1 for a kind without replicas."""

    replicas: int | None = None
    """The number of replicas, including those that a rolling update adds for a time; None for a kind without replicas.

    This field and all that follow become those of `serried.api.parent.Parent`.
    """

    staged: str = ""
    obstacle: str = ""
    jobs_ask: bool = False
    spans: tuple[Span, ...] = ()
    finished: bool = False
    suspended: bool = False

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages: the replicated Jobs of a JobSet, or the leader and the workers of a LeaderWorkerSet.

        They are in the order of their pods' ranks; a rank is a pod's number in the whole parent.
        """
        return tuple(source.stage for source in self.sources)

    @property
    def job_templates(self) -> tuple[Raw, ...]:
        """The Job templates in a JobSet, one for each replicated Job; empty for a LeaderWorkerSet."""
        return tuple(source.template for source in self.sources if source.jobs is not None)


def read_annotations(obj: Raw) -> Raw:
    """Return the annotations of an object or a template."""
    return read_map(read_map(obj, "metadata"), "annotations")


def _read_job_set(obj: Raw) -> Layout:
    spec = read_map(obj, "spec")
    jobs = read_objects(spec, "replicatedJobs")
    templates = [read_map(job, "template") for job in jobs]
    below = [read_annotations(template) for template in templates]
    return Layout(
        sources=tuple(_read_source(index, job) for index, job in enumerate(jobs)),
        pod_templates=tuple(read_map(read_map(template, "spec"), "template") for template in templates),
        staged=_read_order(spec, jobs),
        obstacle="exclusive-topology" if any(map(_is_exclusive, (read_annotations(obj), *below))) else "",
        jobs_ask=any(read_text(annotations, GANG_POLICY) == GangPolicy.JOB_AS_GANG for annotations in below),
        spans=tuple(_read_spans(jobs)),
        finished=_is_finished(read_map(obj, "status")),
        suspended=read_flag(spec, "suspend"),
    )


def _read_source(index: int, job: Raw) -> Source:
    template = read_map(job, "template")
    spec = read_map(template, "spec")
    running = read_int(spec, "parallelism", 1)
    if spec.get("completions") is not None:
        running = min(running, read_int(spec, "completions"))
    jobs = max(0, read_int(job, "replicas", 1))
    stage = Stage(read_required(job, "name"), jobs * max(0, running))
    return Source(stage, template, ("spec", "replicatedJobs", index, "template"), jobs)


def _read_spans(jobs: Sequence[Raw]) -> Iterator[Span]:
    """Yield the ranks of each replicated Job of a JobSet.

    ``jobs`` are the replicated Jobs. Ranks are counted by replicated Job, then by Job, then by completion index.
    """
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
    """Return whether JobSet rejects the other pods of a Job until the first one is scheduled (exclusive-topology).

    ``annotations`` are those of the JobSet or of a Job template. Upstream: webhooks/pod_webhook.go.
    """
    exclusive, node_selector = "alpha.jobset.sigs.k8s.io/exclusive-topology", "alpha.jobset.sigs.k8s.io/node-selector"
    return exclusive in annotations and node_selector not in annotations


def _is_finished(status: Raw) -> bool:
    return any(
        read_text(condition, "type") in {"Completed", "Failed"} and read_text(condition, "status") == "True"
        for condition in read_objects(status, "conditions")
    )


def _read_leader_worker_set(obj: Raw) -> Layout:
    spec = read_map(obj, "spec")
    template = read_map(spec, "leaderWorkerTemplate")
    staged = "startupPolicy" if read_text(spec, "startupPolicy") == "LeaderReady" else ""
    if "leaderworkerset.sigs.k8s.io/exclusive-topology" in read_annotations(obj):
        staged = "exclusive-topology"  # the workers are created when the leader is scheduled
    return Layout(
        sources=tuple(_read_sources(template)),
        pod_templates=tuple(
            read_map(template, name) for name in ("leaderTemplate", "workerTemplate") if template.get(name) is not None
        ),
        copies=max(0, read_int(spec, "replicas", 1)),
        replicas=_read_replicas(spec),
        staged=staged,
    )


def _read_sources(template: Raw) -> Iterator[Source]:
    """Yield the stage of the leader and the stage of the workers, from a ``leaderWorkerTemplate``.

    A leader without a template of its own has that of the workers.
    """
    stages = (Stage(LEADER, 1), Stage(WORKERS, max(0, read_int(template, "size", 1) - 1)))
    leader = "leaderTemplate" if template.get("leaderTemplate") else "workerTemplate"
    for stage, name in zip(stages, (leader, "workerTemplate"), strict=True):
        yield Source(stage, read_map(template, name), ("spec", "leaderWorkerTemplate", name))


def _read_replicas(spec: Raw) -> int:
    """Return the number of replicas in a LeaderWorkerSet's spec, with those that a rolling update adds (maxSurge)."""
    replicas = max(0, read_int(spec, "replicas", 1))
    rolling = read_map(read_map(spec, "rolloutStrategy"), "rollingUpdateConfiguration")
    surge = rolling.get("maxSurge")
    if isinstance(surge, str) and surge.removesuffix("%").isdecimal():
        more = -(-replicas * int(surge.removesuffix("%")) // 100)
    else:
        more = read_int(rolling, "maxSurge")
    return replicas + min(max(0, more), replicas)


LAYOUTS: Mapping[str, Callable[[Raw], Layout]] = {
    "JobSet": _read_job_set,
    "LeaderWorkerSet": _read_leader_worker_set,
}
"""The reader for each kind of parent. It takes an object as JSON, and raises ValueError if it cannot read it."""
