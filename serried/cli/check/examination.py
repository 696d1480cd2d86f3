"""All checks, over what was found out."""

from collections.abc import Callable, Collection, Iterator, Mapping

from serried.cli.check.cluster import check_cluster, check_policies
from serried.cli.check.extender import check_extender
from serried.cli.check.findings import Area, Finding, Severity
from serried.cli.check.nodes import check_nodes
from serried.cli.check.observed import Observed
from serried.cli.check.rights import check_rights
from serried.cli.check.scheduler import check_scheduler

_CHECKS: Mapping[Area, Callable[[Observed], Iterator[Finding]]] = {
    Area.SCHEDULER: check_scheduler,
    Area.EXTENDER: check_extender,
    Area.RIGHTS: check_rights,
    Area.NODES: check_nodes,
    Area.POLICIES: check_policies,
    Area.CLUSTER: check_cluster,
}

_ORDER = list(Severity)


def examine(seen: Observed, areas: Collection[Area] = tuple(Area)) -> list[Finding]:
    """The findings of these areas: errors first, and within a severity by area."""
    found = [finding for area in Area if area in areas for finding in _CHECKS[area](seen)]
    for area, what, why in seen.unread:
        if area in areas:
            found.append(Finding(Severity.UNKNOWN, area, what, f"it was not checked: {why}", _HOW_TO_READ))
    return sorted(found, key=lambda finding: _ORDER.index(finding.severity))


_HOW_TO_READ = "run the check as an administrator, or name what it needs: --server, --scheduler-config"
