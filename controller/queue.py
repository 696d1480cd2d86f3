"""A keyed work queue with client-go's promises (util/workqueue), for one event loop.

A key waits at most once; a key that is added while it is worked on comes again afterwards, so it is never worked on
twice at a time and no change is missed; a key that fails comes again after an exponential delay of its own.

Beyond client-go's: namespaces take turns, so the keys of one do not wait behind thousands of another.
"""

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from serried.model.backoff import Backoff
from serried.model.turns import Turns

K = TypeVar("K", bound=Hashable)


_BACKOFF = Backoff(first=0.1, cap=60.0)
"""The delays of a key that fails again and again."""


class WorkQueue(Generic[K]):
    """The queue."""

    def __init__(
        self,
        clock: Callable[[], float],
        random: Callable[[], float],
        namespace_of: Callable[[K], str],
        backoff: Backoff = _BACKOFF,
    ) -> None:
        self._clock = clock
        """The monotonic time in seconds."""
        self._random = random
        """Numbers in [0, 1): the share of half a delay that is taken off, so that keys do not come back together."""
        self._namespace_of = namespace_of
        """Whose turn a key comes in."""
        self._backoff = backoff
        self._ready: Turns[K] = Turns()
        """The keys that wait for a worker."""
        self._waiting: set[K] = set()
        """The same as a set."""
        self._working: set[K] = set()
        """The keys that workers have taken."""
        self._again: set[K] = set()
        """The keys that were added while they were worked on."""
        self._later: list[tuple[float, int, K]] = []
        """A heap of delayed keys: when they are due, a running number, the key. May have outdated entries."""
        self._due: dict[K, float] = {}
        """When each delayed key is due; it tells which entry of the heap counts."""
        self._delayed = 0
        """The running number of the heap's last entry."""
        self._failures: dict[K, int] = {}
        """How often each key has failed in a row."""
        self._idle: deque[asyncio.Future[None]] = deque()
        """The workers that wait for a key."""
        self._alarm: asyncio.TimerHandle | None = None
        """Rings when the next delayed key is due, while a worker waits."""

    def __len__(self) -> int:
        return len(self._ready) + len(self._again)

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is worked on; keys with a delay do not count."""
        return not self._ready and not self._working

    def add(self, key: K) -> None:
        """The key needs work."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.add(self._namespace_of(key), key)
            self._call_worker()

    def add_after(self, key: K, delay: float) -> None:
        """The key needs work after ``delay`` seconds; of several delays the one that ends first counts."""
        due = self._clock() + delay
        if self._due.get(key, math.inf) <= due:
            return
        self._due[key] = due
        self._delayed += 1
        heapq.heappush(self._later, (due, self._delayed, key))
        if self._idle:
            self._set_alarm()

    def retry(self, key: K) -> int:
        """The key failed: it comes again after its backoff. Returns how often it has failed in a row."""
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        self.add_after(key, self._backoff.delay(failures) * (1 - self._random() / 2))
        return failures

    def failures(self, key: K) -> int:
        """How often the key has failed in a row."""
        return self._failures.get(key, 0)

    def forget(self, key: K) -> None:
        """The key succeeded: its next failure is the first."""
        self._failures.pop(key, None)

    def take(self) -> K | None:
        """The next key to work on, None if there is none now. Call ``done`` with it in any case."""
        self._wake_due()
        key = self._ready.take()
        if key is None:
            return None
        self._waiting.discard(key)
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        """The work on a taken key has ended, well or not."""
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def next_delay(self) -> float | None:
        """Seconds until a delayed key is due, None without one."""
        return max(0.0, self._later[0][0] - self._clock()) if self._later else None

    async def get(self) -> K:
        """The next key to work on, when there is one."""
        while (key := self.take()) is None:
            called = asyncio.get_running_loop().create_future()
            self._idle.append(called)
            self._set_alarm()
            try:
                await called
            except asyncio.CancelledError:
                if called.done() and not called.cancelled():
                    self._call_worker()  # another worker must take the key instead
                raise
        return key

    def _call_worker(self) -> None:
        """Wake one worker for one key: to wake them all would cost more than the work."""
        while self._idle:
            called = self._idle.popleft()
            if not called.done():
                called.set_result(None)
                return

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if (delay := self.next_delay()) is not None:
            self._alarm = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._wake_due()
        if self._idle:
            self._set_alarm()

    def _wake_due(self) -> None:
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            due, _, key = heapq.heappop(self._later)
            if self._due.get(key) == due:  # else an earlier entry has done for this one
                del self._due[key]
                self.add(key)
