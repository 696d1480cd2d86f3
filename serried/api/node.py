"""Nodes. A node's capacity is ``status.allocatable``, as for kube-scheduler."""

from dataclasses import dataclass, field
from functools import lru_cache

from serried.api.names import (
    Malformed,
    Raw,
    attempt,
    read_flag,
    read_key,
    read_labels,
    read_map,
    read_objects,
    read_texts,
    read_time,
    read_version,
)
from serried.api.resources import Resources, read_amounts
from serried.api.selectors import Labels, Taint, read_taint


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


def decode_node(obj: object) -> Node | Malformed:
    """Decode a Node; the name is required."""
    return attempt("Node", _decode, obj)


def _decode(obj: Raw) -> Node:
    spec, status = read_map(obj, "spec"), read_map(obj, "status")
    return Node(
        name=read_key(obj).name,
        allocatable=read_amounts(status, "allocatable"),
        labels=read_labels(read_map(obj, "metadata"), "labels"),
        taints=tuple(read_taint(raw) for raw in read_objects(spec, "taints")),
        unschedulable=read_flag(spec, "unschedulable"),
        created=read_time(read_map(obj, "metadata"), "creationTimestamp"),
        features=_share(tuple(read_texts(status, "declaredFeatures"))),
        version=read_version(obj),
    )


@lru_cache(maxsize=256)
def _share(features: tuple[str, ...]) -> tuple[str, ...]:
    """Return an equal tuple that is shared by all nodes with these features, to save memory."""
    return features
