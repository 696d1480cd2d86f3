"""The JSON bodies of the objects that a diff creates.

Shapes are those of ``scheduling.k8s.io`` (1.35 to 1.37) and of the fallback group. What upstream's Job controller
writes is written here too (pkg/controller/job/job_scheduling_manager.go); the label and the annotation are ours, and
are what tells our objects from others'.
"""

from typing import Any

from controller.diff.changes import CreatePodGroup, CreateWorkload
from serried.decode.identity import REPLACES, REQUIRED_TOPOLOGY
from serried.decode.preferences import write_levels, write_preference
from serried.decode.provenance import labels_for
from serried.model.group import Claim, Job, Template, Workload
from serried.model.level import V1ALPHA2, V1ALPHA2_DISRUPTION, ApiLevel
from serried.model.parent import REPLICA, Owner, api_group_of, api_version_of, kind_of

Body = dict[str, Any]


def workload_body(change: CreateWorkload, level: ApiLevel) -> Body:
    """The Workload to create. It refers to its owner, and is controlled by it.

    At a level where Workloads contain their groups (v1alpha1), all groups of one have the same topology key.
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
    """The PodGroup to create from a template of a Workload, which may be a user's.

    The owner controls it, and the Workload is a second, plain owner: the PodGroup is deleted with either of them. The
    Workload of a Job's controller is none, as in 1.37.
    """
    owner = change.owner
    workload = change.workload
    template = change.template
    second = {"apiVersion": level.api_version, "kind": "Workload", "name": workload.key.name, "uid": workload.uid}
    delegated = isinstance(owner, Job) and owner.delegation is not None
    metadata = _metadata(owner, change.name, [_controller_reference(owner), *([] if delegated else [second])])
    if change.replica:
        metadata["labels"][REPLICA] = change.replica
    key = template.topology_key or owner.topology_key
    if key is not None:
        # Also where the field is written: an API server without the gate for it drops the field (decode.identity).
        metadata["annotations"] = {REQUIRED_TOPOLOGY: key}
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
    if level.shape == V1ALPHA2:
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
    """``metav1.NewControllerRef``."""
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
    """The fields that a template and a PodGroup made from it have in common; unset ones are left out."""
    said: Body = {"schedulingPolicy": _policy(template)}
    if constraints := _constraints(template):
        said["schedulingConstraints"] = constraints
    if template.disruption is not None:
        older = level.shape == V1ALPHA2
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
    """The constraints of a template. Only templates of the fallback level have preferred levels."""
    said: Body = {}
    if template.topology_key is not None:
        said["topology"] = [{"key": template.topology_key}]
    if template.preference.levels:
        said["preferredTopology"] = write_levels(template.preference.levels)
    return said


def _claim(claim: Claim) -> Body:
    names = {"resourceClaimName": claim.claim, "resourceClaimTemplateName": claim.template}
    return {"name": claim.name} | {field: name for field, name in names.items() if name}
