"""PodGroups and Workloads of ``scheduling.k8s.io/v1beta1`` (1.37), and the same shapes in our own group."""

from serried.decode.fields import (
    Raw,
    read_int,
    read_labels,
    read_map,
    read_name,
    read_objects,
    read_required,
    read_text,
    read_texts,
)
from serried.decode.identity import REQUIRED_TOPOLOGY, is_deleting, read_key, read_owners, read_uid, read_version
from serried.decode.malformed import Malformed, attempt
from serried.model.group import BASIC, PodGroup, Policy, Template, Workload

INITIALLY_SCHEDULED = "PodGroupInitiallyScheduled"


def decode_pod_group(obj: object) -> PodGroup | Malformed:
    """A PodGroup; name, uid and exactly one scheduling policy are required."""
    return attempt("PodGroup", _decode_pod_group, obj)


def decode_workload(obj: object) -> Workload | Malformed:
    """A Workload; name and uid are required. Composite templates are not looked at."""
    return attempt("Workload", _decode_workload, obj)


def _decode_pod_group(obj: Raw) -> PodGroup:
    metadata, spec = read_map(obj, "metadata"), read_map(obj, "spec")
    reference = read_map(spec, "workloadRef")
    condition = _read_condition(read_map(obj, "status"))
    return PodGroup(
        key=read_key(obj),
        uid=read_uid(obj),
        policy=_read_policy(spec),
        topology_key=_read_topology_key(spec)
        or read_name(read_map(metadata, "annotations"), REQUIRED_TOPOLOGY)
        or None,
        workload=read_text(reference, "workloadName") or None,
        template=read_text(reference, "templateName") or None,
        priority=read_int(spec, "priority"),
        owners=read_owners(obj),
        finalizers=read_texts(metadata, "finalizers"),
        labels=read_labels(metadata, "labels"),
        deleting=is_deleting(obj),
        generation=read_int(metadata, "generation"),
        version=read_version(obj),
        scheduled=condition is not None and condition[0] == "True",
        condition=condition,
    )


def _decode_workload(obj: Raw) -> Workload:
    spec = read_map(obj, "spec")
    return Workload(
        key=read_key(obj),
        uid=read_uid(obj),
        job=_read_job(spec),
        templates=tuple(_read_template(raw) for raw in read_objects(spec, "podGroupTemplates")),
        owners=read_owners(obj),
        labels=read_labels(read_map(obj, "metadata"), "labels"),
        deleting=is_deleting(obj),
        version=read_version(obj),
    )


def _read_policy(spec: Raw) -> Policy:
    """Exactly one of ``basic`` and ``gang``; ``gang`` with a minCount of at least 1."""
    policy = read_map(spec, "schedulingPolicy")
    basic, gang = policy.get("basic"), policy.get("gang")
    if (basic is None) == (gang is None):
        raise ValueError("schedulingPolicy is not exactly one of basic and gang")
    if gang is None:
        return BASIC
    count = read_int(read_map(policy, "gang"), "minCount")
    if count < 1:
        raise ValueError("minCount is less than 1")
    return Policy(count)


def _read_topology_key(spec: Raw) -> str | None:
    constraints = read_objects(read_map(spec, "schedulingConstraints"), "topology")
    return read_name(constraints[0], "key") or None if constraints else None


def _read_template(raw: Raw) -> Template:
    return Template(read_required(raw, "name"), _read_policy(raw), _read_topology_key(raw))


def _read_job(spec: Raw) -> str | None:
    reference = read_map(spec, "controllerRef")
    if read_text(reference, "apiGroup") != "batch" or read_text(reference, "kind") != "Job":
        return None
    return read_text(reference, "name") or None


def _read_condition(status: Raw) -> tuple[str, str, str] | None:
    for raw in read_objects(status, "conditions"):
        if raw.get("type") == INITIALLY_SCHEDULED:
            return read_name(raw, "status"), read_name(raw, "reason"), read_text(raw, "message")
    return None
