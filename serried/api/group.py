"""PodGroups, Workloads, CompositePodGroups and their trees (KEP-6012), in every API group and version.

The extender's and the controller's caches decode them, for instance with `decode_pod_group`.

Names follow scheduling.k8s.io/v1beta1, for composite groups v1alpha3. How versions differ:

    v1beta1, v1alpha3 (1.37), Serried's CRDs   the same fields
    v1alpha2 (1.36)                            ``podGroupTemplateRef`` and the condition PodGroupScheduled instead
    v1alpha1 (1.35)                            PodGroups are parts of a Workload; the topology key is an annotation
    scheduling.x-k8s.io (scheduler-plugins)    ``minResources`` is ignored: the members' own requests are counted
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from sys import intern
from typing import ClassVar, NamedTuple, TypeAlias

from serried.api.kinds import PARENTS
from serried.api.level import (
    COMPOSITE_CONDITION,
    FALLBACK,
    FIRST_QUORUM,
    NATIVE_LEVELS,
    READY,
    V1ALPHA2_DISRUPTION,
)
from serried.api.names import (
    BARE_KINDS,
    COMPATIBLE_API,
    DISRUPTION_TARGET,
    PREEMPTED,
    Disruption,
    GroupKey,
    GroupKind,
    Key,
    Malformed,
    ObjectReference,
    OwnerRef,
    Raw,
    composite_api_version,
    decode_or_malformed,
    find_ineffective_key,
    is_deleting,
    list_metadata,
    read_device_claims,
    read_int,
    read_key,
    read_labels,
    read_map,
    read_name,
    read_objects,
    read_owner_key,
    read_owner_uid,
    read_owners,
    read_required,
    read_required_topology,
    read_text,
    read_texts,
    read_time,
    read_uid,
    read_version,
)
from serried.api.preference import NO_PREFERENCE, Preference, read_levels, read_preference
from serried.api.priority import PreemptionPolicy, read_preemption
from serried.api.selectors import Labels


@dataclass(frozen=True, slots=True)
class FirstQuorum:
    """The time that decides a waiting gang's place in the queue, as Serried has written it to the gang's object.

    It survives a restart of Serried, and pods that are deleted and created again. Once a member is bound, Serried
    removes it. It is the condition `level.FIRST_QUORUM`; times are in seconds since 1970.
    """

    since: int
    """The time at which minCount members existed for the first time. Gangs of equal priority are ordered by it."""

    lost: int | None = None
    """The time since which fewer than minCount members exist, in seconds since 1970; None while the quorum exists."""


@dataclass(frozen=True, slots=True)
class Composite:
    """A CompositePodGroup. Fields without a docstring have the same meaning as in `PodGroup`."""

    key: Key
    uid: str

    min_group_count: int | None
    """The number of child groups that must be placed together; None for policy basic."""

    topology_key: str | None = None

    parent: str | None = None
    """The name of the parent CompositePodGroup; None for the root of a tree."""

    priority_class: str = ""
    priority: int | None = None
    preemption: PreemptionPolicy | None = None
    owners: tuple[OwnerRef, ...] = ()
    deleting: bool = False
    generation: int = 0
    version: str = ""
    scheduled: bool = False
    condition: tuple[str, str, str] | None = None
    ready: tuple[str, str, str] | None = None
    disruption: Disruption = Disruption.SINGLE
    api: str = ""

    preempted: int | None = None
    """The time at which all its members were preempted together; None if they were not. See `PodGroup.preempted`."""

    first_quorum: FirstQuorum | None = None


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf of a tree: a PodGroup below a CompositePodGroup, or a single PodGroup as a tree of its own.

    ``topology_key``, ``preference`` and ``disruption`` are those of the `PodGroup`. ``below`` is empty: a leaf has no
    groups below it.
    """

    name: str
    """The PodGroup's name; "" if this one PodGroup is the whole tree."""

    need: int
    """The number of members that must be placed (minCount); 1 for policy basic."""

    topology_key: str | None = None
    preference: Preference = NO_PREFERENCE
    disruption: Disruption = Disruption.SINGLE
    below: ClassVar[tuple["Tree", ...]] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """A CompositePodGroup as an inner node of a tree. ``below`` are its child groups, in their order."""

    name: str

    need: int
    """The number of child groups that must be placed (minGroupCount); 1 for policy basic."""

    topology_key: str | None
    below: tuple["Tree", ...]
    disruption: Disruption = Disruption.SINGLE


