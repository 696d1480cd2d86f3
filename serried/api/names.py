"""What all kinds share: keys, owners, labels, times (RFC 3339 as seconds since 1970), and reading raw JSON fields.

All readers follow one rule: a field that is absent or null has its default, a field of the wrong type raises ValueError
with the field's name, which `attempt` turns into a value (``Malformed``). A guess would be worse: a node selector that
is taken for absent places pods where they must not run.
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from sys import intern
from typing import Any, NamedTuple, TypeVar

from serried.api.kinds import OWNER_KINDS, PARENTS

Raw = Mapping[str, Any]

_NOTHING: dict[str, Any] = {}
_MAX_INDEX_DIGITS = 9


def read_map(obj: Raw, name: str) -> Raw:
    """The object at ``name``; empty if absent."""
    value = obj.get(name)
    if value is None:
        return _NOTHING
    if isinstance(value, dict):
        return value
    raise ValueError(f"{name} is not an object")


def read_objects(obj: Raw, name: str) -> list[Raw]:
    """The list of objects at ``name``; empty if absent."""
    value = obj.get(name)
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return value
    raise ValueError(f"{name} is not a list of objects")


def read_texts(obj: Raw, name: str) -> tuple[str, ...]:
    """The list of strings at ``name``, interned; empty if absent."""
    value = obj.get(name)
    if value is None:
        return ()
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(map(intern, value))
    raise ValueError(f"{name} is not a list of strings")


def read_text(obj: Raw, name: str, default: str = "") -> str:
    """The string at ``name``; ``default`` if absent or empty."""
    value = obj.get(name)
    if value is None or value == "":
        return default
    if isinstance(value, str):
        return value
    raise ValueError(f"{name} is not a string")


def read_name(obj: Raw, name: str, default: str = "") -> str:
    """As ``read_text``, interned: for strings that many objects have in common."""
    return intern(read_text(obj, name, default))


def read_required(obj: Raw, name: str) -> str:
    """The string at ``name``. ValueError if it is absent or empty."""
    value = read_text(obj, name)
    if not value:
        raise ValueError(f"{name} is missing")
    return value


def read_int(obj: Raw, name: str, default: int = 0) -> int:
    """The integer at ``name``; ``default`` if absent."""
    value = obj.get(name)
    if value is None:
        return default
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{name} is not an integer")


def read_index(obj: Raw, name: str) -> int | None:
    """The index in the string at ``name``; None if it is absent, or is anything but a plain small number."""
    text = read_text(obj, name)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_INDEX_DIGITS else None


def read_flag(obj: Raw, name: str) -> bool:
    """The boolean at ``name``; False if absent."""
    value = obj.get(name)
    if value is None:
        return False
    if isinstance(value, bool):
        return value
    raise ValueError(f"{name} is not a boolean")


def read_labels(obj: Raw, name: str) -> dict[str, str]:
    """The map of strings at ``name``, keys and values interned; empty if absent."""
    labels: dict[str, str] = {}
    for key, value in read_map(obj, name).items():
        if not isinstance(value, str):
            raise ValueError(f"{name}[{key}] is not a string")  # noqa: TRY004  # one kind of error reaches attempt
        labels[intern(key)] = intern(value)
    return labels


Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Malformed:
    """An object that could not be decoded."""

    kind: str
    """The kind that it should have been."""

    key: str
    """``namespace/name``, as far as it was readable."""

    problem: str
    """One phrase that names the field."""


def attempt(kind: str, decode: Callable[[dict[str, Any]], Value], obj: object) -> Value | Malformed:
    """``decode(obj)``, or a Malformed where ``obj`` is no JSON object or ``decode`` raises ValueError."""
    if not isinstance(obj, dict):
        return Malformed(kind, "", "not a JSON object")
    try:
        return decode(obj)
    except ValueError as problem:
        return Malformed(kind, _key_of(obj), str(problem))


def _key_of(obj: dict[str, Any]) -> str:
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        return ""
    parts = (metadata.get("namespace"), metadata.get("name"))
    return "/".join(part for part in parts if isinstance(part, str) and part)


_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.\d+)?Z", re.ASCII)
_DAYS_TO_1970 = 719_468
_DAYS_IN_400_YEARS = 146_097


def read_time(obj: Raw, name: str) -> int | None:
    """Seconds since 1970 at ``name``; None if absent, or no time in UTC."""
    return _seconds(read_text(obj, name))


@lru_cache(maxsize=1024)
def _seconds(text: str) -> int | None:
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.groups())
    return _days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second


def write_time(seconds: float) -> str:
    """A time as the API writes it; ``seconds`` are since 1970, and fractions are cut off."""
    days, second = divmod(math.floor(seconds), 86_400)
    year, month, day = _date(days)
    return f"{year:04}-{month:02}-{day:02}T{second // 3_600:02}:{second // 60 % 60:02}:{second % 60:02}Z"


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01. The year begins in March here, so that the leap day is its last day."""
    year -= month <= 2
    in_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    era, of_era = divmod(year, 400)
    return era * _DAYS_IN_400_YEARS + of_era * 365 + of_era // 4 - of_era // 100 + in_year - _DAYS_TO_1970


