"""Lines in which callers wait, each behind itself alone: whoever comes a thousand times holds up nobody else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class Line:
    """Where one caller waits."""

    def __init__(self) -> None:
        self.length = 0
        """How many stand in it, the first of them included."""
        self._first = asyncio.Lock()

    @asynccontextmanager
    async def stand(self) -> AsyncIterator[None]:
        """Wait until nobody of this caller is before; the next one waits for the end of the block."""
        self.length += 1
        try:
            async with self._first:
                yield
        finally:
            self.length -= 1


class Lines:
    """The lines of all callers, by name; a line lasts as long as somebody stands in it."""

    def __init__(self) -> None:
        self._lines: WeakValueDictionary[str, Line] = WeakValueDictionary()

    def of(self, name: str) -> Line:
        """The line of one caller."""
        return self._lines.setdefault(name, Line())
