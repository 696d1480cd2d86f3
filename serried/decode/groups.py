"""PodGroups and Workloads of ``scheduling.k8s.io``: v1beta1 and v1alpha3 (1.37), v1alpha2 (1.36), and our own group's.

The fields that are read here are the same in all of them, with two exceptions: v1alpha2 names a PodGroup's Workload in
``podGroupTemplateRef``, and its condition is PodGroupScheduled. In v1alpha1 (1.35) Workloads contain their PodGroups,
with a policy and nothing else; there the topology key is an annotation of the Workload.
"""

from collections.abc import Sequence
from sys import intern

from serried.decode.devices import read_device_claims
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
from serried.decode.identity import (
    is_deleting,
    read_owner_key,
    read_owner_uid,
    read_owners,
    read_required_topology,
    read_version,
)
from serried.decode.malformed import Malformed, attempt
from serried.decode.preferences import read_levels, read_preference
from serried.decode.priority import read_preemption
from serried.decode.times import read_time
from serried.model.composite import Composite
from serried.model.disruption import Disruption
from serried.model.group import BASIC, Claim, GroupKey, PodGroup, Policy, Template, Workload
from serried.model.level import COMPOSITE_CONDITION, FALLBACK, NATIVE_LEVELS, V1ALPHA2_DISRUPTION
from serried.model.parent import PARENT_APIS
from serried.model.pod import DISRUPTION_TARGET, PREEMPTED
from serried.model.preference import NO_PREFERENCE, Preference

_DISRUPTION_WORDS = {word: mode for mode, word in V1ALPHA2_DISRUPTION.items()}
_PARENTS = {(api.group, kind.value): kind for kind, api in PARENT_APIS.items()}
_OUR_MANAGERS = "serried"
_CONDITIONS = frozenset(level.condition for level in (*NATIVE_LEVELS, FALLBACK))
_MANAGED = frozenset(f'k:{{"type":"{condition}"}}' for condition in _CONDITIONS)
_MANAGED_DISRUPTION = f'k:{{"type":"{DISRUPTION_TARGET}"}}'


def decode_pod_group(obj: object) -> PodGroup | Malformed:
    """A PodGroup; name, uid and exactly one scheduling policy are required."""
    return attempt("PodGroup", _decode_pod_group, obj)


def decode_composite(obj: object) -> Composite | Malformed:
    """A CompositePodGroup; name, uid and exactly one scheduling policy are required."""
    return attempt("CompositePodGroup", _decode_composite, obj)


def decode_workload(obj: object) -> Workload | Malformed:
    """A Workload; name and uid are required. Composite templates are not read."""
    return attempt("Workload", _decode_workload, obj)


def _decode_pod_group(obj: Raw) -> PodGroup:
    metadata = read_map(obj, "metadata")
    spec = read_map(obj, "spec")
    workload, template = _read_reference(spec)
    condition = _read_condition(read_map(obj, "status"), *_CONDITIONS)
    key = read_topology_key(spec)
    return PodGroup(
        key=GroupKey(*read_owner_key(obj)),
        uid=read_owner_uid(obj),
        policy=read_policy(spec),
        topology_key=key or read_required_topology(metadata),
        constrained=key is not None,
        told_natively=_is_told_natively(metadata),
        workload=workload,
        template=template,
        priority_class=read_name(spec, "priorityClassName"),
        priority=None if spec.get("priority") is None else read_int(spec, "priority"),
        preemption=read_preemption(spec),
        owners=read_owners(obj),
        finalizers=read_texts(metadata, "finalizers"),
        labels=read_labels(metadata, "labels"),
        deleting=is_deleting(obj),
        generation=read_int(metadata, "generation"),
        version=read_version(obj),
        scheduled=condition is not None and condition[0] == "True",
        condition=condition,
        preference=read_preference(obj),
        parent=read_name(spec, "parentCompositePodGroupName") or None,
        device_claims=read_device_claims(spec),
        disruption=read_disruption(spec) or Disruption.SINGLE,
        preempted=_read_preemption_time(obj),
    )


def _is_told_natively(metadata: Raw) -> bool:
    """Whether somebody else than Serried manages the condition that says how the group stands."""
    return any(
        not read_text(entry, "manager").startswith(_OUR_MANAGERS) and not _MANAGED.isdisjoint(_read_managed(entry))
        for entry in read_objects(metadata, "managedFields")
    )


def _read_managed(entry: Raw) -> Raw:
    """The conditions that a field manager has written, by the keys that managedFields have for them."""
    return read_map(read_map(read_map(entry, "fieldsV1"), "f:status"), "f:conditions")


def _decode_composite(obj: Raw) -> Composite:
    metadata = read_map(obj, "metadata")
    spec = read_map(obj, "spec")
    condition = _read_condition(read_map(obj, "status"), COMPOSITE_CONDITION)
    return Composite(
        key=read_owner_key(obj),
        uid=read_owner_uid(obj),
        min_group_count=_read_count(spec, "schedulingPolicy", "minGroupCount"),
        topology_key=read_topology_key(spec) or read_required_topology(metadata),
        parent=read_name(spec, "parentCompositePodGroupName") or None,
        priority_class=read_name(spec, "priorityClassName"),
        priority=None if spec.get("priority") is None else read_int(spec, "priority"),
        preemption=read_preemption(spec),
        owners=read_owners(obj),
        deleting=is_deleting(obj),
        generation=read_int(metadata, "generation"),
        version=read_version(obj),
        scheduled=condition is not None and condition[0] == "True",
        condition=condition,
        disruption=read_disruption(spec) or Disruption.SINGLE,
        preempted=_read_preemption_time(obj),
    )


