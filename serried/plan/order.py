"""In which order waiting gangs are planned (decision 12)."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from serried.model.group import GroupKey


@dataclass(frozen=True, slots=True)
class Waiting:
    """A group whose quorum stands. ``since`` is the time of its first complete quorum, on any one clock.

    ``broken`` is a gang that ran and has lost its quorum: what is left of it holds room, and does nothing with it.
    """

    group: GroupKey
    priority: int
    since: float
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Ageing:
    """How waiting counts: one level of priority more for each ``step`` (seconds; infinite for none).

    ``levels`` are the priorities that exist, ascending and without repeats. Nobody rises above the highest of them.
    """

    step: float = math.inf
    levels: Sequence[int] = ()

    def raised(self, waiting: Waiting, now: float) -> int:
        """The priority that a group counts with; ``now`` is on the clock of ``since``."""
        waited = now - waiting.since
        steps = int(waited // self.step) if 0 < waited < math.inf else 0
        if not steps:
            return waiting.priority
        above = self.levels[bisect_right(self.levels, waiting.priority) :]
        return above[min(steps, len(above)) - 1] if above else waiting.priority

    def place(self, waiting: Waiting, now: float) -> tuple[int, bool, float, GroupKey]:
        """Where a group stands in the queue: of two, the one with the smaller place goes first."""
        return -self.raised(waiting, now), not waiting.broken, waiting.since, waiting.group


def order_groups(waiting: Iterable[Waiting], ageing: Ageing, now: float) -> list[Waiting]:
    """Highest priority first, then those that are broken, then the longest complete, then by key.

    Who has waited counts as of higher priority.
    """
    return sorted(waiting, key=lambda group: ageing.place(group, now))