Tree: TypeAlias = Branch | Leaf


def list_leaves(tree: Tree) -> Iterator[Leaf]:
    """Yield the PodGroups of a tree, from the first to the last: for a tree of one PodGroup, that one."""
    if isinstance(tree, Leaf):
        yield tree
    else:
        for each in tree.below:
            yield from list_leaves(each)


def list_branches(tree: Tree) -> Iterator[Branch]:
    """Yield the CompositePodGroups of a tree, each before the groups below it; nothing for a tree of one PodGroup."""
    if isinstance(tree, Branch):
        yield tree
        for each in tree.below:
            yield from list_branches(each)


def find_disrupted(tree: Tree, leaf: str) -> frozenset[str]:
    """Return the names of the PodGroups whose members must be evicted together with a member of PodGroup ``leaf``.

    They are all PodGroups in the subtree of `find_disruption_root`, including ``leaf``. Empty if a member of ``leaf``
    may be evicted alone. Upstream: getHighestAllAncestor (pkg/scheduler/framework/preemption/types.go).
    """
    whole = find_disruption_root(tree, leaf)
    return frozenset() if whole is None else frozenset(each.name for each in list_leaves(whole))


def find_disruption_root(tree: Tree, leaf: str) -> Tree | None:
    """Return the group whose members are all evicted together if one member of PodGroup ``leaf`` is evicted.

    That is the topmost group with disruptionMode ``all`` on the path from the root to ``leaf``. Return None if there
    is none: members of ``leaf`` may be evicted one by one.
    """
    return next((each for each in find_path(tree, leaf) if each.disruption is Disruption.ALL), None)


def find_path(tree: Tree, leaf: str) -> tuple[Tree, ...]:
    """Return the groups from the root of a tree down to the PodGroup named ``leaf``, both included.

    Return () if the tree has no such PodGroup.
    """
    if isinstance(tree, Leaf):
        return (tree,) if tree.name == leaf else ()
    return next(((tree, *path) for each in tree.below if (path := find_path(each, leaf))), ())


def list_groups(tree: Tree) -> Iterator[Tree]:
    """Yield all groups of a tree: its CompositePodGroups, the root first, then its PodGroups."""
    yield from list_branches(tree)
    yield from list_leaves(tree)


@dataclass(frozen=True, slots=True)
class Policy:
    """The schedulingPolicy of a group: ``gang`` with ``min_count`` members, or ``basic`` if ``min_count`` is None."""

    min_count: int | None

    @property
    def is_gang(self) -> bool:
        """Return whether the policy is ``gang``: at least ``min_count`` members are scheduled together, or none."""
        return self.min_count is not None


PROTECTION = "scheduling.k8s.io/podgroup-protection"
"""Finalizer that the API server adds to PodGroups. kube-controller-manager removes it, if its feature gate is on."""

BASIC = Policy(None)


