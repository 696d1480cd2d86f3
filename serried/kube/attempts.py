"""Trying again until it works, or until the caller has had enough."""

import asyncio
import random
from collections.abc import Callable
from typing import Self

from serried.model.backoff import Backoff


def full_jitter(seconds: float) -> float:
    """A random share of a wait: callers that failed together do not come again together."""
    return random.uniform(0.0, seconds)  # noqa: S311


class Attempts:
    """The attempts at one thing: an endless ``async for`` over them waits before each but the first."""

    def __init__(self, backoff: Backoff, spread: Callable[[float], float] = lambda seconds: seconds) -> None:
        self.failures = 0
        """How often it has failed so far."""
        self._backoff = backoff
        self._spread = spread
        """The wait in seconds, made from that of the backoff."""
        self._begun = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        """The number of failures before the attempt that begins now."""
        if self._begun:
            await self.rest()
        self._begun = True
        return self.failures

    async def rest(self, asked_seconds: float = 0.0) -> None:
        """An attempt has failed: wait.

        ``asked_seconds`` is what the server asked to wait (Retry-After). It comes on top of the backoff's wait; the
        cap of the backoff bounds both together.
        """
        self.failures += 1
        wait = asked_seconds + self._spread(self._backoff.delay(self.failures))
        await asyncio.sleep(min(self._backoff.cap, wait))
