"""JobSets and LeaderWorkerSets: parents of more than one Job or StatefulSet, whose pods may be gangs across them."""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from serried.model.disruption import Disruption
from serried.model.group import GroupKey, Job, Key
from serried.model.preference import NO_PREFERENCE, Preference


class ParentKind(StrEnum):
    """The kinds of parents; the value is the kind of the API."""

    JOB_SET = "JobSet"
    LEADER_WORKER_SET = "LeaderWorkerSet"


class ParentApi(NamedTuple):
    """Where a kind of parents lives."""

    group: str
    version: str
    plural: str
    gang_policy: str
    """The word of the annotation ``gang-policy`` that makes gangs of it."""

    @property
    def api_version(self) -> str:
        """What stands in an object's ``apiVersion``."""
        return f"{self.group}/{self.version}"


PARENT_APIS = {
    ParentKind.JOB_SET: ParentApi("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSetAsGang"),
    ParentKind.LEADER_WORKER_SET: ParentApi("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "ReplicaAsGang"),
}

MOST_TEMPLATES = 8
"""How many PodGroup templates a Workload may have."""

REPLICA = "scheduling.serried.dev/replica"
"""Label of a PodGroup that exists once for each replica: the replica's index."""

JOB = "Job"


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
    disruption: Disruption | None = None

    priority_class: str = ""
    """The PriorityClass that all pod templates name alike."""

    problem: str = ""
    """What is wrong in an annotation, a phrase."""

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
