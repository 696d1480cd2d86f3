"""PodGroups, Workloads, CompositePodGroups and their trees (KEP-6012), at every level and version.

The vocabulary is that of scheduling.k8s.io/v1beta1, for composite groups v1alpha3. Fields are the same in v1beta1,
v1alpha3 (1.37), v1alpha2 (1.36) and our own group, but for v1alpha2's ``podGroupTemplateRef`` and PodGroupScheduled. In
v1alpha1 (1.35) Workloads contain their PodGroups, and the topology key is an annotation. Of PodGroups of
scheduler-plugins (scheduling.x-k8s.io/v1alpha1) neither ``minResources`` nor ``status`` is read: every member's
requests are counted, and the pods are watched.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from sys import intern
from typing import ClassVar, NamedTuple, TypeAlias

from serried.api.kinds import PARENTS
from serried.api.level import COMPOSITE_CONDITION, FALLBACK, NATIVE_LEVELS, READY, V1ALPHA2_DISRUPTION
from serried.api.names import (
    BARE_KINDS,
    COMPATIBLE_API,
    DISRUPTION_TARGET,
    PREEMPTED,
    Disruption,
    GroupKey,
    GroupKind,
    Holder,
    Key,
    Malformed,
    OwnerRef,
    Raw,
    attempt,
    composite_api_version,
    find_stray,
    is_deleting,
    list_parts,
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
class Composite:
    """A CompositePodGroup. Fields without a comment are as in PodGroup."""

    key: Key
    uid: str

    min_group_count: int | None
    """How many of the groups below are placed together; None for policy basic."""

    topology_key: str | None = None

    parent: str | None = None
    """The name of the CompositePodGroup above it."""

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
    """As in `group.PodGroup`."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A PodGroup in a tree, or one that is a tree by itself."""

    name: str
    """"" where it is the whole tree."""

    need: int
    """How many members must be placed before it stands; one for policy basic."""

    topology_key: str | None = None
    preference: Preference = NO_PREFERENCE
    disruption: Disruption = Disruption.SINGLE
    below: ClassVar[tuple["Tree", ...]] = ()


@dataclass(frozen=True, slots=True)
class Branch:
    """A CompositePodGroup in a tree."""

    name: str

    need: int
    """How many of the groups below must stand before it does; one for policy basic."""

    topology_key: str | None
    below: tuple["Tree", ...]
    disruption: Disruption = Disruption.SINGLE


Tree: TypeAlias = Branch | Leaf


def list_leaves(tree: Tree) -> Iterator[Leaf]:
    """The PodGroups of a tree, in its order."""
    if isinstance(tree, Leaf):
        yield tree
    else:
        for each in tree.below:
            yield from list_leaves(each)


def list_branches(tree: Tree) -> Iterator[Branch]:
    """The CompositePodGroups of a tree, the root first."""
    if isinstance(tree, Branch):
        yield tree
        for each in tree.below:
            yield from list_branches(each)


def find_disrupted(tree: Tree, leaf: str) -> frozenset[str]:
    """The PodGroups below the highest group of disruption mode ``all`` that has this one below it, or is it.

    Empty if there is no such group. Upstream's getHighestAllAncestor (pkg/scheduler/framework/preemption/types.go).
    """
    whole = find_whole(tree, leaf)
    return frozenset() if whole is None else frozenset(each.name for each in list_leaves(whole))


def find_whole(tree: Tree, leaf: str) -> Tree | None:
    """The highest group of disruption mode ``all`` that has this PodGroup below it, or is it; None if there is none."""
    return next((each for each in find_path(tree, leaf) if each.disruption is Disruption.ALL), None)


def find_path(tree: Tree, leaf: str) -> tuple[Tree, ...]:
    """The groups from the root to a PodGroup, itself the last one; empty if the tree does not have it."""
    if isinstance(tree, Leaf):
        return (tree,) if tree.name == leaf else ()
    return next(((tree, *path) for each in tree.below if (path := find_path(each, leaf))), ())


def list_groups(tree: Tree) -> Iterator[Tree]:
    """All groups of a tree: its CompositePodGroups, the root first, then its PodGroups."""
    yield from list_branches(tree)
    yield from list_leaves(tree)


