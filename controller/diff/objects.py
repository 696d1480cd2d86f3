"""Names and JSON bodies of the Workloads and PodGroups that the controller creates, for each API level.

The levels are scheduling.k8s.io of Kubernetes 1.35 to 1.37 and Serried's own API group. `workload_body` and
`pod_group_body` return the bodies, `desired_templates` what the Workload of an owner should contain.

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
"""The most characters of an object's name (a DNS subdomain)."""

_MAX_LABEL_LENGTH = 63
"""The most characters of a DNS label, such as the name of a template."""

_TEMPLATE_SUFFIX = "-pgt-0"


def hash_fnv32a(text: str) -> int:
    """Return the 32-bit FNV-1a hash of the text's UTF-8 bytes."""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return value


def encode_safe(number: int) -> str:
    """Return the decimal digits of the number, each replaced by a letter or digit, as ``rand.SafeEncodeString`` does.

    The alphabet has no vowels, so that names spell no words.
    """
    return "".join(_ALPHABET[ord(digit) % len(_ALPHABET)] for digit in str(number))


def workload_name(owner: Owner) -> str:
    """Return the name of an owner's first Workload: the owner's name, and a hash of the owner's UID.

    The hashed text is ``(types.UID)`` and then the UID, because upstream hashes what Go prints for a value of that
    type.
    """
    tail = "-" + encode_safe(hash_fnv32a(f"(types.UID){owner.uid}"))
    return owner.key.name[: _MAX_NAME_LENGTH - len(tail)] + tail


def successor_name(job: Job, count: int) -> str:
    """Return the name of the Workload that replaces a Job's first one after its parallelism changed to ``count``."""
    tail = f"-{count}"
    return workload_name(job)[: _MAX_NAME_LENGTH - len(tail)] + tail


def template_name(owner: Owner) -> str:
    """Return the name of the Workload's only PodGroupTemplate, which must be a DNS label.

    The name is upstream's ``<job>-pgt-0`` if that is a DNS label. If the Job's name has dots or is too long for that, a
    shortened name with a hash of the whole name is used; upstream creates no Workload then.
    """
    name = owner.key.name
    if is_upstream_template(owner):
        return f"{name}{_TEMPLATE_SUFFIX}"
    tail = f"-{encode_safe(hash_fnv32a(name))}{_TEMPLATE_SUFFIX}"
    return name.replace(".", "-")[: _MAX_LABEL_LENGTH - len(tail)].rstrip("-") + tail


def is_upstream_template(owner: Owner) -> bool:
    """Return whether kube-controller-manager could create a Workload for a Job with this owner's name.

    It could not if the name that it gives to the template, ``<job>-pgt-0``, is no DNS label: too long, or with dots.
    """
    return len(owner.key.name) + len(_TEMPLATE_SUFFIX) <= _MAX_LABEL_LENGTH and "." not in owner.key.name


def pod_group_name(workload: str, template: str) -> str:
    """Return the name of a PodGroup: the names of its Workload and its template, and a hash of both.

    If that is too long, the longer name is cut. If both have more than half of the characters, both are cut to half.
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
    """Return the JSON body of a Workload, with the owner as its controlling owner.

    ``level`` is the API group and version to write, which decides the fields. In v1alpha1, where a Workload contains
    its groups, all its groups get the topology key of the first template.
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
    """Return the JSON body of a PodGroup from a template of a Workload, which a user may have created.

    ``level`` is the API group and version to write, which decides the fields. The PodGroup has two owner references: to
    the owner, as its controller, and to the Workload. The second one is left out if the Job takes its template from
    the Workload of its controller, such as a TrainJob, as in 1.37.
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
    """Return the owner reference to the controlling owner, as ``metav1.NewControllerRef`` makes it."""
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
    """Return the fields that the spec of a template and of its PodGroup have in common; those not set are left out.

    ``level`` is the API group and version to write, which decides how a field is written.
    """
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
    """Return the field ``schedulingConstraints`` of a template; {} if it has no topology.

    Preferred levels exist only in Serried's own API group.
    """
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
    """Return the templates that the owner's Workload needs, one for each gang. A Job is one gang."""
    if isinstance(owner, Job):
        return (job_template(owner, Policy(desired_count(owner))),)
    return tuple(_parent_template(owner, gang) for gang in gangs_of(owner))


def tracking_templates(job: Job) -> tuple[Template, ...]:
    """Return the templates for the Workload of a Job that is no gang: one template, with policy basic.

    Such a Workload exists only with the setting `owner.Track.ALL`, with which Jobs that are no gangs get one, too.
    """
    return (job_template(job, BASIC),)


def job_template(job: Job, policy: Policy) -> Template:
    """Return the only template of a Job's Workload, with the given policy."""
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
    """Return the minCount that a Job's gang needs: its own setting, at most the pods that run at once.

    It is 0 for a Job with parallelism 0.
    """
    return min(job.min_count or job.at_once, job.at_once)


def desired_counts(owner: Owner, workload: Workload) -> dict[str, int]:
    """Return the minCount that each template of the Workload needs, by the template's name.

    A Job with parallelism 0 has no entry: its template keeps the minCount that it has. A stage, i.e. pods that are
    created together such as a ReplicatedJob, gets 1 even if it has no pods.
    """
    if isinstance(owner, Job):
        count = desired_count(owner)
        return {workload.templates[0].name: count} if count else {}
    return {_name_template(owner, stage): max(1, stage.size) for stage in stages_of(owner)}


def list_used_templates(owner: Owner, workload: Workload) -> list[Template]:
    """Return the templates of the Workload that are for the owner's stages, without duplicates.

    A stage is a set of pods that are created together, such as a ReplicatedJob of a JobSet. A Job has one stage.
    """
    names: Sequence[str] = [WHOLE] if isinstance(owner, Job) else [stage.name for stage in owner.stages]
    found = (find_template(workload, owner, name) for name in names)
    return list(dict.fromkeys(template for template in found if template is not None))


def resolve_class(template: Template, level: ApiLevel, classes: Mapping[str, PriorityClass]) -> Template:
    """Return the template with the fields that its PodGroup takes from its PriorityClass.

    ``level`` is the API group and version of the PodGroup. With Serried's own CRDs, the field is the priority. A
    priority in the template is ignored: a client wrote it, and no admission plugin compares it with the class there. In
    Kubernetes 1.37, the field is ``preemptionPolicy``: if the class says Never, admission rejects a PodGroup without
    it, because the default differs (seen on 1.37.1). An API server without the gate PodGroupPreemptionPolicy drops the
    field. At other versions the template is returned unchanged.
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
