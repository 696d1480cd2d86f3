"""Nodes (`decode_node`), and their protection from autoscalers (`protect`, `unprotect`).

A node's capacity is ``status.allocatable``, as for kube-scheduler.
"""

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

DO_NOT_REMOVE = ("cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt")
"""The annotations by which Cluster Autoscaler and Karpenter do not remove a node. Their value is "true"."""

PROTECTED_BY = "scheduling.serried.dev/protects"
"""Annotation of a node that Serried protects from being removed by an autoscaler: who protects it, and how.

Its value is ``NAMESPACE: ANNOTATION, ANNOTATION``. The namespace is that of the Serried installation. Listed are those
of the `DO_NOT_REMOVE` annotations that it has set itself. It sets none that is on the node already.
"""

_SET = "true"


@dataclass(frozen=True, slots=True)
class Protection:
    """The protection of a node from being removed by autoscalers, as read from its annotation `PROTECTED_BY`."""

    installation: str
    """The namespace of the Serried installation that protects the node."""

    own: frozenset[str]
    """The `DO_NOT_REMOVE` annotations that the installation has set itself, and that still are "true"."""

    missing: frozenset[str]
    """The `DO_NOT_REMOVE` annotations that the node lacks now, because somebody has removed them since."""


def read_protection(annotations: Mapping[str, object]) -> Protection | None:
    """Return how a node with these annotations is protected; None if no installation of Serried protects it.

    Raises ValueError if the annotation `PROTECTED_BY` is not a string.
    """
    if PROTECTED_BY not in annotations:
        return None
    installation, _, listed = read_text(annotations, PROTECTED_BY).partition(":")
    set_by_it = {name.strip() for name in listed.split(",")}
    own = frozenset(name for name in DO_NOT_REMOVE if name in set_by_it and annotations.get(name) == _SET)
    return Protection(installation, own, frozenset(DO_NOT_REMOVE) - annotations.keys())


def protect(annotations: Mapping[str, object], installation: str) -> dict[str, str | None]:
    """Return the merge patch for a node's annotations by which an installation protects the node from autoscalers.

    ``installation`` is its namespace. The patch does not change `DO_NOT_REMOVE` annotations that are there. It is {} if
    the node is protected already, or if another installation protects it. Raises ValueError if the annotation
    `PROTECTED_BY` is not a string.
    """
    found = read_protection(annotations)
    if found is not None and found.installation != installation:
        return {}
    added = frozenset(DO_NOT_REMOVE) - annotations.keys()
    own = added if found is None else added | found.own
    marker = f"{installation}: {', '.join(sorted(own))}".rstrip()
    if not added and annotations.get(PROTECTED_BY) == marker:
        return {}
    return {**dict.fromkeys(sorted(added), _SET), PROTECTED_BY: marker}


def unprotect(annotations: Mapping[str, object], installation: str) -> dict[str, str | None]:
    """Return the merge patch for a node's annotations by which an installation ends its protection of the node.

    It removes what the installation has set; {} if that is nothing. An annotation that has another value by now stays,
    because somebody else has set that value. Raises ValueError if the annotation `PROTECTED_BY` is not a string.
    """
    found = read_protection(annotations)
    if found is None or found.installation != installation:
        return {}
    return dict.fromkeys([*sorted(found.own), PROTECTED_BY])


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster. ``version`` is its resourceVersion."""

    name: str
    allocatable: Resources
    labels: Labels = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False

    features: tuple[str, ...] = ()
    """The features that the node's kubelet supports (``status.declaredFeatures``), which pods may require."""

    created: int | None = None
    """The time of creation, in seconds since 1970."""

    version: str = ""

    protection: Protection | None = field(default=None, compare=False)
    """The protection of the node when the object was decoded; None if it was not protected.

    Use `Store.protections` instead, which is always current: the Store keeps its old Node if only this changes.
    """


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
    """Return a tuple equal to ``features``: one object for all nodes with the same features, to save memory.

    The features are those that a kubelet supports (``status.declaredFeatures``).
    """
    return features
