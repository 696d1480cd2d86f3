"""The order of the queue: by priority, which waiting raises, and by the time since when a gang has its quorum."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from extender.scheduling.group_state import GroupState
from serried.cluster.members import Members
from serried.cluster.vacancies import Vacancies
from serried.model.group import BARE_KINDS, GroupKey, PodGroup
from serried.plan.order import Ageing, Waiting, order_groups


class QueueOrder:
    """Says which of two groups is before the other by now.

    ``clock`` gives loop seconds. ``ageing_seconds`` is how long a gang waits before it counts as of the next higher
    priority; infinite for never.
    """

    def __init__(
        self,
        groups: Mapping[GroupKey, PodGroup],
        members: Members,
        vacancies: Vacancies,
        clock: Callable[[], float],
        *,
        ageing_seconds: float = math.inf,
    ) -> None:
        self._groups = groups
        self._members = members
        self._vacancies = vacancies
        self._clock = clock
        self._ageing = Ageing(ageing_seconds)

    def describe(self, group: GroupKey, state: GroupState | None) -> Waiting:
        """A group as the queue sees it; ``state`` is what is remembered of it."""
        # A member that has just ended counts at once: whoever was looked at first would get the room.
        broken = (state is not None and state.broken_since is not None) or group in self._vacancies
        since = state.quorum_since if state is not None else None
        return Waiting(group, self._find_priority(group), math.inf if since is None else since, broken)

    def _find_priority(self, key: GroupKey) -> int:
        group = self._groups.get(key)
        if group is None:
            return 0
        if group.key.kind in BARE_KINDS:  # its pods alone have one
            return min((pod.priority for pod in self._members.of_group(key)), default=0)
        return group.priority or 0

    def sort(self, waiting: Iterable[Waiting]) -> list[Waiting]:
        """The first one first."""
        return order_groups(waiting, self._ageing, self._clock())

    def precedes(self, first: Waiting, second: Waiting) -> bool:
        """Whether one group is before another."""
        now = self._clock()
        return self._ageing.place(first, now) < self._ageing.place(second, now)

    def raised_priority(self, waiting: Waiting) -> int:
        """The priority with which a group counts by now."""
        return self._ageing.raised(waiting, self._clock())

    def note_levels(self) -> None:
        """Look which priorities there are: waiting raises a gang from one of these to the next."""
        levels = {group.priority or 0 for group in self._groups.values()}
        self._ageing = replace(self._ageing, levels=sorted(levels))