class IgnoredTopology(NamedTuple):
    """A required topology key that Serried ignores, so that the members may be placed in several domains.

    For instance, Kueue has chosen hosts in more than one domain.
    """

    key: str
    why: str
    """The reason for users, as a phrase without a full stop."""


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A group of pods for which Serried makes one plan.

    Usually it is a PodGroup object. There are three other cases:

    - Kind ``WORKLOAD``: an entry of a Workload (v1alpha1). It has the UID and the owners of the Workload.
    - Kind ``COUNTED``: the pods of one pod group of Kueue, for which no object exists. Its UID is its key.
    - With ``branch``: a whole tree. It has the UID and the topology key of the CompositePodGroup at the root.
      ``policy.min_count`` is the minimum number of members that the tree needs.

    ``topology_key``: ``schedulingConstraints.topology[0].key``, or else the annotation; None without a required domain.
    ``workload``, ``template``: the names in ``spec.workloadRef``.
    ``priority``: None until the API server, or for Serried's own CRD the controller, has resolved ``priority_class``.
    Serried may schedule the group with another priority: see `cluster.priorities`.
    ``preemption``: ``preemptionPolicy``; None in PodGroups of Serried's own CRD, which lacks the field.
    ``scheduled``: True if the condition PodGroupInitiallyScheduled is True.
    ``condition``: (status, reason, message) of the condition PodGroupInitiallyScheduled; None without it.
    ``ready``: (status, reason, message) of the condition Ready, which only Serried's CRDs have; None without it.
    ``timeout``: the maximum number of seconds for which a PodGroup of scheduler-plugins waits in its bind calls.
    ``parent``: the name of the parent CompositePodGroup.
    ``tree``: ``branch`` if it is a whole tree, else this PodGroup as a tree of one leaf.
    ``device_claims``: where the device claims that its members share come from (`names.read_device_claims`).
    """

    key: GroupKey
    uid: str
    policy: Policy
    topology_key: str | None = None
    workload: str | None = None
    template: str | None = None
    priority_class: str = ""
    priority: int | None = None
    preemption: PreemptionPolicy | None = None
    owners: tuple[OwnerRef, ...] = ()
    finalizers: tuple[str, ...] = ()
    labels: Labels = field(default_factory=dict)
    deleting: bool = False
    generation: int = 0
    version: str = ""
    scheduled: bool = False
    condition: tuple[str, str, str] | None = None
    ready: tuple[str, str, str] | None = None
    timeout: float = math.inf
    preference: Preference = NO_PREFERENCE
    parent: str | None = None
    branch: Branch | None = None
    device_claims: tuple[str, ...] = ()
    disruption: Disruption = Disruption.SINGLE
    """The disruptionMode. It means nothing if this is a whole tree: there each group in ``tree`` has its own."""

    api: str = ""
    """The apiVersion if it is a PodGroup of Serried's CRD in a cluster that uses scheduling.k8s.io by now; else "".

    See `level.ApiLevel.second_level`.
    """

    constrained: bool = False
    """True if ``topology_key`` is from the field ``schedulingConstraints``, False if it is from an annotation.

    kube-scheduler's own gang scheduling obeys the field, but does not know the annotation.
    """

    told_natively: bool = False
    """True if kube-scheduler has written the group's scheduling condition. So its own gang scheduling is on."""

    preempted: int | None = None
    """The time at which all members of the group were preempted together, in seconds since 1970; None if never.

    Read from the group's condition DisruptionTarget; 0 if the condition has no time.
    """

    ignored: IgnoredTopology | None = None
    """The topology key in the object that Serried ignores, with the reason; ``topology_key`` is None then.

    None if the object's key is in ``topology_key``, or if it has none. `Store.ignore_topology` sets it.
    """

    first_quorum: FirstQuorum | None = None
    """The time that decides the group's place in the queue, from its condition FirstQuorum; None without the condition.

    Serried removes the condition when the first member is bound.
    """

    stray: str = ""
    """A phrase about an annotation or label of Serried on the object that has no effect, for instance a misspelt one.

    "" if there is none. See `names.find_ineffective_key`.
    """

    tree: Tree = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", self.branch or self.leaf())

    @property
    def schedules_individually(self) -> bool:
        """Return whether each member is bound as soon as it fits, without regard to the other members.

        That is so for policy basic without a topology key. `waits_for_gated_members` is the one exception.
        """
        return not self.policy.is_gang and self.topology_key is None

    @property
    def named_topology(self) -> str | None:
        """The required topology key in the object, even if Serried ignores it (`ignored`); None if there is none."""
        return self.topology_key if self.ignored is None else self.ignored.key

    @property
    def waits_for_gated_members(self) -> bool:
        """Return whether all members of a basic group wait while one of them has a scheduling gate.

        kube-scheduler 1.37 does so, because it queues a PodGroup as one entity
        (pkg/scheduler/backend/queue/scheduling_queue.go: runPreEnqueuePlugins); Serried does the same. It is False for
        gangs, which wait in any case, and for groups of scheduler-plugins and v1alpha1, which are queued pod by pod.
        """
        return not self.policy.is_gang and self.key.kind not in BARE_KINDS

    def leaf(self, name: str = "") -> Leaf:
        """Return this PodGroup as the leaf ``name`` of a tree. ``name`` is "" if the PodGroup is the whole tree."""
        return Leaf(name, self.policy.min_count or 1, self.topology_key, self.preference, self.disruption)

    def find_disrupted(self, part: str) -> frozenset[str]:
        """Return the names of the PodGroups whose members must be evicted together with a member of PodGroup ``part``.

        Empty if a member of ``part`` may be evicted alone. ``part`` is the name of the member's PodGroup within the
        tree, "" if one PodGroup is the whole tree (`cluster.members.Members.leaf_of`).
        """
        return find_disrupted(self.tree, part)

    def list_path_keys(self, part: str) -> list[GroupKey]:
        """Return the keys of the groups in the tree from the root down to PodGroup ``part``, both included.

        ``part`` is "" if one PodGroup is the whole tree.
        """
        return [self.key_of(tree) for tree in find_path(self.tree, part)]

    def key_of(self, tree: Tree) -> GroupKey:
        """Return the key of ``tree``, which is this group's tree or a group in it."""
        if isinstance(tree, Branch):
            return GroupKey(self.key.namespace, tree.name, GroupKind.COMPOSITE)
        return self.key.leaf(tree.name)

    def object_reference(self, api_version: str, composite: str = "") -> ObjectReference:
        """Return a reference to the group's object, for events: a PodGroup, a Workload, or the root of the tree.

        The fields of the reference are empty for a pod group of Kueue, which has no object. ``api_version`` is that of
        PodGroups and Workloads in this cluster, ``composite`` that of CompositePodGroups ("" for
        `names.composite_api_version`).
        """
        version = self.api or api_version
        if self.key.kind is GroupKind.COMPOSITE:
            found = "" if self.api else composite
            return ObjectReference(found or composite_api_version(version), "CompositePodGroup", self.key.name)
        if self.key.kind is GroupKind.COMPATIBLE:
            return ObjectReference(COMPATIBLE_API, "PodGroup", self.key.name)
        if self.key.kind is GroupKind.COUNTED:
            return ObjectReference("", "", "")
        kind = "Workload" if self.key.kind is GroupKind.WORKLOAD else "PodGroup"
        return ObjectReference(version, kind, self.key.name)


