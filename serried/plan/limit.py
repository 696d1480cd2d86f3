"""How much work a plan may be. The planner's long loops charge it, and it ends the plan that takes too long.

    limit = Limit(stopwatch, seconds=0.005)              the caller brings the clock
    plan_group(replace(snapshot, limit=limit), ask)      a Plan or a Verdict, or raises TooLong after some 5 ms

Nothing is kept of a plan that is ended but counts that are whole, so the same question may be asked again.
"""

import math
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

_UNITS_PER_LOOK = 100
"""After how many units the stopwatch is looked at: some tenths of a millisecond."""


class TooLong(Exception):
    """The work took more time than it may take."""


class _Abandoned(Exception):
    """A part of the work took more units than it may take, or the time has come to be content."""


class Limit:
    """How much work may be done for one answer. Without a stopwatch there is no limit.

    ``stopwatch`` gives seconds. After ``seconds`` from now the work is ended by `TooLong`; after ``content_after`` it
    is to end soon with the best that it has.
    """

    __slots__ = ("_bound", "_content_at", "_end", "_is_content", "_next_look", "_stopwatch", "spent")

    def __init__(
        self,
        stopwatch: Callable[[], float] | None = None,
        seconds: float = math.inf,
        content_after: float = math.inf,
    ) -> None:
        self.spent = 0
        """Units so far: a unit is a node, a pod or a class looked at, some microseconds."""

        self._stopwatch = stopwatch
        begun = stopwatch() if stopwatch is not None else 0.0
        self._end = begun + seconds
        self._content_at = begun + content_after
        self._bound = math.inf
        self._is_content = False
        self._next_look: float = math.inf if stopwatch is None else _UNITS_PER_LOOK

    @property
    def content(self) -> bool:
        """Whether the best that is known by now is good enough. Once it is, it stays so."""
        return self._stopwatch is not None and self._stopwatch() >= self._content_at

    def spend(self, units: int = 1) -> None:
        """Charge so many units, before or after they are worked on. Raise TooLong if the time is over."""
        self.spent += units
        if self.spent >= self._next_look:
            self._look()

    def attempt(
        self, work: Callable[[], Result], units: float = math.inf, *, until_content: bool = False
    ) -> Result | None:
        """Return the result of a part of the work; None if it takes more than so many units.

        With ``until_content`` also if the best that is known before it becomes good enough.
        """
        bound, is_content, next_look = self._bound, self._is_content, self._next_look
        self._bound = min(bound, self.spent + units)
        self._is_content = is_content or until_content
        self._next_look = min(next_look, self._bound)
        try:
            self._look()
            return work()
        except _Abandoned:
            return None
        finally:
            self._bound, self._is_content = bound, is_content
            self._next_look = math.inf if math.isinf(next_look) and math.isinf(bound) else self.spent

    def _look(self) -> None:
        if self.spent >= self._bound or (self._is_content and self.content):
            raise _Abandoned
        if self._stopwatch is not None:
            if self._stopwatch() > self._end:
                raise TooLong
            self._next_look = min(self._bound, self.spent + _UNITS_PER_LOOK)
        else:
            self._next_look = self._bound