def _date(days: int) -> tuple[int, int, int]:
    """Year, month and day, from ``days`` since 1970-01-01: `_days` backwards."""
    era, of_era = divmod(days + _DAYS_TO_1970, _DAYS_IN_400_YEARS)
    in_era = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    in_year = of_era - (in_era * 365 + in_era // 4 - in_era // 100)
    month = (5 * in_year + 2) // 153
    day = in_year - (153 * month + 2) // 5 + 1
    return in_era + era * 400 + (month >= 10), (month + 2) % 12 + 1, day


_NAMES = frozenset({"hostname", "subdomain", "schedulingGroup", "workloadRef"})
"""Fields of a pod template that name its owner or its group, so they differ between Jobs of the same work."""


_NUMBER = re.compile(r"([0-9]+)")


def count_up(name: str) -> list[Any]:
    """Return the key that sorts names as people count: ``rack-2`` before ``rack-10``."""
    return [int(part) if place % 2 else part for place, part in enumerate(_NUMBER.split(name))]


def read_end(metadata: Raw, status: Raw) -> int | None:
    """When a pod ended or will end: its deletion timestamp, else the end of its last container; None if unknown."""
    deleted = read_time(metadata, "deletionTimestamp")
    if deleted is not None:
        return deleted
    states = (read_map(read_map(one, "state"), "terminated") for one in read_objects(status, "containerStatuses"))
    return max((end for state in states if (end := read_time(state, "finishedAt")) is not None), default=None)


def read_device_claims(spec: Raw) -> tuple[str, ...]:
    """The device claims of a pod or of a PodGroup by their origin, sorted; equal pods have equal ones.

    ``template NAME`` for a claim that is made from a template, ``claim`` for one that a user has made. The names of
    such claims do not count, so that members with a claim each are of one class.
    """
    claims = read_objects(spec, "resourceClaims")
    if not claims:
        return ()
    templates = (read_text(claim, "resourceClaimTemplateName") for claim in claims)
    return tuple(sorted(intern(f"template {name}") if name else "claim" for name in templates))


def fingerprint(template: Raw) -> int:
    """A hash of the pod template's spec: equal for Jobs whose pods do the same.

    Labels and annotations, which name the Job, do not count. The API server writes the fields of equal objects in the
    same order.
    """
    spec = {name: value for name, value in read_map(template, "spec").items() if name not in _NAMES}
    return int.from_bytes(hashlib.blake2b(repr(spec).encode(), digest_size=8).digest())


class Disruption(StrEnum):
    """DisruptionMode: whether the pods of a group may be preempted one by one, or only all together."""

    SINGLE = "single"
    ALL = "all"


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
    vars().update({kind: kind for kind in OWNER_KINDS})  # members like the others: of a kind there is one row only
    STRANGERS = "Strangers"


BARE_KINDS = frozenset({GroupKind.COMPATIBLE, GroupKind.WORKLOAD})
"""Kinds of groups whose objects have no priority, and no condition in which Serried says how they stand."""


class GroupKey(NamedTuple):
    """Which group: pods that are scheduled together, whether an object stands for them already or not.

    ``name`` is that of the object that ``kind`` says. ``part`` is the template of a Workload, or the stage of a parent
    ("" for all its stages together); ``replica`` is the replica of that, "" where there are none.
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
        if self.kind in PARENTS:
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
    **{GroupKind(row.kind): row.word for row in OWNER_KINDS.values()},
    GroupKind.STRANGERS: "strangers",
}
_KINDS = {word: kind for kind, word in _WORDS.items()}


def decode_group_key(namespace: str, encoded: str) -> GroupKey:
    """The group of a name that `GroupKey.encoded` has made; any other name is taken for that of a PodGroup."""
    word, _, name = encoded.partition(":")
    kind = _KINDS.get(word)
    if kind is not None and kind not in PARENTS and name:
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


ANNOTATION_PREFIX = "scheduling.serried.dev/"

INSTALLATION = "scheduling.serried.dev/installation"
"""The label of every object that an installation consists of. Its value is the namespace of Serried's processes."""

REQUIRED_TOPOLOGY = "scheduling.serried.dev/required-topology"
"""Annotation of a Job or PodGroup: the topology key of which all members must share one value.

On a PodGroup it stands for ``schedulingConstraints``, a field that API servers without the gate
TopologyAwareWorkloadScheduling drop without a word. Where both are set, the field counts.
"""


def name_object(kind: str, name: str) -> str:
    """An object as people name it to kubectl: ``job/train``."""
    return f"{kind.lower()}/{name}"


OWNER = "scheduling.serried.dev/owner"
"""Annotation of a PodGroup of our own kind: what it was made for, as kubectl names it. It is there to be read."""

REPLACES = "scheduling.serried.dev/replaces"
"""Label of a Workload: the UID of the Workload that it replaces, where minCount cannot be changed."""

GANG_POLICY = "scheduling.serried.dev/gang-policy"
"""Annotation of a Job: JobAsGang or NoGang (KEP-5764's field), set at its creation and never changed."""

DISRUPTION_MODE = "scheduling.serried.dev/disruption-mode"
"""Annotation of a Job: single or all, the disruption mode of its PodGroup."""

GROUP_TEMPLATE = "scheduling.k8s.io/group-template-name"
"""Annotation of a Job that something controls: the template of that one's Workload from which its PodGroup is made.

As in 1.37 (pkg/controller/job/job_scheduling_manager.go). An empty one names the first template.
"""

POD_GROUP_LABEL = "scheduling.serried.dev/pod-group"
"""Names a pod's PodGroup where ``spec.schedulingGroup`` is not served. Bound members of every PodGroup carry it."""

LABELLED = "scheduling.serried.dev/labelled"
"""Annotation of a bound pod: it has POD_GROUP_LABEL from its Binding, to be found by, and names no group by it."""

COMPATIBLE_LABEL = "scheduling.x-k8s.io/pod-group"
"""Names a pod's PodGroup of scheduler-plugins."""


GANG = "scheduling.serried.dev/gang"
"""Annotation of a gang's bound pod, from its Binding: the apiVersion and the name of the gang's group."""

DOMAIN = "scheduling.serried.dev/domain"
"""Annotation of a gang's bound pod: the value of the gang's topology key on its node."""

_LABEL_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_MAX_PREFIX_LENGTH = 253
_MAX_KEY_LENGTH = _MAX_PREFIX_LENGTH + 1 + 63


_MAX_QUOTED = 200
"""How many characters of what somebody has written are repeated."""

_MAX_COMPARED = 64
"""How many characters of a name are compared with those that are known: more would hold the event loop."""


def is_label_key(text: str) -> bool:
    """Whether the API server accepts the text as the key of a label (``k8s-label-key``, IsQualifiedName)."""
    fits = len(text) <= _MAX_KEY_LENGTH
    return fits and _LABEL_KEY.fullmatch(text) is not None and len(text.rpartition("/")[0]) <= _MAX_PREFIX_LENGTH


def quote(value: object) -> str:
    """What somebody has written, as a sentence repeats it: an annotation may have a quarter of a million characters."""
    text = repr(value)
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}... ({len(text)} characters)"


