"""Commands of ``serried`` in tests."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command has left."""

    code: int
    """The exit code."""

    out: str
    err: str


Run = Callable[..., Ended]
"""Runs one command with these arguments."""
