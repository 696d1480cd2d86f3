"""The HTTP/1 server for kube-scheduler, on httptools. It passes requests to handlers, and sends replies in order.

`extender.process` opens a `Listener` with the routes of `extender.core.http.verbs`. kube-scheduler waits for every
answer, so the path of a request is short: callbacks of the parser collect the request, an `ImmediateHandler` answers it
in the same iteration of the event loop, and head and body are sent in one write (docs/decisions/0006).

If there are too many connections, the connection that was unused for longest is closed.
"""

import asyncio
import functools
import http
import logging
import math
import resource
import ssl
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import httptools
import orjson

from serried.ops.server import Intake, IntakeLimits, Throttle, listen_at, no_throttle
from serried.ops.tls import ReloadingContext

_MAX_CONNECTIONS = 32_768
"""The limit of connections: three open bind calls for each member of a gang of 10,000."""

_FILES_SHARE = 0.75
"""The fraction of this process's file descriptors that connections may use."""


class Connections:
    """The connections of one listener, at most ``limit``. Iteration is over all of them.

    The default limit depends on the file descriptors that this process may have.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit or count_allowed(_MAX_CONNECTIONS, _FILES_SHARE)
        self._all: set[_Connection] = set()

        self._idle: dict[_Connection, None] = {}
        """The connections without an open call, the one that was unused for longest first."""

    def __iter__(self) -> Iterator["_Connection"]:
        return iter(tuple(self._all))

    def __len__(self) -> int:
        return len(self._all)

    def add(self, peer: "_Connection") -> None:
        """Add a new connection. If there are too many, abort the one that was unused for longest, maybe this one."""
        self._all.add(peer)
        self._idle[peer] = None
        if len(self._all) > self._limit:
            oldest = next(iter(self._idle))
            self.remove(oldest)  # before connection_lost, as more connections may be made in this iteration
            oldest.abort()

    def remove(self, peer: "_Connection") -> None:
        """Remove a connection that has ended."""
        self._all.discard(peer)
        self._idle.pop(peer, None)

    def note_use(self, peer: "_Connection") -> None:
        """Note that a request begins, so that the connection is not the one that was unused for longest."""
        if self._idle.pop(peer, self) is None:
            self._idle[peer] = None

    def note_call(self, peer: "_Connection") -> None:
        """Note that a handler waits with its answer. Until `note_answer` the connection is not aborted for new ones."""
        self._idle.pop(peer, None)

    def note_answer(self, peer: "_Connection") -> None:
        """Note that the handler has answered, so that the connection may be aborted for new ones again."""
        if peer in self._all:
            self._idle[peer] = None


def count_allowed(most: int, share: float) -> int:
    """Return ``most``, or the fraction ``share`` of this process's file descriptor limit if that is less; 1 or more."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if files == resource.RLIM_INFINITY else max(1, min(most, int(files * share)))


log = logging.getLogger(__name__)

IDLE_SECONDS = 120.0
"""The seconds after which an unused connection is closed.

They are more than the 90 seconds after which Go's client closes it: otherwise kube-scheduler might send a request on a
connection that was just closed, and the request would be lost.
"""

_ARRIVAL_SECONDS = 20.0
"""The seconds in which a request must arrive, from its first byte to its last.

kube-scheduler sends a request in one piece.
"""

_LINGER_SECONDS = 2.0
"""The seconds for which the rest of a rejected request is read and dropped before the connection is closed.

Closing it with unread data would reset it, and the client might not get the answer.
"""

_CLOSING_SECONDS = 0.5
"""The seconds that open bind calls get when the listener closes.

That is enough for a Binding that is being sent, but not to wait for a gang.
"""

_MAX_OTHER_BYTES = 1 << 20
"""The most bytes that a request may have besides its body: head, chunk headers, trailers."""

_MAX_HANDSHAKES = 16_384
"""The limit of connections that are in a TLS handshake: a gang of 10,000 may call all at once."""

_HANDSHAKE_FILES_SHARE = 0.125
"""The fraction of this process's file descriptors that connections in a handshake may use."""

_SHARE_OF_ONE_ADDRESS = 0.75
"""The fraction of the handshakes that may come from one address."""

_MAX_QUEUED = 16
"""The limit of requests that arrive on a connection while a call on it is open.

kube-scheduler sends none, because its client waits for each answer.
"""

_FOLLOW_SECONDS = 10.0
"""The period in seconds in which the certificate files are read again.

New connections read them anyway; this is so that existing connections are closed after a change, too.
"""

Hangup = Callable[[], Coroutine[Any, Any, None]]
"""A coroutine function that returns once the client has closed the connection."""


class Reply(NamedTuple):
    """The answer to one request."""

    body: bytes
    """The JSON body."""

    status: int = 200

    close: bool = False
    """True if the connection is to be closed after this answer."""