@dataclass(frozen=True, slots=True)
class SharedClaim:
    """A ResourceClaim that the pods of a group share: an existing one (``claim``), or a new one from ``template``."""

    name: str
    claim: str = ""
    template: str = ""


@dataclass(frozen=True, slots=True)
class Template:
    """A PodGroupTemplate of a Workload, or an entry of ``spec.podGroups`` (v1alpha1). None or empty fields are not set.

    The fields are those of `PodGroup`; ``claims`` are the device claims that the pods of one group share.
    """

    name: str
    policy: Policy
    topology_key: str | None = None
    disruption: Disruption | None = None
    priority_class: str = ""
    priority: int | None = None
    preemption: PreemptionPolicy | None = None
    claims: tuple[SharedClaim, ...] = ()
    preference: Preference = NO_PREFERENCE


@dataclass(frozen=True, slots=True)
class Workload:
    """A Workload: the templates from which PodGroups are created, and the owner (such as a Job) that they are for."""

    key: Key
    uid: str

    job: str | None
    """The name of the Job in its controllerRef; None if controllerRef names another kind."""

    templates: tuple[Template, ...]
    owners: tuple[OwnerRef, ...] = ()
    labels: Labels = field(default_factory=dict)
    deleting: bool = False
    version: str = ""

    inline: bool = False
    """True if ``templates`` are the groups themselves, so that no PodGroup objects exist (v1alpha1)."""

    parent: tuple[str, str] | None = None
    """Kind and name in its controllerRef; None if controllerRef names a Job or is absent.

    The kind is one of `kinds.PARENTS`, or another one with its API group, such as ``TrainJob.trainer.kubeflow.org``.
    """

    api: str = ""
    """The apiVersion if it is a Workload of Serried's CRD in a cluster that uses scheduling.k8s.io by now; else ""."""


class Delegation(NamedTuple):
    """A Job's reference to the template from which its PodGroup is made: one in the Workload of the Job's controller.

    For instance a TrainJob has a Workload with one template for each of its Jobs.
    """

    parent: tuple[str, str]
    """Kind and name of the Job's controller, written as in `Workload.parent`."""

    template: str
    """The name of the template in the Workload; "" for the first template."""


