"""Trying again until it works, or until the caller has had enough."""

import asyncio
from typing import Self

from serried.model.backoff import Backoff


class Attempts:
    """The attempts at one thing: an endless ``async for`` over them waits before each but the first.

    ``failures`` is how often it has failed so far.
    """

    def __init__(self, backoff: Backoff) -> None:
        self.failures = 0
        self._backoff = backoff
        self._begun = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        """The number of failures before the attempt that begins now."""
        if self._begun:
            await self.rest()
        self._begun = True
        return self.failures

    async def rest(self) -> None:
        """An attempt has failed: wait."""
        self.failures += 1
        await asyncio.sleep(self._backoff.delay(self.failures))