@dataclass(frozen=True, slots=True)
class Policy:
    """SchedulingPolicy: gang with ``min_count`` members, or basic when ``min_count`` is None."""

    min_count: int | None

    @property
    def is_gang(self) -> bool:
        """Whether all-or-nothing holds."""
        return self.min_count is not None


PROTECTION = "scheduling.k8s.io/podgroup-protection"
"""Finalizer that the API server's admission stamps, and that kube-controller-manager removes where its gate is on."""

BASIC = Policy(None)


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A PodGroup. ``topology_key`` is ``schedulingConstraints.topology[0].key``, None without constraint.

    One whose kind is ``WORKLOAD`` is no object but part of its Workload, and has that one's UID and owners.

    ``timeout`` is the longest that one of scheduler-plugins may wait at bind, in seconds.

    ``parent`` is the CompositePodGroup above it. With a ``branch`` it is no object but the whole tree of the
    CompositePodGroup at the root, whose UID and constraint it has; ``policy`` counts the members that the tree takes at
    least. ``tree`` is what is planned as one: that branch, or the PodGroup alone as a tree of one leaf.

    ``device_claims`` are the names of its claims of devices, which its members may share.
    ``priority`` is None until admission (native) or our controller (fallback) has resolved ``priority_class``; which
    priority counts, `cluster.priorities` says. ``preemption`` is ``preemptionPolicy``, which the fallback lacks.
    ``workload`` and ``template`` are ``spec.workloadRef``. ``scheduled`` is whether the condition
    PodGroupInitiallyScheduled is True already; ``condition`` is that condition's (status, reason, message), ``ready``
    the same of the condition Ready, which only our own kinds have.
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
    """Of a whole tree it says nothing: there each group has its own."""

    api: str = ""
    """Its apiVersion if it is read beside the level in use (`ApiLevel.beside`); "" at that level itself."""

    constrained: bool = False
    """Whether ``schedulingConstraints`` say the key: kube-scheduler's own gang scheduling tries its domains in turn."""

    told_natively: bool = False
    """Whether kube-scheduler itself has written how the group stands: so its own gang scheduling is on."""

    preempted: int | None = None
    """Since when it says that it is preempted as a whole (condition DisruptionTarget), in seconds since 1970."""

    stray: str = ""
    """Which annotation or label of ours on it has no effect, a phrase (`names.find_stray`)."""

    tree: Tree = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", self.branch or self.leaf())

    @property
    def goes_one_by_one(self) -> bool:
        """Whether nothing but a scheduling gate ever keeps its members from each other: policy basic and no key."""
        return not self.policy.is_gang and self.topology_key is None

    @property
    def gates_together(self) -> bool:
        """Whether a basic group waits as a whole for the gate of one member, as a PodGroup natively does (1.37).

        Upstream queues a PodGroup as one entity (pkg/scheduler/backend/queue/scheduling_queue.go:
        runPreEnqueuePlugins). Groups of scheduler-plugins and of v1alpha1 are queued pod by pod.
        """
        return not self.policy.is_gang and self.key.kind not in BARE_KINDS

    def leaf(self, name: str = "") -> Leaf:
        """The PodGroup as a leaf of a tree in which it has this name."""
        return Leaf(name, self.policy.min_count or 1, self.topology_key, self.preference, self.disruption)

    def find_disrupted(self, part: str) -> frozenset[str]:
        """The PodGroups whose members are disrupted together with one of ``part``; empty if they go one by one.

        ``part`` is the member's PodGroup within the tree (`cluster.members.Members.leaf_of`).
        """
        return find_disrupted(self.tree, part)

    def list_path(self, part: str) -> list[GroupKey]:
        """The PodGroup ``part`` of the tree and the groups above it, the root first."""
        return [self.key_of(tree) for tree in find_path(self.tree, part)]

    def key_of(self, tree: Tree) -> GroupKey:
        """Which group one of the tree is."""
        if isinstance(tree, Branch):
            return GroupKey(self.key.namespace, tree.name, GroupKind.COMPOSITE)
        return self.key.leaf(tree.name)

    def holder(self, api_version: str, composite: str = "") -> Holder:
        """The object that has this group's UID: itself, or the Workload that it is part of, or the root of its tree.

        ``api_version`` is that of the level in use, ``composite`` that of its CompositePodGroups, if it was found.
        """
        version = self.api or api_version
        if self.key.kind is GroupKind.COMPOSITE:
            found = "" if self.api else composite
            return Holder(found or composite_api_version(version), "CompositePodGroup", self.key.name)
        if self.key.kind is GroupKind.COMPATIBLE:
            return Holder(COMPATIBLE_API, "PodGroup", self.key.name)
        kind = "Workload" if self.key.kind is GroupKind.WORKLOAD else "PodGroup"
        return Holder(version, kind, self.key.name)


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaim that the pods of a group share: one that exists, or one to be made from a template."""

    name: str
    claim: str = ""
    template: str = ""


@dataclass(frozen=True, slots=True)
class Template:
    """One PodGroupTemplate of a Workload; what is None or empty is not said."""

    name: str
    policy: Policy
    topology_key: str | None = None
    disruption: Disruption | None = None
    priority_class: str = ""
    priority: int | None = None
    preemption: PreemptionPolicy | None = None
    claims: tuple[Claim, ...] = ()
    preference: Preference = NO_PREFERENCE


@dataclass(frozen=True, slots=True)
class Workload:
    """A Workload."""

    key: Key
    uid: str

    job: str | None
    """The Job name of its controllerRef; None if that refers to something else."""

    templates: tuple[Template, ...]
    owners: tuple[OwnerRef, ...] = ()
    labels: Labels = field(default_factory=dict)
    deleting: bool = False
    version: str = ""

    inline: bool = False
    """Whether its templates are the PodGroups themselves (v1alpha1)."""

    parent: tuple[str, str] | None = None
    """The kind and name of its controllerRef if that is no Job.

    The kind is one of `api.parent`, or else one with its API group, as ``TrainJob.trainer.kubeflow.org``.
    """

    api: str = ""
    """As `PodGroup.api`."""


class Delegation(NamedTuple):
    """What a Job says of its gang if that is a part of its controller's Workload."""

    parent: tuple[str, str]
    """The Job's controller, as `Workload.parent`."""

    template: str
    """The template of the Workload; "" for its first."""