_PHASES_AFTER_QUORUM = frozenset({"Running", "Finished", "Failed"})
"""The phases of a PodGroup of scheduler-plugins once minMember pods have been running: it counts as scheduled."""


def decode_compatible_group(obj: object) -> PodGroup | Malformed:
    """Decode a PodGroup of scheduler-plugins; name and uid are required."""
    return decode_or_malformed("PodGroup", _decode, obj)


def _decode(obj: Raw) -> PodGroup:
    spec = read_map(obj, "spec")
    count = read_int(spec, "minMember")
    seconds = read_int(spec, "scheduleTimeoutSeconds")
    return PodGroup(
        key=GroupKey(*read_key(obj), GroupKind.COMPATIBLE),
        uid=read_uid(obj),
        # Without minMember the coscheduling plugin lets every member pass by itself.
        policy=Policy(count) if count > 0 else BASIC,
        topology_key=read_required_topology(read_map(obj, "metadata")),
        owners=read_owners(obj),
        deleting=is_deleting(obj),
        version=read_version(obj),
        preference=read_preference(obj),
        stray=find_ineffective_key(list_metadata("PodGroup", obj)),
        scheduled=read_text(read_map(obj, "status"), "phase") in _PHASES_AFTER_QUORUM,
        timeout=seconds if seconds > 0 else math.inf,
    )


_DISRUPTION_WORDS = {word: mode for mode, word in V1ALPHA2_DISRUPTION.items()}
_PARENTS = {(row.group, row.kind): row.kind for row in PARENTS.values()}
_MANAGER_PREFIX = "serried"
_CONDITIONS = frozenset(level.condition for level in (*NATIVE_LEVELS, FALLBACK))
_MANAGED = frozenset(f'k:{{"type":"{condition}"}}' for condition in _CONDITIONS)
_MANAGED_DISRUPTION = f'k:{{"type":"{DISRUPTION_TARGET}"}}'


def decode_pod_group(obj: object) -> PodGroup | Malformed:
    """Decode a PodGroup; name, uid and exactly one scheduling policy are required."""
    return decode_or_malformed("PodGroup", _decode_pod_group, obj)


def decode_composite(obj: object) -> Composite | Malformed:
    """Decode a CompositePodGroup; name, uid and exactly one scheduling policy are required."""
    return decode_or_malformed("CompositePodGroup", _decode_composite, obj)


def decode_workload(obj: object) -> Workload | Malformed:
    """Decode a Workload; name and uid are required. Composite templates are ignored."""
    return decode_or_malformed("Workload", _decode_workload, obj)


def _decode_pod_group(obj: Raw) -> PodGroup:
    metadata = read_map(obj, "metadata")
    spec = read_map(obj, "spec")
    workload, template = _read_reference(spec)
    condition = _read_condition(read_map(obj, "status"), *_CONDITIONS)
    key = read_topology_key(spec)
    return PodGroup(
        key=GroupKey(*read_owner_key(obj)),
        uid=read_owner_uid(obj),
        policy=read_policy(spec),
        topology_key=key or read_required_topology(metadata),
        constrained=key is not None,
        told_natively=_has_native_condition(metadata),
        workload=workload,
        template=template,
        priority_class=read_name(spec, "priorityClassName"),
        priority=None if spec.get("priority") is None else read_int(spec, "priority"),
        preemption=read_preemption(spec),
        owners=read_owners(obj),
        finalizers=read_texts(metadata, "finalizers"),
        labels=read_labels(metadata, "labels"),
        deleting=is_deleting(obj),
        generation=read_int(metadata, "generation"),
        version=read_version(obj),
        scheduled=condition is not None and condition[0] == "True",
        condition=condition,
        ready=_read_condition(read_map(obj, "status"), READY),
        preference=read_preference(obj),
        stray=find_ineffective_key(list_metadata("PodGroup", obj)),
        parent=read_name(spec, "parentCompositePodGroupName") or None,
        device_claims=read_device_claims(spec),
        disruption=read_disruption(spec) or Disruption.SINGLE,
        preempted=_read_preemption_time(obj),
        first_quorum=_read_first_quorum(read_map(obj, "status")),
    )


