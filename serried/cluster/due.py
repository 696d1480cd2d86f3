"""A queue of deferred work that is done in small portions (`Due`)."""

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class Due(Generic[Item]):
    """A FIFO queue without duplicates. Each operation is O(1) per item.

    A mark is a position in the queue. With it a caller can ask later whether all items before it were taken.
    """

    def __init__(self) -> None:
        self._items: set[Item] = set()
        self._queue: deque[Item] = deque()
        """The items in their order, and some that were discarded since."""

        self._taken = 0
        """The number of items that have ever left ``_queue``."""

    def __bool__(self) -> bool:
        return bool(self._items)

    def update(self, items: Iterable[Item]) -> None:
        """Append items. Those that are in the queue already keep their place."""
        new = [item for item in items if item not in self._items]
        self._items.update(new)
        self._queue.extend(new)

    def add(self, item: Item) -> None:
        """Append an item. If it is in the queue already, it keeps its place."""
        if item not in self._items:
            self._items.add(item)
            self._queue.append(item)

    def discard(self, item: Item) -> None:
        """Remove an item, if it is in the queue."""
        self._items.discard(item)

    def take(self, limit: int) -> list[Item]:
        """Remove and return the oldest items, ``limit`` at most."""
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
        """Return a mark for `has_passed`: the position behind all items that are in the queue now."""
        return self._taken + len(self._queue)

    def has_passed(self, mark: int) -> bool:
        """Return whether all items before a mark from `mark` have been taken or discarded."""
        return self._taken >= mark or not self._items
