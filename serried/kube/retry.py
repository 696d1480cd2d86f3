"""What is begun when: pauses after failures, limits on how often, and turns between namespaces."""

import asyncio
import math
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

T = TypeVar("T")

_MOST_DOUBLINGS = 30
"""2.0 ** 1024 is an OverflowError, and no cap is anywhere near 2 ** 30 times the first wait."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits in seconds: ``first``, then twice as long each time, up to ``cap``."""

    first: float
    cap: float

    def delay(self, failures: int) -> float:
        """The wait after so many failures in a row; without one it is as long as after the first."""
        return min(self.cap, self.first * 2.0 ** min(_MOST_DOUBLINGS, max(0, failures - 1)))


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


class RateLimiter:
    """A token bucket: how often something may be begun."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        """How often a second it allows it in the long run."""
        self._burst = burst
        """How often it allows it at once after a pause."""
        self._left = float(burst)
        """How often it allows it now."""
        self._at = -math.inf
        """The monotonic time at which that was counted."""

    def delay(self, now: float) -> float:
        """Seconds until the next one is allowed; 0.0 if it is. ``now`` is monotonic."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (1 - self._left) / self._rate)

    def take(self) -> None:
        """One is begun, which `delay` has allowed."""
        self._left -= 1


class Turns(Generic[T]):
    """A queue in which namespaces take turns: however much one has in it, it delays an item of another by one turn.

    Items of one namespace keep their order. What a step costs depends neither on how many items there are nor on how
    many namespaces.
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


_FIRST_SECONDS = 1.0
_CAP_SECONDS = 10.0


def backoff(failures: int, size: int) -> float:
    """Seconds: doubling from 1 with each of ``failures`` in a row, up to 10 for one member.

    The cap grows with the square root of the gang's size, as upstream's does for a pod group: a larger gang takes
    more with it whenever it fails.
    """
    return Backoff(_FIRST_SECONDS, _CAP_SECONDS * math.sqrt(max(1, size))).delay(failures)
