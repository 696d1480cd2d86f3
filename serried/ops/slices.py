"""Work for a route that would hold the loop: done in slices, between which filter is served.

The share of the event loop that readers get: one piece of work at a time, and as long a rest after each.

The loop is filter's. Readers of pages and metrics come to it by the dozen, so they take turns: a page that is much work
breathes on its way, which gives the turn to the next reader and the loop to filter.
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
"""How long a reader holds the loop before it breathes."""

_PROBES_A_SECOND = 50.0
_PROBES_AT_ONCE = 100
"""How many probes are answered without a wait; kubelet and scheduler send a few."""

_ITEMS_BEFORE_BREATH = 100

T = TypeVar("T")

Rest = Callable[[float], Awaitable[None]]
Clock = Callable[[], float]


class Pace:
    """Turns in the order in which they are asked for; ``rest`` sleeps."""

    def __init__(self, clock: Clock = time.perf_counter, rest: Rest = asyncio.sleep) -> None:
        self.clock = clock
        self._rest = rest
        self._free = 0.0
        """From when on the next turn may begin."""
        self._next = asyncio.Lock()
        """Whoever has it is next."""

    async def turn(self) -> None:
        """Return when the next piece may be done; it begins at once, and the one after it when it has been charged."""
        async with self._next:
            while (left := self._free - self.clock()) > 0:
                await self._rest(left)

    async def admit(self) -> None:
        """A turn for what the loop does by itself, a handshake of TLS, or at once: charged as a whole piece."""
        await self.turn()
        self.charge(PIECE_SECONDS)

    async def pause(self, seconds: float) -> None:
        """Leave the loop to others for so long, then wait for a turn."""
        await self._rest(seconds)
        await self.turn()

    def charge(self, seconds: float) -> None:
        """A reader has held the loop for so long: it gets as long a rest."""
        self._free = max(self._free, self.clock()) + seconds


class _Reader:
    """One request, and since when it holds the loop."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self._since = 0.0

    def take(self) -> None:
        self._since = self.pace.clock()

    def give(self) -> None:
        now = self.pace.clock()
        self.pace.charge(now - self._since)
        self._since = now

    async def breathe(self) -> None:
        if self.pace.clock() - self._since > PIECE_SECONDS:
            self.give()
            await self.pace.turn()


_reader: ContextVar[_Reader | None] = ContextVar("reader", default=None)
"""Who is being answered."""


async def breathe() -> None:
    """Let the others have their turn if this reader has held the loop for long enough; in loops of routes."""
    reader = _reader.get()
    if reader is not None:
        await reader.breathe()


async def one_by_one(items: Iterable[T]) -> AsyncIterator[T]:
    """The items that there are now, with breaths between them: later ones may be gone when they come."""
    for number, item in enumerate(list(items), 1):
        yield item
        if number % _ITEMS_BEFORE_BREATH == 0:
            await breathe()


async def rest(seconds: float) -> None:
    """Leave the loop to others for at least so long."""
    reader = _reader.get()
    await (asyncio.sleep(seconds) if reader is None else reader.pace.pause(seconds))


class Paced:
    """``app`` with its readers at this pace; what is asked at ``open_paths`` waits only if it is asked very often."""

    def __init__(self, app: ASGIApp, pace: Pace, open_paths: frozenset[str]) -> None:
        self._app = app
        self._pace = pace
        self._open_paths = open_paths
        self._probes = RateLimiter(_PROBES_A_SECOND, _PROBES_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
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
    """Do ``work``; the reader is charged for what it does, and not for what it waits."""
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
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the work's
            said = error
            step = work.throw


_SLICE_SECONDS = 0.002
"""The length of a slice; the loop has as long for itself after each."""


class TooLongError(Exception):
    """The work took more time than it may take."""


class Slices:
    """Does work of `serried.ops.steps`. ``longest`` is that of the last work in seconds, ``spent`` all of them."""

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
        """The result. Raises TooLongError after ``limit`` seconds of work."""
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
    """The same bytes in pieces of at least so many, in steps."""
    found: list[bytes] = []
    open_ = bytearray()
    for chunk in chunks:
        open_ += chunk
        if len(open_) >= size:
            found.append(bytes(open_))
            open_.clear()
        yield
    return [*found, bytes(open_)]
