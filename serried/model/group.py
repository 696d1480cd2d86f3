"""PodGroups, Workloads and Jobs in the vocabulary of scheduling.k8s.io/v1beta1."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from serried.model.disruption import Disruption
from serried.model.preference import NO_PREFERENCE, Preference
from serried.model.priority import PreemptionPolicy
from serried.model.selectors import Labels
from serried.model.tree import Branch, Leaf, Tree, find_disrupted, find_path


class Key(NamedTuple):
    """Namespace and name of an object; which kind, the context says."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class GroupKind(StrEnum):
    """The kind of the object that a group has its name from, written as Kubernetes writes kinds: ``Kind.group``.

    ``POD_GROUP`` is a PodGroup of the API level in use and ``COMPATIBLE`` one of scheduler-plugins. ``COMPOSITE`` is
    the whole tree of a CompositePodGroup. ``WORKLOAD`` is a PodGroup that is part of its Workload (v1alpha1). The pods
    of a Job, a JobSet or a LeaderWorkerSet are a group of that kind until their PodGroup exists. ``STRANGERS`` are the
    pods that name a PodGroup and may not join it.
    """

    POD_GROUP = "PodGroup"
    COMPATIBLE = "PodGroup.scheduling.x-k8s.io"
    COMPOSITE = "CompositePodGroup"
    WORKLOAD = "Workload"
    JOB = "Job"
    JOB_SET = "JobSet"
    LEADER_WORKER_SET = "LeaderWorkerSet"
    STRANGERS = "Strangers"


BARE_KINDS = frozenset({GroupKind.COMPATIBLE, GroupKind.WORKLOAD})
"""Kinds of groups whose objects have no priority, and no condition in which Serried says how they stand."""


class GroupKey(NamedTuple):
    """Which group: pods that are scheduled together, whether an object stands for them already or not.

    ``name`` is that of the object that ``kind`` says. ``part`` is the template of a Workload, or the stage of a JobSet
    or LeaderWorkerSet ("" for all its stages together); ``replica`` is the replica of that, "" where there are none.
    """

    namespace: str
    name: str
    kind: GroupKind = GroupKind.POD_GROUP
    part: str = ""
    replica: str = ""

    @property
    def object_key(self) -> Key:
        """The object that the group has its name from."""
        return Key(self.namespace, self.name)

    @property
    def encoded(self) -> str:
        """The group as one name, which no other group of the namespace has: for Reservations, ``/debug`` and logs.

        A PodGroup keeps its own name. The others have a colon or a slash, which no object's name contains.
        """
        if self.kind is GroupKind.POD_GROUP:
            return self.name
        if self.kind is GroupKind.WORKLOAD:
            return "/".join(filter(None, (self.name, self.part, self.replica)))
        if self.kind in _STAGED:
            return f"{_WORDS[self.kind]}:{self.name}:{self.part}:{self.replica}"
        return f"{_WORDS[self.kind]}:{self.name}"

    @property
    def strangers(self) -> "GroupKey":
        """Under which the pods wait that name this group and may not join it. No object has this key."""
        return GroupKey(self.namespace, self.name, GroupKind.STRANGERS)

    def leaf(self, name: str) -> "GroupKey":
        """The PodGroup of this name in the group's tree; "" is the group itself."""
        return GroupKey(self.namespace, name) if name else self

    def __str__(self) -> str:
        return f"{self.namespace}/{self.encoded}"


_WORDS = {
    GroupKind.COMPATIBLE: "compatible",
    GroupKind.COMPOSITE: "composite",
    GroupKind.JOB: "job",
    GroupKind.JOB_SET: "jobset",
    GroupKind.LEADER_WORKER_SET: "leaderworkerset",
    GroupKind.STRANGERS: "strangers",
}
_KINDS = {word: kind for kind, word in _WORDS.items()}
_STAGED = frozenset({GroupKind.JOB_SET, GroupKind.LEADER_WORKER_SET})


def decode_group_key(namespace: str, encoded: str) -> GroupKey:
    """The group of a name that `GroupKey.encoded` has made; any other name is taken for that of a PodGroup."""
    word, _, name = encoded.partition(":")
    kind = _KINDS.get(word)
    if kind is not None and kind not in _STAGED and name:
        return GroupKey(namespace, name, kind)
    if kind is not None and name.count(":") > 1:
        name, part, replica = name.split(":", 2)
        return GroupKey(namespace, name, kind, part, replica)
    if "/" in encoded and all(parts := encoded.split("/", 2)):
        return GroupKey(namespace, parts[0], GroupKind.WORKLOAD, *parts[1:])
    return GroupKey(namespace, encoded)


