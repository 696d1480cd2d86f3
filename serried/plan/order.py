"""In which order waiting gangs are planned (docs/decisions/0012-the-head-of-the-queue.md)."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from serried.model.group import GroupKey


@dataclass(frozen=True, slots=True)
class Waiting:
    """A group whose quorum exists."""

    group: GroupKey
    priority: int

    since: float
    """When its members were first enough for the quorum, in seconds of any one clock."""

    broken: bool = False
    """Whether it ran and has lost its quorum: what is left of it holds room, and does nothing with it."""

    rejected: bool = False
    """Whether the scheduler had no node for a member of it, whatever room there is: it keeps nobody's place."""


Turn = tuple[int, bool, float, GroupKey]
"""Where a group stands in the queue: of two, the one with the smaller turn goes first."""


@dataclass(frozen=True, slots=True)
class Ageing:
    """How waiting counts: as a higher priority."""

    step: float = math.inf
    """After how many seconds each a group counts with the next higher level; infinite for never."""

    levels: Sequence[int] = ()
    """The priorities that exist, ascending and without repeats. No group rises above the highest of them."""

    def raised(self, waiting: Waiting, now: float) -> int:
        """The priority that a group counts with; ``now`` is on the clock of ``since``."""
        waited = now - waiting.since
        steps = int(waited // self.step) if 0 < waited < math.inf else 0
        if not steps:
            return waiting.priority
        above = self.levels[bisect_right(self.levels, waiting.priority) :]
        return above[min(steps, len(above)) - 1] if above else waiting.priority

    def place(self, waiting: Waiting, now: float) -> Turn:
        """Where a group stands in the queue: of two, the one with the smaller place goes first."""
        return -self.raised(waiting, now), not waiting.broken, waiting.since, waiting.group


def order_groups(waiting: Iterable[Waiting], ageing: Ageing, now: float) -> list[Waiting]:
    """Highest priority first, as waiting has raised it; then broken groups, then the longest complete, then by key."""
    return sorted(waiting, key=lambda group: ageing.place(group, now))
