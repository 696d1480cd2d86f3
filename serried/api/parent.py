"""Parents of several Jobs, StatefulSets or pods, which may be gangs across them; and Jobs and parents alike, as owners.

What kinds of parents there are stands in `serried.api.kinds`.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import NamedTuple, TypeAlias

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
from serried.api.kinds import OWNER_KINDS, PARENTS, OwnerKind
from serried.api.layouts import LAYOUTS, LEADER, WORKERS, Span, Stage, read_annotations
from serried.api.names import (
    DISRUPTION_MODE,
    GANG_POLICY,
    JOB,
    REQUIRED_TOPOLOGY,
    Disruption,
    GroupKey,
    Key,
    Malformed,
    Part,
    Raw,
    attempt,
    find_stray,
    is_deleting,
    list_parts,
    read_group,
    read_index,
    read_key,
    read_map,
    read_name,
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
    """One of ``OWNER_KINDS``."""
    key: Key


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod stands in its parent, as its labels say."""

    kind: str
    """One of ``PARENTS``."""

    parent: str

    stage: str
    """The name of a stage, such as that of a replicated Job, or ``LEADER`` or ``WORKERS``."""

    replica: str = ""
    """The index of the replica, "" where there are none."""

    uid: str = ""
    """The UID of the parent, "" where the labels do not give it."""

    job: int = 0
    """The index of the pod's Job in the replicated Job; 0 where there is one Job only."""


WHOLE = ""
"""The name of the stage that all stages form together."""


@dataclass(frozen=True, slots=True)
class Parent:
    """An owner of one of the kinds in ``PARENTS``. Of its status only ``finished`` is read."""

    kind: str
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
    """The ranks of the pods by stage, in the order of the stages; empty where the pods number themselves."""

    finished: bool = False
    """The only field that is read from the status."""
    deleting: bool = False
    version: str = field(default="", compare=False)

    @property
    def asks(self) -> bool:
        """Whether it asks for gangs."""
        return self.gang_policy == OWNER_KINDS[self.kind].gang_policy


Owner: TypeAlias = Job | Parent
"""What pods and their groups are made for."""


def kind_of(owner: Owner) -> str:
    """The kind of an owner, as the API calls it."""
    return owner.kind if isinstance(owner, Parent) else JOB


def api_group_of(owner: Owner) -> str:
    """The API group of an owner."""
    return OWNER_KINDS[kind_of(owner)].group


def api_version_of(owner: Owner) -> str:
    """The apiVersion of an owner."""
    return OWNER_KINDS[kind_of(owner)].api_version


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
    return NoGang("it does not ask", f"the annotation {GANG_POLICY}: {OWNER_KINDS[parent.kind].gang_policy}")


def explain_no_gang(owner: Owner, schedulers: Collection[str], gang_jobs: GangJobs) -> NoGang | None:
    """Why an owner is no gang (`find_no_gang`, `find_no_gang_parent`)."""
    if isinstance(owner, Job):
        return find_no_gang(owner, schedulers, gang_jobs)
    return find_no_gang_parent(owner, schedulers)


def read_place(labels: Raw) -> Place | None:
    """The place of a pod by its labels; None if it has none, or lacks some of the labels."""
    for row in PARENTS.values():
        if row.labels.name in labels and (name := read_text(labels, row.labels.name)):
            return _read_place_in(row, name, labels)
    return None


def _read_place_in(row: OwnerKind, parent: str, labels: Raw) -> Place | None:
    names = row.labels
    if names.stage:
        stage = read_text(labels, names.stage)
    else:
        stage = LEADER if read_text(labels, names.index) == "0" else WORKERS
    replica = read_text(labels, names.replica) if names.replica else ""
    uid = read_text(labels, names.uid) if names.uid else ""
    job = (read_index(labels, names.job) or 0) if names.job else 0
    is_whole = stage and (replica or not names.replica)
    return _shared_place(row.kind, parent, stage, replica, uid, job) if is_whole else None


@lru_cache(maxsize=8192)
def _shared_place(kind: str, parent: str, stage: str, replica: str, uid: str, job: int) -> Place:
    return Place(kind, parent, stage, replica, uid=uid, job=job)


def decode_parent(kind: str, obj: object) -> Parent | Malformed:
    """A parent of this kind; name and uid are required, and what its layout needs."""
    return attempt(kind, partial(_decode_parent, OWNER_KINDS[kind]), obj)


def _decode_parent(row: OwnerKind, obj: Raw) -> Parent:
    layout = LAYOUTS[row.kind](obj)
    annotations = read_annotations(obj)
    key = read_key(obj)
    pods = layout.pod_templates
    specs = [read_map(pod, "spec") for pod in pods]
    parts = [Part(JOB, read_map(template, "metadata"), "of a template of Jobs") for template in layout.job_templates]
    topology_key = read_name(annotations, REQUIRED_TOPOLOGY) or None
    preference = parse_preference(annotations)
    return Parent(
        kind=row.kind,
        key=key,
        uid=read_uid(obj),
        stages=layout.stages,
        schedulers=frozenset(read_name(spec, "schedulerName", "default-scheduler") for spec in specs),
        gang_policy=read_text(annotations, GANG_POLICY),
        annotated=is_annotated(annotations),
        staged=layout.staged,
        obstacle=layout.obstacle,
        replicas=layout.replicas,
        group=next((group for pod in pods if (group := read_group(pod, key.namespace))), None),
        jobs_ask=layout.jobs_ask,
        topology_key=topology_key,
        preference=preference,
        wanted=read_wanted(specs) if names_levels(topology_key, preference) else frozenset(),
        disruption=DISRUPTION_MODES.get(read_text(annotations, DISRUPTION_MODE)),
        priority_class=_find_common(read_name(spec, "priorityClassName") for spec in specs),
        problem=find_problem(annotations, (row.gang_policy, GangPolicy.NO_GANG.value)),
        stray=find_stray([*list_parts(row.kind, obj, pods), *parts]),
        spans=layout.spans,
        finished=layout.finished,
        deleting=is_deleting(obj),
        version=read_version(obj),
    )


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
