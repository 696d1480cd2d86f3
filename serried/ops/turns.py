"""A queue in which namespaces take turns: however much one has in it, it delays an item of another by one turn."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """The queue. Items of one namespace keep their order.

    What a step costs depends neither on how many items there are nor on how many namespaces.
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()
        """The items of each namespace, the one whose turn is next first; none is empty."""
        self._sizes: dict[int, OrderedDict[str, None]] = {}
        """The namespaces by how many items they have; none is empty."""
        self._largest = 0
        """The largest of these sizes."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, namespace: str, item: T) -> None:
        """Put an item behind the others of its namespace."""
        queue = self._queues.setdefault(namespace, deque())
        queue.append(item)
        self._resize(namespace, len(queue) - 1, len(queue))

    def take(self) -> T | None:
        """Take the next item out; None if there is none."""
        if not self._queues:
            return None
        namespace, queue = next(iter(self._queues.items()))
        self._queues.move_to_end(namespace)
        item = queue.popleft()
        self._resize(namespace, len(queue) + 1, len(queue))
        return item

    def make_room(self, namespace: str) -> T | None:
        """Take the last item of the namespace with the most items out, so that ``namespace`` may add one instead.

        None if ``namespace`` would then have more items than that one: then none is taken out.
        """
        own = len(self._queues.get(namespace, ()))
        if self._largest < own + 2:
            return None
        largest = next(iter(self._sizes[self._largest]))
        queue = self._queues[largest]
        item = queue.pop()
        self._resize(largest, len(queue) + 1, len(queue))
        return item

    def _resize(self, namespace: str, before: int, now: int) -> None:
        """A namespace has one item more or less than before."""
        self._count += now - before
        if before:
            del self._sizes[before][namespace]
            if not self._sizes[before]:
                del self._sizes[before]
        if now:
            self._sizes.setdefault(now, OrderedDict())[namespace] = None
        else:
            del self._queues[namespace]
        if now > self._largest or self._largest not in self._sizes:
            self._largest = now
