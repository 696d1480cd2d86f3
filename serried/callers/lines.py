"""Lines in which callers wait, each behind itself alone: whoever comes a thousand times holds up nobody else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class Line:
    """Where one caller waits; ``width`` is how many of it have their turn at a time."""

    def __init__(self, width: int) -> None:
        self.length = 0
        """How many stand in it, those who have their turn included."""
        self._turns = asyncio.Semaphore(width)

    @asynccontextmanager
    async def stand(self) -> AsyncIterator[None]:
        """Wait for a turn, which the block is."""
        self.length += 1
        try:
            async with self._turns:
                yield
        finally:
            self.length -= 1


class Lines:
    """The lines of all callers, by name; a line lasts as long as somebody stands in it."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._lines: WeakValueDictionary[str, Line] = WeakValueDictionary()

    def of(self, name: str) -> Line:
        """The line of one caller."""
        return self._lines.setdefault(name, Line(self._width))
