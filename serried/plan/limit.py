"""Limits the time that the planner spends on one plan (`Limit`).

The planner's long loops report their work to the limit. It raises `TooLong` once the plan has taken too long:

    limit = Limit(stopwatch, seconds=0.005)              the caller provides the clock
    plan_group(replace(snapshot, limit=limit), ask)      a Plan or a Verdict, or raises TooLong after some 5 ms

A plan may be repeated after TooLong: the caches of the planner (`serried.plan.capacity.Capacity`) then only have
complete counts.
"""

import math
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

_UNITS_PER_CHECK = 100
"""The amount of work (`Limit.spent`) between two reads of the stopwatch: some tenths of a millisecond."""


class TooLong(Exception):
    """Raised out of the planner when a plan has taken more seconds than its `Limit` allows."""


class _Abandoned(Exception):
    """Raised out of the work of `Limit.attempt`, which catches it, when the work has used its allowance."""


class Limit:
    """The time that one plan may take, and a counter of its work. The planner reports its work by `spend`.

    `attempt` ends one part of the plan after a number of units of work, also without a stopwatch.

    ``stopwatch`` returns seconds. ``seconds`` after the creation of the limit, the next `spend` raises `TooLong`.
    ``content_after`` seconds after the creation, the planner stops improving a plan that it has. Without a stopwatch
    neither of these two happens.
    """

    __slots__ = ("_bound", "_content_at", "_end", "_is_content", "_next_check", "_stopwatch", "spent")

    def __init__(
        self,
        stopwatch: Callable[[], float] | None = None,
        seconds: float = math.inf,
        content_after: float = math.inf,
    ) -> None:
        self.spent = 0
        """The work so far, in units of some microseconds. Each examined node, pod or class of members is one unit."""

        self._stopwatch = stopwatch
        begun = stopwatch() if stopwatch is not None else 0.0
        self._end = begun + seconds
        self._content_at = begun + content_after
        self._bound = math.inf
        self._is_content = False
        self._next_check: float = math.inf if stopwatch is None else _UNITS_PER_CHECK

    @property
    def content(self) -> bool:
        """True once ``content_after`` seconds are over: from then on the planner no longer improves a plan it has."""
        return self._stopwatch is not None and self._stopwatch() >= self._content_at

    def spend(self, units: int = 1) -> None:
        """Report ``units`` of work, each some microseconds. Raise TooLong if the plan has taken too much time.

        For instance each examined node, pod or class of members is one unit.
        """
        self.spent += units
        if self.spent >= self._next_check:
            self._check()

    def attempt(
        self, work: Callable[[], Result], units: float = math.inf, *, until_content: bool = False
    ) -> Result | None:
        """Call ``work``, which may do at most ``units`` of work. Return its result, or None if it was ended before.

        Work is measured in the units of `spend`. ``work`` is ended by an exception from `spend`. With ``until_content``
        it is also ended once `content` is True.
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
