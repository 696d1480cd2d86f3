"""Limits the work for a plan. The planner's long loops report work to the limit, which ends plans that take too long.

    limit = Limit(stopwatch, seconds=0.005)              the caller provides the clock
    plan_group(replace(snapshot, limit=limit), ask)      a Plan or a Verdict, or raises TooLong after some 5 ms

An ended plan leaves only complete counts in the capacity, so the same request may be planned again.
"""

import math
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

_UNITS_PER_CHECK = 100
"""The number of units between two reads of the stopwatch: some tenths of a millisecond."""


class TooLong(Exception):
    """Raised when the plan has taken more time than its limit."""


class _Abandoned(Exception):
    """Raised inside `Limit.attempt` when the attempt has used its units, or when the limit is content."""


class Limit:
    """The work that one plan may do. Without a stopwatch there is no limit.

    ``stopwatch`` returns seconds. After ``seconds`` from now the plan is ended by `TooLong`. After ``content_after``
    seconds the planner stops improving its result.
    """

    __slots__ = ("_bound", "_content_at", "_end", "_is_content", "_next_check", "_stopwatch", "spent")

    def __init__(
        self,
        stopwatch: Callable[[], float] | None = None,
        seconds: float = math.inf,
        content_after: float = math.inf,
    ) -> None:
        self.spent = 0
        """The units spent so far. A unit is a node, a pod or a class that was examined: some microseconds."""

        self._stopwatch = stopwatch
        begun = stopwatch() if stopwatch is not None else 0.0
        self._end = begun + seconds
        self._content_at = begun + content_after
        self._bound = math.inf
        self._is_content = False
        self._next_check: float = math.inf if stopwatch is None else _UNITS_PER_CHECK

    @property
    def content(self) -> bool:
        """True once ``content_after`` seconds are over: the best known result is good enough."""
        return self._stopwatch is not None and self._stopwatch() >= self._content_at

    def spend(self, units: int = 1) -> None:
        """Report work, before or after it is done. Raises TooLong if the time is over."""
        self.spent += units
        if self.spent >= self._next_check:
            self._check()

    def attempt(
        self, work: Callable[[], Result], units: float = math.inf, *, until_content: bool = False
    ) -> Result | None:
        """Return the result of ``work``; None if it takes more than ``units``.

        With ``until_content`` also None if the limit becomes `content` meanwhile.
        """
        bound, is_content, next_look = self._bound, self._is_content, self._next_check
        self._bound = min(bound, self.spent + units)
        self._is_content = is_content or until_content
        self._next_check = min(next_look, self._bound)
        try:
            self._check()
            return work()
        except _Abandoned:
            return None
        finally:
            self._bound, self._is_content = bound, is_content
            self._next_check = math.inf if math.isinf(next_look) and math.isinf(bound) else self.spent

    def _check(self) -> None:
        if self.spent >= self._bound or (self._is_content and self.content):
            raise _Abandoned
        if self._stopwatch is not None:
            if self._stopwatch() > self._end:
                raise TooLong
            self._next_check = min(self._bound, self.spent + _UNITS_PER_CHECK)
        else:
            self._next_check = self._bound
