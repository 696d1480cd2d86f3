"""Parents (`Parent`), such as a JobSet, whose pods form gangs; and functions for any owner, i.e. a Job or a parent.

The caches of the extender and the controller decode parents with `decode_parent`. The kinds of parents are listed in
`serried.api.kinds`, the readers of their manifests in `serried.api.layouts`.
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
    explain_unserved,
    find_no_gang,
    find_problem,
    is_annotated,
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
    MetadataSection,
    Raw,
    decode_or_malformed,
    find_ineffective_key,
    is_deleting,
    list_metadata,
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
from serried.api.topology import read_extended_resources

MOST_TEMPLATES = 8
"""The maximum number of PodGroup templates in a Workload."""


class OwnerKey(NamedTuple):
    """Identifies an owner, i.e. a Job or a parent, by kind, namespace and name."""

    kind: str
    """A key of ``OWNER_KINDS``."""
    key: Key


@dataclass(frozen=True, slots=True)
class Place:
    """A pod's position in its parent (a JobSet or LeaderWorkerSet), read from the pod's labels.

    It consists of the parent's kind and name, and of the part of the parent to which the pod belongs: in a JobSet the
    replicated Job (``stage``) and the number of the Job in it; in a LeaderWorkerSet the replica, and in this the leader
    or the workers (``stage``).
    """

    kind: str
    """A key of ``PARENTS``."""

    parent: str
    """The name of the parent, i.e. of the JobSet or LeaderWorkerSet."""

    stage: str
    """The name of its stage: that of a JobSet's replicated Job; ``LEADER`` or ``WORKERS`` of a LeaderWorkerSet."""

    replica: str = ""
    """The index of its replica; "" if the kind has no replicas."""

    uid: str = ""
    """The UID of the parent; "" if the labels do not contain it."""

    job: int = 0
    """The index of the pod's Job in the replicated Job; 0 if there is only one."""


WHOLE = ""
"""The name of the `Stage` with the pods of all stages, for a parent of which all pods are one gang."""


@dataclass(frozen=True, slots=True)
class Parent:
    """An object of a kind in ``PARENTS``, i.e. a JobSet or LeaderWorkerSet, decoded.

    Its pods form stages: the replicated Jobs of a JobSet, or the leader and the workers of a LeaderWorkerSet. If the
    stages start one after the other, each is a gang of its own; else all together are one gang, in a
    LeaderWorkerSet one for each replica (see `gangs_of`).
    """

    kind: str
    key: Key
    uid: str
    stages: tuple[Stage, ...]
    schedulers: frozenset[str]

    gang_policy: str = ""
    """The value of its annotation ``gang-policy``; "" without one."""

    annotated: bool = False
    """True if the parent has any annotation of Serried. Its author then expects Serried to do something with it."""

    staged: str = ""
    """The field that makes its stages start one after the other, such as ``dependsOn``; "" if all pods start together.

    With such a field each stage is a gang of its own.
    """

    obstacle: str = ""
    """The field that makes pods of one stage start one after the other, so that they cannot be a gang; "" for none."""

    replicas: int | None = None
    """The number of replicas, each of which has all stages; None for a kind without replicas."""

    group: GroupKey | None = None
    """The group that one of its pod templates names; None if none does. With it, Serried creates no PodGroups."""

    jobs_ask: bool = False
    """True if a Job template in it has the annotation that makes each of these Jobs a gang of its own."""

    topology_key: str | None = None
    preference: Preference = NO_PREFERENCE

    wanted: frozenset[str] = frozenset()
    """The extended resources that its pods request, if an annotation names a level such as ``rack``; else empty.

    They decide which node label stands for the level: nodes with a GPU may have another one (`LevelTable.find_label`).
    """

    disruption: Disruption | None = None

    priority_class: str = ""
    """The PriorityClass that all pod templates name; "" if they differ."""

    problem: str = ""
    """A phrase about an invalid annotation; "" for none."""

    stray: str = ""
    """A phrase about an annotation or label of Serried on the parent that has no effect, for instance a misspelt one.

    "" if there is none. See `names.find_ineffective_key`.
    """

    spans: tuple[Span, ...] = ()
    """The ranks of the pods of each stage, in the order of the stages. A rank is a pod's number in the whole parent.

    Empty if the pods have labels with their ranks.
    """

    finished: bool = False
    """True if the parent has completed or failed."""

    suspended: bool = False
    """True while the parent's controller creates no pods because of ``spec.suspend``."""
    deleting: bool = False
    version: str = field(default="", compare=False)

    @property
    def asks(self) -> bool:
        """Return whether the author wants gangs: the annotation ``gang-policy`` is, for instance, JobSetAsGang."""
        return self.gang_policy == OWNER_KINDS[self.kind].gang_policy


Owner: TypeAlias = Job | Parent
"""An object whose pods may be gangs for which Serried creates PodGroups: a Job or a parent."""


def kind_of(owner: Owner) -> str:
    """Return the kind of an owner, such as ``Job``."""
    return owner.kind if isinstance(owner, Parent) else JOB


def api_group_of(owner: Owner) -> str:
    """Return the API group of an owner."""
    return OWNER_KINDS[kind_of(owner)].group


