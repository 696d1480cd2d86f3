"""What may be begun only so often."""

import math


class Ration:
    """A token bucket: how often something may be begun."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        """How often a second it allows it in the long run."""
        self._burst = burst
        """How often it allows it at once after a pause."""
        self._left = float(burst)
        """How often it allows it now."""
        self._at = -math.inf
        """The monotonic time at which that was counted."""

    def delay(self, now: float) -> float:
        """Seconds until the next one is allowed; 0.0 if it is. ``now`` is monotonic."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (1 - self._left) / self._rate)

    def take(self) -> None:
        """One is begun, which `delay` has allowed."""
        self._left -= 1
