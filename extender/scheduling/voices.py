"""Whom the group scheduler tells what it has decided."""

from typing import Protocol

from serried.model.group import GroupKey
from serried.model.verdict import Verdict


class StatusSink(Protocol):
    """Where verdicts go: condition, event, ``/debug``."""

    def say(self, group: GroupKey, verdict: Verdict) -> None:
        """The group stands like this now."""

    def report_broken(self, group: GroupKey, verdict: Verdict) -> None:
        """The gang has been broken for longer than the grace."""


class Watcher(Protocol):
    """Told of plans and repairs, for the metrics."""

    def planned(self, outcome: str, seconds: float) -> None:
        """A plan was made or refused."""

    def repaired(self, outcome: str, seconds: float) -> None:
        """A kept slot was filled, or given up, so long after its member had ended."""
