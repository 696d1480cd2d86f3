"""What of the cluster itself matters: admission policies, versions, an autoscaler."""

import re
from collections.abc import Iterator

from serried.cli.check.findings import Area, Finding, Severity
from serried.cli.check.observed import Observed
from serried.decode.fields import read_int, read_map
from serried.model.level import FALLBACK

POLICIES = {
    "serried-extender-deletions": "the extender's right to delete pods has no limit",
    "serried-extender-pod-status": "the extender's right to change statuses of pods has no limit",
    "serried-extender-pods": "the extender's right to change pods has no limit",
    "serried-job-gang-policy": "annotations of Jobs may be wrong, and may change while they run",
    "serried-pod-group-label": "a pod's group may be changed while it waits",
    "serried-reservations": "anybody with all rights in a namespace may stop all plans by a Reservation there",
}
"""The policies that every installation has, and what follows where one is missing."""

_PRIORITY_POLICY = "serried-group-priority"
_MARKER_POLICY = "serried-marker"
_GATE_POLICY = "serried-gate"

_OLDEST_MINOR = 35
_MINOR = re.compile(r"v?1\.(\d+)")


def check_policies(seen: Observed) -> Iterator[Finding]:
    """The admission policies of the shipped manifests."""
    if seen.policies is None:
        return
    for name, without in POLICIES.items():
        yield from _check_policy(seen, name, without, Severity.WARNING, "policies")
    if (seen.selfcheck or {}).get("api", {}).get("level") == FALLBACK.name:
        without = "anybody who makes a PodGroup may give it any priority"
        yield from _check_policy(seen, _PRIORITY_POLICY, without, Severity.WARNING, "policies")
    if seen.flags.get("isolated") == "on":
        without = "members get no markers, so the scheduler does not ask about them and starts gangs pod by pod"
        yield from _check_policy(seen, _MARKER_POLICY, without, Severity.ERROR, "marker")
    if seen.flags.get("hold") == "gate":
        without = "no pod gets the gate, so none is held by it"
        yield from _check_policy(seen, _GATE_POLICY, without, Severity.ERROR, "gate")


def _check_policy(seen: Observed, name: str, without: str, severity: Severity, piece: str) -> Iterator[Finding]:
    fix = f"kubectl apply -k manifests/kustomize/{piece}"
    if name not in (seen.policies or ()):
        yield Finding(severity, Area.POLICIES, name, f"there is no such policy: {without}", fix)
    elif name not in seen.bound_policies:
        yield Finding(severity, Area.POLICIES, name, f"the policy has no binding: {without}", fix)


def check_cluster(seen: Observed) -> Iterator[Finding]:
    """Versions that do not go together, autoscalers that do not see every member, and pods that are no victims."""
    yield from _check_versions(_read_minor(seen.server_version), _read_minor(seen.scheduler_version))
    yield from _check_victims(seen)
    gated = seen.flags.get("hold") == "gate" or (
        seen.flags.get("hold") == "auto" and _GATE_POLICY in (seen.policies or ())
    )
    if seen.flags.get("hold") == "gate" and (seen.selfcheck or {}).get("schedulesGangs"):
        yield Finding(
            Severity.ERROR,
            Area.CLUSTER,
            "kube-scheduler",
            "its own gang scheduling is on and holds a whole group while one of its pods has a scheduling gate: a gang "
            "with more pods than have room never starts",
            "run the extender with --hold=filter",
        )
    if seen.autoscalers and gated:
        yield Finding(
            Severity.WARNING,
            Area.CLUSTER,
            ", ".join(seen.autoscalers),
            "autoscalers do not look at pods with a scheduling gate, so a gang that is held by gate gets no nodes",
            "run the extender with --hold=filter",
        )


def _check_victims(seen: Observed) -> Iterator[Finding]:
    """Pods that are evicted for no gang, whatever their priority."""
    selfcheck = seen.selfcheck or {}
    count = read_int(read_map(selfcheck, "objects"), "podsOfOtherSchedulers")
    if not count or seen.flags.get("preemption") != "on":
        return
    names = ", ".join(selfcheck.get("schedulers", ()))
    what = (
        f"{count} pods that run are not of {names}: none of them is evicted for a gang, whatever its priority, because "
        "their own scheduler would take the room first (docs/preemption.md)"
    )
    fix = "give pods that are to make room schedulerName: serried, or install overlays/control-plane"
    yield Finding(Severity.WARNING, Area.CLUSTER, "pods of other schedulers", what, fix)


def _check_versions(server: int | None, scheduler: int | None) -> Iterator[Finding]:
    if server is not None and server < _OLDEST_MINOR:
        what = f"1.{server} has not what Serried needs of the API server"
        yield Finding(Severity.ERROR, Area.CLUSTER, "Kubernetes", what, f"use 1.{_OLDEST_MINOR} or newer")
    if server is None or scheduler is None:
        return
    fix = f"set newTag: v1.{server}.x for kube-scheduler in manifests/kustomize/base/kustomization.yaml"
    if scheduler > server:
        what = f"1.{scheduler} is newer than the API server (1.{server}): it may ask for what is not served"
        yield Finding(Severity.ERROR, Area.CLUSTER, "kube-scheduler", what, fix)
    elif scheduler < server - 1:
        what = f"1.{scheduler} is more than one minor version older than the API server (1.{server})"
        yield Finding(Severity.WARNING, Area.CLUSTER, "kube-scheduler", what, fix)


def _read_minor(version: str) -> int | None:
    found = _MINOR.match(version)
    return int(found[1]) if found else None
