"""How each kind of parent lays out its pods: the readers of manifests, one for each row of `serried.api.kinds`.

Meanings are those of the modules sigs.k8s.io/jobset 0.12 (``jobset.x-k8s.io/v1alpha2``) and sigs.k8s.io/lws 0.9
(``leaderworkerset.x-k8s.io/v1``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from serried.api.job import GangPolicy
from serried.api.names import GANG_POLICY, Raw, read_int, read_map, read_objects, read_required, read_text

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


class Source(NamedTuple):
    """Where the pods of one stage come from."""

    stage: Stage
    template: Raw
    """A template of pods, or of Jobs."""

    path: tuple[str | int, ...]
    """Where the template stands in the manifest."""

    jobs: int | None = None
    """How many Jobs are made of the template; None for a template of pods."""

    @property
    def pod_path(self) -> tuple[str | int, ...]:
        """Where the template of the pods stands in the manifest."""
        return self.path if self.jobs is None else (*self.path, "spec", "template")


@dataclass(frozen=True, slots=True)
class Layout:
    """The pods of a parent, as its manifest says."""

    sources: tuple[Source, ...]
    """The stages, in the order of their ranks."""

    pod_templates: tuple[Raw, ...]

    copies: int = 1
    """How many replicas the manifest asks for, each with all stages."""

    replicas: int | None = None
    """As `Parent.replicas`, and so the next ones."""

    staged: str = ""
    obstacle: str = ""
    jobs_ask: bool = False
    spans: tuple[Span, ...] = ()
    finished: bool = False

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in the order of their ranks."""
        return tuple(source.stage for source in self.sources)

    @property
    def job_templates(self) -> tuple[Raw, ...]:
        """The templates of Jobs."""
        return tuple(source.template for source in self.sources if source.jobs is not None)


def read_annotations(obj: Raw) -> Raw:
    """The annotations of an object or of a template."""
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
    """The leader, which has the template of the workers where it has none of its own, and the workers."""
    stages = (Stage(LEADER, 1), Stage(WORKERS, max(0, read_int(template, "size", 1) - 1)))
    leader = "leaderTemplate" if template.get("leaderTemplate") else "workerTemplate"
    for stage, name in zip(stages, (leader, "workerTemplate"), strict=True):
        yield Source(stage, read_map(template, name), ("spec", "leaderWorkerTemplate", name))


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


LAYOUTS: Mapping[str, Callable[[Raw], Layout]] = {
    "JobSet": _read_job_set,
    "LeaderWorkerSet": _read_leader_worker_set,
}
"""The reader of each kind of parent. It takes the manifest, and raises ValueError for one that it cannot read."""
