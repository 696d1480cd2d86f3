"""The live page ``/debug/``: its files, and the stream of server-sent events that updates it.

A reader is one open connection to the stream. `Broadcast` reads the state of the core once per second for all readers
together, and only while there are readers.
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
"""The largest number of readers at the same time."""

_SECONDS_BETWEEN_REFRESHES = 1.0

_SLICE_SECONDS = 0.0005
"""The seconds of work after which there is a pause, so that filter does not have to wait longer than that."""

_REST_SECONDS = 0.001
"""The pause after `_SLICE_SECONDS` of work, in seconds. The event loop runs other tasks in it."""

_MAX_BEHIND = 30
"""The largest number of messages that wait for a slow reader. A reader for which more would wait is disconnected."""

_SECONDS_TO_COMMENT = 15.0
"""The seconds without a message after which a reader gets a comment, so that no proxy closes the connection."""

_COMMENT = b": nothing new\n\n"

_RENEW = b"event: renew\ndata: {}\n\n"
"""The last event for a reader whose authentication is too old: it has to reconnect, and to authenticate again.

A browser that does not know the event reconnects by itself.
"""

Reader = asyncio.Queue[bytes | None]
"""A reader, as the queue of the messages that it has not got yet. None is the end of the stream."""


@dataclass(slots=True, eq=False)
class Broadcast:
    """The stream of the live page: all readers, and the task that creates their messages. One instance per extender."""

    _make_sketch: Callable[[], Sketch]
    """Returns a new `Sketch`, which reads the state of the core."""

    _about: Mapping[str, Any]
    """The additional fields of a reader's first message, such as the version."""

    _wall: Callable[[], float] = time.time
    _stopwatch: Callable[[], float] = time.perf_counter
    _rest: Callable[[float], Awaitable[None]] = asyncio.sleep

    _readers: dict[Reader, float] = field(default_factory=dict, init=False)
    """The readers, each with the time by ``_stopwatch`` at which it has to authenticate again."""

    _ended: set[Reader] = field(default_factory=set, init=False)
    """The readers that get no more messages. They stay in ``_readers`` until their connections are closed."""

    _task: asyncio.Task[None] | None = field(default=None, init=False)
    _sketch: Sketch | None = field(default=None, init=False)

    _whole: list[bytes] | None = field(default=None, init=False)
    """The messages with the whole state after the last refresh; None until a reader needs them."""

    _refreshes: int = field(default=0, init=False)
    """The number of refreshes of the sketch so far."""

    _refreshed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set once the sketch was refreshed for the first time, so that there is a state to send."""

    @property
    def readers(self) -> int:
        """The number of readers, also of those whose stream has ended but whose connection is still open."""
        return len(self._readers)

    async def follow(self, seconds: float = math.inf) -> AsyncIterator[bytes]:
        """Yield all messages for one more reader: first the whole state, then changes.

        The stream ends at once if there are `MAX_READERS` already, and at the first refresh after ``seconds``: then the
        reader has to reconnect, and to authenticate again. It also ends if the reader is too slow, if a refresh fails,
        and by `close`.
        """
        if self.readers >= MAX_READERS:
            return
        reader = self._join(seconds)
        try:
            await self._refreshed.wait()
            for message in await self._write_whole():
                yield message
            while (news := await self._next(reader)) is not None:
                yield news
        finally:
            self._leave(reader)

    async def _next(self, reader: Reader) -> bytes | None:
        try:
            async with asyncio.timeout(_SECONDS_TO_COMMENT):
                return await reader.get()
        except TimeoutError:
            return _COMMENT

    def _join(self, seconds: float) -> Reader:
        # From here on the reader's queue gets changes, also while the whole state is still being sent.
        reader: Reader = asyncio.Queue()
        self._readers[reader] = self._stopwatch() + seconds
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return reader

    def _leave(self, reader: Reader) -> None:
        # The updates end with the last reader.
        self._readers.pop(reader, None)
        self._ended.discard(reader)
        if not self._readers and self._task is not None:
            self._task.cancel()
            self._forget()

    async def close(self) -> None:
        """Disconnect all readers, and wait until the task that creates their messages has ended."""
        work = self._task
        self._disconnect_all()
        if work is not None:
            await asyncio.gather(work, return_exceptions=True)

    def _disconnect_all(self) -> None:
        for reader in list(self._readers):
            reader.put_nowait(None)
            self._leave(reader)
        self._refreshed.set()  # for readers that still wait for the first refresh
        self._refreshed.clear()

    def _forget(self) -> None:
        self._task = None
        self._sketch = None
        self._whole = None
        self._refreshed.clear()

    async def _run(self) -> None:
        sketch = self._sketch = self._make_sketch()
        try:
            while True:
                begun = self._stopwatch()
                await self._refresh(sketch)
                await self._rest(max(_REST_SECONDS, _SECONDS_BETWEEN_REFRESHES - (self._stopwatch() - begun)))
        except Exception:
            # A page without updates would look like an idle cluster. Disconnected browsers reconnect.
            log.exception("could not update the page at /debug/; its readers are disconnected")
            self._disconnect_all()

    async def _refresh(self, sketch: Sketch) -> None:
        await self._work_in_slices(sketch.refresh())
        self._whole = None
        self._refreshes += 1
        change = sketch.take_change()
        if change and self._refreshed.is_set():
            self._send(_encode(change | {"now": self._wall()}))
        self._refreshed.set()
        self._end_expired()

    async def _work_in_slices(self, work: Iterator[None]) -> None:
        begun = self._stopwatch()
        for _ in work:
            if self._stopwatch() - begun >= _SLICE_SECONDS:
                await self._rest(_REST_SECONDS)
                begun = self._stopwatch()

    def _send(self, news: bytes) -> None:
        for reader in self._readers.keys() - self._ended:
            if reader.qsize() < _MAX_BEHIND:
                reader.put_nowait(news)
            else:
                self._end(reader)

    def _end_expired(self) -> None:
        now = self._stopwatch()
        for reader in self._readers.keys() - self._ended:
            if self._readers[reader] <= now:
                reader.put_nowait(_RENEW)
                self._end(reader)

    def _end(self, reader: Reader) -> None:
        reader.put_nowait(None)
        self._ended.add(reader)

    async def _write_whole(self) -> list[bytes]:
        if self._sketch is None:
            return []  # closed meanwhile
        if self._whole is not None:
            return self._whole
        messages: list[bytes] = []
        before = self._refreshes
        for message in self._sketch.write_whole():
            messages.append(_encode(message | ({} if messages else {**self._about, "now": self._wall()})))
            await self._rest(_REST_SECONDS)
        if before == self._refreshes:
            self._whole = messages  # else a later reader would miss the change of the refresh in between
        return messages


def _encode(message: Message) -> bytes:
    """Return a message as a server-sent event."""
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
"""The HTTP headers of all files of the page.

The browser then loads nothing from other hosts, and runs no script that somebody hides in the name of an object.
"""

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
"""The description of the stream's responses in the OpenAPI."""


_File = tuple[bytes, dict[str, str], str]
"""A file of the page: its body, HTTP headers and media type."""


def live_routes(broadcast: Broadcast) -> APIRouter:
    """Return the routes of the page, its files and its stream. The files are read from disk only once, by this call."""
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
        """Return the state of `/debug/` as server-sent events: first the whole state in parts, then changes.

        Each event is a JSON object. `columns` names the columns of the rows. The first column is the row's number; a
        row with a known number replaces the earlier one. Rows whose numbers are in `nodesGone` or `gangsGone` are
        deleted. Every other field replaces its earlier value. `reset` is in the first event: the reader drops what it
        knew before. `complete` is in the last event of the whole state; only then the state can be shown.

        For a reader with a token the stream ends after `--ops-auth-cache`, with the event `renew`. The reader may
        connect again while the token is valid.
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
