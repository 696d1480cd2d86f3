"""Shared by the decoders of all kinds: readers of JSON fields, object keys, owners, times, and Serried's annotations.

Times are RFC 3339 in the API, and seconds since 1970 here.

All readers follow one rule. A field that is absent or null has its default. A field of the wrong type raises ValueError
with the field's name, and `attempt` turns that into a ``Malformed``. Guessing would be worse: if a malformed node
selector counted as absent, pods would be placed where they must not run.
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
    """Return the object at ``name``; empty if absent."""
    value = obj.get(name)
    if value is None:
        return _NOTHING
    if isinstance(value, dict):
        return value
    raise ValueError(f"{name} is not an object")


def read_objects(obj: Raw, name: str) -> list[Raw]:
    """Return the list of objects at ``name``; empty if absent."""
    value = obj.get(name)
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return value
    raise ValueError(f"{name} is not a list of objects")


def read_texts(obj: Raw, name: str) -> tuple[str, ...]:
    """Return the list of strings at ``name``, interned; empty if absent."""
    value = obj.get(name)
    if value is None:
        return ()
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(map(intern, value))
    raise ValueError(f"{name} is not a list of strings")


def read_text(obj: Raw, name: str, default: str = "") -> str:
    """Return the string at ``name``; ``default`` if absent or empty."""
    value = obj.get(name)
    if value is None or value == "":
        return default
    if isinstance(value, str):
        return value
    raise ValueError(f"{name} is not a string")


def read_name(obj: Raw, name: str, default: str = "") -> str:
    """Return the string at ``name`` as ``read_text`` does, interned: for strings that many objects share."""
    return intern(read_text(obj, name, default))


def read_required(obj: Raw, name: str) -> str:
    """Return the string at ``name``; raise ValueError if it is absent or empty."""
    value = read_text(obj, name)
    if not value:
        raise ValueError(f"{name} is missing")
    return value


def read_int(obj: Raw, name: str, default: int = 0) -> int:
    """Return the integer at ``name``; ``default`` if absent."""
    value = obj.get(name)
    if value is None:
        return default
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{name} is not an integer")


def read_index(obj: Raw, name: str) -> int | None:
    """Return the index in the string at ``name``; None if it is absent or no decimal number of at most 9 digits."""
    text = read_text(obj, name)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_INDEX_DIGITS else None


def read_flag(obj: Raw, name: str) -> bool:
    """Return the boolean at ``name``; False if absent."""
    value = obj.get(name)
    if value is None:
        return False
    if isinstance(value, bool):
        return value
    raise ValueError(f"{name} is not a boolean")


def read_labels(obj: Raw, name: str) -> dict[str, str]:
    """Return the map of strings at ``name``, keys and values interned; empty if absent."""
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
    """The kind that was expected."""

    key: str
    """The part of ``namespace/name`` that was readable; "" for nothing."""

    problem: str
    """A phrase that names the field, and what is wrong with it."""


def attempt(kind: str, decode: Callable[[dict[str, Any]], Value], obj: object) -> Value | Malformed:
    """Return ``decode(obj)``; a Malformed if ``obj`` is no JSON object or ``decode`` raises ValueError."""
    if not isinstance(obj, dict):
        return Malformed(kind, "", "not a JSON object")
    try:
        return decode(obj)
    except ValueError as problem:
        return Malformed(kind, _find_key(obj), str(problem))


def _find_key(obj: dict[str, Any]) -> str:
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        return ""
    parts = (metadata.get("namespace"), metadata.get("name"))
    return "/".join(part for part in parts if isinstance(part, str) and part)


_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.\d+)?Z", re.ASCII)
_DAYS_TO_1970 = 719_468
_DAYS_IN_400_YEARS = 146_097


def read_time(obj: Raw, name: str) -> int | None:
    """Return the time at ``name`` in seconds since 1970; None if it is absent or no RFC 3339 time in UTC."""
    return _parse_time(read_text(obj, name))


@lru_cache(maxsize=1024)
def _parse_time(text: str) -> int | None:
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.groups())
    return _days_from_date(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second


def write_time(seconds: float) -> str:
    """Return a time in RFC 3339, as the API writes it; ``seconds`` are since 1970, fractions are cut off."""
    days, second = divmod(math.floor(seconds), 86_400)
    year, month, day = _date_from_days(days)
    return f"{year:04}-{month:02}-{day:02}T{second // 3_600:02}:{second // 60 % 60:02}:{second % 60:02}Z"


def _days_from_date(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01. The calculation starts years in March: the leap day is then the last day."""
    year -= month <= 2
    in_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    era, of_era = divmod(year, 400)
    return era * _DAYS_IN_400_YEARS + of_era * 365 + of_era // 4 - of_era // 100 + in_year - _DAYS_TO_1970


