"""Run commands of ``serried`` in tests."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit code and output of a command."""

    code: int
    """The exit code."""

    out: str
    err: str


_DONE = {
    "create": "created",
    "delete": "deleted",
    "free": "freed",
    "leave": "left",
    "suspend": "suspended",
    "resume": "resumed",
}

Run = Callable[..., Ended]
"""Runs one command with these arguments."""


def done_line(would: str) -> str:
    """Return the line that ``uninstall`` prints after an action. ``would`` is the line of its dry run about it."""
    begin, step, what = would.split(maxsplit=2)
    assert begin == "would", would
    return f"{_DONE[step]} {what}"
