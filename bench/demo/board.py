"""The table of the demo: a row for each gang, from the answer of `/debug/groups`. Without I/O."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from bench.load.objects import Gang, Load, group_name

_COLOURS = {"Scheduled": "green", "Binding": "cyan", "Committing": "cyan", "Gathering": "cyan", "Recording": "cyan"}


@dataclass(frozen=True, slots=True)
class Row:
    """One gang as `/debug/groups` shows it."""

    gang: str
    wants: str
    quorum: str
    domain: str
    state: str
    reason: str


def read_rows(groups: Iterable[Mapping[str, Any]], gangs: Sequence[Gang], load: Load, gone: Iterable[str]) -> list[Row]:
    """Return a row for each gang that `/debug/groups` shows, or that was deleted, in the order of ``gangs``.

    ``groups`` is the answer of `/debug/groups`, ``gone`` the names of deleted gangs.
    """
    found = {gang.name: group for group in groups if (gang := _match(group["name"], gangs, load)) is not None}
    rows = []
    for gang in gangs:
        wants = f"{gang.size} in one rack" if gang.key else f"{gang.size} anywhere"
        if gang.name in found:
            rows.append(_row(found[gang.name], gang, wants))
        elif gang.name in gone:
            rows.append(Row(gang.name, wants, "", "", "Deleted", ""))
    return rows


def _match(group: str, gangs: Sequence[Gang], load: Load) -> Gang | None:
    # The PodGroup's name starts with the Job's name, and so does that of the placeholder until the PodGroup exists.
    name = group.rpartition(":")[2]
    return next((gang for gang in gangs if f"{name}-".startswith(f"{group_name(load, gang)}-")), None)


def _row(group: Mapping[str, Any], gang: Gang, wants: str) -> Row:
    quorum = f"{group['placed']} of {group['minCount'] or gang.size}"
    # The message starts with the reason, and has the numbers in addition.
    reason = group["message"] or group["reason"]
    return Row(gang.name, wants, quorum, group["domain"], group["state"], reason)


def render_table(rows: Iterable[Row], caption: str) -> Table:
    """Return the rows as a table for the terminal."""
    table = Table(caption=caption, caption_justify="left", expand=True)
    for title in ("gang", "wants", "quorum", "domain", "state"):
        table.add_column(title, no_wrap=True)
    table.add_column("reason", ratio=1)
    for row in rows:
        colour = _COLOURS.get(row.state, "yellow")
        table.add_row(row.gang, row.wants, row.quorum, row.domain, Text(row.state, style=colour), row.reason)
    return table


def render_changes(before: Sequence[Row], now: Sequence[Row]) -> list[str]:
    """Return a line of text for each gang whose state or reason has changed."""
    known = {row.gang: (row.state, row.reason.partition(":")[0]) for row in before}
    return [
        "  ".join(part for part in (f"{row.gang:<10}", f"{row.state:<10}", row.domain, row.reason) if part)
        for row in now
        if known.get(row.gang) != (row.state, row.reason.partition(":")[0])
    ]