def _date_from_days(days: int) -> tuple[int, int, int]:
    """Return year, month and day of a day that is given as ``days`` since 1970-01-01."""
    era, of_era = divmod(days + _DAYS_TO_1970, _DAYS_IN_400_YEARS)
    in_era = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    in_year = of_era - (in_era * 365 + in_era // 4 - in_era // 100)
    month = (5 * in_year + 2) // 153
    day = in_year - (153 * month + 2) // 5 + 1
    return in_era + era * 400 + (month >= 10), (month + 2) % 12 + 1, day


_IDENTITY_FIELDS = frozenset({"hostname", "subdomain", "schedulingGroup", "workloadRef"})
"""Fields of a pod template that name its owner or group. They differ between Jobs that do the same work."""


_NUMBER = re.compile(r"([0-9]+)")


def count_up(name: str) -> list[Any]:
    """Return a sort key for names in natural order: ``rack-2`` before ``rack-10``."""
    return [int(part) if place % 2 else part for place, part in enumerate(_NUMBER.split(name))]


def read_end(metadata: Raw, status: Raw) -> int | None:
    """Return when a pod ended or will end, in seconds since 1970; None if unknown.

    That is its deletion timestamp, else the end of its last container.
    """
    deleted = read_time(metadata, "deletionTimestamp")
    if deleted is not None:
        return deleted
    states = (read_map(read_map(one, "state"), "terminated") for one in read_objects(status, "containerStatuses"))
    return max((end for state in states if (end := read_time(state, "finishedAt")) is not None), default=None)


def read_device_claims(spec: Raw) -> tuple[str, ...]:
    """Return the origins of the device claims of a pod or PodGroup, sorted.

    An origin is ``template NAME`` for a claim from a template, and ``claim`` for one that a user has created. The names
    of the claims themselves are left out, so that members that each have a claim of their own have equal shapes.
    """
    claims = read_objects(spec, "resourceClaims")
    if not claims:
        return ()
    templates = (read_text(claim, "resourceClaimTemplateName") for claim in claims)
    return tuple(sorted(intern(f"template {name}") if name else "claim" for name in templates))


def fingerprint(template: Raw) -> int:
    """Return a hash of the pod template's spec, which is equal for Jobs whose pods do the same work.

    Labels and annotations are left out, because they name the Job. It relies on the API server, which writes the
    fields of equal objects in the same order.
    """
    spec = {name: value for name, value in read_map(template, "spec").items() if name not in _IDENTITY_FIELDS}
    return int.from_bytes(hashlib.blake2b(repr(spec).encode(), digest_size=8).digest())


class Disruption(StrEnum):
    """The disruptionMode of a group: its pods may be preempted one by one (SINGLE), or only all together (ALL)."""

    SINGLE = "single"
    ALL = "all"


class Key(NamedTuple):
    """Namespace and name of an object; the kind is known from the context. ``namespace`` is "" if cluster-scoped."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class GroupKind(StrEnum):
    """The kind of the object after which a group is named, written as ``Kind.group``.

    POD_GROUP   a PodGroup of the API level in use
    COMPATIBLE  a PodGroup of scheduler-plugins
    COMPOSITE   the whole tree of a CompositePodGroup
    WORKLOAD    a PodGroup that is part of its Workload (v1alpha1)
    COUNTED     a pod group of Kueue, which has no object: its pods say its name and how many they are
    NON_MEMBERS pods that name the PodGroup of a Job but are no pods of that Job, so they may not join

    The other kinds are those of owners: the pods of a Job, JobSet or LeaderWorkerSet whose PodGroup does not exist yet.
    """

    POD_GROUP = "PodGroup"
    COMPATIBLE = "PodGroup.scheduling.x-k8s.io"
    COMPOSITE = "CompositePodGroup"
    WORKLOAD = "Workload"
    COUNTED = "PodGroup.kueue.x-k8s.io"
    vars().update({kind: kind for kind in OWNER_KINDS})  # members like the others: of a kind there is one row only
    NON_MEMBERS = "NonMembers"


BARE_KINDS = frozenset({GroupKind.COMPATIBLE, GroupKind.WORKLOAD, GroupKind.COUNTED})
"""Kinds of groups whose objects have neither a priority nor a condition that Serried could write, or have no object."""


class GroupKey(NamedTuple):
    """Identifies a group: pods that are scheduled together, whether or not their PodGroup exists already.

    ``name`` is the name of an object of kind ``kind``. ``part`` is the template of a Workload, or the stage of a parent
    ("" for all stages together), or for COUNTED how many pods there are. ``replica`` is the replica of that part, "" if
    there are no replicas.
    """

    namespace: str
    name: str
    kind: GroupKind = GroupKind.POD_GROUP
    part: str = ""
    replica: str = ""

    @property
    def object_key(self) -> Key:
        """The key of the object after which the group is named."""
        return Key(self.namespace, self.name)

    @property
    def encoded(self) -> str:
        """The group as one string that is unique in its namespace: for Reservations, ``/debug`` and logs.

        For a PodGroup it is the PodGroup's name. All others contain a colon or a slash, which object names do not.
        """
        if self.kind is GroupKind.POD_GROUP:
            return self.name
        if self.kind is GroupKind.WORKLOAD:
            return "/".join(filter(None, (self.name, self.part, self.replica)))
        if self.kind in PARENTS:
            return f"{_PREFIX_BY_KIND[self.kind]}:{self.name}:{self.part}:{self.replica}"
        if self.kind is GroupKind.COUNTED:
            return f"{_PREFIX_BY_KIND[self.kind]}:{self.name}:{self.part}"
        return f"{_PREFIX_BY_KIND[self.kind]}:{self.name}"

    @property
    def non_members(self) -> "GroupKey":
        """The key for pods that name this group but may not join it: the group is a Job's, and they are not.

        They are held under this key, so that they do not count for the quorum. No object has this key.
        """
        return GroupKey(self.namespace, self.name, GroupKind.NON_MEMBERS)

    def leaf(self, name: str) -> "GroupKey":
        """Return the key of the PodGroup with this name in the group's tree; "" is the group itself."""
        return GroupKey(self.namespace, name) if name else self

    def __str__(self) -> str:
        return f"{self.namespace}/{self.encoded}"


_PREFIX_BY_KIND = {
    GroupKind.COMPATIBLE: "compatible",
    GroupKind.COMPOSITE: "composite",
    GroupKind.COUNTED: "kueue",
    **{GroupKind(row.kind): row.word for row in OWNER_KINDS.values()},
    GroupKind.NON_MEMBERS: "non-members",
}
_KIND_BY_PREFIX = {word: kind for kind, word in _PREFIX_BY_KIND.items()}


def decode_group_key(namespace: str, encoded: str) -> GroupKey:
    """Return the group for a string from `GroupKey.encoded`. Any other string counts as the name of a PodGroup."""
    word, _, name = encoded.partition(":")
    kind = _KIND_BY_PREFIX.get(word)
    if kind is GroupKind.COUNTED:
        name, _, count = name.partition(":")
        return GroupKey(namespace, name, kind, count) if name and count else GroupKey(namespace, encoded)
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
"""The apiVersion of the PodGroups of scheduler-plugins, which Serried schedules beside its own."""

_COMPOSITE_APIS = {"scheduling.k8s.io": "scheduling.k8s.io/v1alpha3"}


def composite_api_version(api_version: str) -> str:
    """Return the usual apiVersion of CompositePodGroups in a cluster with PodGroups of ``api_version``.

    The cluster may serve another one, which discovery finds (`ApiLevel.composite_api_version`).
    """
    return _COMPOSITE_APIS.get(api_version.partition("/")[0], api_version)


class ObjectReference(NamedTuple):
    """A reference to an object, as in events; the namespace is known from the context."""

    api_version: str
    kind: str
    name: str


ANNOTATION_PREFIX = "scheduling.serried.dev/"

INSTALLATION = "scheduling.serried.dev/installation"
"""Label of every object of a Serried installation. Its value is the namespace of Serried's processes."""

REQUIRED_TOPOLOGY = "scheduling.serried.dev/required-topology"
"""Annotation of a Job or PodGroup: the topology key of which all members must share one value.

On a PodGroup it replaces ``schedulingConstraints``, a field that API servers without the gate
TopologyAwareWorkloadScheduling drop silently. If both are set, the field wins.
"""


def name_object(kind: str, name: str) -> str:
    """Return an object's name as kubectl takes it: ``job/train``."""
    return f"{kind.lower()}/{name}"


OWNER = "scheduling.serried.dev/owner"
"""Annotation of a PodGroup of Serried's CRD: its owner, as kubectl names it. For people; no code reads it."""

REPLACES = "scheduling.serried.dev/replaces"
"""Label of a Workload: the UID of the Workload that it replaces, where minCount cannot be changed."""

GANG_POLICY = "scheduling.serried.dev/gang-policy"
"""Annotation of a Job: JobAsGang or NoGang (KEP-5764's field), set at its creation and never changed."""

DISRUPTION_MODE = "scheduling.serried.dev/disruption-mode"
"""Annotation of a Job: single or all, the disruption mode of its PodGroup."""

GROUP_TEMPLATE = "scheduling.k8s.io/group-template-name"
"""Annotation of a Job that has a controller: the template in the controller's Workload from which its PodGroup is made.

An empty value names the first template. Source: 1.37, pkg/controller/job/job_scheduling_manager.go.
"""

POD_GROUP_LABEL = "scheduling.serried.dev/pod-group"
"""Label of a pod: its PodGroup, for clusters without ``spec.schedulingGroup``. Every bound member carries it."""

LABELLED = "scheduling.serried.dev/labelled"
"""Annotation of a bound pod whose POD_GROUP_LABEL was added by its Binding, as an index for selectors.

Such a label does not make the pod a member: its group is named elsewhere.
"""

COMPATIBLE_LABEL = "scheduling.x-k8s.io/pod-group"
"""Label of a pod: its PodGroup of scheduler-plugins."""

KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
"""Label of a pod: its pod group of Kueue; also an annotation, for longer names.

Source: Kueue 0.19, pkg/controller/jobs/pod/constants/constants.go.
"""

KUEUE_COUNT = "kueue.x-k8s.io/pod-group-total-count"
"""Annotation of a pod of Kueue's pod group: how many pods the group has."""

KUEUE_GROWING = ("kueue.x-k8s.io/pod-group-serving", "kueue.x-k8s.io/pod-group-fast-admission")
"""Annotations, ``true`` on pods whose group may come one by one, as those of StatefulSets do: they are no gang."""


GANG = "scheduling.serried.dev/gang"
"""Annotation that the Binding of a member adds: the apiVersion and the name of the gang's group."""

DOMAIN = "scheduling.serried.dev/domain"
"""Annotation that the Binding of a member adds: the value of the gang's topology key on the member's node."""

ASKED = "scheduling.serried.dev/asked-for-nodes"
"""Annotation of a member that has been shown to autoscalers: since when, and in which domain nodes are wanted.

Its value is an RFC 3339 time, and ``key=domain`` after a space if the gang has a topology key.
"""

CONSUMES = "autoscaling.x-k8s.io/consume-provisioning-request"
"""Annotation of a pod: the ProvisioningRequest of Cluster Autoscaler that has got its node."""

_LABEL_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_MAX_PREFIX_LENGTH = 253
_MAX_KEY_LENGTH = _MAX_PREFIX_LENGTH + 1 + 63


_MAX_QUOTED = 200
"""The number of characters of a user's text that messages repeat."""

_MAX_COMPARED = 64
"""The number of characters of a name that are compared with known names: more would block the event loop."""


def is_label_key(text: str) -> bool:
    """Return whether the API server accepts the text as the key of a label (``k8s-label-key``, IsQualifiedName)."""
    fits = len(text) <= _MAX_KEY_LENGTH
    return fits and _LABEL_KEY.fullmatch(text) is not None and len(text.rpartition("/")[0]) <= _MAX_PREFIX_LENGTH


def quote(value: object) -> str:
    """Return a user's text, quoted and shortened for a message: an annotation may have 256 KiB."""
    text = repr(value)
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}... ({len(text)} characters)"


