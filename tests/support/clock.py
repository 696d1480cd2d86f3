"""A clock for tests."""

import asyncio


class Clock:
    """A monotonic clock in seconds, which the test advances."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time now."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += seconds

    async def sleep(self, seconds: float) -> None:
        """Advance the clock and yield to the event loop, in place of asyncio.sleep. At least 1 us always passes."""
        self.advance(max(seconds, 1e-6))
        await asyncio.sleep(0)
