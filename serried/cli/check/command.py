"""``serried check``: all checks, over what was found out about an installation."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import RenderableType

from serried.cli.access import Target, reaching
from serried.cli.check.checks import (
    check_cluster,
    check_extender,
    check_nodes,
    check_policies,
    check_rights,
    check_scheduler,
)
from serried.cli.check.collect import collect
from serried.cli.check.observed import Area, Finding, Observed, Severity
from serried.cli.output import ExitCode, Output, OutputFormat, make_table, option, write

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


CHECK_EXAMPLES = """
Check the whole installation:
  serried check

Check a file with the scheduler's configuration, without a cluster:
  serried check --only scheduler --scheduler-config manifests/scheduler-config.yaml

Fail for warnings, too, for example in a pipeline:
  serried check --fail-on warning -o json
"""


class FailOn(StrEnum):
    """From which severity on the exit code is 1."""

    ERROR = "error"
    WARNING = "warning"
    NEVER = "never"


_FAILING = {
    FailOn.ERROR: {Severity.ERROR},
    FailOn.WARNING: {Severity.ERROR, Severity.WARNING},
    FailOn.NEVER: set[Severity](),
}

File = Annotated[
    str, option("FILE", "The scheduler's configuration. Default: the ConfigMap that the extender's pod mounts.")
]
Only = Annotated[list[Area] | None, option("AREA", f"Check this area only: {', '.join(Area)}. May be repeated.")]
Fail = Annotated[FailOn, typer.Option(help="The lowest severity for which the exit code is 1.")]


@reaching
def check(
    scheduler_config: File = "",
    only: Only = None,
    fail_on: Fail = FailOn.ERROR,
    output: Output = OutputFormat.TABLE,
    *,
    target: Target,
) -> None:
    """Find mistakes in an installation, and show how to fix them.

    It checks the scheduler's configuration, the extender and its clock, the rights of both ServiceAccounts, labels of
    nodes, admission policies, versions and autoscalers. What you may not read is listed as unknown.
    """
    areas = tuple(only or Area)
    found = examine(asyncio.run(collect(target, scheduler_config, areas)), areas)
    write([asdict(finding) for finding in found], output, lambda: draw_findings(found))
    if any(finding.severity in _FAILING[fail_on] for finding in found):
        raise typer.Exit(ExitCode.NO.number)


def draw_findings(found: Sequence[Finding]) -> Iterator[RenderableType]:
    """The findings for people, one paragraph each."""
    if not found:
        yield "No mistakes found."
        return
    for finding in found:
        yield make_table((finding.severity.upper(), finding.where), [("what", finding.what), ("fix", finding.fix)])
    counts = Counter(finding.severity for finding in found)
    yield ""
    yield ", ".join(f"{counts[severity]} {severity}" for severity in Severity if counts[severity])