def is_label_value(text: str) -> bool:
    """Return whether the API server accepts the text as the value of a label (IsValidLabelValue)."""
    return _LABEL_VALUE.fullmatch(text) is not None


def read_key(obj: Raw) -> Key:
    """Return namespace and name of an object; raise ValueError if it has no name."""
    metadata = read_map(obj, "metadata")
    return Key(read_name(metadata, "namespace"), read_required(metadata, "name"))


def read_uid(obj: Raw) -> str:
    """Return the UID of an object; raise ValueError if it has none."""
    return read_required(read_map(obj, "metadata"), "uid")


def read_owner_key(obj: Raw) -> Key:
    """Return the key of an object as ``read_key`` does, interned: for objects to which others refer by name."""
    namespace, name = read_key(obj)
    return Key(namespace, intern(name))


def read_owner_uid(obj: Raw) -> str:
    """Return the UID of an object as ``read_uid`` does, interned: for objects to which others refer by UID."""
    return intern(read_uid(obj))


def read_version(obj: Raw) -> str:
    """Return the resourceVersion of an object; "" if it has none."""
    return read_text(read_map(obj, "metadata"), "resourceVersion")


def is_deleting(obj: Raw) -> bool:
    """Return whether the object has a deletion timestamp."""
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
    """Return the controlling owner reference, None if there is none."""
    return next((owner for owner in read_owners(obj) if owner.controller), None)


