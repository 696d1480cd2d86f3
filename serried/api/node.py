"""Nodes, and what gives them more than they show: device classes.

A node's capacity is ``status.allocatable``, as for kube-scheduler. Of device classes (resource.k8s.io) only the
resource counts that they give to nodes which do not show it.
"""

from dataclasses import dataclass, field

from serried.api.names import (
    Malformed,
    Raw,
    attempt,
    read_flag,
    read_key,
    read_labels,
    read_map,
    read_name,
    read_objects,
    read_text,
    read_version,
)
from serried.api.resources import DEVICE_CLASS_PREFIX, Resources, read_amounts
from serried.api.selectors import Labels, Taint


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster. ``version`` is its resourceVersion: equal versions mean an equal object."""

    name: str
    allocatable: Resources
    labels: Labels = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    version: str = ""


def decode_node(obj: object) -> Node | Malformed:
    """A Node from its JSON object; the name is required."""
    return attempt("Node", _decode, obj)


def _decode(obj: Raw) -> Node:
    spec = read_map(obj, "spec")
    return Node(
        name=read_key(obj).name,
        allocatable=read_amounts(read_map(obj, "status"), "allocatable"),
        labels=read_labels(read_map(obj, "metadata"), "labels"),
        taints=tuple(_read_taint(raw) for raw in read_objects(spec, "taints")),
        unschedulable=read_flag(spec, "unschedulable"),
        version=read_version(obj),
    )


def _read_taint(raw: Raw) -> Taint:
    return Taint(read_name(raw, "key"), read_name(raw, "value"), read_name(raw, "effect"))


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass."""

    name: str

    resource: str = ""
    """spec.extendedResourceName, "" if it names none."""

    version: str = ""

    @property
    def provides(self) -> frozenset[str]:
        """The extended resources that pods can ask for to get its devices."""
        return frozenset({DEVICE_CLASS_PREFIX + self.name, self.resource}) - {""}


def decode_device_class(obj: object) -> DeviceClass | Malformed:
    """A DeviceClass; the name is required. Only v1 (1.34) and later name an extended resource."""
    return attempt("DeviceClass", _decode_class, obj)


def _decode_class(obj: Raw) -> DeviceClass:
    return DeviceClass(read_key(obj).name, read_name(read_map(obj, "spec"), "extendedResourceName"), read_version(obj))


def read_unclaimed(spec: Raw, status: Raw) -> str:
    """The first template from which a claim of the pod has still to be made, "" if all are made.

    kube-controller-manager makes the claim and notes it in the pod's status; kube-scheduler waits for that.
    """
    claims = read_objects(spec, "resourceClaims")
    if not claims:
        return ""
    made = {read_text(entry, "name") for entry in read_objects(status, "resourceClaimStatuses")}
    templates = (read_name(c, "resourceClaimTemplateName") for c in claims if read_text(c, "name") not in made)
    return next(filter(None, templates), "")
