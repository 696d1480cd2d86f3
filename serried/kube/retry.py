"""Tools that pace requests: exponential backoff, a token bucket, and a queue that is fair to namespaces.

Their entries are `Backoff` and `Attempts` (retries of one operation), `RateLimiter`, `FairQueue`, and `gang_backoff`.
"""

import asyncio
import math
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

T = TypeVar("T")

_MAX_DOUBLINGS = 30
"""The maximum exponent of `Backoff`, against an overflow: every cap is far below 2 ** 30 times the first wait."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff, in seconds: ``first`` after the first failure, doubled after each further one, capped."""

    first: float
    cap: float

    def delay(self, failures: int) -> float:
        """Return the wait after this many failures in a row; 0 failures count as 1."""
        return min(self.cap, self.first * 2.0 ** min(_MAX_DOUBLINGS, max(0, failures - 1)))


def full_jitter(seconds: float) -> float:
    """Return a random wait between 0 and ``seconds``, so that clients that failed together do not retry together."""
    return random.uniform(0.0, seconds)  # noqa: S311


class Attempts:
    """The endless attempts at one operation, for ``async for``: each iteration but the first waits for the backoff.

    The loop ends by ``break`` or ``return``. A loop of another form calls `rest` after each failure instead.
    """

    def __init__(self, backoff: Backoff, spread: Callable[[float], float] = lambda seconds: seconds) -> None:
        self.failures = 0
        """The number of failed attempts."""
        self._backoff = backoff
        self._spread = spread
        """Maps the backoff's wait to the actual one, such as `full_jitter`; both in seconds."""
        self._started = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        """Wait if this is not the first attempt. Return the number of failures so far."""
        if self._started:
            await self.rest()
        self._started = True
        return self.failures

    async def rest(self, asked_seconds: float = 0.0) -> None:
        """Count a failed attempt, and wait before the next one.

        ``asked_seconds`` is the server's Retry-After. It is added to the backoff's wait; the backoff's cap limits the
        sum.
        """
        self.failures += 1
        wait = asked_seconds + self._spread(self._backoff.delay(self.failures))
        await asyncio.sleep(min(self._backoff.cap, wait))


class RateLimiter:
    """A token bucket that limits how often an operation may start. Call `delay`, and `take` if it returns 0.0."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        """Tokens that are added per second."""
        self._burst = burst
        """The most tokens the bucket holds."""
        self._tokens = float(burst)
        """The number of tokens at the time ``_refilled_at``; fractions count."""
        self._refilled_at = -math.inf
        """The monotonic time of the last refill."""

    def delay(self, now: float) -> float:
        """Return the seconds until the next operation may start; 0.0 for now. ``now`` is the monotonic time."""
        self._tokens = min(self._burst, self._tokens + (now - self._refilled_at) * self._rate)
        self._refilled_at = now
        return max(0.0, (1 - self._tokens) / self._rate)

    def take(self) -> None:
        """Use one token for an operation that starts now; call it only after `delay` has returned 0.0."""
        self._tokens -= 1


class FairQueue(Generic[T]):
    """A queue that serves namespaces round robin, so that a namespace with many items does not delay the others.

    Items of one namespace are served in the order in which they were added. Every operation takes constant time.
    """

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()
        """The items by namespace, the namespace to be served next first. Namespaces without items are removed."""
        self._sizes: dict[int, OrderedDict[str, None]] = {}
        """The namespaces by their number of items. Numbers without namespaces are removed."""
        self._largest = 0
        """The largest number of items that a namespace has; 0 if the queue is empty."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, namespace: str, item: T) -> None:
        """Append an item to the items of its namespace."""
        queue = self._queues.setdefault(namespace, deque())
        queue.append(item)
        self._resize(namespace, len(queue) - 1, len(queue))

    def take(self) -> T | None:
        """Remove and return the next item; None if the queue is empty."""
        if not self._queues:
            return None
        namespace, queue = next(iter(self._queues.items()))
        self._queues.move_to_end(namespace)
        item = queue.popleft()
        self._resize(namespace, len(queue) + 1, len(queue))
        return item

    def pop_newest_for(self, namespace: str) -> T | None:
        """Remove and return the newest item of the namespace with the most items, so that ``namespace`` can add one.

        For callers that limit the length of the queue. The namespace with the most items must have at least two more
        than ``namespace``; otherwise return None, and remove nothing.
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
        """Update the sizes, after the number of items of a namespace has changed from ``before`` to ``now``.

        The sizes are the number of all items, the number of items of each namespace, and the largest one of a
        namespace. A namespace without items is removed.
        """
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


_FIRST_SECONDS = 1.0
_CAP_SECONDS = 10.0


def gang_backoff(failures: int, size: int) -> float:
    """Return how many seconds a gang of ``size`` members waits after this many failed attempts in a row.

    The wait begins with 1 s and doubles, up to a cap of 10 s times the square root of the size, as in kube-scheduler
    for a pod group: a failed attempt of a larger gang blocks more resources.
    """
    return Backoff(_FIRST_SECONDS, _CAP_SECONDS * math.sqrt(max(1, size))).delay(failures)
