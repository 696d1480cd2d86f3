"""Limits the share of the event loop that readers of pages and metrics get, so that filter is served in between.

Readers take turns: one piece of work at a time, with a pause of the same length after each (`Pace`). A page with much
work calls `yield_turn` in its loops, which lets the next reader and filter run. `Slices` does the work of
`serried.ops.steps`.
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
"""The time for which a reader may block the loop before `yield_turn` waits."""

_PROBES_A_SECOND = 50.0
_PROBES_AT_ONCE = 100
"""The number of probes answered without a wait; the kubelet and kube-scheduler send a few."""

_ITEMS_BEFORE_BREATH = 100

T = TypeVar("T")

Rest = Callable[[float], Awaitable[None]]
Clock = Callable[[], float]


class Pace:
    """The schedule of turns, in the order of requests; ``rest`` sleeps."""

    def __init__(self, clock: Clock = time.perf_counter, rest: Rest = asyncio.sleep) -> None:
        self.clock = clock
        self._rest = rest
        self._free = 0.0
        """The time at which the next turn may start."""
        self._next = asyncio.Lock()
        """Held by the reader that is next."""

    async def turn(self) -> None:
        """Wait for a turn. It starts at once; the next turn can start after `charge`."""
        async with self._next:
            while (left := self._free - self.clock()) > 0:
                await self._rest(left)

    async def admit(self) -> None:
        """Wait for a turn of fixed length, for work that the loop does itself or at once, such as a TLS handshake."""
        await self.turn()
        self.charge(PIECE_SECONDS)

    async def pause(self, seconds: float) -> None:
        """Sleep, then wait for a turn."""
        await self._rest(seconds)
        await self.turn()

    def charge(self, seconds: float) -> None:
        """Add a pause as long as the time for which a reader has blocked the loop."""
        self._free = max(self._free, self.clock()) + seconds


class _Reader:
    """One request, with the time since which it blocks the loop."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self._since = 0.0

    def take(self) -> None:
        self._since = self.pace.clock()

    def give(self) -> None:
        now = self.pace.clock()
        self.pace.charge(now - self._since)
        self._since = now

    async def yield_turn(self) -> None:
        if self.pace.clock() - self._since > PIECE_SECONDS:
            self.give()
            await self.pace.turn()


_reader: ContextVar[_Reader | None] = ContextVar("reader", default=None)
"""The request that is being answered in this context."""


async def yield_turn() -> None:
    """Wait for a turn if this reader has blocked the loop for long enough. Call it in loops of routes."""
    reader = _reader.get()
    if reader is not None:
        await reader.yield_turn()


async def one_by_one(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the present items, waiting for turns in between. Items may have been removed when they are yielded."""
    for number, item in enumerate(list(items), 1):
        yield item
        if number % _ITEMS_BEFORE_BREATH == 0:
            await yield_turn()


async def rest(seconds: float) -> None:
    """Sleep for at least ``seconds``, then wait for a turn."""
    reader = _reader.get()
    await (asyncio.sleep(seconds) if reader is None else reader.pace.pause(seconds))


class Paced:
    """ASGI middleware that answers requests at a pace; those for ``open_paths`` only wait if they are very frequent."""

    def __init__(self, app: ASGIApp, pace: Pace, open_paths: frozenset[str]) -> None:
        self._app = app
        self._pace = pace
        self._open_paths = open_paths
        self._probes = RateLimiter(_PROBES_A_SECOND, _PROBES_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            if self._probes.delay(self._pace.clock()) > 0:
                await self._pace.admit()
            else:
                self._probes.take()
            await self._app(scope, receive, send)
            return
        await self._pace.turn()
        reader = _Reader(self._pace)
        _reader.set(reader)
        await _time_steps(self._answer(scope, receive, send), reader)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


@coroutine
def _time_steps(work: Coroutine[Any, Any, None], reader: _Reader) -> Generator[Any, Any, None]:
    """Run a coroutine. The reader is charged for its steps, not for its waits."""
    step: Callable[[Any], Any] = work.send
    said: Any = None
    while True:
        reader.take()
        try:
            waited_for = step(said)
        except StopIteration:
            return
        finally:
            reader.give()
        try:
            said = yield waited_for
            step = work.send
        except BaseException as error:  # noqa: BLE001 - it is passed on to the coroutine
            said = error
            step = work.throw


_SLICE_SECONDS = 0.002
"""The length of a slice; the pause after it is as long."""


class TooLongError(Exception):
    """Raised when the work has taken more than its limit."""


class Slices:
    """Runs work of `serried.ops.steps` in slices with pauses.

    ``longest`` is the longest slice of the last work in seconds, ``spent`` the sum of all.
    """

    def __init__(
        self,
        stopwatch: Callable[[], float] = time.perf_counter,
        rest: Callable[[float], Awaitable[None]] = rest,
    ) -> None:
        self.longest = 0.0
        self.spent = 0.0
        self._stopwatch = stopwatch
        self._rest = rest

    async def finish(self, work: Work[T], limit: float) -> T:
        """Return the result of the work. Raises TooLongError after ``limit`` seconds of work."""
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
            await self._rest(self._note(begun))
            if self.spent > limit:
                work.close()
                raise TooLongError

    def _note(self, begun: float) -> float:
        took = self._stopwatch() - begun
        self.longest = max(self.longest, took)
        self.spent += took
        return took


def join(chunks: Iterable[bytes], size: int) -> Work[list[bytes]]:
    """Join the chunks into larger ones of at least ``size`` bytes, in steps."""
    found: list[bytes] = []
    open_ = bytearray()
    for chunk in chunks:
        open_ += chunk
        if len(open_) >= size:
            found.append(bytes(open_))
            open_.clear()
        yield
    return [*found, bytes(open_)]
