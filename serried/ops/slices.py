"""Limits debug pages and metrics to half of the time of the event loop, so that filter calls are served in between.

A request for such a page is called a reader here. One reader runs at a time, for 2 ms or a little longer. Then the loop
is left to other tasks for as long as the reader has run, and the next reader runs (`Pace`). `Paced` is the middleware
that does so. A page with long loops calls `pause_if_due` in them. `Slices` runs work that is written as a generator
(`serried.ops.steps`).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable
from contextvars import ContextVar
from types import coroutine
from typing import Any, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from serried.kube.retry import RateLimiter
from serried.ops.steps import Work

PIECE_SECONDS = 0.002
"""The time in seconds that a request for a debug page may run before `pause_if_due` makes it pause."""

_PROBES_A_SECOND = 50.0
_PROBES_AT_ONCE = 100
"""The number of probes answered at once before _PROBES_A_SECOND applies (a token bucket).

The kubelet and kube-scheduler send far fewer; further probes are paced as other requests are.
"""

_ITEMS_BETWEEN_PAUSES = 100

T = TypeVar("T")

Sleep = Callable[[float], Awaitable[None]]
Clock = Callable[[], float]


class Pace:
    """Decides when a request for a debug page or metrics may run, so that filter calls are answered in between.

    One request runs at a time, in the order of arrival. After each piece of its work there is a pause of equal length.
    ``clock`` returns seconds, ``sleep`` waits for a number of seconds.
    """

    def __init__(self, clock: Clock = time.perf_counter, sleep: Sleep = asyncio.sleep) -> None:
        self.clock = clock
        self._sleep = sleep
        self._free = 0.0
        """The time by ``clock`` at which the next request may run: the end of the current pause."""
        self._next = asyncio.Lock()
        """Held by the request that runs next, while it waits for the end of the pause."""

    async def wait(self) -> None:
        """Wait until the calling request may run. It must report its running time to `charge` afterwards."""
        async with self._next:
            while (left := self._free - self.clock()) > 0:
                await self._sleep(left)

    async def throttle(self) -> None:
        """Wait until work of unknown length may start, such as a TLS handshake.

        The work is assumed to take 2 ms, so a pause of 2 ms begins before the next work or request may run.
        """
        await self.wait()
        self.charge(PIECE_SECONDS)

    async def pause(self, seconds: float) -> None:
        """Sleep for ``seconds``, then wait until the calling request may run again."""
        await self._sleep(seconds)
        await self.wait()

    def charge(self, seconds: float) -> None:
        """Begin a pause of ``seconds``, the time for which a request has just blocked the event loop."""
        self._free = max(self._free, self.clock()) + seconds


class _Reader:
    """One request, and a timer for how long it has blocked the event loop since its last pause."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self._since = 0.0

    def start_timer(self) -> None:
        self._since = self.pace.clock()

    def charge_time(self) -> None:
        now = self.pace.clock()
        self.pace.charge(now - self._since)
        self._since = now

    async def pause_if_due(self) -> None:
        if self.pace.clock() - self._since > PIECE_SECONDS:
            self.charge_time()
            await self.pace.wait()


_reader: ContextVar[_Reader | None] = ContextVar("reader", default=None)
"""The request that the current task answers; None outside of `Paced`."""


async def pause_if_due() -> None:
    """Pause if the current request has blocked the event loop for more than 2 ms. Call it in each loop of a page.

    Does nothing outside of a request that goes through `Paced`.
    """
    reader = _reader.get()
    if reader is not None:
        await reader.pause_if_due()


async def one_by_one(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items, with a chance for other tasks to run after every 100 of them (`pause_if_due`).

    The items are copied at the start. So an item may have been removed from the cache before it is yielded.
    """
    for number, item in enumerate(list(items), 1):
        yield item
        if number % _ITEMS_BETWEEN_PAUSES == 0:
            await pause_if_due()


async def sleep(seconds: float) -> None:
    """Sleep for at least ``seconds``. In a request that goes through `Paced`, then also wait until it may run again."""
    reader = _reader.get()
    await (asyncio.sleep(seconds) if reader is None else reader.pace.pause(seconds))


class Paced:
    """ASGI middleware that lets the requests to ``app`` run as ``pace`` allows.

    Requests for ``open_paths`` (probes) run at once, unless there are more than 50 of them per second.
    """

    def __init__(self, app: ASGIApp, pace: Pace, open_paths: frozenset[str]) -> None:
        self._app = app
        self._pace = pace
        self._open_paths = open_paths
        self._probes = RateLimiter(_PROBES_A_SECOND, _PROBES_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait until the request may run, then pass it on to the application."""
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            if self._probes.delay(self._pace.clock()) > 0:
                await self._pace.throttle()
            else:
                self._probes.take()
            await self._app(scope, receive, send)
            return
        await self._pace.wait()
        reader = _Reader(self._pace)
        _reader.set(reader)
        await _time_steps(self._answer(scope, receive, send), reader)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


@coroutine
def _time_steps(work: Coroutine[Any, Any, None], reader: _Reader) -> Generator[Any, Any, None]:
    """Run the coroutine that answers a request. Only the time between its awaits counts as blocking the event loop."""
    step: Callable[[Any], Any] = work.send
    said: Any = None
    while True:
        reader.start_timer()
        try:
            waited_for = step(said)
        except StopIteration:
            return
        finally:
            reader.charge_time()
        try:
            said = yield waited_for
            step = work.send
        except BaseException as error:  # noqa: BLE001 - it is passed on to the coroutine
            said = error
            step = work.throw


_SLICE_SECONDS = 0.002
"""The length of a slice in seconds. The pause after a slice is as long as the slice."""


class TooLongError(Exception):
    """Raised when work has run longer than its limit."""


class Slices:
    """Runs long work (`serried.ops.steps.Work`) in slices of 2 ms, with a pause as long as the slice after each.

    ``longest`` is the length of the longest slice of the last work, ``spent`` the sum of its slices, both in seconds.
    """

    def __init__(
        self,
        stopwatch: Callable[[], float] = time.perf_counter,
        sleep: Sleep = sleep,
    ) -> None:
        self.longest = 0.0
        self.spent = 0.0
        self._stopwatch = stopwatch
        self._sleep = sleep

    async def finish(self, work: Work[T], limit: float) -> T:
        """Run the work to its end and return its result. Raises TooLongError after ``limit`` seconds without pauses."""
        self.longest = 0.0
        self.spent = 0.0
        while True:
            begun = self._stopwatch()
            try:
                next(work)
                while self._stopwatch() - begun < _SLICE_SECONDS:
                    next(work)
            except StopIteration as done:
                self._note(begun)
                result: T = done.value
                return result
            await self._sleep(self._note(begun))
            if self.spent > limit:
                work.close()
                raise TooLongError

    def _note(self, begun: float) -> float:
        took = self._stopwatch() - begun
        self.longest = max(self.longest, took)
        self.spent += took
        return took


def join(chunks: Iterable[bytes], size: int) -> Work[list[bytes]]:
    """Join the chunks into larger ones of at least ``size`` bytes; the last one may be smaller, or empty.

    As work in steps: the result is a generator, which yields after each chunk and returns the list at the end.
    """
    found: list[bytes] = []
    open_ = bytearray()
    for chunk in chunks:
        open_ += chunk
        if len(open_) >= size:
            found.append(bytes(open_))
            open_.clear()
        yield
    return [*found, bytes(open_)]