ImmediateHandler = Callable[[bytes], Reply]
"""Takes the body of a request and returns the answer at once."""

WaitingHandler = Callable[[bytes, Hangup], Coroutine[Any, Any, Reply]]
"""Takes the body of a request, and may wait before it returns the answer, as for bind calls.

The second argument (`Hangup`) lets it notice that the client has closed the connection.
"""


@dataclass(frozen=True, slots=True)
class Routes:
    """The handlers of POST requests by path."""

    immediate: Mapping[bytes, ImmediateHandler]
    waiting: Mapping[bytes, WaitingHandler]

    max_bytes: int
    """The most bytes that a body may have.

    If a body has more, the handler gets its first part, which is longer than this limit, so that the handler can
    reject it. The connection is closed after the answer.
    """


@dataclass(frozen=True, slots=True)
class Security:
    """The way in which callers are authenticated: by TLS with client certificates."""

    context: ReloadingContext

    admits: Callable[[Mapping[str, Any]], bool]
    """Returns whether the client with this certificate may call. It is called once per connection."""

    wall: Callable[[], float] = time.time
    """Returns the time in seconds since 1970, to check when certificates expire."""


class _Handshake:
    """The certificates of client and server that were used in the TLS handshake of one connection."""

    __slots__ = ("_expires", "_made_with", "_security", "peer")

    def __init__(self, security: Security, transport: asyncio.BaseTransport) -> None:
        self._security = security
        self._made_with: ssl.SSLContext = transport.get_extra_info("ssl_object").context

        self.peer: Mapping[str, Any] = transport.get_extra_info("peercert") or {}
        """The client's certificate; empty if none was requested."""

        self._expires = ssl.cert_time_to_seconds(self.peer["notAfter"]) if self.peer else math.inf

    def is_valid(self) -> bool:
        """Return whether the server's certificate files are unchanged, and the client's certificate has not expired."""
        return self._security.context.current is self._made_with and self._security.wall() < self._expires


def _limit_handshakes() -> IntakeLimits:
    most = count_allowed(_MAX_HANDSHAKES, _HANDSHAKE_FILES_SHARE)
    return IntakeLimits(max(1, int(most * _SHARE_OF_ONE_ADDRESS)), most)


class Listener:
    """Serves one set of routes on sockets, with TLS if there is a ``security``.

    ``throttle`` waits until a TLS handshake may start, because handshakes are expensive.
    """

    def __init__(
        self,
        routes: Routes,
        peers: Connections | None = None,
        security: Security | None = None,
        throttle: Throttle = no_throttle,
    ) -> None:
        self._routes = routes
        self._security = security
        self._throttle = throttle
        self._servers: list[asyncio.Server | Intake] = []
        self._peers = Connections() if peers is None else peers

        self._reload_timer: asyncio.TimerHandle | None = None
        """The timer of the next check of the certificate files; None without TLS."""

    async def serve(self, host: str, port: int) -> None:
        """Serve until cancelled. Raise OSError if the address is in use."""
        await self.open(host, port)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self.close()

    async def open(self, host: str, port: int) -> int:
        """Listen on an address. Return the port, which the system chooses if ``port`` is 0.

        Raise OSError if the address is in use.
        """
        servers: Sequence[asyncio.Server | Intake]
        sockets = listen_at(host, port)
        if self._security is None:
            loop = asyncio.get_running_loop()
            servers = [await loop.create_server(self._make, sock=each, backlog=4096) for each in sockets]
        else:
            context = self._security.context
            limits = _limit_handshakes()
            servers = [Intake(each, self._make, lambda _: context, self._throttle, limits=limits) for each in sockets]
            if self._reload_timer is None:
                self._follow(context)
        self._servers += servers
        found = int(servers[0].sockets[0].getsockname()[1])
        log.info("listening", extra={"host": host, "port": found})
        return found

    def _follow(self, context: ReloadingContext) -> None:
        self._reload_timer = asyncio.get_running_loop().call_later(_FOLLOW_SECONDS, self._follow, context)
        context.follow()

    def _make(self) -> asyncio.Protocol:
        return _Connection(self._routes, self._peers, self._security)

    async def close(self) -> None:
        """Stop accepting connections, and close those that are unused.

        Open bind calls get `_CLOSING_SECONDS` to finish, then are answered with status 503.
        """
        if self._reload_timer is not None:
            self._reload_timer.cancel()
            self._reload_timer = None
        for server in self._servers:
            server.close()
        for connection in self._peers:
            connection.retire()
        calls = [connection.call for connection in self._peers if connection.call is not None]
        if calls:
            _, late = await asyncio.wait(calls, timeout=_CLOSING_SECONDS)
            for call in late:
                call.cancel()
            await asyncio.gather(*late, return_exceptions=True)