def read_group_field(spec: Raw, namespace: str) -> GroupKey | None:
    """Return the group that a pod or template names by ``spec.schedulingGroup``, or in 1.35 ``spec.workloadRef``."""
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
    """Return the group that POD_GROUP_LABEL on a pod or pod template names; None if the label is from a Binding."""
    name = read_text(read_map(metadata, "labels"), POD_GROUP_LABEL)
    told = LABELLED in read_map(metadata, "annotations")
    return _shared_key(namespace, name) if name and not told else None


def read_compatible_label(metadata: Raw, namespace: str) -> GroupKey | None:
    """Return the group that the label of scheduler-plugins on a pod or pod template names; None without the label."""
    name = read_text(read_map(metadata, "labels"), COMPATIBLE_LABEL)
    return _shared_key(namespace, name, GroupKind.COMPATIBLE) if name else None


def read_counted_group(metadata: Raw, namespace: str) -> GroupKey | None:
    """Return the pod group of Kueue that a pod is in; None without name or valid count, or if its pods may be late."""
    annotations = read_map(metadata, "annotations")
    name = read_text(read_map(metadata, "labels"), KUEUE_GROUP) or read_text(annotations, KUEUE_GROUP)
    count = read_text(annotations, KUEUE_COUNT)
    if not name or _COUNT.fullmatch(count) is None or any(annotations.get(each) == "true" for each in KUEUE_GROWING):
        return None
    return _shared_key(namespace, name, GroupKind.COUNTED, count)


