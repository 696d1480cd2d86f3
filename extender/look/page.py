"""``/debug/``: the page for people, its files, and the stream from which it lives.

There is one look at the state a second for all readers together, and none while nobody reads.
"""

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

from extender.look.sketch import Message, Sketch
from serried.ops.access import read_seconds

log = logging.getLogger(__name__)

MAX_READERS = 8
"""How many readers there may be at a time."""

_SECONDS_BETWEEN_LOOKS = 1.0

_SLICE_SECONDS = 0.0005
"""The length of a slice: filter waits as long."""

_REST_SECONDS = 0.001
"""How long the loop has for itself after a slice."""

_MAX_BEHIND = 30
"""How many changes wait for a slow reader; one who is further behind begins anew."""

_SECONDS_TO_SIGN = 15.0
"""After so long without news a reader gets a sign, so that nothing on the way takes the connection for dead."""

_SIGN = b": nothing new\n\n"

_RENEW = b"event: renew\ndata: {}\n\n"
"""The time of a reader is over. A browser that does not know this event comes back by itself, too."""

Reader = asyncio.Queue[bytes | None]
"""What a reader has yet to get; None is the end."""


@dataclass(slots=True, eq=False)
class Broadcast:
    """Who reads, and what they get."""

    _make: Callable[[], Sketch]
    """Begins a sketch."""

    _about: Mapping[str, Any]
    """Fields for the whole state."""

    _wall: Callable[[], float] = time.time
    _stopwatch: Callable[[], float] = time.perf_counter
    _rest: Callable[[float], Awaitable[None]] = asyncio.sleep

    _readers: dict[Reader, float] = field(default_factory=dict, init=False)
    """Until when each may read, by the stopwatch."""

    _ended: set[Reader] = field(default_factory=set, init=False)
    """Those who get no more news; they count as readers until they are gone, for they still hold a connection."""

    _work: asyncio.Task[None] | None = field(default=None, init=False)
    _sketch: Sketch | None = field(default=None, init=False)

    _whole: list[bytes] | None = field(default=None, init=False)
    """The whole state as it was after the last look, once somebody has asked for it."""

    _looks: int = field(default=0, init=False)
    """How many looks there were."""

    _looked: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when there is something to show."""

    @property
    def readers(self) -> int:
        """How many read."""
        return len(self._readers)

    async def follow(self, seconds: float = math.inf) -> AsyncIterator[bytes]:
        """Everything for one more reader: the whole state, then what changes. It ends at once where all is full.

        With the first look after ``seconds`` it ends as well: the reader has to come again, and be let in again.
        """
        if self.readers >= MAX_READERS:
            return
        reader = self._join(seconds)
        try:
            await self._looked.wait()
            for message in await self._tell_whole():
                yield message
            while (news := await self._next(reader)) is not None:
                yield news
        finally:
            self._leave(reader)

    async def _next(self, reader: Reader) -> bytes | None:
        try:
            async with asyncio.timeout(_SECONDS_TO_SIGN):
                return await reader.get()
        except TimeoutError:
            return _SIGN

    def _join(self, seconds: float) -> Reader:
        # From here on a reader gets what changes, also while the whole state is still being sent.
        reader: Reader = asyncio.Queue()
        self._readers[reader] = self._stopwatch() + seconds
        if self._work is None:
            self._work = asyncio.create_task(self._look_on())
        return reader

    def _leave(self, reader: Reader) -> None:
        # With the last one the work ends, and what it remembered is forgotten.
        self._readers.pop(reader, None)
        self._ended.discard(reader)
        if not self._readers and self._work is not None:
            self._work.cancel()
            self._forget()

    async def close(self) -> None:
        """Nobody reads any more."""
        work = self._work
        self._send_away()
        if work is not None:
            await asyncio.gather(work, return_exceptions=True)

    def _send_away(self) -> None:
        for reader in list(self._readers):
            reader.put_nowait(None)
            self._leave(reader)
        self._looked.set()  # for those who still wait for the first look
        self._looked.clear()

    def _forget(self) -> None:
        self._work = None
        self._sketch = None
        self._whole = None
        self._looked.clear()

    async def _look_on(self) -> None:
        sketch = self._sketch = self._make()
        try:
            while True:
                begun = self._stopwatch()
                await self._look(sketch)
                await self._rest(max(_REST_SECONDS, _SECONDS_BETWEEN_LOOKS - (self._stopwatch() - begun)))
        except Exception:
            # A page that stands still would look like a cluster that does; who is sent away comes back.
            log.exception("the page at /debug/ could not be kept up")
            self._send_away()

    async def _look(self, sketch: Sketch) -> None:
        await self._work_in_slices(sketch.look())
        self._whole = None
        self._looks += 1
        change = sketch.take_change()
        if change and self._looked.is_set():
            self._tell(_encode(change | {"now": self._wall()}))
        self._looked.set()
        self._end_what_is_over()

    async def _work_in_slices(self, work: Iterator[None]) -> None:
        begun = self._stopwatch()
        for _ in work:
            if self._stopwatch() - begun >= _SLICE_SECONDS:
                await self._rest(_REST_SECONDS)
                begun = self._stopwatch()

    def _tell(self, news: bytes) -> None:
        for reader in self._readers.keys() - self._ended:
            if reader.qsize() < _MAX_BEHIND:
                reader.put_nowait(news)
            else:
                self._end(reader)

    def _end_what_is_over(self) -> None:
        now = self._stopwatch()
        for reader in self._readers.keys() - self._ended:
            if self._readers[reader] <= now:
                reader.put_nowait(_RENEW)
                self._end(reader)

    def _end(self, reader: Reader) -> None:
        reader.put_nowait(None)
        self._ended.add(reader)

    async def _tell_whole(self) -> list[bytes]:
        if self._sketch is None:
            return []  # closed meanwhile
        if self._whole is not None:
            return self._whole
        told: list[bytes] = []
        looks = self._looks
        for message in self._sketch.tell_whole():
            told.append(_encode(message | ({} if told else {**self._about, "now": self._wall()})))
            await self._rest(_REST_SECONDS)
        if looks == self._looks:
            self._whole = told  # else it may be older than what later readers have missed
        return told


def _encode(message: Message) -> bytes:
    """One event of the stream, as browsers read it."""
    return b"data: " + orjson.dumps(message) + b"\n\n"


_FOLDER = Path(__file__).with_name("page")
_INDEX = "index.html"

_TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
_SCRIPT = "text/javascript; charset=utf-8"

_POLICY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""Nothing on the page comes from elsewhere, and names of objects can never become code."""

