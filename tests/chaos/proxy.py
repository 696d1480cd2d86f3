"""A fault-injecting proxy before an API server, for one client, which speaks plain HTTP/1.1 to it.

It reads each request and answer whole, so that a fault hits one of them and not the next; of watches it reads each
chunk. It works in a thread of its own.
"""

import asyncio
import json
import math
import ssl
import threading
import time
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, Self

from tests.chaos.mishaps import HARMLESS, Mishap, Request, Weather
from tests.chaos.sight import Sight

Tell = Callable[[Request, Mishap], None]

_REFUSALS = {
    Mishap.CONFLICT: (409, "Conflict"),
    Mishap.TOO_MANY: (429, "TooManyRequests"),
    Mishap.ERROR: (500, "InternalError"),
    Mishap.UNAVAILABLE: (503, "ServiceUnavailable"),
    Mishap.TIMEOUT: (504, "Timeout"),
    Mishap.COMPACTED: (410, "Expired"),
}
_RETRY_AFTER_SECONDS = 1
_TIMEOUT_SECONDS = (1.0, 4.0)
_SILENT_SECONDS = (2.0, 8.0)
_DONE = 0.5
"""The part of the requests without an answer that are done all the same."""

_DELAY_SECONDS = (0.1, 1.2)
_DELAY_EACH = 5.0
"""A watch is held up once in so many seconds: held up at each fortieth change, a busy one would never catch up."""

_END_EACH = 2.0
"""The seconds between two ends of a busy watch, for the same reason: each new watch begins a moment later."""

_SLOW_PARTS = 8
_SLOW_SECONDS = (0.02, 0.25)
_LONGEST_HEAD = 1 << 20
_LAST_SECONDS = 0.1
"""The time that a loop goes on until all sockets are closed."""

_NO_BODY = frozenset({204, 304})


@dataclass
class Trap:
    """Does something at the first request of a kind: before it is passed on, or before its answer is."""

    method: str
    part: str
    """The text that the path of the request contains."""

    after: bool
    spring: Callable[[Request], None]
    resets: bool = True
    """True if the connection is reset then; if not, the request or its answer goes on afterwards."""

    sprung: bool = False

    def takes(self, request: Request, *, after: bool) -> bool:
        """Return whether the trap springs at this request and moment. It springs once."""
        fits = request.method == self.method and self.part in request.path
        self.sprung = (taken := fits and after == self.after and not self.sprung) or self.sprung
        return taken


class _EndError(Exception):
    """The connection is over; ``abruptly`` it is reset."""

    def __init__(self, *, abruptly: bool) -> None:
        super().__init__()
        self.abruptly = abruptly


@dataclass(frozen=True, slots=True)
class _Head:
    """The first lines of a request or an answer."""

    raw: bytes

    @property
    def first(self) -> list[str]:
        return self.raw.split(b"\r\n", 1)[0].decode().split(" ", 2)

    def read(self, name: str) -> str:
        """A header, "" without it."""
        for line in self.raw.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.strip().lower() == name.encode():
                return value.strip().decode()
        return ""

    @property
    def chunked(self) -> bool:
        return self.read("transfer-encoding").lower() == "chunked"


