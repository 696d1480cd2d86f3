"""What follows from rights that nobody has granted."""

from collections.abc import Iterator, Mapping
from itertools import groupby

from serried.cli.check.findings import Area, Finding, Severity
from serried.cli.check.observed import Observed
from serried.cli.check.roles import Need, Right, list_rights
from serried.model.level import FALLBACK, NATIVE_GROUP

_WORKLOAD_RESOURCES = ("podgroups", "workloads", "compositepodgroups")


def check_rights(seen: Observed) -> Iterator[Finding]:
    """One finding for all rights that are missing for the same purpose."""
    needs = list_rights()
    missing = sorted(_list_concerned(seen, needs), key=lambda right: (right.account, needs[right].without, right))
    for (account, without), rights in groupby(missing, key=lambda right: (right.account, needs[right].without)):
        of_these = list(rights)
        yield Finding(
            Severity.ERROR if needs[of_these[0]].vital else Severity.WARNING,
            Area.RIGHTS,
            f"ServiceAccount {account}",
            f"it may not {', '.join(map(str, of_these))}: {without}",
            "kubectl apply -k manifests/kustomize/rbac, or grant it in roles of your own",
        )


def _list_concerned(seen: Observed, needs: Mapping[Right, Need]) -> Iterator[Right]:
    """Of the API level that is not in use nothing is needed."""
    level = (seen.selfcheck or {}).get("api", {}).get("group")
    unused = {NATIVE_GROUP: FALLBACK.group, FALLBACK.group: NATIVE_GROUP}.get(str(level), "")
    for right in seen.denied or ():
        about_groups = right.resource.partition("/")[0] in _WORKLOAD_RESOURCES
        if right in needs and not (about_groups and right.group == unused):
            yield right