@dataclass(frozen=True, slots=True)
class OwnerRef:
    """An owner reference of a Workload or PodGroup."""

    kind: str
    name: str
    uid: str
    controller: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """SchedulingPolicy: gang with ``min_count`` members, or basic when ``min_count`` is None."""

    min_count: int | None

    @property
    def is_gang(self) -> bool:
        """Whether all-or-nothing holds."""
        return self.min_count is not None


BASIC = Policy(None)


COMPATIBLE_API = "scheduling.x-k8s.io/v1alpha1"
"""The API of scheduler-plugins, whose PodGroups are served beside those of the level in use."""

_COMPOSITE_APIS = {"scheduling.k8s.io": "scheduling.k8s.io/v1alpha3"}


def composite_api_version(api_version: str) -> str:
    """The apiVersion of CompositePodGroups beside PodGroups of this one, as far as is known without asking.

    Upstream has a version of its own for them; `ApiLevel.composite_api_version` is the one that was found.
    """
    return _COMPOSITE_APIS.get(api_version.partition("/")[0], api_version)


class Holder(NamedTuple):
    """An object as references name it; its namespace the context says."""

    api_version: str
    kind: str
    name: str


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
    PodGroupInitiallyScheduled is True already; ``condition`` is that condition's (status, reason, message).
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

    The kind is one of `model.parent`, or else one with its API group, as ``TrainJob.trainer.kubeflow.org``.
    """

    api: str = ""
    """As `PodGroup.api`."""


class GangPolicy(StrEnum):
    """What a Job says of itself (KEP-5764); one that says nothing is judged by its shape (KEP-5547)."""

    JOB_AS_GANG = "JobAsGang"
    NO_GANG = "NoGang"


class Delegation(NamedTuple):
    """What a Job says of its gang if that is a part of its controller's Workload."""

    parent: tuple[str, str]
    """The Job's controller, as `Workload.parent`."""

    template: str
    """The template of the Workload; "" for its first."""


@dataclass(frozen=True, slots=True)
class Job:
    """A batch/v1 Job, with the fields that eligibility (KEP-5547) and the reconciler need.

    What ``spec.scheduling`` says counts before the annotation of the same meaning.
    """

    key: Key
    uid: str
    parallelism: int

    completions: int | None
    """None if the Job has none."""

    indexed: bool
    scheduler: str = "default-scheduler"

    group: GroupKey | None = None
    """The group that its pod template names itself (field or label): then the Job is not ours."""

    topology_key: str | None = None
    """The annotation ``scheduling.serried.dev/required-topology``."""

    gang_policy: GangPolicy | None = None
    """The annotation ``scheduling.serried.dev/gang-policy``."""

    disruption: Disruption | None = None
    """The annotation ``scheduling.serried.dev/disruption-mode``."""

    priority_class: str = ""
    """The PriorityClass that its pods name."""

    min_count: int | None = None
    """What ``spec.scheduling`` says; no annotation does."""

    claims: tuple[Claim, ...] = ()
    """As ``min_count``."""

    contradiction: bool = False
    """Whether field and annotation disagree on being a gang."""

    problem: str = ""
    """What is wrong in an annotation, a phrase."""

    selects_itself: bool = False
    """``manualSelector``: then nothing but owner references says which pods are the Job's."""

    owner: OwnerRef | None = None

    delegation: Delegation | None = None
    """The annotation ``scheduling.k8s.io/group-template-name``; None also if nothing controls the Job."""

    managed_by: str = ""
    """The controller that makes its pods (``spec.managedBy``); "" for kube-controller-manager."""

    suspended: bool = False
    finished: bool = False

    ending: bool = False
    """Whether it makes no more pods because it will end, though some may still run."""

    deleting: bool = False

    completed: int = 0
    """How many indexes (without indexes: pods) have succeeded."""

    given_up: int = 0
    """How many indexes have failed for good."""

    started: int | None = None
    """When it began, or was last resumed, in seconds since 1970."""

    lifetime: int | None = None
    """After how many seconds it is ended (activeDeadlineSeconds)."""

    work: int = 0
    """A number that is equal for Jobs whose pods do the same."""

    version: str = ""
    preference: Preference = NO_PREFERENCE

    @property
    def at_once(self) -> int:
        """How many of its pods run at a time, at most."""
        return self.parallelism if self.completions is None else min(self.parallelism, self.completions)