_COUNT = re.compile("[1-9][0-9]{0,5}")


@lru_cache(maxsize=8192)
def _shared_key(
    namespace: str, name: str, kind: GroupKind = GroupKind.POD_GROUP, part: str = "", replica: str = ""
) -> GroupKey:
    return GroupKey(namespace, intern(name), kind, part, replica=replica)


def read_required_topology(metadata: Raw) -> str | None:
    """Return the topology key in the annotation of a PodGroup or Workload; None without the annotation."""
    return read_name(read_map(metadata, "annotations"), REQUIRED_TOPOLOGY) or None


def read_group(template: Raw, namespace: str) -> GroupKey | None:
    """Return the group that a pod template names, by field or by label; None if it names none."""
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
"""The type of the condition of a pod or group that is ended by somebody other than its owner, such as a preemptor."""

PREEMPTED = "PreemptionByScheduler"
"""The reason of DisruptionTarget when a kube-scheduler preempts the pod (k8s.io/api/core/v1/types.go)."""


# --- the annotations and labels of Serried that have an effect --------------------------------------------------------

# Any other name with the prefix has no effect: `find_stray` finds it on an object, and suggests the probable name. The
# admission policy manifests/kustomize/policies/annotations.yaml rejects the same names, with a copy of KNOWN.

