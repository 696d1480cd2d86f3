"""Work that is put off, and done a little at a time: each thing once, the oldest first."""

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class Due(Generic[Item]):
    """An ordered set that knows how far it has got. Each item costs O(1), to add and to take."""

    def __init__(self) -> None:
        self._items: set[Item] = set()
        self._queue: deque[Item] = deque()
        """The items in their order, and some that are not due any more."""

        self._taken = 0
        """How many have left the queue, ever."""

    def __bool__(self) -> bool:
        return bool(self._items)

    def update(self, items: Iterable[Item]) -> None:
        """Add items, no item twice; one that is due already keeps its place."""
        new = [item for item in items if item not in self._items]
        self._items.update(new)
        self._queue.extend(new)

    def add(self, item: Item) -> None:
        """Add an item; if it is due already, it keeps its place."""
        if item not in self._items:
            self._items.add(item)
            self._queue.append(item)

    def discard(self, item: Item) -> None:
        """Forget an item, if it is due."""
        self._items.discard(item)

    def take(self, limit: int) -> list[Item]:
        """Take the oldest items, ``limit`` at most."""
        found: list[Item] = []
        while self._items and len(found) < limit:
            item = self._queue.popleft()
            self._taken += 1
            if item in self._items:
                self._items.discard(item)
                found.append(item)
        if not self._items:
            self._taken += len(self._queue)
            self._queue.clear()
        return found

    def mark(self) -> int:
        """Return a mark behind all that is due now, for `has_passed`."""
        return self._taken + len(self._queue)

    def has_passed(self, mark: int) -> bool:
        """Return whether all that was due at a mark has been taken."""
        return self._taken >= mark or not self._items
