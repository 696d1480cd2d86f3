"""Metadata that all kinds share: key, labels, owners."""

import re
from functools import lru_cache
from sys import intern

from serried.decode.fields import Raw, read_flag, read_map, read_name, read_objects, read_required, read_text
from serried.model.group import GroupKey, GroupKind, Key, OwnerRef

REQUIRED_TOPOLOGY = "scheduling.serried.dev/required-topology"
"""Annotation of a Job or PodGroup: the topology key of which all members must share one value.

On a PodGroup it stands for ``schedulingConstraints``, a field that API servers without the gate
TopologyAwareWorkloadScheduling drop without a word. Where both are set, the field counts.
"""

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
