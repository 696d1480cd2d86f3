"""Names and JSON bodies of the objects that the diff creates: scheduling.k8s.io (1.35 to 1.37) and Serried's own group.

Names and bodies equal those of upstream's Job controller byte for byte (1.36 on; pkg/controller/job/
job_scheduling_manager.go, pkg/util/hash, apimachinery util/rand). Equal names keep two controllers from creating two
Workloads for one Job: the second create fails with AlreadyExists. A label and an annotation mark the objects made by
Serried.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from controller.diff.changes import CreatePodGroup, CreateWorkload
from serried.api.group import BASIC, Policy, SharedClaim, Template, Workload
from serried.api.job import Job
from serried.api.layouts import Stage
from serried.api.level import FALLBACK, V1ALPHA2, V1ALPHA2_DISRUPTION, ApiLevel
from serried.api.names import OWNER, REPLACES, REPLICA, REQUIRED_TOPOLOGY, name_object
from serried.api.parent import (
    WHOLE,
    Owner,
    Parent,
    api_group_of,
    api_version_of,
    gangs_of,
    kind_of,
    labels_for,
    stages_of,
)
from serried.api.preference import write_levels, write_preference
from serried.api.priority import PreemptionPolicy, PriorityClass, find_class, resolve_priority
from serried.cluster.membership import find_template

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # rand.SafeEncodeString: no vowels, no digits that look like them
_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193

_MAX_NAME_LENGTH = 253
"""Characters of a DNS subdomain."""

_MAX_LABEL_LENGTH = 63
"""Characters of a DNS label."""

_TEMPLATE_SUFFIX = "-pgt-0"


def hash_fnv32a(text: str) -> int:
    """Return the 32-bit FNV-1a hash of the text's UTF-8 bytes."""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return value


def encode_safe(number: int) -> str:
    """Encode the decimal digits like ``rand.SafeEncodeString``: with letters that spell no words."""
    return "".join(_ALPHABET[ord(digit) % len(_ALPHABET)] for digit in str(number))


def workload_name(owner: Owner) -> str:
    """Return the Workload's name: the owner's name and a hash of its UID, which is printed as Go's spew prints it."""
    tail = "-" + encode_safe(hash_fnv32a(f"(types.UID){owner.uid}"))
    return owner.key.name[: _MAX_NAME_LENGTH - len(tail)] + tail


def successor_name(job: Job, count: int) -> str:
    """Return the name of the Workload that replaces another after the Job's parallelism became ``count``."""
    tail = f"-{count}"
    return workload_name(job)[: _MAX_NAME_LENGTH - len(tail)] + tail


def template_name(owner: Owner) -> str:
    """Return the name of the Workload's only PodGroupTemplate, always a DNS label.

    The name is upstream's ``<job>-pgt-0`` if that is a DNS label. If the Job's name has dots or is too long, upstream's
    name would be invalid; here the Job's name is shortened, with a hash of the whole name.
    """
    name = owner.key.name
    if is_upstream_template(owner):
        return f"{name}{_TEMPLATE_SUFFIX}"
    tail = f"-{encode_safe(hash_fnv32a(name))}{_TEMPLATE_SUFFIX}"
    return name.replace(".", "-")[: _MAX_LABEL_LENGTH - len(tail)].rstrip("-") + tail


def is_upstream_template(owner: Owner) -> bool:
    """Return whether upstream's template name for the owner is valid. Else upstream creates no Workload and no pods."""
    return len(owner.key.name) + len(_TEMPLATE_SUFFIX) <= _MAX_LABEL_LENGTH and "." not in owner.key.name


def pod_group_name(workload: str, template: str) -> str:
    """Return the PodGroup's name: Workload, template and a hash of both.

    Names that are too long are cut, each by its share.
    """
    tail = encode_safe(hash_fnv32a(workload + template))
    room = _MAX_NAME_LENGTH - len(tail) - 2
    if len(workload) + len(template) > room:
        workload, template = _halve(workload, template, room)
    return f"{workload}-{template}-{tail}"


