"""How long to wait after failures in a row."""

from dataclasses import dataclass

_MOST_DOUBLINGS = 30
"""2.0 ** 1024 is an OverflowError, and no cap is anywhere near 2 ** 30 times the first wait."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits in seconds: ``first``, then twice as long each time, up to ``cap``."""

    first: float
    cap: float

    def delay(self, failures: int) -> float:
        """The wait after so many failures in a row; without one it is as long as after the first."""
        return min(self.cap, self.first * 2.0 ** min(_MOST_DOUBLINGS, max(0, failures - 1)))