def is_label_value(text: str) -> bool:
    """Whether the API server accepts the text as the value of a label (IsValidLabelValue)."""
    return _LABEL_VALUE.fullmatch(text) is not None


def read_key(obj: Raw) -> Key:
    """Namespace and name. ValueError without a name."""
    metadata = read_map(obj, "metadata")
    return Key(read_name(metadata, "namespace"), read_required(metadata, "name"))


def read_uid(obj: Raw) -> str:
    """The UID. ValueError without one."""
    return read_required(read_map(obj, "metadata"), "uid")


def read_owner_key(obj: Raw) -> Key:
    """As ``read_key``, interned: for objects that others name in their references."""
    namespace, name = read_key(obj)
    return Key(namespace, intern(name))


def read_owner_uid(obj: Raw) -> str:
    """As ``read_uid``, interned like the references to it."""
    return intern(read_uid(obj))


def read_version(obj: Raw) -> str:
    """The resourceVersion, "" if unknown."""
    return read_text(read_map(obj, "metadata"), "resourceVersion")


def is_deleting(obj: Raw) -> bool:
    """Whether the object has a deletion timestamp."""
    return bool(read_text(read_map(obj, "metadata"), "deletionTimestamp"))


def read_owners(obj: Raw) -> tuple[OwnerRef, ...]:
    """All owner references, in their order."""
    references = read_objects(read_map(obj, "metadata"), "ownerReferences")
    return tuple(
        OwnerRef(
            kind=read_name(reference, "kind"),
            name=read_name(reference, "name"),
            uid=read_name(reference, "uid"),
            controller=read_flag(reference, "controller"),
        )
        for reference in references
    )