_EXAMPLE = """\
data: {"reset":true,"columns":{"nodes":["number","name","place","used","planned","marks"]},"now":1785585600}

data: {"places":[[0,["zone-a","rack-7"]]]}

data: {"nodes":[[0,"node-1",0,62,25,0]]}

data: {"order":[],"head":null,"complete":true}

data: {"nodes":[[0,"node-1",0,87,0,0]],"now":1785585601}

"""

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"example": _EXAMPLE}}},
    503: {"description": f"{MAX_READERS} readers follow already."},
}
"""How the stream stands in the OpenAPI."""


_File = tuple[bytes, dict[str, str], str]
"""Body, headers and media type."""


def live_routes(broadcast: Broadcast) -> APIRouter:
    """The routes. The files are read once, now: they are part of the program."""
    files = _read_files()
    router = APIRouter(prefix="/debug", tags=["debug"])

    @router.get("/", include_in_schema=False)
    async def show_page(request: Request) -> Response:
        return _answer(files[_INDEX], request)

    @router.get("/page/{name}", include_in_schema=False)
    async def show_file(name: str, request: Request) -> Response:
        if name not in files:
            raise HTTPException(404, f"the page has no file {name[:100]!r}")
        return _answer(files[name], request)

    @router.get("/stream", response_class=Response, responses=_STREAM)
    async def follow(request: Request) -> Response:
        """The state of `/debug/` as server-sent events: the whole once, in parts, then what changes.

        Each event is a JSON object. `columns` names the columns of the rows, whose first one is their number; a row of
        a known number takes the place of the one before. Rows whose numbers are in `nodesGone` or `gangsGone` are gone.
        Every other field is whole. `reset` comes first, `complete` ends the first state.

        For a reader who has shown a token it ends after `--ops-auth-cache`, with the event `renew`. Whoever asks again
        is let in again if the token is still good.
        """
        if broadcast.readers >= MAX_READERS:
            raise HTTPException(503, f"{MAX_READERS} readers follow already", {"Retry-After": "10"})
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        stream = broadcast.follow(read_seconds(request.scope))
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    return router


def _read_files() -> Mapping[str, _File]:
    return {path.name: _read(path) for path in sorted(_FOLDER.iterdir()) if path.is_file()}


def _read(path: Path) -> _File:
    body = path.read_bytes()
    headers = {**_POLICY, "ETag": f'"{hashlib.sha256(body).hexdigest()[:16]}"', "Cache-Control": "no-cache"}
    return body, headers, _TYPES.get(path.suffix, _SCRIPT)


def _answer(file: _File, request: Request) -> Response:
    body, headers, media_type = file
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)
