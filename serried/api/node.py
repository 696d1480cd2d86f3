"""Nodes. A node's capacity is ``status.allocatable``, as for kube-scheduler."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from serried.api.names import (
    Malformed,
    Raw,
    decode_or_malformed,
    read_flag,
    read_key,
    read_labels,
    read_map,
    read_objects,
    read_text,
    read_texts,
    read_time,
    read_version,
)
from serried.api.resources import Resources, read_amounts
from serried.api.selectors import Labels, Taint, read_taint

KEEPS_NODE = ("cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt")
"""The annotations by which autoscalers leave a node alone, Cluster Autoscaler and Karpenter. The value is "true"."""

PROTECTS = "scheduling.serried.dev/protects"
"""The marker on a node that Serried protects from autoscalers: ``NAMESPACE: ANNOTATION, ANNOTATION``.

The namespace is that of the installation. The annotations are those of `KEEPS_NODE` that it has set. It has set none if
others had set both.
"""

_SET = "true"


@dataclass(frozen=True, slots=True)
class Protection:
    """The marker of a node that one installation of Serried protects from autoscalers, as it was read."""

    installation: str
    """The namespace of the installation."""

    own: frozenset[str]
    """The annotations of `KEEPS_NODE` that the installation has set, and that have its value still."""

    missing: frozenset[str]
    """The annotations of `KEEPS_NODE` that are not on the node, because somebody has removed them."""


def read_protection(annotations: Mapping[str, object]) -> Protection | None:
    """Return what the annotations of a node say of its protection; None without a marker.

    Raise ValueError if the marker is not a string.
    """
    if PROTECTS not in annotations:
        return None
    installation, _, listed = read_text(annotations, PROTECTS).partition(":")
    set_by_it = {name.strip() for name in listed.split(",")}
    own = frozenset(name for name in KEEPS_NODE if name in set_by_it and annotations.get(name) == _SET)
    return Protection(installation, own, frozenset(KEEPS_NODE) - annotations.keys())


def protect(annotations: Mapping[str, object], installation: str) -> dict[str, str | None]:
    """Return the merge patch of a node's annotations that protects it; {} if nothing is to be done.

    Annotations that are there stay as they are. Nothing is done where another installation protects the node. Raise
    ValueError if the marker is not a string.
    """
    found = read_protection(annotations)
    if found is not None and found.installation != installation:
        return {}
    added = frozenset(KEEPS_NODE) - annotations.keys()
    own = added if found is None else added | found.own
    marker = f"{installation}: {', '.join(sorted(own))}".rstrip()
    if not added and annotations.get(PROTECTS) == marker:
        return {}
    return {**dict.fromkeys(sorted(added), _SET), PROTECTS: marker}


def unprotect(annotations: Mapping[str, object], installation: str) -> dict[str, str | None]:
    """Return the merge patch of a node's annotations that removes what an installation has set; {} for nothing.

    An annotation that has another value by now is somebody else's, and stays. Raise ValueError if the marker is not a
    string.
    """
    found = read_protection(annotations)
    if found is None or found.installation != installation:
        return {}
    return dict.fromkeys([*sorted(found.own), PROTECTS])


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster. ``version`` is its resourceVersion."""

    name: str
    allocatable: Resources
    labels: Labels = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False

    features: tuple[str, ...] = ()
    """The features that the kubelet declares (``status.declaredFeatures``)."""

    created: int | None = None
    """The time of creation, in seconds since 1970."""

    version: str = ""

    protection: Protection | None = field(default=None, compare=False)
    """The marker of its protection when the object was decoded. `Store.protections` has those that count."""


def decode_node(obj: object) -> Node | Malformed:
    """Decode a Node; the name is required."""
    return decode_or_malformed("Node", _decode, obj)


def _decode(obj: Raw) -> Node:
    spec, status, metadata = read_map(obj, "spec"), read_map(obj, "status"), read_map(obj, "metadata")
    return Node(
        name=read_key(obj).name,
        allocatable=read_amounts(status, "allocatable"),
        labels=read_labels(metadata, "labels"),
        taints=tuple(read_taint(raw) for raw in read_objects(spec, "taints")),
        unschedulable=read_flag(spec, "unschedulable"),
        created=read_time(read_map(obj, "metadata"), "creationTimestamp"),
        features=_share(tuple(read_texts(status, "declaredFeatures"))),
        version=read_version(obj),
        protection=read_protection(read_map(metadata, "annotations")),
    )


@lru_cache(maxsize=256)
def _share(features: tuple[str, ...]) -> tuple[str, ...]:
    """Return an equal tuple that is shared by all nodes with these features, to save memory."""
    return features
