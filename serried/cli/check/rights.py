"""What follows from rights that nobody has granted."""

from collections.abc import Iterator, Mapping
from itertools import groupby

from serried.cli.check.findings import Area, Finding, Severity
from serried.cli.check.observed import Observed
from serried.cli.check.roles import ELECTING_NEEDS, NEEDS, Need, Right, list_rights
from serried.model.level import FALLBACK, NATIVE_GROUP

_WORKLOAD_RESOURCES = ("podgroups", "workloads", "compositepodgroups")


def find_rights(seen: Observed) -> dict[Right, Need]:
    """Every right that an installation with these flags needs, and what it is for."""
    return list_rights(ELECTING_NEEDS if seen.extenders_elect else NEEDS)


def check_rights(seen: Observed) -> Iterator[Finding]:
    """One finding for all rights that are missing for the same purpose."""
    needs = find_rights(seen)
    missing = sorted(_list_concerned(seen, needs), key=lambda right: (right.account, needs[right].without, right))
    for (account, without), rights in groupby(missing, key=lambda right: (right.account, needs[right].without)):
        of_these = list(rights)
        yield Finding(
            Severity.ERROR if needs[of_these[0]].vital else Severity.WARNING,
            Area.RIGHTS,
            f"ServiceAccount {account}",
            f"it may not {', '.join(map(str, of_these))}: {without}",
            f"kubectl apply -k manifests/kustomize/{_find_shipped(seen)}, or grant it in roles of your own",
        )


def _find_shipped(seen: Observed) -> str:
    return "overlays/control-plane" if seen.extenders_elect else "rbac"


def _list_concerned(seen: Observed, needs: Mapping[Right, Need]) -> Iterator[Right]:
    """Of the API level that is not in use nothing is needed."""
    level = (seen.selfcheck or {}).get("api", {}).get("group")
    unused = {NATIVE_GROUP: FALLBACK.group, FALLBACK.group: NATIVE_GROUP}.get(str(level), "")
    for right in seen.denied or ():
        about_groups = right.resource.partition("/")[0] in _WORKLOAD_RESOURCES
        if right in needs and not (about_groups and right.group == unused):
            yield right