def _has_native_condition(metadata: Raw) -> bool:
    """Return whether a field manager other than Serried has written the group's scheduling condition."""
    return any(
        not read_text(entry, "manager").startswith(_MANAGER_PREFIX) and not _MANAGED.isdisjoint(_read_managed(entry))
        for entry in read_objects(metadata, "managedFields")
    )


def _read_managed(entry: Raw) -> Raw:
    """Return the status conditions that the field manager of this managedFields entry has written.

    The keys are those of managedFields, for instance ``k:{"type":"Ready"}``.
    """
    return read_map(read_map(read_map(entry, "fieldsV1"), "f:status"), "f:conditions")


def _decode_composite(obj: Raw) -> Composite:
    metadata = read_map(obj, "metadata")
    spec = read_map(obj, "spec")
    condition = _read_condition(read_map(obj, "status"), COMPOSITE_CONDITION)
    return Composite(
        key=read_owner_key(obj),
        uid=read_owner_uid(obj),
        min_group_count=_read_count(spec, "schedulingPolicy", "minGroupCount"),
        topology_key=read_topology_key(spec) or read_required_topology(metadata),
        parent=read_name(spec, "parentCompositePodGroupName") or None,
        priority_class=read_name(spec, "priorityClassName"),
        priority=None if spec.get("priority") is None else read_int(spec, "priority"),
        preemption=read_preemption(spec),
        owners=read_owners(obj),
        deleting=is_deleting(obj),
        generation=read_int(metadata, "generation"),
        version=read_version(obj),
        scheduled=condition is not None and condition[0] == "True",
        condition=condition,
        ready=_read_condition(read_map(obj, "status"), READY),
        disruption=read_disruption(spec) or Disruption.SINGLE,
        preempted=_read_preemption_time(obj),
        first_quorum=_read_first_quorum(read_map(obj, "status")),
    )


def _decode_workload(obj: Raw) -> Workload:
    spec = read_map(obj, "spec")
    inline = read_objects(spec, "podGroups")
    return Workload(
        key=read_owner_key(obj),
        uid=read_owner_uid(obj),
        job=_read_job(spec),
        parent=_read_parent(spec),
        templates=_read_inline_templates(obj, inline)
        or tuple(_read_template(raw) for raw in read_objects(spec, "podGroupTemplates")),
        inline=bool(inline),
        owners=read_owners(obj),
        labels=read_labels(read_map(obj, "metadata"), "labels"),
        deleting=is_deleting(obj),
        version=read_version(obj),
    )


def read_policy(spec: Raw, field: str = "schedulingPolicy") -> Policy:
    """Return the scheduling policy at ``field`` of a PodGroup's spec or a template.

    Raises ValueError if it is not exactly one of ``basic`` and ``gang``, or if a gang's minCount is less than 1.
    """
    count = _read_count(spec, field, "minCount")
    return BASIC if count is None else Policy(count)


def _read_count(spec: Raw, field: str, name: str) -> int | None:
    policy = read_map(spec, field)
    basic = policy.get("basic")
    gang = policy.get("gang")
    if (basic is None) == (gang is None):
        raise ValueError(f"{field} is not exactly one of basic and gang")
    if gang is None:
        return None
    count = read_int(read_map(policy, "gang"), name)
    if count < 1:
        raise ValueError(f"{name} is less than 1")
    return count


def read_topology_key(spec: Raw) -> str | None:
    """Return the key of the first topology constraint in ``schedulingConstraints``; None if there is none."""
    constraints = read_objects(read_map(spec, "schedulingConstraints"), "topology")
    return read_name(constraints[0], "key") or None if constraints else None


def _read_reference(spec: Raw) -> tuple[str | None, str | None]:
    """Return the names of the Workload and of its template from which the PodGroup was created; None for no name."""
    if reference := read_map(spec, "workloadRef"):
        return read_name(reference, "workloadName") or None, read_name(reference, "templateName") or None
    older = read_map(read_map(spec, "podGroupTemplateRef"), "workload")
    return read_name(older, "workloadName") or None, read_name(older, "podGroupTemplateName") or None


def _read_inline_templates(obj: Raw, groups: Sequence[Raw]) -> tuple[Template, ...]:
    key = read_required_topology(read_map(obj, "metadata"))
    preference = read_preference(obj)
    return tuple(
        Template(read_required(raw, "name"), read_policy(raw, "policy"), key, preference=preference) for raw in groups
    )


