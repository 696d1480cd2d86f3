"""Jobs of ``batch/v1``, as eligibility and the reconciler see them."""

from collections.abc import Iterable
from dataclasses import dataclass

from serried.decode.fields import Raw, read_flag, read_int, read_map, read_name, read_objects, read_text
from serried.decode.groups import name_kind, read_claims, read_disruption, read_policy, read_topology_key
from serried.decode.identity import (
    DISRUPTION_MODE,
    GANG_POLICY,
    GROUP_TEMPLATE,
    REQUIRED_TOPOLOGY,
    is_deleting,
    is_label_key,
    quote,
    read_controller,
    read_group,
    read_owner_key,
    read_owner_uid,
    read_version,
)
from serried.decode.lifetimes import fingerprint, read_lifetime
from serried.decode.malformed import Malformed, attempt
from serried.decode.preferences import find_preference_problem, parse_preference
from serried.model.disruption import Disruption
from serried.model.group import Claim, Delegation, GangPolicy, Job

_JOB_CONTROLLER = "kubernetes.io/job-controller"
"""kube-controller-manager's own name in ``spec.managedBy``."""

_POLICIES: dict[str, GangPolicy] = {policy.value: policy for policy in GangPolicy}
DISRUPTION_MODES: dict[str, Disruption] = {mode.value: mode for mode in Disruption}


def decode_job(obj: object) -> Job | Malformed:
    """A Job; name and uid are required. A wrong value of an annotation is the Job's ``problem``."""
    return attempt("Job", _decode, obj)


def _decode(obj: Raw) -> Job:
    spec = read_map(obj, "spec")
    status = read_map(obj, "status")
    template = read_map(spec, "template")
    pod_spec = read_map(template, "spec")
    annotations = read_map(read_map(obj, "metadata"), "annotations")
    key = read_owner_key(obj)
    annotated = _POLICIES.get(read_text(annotations, GANG_POLICY))
    managed_by = read_name(spec, "managedBy")
    managed_by = "" if managed_by == _JOB_CONTROLLER else managed_by
    said = _read_scheduling(read_map(spec, "scheduling"))
    # With this field a user asks the Job's controller, with the annotation us.
    asked = None if managed_by else said.gang_policy
    indexed = read_text(spec, "completionMode") == "Indexed"
    started, lifetime = read_lifetime(spec, status)
    return Job(
        key=key,
        uid=read_owner_uid(obj),
        parallelism=read_int(spec, "parallelism", 1),
        completions=None if spec.get("completions") is None else read_int(spec, "completions"),
        indexed=indexed,
        scheduler=read_name(pod_spec, "schedulerName", "default-scheduler"),
        group=read_group(template, key.namespace),
        topology_key=said.topology_key or read_name(annotations, REQUIRED_TOPOLOGY) or None,
        gang_policy=asked or annotated,
        disruption=said.disruption or DISRUPTION_MODES.get(read_text(annotations, DISRUPTION_MODE)),
        priority_class=read_name(pod_spec, "priorityClassName"),
        min_count=said.min_count,
        claims=said.claims,
        contradiction=None not in (asked, annotated) and asked is not annotated,
        problem=find_problem(annotations, _POLICIES),
        selects_itself=read_flag(spec, "manualSelector"),
        owner=read_controller(obj),
        delegation=_read_delegation(read_map(obj, "metadata"), annotations),
        managed_by=managed_by,
        suspended=read_flag(spec, "suspend"),
        finished=_has_condition(status, "Complete", "Failed"),
        ending=_has_condition(status, "SuccessCriteriaMet", "FailureTarget"),
        deleting=is_deleting(obj),
        completed=_count_indexes(status, "completedIndexes") if indexed else read_int(status, "succeeded"),
        given_up=_count_indexes(status, "failedIndexes"),
        started=started,
        lifetime=lifetime,
        work=fingerprint(template),
        version=read_version(obj),
        preference=parse_preference(annotations),
    )


def _read_delegation(metadata: Raw, annotations: Raw) -> Delegation | None:
    references = read_objects(metadata, "ownerReferences")
    controller = next((each for each in references if read_flag(each, "controller")), None)
    if controller is None or GROUP_TEMPLATE not in annotations:
        return None
    kind = name_kind(read_text(controller, "apiVersion").rpartition("/")[0], read_text(controller, "kind"))
    return Delegation((kind, read_name(controller, "name")), read_name(annotations, GROUP_TEMPLATE))


@dataclass(frozen=True, slots=True)
class _Scheduling:
    """``spec.scheduling`` (1.37, JobSchedulingConfiguration); None or empty where it leaves something open."""

    gang_policy: GangPolicy | None = None
    min_count: int | None = None
    topology_key: str | None = None
    disruption: Disruption | None = None
    claims: tuple[Claim, ...] = ()


def _read_scheduling(scheduling: Raw) -> _Scheduling:
    if not scheduling:
        return _UNSAID
    gang_policy, min_count = _read_gang(scheduling)
    return _Scheduling(
        gang_policy=gang_policy,
        min_count=min_count,
        topology_key=read_topology_key(scheduling),
        disruption=read_disruption(scheduling),
        claims=read_claims(scheduling),
    )


_UNSAID = _Scheduling()


def _read_gang(scheduling: Raw) -> tuple[GangPolicy | None, int | None]:
    """The policy and the minCount of a Job, which is None where it follows the parallelism."""
    policy = read_map(scheduling, "schedulingPolicy")
    if not policy:
        return None, None
    if policy.get("gang") == {}:
        return GangPolicy.JOB_AS_GANG, None
    read = read_policy(scheduling)
    return GangPolicy.JOB_AS_GANG if read.is_gang else GangPolicy.NO_GANG, read.min_count


def find_problem(annotations: Raw, policies: Iterable[str]) -> str:
    """What the author has to correct in these annotations, "" if nothing.

    The admission policies that we ship refuse the same, where they are installed. ``policies`` are the values of
    GANG_POLICY that the kind knows.
    """
    for name, words in ((GANG_POLICY, policies), (DISRUPTION_MODE, DISRUPTION_MODES)):
        word = annotations.get(name)
        if word is not None and word not in words:
            return f"annotation {name} is {quote(word)}, and must be one of {', '.join(words)}"
    key = annotations.get(REQUIRED_TOPOLOGY)
    if key is not None and not is_label_key(key):
        return f"annotation {REQUIRED_TOPOLOGY} is {quote(key)}, which is no label key"
    return find_preference_problem(annotations)


def _has_condition(status: Raw, *types: str) -> bool:
    """Whether one of these conditions is True."""
    return any(
        read_text(condition, "type") in types and read_text(condition, "status") == "True"
        for condition in read_objects(status, "conditions")
    )


def _count_indexes(status: Raw, name: str) -> int:
    """How many indexes a list like ``1,3-5`` names."""
    text = read_text(status, name)
    try:
        return sum(_measure(part) for part in text.split(",")) if text else 0
    except ValueError:
        raise ValueError(f"{name} is no list of indexes") from None


def _measure(interval: str) -> int:
    first, _, last = interval.partition("-")
    return int(last or first) - int(first) + 1
