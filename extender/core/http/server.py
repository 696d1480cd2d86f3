"""The HTTP/1 server for kube-scheduler, on httptools: requests to handlers, replies in order.

`extender.process` opens a `Listener` with the routes of `extender.core.http.verbs`. kube-scheduler waits for every
answer, so the path of a request is short: the parser's callbacks collect it, a prompt handler answers it in the same
iteration of the loop, and head and body are sent in one write (docs/decisions/0006).

If a client opens too many connections, the connection that was unused for longest is closed, so that idle connections
do not keep useful ones out.
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

from serried.ops.server import Bounds, Intake, Turn, listen_at, no_turn
from serried.ops.tls import ReloadingContext

_MOST = 32_768
"""The limit of connections: three open bind calls for each member of a gang of 10,000."""

_FILES_SHARE = 0.75
"""The fraction of this process's file descriptors that connections may use."""


class Peers:
    """The connections of one listener, with a limit; iteration is over all of them."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most or count_allowed(_MOST, _FILES_SHARE)
        self._all: set[_Connection] = set()

        self._resting: dict[_Connection, None] = {}
        """The connections without an open call, the one that was unused for longest first."""

    def __iter__(self) -> Iterator["_Connection"]:
        return iter(tuple(self._all))

    def __len__(self) -> int:
        return len(self._all)

    def add(self, peer: "_Connection") -> None:
        """Add a new connection. If there are too many, abort the one that was unused for longest, maybe this one."""
        self._all.add(peer)
        self._resting[peer] = None
        if len(self._all) > self._most:
            oldest = next(iter(self._resting))
            self.remove(oldest)  # before connection_lost, as more connections may be made in this iteration
            oldest.abort()

    def remove(self, peer: "_Connection") -> None:
        """Remove a connection that has ended."""
        self._all.discard(peer)
        self._resting.pop(peer, None)

    def note_use(self, peer: "_Connection") -> None:
        """Note that a request begins."""
        if self._resting.pop(peer, self) is None:
            self._resting[peer] = None

    def note_call(self, peer: "_Connection") -> None:
        """Note that a call is open: until its answer the connection is not closed for a new one."""
        self._resting.pop(peer, None)

    def note_answer(self, peer: "_Connection") -> None:
        """Note that the open call is answered."""
        if peer in self._all:
            self._resting[peer] = None


def count_allowed(most: int, share: float) -> int:
    """Return ``most``, or the given share of this process's file descriptors if that is less; at least 1."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if files == resource.RLIM_INFINITY else max(1, min(most, int(files * share)))


log = logging.getLogger(__name__)

IDLE_SECONDS = 120.0
"""The seconds after which an idle connection is closed.

More than the 90 seconds for which Go keeps idle connections: a request on a connection that was just closed is lost.
"""

_ARRIVAL_SECONDS = 20.0
"""The seconds in which a request must have arrived, from its first byte to its last.

kube-scheduler sends it in one piece.
"""

_LINGER_SECONDS = 2.0
"""The seconds for which the rest of a rejected request is read and dropped: a reset could destroy the answer."""

_CLOSING_SECONDS = 0.5
"""The seconds for open calls when the listener closes: enough for a Binding being sent, not for a gang."""

_MAX_OTHER_BYTES = 1 << 20
"""The limit of the bytes of a request beside its body: head, frames of chunks, trailers."""

_MOST_ENTERING = 16_384
"""The limit of connections in a TLS handshake: a gang of 10,000 may call all at once."""

_ENTERING_FILES_SHARE = 0.125
"""The fraction of this process's file descriptors that handshakes may use."""

_SHARE_OF_ONE = 0.75
"""The fraction of the handshakes that may come from one address."""

_MAX_QUEUED = 16
"""The limit of requests behind an open call. kube-scheduler sends none: its client waits for each answer."""

_FOLLOW_SECONDS = 10.0
"""The period in which certificate files are read again without new connections: existing ones follow them, too."""

Hangup = Callable[[], Coroutine[Any, Any, None]]
"""Returns when the client has closed the connection."""


class Reply(NamedTuple):
    """The answer to one request."""

    body: bytes
    """The body, JSON."""

    status: int = 200

    close: bool = False
    """True to close the connection after the answer."""


Prompt = Callable[[bytes], Reply]
"""A handler that answers at once."""

Patient = Callable[[bytes, Hangup], Coroutine[Any, Any, Reply]]
"""A handler that may keep its connection waiting."""


@dataclass(frozen=True, slots=True)
class Routes:
    """The handlers of POST requests by path."""

    prompt: Mapping[bytes, Prompt]
    patient: Mapping[bytes, Patient]

    max_bytes: int
    """The limit of a body in bytes.

    Of a larger body a handler gets the first part, which is over the limit, too; the connection is closed after the
    answer.
    """