def _read_template(raw: Raw) -> Template:
    return Template(
        name=intern(read_required(raw, "name")),
        policy=read_policy(raw),
        topology_key=read_topology_key(raw),
        disruption=read_disruption(raw),
        priority_class=read_text(raw, "priorityClassName"),
        priority=None if raw.get("priority") is None else read_int(raw, "priority"),
        preemption=read_preemption(raw),
        claims=read_claims(raw),
        preference=Preference(levels) if (levels := read_levels(raw)) else NO_PREFERENCE,
    )


def read_disruption(raw: Raw) -> Disruption | None:
    """Return the ``disruptionMode``: a string in v1alpha2, else a union of two empty objects. None if it is not set."""
    mode = raw.get("disruptionMode")
    if isinstance(mode, str):
        return _DISRUPTION_WORDS.get(mode)
    modes = read_map(raw, "disruptionMode")
    return next((each for each in Disruption if modes.get(each.value) is not None), None)


def read_claims(raw: Raw) -> tuple[SharedClaim, ...]:
    """Return the ``resourceClaims`` of a template, of a PodGroup's spec or of a Job's ``spec.scheduling``."""
    return tuple(_read_claim(claim) for claim in read_objects(raw, "resourceClaims"))


def _read_claim(raw: Raw) -> SharedClaim:
    return SharedClaim(
        name=read_required(raw, "name"),
        claim=read_text(raw, "resourceClaimName"),
        template=read_text(raw, "resourceClaimTemplateName"),
    )


def _read_job(spec: Raw) -> str | None:
    reference = read_map(spec, "controllerRef")
    if read_text(reference, "apiGroup") != "batch" or read_text(reference, "kind") != "Job":
        return None
    return read_name(reference, "name") or None


def _read_parent(spec: Raw) -> tuple[str, str] | None:
    reference = read_map(spec, "controllerRef")
    name = read_name(reference, "name")
    if not name or _read_job(spec) is not None:
        return None
    return name_controller_kind(read_text(reference, "apiGroup"), read_text(reference, "kind")), name


def name_controller_kind(group: str, kind: str) -> str:
    """Return the kind of a Workload's controller as `Workload.parent` has it.

    That is the kind alone if it is in `kinds.PARENTS`, such as ``JobSet``. For others the API ``group`` is added, such
    as ``TrainJob.trainer.kubeflow.org``.
    """
    return _PARENTS.get((group, kind)) or intern(f"{kind}.{group}")


def _read_preemption_time(obj: Raw) -> int | None:
    for raw in read_objects(read_map(obj, "status"), "conditions"):
        said = read_text(raw, "type"), read_text(raw, "status"), read_text(raw, "reason")
        if said == (DISRUPTION_TARGET, "True", PREEMPTED):
            return _read_disruption_written(read_map(obj, "metadata")) or read_time(raw, "lastTransitionTime") or 0
    return None


def _read_disruption_written(metadata: Raw) -> int | None:
    """Return when Serried wrote the condition DisruptionTarget, in seconds since 1970; None if Serried did not.

    The time is from managedFields, so by the API server's clock. The time in the condition itself is by the extender's
    clock, which may be wrong or may have been adjusted since.
    """
    for entry in read_objects(metadata, "managedFields"):
        if read_text(entry, "manager").startswith(_MANAGER_PREFIX) and _MANAGED_DISRUPTION in _read_managed(entry):
            return read_time(entry, "time")
    return None


def _read_condition(status: Raw, *types: str) -> tuple[str, str, str] | None:
    for raw in read_objects(status, "conditions"):
        if read_text(raw, "type") in types:
            return read_name(raw, "status"), read_name(raw, "reason"), read_text(raw, "message")
    return None


def _read_first_quorum(status: Raw) -> FirstQuorum | None:
    for raw in read_objects(status, "conditions"):
        if read_text(raw, "type") == FIRST_QUORUM:
            since, lost = read_time(raw, "message"), read_time(raw, "lastTransitionTime")
            stands = read_text(raw, "status") == "True"
            return None if since is None or lost is None else FirstQuorum(since, None if stands else lost)
    return None