def _decode_workload(obj: Raw) -> Workload:
    spec = read_map(obj, "spec")
    inline = read_objects(spec, "podGroups")
    return Workload(
        key=read_owner_key(obj),
        uid=read_owner_uid(obj),
        job=_read_job(spec),
        parent=_read_parent(spec),
        templates=_read_inline(obj, inline)
        or tuple(_read_template(raw) for raw in read_objects(spec, "podGroupTemplates")),
        inline=bool(inline),
        owners=read_owners(obj),
        labels=read_labels(read_map(obj, "metadata"), "labels"),
        deleting=is_deleting(obj),
        version=read_version(obj),
    )


def read_policy(spec: Raw, field: str = "schedulingPolicy") -> Policy:
    """The policy: exactly one of ``basic`` and ``gang``, which has a minCount of at least 1. Raises ValueError."""
    count = _read_count(spec, field, "minCount")
    return BASIC if count is None else Policy(count)


def _read_count(spec: Raw, field: str, name: str) -> int | None:
    policy = read_map(spec, field)
    basic = policy.get("basic")
    gang = policy.get("gang")
    if (basic is None) == (gang is None):
        raise ValueError(f"{field} is not exactly one of basic and gang")
    if gang is None:
        return None
    count = read_int(read_map(policy, "gang"), name)
    if count < 1:
        raise ValueError(f"{name} is less than 1")
    return count


def read_topology_key(spec: Raw) -> str | None:
    """The one key of ``schedulingConstraints``, None without one."""
    constraints = read_objects(read_map(spec, "schedulingConstraints"), "topology")
    return read_name(constraints[0], "key") or None if constraints else None


def _read_reference(spec: Raw) -> tuple[str | None, str | None]:
    """The names of the Workload and of its template from which the PodGroup was made."""
    if reference := read_map(spec, "workloadRef"):
        return read_name(reference, "workloadName") or None, read_name(reference, "templateName") or None
    older = read_map(read_map(spec, "podGroupTemplateRef"), "workload")
    return read_name(older, "workloadName") or None, read_name(older, "podGroupTemplateName") or None


def _read_inline(obj: Raw, groups: Sequence[Raw]) -> tuple[Template, ...]:
    key = read_required_topology(read_map(obj, "metadata"))
    preference = read_preference(obj)
    return tuple(
        Template(read_required(raw, "name"), read_policy(raw, "policy"), key, preference=preference) for raw in groups
    )


def _read_template(raw: Raw) -> Template:
    return Template(
        name=intern(read_required(raw, "name")),
        policy=read_policy(raw),
        topology_key=read_topology_key(raw),
        disruption=read_disruption(raw),
        priority_class=read_text(raw, "priorityClassName"),
        priority=None if raw.get("priority") is None else read_int(raw, "priority"),
        preemption=read_preemption(raw),
        claims=read_claims(raw),
        preference=Preference(levels) if (levels := read_levels(raw)) else NO_PREFERENCE,
    )


def read_disruption(raw: Raw) -> Disruption | None:
    """``disruptionMode``, which is a union of two empty objects, and in v1alpha2 a string."""
    mode = raw.get("disruptionMode")
    if isinstance(mode, str):
        return _DISRUPTION_WORDS.get(mode)
    modes = read_map(raw, "disruptionMode")
    return next((each for each in Disruption if modes.get(each.value) is not None), None)


def read_claims(raw: Raw) -> tuple[Claim, ...]:
    """``resourceClaims`` of a template, a PodGroup or a Job's scheduling."""
    return tuple(_read_claim(claim) for claim in read_objects(raw, "resourceClaims"))


def _read_claim(raw: Raw) -> Claim:
    return Claim(
        name=read_required(raw, "name"),
        claim=read_text(raw, "resourceClaimName"),
        template=read_text(raw, "resourceClaimTemplateName"),
    )


def _read_job(spec: Raw) -> str | None:
    reference = read_map(spec, "controllerRef")
    if read_text(reference, "apiGroup") != "batch" or read_text(reference, "kind") != "Job":
        return None
    return read_name(reference, "name") or None


def _read_parent(spec: Raw) -> tuple[str, str] | None:
    reference = read_map(spec, "controllerRef")
    name = read_name(reference, "name")
    if not name or _read_job(spec) is not None:
        return None
    return name_kind(read_text(reference, "apiGroup"), read_text(reference, "kind")), name


def name_kind(group: str, kind: str) -> str:
    """How a kind that may control Workloads is called: one that we do not know has its API group with it."""
    return _PARENTS.get((group, kind)) or intern(f"{kind}.{group}")


def _read_preemption_time(obj: Raw) -> int | None:
    for raw in read_objects(read_map(obj, "status"), "conditions"):
        said = read_text(raw, "type"), read_text(raw, "status"), read_text(raw, "reason")
        if said == (DISRUPTION_TARGET, "True", PREEMPTED):
            return _read_disruption_written(read_map(obj, "metadata")) or read_time(raw, "lastTransitionTime") or 0
    return None


def _read_disruption_written(metadata: Raw) -> int | None:
    """When Serried has written DisruptionTarget, by the API server's clock; None where somebody else has.

    The time in the condition is by the clock of the extender, which may have been set since, or be wrong.
    """
    for entry in read_objects(metadata, "managedFields"):
        if read_text(entry, "manager").startswith(_OUR_MANAGERS) and _MANAGED_DISRUPTION in _read_managed(entry):
            return read_time(entry, "time")
    return None


def _read_condition(status: Raw, *types: str) -> tuple[str, str, str] | None:
    for raw in read_objects(status, "conditions"):
        if read_text(raw, "type") in types:
            return read_name(raw, "status"), read_name(raw, "reason"), read_text(raw, "message")
    return None
