"""Jobs of ``batch/v1``, as eligibility and the reconciler see them."""

from serried.decode.fields import Raw, read_flag, read_int, read_map, read_name, read_objects, read_text
from serried.decode.identity import (
    DISRUPTION_MODE,
    GANG_POLICY,
    REQUIRED_TOPOLOGY,
    is_deleting,
    read_controller,
    read_group_field,
    read_group_label,
    read_key,
    read_uid,
    read_version,
)
from serried.decode.malformed import Malformed, attempt
from serried.model.group import Disruption, GangPolicy, Job

_POLICIES: dict[str, GangPolicy] = {policy.value: policy for policy in GangPolicy}
_MODES: dict[str, Disruption] = {mode.value: mode for mode in Disruption}


def decode_job(obj: object) -> Job | Malformed:
    """A Job; name and uid are required. Words that do not exist in an annotation count as none."""
    return attempt("Job", _decode, obj)


def _decode(obj: Raw) -> Job:
    spec, status = read_map(obj, "spec"), read_map(obj, "status")
    template = read_map(spec, "template")
    pod_spec = read_map(template, "spec")
    annotations = read_map(read_map(obj, "metadata"), "annotations")
    return Job(
        key=read_key(obj),
        uid=read_uid(obj),
        parallelism=read_int(spec, "parallelism", 1),
        completions=None if spec.get("completions") is None else read_int(spec, "completions"),
        indexed=read_text(spec, "completionMode") == "Indexed",
        scheduler=read_name(pod_spec, "schedulerName", "default-scheduler"),
        group=read_group_field(pod_spec) or read_group_label(read_map(template, "metadata")),
        topology_key=read_name(annotations, REQUIRED_TOPOLOGY) or None,
        gang_policy=_POLICIES.get(read_text(annotations, GANG_POLICY)),
        disruption=_MODES.get(read_text(annotations, DISRUPTION_MODE)),
        priority_class=read_name(pod_spec, "priorityClassName"),
        selects_itself=read_flag(spec, "manualSelector"),
        owner=read_controller(obj),
        suspended=read_flag(spec, "suspend"),
        finished=_is_finished(status),
        deleting=is_deleting(obj),
        succeeded=read_int(status, "succeeded"),
        version=read_version(obj),
    )


def _is_finished(status: Raw) -> bool:
    """Complete or Failed. SuccessCriteriaMet and FailureTarget come before the last pods have ended."""
    return any(
        read_text(condition, "type") in {"Complete", "Failed"} and read_text(condition, "status") == "True"
        for condition in read_objects(status, "conditions")
    )