def api_version_of(owner: Owner) -> str:
    """Return the apiVersion of an owner."""
    return OWNER_KINDS[kind_of(owner)].api_version


def owner_key_of(owner: Owner) -> OwnerKey:
    """Return the key of an owner, which includes its kind."""
    return OwnerKey(kind_of(owner), owner.key)


def stages_of(parent: Parent) -> tuple[Stage, ...]:
    """Return the sets of pods of a parent, such as a JobSet, that start together. Each set is a `Stage`.

    If the stages start one after the other (``parent.staged``), the result is the parent's own stages, for instance
    the replicated Jobs of a JobSet. Else it is one stage with all pods. If the parent has replicas, as a
    LeaderWorkerSet has, the pods are those of one replica.
    """
    return parent.stages if parent.staged else (Stage(WHOLE, sum(stage.size for stage in parent.stages)),)


def gangs_of(parent: Parent) -> tuple[Stage, ...]:
    """Return the sets of pods of a parent that are gangs: those from `stages_of` with more than one pod.

    If the parent has replicas, as a LeaderWorkerSet has, each replica has these gangs.
    """
    return tuple(stage for stage in stages_of(parent) if stage.size > 1)


def is_gang_parent(parent: Parent, schedulers: Collection[str]) -> bool:
    """Return whether Serried creates a Workload and PodGroups for this parent.

    It does if the author asks for gangs, if there are 1 to MOST_TEMPLATES of them (`gangs_of`), and if all pods have
    one of the ``schedulers``, which Serried serves. It does not if the pods of a stage start one after the other
    (``parent.obstacle``), if the pod templates name a group, or if the parent has finished or is being deleted. The
    caller also has to check that none of its pods is bound or finished yet, as for Jobs (`job.is_gang_job`).
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
    """Return the reason why a parent is no gang, if its author has not asked for one.

    Return None if the author has asked for gangs, if the pods name a group, or if the parent's Jobs are gangs of their
    own. ``schedulers`` are the names of the schedulers that Serried serves.
    """
    if parent.asks or parent.group is not None or parent.jobs_ask:
        return None
    if parent.gang_policy == GangPolicy.NO_GANG.value:
        return NoGang(f"it has the annotation {GANG_POLICY}: {GangPolicy.NO_GANG}")
    foreign = sorted(parent.schedulers - frozenset(schedulers))
    if foreign:
        return explain_unserved(foreign[0], schedulers)
    if not gangs_of(parent):
        return NoGang("it runs one pod at a time")
    return NoGang("it does not ask for gangs", f"the annotation {GANG_POLICY}: {OWNER_KINDS[parent.kind].gang_policy}")


def explain_no_gang(owner: Owner, schedulers: Collection[str], gang_jobs: GangJobs) -> NoGang | None:
    """Return why an owner is no gang, by `find_no_gang` for a Job or `find_no_gang_parent`; None where these say None.

    ``gang_jobs`` is the setting for which Jobs are gangs, ``schedulers`` are the schedulers that Serried serves.
    """
    if isinstance(owner, Job):
        return find_no_gang(owner, schedulers, gang_jobs)
    return find_no_gang_parent(owner, schedulers)


def read_place(labels: Raw) -> Place | None:
    """Return a pod's position in its parent, by the pod's labels; None if it has no parent, or if labels are missing.

    ``labels`` are all labels of the pod.
    """
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
    """Decode a parent of this kind, a key of PARENTS.

    Required are name, uid and the fields that the kind's reader in `serried.api.layouts` needs.
    """
    return decode_or_malformed(kind, partial(_decode_parent, OWNER_KINDS[kind]), obj)


def _decode_parent(row: OwnerKind, obj: Raw) -> Parent:
    layout = LAYOUTS[row.kind](obj)
    annotations = read_annotations(obj)
    key = read_key(obj)
    pods = layout.pod_templates
    specs = [read_map(pod, "spec") for pod in pods]
    parts = [
        MetadataSection(JOB, read_map(template, "metadata"), "of a template of Jobs")
        for template in layout.job_templates
    ]
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
        wanted=read_extended_resources(specs) if names_levels(topology_key, preference) else frozenset(),
        disruption=DISRUPTION_MODES.get(read_text(annotations, DISRUPTION_MODE)),
        priority_class=_find_common(read_name(spec, "priorityClassName") for spec in specs),
        problem=find_problem(annotations, (row.gang_policy, GangPolicy.NO_GANG.value)),
        stray=find_ineffective_key([*list_metadata(row.kind, obj, pods), *parts]),
        spans=layout.spans,
        finished=layout.finished,
        suspended=layout.suspended,
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
    """Return the labels that Serried sets on the Workload and PodGroups that it creates for an owner."""
    return {MANAGED_BY: MANAGER, PARENT_UID if isinstance(owner, Parent) else JOB_UID: owner.uid}


def is_ours(item: Workload | PodGroup, owner: Owner) -> bool:
    """Return whether Serried created a Workload or PodGroup for this owner.

    The labels decide: an owner reference is no proof, because other controllers write them, too.
    """
    return all(item.labels.get(name) == value for name, value in labels_for(owner).items())
