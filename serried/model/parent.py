"""JobSets and LeaderWorkerSets: parents of more than one Job or StatefulSet, whose pods may be gangs across them."""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from serried.model.group import Disruption, GroupKey, Key
from serried.model.preference import NO_PREFERENCE, Preference


class ParentKind(StrEnum):
    """The kinds of parents; the value is the kind of the API."""

    JOB_SET = "JobSet"
    LEADER_WORKER_SET = "LeaderWorkerSet"


class ParentApi(NamedTuple):
    """Where a kind lives, and the word of the annotation ``gang-policy`` that makes gangs of it."""

    group: str
    version: str
    plural: str
    gang_policy: str

    @property
    def api_version(self) -> str:
        """What stands in an object's ``apiVersion``."""
        return f"{self.group}/{self.version}"


PARENT_APIS = {
    ParentKind.JOB_SET: ParentApi("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSetAsGang"),
    ParentKind.LEADER_WORKER_SET: ParentApi("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "ReplicaAsGang"),
}

MOST_TEMPLATES = 8
"""A Workload may have so many PodGroup templates (facts C2)."""

REPLICA = "scheduling.serried.dev/replica"
"""Label of a PodGroup that exists once for each replica: the replica's index."""

JOB = "Job"


class Family(NamedTuple):
    """All pods of one Job or parent: its kind (``JOB`` or a ParentKind), namespace and name."""

    kind: str
    key: Key


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod stands in its parent, as its labels say.

    ``stage`` is a replicated Job's name, or ``LEADER`` or ``WORKERS``; ``replica`` the replica's index, "" where there
    are none. ``uid`` is the parent's, "" where the labels do not give it. ``job`` is the index of its Job among those
    of the replicated Job, 0 where there is but one.
    """

    kind: ParentKind
    parent: str
    stage: str
    replica: str = ""
    uid: str = ""
    job: int = 0


LEADER = "leader"
WORKERS = "workers"


class Stage(NamedTuple):
    """Pods that are created together: ``size`` of them run at a time, in each replica if there are replicas."""

    name: str
    size: int


class Span(NamedTuple):
    """The ranks of a stage's pods: they begin with ``first``, and each of its Jobs has ``each`` of them."""

    stage: str
    first: int
    each: int


WHOLE = ""
"""The name of the stage that all stages form together."""


@dataclass(frozen=True, slots=True)
class Parent:
    """A JobSet or a LeaderWorkerSet.

    ``gang_policy`` is the word of its annotation, "" without. ``staged`` names the field that makes a later stage wait
    for an earlier one to run, "" if all are created at once; ``obstacle`` the one that makes pods of one stage wait for
    each other. ``replicas`` is how often it has all its stages, None for a kind without replicas. ``group`` is the
    group that a pod template names itself; ``jobs_ask`` whether a template of a child Job asks to be a gang.
    ``priority_class`` is what all pod templates name alike, ``problem`` what an annotation says wrongly. ``spans`` are
    the ranks of a JobSet's pods, in the order of its replicated Jobs. Status counts for ``finished`` only.
    """

    kind: ParentKind
    key: Key
    uid: str
    stages: tuple[Stage, ...]
    schedulers: frozenset[str]
    gang_policy: str = ""
    staged: str = ""
    obstacle: str = ""
    replicas: int | None = None
    group: GroupKey | None = None
    jobs_ask: bool = False
    topology_key: str | None = None
    preference: Preference = NO_PREFERENCE
    disruption: Disruption | None = None
    priority_class: str = ""
    problem: str = ""
    spans: tuple[Span, ...] = ()
    finished: bool = False
    deleting: bool = False
    version: str = field(default="", compare=False)

    @property
    def family(self) -> Family:
        """The name of all its pods."""
        return Family(self.kind, self.key)

    @property
    def asks(self) -> bool:
        """Whether it asks for gangs."""
        return self.gang_policy == PARENT_APIS[self.kind].gang_policy


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
