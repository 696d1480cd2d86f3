"""The objects that a Job should have: Job and API level in, JSON bodies out. Pure.

Shapes are those of ``scheduling.k8s.io`` (1.35 to 1.37) and of the fallback group. What upstream's Job controller
writes is written here too (pkg/controller/job/job_scheduling_manager.go); the label and the annotation are ours, and
are what tells our objects from others'.
"""

from collections.abc import Sequence
from typing import Any

from controller.diff import CreateWorkload
from controller.names import pod_group_name, template_name
from controller.owners import Owner, group_of, kind_of, labels_for, version_of
from serried.decode.identity import REPLACES, REQUIRED_TOPOLOGY
from serried.decode.preferences import write_levels, write_preference
from serried.model.group import Claim, Job, Policy, Template, Workload
from serried.model.level import V1ALPHA2, V1ALPHA2_DISRUPTION, ApiLevel

Body = dict[str, Any]


def desired_template(job: Job, policy: Policy) -> Template:
    """The one template of a Job's Workload: in one domain if the Job names a topology key."""
    return Template(
        name=template_name(job),
        policy=policy,
        topology_key=job.topology_key,
        disruption=job.disruption if policy.is_gang else None,
        priority_class=job.priority_class,
        claims=job.claims,
    )


def workload_body(wanted: CreateWorkload, level: ApiLevel) -> Body:
    """The Workload to create for a Job. It refers to the Job and is owned and controlled by it."""
    body = compose_workload(wanted.job, wanted.name, [desired_template(wanted.job, wanted.policy)], level)
    if wanted.replaces:
        body["metadata"]["labels"][REPLACES] = wanted.replaces
    return body


def compose_workload(owner: Owner, name: str, templates: Sequence[Template], level: ApiLevel) -> Body:
    """The Workload of an owner, with these templates. Where it contains its groups they have one topology key."""
    metadata = _metadata(owner, name, [_controller_reference(owner)])
    spec: Body = {
        "controllerRef": {"apiGroup": group_of(owner), "kind": kind_of(owner), "name": owner.key.name},
    }
    if level.inline:
        spec["podGroups"] = [{"name": template.name, "policy": _policy(template)} for template in templates]
        if templates[0].topology_key is not None:
            metadata["annotations"] = {REQUIRED_TOPOLOGY: templates[0].topology_key}
        _annotate(metadata, write_preference(owner.preference))
    else:
        spec["podGroupTemplates"] = [{"name": each.name, **_scheduling(each, level)} for each in templates]
    return {"apiVersion": level.api_version, "kind": "Workload", "metadata": metadata, "spec": spec}


def pod_group_body(job: Job, workload: Workload, level: ApiLevel, priority: int | None = None) -> Body:
    """The PodGroup to create from the Workload's only template, whoever made the Workload."""
    template = workload.templates[0]
    name = pod_group_name(workload.key.name, template.name)
    return compose_pod_group(job, workload, template, name, level, priority)


def compose_pod_group(
    owner: Owner, workload: Workload, template: Template, name: str, level: ApiLevel, priority: int | None = None
) -> Body:
    """A PodGroup from a template of an owner's Workload.

    The owner controls it; the Workload is a plain owner, so that it goes with either. ``priority`` counts where the
    template gives none, and no admission plugin will.
    """
    second = {"apiVersion": level.api_version, "kind": "Workload", "name": workload.key.name, "uid": workload.uid}
    metadata = _metadata(owner, name, [_controller_reference(owner), second])
    key = template.topology_key or owner.topology_key
    if key is not None:
        # Also where the field is written: an API server without the gate for it drops the field (decode.identity).
        metadata["annotations"] = {REQUIRED_TOPOLOGY: key}
    _annotate(metadata, write_preference(owner.preference))
    return {
        "apiVersion": level.api_version,
        "kind": "PodGroup",
        "metadata": metadata,
        "spec": {**_reference(workload, template, level), **_default(priority), **_scheduling(template, level)},
    }


def _annotate(metadata: Body, said: dict[str, str]) -> None:
    if said:
        metadata["annotations"] = metadata.get("annotations", {}) | said


def _default(priority: int | None) -> Body:
    return {} if priority is None else {"priority": priority}


def _reference(workload: Workload, template: Template, level: ApiLevel) -> Body:
    if level.version == V1ALPHA2:
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
        "apiVersion": version_of(owner),
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
    """What a template and a PodGroup made from it have in common; what is not said is left out."""
    said: Body = {"schedulingPolicy": _policy(template)}
    if constraints := _constraints(template):
        said["schedulingConstraints"] = constraints
    if template.disruption is not None:
        older = level.version == V1ALPHA2
        said["disruptionMode"] = V1ALPHA2_DISRUPTION[template.disruption] if older else {template.disruption.value: {}}
    if template.priority_class:
        said["priorityClassName"] = template.priority_class
    if template.priority is not None:
        said["priority"] = template.priority
    if template.claims:
        said["resourceClaims"] = [_claim(claim) for claim in template.claims]
    return said


def _constraints(template: Template) -> Body:
    """Preferred levels are the fallback's own: templates of other levels have none."""
    said: Body = {}
    if template.topology_key is not None:
        said["topology"] = [{"key": template.topology_key}]
    if template.preference.levels:
        said["preferredTopology"] = write_levels(template.preference.levels)
    return said


def _claim(claim: Claim) -> Body:
    names = {"resourceClaimName": claim.claim, "resourceClaimTemplateName": claim.template}
    return {"name": claim.name} | {field: name for field, name in names.items() if name}