@dataclass(frozen=True, slots=True)
class Security:
    """The settings by which callers are authenticated: TLS with client certificates."""

    context: ReloadingContext

    admits: Callable[[Mapping[str, Any]], bool]
    """Returns whether the owner of a certificate may call; called once per connection."""

    wall: Callable[[], float] = time.time
    """The time in seconds since 1970, to check when certificates expire."""


class _Handshake:
    """The certificates with which a TLS connection was made."""

    __slots__ = ("_expires", "_made_with", "_security", "peer")

    def __init__(self, security: Security, transport: asyncio.BaseTransport) -> None:
        self._security = security
        self._made_with: ssl.SSLContext = transport.get_extra_info("ssl_object").context

        self.peer: Mapping[str, Any] = transport.get_extra_info("peercert") or {}
        """The client's certificate; empty if none was requested."""

        self._expires = ssl.cert_time_to_seconds(self.peer["notAfter"]) if self.peer else math.inf

    def counts(self) -> bool:
        """Return whether the server's files are unchanged and the client's certificate has not expired."""
        return self._security.context.current is self._made_with and self._security.wall() < self._expires


def _bound_entering() -> Bounds:
    most = count_allowed(_MOST_ENTERING, _ENTERING_FILES_SHARE)
    return Bounds(max(1, int(most * _SHARE_OF_ONE)), most)


class Listener:
    """Serves one set of routes on sockets; plain HTTP without ``security``. Each handshake waits for its ``turn``."""

    def __init__(
        self, routes: Routes, peers: Peers | None = None, security: Security | None = None, turn: Turn = no_turn
    ) -> None:
        self._routes = routes
        self._security = security
        self._turn = turn
        self._servers: list[asyncio.Server | Intake] = []
        self._peers = Peers() if peers is None else peers

        self._following: asyncio.TimerHandle | None = None
        """The timer of the next check of the certificate files."""

    async def serve(self, host: str, port: int) -> None:
        """Serve until cancelled. Raise OSError if the address is taken."""
        await self.open(host, port)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self.close()

    async def open(self, host: str, port: int) -> int:
        """Listen on an address. Return the port, which the system chooses if ``port`` is 0."""
        servers: Sequence[asyncio.Server | Intake]
        sockets = listen_at(host, port)
        if self._security is None:
            loop = asyncio.get_running_loop()
            servers = [await loop.create_server(self._make, sock=each, backlog=4096) for each in sockets]
        else:
            context = self._security.context
            bounds = _bound_entering()
            servers = [Intake(each, self._make, lambda _: context, self._turn, bounds=bounds) for each in sockets]
            if self._following is None:
                self._follow(context)
        self._servers += servers
        found = int(servers[0].sockets[0].getsockname()[1])
        log.info("listening", extra={"host": host, "port": found})
        return found

    def _follow(self, context: ReloadingContext) -> None:
        self._following = asyncio.get_running_loop().call_later(_FOLLOW_SECONDS, self._follow, context)
        context.follow()

    def _make(self) -> asyncio.Protocol:
        return _Connection(self._routes, self._peers, self._security)

    async def close(self) -> None:
        """Stop accepting, and close idle connections. Open calls get a moment, then 503."""
        if self._following is not None:
            self._following.cancel()
            self._following = None
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
    """The part of one request that has arrived."""

    __slots__ = ("expects", "keep", "method", "parts", "size", "taken", "url", "whole")

    def __init__(self, *, taken: bool) -> None:
        self.url = b""
        self.method = b""

        self.parts: list[bytes] = []
        """The parts of the body."""

        self.size = 0
        """The size of the body in bytes."""

        self.taken = taken
        """True once the request is answered, queued or dropped."""

        self.expects = False
        """True if the client waits for "100 Continue"."""

        self.keep = False
        """True if the connection is kept after the request."""

        self.whole = False
        """True once the whole request has arrived."""