def read_controller(obj: Raw) -> OwnerRef | None:
    """The controlling owner reference, None if there is none."""
    return next((owner for owner in read_owners(obj) if owner.controller), None)


def read_group_field(spec: Raw, namespace: str) -> GroupKey | None:
    """The group that ``spec.schedulingGroup`` of a pod or a pod template names, or in 1.35 ``spec.workloadRef``."""
    if name := read_name(read_map(spec, "schedulingGroup"), "podGroupName"):
        return _shared_key(namespace, name)
    reference = read_map(spec, "workloadRef")
    workload = read_text(reference, "name")
    template = read_text(reference, "podGroup")
    if not workload or not template:
        return None
    replica = read_text(reference, "podGroupReplicaKey")
    return _shared_key(namespace, workload, GroupKind.WORKLOAD, template, replica)


def read_group_label(metadata: Raw, namespace: str) -> GroupKey | None:
    """The group that our label on a pod or a pod template names; None if its Binding has brought it."""
    name = read_text(read_map(metadata, "labels"), POD_GROUP_LABEL)
    told = LABELLED in read_map(metadata, "annotations")
    return _shared_key(namespace, name) if name and not told else None


def read_compatible_label(metadata: Raw, namespace: str) -> GroupKey | None:
    """The group of scheduler-plugins that their label on a pod or a pod template names."""
    name = read_text(read_map(metadata, "labels"), COMPATIBLE_LABEL)
    return _shared_key(namespace, name, GroupKind.COMPATIBLE) if name else None


@lru_cache(maxsize=8192)
def _shared_key(
    namespace: str, name: str, kind: GroupKind = GroupKind.POD_GROUP, part: str = "", replica: str = ""
) -> GroupKey:
    return GroupKey(namespace, intern(name), kind, part, replica=replica)


def read_required_topology(metadata: Raw) -> str | None:
    """The topology key that the annotation of a PodGroup or a Workload names."""
    return read_name(read_map(metadata, "annotations"), REQUIRED_TOPOLOGY) or None


def read_group(template: Raw, namespace: str) -> GroupKey | None:
    """The group that a pod template of this namespace names, by field or by label."""
    metadata = read_map(template, "metadata")
    return (
        read_group_field(read_map(template, "spec"), namespace)
        or read_group_label(metadata, namespace)
        or read_compatible_label(metadata, namespace)
    )


REPLICA = "scheduling.serried.dev/replica"
"""Label of a PodGroup that exists once for each replica: the replica's index."""

JOB = "Job"


DISRUPTION_TARGET = "DisruptionTarget"
"""The condition of what somebody other than its owner ends: a pod, or a group."""

PREEMPTED = "PreemptionByScheduler"
"""The reason of DisruptionTarget when a kube-scheduler preempts the pod (k8s.io/api/core/v1/types.go)."""


# --- which annotations and labels of ours are read -------------------------------------------------------------------

# Any other name below the prefix has no effect: `find_stray` says so of an object, and names the one that was probably
# meant. The admission policy manifests/kustomize/policies/annotations.yaml refuses the same names by a copy of KNOWN.

