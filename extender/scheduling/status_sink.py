"""Whom the group scheduler tells what it has decided."""

from typing import Protocol

from serried.model.group import GroupKey
from serried.model.reservation import Victim
from serried.model.verdict import Verdict


class StatusSink(Protocol):
    """Where verdicts go: condition, event, ``/debug``."""

    def say(self, group: GroupKey, verdict: Verdict) -> None:
        """The group stands like this now."""

    def report_broken(self, group: GroupKey, verdict: Verdict) -> None:
        """The gang has been broken for longer than the grace."""

    def report_disrupted(self, group: GroupKey, text: str) -> None:
        """Members of the gang are ended because one of them was disrupted."""

    def report_preemption(self, group: GroupKey, text: str) -> None:
        """Others are about to be evicted for the gang."""

    def report_victim(self, victim: Victim, text: str) -> None:
        """A pod is about to be evicted for a gang."""

    async def mark_preempted(self, group: GroupKey, text: str) -> None:
        """Write first of all that one group is evicted as a whole for a gang; never raises ApiError."""

    async def unmark_preempted(self, group: GroupKey) -> None:
        """Take that back, as some of it stays; never raises ApiError."""