def _halve(workload: str, template: str, room: int) -> tuple[str, str]:
    half = room // 2
    if len(workload) <= half:
        return workload, template[: room - len(workload)]
    if len(template) <= half:
        return workload[: room - len(template)], template
    return workload[: room - half], template[:half]


Body = dict[str, Any]


def workload_body(change: CreateWorkload, level: ApiLevel) -> Body:
    """Return the body of the Workload. It refers to its owner, which controls it.

    At the level where Workloads contain their groups (v1alpha1), all groups of a Workload have the same topology key.
    """
    owner = change.owner
    metadata = _metadata(owner, change.name, [_controller_reference(owner)])
    if change.replaces:
        metadata["labels"][REPLACES] = change.replaces
    spec: Body = {
        "controllerRef": {"apiGroup": api_group_of(owner), "kind": kind_of(owner), "name": owner.key.name},
    }
    if level.inline:
        spec["podGroups"] = [{"name": each.name, "policy": _policy(each)} for each in change.templates]
        if change.templates[0].topology_key is not None:
            metadata["annotations"] = {REQUIRED_TOPOLOGY: change.templates[0].topology_key}
        _annotate(metadata, write_preference(owner.preference))
    else:
        spec["podGroupTemplates"] = [{"name": each.name, **_scheduling(each, level)} for each in change.templates]
    return {"apiVersion": level.api_version, "kind": "Workload", "metadata": metadata, "spec": spec}


def pod_group_body(change: CreatePodGroup, level: ApiLevel) -> Body:
    """Return the body of a PodGroup from a template of a Workload, which may be a user's.

    The PodGroup has two owner references, so it is deleted with either object: the owner as the controller, and the
    Workload. A Workload made by the Job's own controller gets no reference, as in 1.37.
    """
    owner = change.owner
    workload = change.workload
    template = change.template
    second = {"apiVersion": level.api_version, "kind": "Workload", "name": workload.key.name, "uid": workload.uid}
    delegated = isinstance(owner, Job) and owner.delegation is not None
    metadata = _metadata(owner, change.name, [_controller_reference(owner), *([] if delegated else [second])])
    if level.group == FALLBACK.group:
        metadata["annotations"] = {OWNER: name_object(kind_of(owner), owner.key.name)}
    if change.replica:
        metadata["labels"][REPLICA] = change.replica
    key = template.topology_key or owner.topology_key
    if key is not None:
        # In addition to the field, which an API server without the gate drops (decode.identity).
        _annotate(metadata, {REQUIRED_TOPOLOGY: key})
    _annotate(metadata, write_preference(owner.preference))
    return {
        "apiVersion": level.api_version,
        "kind": "PodGroup",
        "metadata": metadata,
        "spec": {**_reference(workload, template, level), **_scheduling(template, level)},
    }


def _annotate(metadata: Body, said: dict[str, str]) -> None:
    if said:
        metadata["annotations"] = metadata.get("annotations", {}) | said


def _reference(workload: Workload, template: Template, level: ApiLevel) -> Body:
    if level.known_version == V1ALPHA2:
        names = {"workloadName": workload.key.name, "podGroupTemplateName": template.name}
        return {"podGroupTemplateRef": {"workload": names}}
    return {"workloadRef": {"workloadName": workload.key.name, "templateName": template.name}}


def _metadata(owner: Owner, name: str, owners: list[Body]) -> Body:
    return {
        "namespace": owner.key.namespace,
        "name": name,
        "labels": labels_for(owner),
        "ownerReferences": owners,
    }