POD_TEMPLATE = "PodTemplate"
"""The kind under which the names in the pod template of an object stand."""


class Known(NamedTuple):
    """The names that are known of one kind, without their prefix."""

    annotations: tuple[str, ...] = ()
    """Annotations that people set."""

    labels: tuple[str, ...] = ()
    """Labels that people set."""

    marks: tuple[str, ...] = ()
    """Annotations and labels that Serried or its command sets."""


_POD_GROUP = "pod-group"
_PLACEMENT = ("required-topology", "preferred-topology", "packing", "exclusive")
_OWNER = Known(("gang-policy", *_PLACEMENT, "disruption-mode"), marks=("installation", "suspended"))
_MADE = ("installation", "job-uid", "parent-uid")

KNOWN: Mapping[str, Known] = {
    "CronJob": Known(marks=("installation",)),
    **dict.fromkeys(OWNER_KINDS, _OWNER),
    "PodGroup": Known(_PLACEMENT, (_POD_GROUP,), marks=(*_MADE, "owner", "replica")),
    "CompositePodGroup": Known(("required-topology",), (_POD_GROUP,), marks=_MADE),
    "Workload": Known(_PLACEMENT, (_POD_GROUP,), marks=(*_MADE, "replaces")),
    "Pod": Known(labels=(_POD_GROUP,), marks=("installation", "gang", "labelled", "domain", "rank", "kick")),
    POD_TEMPLATE: Known(labels=(_POD_GROUP,), marks=("installation",)),
}
"""The names by kind; the policy has them by resource.

The label of pods does nothing on groups; tools write it there, too, as a common label.

A name stays known for as long as any release that sets it may be upgraded from.
"""


class Part(NamedTuple):
    """Metadata in an object: its own, or that of a template."""

    kind: str
    """One of ``KNOWN``."""

    metadata: Raw

    where: str = ""
    """The phrase behind the name of an annotation in messages: ``of the pod template``; "" for the object itself."""


def list_parts(kind: str, obj: Raw, pod_templates: Iterable[Raw] = ()) -> list[Part]:
    """The metadata of an object and of these pod templates in it."""
    own = Part(kind, read_map(obj, "metadata"))
    return [own, *(Part(POD_TEMPLATE, read_map(each, "metadata"), "of the pod template") for each in pod_templates)]


def find_stray(parts: Sequence[Part]) -> str:
    """The first name of ours in an object that nothing reads there, and what to do about it, a phrase; "" for none.

    ``parts`` are those of one object, its own metadata first. A name that is read in one of them may stand in the
    others, too: tools such as kustomize write common annotations into each.
    """
    found = [
        (part, field, key)
        for part in parts
        for field in ("annotations", "labels")
        for key in read_map(part.metadata, field)
        if key.startswith(ANNOTATION_PREFIX)
    ]
    read = {key for part, field, key in found if _is_read(part.kind, field, key)}
    stray = next(((part, field, key) for part, field, key in found if key not in read), None)
    return "" if stray is None else _describe(*stray, parts[0].kind)


def _is_read(kind: str, field: str, key: str) -> bool:
    known, name = KNOWN[kind], key.removeprefix(ANNOTATION_PREFIX)
    return name in known.marks or name in (known.annotations if field == "annotations" else known.labels)


def _describe(part: Part, field: str, key: str, kind: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - few objects need it

    said = " ".join(filter(None, (f"{field.removesuffix('s')} {quote(key)}", part.where)))
    name = key.removeprefix(ANNOTATION_PREFIX)[:_MAX_COMPARED].lower()
    (near,) = get_close_matches(name, [*KNOWN[kind].annotations, _POD_GROUP], 1, 0.6) or ("",)
    if near == _POD_GROUP:
        meant = f"did you mean the label {ANNOTATION_PREFIX}{near} of its pods?"
    elif near:
        meant = f"did you mean the annotation {ANNOTATION_PREFIX}{near} of the {kind}?"
    else:
        meant = f"known are {', '.join(KNOWN[kind].annotations)}, and of pods the label {_POD_GROUP}"
    return f"{said} has no effect, because nothing reads it; {meant}"


class IllegalTransition(ValueError):
    """Something was asked for a step that its state does not allow: an error in our own code. Nothing has changed."""