_RAN = frozenset({"Running", "Finished", "Failed"})
"""The phases that the controller of scheduler-plugins writes, where it runs, once minMember pods have run."""


def decode_compatible_group(obj: object) -> PodGroup | Malformed:
    """A PodGroup of scheduler-plugins; name and uid are required."""
    return attempt("PodGroup", _decode, obj)


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
        stray=find_stray(list_parts("PodGroup", obj)),
        scheduled=read_text(read_map(obj, "status"), "phase") in _RAN,
        timeout=seconds if seconds > 0 else math.inf,
    )


_DISRUPTION_WORDS = {word: mode for mode, word in V1ALPHA2_DISRUPTION.items()}
_PARENTS = {(row.group, row.kind): row.kind for row in PARENTS.values()}
_OUR_MANAGERS = "serried"
_CONDITIONS = frozenset(level.condition for level in (*NATIVE_LEVELS, FALLBACK))
_MANAGED = frozenset(f'k:{{"type":"{condition}"}}' for condition in _CONDITIONS)
_MANAGED_DISRUPTION = f'k:{{"type":"{DISRUPTION_TARGET}"}}'


def decode_pod_group(obj: object) -> PodGroup | Malformed:
    """A PodGroup; name, uid and exactly one scheduling policy are required."""
    return attempt("PodGroup", _decode_pod_group, obj)


def decode_composite(obj: object) -> Composite | Malformed:
    """A CompositePodGroup; name, uid and exactly one scheduling policy are required."""
    return attempt("CompositePodGroup", _decode_composite, obj)


def decode_workload(obj: object) -> Workload | Malformed:
    """A Workload; name and uid are required. Composite templates are not read."""
    return attempt("Workload", _decode_workload, obj)


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
        told_natively=_is_told_natively(metadata),
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
        stray=find_stray(list_parts("PodGroup", obj)),
        parent=read_name(spec, "parentCompositePodGroupName") or None,
        device_claims=read_device_claims(spec),
        disruption=read_disruption(spec) or Disruption.SINGLE,
        preempted=_read_preemption_time(obj),
    )


