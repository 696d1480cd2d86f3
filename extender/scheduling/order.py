"""The order of the queue: by priority, which waiting raises, and by the time since when a gang has its quorum."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from extender.scheduling.group_state import GroupState
from serried.cluster.priorities import GroupPriorities
from serried.cluster.vacancies import Vacancies
from serried.model.group import GroupKey
from serried.plan.order import Ageing, Turn, Waiting, order_groups


class QueueOrder:
    """Says which of two groups is before the other by now.

    ``clock`` gives loop seconds. ``ageing_seconds`` is how long a gang waits before it counts as of the next higher
    priority; infinite for never.
    """

    def __init__(
        self,
        priorities: GroupPriorities,
        vacancies: Vacancies,
        clock: Callable[[], float],
        *,
        ageing_seconds: float = math.inf,
    ) -> None:
        self._priorities = priorities
        self._vacancies = vacancies
        self._clock = clock
        self._ageing = Ageing(ageing_seconds)

    def describe(self, group: GroupKey, state: GroupState | None) -> Waiting:
        """A group as the queue sees it; ``state`` is what is remembered of it."""
        # A member that has just ended counts at once: whoever was looked at first would get the room.
        broken = (state is not None and state.broken_since is not None) or group in self._vacancies
        since = state.quorum_since if state is not None else None
        rejected = state is not None and state.rejection is not None
        return Waiting(group, self._priorities.of_group(group), math.inf if since is None else since, broken, rejected)

    def sort(self, waiting: Iterable[Waiting]) -> list[Waiting]:
        """The first one first."""
        return order_groups(waiting, self._ageing, self._clock())

    def precedes(self, first: Waiting, second: Waiting) -> bool:
        """Whether one group is before another."""
        now = self._clock()
        return self._ageing.place(first, now) < self._ageing.place(second, now)

    def turn_of(self, waiting: Waiting) -> Turn:
        """Where a group stands by now."""
        return self._ageing.place(waiting, self._clock())

    def raised_priority(self, waiting: Waiting) -> int:
        """The priority with which a group counts by now."""
        return self._ageing.raised(waiting, self._clock())

    def note_levels(self) -> None:
        """Look which priorities there are: waiting raises a gang from one of these to the next."""
        self._ageing = replace(self._ageing, levels=sorted(self._priorities.list_levels()))