class _Connection(asyncio.Protocol):
    """One connection, from its handshake to its end.

    While a call is open the socket is still read, because only so the end of the connection is noticed. What a client
    sends meanwhile is queued up to a limit; beyond it the connection is aborted.
    """

    call: asyncio.Task[None] | None = None
    """The task of the open call of a patient handler; None without one."""

    _handshake: _Handshake | None = None
    """The TLS handshake; None for plain HTTP."""

    _queued_bytes = 0
    """The bytes of the bodies in the queue."""

    _arrival_timer: asyncio.TimerHandle | None = None
    """The timer that runs while a request has arrived in part."""

    _other_bytes = 0
    """The bytes of the present request that have arrived beside its body."""

    _body_bytes = 0
    """The bytes of a body among those that are being parsed."""

    _ignoring = False
    """True while arriving data is dropped: only the end of the connection is of interest."""

    _retired = False
    """True if the connection is to be closed once no call is open."""

    def __init__(self, routes: Routes, peers: Peers, security: Security | None) -> None:
        self._routes = routes
        self._peers = peers
        self._security = security
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)

        self._request = _Request(taken=True)
        """The request that is arriving."""

        self._queue: deque[_Request] = deque()
        """The requests behind the open call."""

        self._gone = asyncio.Event()
        """Set when the connection has ended."""

        self._since = self._loop.time()
        """The loop time at which the connection was last used."""

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
        self._ignoring = True
        self._queue.clear()
        self._gone.set()

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._ignoring:
            return
        self._body_bytes = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the request was answered like any other, and is the last one
        except httptools.HttpParserError as error:
            self._reject(400, f"this is not HTTP: {error}")
        # A request that began within the data is charged for all of it: too much by one read of the socket at most.
        self._other_bytes += len(data) - self._body_bytes
        if self._other_bytes > _MAX_OTHER_BYTES:
            self._reject(431, "the request's head, or what it has beside its body, is too large")
        if self._arrival_timer is None and not (self._request.taken or self._ignoring):
            self._arrival_timer = self._loop.call_later(
                _ARRIVAL_SECONDS, self._reject, 408, "the request does not arrive"
            )

    def on_message_begin(self) -> None:
        self._request = _Request(taken=self._ignoring)
        self._peers.note_use(self)
        self._since = self._loop.time()
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
        self._ignoring = not (request.whole and request.keep)
        if self.call is None:
            self._answer(request)
            return
        self._queue.append(request)
        self._queued_bytes += request.size
        if len(self._queue) > _MAX_QUEUED or self._queued_bytes > self._routes.max_bytes:
            self._ignoring = True
            self._transport.abort()

    def _stop_arrival_timer(self) -> None:
        if self._arrival_timer is not None:
            self._arrival_timer.cancel()
            self._arrival_timer = None

    def _answer(self, request: _Request) -> None:
        path = request.url.partition(b"?")[0]
        prompt = self._routes.prompt.get(path)
        patient = self._routes.patient.get(path)
        if prompt is None and patient is None:
            self._write(request, _error(404, "there is no such verb"))
        elif request.method != b"POST":
            self._write(request, _error(405, "POST is the only method"))
        elif prompt is not None:
            self._write(request, _attempt(prompt, b"".join(request.parts)))
        elif patient is not None:
            self.call = self._loop.create_task(self._wait(patient, request))
            self._peers.note_call(self)

    async def _wait(self, handler: Patient, request: _Request) -> None:
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
        await self._gone.wait()

    def _write(self, request: _Request, reply: Reply) -> None:
        if self._transport.is_closing():
            return
        keep = request.keep and request.whole and not (reply.close or self._retired)
        # A client whose handshake is outdated has to connect again.
        keep = keep and (self._handshake is None or self._handshake.counts())
        body = b"" if request.method == b"HEAD" else reply.body
        end = b"\r\n" if keep else b"connection: close\r\n\r\n"
        self._transport.write(b"%b%d\r\n%b%b" % (_head(reply.status), len(reply.body), end, body))
        self._since = self._loop.time()
        if not keep:
            self._finish(request)

    def _finish(self, request: _Request) -> None:
        self._ignoring = True
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
        if self._ignoring:
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
            self._since = now
        if now - self._since >= IDLE_SECONDS:
            self._transport.abort()
        else:
            self._timer = self._loop.call_later(self._since + IDLE_SECONDS - now, self._check_idle)

    def abort(self) -> None:
        """Abort the connection, because there are too many and this one was unused for longest."""
        log.warning("the connection that was idle for longest is closed, as there are too many")
        self._transport.abort()

    def retire(self) -> None:
        """Close the connection once no call is open. Requests behind the call are not begun."""
        self._retired = True
        if self.call is None:
            self._transport.close()


def _attempt(handler: Prompt, body: bytes) -> Reply:
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
    """Return routes that answer 403 to all requests."""

    def refuse(body: bytes) -> Reply:  # noqa: ARG001 - a handler
        return _error(403, "this certificate has none of the names that may call (--client-names)")._replace(close=True)

    return Routes(dict.fromkeys([*routes.prompt, *routes.patient], refuse), {}, routes.max_bytes)


_STOPPING = _error(503, "the extender is stopping")