class _Request:
    """One HTTP request of a connection, with its head and the parts of its body that have arrived so far."""

    __slots__ = ("expects", "keep", "method", "parts", "size", "taken", "url", "whole")

    def __init__(self, *, taken: bool) -> None:
        self.url = b""
        self.method = b""

        self.parts: list[bytes] = []
        """The parts of the body that have arrived."""

        self.size = 0
        """The size of ``parts`` in bytes."""

        self.taken = taken
        """True once the request was passed to a handler, queued or dropped, so that nothing more is collected."""

        self.expects = False
        """True while the client waits for "100 Continue" before it sends the body."""

        self.keep = False
        """True if the connection stays open after the answer, as the client has requested."""

        self.whole = False
        """True once the last byte of the request has arrived."""


class _Connection(asyncio.Protocol):
    """One connection, from its handshake to its end.

    Data is read even while a call is open, because the end of the connection can only be noticed by reading.
    Requests that arrive meanwhile are queued; if there are too many, the connection is aborted.
    """

    call: asyncio.Task[None] | None = None
    """The task of the `WaitingHandler` that has not answered yet; None without one."""

    _handshake: _Handshake | None = None
    """The certificates of the TLS connection; None for plain HTTP."""

    _queued_bytes = 0
    """The sum of the bytes of the bodies in ``_queue``."""

    _arrival_timer: asyncio.TimerHandle | None = None
    """The timer that rejects a request which has arrived only in part; None if there is no such request."""

    _other_bytes = 0
    """The bytes of the present request that are not part of its body."""

    _body_bytes = 0
    """The number of bytes of the chunk of received data being parsed that are part of the bodies of requests."""

    _dropping = False
    """True while all data is dropped that arrives: only the end of the connection is of interest."""

    _closing = False
    """True if the connection is to be closed once no call is open."""

    def __init__(self, routes: Routes, peers: Connections, security: Security | None) -> None:
        self._routes = routes
        self._peers = peers
        self._security = security
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)

        self._request = _Request(taken=True)
        """The request that is arriving."""

        self._queue: deque[_Request] = deque()
        """The requests that have arrived while a call was open."""

        self._closed = asyncio.Event()
        """Set when the connection has ended."""

        self._last_used = self._loop.time()
        """The loop time of the last request or answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._timer = self._loop.call_later(IDLE_SECONDS, self._check_idle)
        self._peers.add(self)
        if self._security is not None:
            self._handshake = _Handshake(self._security, transport)
            if not self._security.admits(self._handshake.peer):
                log.warning("a client is rejected: its certificate is valid, but its name is not in --client-names")
                self._routes = _reject_all(self._routes)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the loop's signature
        self._timer.cancel()
        self._stop_arrival_timer()
        self._peers.remove(self)
        self._dropping = True
        self._queue.clear()
        self._closed.set()

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._dropping:
            return
        self._body_bytes = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the request was answered like any other, and is the last one
        except httptools.HttpParserError as error:
            self._reject(400, f"the request is not HTTP: {error}")
        # A request that began within the data is charged for all of it: too much by one read of the socket at most.
        self._other_bytes += len(data) - self._body_bytes
        if self._other_bytes > _MAX_OTHER_BYTES:
            self._reject(431, "the head of the request, or its chunk headers and trailers, are too large")
        if self._arrival_timer is None and not (self._request.taken or self._dropping):
            self._arrival_timer = self._loop.call_later(
                _ARRIVAL_SECONDS, self._reject, 408, "the request has not arrived in time"
            )

    def on_message_begin(self) -> None:
        self._request = _Request(taken=self._dropping)
        self._peers.note_use(self)
        self._last_used = self._loop.time()
        self._other_bytes = 0
        self._body_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._request.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 6 and name.lower() == b"expect":
            self._request.expects = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        parser = self._parser
        request = self._request
        request.method = parser.get_method()
        lasting = parser.should_keep_alive() and not parser.should_upgrade()
        request.keep = lasting and parser.get_http_version() != "1.0"
        if request.expects:
            self._send_continue()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        request = self._request
        if not request.taken:
            request.parts.append(body)
            request.size += len(body)
            if request.size > self._routes.max_bytes:
                self._dispatch(request)

    def on_message_complete(self) -> None:
        if not self._request.taken:
            self._request.whole = True
            self._dispatch(self._request)

    def _send_continue(self) -> None:
        # Answers are sent in order: that of an open call comes first.
        if self._request.expects and not self._request.taken and self.call is None:
            self._request.expects = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _dispatch(self, request: _Request) -> None:
        request.taken = True
        self._stop_arrival_timer()
        self._dropping = not (request.whole and request.keep)
        if self.call is None:
            self._answer(request)
            return
        self._queue.append(request)
        self._queued_bytes += request.size
        if len(self._queue) > _MAX_QUEUED or self._queued_bytes > self._routes.max_bytes:
            self._dropping = True
            self._transport.abort()

    def _stop_arrival_timer(self) -> None:
        if self._arrival_timer is not None:
            self._arrival_timer.cancel()
            self._arrival_timer = None

    def _answer(self, request: _Request) -> None:
        path = request.url.partition(b"?")[0]
        immediate = self._routes.immediate.get(path)
        waiting = self._routes.waiting.get(path)
        if immediate is None and waiting is None:
            self._write(request, _error(404, "unknown verb"))
        elif request.method != b"POST":
            self._write(request, _error(405, "POST is the only method"))
        elif immediate is not None:
            self._write(request, _attempt(immediate, b"".join(request.parts)))
        elif waiting is not None:
            self.call = self._loop.create_task(self._wait(waiting, request))
            self._peers.note_call(self)

    async def _wait(self, handler: WaitingHandler, request: _Request) -> None:
        reply = _STOPPING
        try:
            reply = await handler(b"".join(request.parts), self._hangup)
        except Exception as error:  # noqa: BLE001 - kube-scheduler gets an answer to every call
            reply = _internal(error)
        finally:
            self.call = None
            self._peers.note_answer(self)
            self._write(request, reply)
            while self._queue and self.call is None:
                following = self._queue.popleft()
                self._queued_bytes -= following.size
                self._answer(following)
            self._send_continue()

    async def _hangup(self) -> None:
        await self._closed.wait()

    def _write(self, request: _Request, reply: Reply) -> None:
        if self._transport.is_closing():
            return
        keep = request.keep and request.whole and not (reply.close or self._closing)
        # A client whose handshake is outdated has to connect again.
        keep = keep and (self._handshake is None or self._handshake.is_valid())
        body = b"" if request.method == b"HEAD" else reply.body
        end = b"\r\n" if keep else b"connection: close\r\n\r\n"
        self._transport.write(b"%b%d\r\n%b%b" % (_head(reply.status), len(reply.body), end, body))
        self._last_used = self._loop.time()
        if not keep:
            self._finish(request)

    def _finish(self, request: _Request) -> None:
        self._dropping = True
        self._queue.clear()
        self._request.parts = []
        if request.whole:
            self._transport.close()
            return
        if self._transport.can_write_eof():  # TLS has no half of a connection
            self._transport.write_eof()
        self._timer.cancel()
        self._timer = self._loop.call_later(_LINGER_SECONDS, self._transport.abort)

    def _reject(self, status: int, sentence: str) -> None:
        if self._dropping:
            return
        self._request.taken = True
        self._stop_arrival_timer()
        log.warning("a request is rejected and its connection closed", extra={"why": sentence})
        if self.call is None:
            self._write(_Request(taken=True), _error(status, sentence))
        else:
            self._transport.abort()  # the open call's answer would come first, and no more data can be parsed

    def _check_idle(self) -> None:
        now = self._loop.time()
        if self.call is not None:
            self._last_used = now
        if now - self._last_used >= IDLE_SECONDS:
            self._transport.abort()
        else:
            self._timer = self._loop.call_later(self._last_used + IDLE_SECONDS - now, self._check_idle)

    def abort(self) -> None:
        """Abort the connection because there are too many, and this one was unused for longest."""
        log.warning("the connection that was idle for longest is closed, as there are too many")
        self._transport.abort()

    def retire(self) -> None:
        """Close the connection as soon as no call is open. Queued requests are not answered."""
        self._closing = True
        if self.call is None:
            self._transport.close()


def _attempt(handler: ImmediateHandler, body: bytes) -> Reply:
    try:
        return handler(body)
    except Exception as error:  # noqa: BLE001 - kube-scheduler gets an answer to every call
        return _internal(error)


def _internal(error: Exception) -> Reply:
    log.error("an internal error in a handler is answered with status 500", exc_info=error)
    return _error(500, "internal error, see the extender's log")


def _error(status: int, sentence: str) -> Reply:
    return Reply(orjson.dumps({"Error": f"serried: {sentence}"}), status)


@functools.cache
def _head(status: int) -> bytes:
    allow = "allow: POST\r\n" if status == 405 else ""
    phrase = http.HTTPStatus(status).phrase
    return f"HTTP/1.1 {status} {phrase}\r\n{allow}content-type: application/json\r\ncontent-length: ".encode()


def _reject_all(routes: Routes) -> Routes:
    """Return routes that answer 403 to all requests, for a client that may not call."""

    def refuse(body: bytes) -> Reply:  # noqa: ARG001 - a handler
        return _error(403, "this certificate has none of the names that may call (--client-names)")._replace(close=True)

    return Routes(dict.fromkeys([*routes.immediate, *routes.waiting], refuse), {}, routes.max_bytes)


_STOPPING = _error(503, "the extender is stopping")
