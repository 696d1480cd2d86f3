"""Gangs for which no victims were found, and when another search may find some.

Less may be free than a member needs, and yet enough once those of lower priority beside it go. So what is freed wakes
such a gang even if it alone could help nobody (`serried.cluster.backlog`). A few are woken at a time, in turns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from serried.model.group import GroupKey

_REST_SECONDS = 1.0
"""The shortest time between two searches of a gang that only freed room has led to."""

_AGAIN_SECONDS = 60.0
"""After which time a gang is searched for again though nothing was freed: a group that was being bound may run now."""

_MAX_LOOKED_AT = 100
"""How many gangs are looked at at a time, twice a second."""

_MAX_WOKEN = 4
"""How many of them are woken at a time."""

Freed = tuple[int, ...]
"""How often room has become free, of several kinds; it only grows."""


@dataclass(frozen=True, slots=True)
class _Vain:
    """When a search ended in loop seconds, for how long the gang rests, and what had been freed when it was refused."""

    ended: float
    rest: float
    freed: Freed


class VainSearches:
    """Remembers and wakes them. Synchronous. ``clock`` gives loop seconds, ``count_freed`` how often room was freed."""

    def __init__(self, count_freed: Callable[[], Freed], clock: Callable[[], float]) -> None:
        self._count_freed = count_freed
        self._clock = clock
        self._vain: dict[GroupKey, _Vain] = {}

    def note(self, group: GroupKey, rest: float, freed: Freed) -> None:
        """A search was in vain; its work costs the gang ``rest`` seconds, and ``freed`` is the count before it."""
        self._vain.pop(group, None)
        self._vain[group] = _Vain(self._clock(), max(_REST_SECONDS, rest), freed)

    def forget(self, group: GroupKey) -> None:
        """A gang is searched for, or wants no victims any more."""
        self._vain.pop(group, None)

    def take_due(self, may_help: Callable[[GroupKey], bool]) -> list[GroupKey]:
        """The gangs that are to be searched for again, of those that ``may_help`` says yes of; they are forgotten."""
        due: list[GroupKey] = []
        for group in list(islice(self._vain, _MAX_LOOKED_AT)):
            if len(due) == _MAX_WOKEN:
                break
            vain = self._vain.pop(group)
            if self._is_due(vain) and may_help(group):
                due.append(group)
            else:
                self._vain[group] = vain  # behind all others
        return due

    def _is_due(self, vain: _Vain) -> bool:
        waited = self._clock() - vain.ended
        return waited >= vain.rest and (vain.freed != self._count_freed() or waited >= _AGAIN_SECONDS)
