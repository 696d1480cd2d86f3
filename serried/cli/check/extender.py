"""What the extender itself says of how it stands."""

from collections.abc import Iterator
from typing import Any

from serried.cli.check.findings import Area, Finding, Severity
from serried.cli.check.observed import Observed
from serried.model.level import NATIVE

_SKEW_SECONDS = 2.0
_LOST_SKEW_SECONDS = 10.0
"""A Lease lasts 15 s: by a clock so far off it is hardly held."""

_NEEDED_WATCHES = ("podgroups", "workloads")


def check_extender(seen: Observed) -> Iterator[Finding]:
    """Leadership, caches, API level and clock."""
    if seen.silence:
        fix = "see that its pod is ready and that you may get pods/proxy, or name its address with --server"
        yield _find(Severity.ERROR, "/debug", seen.silence, fix)
    if seen.selfcheck is not None:
        yield from _check_leadership(seen.selfcheck)
        yield from _check_caches(seen.selfcheck)
        yield from _check_holding(seen)
        yield from _check_marked(seen.selfcheck)
        yield from _check_certificates(seen.selfcheck)
    if seen.skew_seconds is not None and abs(seen.skew_seconds) > _SKEW_SECONDS:
        lost = abs(seen.skew_seconds) > _LOST_SKEW_SECONDS
        ahead = "ahead of" if seen.skew_seconds > 0 else "behind"
        yield _find(
            Severity.ERROR if lost else Severity.WARNING,
            "clock",
            f"it is {abs(seen.skew_seconds):.0f} s {ahead} the API server's: leadership ends early or does not begin, "
            "and forecasts are wrong by as much",
            "let the node's clock be set by NTP (chrony, systemd-timesyncd)",
        )


def _check_leadership(selfcheck: Any) -> Iterator[Finding]:
    if not selfcheck["active"]:
        holder = selfcheck.get("leaseHolder") or "nobody"
        yield _find(
            Severity.ERROR,
            "leadership",
            f"the extender does not lead (the Lease is held by {holder}), so gangs wait",
            "let the kube-scheduler beside it hold the Lease that --lease names, and look at its log",
        )
    elif selfcheck.get("obstacle"):
        fix = "install the CRDs (manifests/kustomize/crds), apply the roles (manifests/kustomize/rbac)"
        yield _find(Severity.ERROR, "Reservations", f"they cannot be read: {selfcheck['obstacle']}", fix)


def _check_caches(selfcheck: Any) -> Iterator[Finding]:
    api = selfcheck["api"]
    if api["level"] == NATIVE.name and api.get("podsKeepTheirGroup") is False:
        yield _find(
            Severity.ERROR,
            f"API {api['group']}/{api['version']}",
            "the API server serves PodGroups and drops what pods say of theirs, so gangs start pod by pod",
            "turn the feature gate GenericWorkload on in every kube-apiserver, or off in all of them",
        )
    for refused in api.get("refused", ()):
        used = f"{api['group']}/{api['version']}"
        native = api["level"] == NATIVE.name
        what = f"{refused}; {used} is used instead"
        fix = "install a version of Serried that knows it"
        yield _find(Severity.WARNING if native else Severity.ERROR, f"API {used}", what, fix)
    for kind, watch in sorted(selfcheck.get("watches", {}).items()):
        if not watch["served"] and kind in _NEEDED_WATCHES:
            fix = "kubectl apply -k manifests/kustomize/crds, or turn the feature gate on that serves them"
            yield _find(Severity.ERROR, kind, "the API server does not serve them, so gangs wait", fix)
        elif watch["malformed"]:
            what = f"{watch['malformed']} of them cannot be read, and are ignored"
            yield _find(Severity.WARNING, kind, what, "kubectl get events -A --field-selector reason=Malformed")


def _check_holding(seen: Observed) -> Iterator[Finding]:
    hold = (seen.selfcheck or {}).get("hold", {})
    if hold.get("mode") == "gate" and hold.get("obstacle"):
        fix = "kubectl apply -k manifests/kustomize/gate, or run the extender with --hold=filter"
        yield _find(Severity.ERROR, "--hold=gate", hold["obstacle"], fix)


def _check_marked(selfcheck: Any) -> Iterator[Finding]:
    unmarked = selfcheck.get("isolation", {}).get("unmarkedMembers", 0)
    if selfcheck.get("isolation", {}).get("isolated") and unmarked:
        what = f"{unmarked} members have no marker: the scheduler does not ask about them, and binds each alone"
        yield _find(Severity.ERROR, "markers", what, "apply manifests/kustomize/marker, then delete these pods")


def _check_certificates(selfcheck: Any) -> Iterator[Finding]:
    for use, found in sorted(selfcheck.get("certificates", {}).items()):
        if warning := found.get("warning"):
            fix = "replace the file; no restart is needed"
            yield _find(Severity.WARNING, f"certificate ({use})", warning.removesuffix(f". {fix.capitalize()}"), fix)


def _find(severity: Severity, where: str, what: str, fix: str) -> Finding:
    return Finding(severity, Area.EXTENDER, where, what, fix)