def _is_told_natively(metadata: Raw) -> bool:
    """Whether somebody else than Serried manages the condition that says how the group stands."""
    return any(
        not read_text(entry, "manager").startswith(_OUR_MANAGERS) and not _MANAGED.isdisjoint(_read_managed(entry))
        for entry in read_objects(metadata, "managedFields")
    )


def _read_managed(entry: Raw) -> Raw:
    """The conditions that a field manager has written, by the keys that managedFields have for them."""
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
    )


def _decode_workload(obj: Raw) -> Workload:
    spec = read_map(obj, "spec")
    inline = read_objects(spec, "podGroups")
    return Workload(
        key=read_owner_key(obj),
        uid=read_owner_uid(obj),
        job=_read_job(spec),
        parent=_read_parent(spec),
        templates=_read_inline(obj, inline)
        or tuple(_read_template(raw) for raw in read_objects(spec, "podGroupTemplates")),
        inline=bool(inline),
        owners=read_owners(obj),
        labels=read_labels(read_map(obj, "metadata"), "labels"),
        deleting=is_deleting(obj),
        version=read_version(obj),
    )


def read_policy(spec: Raw, field: str = "schedulingPolicy") -> Policy:
    """The policy: exactly one of ``basic`` and ``gang``, which has a minCount of at least 1. Raises ValueError."""
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
    """The one key of ``schedulingConstraints``, None without one."""
    constraints = read_objects(read_map(spec, "schedulingConstraints"), "topology")
    return read_name(constraints[0], "key") or None if constraints else None


def _read_reference(spec: Raw) -> tuple[str | None, str | None]:
    """The names of the Workload and of its template from which the PodGroup was made."""
    if reference := read_map(spec, "workloadRef"):
        return read_name(reference, "workloadName") or None, read_name(reference, "templateName") or None
    older = read_map(read_map(spec, "podGroupTemplateRef"), "workload")
    return read_name(older, "workloadName") or None, read_name(older, "podGroupTemplateName") or None


def _read_inline(obj: Raw, groups: Sequence[Raw]) -> tuple[Template, ...]:
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
    """``disruptionMode``, which is a union of two empty objects, and in v1alpha2 a string."""
    mode = raw.get("disruptionMode")
    if isinstance(mode, str):
        return _DISRUPTION_WORDS.get(mode)
    modes = read_map(raw, "disruptionMode")
    return next((each for each in Disruption if modes.get(each.value) is not None), None)


def read_claims(raw: Raw) -> tuple[Claim, ...]:
    """``resourceClaims`` of a template, a PodGroup or a Job's scheduling."""
    return tuple(_read_claim(claim) for claim in read_objects(raw, "resourceClaims"))


def _read_claim(raw: Raw) -> Claim:
    return Claim(
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
    return name_kind(read_text(reference, "apiGroup"), read_text(reference, "kind")), name


def name_kind(group: str, kind: str) -> str:
    """How a kind that may control Workloads is called: one that we do not know has its API group with it."""
    return _PARENTS.get((group, kind)) or intern(f"{kind}.{group}")


def _read_preemption_time(obj: Raw) -> int | None:
    for raw in read_objects(read_map(obj, "status"), "conditions"):
        said = read_text(raw, "type"), read_text(raw, "status"), read_text(raw, "reason")
        if said == (DISRUPTION_TARGET, "True", PREEMPTED):
            return _read_disruption_written(read_map(obj, "metadata")) or read_time(raw, "lastTransitionTime") or 0
    return None


def _read_disruption_written(metadata: Raw) -> int | None:
    """When Serried has written DisruptionTarget, by the API server's clock; None where somebody else has.

    The time in the condition is by the clock of the extender, which may have been set since, or be wrong.
    """
    for entry in read_objects(metadata, "managedFields"):
        if read_text(entry, "manager").startswith(_OUR_MANAGERS) and _MANAGED_DISRUPTION in _read_managed(entry):
            return read_time(entry, "time")
    return None


def _read_condition(status: Raw, *types: str) -> tuple[str, str, str] | None:
    for raw in read_objects(status, "conditions"):
        if read_text(raw, "type") in types:
            return read_name(raw, "status"), read_name(raw, "reason"), read_text(raw, "message")
    return None