POD_TEMPLATE = "PodTemplate"
"""The key in KNOWN for the pod templates inside other objects."""


class Known(NamedTuple):
    """The annotations and labels that have an effect on one kind of object; names without the prefix."""

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
    "Pod": Known(
        labels=(_POD_GROUP,),
        marks=("installation", "gang", "labelled", "domain", "rank", "kick", "asked-for-nodes"),
    ),
    POD_TEMPLATE: Known(labels=(_POD_GROUP,), marks=("installation",)),
}
"""The known names by kind. (The admission policy has them by resource.)

The pod-group label has no effect on groups and Workloads, but tools write it there as a common label.

A name stays known until no supported upgrade starts at a release that sets it.
"""


class Part(NamedTuple):
    """One metadata section of an object: the object's own, or the one of a template inside it."""

    kind: str
    """A key of ``KNOWN``."""

    metadata: Raw

    where: str = ""
    """A phrase for messages, such as ``of the pod template``; "" for the object itself."""


def list_parts(kind: str, obj: Raw, pod_templates: Iterable[Raw] = ()) -> list[Part]:
    """Return the metadata of an object and of the given pod templates in it."""
    own = Part(kind, read_map(obj, "metadata"))
    return [own, *(Part(POD_TEMPLATE, read_map(each, "metadata"), "of the pod template") for each in pod_templates)]


def find_stray(parts: Sequence[Part]) -> str:
    """Find the first annotation or label of Serried in an object that has no effect there.

    Return a phrase that names it and suggests the right name; "" if there is none. ``parts`` are all metadata sections
    of the object, its own first. A name that is known in one section may be in the others, too, because tools such as
    kustomize add common annotations to all of them.
    """
    found = [
        (part, field, key)
        for part in parts
        for field in ("annotations", "labels")
        for key in read_map(part.metadata, field)
        if key.startswith(ANNOTATION_PREFIX)
    ]
    read = {key for part, field, key in found if _is_known(part.kind, field, key)}
    stray = next(((part, field, key) for part, field, key in found if key not in read), None)
    return "" if stray is None else _explain_stray(*stray, parts[0].kind)


def _is_known(kind: str, field: str, key: str) -> bool:
    known, name = KNOWN[kind], key.removeprefix(ANNOTATION_PREFIX)
    return name in known.marks or name in (known.annotations if field == "annotations" else known.labels)


def _explain_stray(part: Part, field: str, key: str, kind: str) -> str:
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
    """A state machine was asked for a transition that its state does not allow: a bug. The state is unchanged."""