class Proxy:
    """Listens on ``port`` of loopback and passes everything on to a target port there; a context manager."""

    def __init__(self, target: int, tls: ssl.SSLContext | None, weather: Weather, tell: Tell, token: str = "") -> None:
        self.port = 0
        self._token = token
        """The token presented for a client that has none: Go's clients send no token where there is no TLS."""

        self.weather = weather
        self.trap: Trap | None = None
        self.sight = Sight()
        self.hear: Callable[[Request], None] | None = None
        """Called with each request, whatever becomes of it."""

        self.linger: Callable[[Request], float] | None = None
        """Return for how many seconds a request is on its way."""

        self._silent_until = -math.inf
        """The end of the time in which no watch shows anything."""

        self._ended_at: dict[str, float] = {}
        """The time at which the watch of each path was last ended."""

        self._target = target
        self._tls = tls
        self._tell = tell
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._ready = threading.Event()
        self._serving: set[asyncio.Task[None] | None] = set()
        """The tasks of all connections. Nothing else refers to those whose clients have gone."""

        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._listen()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._loop.close()

    def silence(self, seconds: float) -> None:
        """For so long no watch shows anything, those that begin meanwhile among them; then all that was held up."""
        self._silent_until = time.monotonic() + seconds

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_LONGEST_HEAD)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._ended.wait()
        server.close()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=0.5)
        await asyncio.sleep(_LAST_SECONDS)

    async def _serve(self, near: StreamReader, answers: StreamWriter) -> None:
        self._serving.add(task := asyncio.current_task())
        abruptly = False
        requests: StreamWriter | None = None
        try:
            far, requests = await asyncio.open_connection("127.0.0.1", self._target, ssl=self._tls, limit=_LONGEST_HEAD)
            while True:
                await self._exchange(near, answers, far, requests)
        except _EndError as end:
            abruptly = end.abruptly
        except (OSError, IncompleteReadError, ssl.SSLError, asyncio.CancelledError):
            pass  # the end of the proxy is no event
        finally:
            # TLS would say goodbye first, and the loop may be gone by then.
            abruptly = abruptly or self._ended.is_set()
            _close(answers, abruptly=abruptly)
            if requests is not None:
                _close(requests, abruptly=True)
            self._serving.discard(task)

    async def _exchange(self, near: StreamReader, answers: StreamWriter, far: StreamReader, on: StreamWriter) -> None:
        """One request and its answer."""
        head = _Head(await near.readuntil(b"\r\n\r\n"))
        body = await _read_body(near, head, ends=True)
        method, target, _ = head.first
        request = Request(method, target, body)
        if self.hear is not None:
            self.hear(request)
        mishap = self.weather.draw_request(request)
        if mishap is not None:
            self._report(request, mishap)
            await self._befall(request, mishap, answers)
            if mishap in _REFUSALS or mishap is Mishap.EXPIRED:
                return
        if self.linger is not None:
            await asyncio.sleep(self.linger(request))
        await self._spring(request, after=False)
        on.write(self._sign(head) + body)
        await on.drain()
        answer = _Head(await far.readuntil(b"\r\n\r\n"))
        await self._spring(request, after=True)
        if request.watches and answer.chunked:
            await self._pass_watch(request, near, answers, far, answer)
            return
        status = int(answer.first[1])
        ends = status in _NO_BODY or method == "HEAD"
        content = b"" if ends else await _read_body(far, answer, ends=False)
        await self._withhold(mishap)
        await self._write(answers, answer.raw + content, slowly=mishap is Mishap.SLOW_BODY)
        self.sight.gain(request)

    def _report(self, request: Request, mishap: Mishap) -> None:
        self._tell(request, mishap)
        if mishap not in HARMLESS:
            self.sight.lose(request)

    def _sign(self, head: _Head) -> bytes:
        if not self._token or head.read("authorization"):
            return head.raw
        return head.raw.removesuffix(b"\r\n") + f"Authorization: Bearer {self._token}\r\n\r\n".encode()

    async def _spring(self, request: Request, *, after: bool) -> None:
        trap = self.trap
        if trap is not None and trap.takes(request, after=after):
            # Others' requests do not wait for it.
            await asyncio.to_thread(trap.spring, request)
            if trap.resets:
                raise _EndError(abruptly=True)

    async def _befall(self, request: Request, mishap: Mishap, answers: StreamWriter) -> None:
        """Do what the mishap does before the request would be passed on."""
        draw = self.weather.source.uniform
        if mishap is Mishap.RESET_BEFORE:
            raise _EndError(abruptly=True)
        if mishap is Mishap.SILENT and self.weather.source.random() >= _DONE:
            await self._keep_silent()
        if mishap is Mishap.TIMEOUT:
            await asyncio.sleep(draw(*_TIMEOUT_SECONDS))
        if mishap in _REFUSALS:
            answers.write(_make_refusal(mishap))
            await answers.drain()
        if mishap is Mishap.EXPIRED:
            answers.write(_make_expiry())
            await answers.drain()

    async def _withhold(self, mishap: Mishap | None) -> None:
        """Do what the mishap does instead of an answer to a request that was done."""
        if mishap is Mishap.RESET_AFTER:
            raise _EndError(abruptly=True)
        if mishap is Mishap.SILENT:
            await self._keep_silent()

    async def _keep_silent(self) -> NoReturn:
        await asyncio.sleep(self.weather.source.uniform(*_SILENT_SECONDS))
        raise _EndError(abruptly=False)

    async def _write(self, answers: StreamWriter, content: bytes, *, slowly: bool) -> None:
        if not slowly:
            answers.write(content)
            await answers.drain()
            return
        step = max(1, len(content) // _SLOW_PARTS)
        for begin in range(0, len(content), step):
            answers.write(content[begin : begin + step])
            await answers.drain()
            await asyncio.sleep(self.weather.source.uniform(*_SLOW_SECONDS))

    async def _pass_watch(
        self, request: Request, near: StreamReader, answers: StreamWriter, far: StreamReader, answer: _Head
    ) -> None:
        """The changes that a watch brings, until either side ends it."""
        answers.write(answer.raw)
        await answers.drain()
        self.sight.gain(request)
        is_json = "json" in answer.read("content-type") and not answer.read("content-encoding")
        passing = asyncio.create_task(self._pass_changes(request, answers, far, is_json=is_json))
        leaving = asyncio.create_task(near.read(1))
        try:
            await asyncio.wait((passing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise _EndError(abruptly=False)
            await passing
        finally:
            for task in (passing, leaving):
                task.cancel()
            await asyncio.gather(passing, leaving, return_exceptions=True)

    async def _pass_changes(self, request: Request, answers: StreamWriter, far: StreamReader, *, is_json: bool) -> None:
        held_up = -math.inf
        while chunk := await _read_chunk(far):
            data = chunk.partition(b"\r\n")[2]
            doubles = is_json and data.startswith(b'{"type":"MODIFIED"') and data.endswith(b"}\n\r\n")
            barred = set() if doubles else {Mishap.DUPLICATED}
            now = time.monotonic()
            if now < held_up + _DELAY_EACH:
                barred.add(Mishap.DELAYED)
            if now < self._ended_at.get(request.path, -math.inf) + _END_EACH:
                barred |= {Mishap.CUT, Mishap.ENDED}
            mishap = self.weather.draw_change(barred)
            if mishap is not None:
                self._report(request, mishap)
            if mishap in {Mishap.CUT, Mishap.ENDED}:
                self._ended_at[request.path] = now
            if mishap is Mishap.CUT:
                raise _EndError(abruptly=True)
            if mishap is Mishap.ENDED:
                answers.write(b"0\r\n\r\n")
                await answers.drain()
                raise _EndError(abruptly=False)  # the server's side of it is not at its end
            if mishap is Mishap.DELAYED:
                held_up = time.monotonic()
                await asyncio.sleep(self.weather.source.uniform(*_DELAY_SECONDS))
            await asyncio.sleep(max(0.0, self._silent_until - time.monotonic()))
            answers.write(chunk * 2 if mishap is Mishap.DUPLICATED else chunk)
            await answers.drain()
        answers.write(b"0\r\n\r\n")
        await answers.drain()


async def _read_chunk(far: StreamReader) -> bytes:
    """The next chunk with its frame; empty at the end."""
    size = await far.readuntil(b"\r\n")
    length = int(size, 16)
    rest = await far.readexactly(length + 2)
    return size + rest if length else b""


async def _read_body(reader: StreamReader, head: _Head, *, ends: bool) -> bytes:
    """The body as it was sent; without a length it is empty, or reaches until the end of the connection."""
    if head.chunked:
        parts = []
        while chunk := await _read_chunk(reader):
            parts.append(chunk)
        return b"".join(parts) + b"0\r\n\r\n"
    if length := head.read("content-length"):
        return await reader.readexactly(int(length))
    return b"" if ends else await reader.read()


def _make_refusal(mishap: Mishap) -> bytes:
    status, reason = _REFUSALS[mishap]
    body = _describe(status, reason)
    wait = f"Retry-After: {_RETRY_AFTER_SECONDS}\r\n" if mishap is Mishap.TOO_MANY else ""
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{wait}\r\n"
    return head.encode() + body


def _make_expiry() -> bytes:
    event = b'{"type":"ERROR","object":' + _describe(410, "Expired") + b"}\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + f"{len(event):x}\r\n".encode() + event + b"\r\n0\r\n\r\n"


def _describe(status: int, reason: str) -> bytes:
    said = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return json.dumps({**said, "message": "injected", "reason": reason, "code": status}).encode()


def _close(writer: StreamWriter, *, abruptly: bool) -> None:
    with suppress(OSError, RuntimeError):
        if abruptly:
            writer.transport.abort()
        else:
            writer.close()
