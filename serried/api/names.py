"""Shared by the decoders of all kinds: readers of JSON fields, object keys, owners, times, and Serried's annotations.

Times are RFC 3339 in the API, and seconds since 1970 here.

All readers follow one rule. For a field that is absent or null they return a default. For a field of the wrong type
they raise ValueError with the field's name, and `decode_or_malformed` turns that into a ``Malformed``. Guessing would
be worse: if a malformed node selector counted as absent, pods would be placed where they must not run.
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
    """Return the string at ``name``; ``default`` if absent or empty. It is interned, as many objects have the same."""
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
    """The result of a decoder for an object that it could not read."""

    kind: str
    """The kind that the object should have, such as ``Pod``."""

    key: str
    """The object's ``namespace/name``, or the one of the two that was readable; "" if neither was."""

    problem: str
    """A phrase that names the invalid field and says what is wrong with it."""


def decode_or_malformed(kind: str, decode: Callable[[dict[str, Any]], Value], obj: object) -> Value | Malformed:
    """Return ``decode(obj)``. If ``obj`` is no JSON object or ``decode`` raises ValueError, return a Malformed instead.

    ``kind`` is the kind that the Malformed names.
    """
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
    """Return the number of days from 1970-01-01 to a date. Years start in March here, so a leap day is the last day."""
    year -= month <= 2
    in_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    era, of_era = divmod(year, 400)
    return era * _DAYS_IN_400_YEARS + of_era * 365 + of_era // 4 - of_era // 100 + in_year - _DAYS_TO_1970


