"""Pods. Nothing of the raw object is kept; strings that many pods share are interned."""

from collections.abc import Collection
from functools import lru_cache, partial

from serried.decode.conflicts import read_affinity
from serried.decode.devices import read_device_claims, read_unclaimed
from serried.decode.fields import Raw, read_index, read_int, read_labels, read_map, read_name, read_objects, read_text
from serried.decode.identity import (
    DOMAIN,
    GANG,
    is_deleting,
    read_compatible_label,
    read_controller,
    read_group_field,
    read_group_label,
    read_key,
    read_uid,
    read_version,
)
from serried.decode.lifetimes import read_end, read_grace, read_lifetime
from serried.decode.malformed import Malformed, attempt
from serried.decode.objections import is_for_room, list_refusals, read_objection, was_offered
from serried.decode.parents import WORKER_INDEX, read_place
from serried.decode.priority import read_preemption
from serried.decode.requests import is_marked
from serried.decode.shapes import decode_shape
from serried.decode.times import read_time
from serried.decode.volumes import read_claims
from serried.model.group import GroupKey
from serried.model.level import ResizeRule
from serried.model.parent import ParentKind, Place
from serried.model.pod import DISRUPTION_TARGET, ControllerRef, Link, Phase, Pod

COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
"""Annotation, and since 1.28 label too, of the pods of an Indexed Job."""

_REJECTED = "Pod was rejected: "
"""The begin of the kubelet's message about a pod that it never ran (1.37, kubelet.go: rejectPod)."""

_OUT_OF = "OutOf"
_REFUSALS = frozenset({"NodeAffinity", "NodePorts", "NodeName", "TaintToleration", "UnexpectedAdmissionError"})
"""Reasons with which the kubelet refuses a pod (1.37, lifecycle/predicate.go), besides those that begin with OutOf."""

_PHASES = {"Succeeded": Phase.SUCCEEDED, "Failed": Phase.FAILED}


def decode_pod(
    obj: object, apis: Collection[str] | None = None, rule: ResizeRule = ResizeRule.LARGEST
) -> Pod | Malformed:
    """A Pod from its JSON object; namespace, name and uid are required.

    ``apis`` are the apiVersions at which groups are read (`ApiLevel.read`); without, that is all of them. By ``rule``
    a resize is counted (`ApiLevel.resize_rule`).
    """
    return attempt("Pod", partial(_decode, apis=apis, rule=rule), obj)


def _decode(obj: Raw, apis: Collection[str] | None, rule: ResizeRule) -> Pod:
    spec = read_map(obj, "spec")
    status = read_map(obj, "status")
    namespace, name = read_key(obj)
    if not namespace:
        raise ValueError("namespace is missing")
    group, link = _read_group(obj, spec, namespace)
    place = read_place(read_map(read_map(obj, "metadata"), "labels"))
    said = read_text(status, "phase")
    phase = _PHASES.get(said, Phase.ACTIVE)
    node = read_name(spec, "nodeName")
    deleting = is_deleting(obj)
    started, lifetime = read_lifetime(spec, status)
    annotations = read_map(read_map(obj, "metadata"), "annotations")
    gang = read_text(annotations, GANG)
    disruption, disrupted, message = _read_disruption(status)
    shape, objection = decode_shape(obj, rule), read_objection(status)
    return Pod(
        namespace=namespace,
        name=name,
        uid=read_uid(obj),
        labels=read_labels(read_map(obj, "metadata"), "labels"),
        shape=shape,
        scheduler=read_name(spec, "schedulerName", "default-scheduler"),
        node=node,
        nominated=read_name(status, "nominatedNodeName"),
        priority=read_int(spec, "priority"),
        preemption=read_preemption(spec),
        phase=phase,
        group=group,
        link=link,
        owner=_read_owner(obj),
        place=place,
        claims=read_claims(name, spec),
        gates=tuple([read_name(gate, "name") for gate in read_objects(spec, "schedulingGates")]),
        index=_read_index(obj, place),
        deleting=deleting,
        unschedulable=_was_tried_in_vain(status),
        created=read_time(read_map(obj, "metadata"), "creationTimestamp"),
        started=started,
        unstarted=said == "Pending",
        ready=bool(node) and _is_ready(status),
        lifetime=lifetime,
        grace=read_grace(spec),
        ends=read_end(read_map(obj, "metadata"), status) if deleting or phase is not Phase.ACTIVE else None,
        disruption=disruption,
        disrupted=disrupted,
        disruption_message=message,
        refusal=_read_refusal(status),
        domain=read_name(annotations, DOMAIN),
        told=bool(gang),
        stranded=bool(gang) and apis is not None and gang.partition(" ")[0] not in apis,
        marked=is_marked(spec),
        device_claims=read_device_claims(spec),
        unclaimed=read_unclaimed(spec, status),
        objection=objection,
        affinity=read_affinity(spec),
        wants_room=bool(objection) and is_for_room(objection, shape),
        offered=was_offered(status),
        version=read_version(obj),
    )


def _read_group(obj: Raw, spec: Raw, namespace: str) -> tuple[GroupKey | None, Link | None]:
    """The group that the pod names, and by what: its field counts first, then our label, then the compatible label."""
    metadata = read_map(obj, "metadata")
    if group := read_group_field(spec, namespace):
        return group, Link.FIELD
    if group := read_group_label(metadata, namespace):
        return group, Link.LABEL
    if group := read_compatible_label(metadata, namespace):
        return group, Link.COMPATIBLE
    return None, None


def _read_owner(obj: Raw) -> ControllerRef | None:
    reference = read_controller(obj)
    return _shared_owner(reference.kind, reference.name, reference.uid) if reference else None


@lru_cache(maxsize=8192)
def _shared_owner(kind: str, name: str, uid: str) -> ControllerRef:
    return ControllerRef(kind, name, uid)


def _was_tried_in_vain(status: Raw) -> bool:
    """Whether the condition PodScheduled is False. Gated pods, which have it too, were never tried."""
    return any(read_text(condition, "reason") != "SchedulingGated" for condition in list_refusals(status))


def _is_ready(status: Raw) -> bool:
    return any(
        read_text(condition, "type") == "Ready" and read_text(condition, "status") == "True"
        for condition in read_objects(status, "conditions")
    )


def _read_disruption(status: Raw) -> tuple[str, int | None, str]:
    """The reason, the time and the message of condition DisruptionTarget; "", None and "" unless it is True."""
    for condition in read_objects(status, "conditions"):
        if read_text(condition, "type") == DISRUPTION_TARGET and read_text(condition, "status") == "True":
            reason = read_name(condition, "reason") or "Disrupted"
            return reason, read_time(condition, "lastTransitionTime"), read_text(condition, "message")
    return "", None, ""


def _read_refusal(status: Raw) -> str:
    """Why the kubelet refused to run the pod; "" if it did not refuse."""
    if read_text(status, "phase") != "Failed":
        return ""
    reason = read_name(status, "reason")
    refused = reason in _REFUSALS or reason.startswith(_OUT_OF) or read_text(status, "message").startswith(_REJECTED)
    return (reason or "Rejected") if refused else ""


def _read_index(obj: Raw, place: Place | None) -> int | None:
    metadata = read_map(obj, "metadata")
    labels = read_map(metadata, "labels")
    if place is not None and place.kind is ParentKind.LEADER_WORKER_SET:
        return read_index(labels, WORKER_INDEX)
    annotations = read_map(metadata, "annotations")
    return read_index(annotations if annotations.get(COMPLETION_INDEX) else labels, COMPLETION_INDEX)
