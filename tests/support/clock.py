"""A clock for tests."""

import asyncio


class Clock:
    """Monotonic time in seconds that passes only when told to."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """The time now."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let so much time pass."""
        self.now += seconds

    async def rest(self, seconds: float) -> None:
        """Let so much time pass, and others have their turn. Some always passes, as in a real sleep."""
        self.advance(max(seconds, 1e-6))
        await asyncio.sleep(0)
