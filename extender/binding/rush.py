"""When evictions are written, Events of type Normal wait: each victim has one, and the gang waits for its room."""

import math
from collections.abc import Callable
from types import TracebackType

_AFTERMATH_SECONDS = 2.0
"""How long it lasts beyond the last write, or the last end: the members of the gang are to be bound."""

_LONGEST_SECONDS = 30.0
"""How long Events wait at the most, whoever is evicted for whom meanwhile."""


class Rush:
    """A context for each that writes evictions, any number at a time. ``clock`` gives loop seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._writers = 0
        self._begun = -math.inf
        self._ended = -math.inf

    def __enter__(self) -> None:
        if not self._is_recent():
            self._begun = self._clock()
        self._writers += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writers -= 1
        self._ended = self._clock()

    def prolong(self) -> None:
        """Victims have ended, and others may follow: if it is on, it lasts a while longer."""
        if self._is_recent():
            self._ended = self._clock()

    def is_on(self) -> bool:
        """Whether somebody writes, or has just done so."""
        return self._is_recent() and self._clock() < self._begun + _LONGEST_SECONDS

    def _is_recent(self) -> bool:
        return self._writers > 0 or self._clock() < self._ended + _AFTERMATH_SECONDS
