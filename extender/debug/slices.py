"""Work for a route that would hold the loop: done in slices, between which filter is served."""

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from serried.observe.pace import rest
from serried.plan.steps import Work

T = TypeVar("T")

_SLICE_SECONDS = 0.002
"""The length of a slice; the loop has as long for itself after each."""


class TooLongError(Exception):
    """The work took more time than it may take."""


class Slices:
    """Does work of `serried.plan.steps`. ``longest`` is that of the last work in seconds, ``spent`` all of them."""

    def __init__(
        self,
        stopwatch: Callable[[], float] = time.perf_counter,
        rest: Callable[[float], Awaitable[None]] = rest,
    ) -> None:
        self.longest = 0.0
        self.spent = 0.0
        self._stopwatch = stopwatch
        self._rest = rest

    async def finish(self, work: Work[T], limit: float, hurry: Callable[[], None] = lambda: None) -> T:
        """The result. Raises TooLongError after ``limit`` seconds of work; at half of them ``hurry`` is called."""
        self.longest = 0.0
        self.spent = 0.0
        while True:
            begun = self._stopwatch()
            try:
                next(work)
                while self._stopwatch() - begun < _SLICE_SECONDS:
                    next(work)
            except StopIteration as done:
                self._note(begun)
                result: T = done.value
                return result
            await self._rest(self._note(begun))
            if self.spent > limit:
                work.close()
                raise TooLongError
            if self.spent > limit / 2:
                hurry()

    def _note(self, begun: float) -> float:
        took = self._stopwatch() - begun
        self.longest = max(self.longest, took)
        self.spent += took
        return took


def join(chunks: Iterable[bytes], size: int) -> Work[list[bytes]]:
    """The same bytes in pieces of at least so many, in steps."""
    found: list[bytes] = []
    open_ = bytearray()
    for chunk in chunks:
        open_ += chunk
        if len(open_) >= size:
            found.append(bytes(open_))
            open_.clear()
        yield
    return [*found, bytes(open_)]
