"""PodGroups, Workloads and Jobs in the vocabulary of scheduling.k8s.io/v1beta1."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from serried.model.preference import NO_PREFERENCE, Preference
from serried.model.selectors import Labels
from serried.model.tree import Branch


class Key(NamedTuple):
    """Namespace and name of an object; which kind, the context says."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


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


def name_inline(workload: str, template: str, replica: str = "") -> str:
    """How Serried names a PodGroup that is part of a Workload (v1alpha1), and each of its replicas.

    No object's name contains a slash, so it cannot be taken for one.
    """
    return "/".join(part for part in (workload, template, replica) if part)


COMPATIBLE_API = "scheduling.x-k8s.io/v1alpha1"
"""The API of scheduler-plugins, whose PodGroups are served beside those of the level in use."""

_COMPATIBLE_PREFIX = "compatible:"


def name_compatible(name: str) -> str:
    """How Serried names a PodGroup of scheduler-plugins: no object's name contains a colon, so both may exist."""
    return _COMPATIBLE_PREFIX + name


def key_compatible(group: Key) -> Key:
    """The key under which Serried keeps a PodGroup of scheduler-plugins."""
    return Key(group.namespace, name_compatible(group.name))


def is_compatible(group: Key) -> bool:
    """Whether a key is that of a PodGroup of scheduler-plugins, there or not."""
    return group.name.startswith(_COMPATIBLE_PREFIX)


_COMPOSITE_PREFIX = "composite:"
_COMPOSITE_APIS = {"scheduling.k8s.io": "scheduling.k8s.io/v1alpha3"}


def key_tree(root: Key) -> Key:
    """The key under which Serried keeps the tree of a CompositePodGroup: no object's name contains a colon."""
    return Key(root.namespace, _COMPOSITE_PREFIX + root.name)


def root_of_tree(group: Key) -> Key | None:
    """The CompositePodGroup at the root of a tree, None for any other key."""
    found = group.name.startswith(_COMPOSITE_PREFIX)
    return Key(group.namespace, group.name.removeprefix(_COMPOSITE_PREFIX)) if found else None


def composite_api_version(api_version: str) -> str:
    """The apiVersion of CompositePodGroups beside PodGroups of this one: upstream has a version of its own for them."""
    return _COMPOSITE_APIS.get(api_version.partition("/")[0], api_version)


class Holder(NamedTuple):
    """An object as references name it; its namespace the context says."""

    api_version: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class PodGroup:
    """A PodGroup. ``topology_key`` is ``schedulingConstraints.topology[0].key``, None without constraint.

    ``inline``: it is no object but part of its Workload, and has that one's UID and owners.

    ``compatible``: it is one of scheduler-plugins, and its key is not its name. ``timeout`` is the longest that it may
    wait at bind, in seconds.

    ``parent`` is the CompositePodGroup above it. ``tree``: it is no object but the whole tree of the CompositePodGroup
    at the root, whose UID and constraint it has; ``policy`` counts the members that the tree takes at least.

    ``device_claims`` are the names of its claims of devices, which its members may share.
    ``priority`` is None until admission (native) or our controller (fallback) has resolved ``priority_class``.
    ``workload`` and ``template`` are ``spec.workloadRef``. ``scheduled`` is whether the condition
    PodGroupInitiallyScheduled is True already; ``condition`` is that condition's (status, reason, message).
    """

    key: Key
    uid: str
    policy: Policy
    topology_key: str | None = None
    workload: str | None = None
    template: str | None = None
    priority_class: str = ""
    priority: int | None = None
    owners: tuple[OwnerRef, ...] = ()
    finalizers: tuple[str, ...] = ()
    labels: Labels = field(default_factory=dict)
    deleting: bool = False
    generation: int = 0
    version: str = ""
    scheduled: bool = False
    condition: tuple[str, str, str] | None = None
    inline: bool = False
    compatible: bool = False
    timeout: float = math.inf
    preference: Preference = NO_PREFERENCE
    parent: str | None = None
    tree: Branch | None = None
    device_claims: tuple[str, ...] = ()

    def holder(self, api_version: str) -> Holder:
        """The object that has this group's UID: itself, or the Workload that it is part of, or the root of its tree.

        ``api_version`` is that of the level in use.
        """
        if self.tree is not None:
            return Holder(composite_api_version(api_version), "CompositePodGroup", self.tree.name)
        if self.compatible:
            return Holder(COMPATIBLE_API, "PodGroup", self.key.name.removeprefix(_COMPATIBLE_PREFIX))
        if self.inline:
            return Holder(api_version, "Workload", self.workload or "")
        return Holder(api_version, "PodGroup", self.key.name)


class Disruption(StrEnum):
    """DisruptionMode: whether the pods of a group may be preempted one by one, or only all together."""

    SINGLE = "single"
    ALL = "all"


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
    """The kind and name of its controllerRef if that is of a kind with several Jobs or replicas (`model.parent`)."""


class GangPolicy(StrEnum):
    """What a Job says of itself (KEP-5764); one that says nothing is judged by its shape (KEP-5547)."""

    JOB_AS_GANG = "JobAsGang"
    NO_GANG = "NoGang"


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

    group: str | None = None
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