def _controller_reference(owner: Owner) -> Body:
    """Return the owner reference that ``metav1.NewControllerRef`` makes."""
    return {
        "apiVersion": api_version_of(owner),
        "kind": kind_of(owner),
        "name": owner.key.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _policy(template: Template) -> Body:
    count = template.policy.min_count
    return {"basic": {}} if count is None else {"gang": {"minCount": count}}


def _scheduling(template: Template, level: ApiLevel) -> Body:
    """Return the spec fields that a template shares with its PodGroups; unset ones are left out."""
    said: Body = {"schedulingPolicy": _policy(template)}
    if constraints := _constraints(template):
        said["schedulingConstraints"] = constraints
    if template.disruption is not None:
        older = level.known_version == V1ALPHA2
        said["disruptionMode"] = V1ALPHA2_DISRUPTION[template.disruption] if older else {template.disruption.value: {}}
    if template.priority_class:
        said["priorityClassName"] = template.priority_class
    if template.priority is not None:
        said["priority"] = template.priority
    if template.preemption is not None:
        said["preemptionPolicy"] = template.preemption.value
    if template.claims:
        said["resourceClaims"] = [_claim(claim) for claim in template.claims]
    return said


def _constraints(template: Template) -> Body:
    """Return the topology constraints of a template. Preferred levels exist at the fallback API level only."""
    said: Body = {}
    if template.topology_key is not None:
        said["topology"] = [{"key": template.topology_key}]
    if template.preference.levels:
        said["preferredTopology"] = write_levels(template.preference.levels)
    return said


def _claim(claim: SharedClaim) -> Body:
    names = {"resourceClaimName": claim.claim, "resourceClaimTemplateName": claim.template}
    return {"name": claim.name} | {field: name for field, name in names.items() if name}


def desired_templates(owner: Owner) -> tuple[Template, ...]:
    """Return the templates of the owner's Workload: one for each gang, so one for a Job."""
    if isinstance(owner, Job):
        return (job_template(owner, Policy(desired_count(owner))),)
    return tuple(_parent_template(owner, gang) for gang in gangs_of(owner))


def tracking_templates(job: Job) -> tuple[Template, ...]:
    """Return the template of a Job that is no gang, with policy basic."""
    return (job_template(job, BASIC),)


def job_template(job: Job, policy: Policy) -> Template:
    """Return the only template of a Job's Workload."""
    return Template(
        name=template_name(job),
        policy=policy,
        topology_key=job.topology_key,
        disruption=job.disruption if policy.is_gang else None,
        priority_class=job.priority_class,
        claims=job.claims,
    )


def _parent_template(parent: Parent, gang: Stage) -> Template:
    return Template(
        name=_name_template(parent, gang),
        policy=Policy(gang.size),
        topology_key=parent.topology_key,
        disruption=parent.disruption,
        priority_class=parent.priority_class,
    )


def desired_count(job: Job) -> int:
    """Return the minCount of a Job's gang; 0 for a Job with parallelism 0."""
    return min(job.min_count or job.at_once, job.at_once)


def desired_counts(owner: Owner, workload: Workload) -> dict[str, int]:
    """Return the minCount by template name; no entry for a template that keeps its minCount.

    A Job with parallelism 0 keeps it. A stage that shrinks to one pod or none gets 1.
    """
    if isinstance(owner, Job):
        count = desired_count(owner)
        return {workload.templates[0].name: count} if count else {}
    return {_name_template(owner, stage): max(1, stage.size) for stage in stages_of(owner)}


def list_used_templates(owner: Owner, workload: Workload) -> list[Template]:
    """Return the templates of the Workload that are used for a stage of the owner. A Job has one stage."""
    names: Sequence[str] = [WHOLE] if isinstance(owner, Job) else [stage.name for stage in owner.stages]
    found = (find_template(workload, owner, name) for name in names)
    return list(dict.fromkeys(template for template in found if template is not None))


def resolve_class(template: Template, level: ApiLevel, classes: Mapping[str, PriorityClass]) -> Template:
    """Return the template with the fields that its PodGroup takes from the priority class.

    At the fallback API level that is the priority. A priority in the template is ignored: a client wrote it, and no
    admission plugin compares it with the class there. In 1.37 it is ``preemptionPolicy``. If the class says Never,
    admission rejects a PodGroup without the field, because the default differs (seen on 1.37.1). An API server without
    the gate PodGroupPreemptionPolicy drops the field.
    """
    if level == FALLBACK:
        return replace(template, priority=resolve_priority(template.priority_class, classes), preemption=None)
    if not level.has_preemption or template.preemption is not None:
        return template
    found = find_class(template.priority_class, classes)
    never = found is not None and found.preemption is PreemptionPolicy.NEVER
    return replace(template, preemption=PreemptionPolicy.NEVER) if never else template


def _name_template(parent: Parent, stage: Stage) -> str:
    return stage.name or template_name(parent)
