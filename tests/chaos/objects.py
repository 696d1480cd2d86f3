"""The invariant checker's view of each object, read from its JSON. No I/O, and none of Serried's own decoders."""

import json
import zlib
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OUR_SCHEDULER = "serried"
OUR_MANAGER = "serried"
POD_GROUP_LABEL = "scheduling.serried.dev/pod-group"
REQUIRED_TOPOLOGY = "scheduling.serried.dev/required-topology"
_PREEMPTED = "PreemptionByScheduler"
_ENDED = frozenset({"Succeeded", "Failed"})
_CONDITIONS = frozenset({"PodGroupInitiallyScheduled", "PodGroupScheduled", "CompositePodGroupInitiallyScheduled"})

Raw = Mapping[str, Any]
Name = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod."""

    uid: str
    name: Name
    group: Name | None
    """The PodGroup that it names, or that is of the same Job; None for a pod of no gang."""

    node: str
    """The name of the node; "" if the pod is not bound."""

    ours: bool
    """True if the pod is for the scheduler that asks Serried."""

    ended: bool
    """True if the pod has succeeded or failed."""

    deleting: bool
    gated: bool
    milli_cpu: int

    nominated: str
    """The node that Serried itself has nominated it to, "" for none."""

    preempted: bool = False
    """True if the pod has to go for a pod of a higher priority."""

    succeeded: bool = False

    owner: str = ""
    """The UID of its controller, "" without one."""

    @property
    def is_plain(self) -> bool:
        """Return whether the pod is for our scheduler and of no gang."""
        return self.ours and self.group is None and not self.owner


@dataclass(frozen=True, slots=True)
class Group:
    """A PodGroup, or a CompositePodGroup with ``min_groups``."""

    uid: str
    name: Name

    min_count: int
    """0 for policy basic."""

    min_groups: int
    key: str
    """The required topology key, "" for none."""

    parent: str
    deleting: bool
    finalizers: tuple[str, ...]

    reason: str
    """The message of the scheduling condition, which begins with the reason; "" without it."""

    owner: str = ""
    """The UID of its controller, of whose pods it is the group; "" without one."""

    scheduled: bool = False
    """True if the condition says that the group was scheduled. It stays so, and gives no reason any more."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node."""

    name: str
    labels: Mapping[str, str]
    milli_cpu: int
    pods: int

    admits: bool
    """True if the node accepts new pods."""


@dataclass(frozen=True, slots=True)
class Record:
    """A Reservation object."""

    uid: str
    name: Name
    group_uid: str
    committed: bool

    slots: Mapping[str, str] = field(default_factory=dict)
    """The node of each member, by UID."""


def read_name(raw: Raw) -> Name:
    """Namespace and name of any object."""
    metadata = raw["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def read_pod(raw: Raw) -> Pod:
    """A pod."""
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status", {})
    namespace, _ = name = read_name(raw)
    group = spec.get("schedulingGroup", {}).get("podGroupName") or metadata.get("labels", {}).get(POD_GROUP_LABEL)
    requests = (each.get("resources", {}).get("requests", {}) for each in spec["containers"])
    return Pod(
        uid=metadata["uid"],
        name=name,
        group=(namespace, group) if group else None,
        node=spec.get("nodeName", ""),
        ours=spec.get("schedulerName") == OUR_SCHEDULER,
        ended=status.get("phase") in _ENDED,
        deleting="deletionTimestamp" in metadata,
        gated=bool(spec.get("schedulingGates")),
        milli_cpu=sum(read_milli(each.get("cpu", "0")) for each in requests),
        nominated=status.get("nominatedNodeName", "") if _is_nominated_by_us(metadata) else "",
        preempted=any(each.get("reason") == _PREEMPTED for each in status.get("conditions") or ()),
        succeeded=status.get("phase") == "Succeeded",
        owner=_read_controller(metadata),
    )


def _read_controller(metadata: Raw) -> str:
    return next((each["uid"] for each in metadata.get("ownerReferences") or () if each.get("controller")), "")


def _is_nominated_by_us(metadata: Raw) -> bool:
    for entry in metadata.get("managedFields") or ():
        if entry.get("manager") == OUR_MANAGER:
            fields = entry.get("fieldsV1", {}).get("f:status", {})
            if "f:nominatedNodeName" in fields:
                return True
    return False


def read_group(raw: Raw) -> Group:
    """A PodGroup or a CompositePodGroup."""
    metadata, spec = raw["metadata"], raw.get("spec", {})
    gang = spec.get("schedulingPolicy", {}).get("gang") or {}
    constraints = spec.get("schedulingConstraints", {}).get("topology") or [{}]
    annotated = metadata.get("annotations", {}).get(REQUIRED_TOPOLOGY, "")
    conditions = raw.get("status", {}).get("conditions") or ()
    said = [each for each in conditions if each.get("type") in _CONDITIONS]
    return Group(
        uid=metadata["uid"],
        name=read_name(raw),
        min_count=int(gang.get("minCount", 0)),
        min_groups=int(gang.get("minGroupCount", 0)),
        key=constraints[0].get("key", "") or annotated,
        parent=spec.get("parentCompositePodGroupName", ""),
        deleting="deletionTimestamp" in metadata,
        finalizers=tuple(metadata.get("finalizers") or ()),
        reason=said[0].get("message", "") if said else "",
        scheduled=any(each.get("status") == "True" for each in said),
        owner=_read_controller(metadata),
    )


def read_node(raw: Raw) -> Node:
    """A node."""
    room = raw.get("status", {}).get("allocatable", {})
    spec = raw.get("spec", {})
    return Node(
        name=raw["metadata"]["name"],
        labels=raw["metadata"].get("labels", {}),
        milli_cpu=read_milli(room.get("cpu", "0")),
        pods=int(room.get("pods", "0")),
        admits=not spec.get("unschedulable") and not spec.get("taints"),
    )


def read_record(raw: Raw) -> Record:
    """A Reservation."""
    spec = raw["spec"]
    slots = {member["uid"]: slot["node"] for slot in list_slots(spec) for member in slot["members"]}
    return Record(raw["metadata"]["uid"], read_name(raw), spec["podGroupUID"], spec["phase"] == "Committed", slots)


def list_slots(spec: Raw) -> list[Raw]:
    """The slots in the spec of a Reservation, which may be packed."""
    lists = json.loads(zlib.decompress(b64decode(spec["packed"]))) if spec.get("packed") else spec
    return list(lists.get("slots") or ())


def read_milli(text: str) -> int:
    """A quantity of CPU as a load or a node writes it: ``2`` or ``250m``."""
    return int(text.removesuffix("m")) if text.endswith("m") else 1000 * int(text)