def _date_from_days(days: int) -> tuple[int, int, int]:
    """Return the (year, month, day) that is ``days`` days after 1970-01-01."""
    era, of_era = divmod(days + _DAYS_TO_1970, _DAYS_IN_400_YEARS)
    in_era = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    in_year = of_era - (in_era * 365 + in_era // 4 - in_era // 100)
    month = (5 * in_year + 2) // 153
    day = in_year - (153 * month + 2) // 5 + 1
    return in_era + era * 400 + (month >= 10), (month + 2) % 12 + 1, day


_IDENTITY_FIELDS = frozenset({"hostname", "subdomain", "schedulingGroup", "workloadRef"})
"""Fields of a pod template's spec that name its owner or group, so that they differ even if the work is the same."""


_NUMBER = re.compile(r"([0-9]+)")


def natural_sort_key(name: str) -> list[Any]:
    """Return a sort key for names in natural order: ``rack-2`` before ``rack-10``."""
    return [int(part) if place % 2 else part for place, part in enumerate(_NUMBER.split(name))]


def read_end(metadata: Raw, status: Raw) -> int | None:
    """Return when a pod ended or will end, in seconds since 1970; None if unknown.

    That is its deletion timestamp, else the time at which the last of its containers terminated.
    """
    deleted = read_time(metadata, "deletionTimestamp")
    if deleted is not None:
        return deleted
    states = (read_map(read_map(one, "state"), "terminated") for one in read_objects(status, "containerStatuses"))
    return max((end for state in states if (end := read_time(state, "finishedAt")) is not None), default=None)


def read_device_claims(spec: Raw) -> tuple[str, ...]:
    """Return a text for each ResourceClaim that the spec of a pod or PodGroup names, sorted.

    The text is ``template NAME`` for a claim from a template, and ``claim`` for one that a user has created. The names
    of the claims are left out, so that the planner can treat members as equal that only differ in them.
    """
    claims = read_objects(spec, "resourceClaims")
    if not claims:
        return ()
    templates = (read_text(claim, "resourceClaimTemplateName") for claim in claims)
    return tuple(sorted(intern(f"template {name}") if name else "claim" for name in templates))


def fingerprint(template: Raw) -> int:
    """Return a hash of a pod template's spec that is equal for Jobs which run the same pods.

    The fields that name the owner or group do not count, nor do labels and annotations. The hash depends on the order
    of fields, so it must be of an object from the API server, which writes equal objects in the same order.
    """
    spec = {name: value for name, value in read_map(template, "spec").items() if name not in _IDENTITY_FIELDS}
    return int.from_bytes(hashlib.blake2b(repr(spec).encode(), digest_size=8).digest())


class Disruption(StrEnum):
    """The disruptionMode of a group: its pods may be preempted one by one (SINGLE), or only all together (ALL)."""

    SINGLE = "single"
    ALL = "all"


class Key(NamedTuple):
    """Namespace and name of an object of a known kind. ``namespace`` is "" for a cluster-scoped object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class GroupKind(StrEnum):
    """The kind of the object after which a group is named, written as ``Kind.group``.

    POD_GROUP   a PodGroup of scheduling.k8s.io, or of Serried's CRD where the cluster lacks that API
    COMPATIBLE  a PodGroup of scheduler-plugins
    COMPOSITE   the whole tree of a CompositePodGroup
    WORKLOAD    a PodGroup that is an entry in its Workload (v1alpha1)
    COUNTED     a pod group of Kueue, for which no object exists: annotations of its pods have its name and size
    NON_MEMBERS pods that name the PodGroup of a Job although the Job does not own them: Serried never binds them

    The other kinds are owners (Job, JobSet, LeaderWorkerSet): the group is the owner's pods, and Serried has not
    created the PodGroup yet.
    """

    POD_GROUP = "PodGroup"
    COMPATIBLE = "PodGroup.scheduling.x-k8s.io"
    COMPOSITE = "CompositePodGroup"
    WORKLOAD = "Workload"
    COUNTED = "PodGroup.kueue.x-k8s.io"
    vars().update({kind: kind for kind in OWNER_KINDS})  # members like the others: of a kind there is one row only
    NON_MEMBERS = "NonMembers"


BARE_KINDS = frozenset({GroupKind.COMPATIBLE, GroupKind.WORKLOAD, GroupKind.COUNTED})
"""Kinds of groups for which Serried can write neither a priority nor a condition.

Either their objects have no such fields, or there is no object at all.
"""


class GroupKey(NamedTuple):
    """Identifies a group: pods that are scheduled together, whether or not their PodGroup exists already.

    ``name`` is the name of an object of kind ``kind``. The meaning of ``part`` depends on the kind:

    - WORKLOAD: the name of the entry in the Workload.
    - JobSet, LeaderWorkerSet: the stage, such as one replicated Job; "" if all stages are one gang.
    - COUNTED: the number of pods that the group has when it is complete, as text.

    ``replica`` says to which replica of the object the group's pods belong: for a LeaderWorkerSet the index of the
    replica, for WORKLOAD the ``podGroupReplicaKey`` of the pods; "" if the object has no replicas.
    """

    namespace: str
    name: str
    kind: GroupKind = GroupKind.POD_GROUP
    part: str = ""
    replica: str = ""

    @property
    def object_key(self) -> Key:
        """The namespace and name of the object after which the group is named, which has the kind ``kind``."""
        return Key(self.namespace, self.name)

    @property
    def encoded(self) -> str:
        """The group as one string that is unique in its namespace: for Reservations, ``/debug`` and logs.

        For a PodGroup it is the PodGroup's name. For all other kinds it contains a colon or a slash, which a name
        cannot have: for instance ``job:train`` for the pods of Job ``train``.
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
        """The key for pods that name this group, which is a Job's, although the Job does not own them.

        Such pods may not join the group. Serried holds them under this key, so that they do not count for the quorum.
        No object has this key.
        """
        return GroupKey(self.namespace, self.name, GroupKind.NON_MEMBERS)

    def leaf(self, name: str) -> "GroupKey":
        """Return the key of the PodGroup ``name`` in this group's tree; for "" return this key itself."""
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
    """Return the group that `GroupKey.encoded` made this string for. Any other string is taken as a PodGroup's name."""
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
    """Return the apiVersion that CompositePodGroups usually have in a cluster with PodGroups of ``api_version``.

    In scheduling.k8s.io it is v1alpha3, else ``api_version`` itself. Which one the cluster really serves is in
    `ApiLevel.composite_api_version`.
    """
    return _COMPOSITE_APIS.get(api_version.partition("/")[0], api_version)


class ObjectReference(NamedTuple):
    """A reference to an object, for the ``regarding`` field of an event. The namespace is that of the event."""

    api_version: str
    kind: str
    name: str


ANNOTATION_PREFIX = "scheduling.serried.dev/"

INSTALLATION = "scheduling.serried.dev/installation"
"""Label of every object that belongs to or is created by an installation of Serried.

Its value is the namespace of Serried's processes.
"""

REQUIRED_TOPOLOGY = "scheduling.serried.dev/required-topology"
"""Annotation of a Job or PodGroup: the topology key of which all members must share one value.

On a PodGroup it replaces ``schedulingConstraints``, a field that API servers without the gate
TopologyAwareWorkloadScheduling drop silently. If both are set, the field wins.
"""


def name_object(kind: str, name: str) -> str:
    """Return an object's name as kubectl takes it: ``job/train``."""
    return f"{kind.lower()}/{name}"


OWNER = "scheduling.serried.dev/owner"
"""Annotation of a PodGroup of Serried's CRD: the owner, such as ``job/train``. It is for people; no code reads it."""

REPLACES = "scheduling.serried.dev/replaces"
"""Label of a Workload: the UID of the older Workload that it replaces.

Serried replaces a Workload to change minCount, if the API version does not allow to change it in place.
"""

GANG_POLICY = "scheduling.serried.dev/gang-policy"
"""Annotation of a Job: JobAsGang or NoGang (KEP-5764's field), set at its creation and never changed."""

DISRUPTION_MODE = "scheduling.serried.dev/disruption-mode"
"""Annotation of a Job: single or all, the disruption mode of its PodGroup."""

GROUP_TEMPLATE = "scheduling.k8s.io/group-template-name"
"""Annotation of a Job that has a controller: the template in the controller's Workload from which its PodGroup is made.

An empty value names the first template. Source: 1.37, pkg/controller/job/job_scheduling_manager.go.
"""

POD_GROUP_LABEL = "scheduling.serried.dev/pod-group"
"""Label of a pod: the name of its PodGroup, for clusters where pods have no field ``spec.schedulingGroup``.

In any cluster Serried adds it to the pod with the Binding, so that selectors find all bound members.
"""

LABELLED_BY_BINDING = "scheduling.serried.dev/labelled"
"""Annotation of a bound pod: its POD_GROUP_LABEL was not set by a user, but added by Serried with the Binding.

Such a label does not decide about the pod's group, which the pod names by other means, for instance by its owner.
"""

COMPATIBLE_LABEL = "scheduling.x-k8s.io/pod-group"
"""Label of a pod: its PodGroup of scheduler-plugins."""

KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"
"""Label of a pod: the name of its pod group of Kueue. A name that is too long for a label is in the same annotation.

Source: Kueue 0.19, pkg/controller/jobs/pod/constants/constants.go.
"""

KUEUE_COUNT = "kueue.x-k8s.io/pod-group-total-count"
"""Annotation of a pod of Kueue's pod group: how many pods the group has."""

KUEUE_GROWING = ("kueue.x-k8s.io/pod-group-serving", "kueue.x-k8s.io/pod-group-fast-admission")
"""Annotations of pods of a Kueue group. If one is ``true``, pods may be created one after the other: it is no gang.

Kueue sets them for StatefulSets, for example.
"""


GANG = "scheduling.serried.dev/gang"
"""Annotation that the Binding adds to a member: the apiVersion and the name of its group, separated by a space."""

DOMAIN = "scheduling.serried.dev/domain"
"""Annotation that the Binding adds to a member: the domain, i.e. the value of the gang's topology key on the node."""

ASKED = "scheduling.serried.dev/asked-for-nodes"
"""Annotation of a member for which Serried has asked an autoscaler to add nodes.

Its value is the time at which it asked (RFC 3339). If the gang has a topology key, a space and ``key=domain`` follow:
the domain in which the new nodes are wanted.
"""

CONSUMES = "autoscaling.x-k8s.io/consume-provisioning-request"
"""Annotation of a pod: the name of the ProvisioningRequest by which Cluster Autoscaler has added the pod's node."""

_LABEL_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_MAX_PREFIX_LENGTH = 253
_MAX_KEY_LENGTH = _MAX_PREFIX_LENGTH + 1 + 63


_MAX_QUOTED = 200
"""The maximum number of characters of a user's text that `quote` repeats in a message."""

_MAX_COMPARED = 64
"""The maximum number of characters of a key that are compared with the known keys to suggest the right one.

Comparing longer texts would block the event loop for too long.
"""


def is_label_key(text: str) -> bool:
    """Return whether the API server accepts the text as the key of a label (``k8s-label-key``, IsQualifiedName)."""
    fits = len(text) <= _MAX_KEY_LENGTH
    return fits and _LABEL_KEY.fullmatch(text) is not None and len(text.rpartition("/")[0]) <= _MAX_PREFIX_LENGTH


_SINGULAR = {"do": "does", "have": "has", "are": "is"}


def count_things(count: int, word: str, verb: str = "") -> str:
    """Return the count and the word, for texts that users read: ``1 node``, or ``4 nodes``.

    ``word`` is singular. ``verb`` is plural, and "" for none: ``have`` gives ``1 node has``, or ``4 nodes have``.
    """
    if count == 1:
        return " ".join(filter(None, (f"1 {word}", verb and _SINGULAR.get(verb, f"{verb}s"))))
    return " ".join(filter(None, (f"{count} {word}s", verb)))


def join_some(names: Sequence[str], most: int) -> str:
    """Return at most ``most`` names and the number of further ones, for texts that users read: ``a, b and 4 more``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def quote(value: object) -> str:
    """Return ``repr(value)`` for a message, shortened because a user's annotation may have 256 KiB."""
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
    """Return namespace and name of an object to which other objects refer; raise ValueError if it has no name.

    For instance a Job, whose name is in the owner references of its pods. So unlike `read_key` it interns the name, to
    save memory.
    """
    namespace, name = read_key(obj)
    return Key(namespace, intern(name))


def read_owner_uid(obj: Raw) -> str:
    """Return the UID of an object to which other objects refer; raise ValueError if it has none.

    For instance a Job, whose UID is in the owner references of its pods. So unlike `read_uid` it interns the UID, to
    save memory.
    """
    return intern(read_uid(obj))


def read_version(obj: Raw) -> str:
    """Return the resourceVersion of an object; "" if it has none."""
    return read_text(read_map(obj, "metadata"), "resourceVersion")


def is_deleting(obj: Raw) -> bool:
    """Return whether the object has a deletion timestamp."""
    return bool(read_text(read_map(obj, "metadata"), "deletionTimestamp"))


def read_owners(obj: Raw) -> tuple[OwnerRef, ...]:
    """Return all owner references of an object, in their order."""
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
    """Return the group that POD_GROUP_LABEL on a pod or pod template names; None without the label.

    Return None also if Serried itself has added the label when it bound the pod, which the annotation
    LABELLED_BY_BINDING says. Then the pod's group is known by other means, such as the pod's owner.
    """
    name = read_text(read_map(metadata, "labels"), POD_GROUP_LABEL)
    told = LABELLED_BY_BINDING in read_map(metadata, "annotations")
    return _shared_key(namespace, name) if name and not told else None


def read_compatible_label(metadata: Raw, namespace: str) -> GroupKey | None:
    """Return the group that the label of scheduler-plugins on a pod or pod template names; None without the label."""
    name = read_text(read_map(metadata, "labels"), COMPATIBLE_LABEL)
    return _shared_key(namespace, name, GroupKind.COMPATIBLE) if name else None


def read_kueue_group(metadata: Raw, namespace: str) -> GroupKey | None:
    """Return the pod group of Kueue to which a pod belongs; None if it has none that Serried schedules as a gang.

    It is no gang if the annotation with the number of pods is missing or invalid. It is none either if one of Kueue's
    annotations in KUEUE_GROWING is ``true``: pods of the group may then be created one after the other.
    """
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
    """Return the topology key in the annotation REQUIRED_TOPOLOGY of a PodGroup or Workload; None if it has none."""
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
"""Label of a PodGroup that Serried creates for one replica of a LeaderWorkerSet: the index of the replica."""

JOB = "Job"


DISRUPTION_TARGET = "DisruptionTarget"
"""The type of the condition of a pod or group that is about to be evicted, for instance because it is preempted.

The evicting component sets it; upstream has it for pods.
"""

PREEMPTED = "PreemptionByScheduler"
"""The reason of DisruptionTarget when a kube-scheduler preempts the pod (k8s.io/api/core/v1/types.go)."""


# --- the annotations and labels of Serried that have an effect --------------------------------------------------------

# Any other key with the prefix has no effect: `find_ineffective_key` finds it on an object, and suggests the probable
# one. The admission policy manifests/kustomize/policies/annotations.yaml rejects the same keys, with a copy of KNOWN.

POD_TEMPLATE = "PodTemplate"
"""The key in KNOWN for the pod template inside an object such as a Job."""


class KnownKeys(NamedTuple):
    """The annotations and labels of Serried that have an effect on objects of one kind.

    Each is written as the part after ANNOTATION_PREFIX, such as ``packing``.
    """

    annotations: tuple[str, ...] = ()
    """The annotations that users set."""

    labels: tuple[str, ...] = ()
    """The labels that users set."""

    marks: tuple[str, ...] = ()
    """The annotations and labels that Serried or its command line sets."""


_POD_GROUP = "pod-group"
_PLACEMENT = ("required-topology", "preferred-topology", "packing", "exclusive")
_OWNER = KnownKeys(("gang-policy", *_PLACEMENT, "disruption-mode"), marks=("installation", "suspended"))
_MADE = ("installation", "job-uid", "parent-uid")

KNOWN: Mapping[str, KnownKeys] = {
    "CronJob": KnownKeys(marks=("installation",)),
    **dict.fromkeys(OWNER_KINDS, _OWNER),
    "PodGroup": KnownKeys(_PLACEMENT, (_POD_GROUP,), marks=(*_MADE, "owner", "replica")),
    "CompositePodGroup": KnownKeys(("required-topology",), (_POD_GROUP,), marks=_MADE),
    "Workload": KnownKeys(_PLACEMENT, (_POD_GROUP,), marks=(*_MADE, "replaces")),
    "Pod": KnownKeys(
        labels=(_POD_GROUP,),
        marks=("installation", "gang", "labelled", "domain", "rank", "kick", "asked-for-nodes"),
    ),
    POD_TEMPLATE: KnownKeys(labels=(_POD_GROUP,), marks=("installation",)),
}
"""The annotations and labels of Serried that an object of each kind may have. (The admission policy has the same.)

The label pod-group has no effect on groups and Workloads. It is allowed there because tools such as kustomize add the
labels of pods to all objects.

A key that a newer release does not set any more stays here as long as an upgrade from a release that sets it is
supported.
"""


class MetadataSection(NamedTuple):
    """The metadata of an object, or of a pod template inside it."""

    kind: str
    """The kind of the object, or POD_TEMPLATE: a key of ``KNOWN``."""

    metadata: Raw

    where: str = ""
    """A phrase for messages that says whose metadata it is: ``of the pod template``, or "" for the object's own."""


def list_metadata(kind: str, obj: Raw, pod_templates: Iterable[Raw] = ()) -> list[MetadataSection]:
    """Return the metadata of an object, then that of each of the ``pod_templates`` in it.

    ``kind`` is the kind of ``obj``, such as ``Job``. It decides which annotations have an effect (KNOWN).
    """
    own = MetadataSection(kind, read_map(obj, "metadata"))
    return [
        own,
        *(MetadataSection(POD_TEMPLATE, read_map(each, "metadata"), "of the pod template") for each in pod_templates),
    ]


def find_ineffective_key(parts: Sequence[MetadataSection]) -> str:
    """Return a phrase about the first annotation or label of Serried in an object that has no effect there.

    For instance it is misspelt, or set on a Job instead of its pod template. The phrase names it and suggests the right
    one; "" if there is none. ``parts`` is the object's own metadata, then that of its pod templates. A key that has an
    effect in one of them is accepted in all, because tools such as kustomize add common annotations everywhere.
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
    return "" if stray is None else _explain_ineffective_key(*stray, parts[0].kind)


def _is_known(kind: str, field: str, key: str) -> bool:
    known, name = KNOWN[kind], key.removeprefix(ANNOTATION_PREFIX)
    return name in known.marks or name in (known.annotations if field == "annotations" else known.labels)


def _explain_ineffective_key(part: MetadataSection, field: str, key: str, kind: str) -> str:
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
    """Raised if the state of a reservation or binding cycle does not allow a change: a bug. The state is unchanged."""
