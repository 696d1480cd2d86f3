"""The HTTP server for operations (`make_server`): uvicorn, on a port that all clients in the cluster may reach.

One port accepts plain HTTP and TLS. `Intake` accepts the connections; the TLS listeners for filter and bind calls use
it as well. A connection is pending until its first byte has arrived and, with TLS, its handshake is complete. From then
on it is established. `Intake` limits the number of pending connections, in total and per client address: a client that
opens many and sends nothing, or half a handshake, must not block other clients. Above a limit the oldest pending
connection of the address with the most of them is closed. It is the oldest one, because an address may stand for many
clients, such as all pods of a node, and connections of well-behaved clients are established soon.

uvicorn handles the established connections. `_Connection` adds two limits that uvicorn lacks. Above a number of
connections the one that has been idle longest is closed; uvicorn would answer 503 instead, also to probes. And a client
has limited time to send the rest of a request and to read the answer; uvicorn would wait for ever.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import h11
import uvicorn
from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

log = logging.getLogger(__name__)

_FIRST_BYTE_SECONDS = 20.0
"""The timeout for the first byte of a connection. It is long because browsers open connections in advance."""

_HANDSHAKE_SECONDS = 10.0

_HANDSHAKE_WAIT_SECONDS = 10.0
"""The maximum time for which a TLS connection waits until its handshake may start. Go's clients give up after it."""

_HANDSHAKES_PER_ADDRESS = 32
"""The maximum number of concurrent TLS handshakes per client address; further ones wait.

A handshake needs far more memory than a connection that waits.
"""

MAX_PER_ADDRESS = 128
"""The maximum number of pending connections (before the first byte or during the handshake) per client address."""

_MAX_PENDING = 1024
"""The maximum number of pending connections (before the first byte or during the handshake) of all addresses."""

_MAX_CONNECTIONS = 256
"""The maximum number of established connections at the operations listener. Probes, scrapers and people need fewer."""

_CLIENT_SECONDS = 20.0
"""The timeout for a client that has begun a request to send the rest, and for one that does not read its answer."""

_MAX_PIPELINED = 16
"""The maximum number of pipelined requests in a row, i.e. sent before the previous answer. Most clients send none."""

_ACCEPT_RETRY_SECONDS = 0.1
"""The pause after a connection could not be accepted, for instance because file descriptors have run out."""

_TLS_BEGIN = b"\x16"
"""The first byte of every TLS connection, and of no HTTP request."""

Throttle = Callable[[], Awaitable[None]]
"""A function that waits until expensive work for a client may start, such as a TLS handshake.

It limits the load that clients without a token can cause.
"""

MakeProtocol = Callable[[], asyncio.Protocol]
"""A function that creates the asyncio protocol of an established connection."""

ChooseTls = Callable[[bytes], ssl.SSLContext | None]
"""A function that gets the first byte of a connection, and returns its TLS context, or None for plain HTTP."""


def choose_by_first_byte(tls: ssl.SSLContext | None) -> ChooseTls:
    """Return a function that detects by its first byte whether a connection is TLS, and then returns ``tls``.

    So one port serves TLS and plain HTTP; with ``tls`` None it serves plain HTTP only. The kubelet's probes and
    port-forwards use plain HTTP, callers with a token need TLS (`serried.ops.access.Guard` decides).
    """
    return lambda first: tls if first == _TLS_BEGIN else None


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """The maximum numbers of pending connections, whose first byte or TLS handshake is not complete.

    Above a limit the oldest pending connection is closed.
    """

    per_address: int
    """The maximum number of pending connections per client address.

    Above it the oldest pending connection of that address is closed.
    """

    total: int
    """The maximum number of pending connections of all client addresses together.

    Above it the oldest pending connection of the address that has the most is closed.
    """


OPERATIONS = IntakeLimits(MAX_PER_ADDRESS, _MAX_PENDING)


async def no_throttle() -> None:
    """Return at once: a `Throttle` (awaited before expensive work for a client) that never waits."""


class _Address:
    """The connections of one client address of which the first byte or the TLS handshake is not complete."""

    def __init__(self) -> None:
        self.pending: dict[asyncio.Task[None], None] = {}
        """The tasks that establish the address's pending connections, the oldest first (the values are not used)."""
        self.next = asyncio.Lock()
        """Held while one of its connections awaits the `Throttle`, so that each address has only one in that queue."""
        self.handshakes = asyncio.Semaphore(_HANDSHAKES_PER_ADDRESS)
        """Limits the concurrent handshakes of the address, including one that awaits the `Throttle`."""


class Intake:
    """Accepts connections of the socket ``listener`` until `close`, and hands each over once it is established.

    ``choose`` says whether a connection uses TLS. ``throttle`` is awaited before each TLS handshake. ``make`` creates
    the protocol that handles the connection from then on. ``limits`` apply to connections before that.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: MakeProtocol,
        choose: ChooseTls,
        throttle: Throttle,
        *,
        limits: IntakeLimits,
    ) -> None:
        self._throttle = throttle
        self.sockets = [listener]
        self._make = make
        self._choose = choose
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._addresses: defaultdict[str, _Address] = defaultdict(_Address)
        """The client addresses that have connections which are not established yet."""
        self._pending = 0
        """The number of connections of all addresses that are not established yet."""
        listener.settimeout(0)
        self._accepting = self._loop.create_task(self._accept(listener), name="intake: connections")

    def close(self) -> None:
        """Stop accepting connections, and close those whose TLS handshake or first byte is missing, but no others."""
        for task in (self._accepting, *self._list_tasks()):
            task.cancel()
        for listener in self.sockets:
            listener.close()

    async def wait_closed(self) -> None:
        """Wait after `close` until all tasks have ended."""
        await asyncio.gather(self._accepting, *self._list_tasks(), return_exceptions=True)

    def _list_tasks(self) -> list[asyncio.Task[None]]:
        return [task for address in self._addresses.values() for task in address.pending]

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, address = await self._loop.sock_accept(listener)
            except OSError as error:
                log.warning("could not accept a connection; trying again", extra={"err": str(error)})
                await asyncio.sleep(_ACCEPT_RETRY_SECONDS)
                continue
            self._start_task(connection, address[0])
            # Other work of the loop may run between two connections of a long backlog.
            await asyncio.sleep(0)

    def _start_task(self, connection: socket.socket, name: str) -> None:
        address = self._addresses[name]

        def end(task: asyncio.Task[None]) -> None:
            if address.pending.pop(task, self) is None:
                self._pending -= 1
            if not address.pending and self._addresses.get(name) is address:
                del self._addresses[name]

        task = self._loop.create_task(self._establish(connection, address))
        address.pending[task] = None
        self._pending += 1
        task.add_done_callback(end)
        if len(address.pending) > self._limits.per_address:
            self._end_oldest(address)
        elif self._pending > self._limits.total:
            self._end_oldest(max(self._addresses.values(), key=lambda address: len(address.pending)))

    def _end_oldest(self, address: _Address) -> None:
        oldest = next(iter(address.pending))
        del address.pending[oldest]
        self._pending -= 1
        oldest.cancel()

    async def _establish(self, connection: socket.socket, address: _Address) -> None:
        try:
            connection.settimeout(0)
            tls = self._choose(await self._read_first_byte(connection))
            if tls is None:
                await self._loop.connect_accepted_socket(self._make, connection)
            else:
                await self._shake_hands(connection, address, tls)
        except (OSError, TimeoutError):
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise

    async def _shake_hands(self, connection: socket.socket, address: _Address, tls: ssl.SSLContext) -> None:
        async with asyncio.timeout(_HANDSHAKE_WAIT_SECONDS) as patience, address.handshakes:
            async with address.next:
                await self._throttle()
            patience.reschedule(None)
            await self._loop.connect_accepted_socket(
                self._make, connection, ssl=tls, ssl_handshake_timeout=_HANDSHAKE_SECONDS
            )

    async def _read_first_byte(self, connection: socket.socket) -> bytes:
        """Wait for the first byte of a connection and return it, without removing it from the socket.

        Raises TimeoutError or another OSError if none comes.
        """
        heard = asyncio.Event()
        self._loop.add_reader(connection.fileno(), heard.set)
        try:
            async with asyncio.timeout(_FIRST_BYTE_SECONDS):
                await heard.wait()
        finally:
            self._loop.remove_reader(connection.fileno())
        first = connection.recv(1, socket.MSG_PEEK)
        if not first:
            raise ConnectionAbortedError
        return first


class _Connection(H11Protocol):
    """An established connection: uvicorn's protocol with limits on idle connections and slow clients.

    If there are more than _MAX_CONNECTIONS, the one that has been idle longest is closed; one whose request is being
    answered is closed only if there is no other. h11 itself limits the size of a request's head.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        self._client_timer: asyncio.TimerHandle | None = None
        """The timer that closes the connection; None unless the client has to send or read something."""

        self._last_data = self.loop.time()
        """The event loop's time at which the client last sent data."""

        self._pipelined = 0
        """The number of pipelined requests in a row: each arrived before the previous one was answered."""

        super().connection_made(cast("asyncio.Transport", _WriteGuard(transport)))
        self._watch_client()
        if len(self.connections) > _MAX_CONNECTIONS:
            others = [each for each in self.connections if isinstance(each, _Connection) and each is not self]
            oldest = min(others, key=_get_closing_order)
            # its removal happens later in this turn of the loop, in which more may arrive
            self.connections.discard(oldest)
            oldest.abort("there are too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        if self._client_timer is not None:
            self._client_timer.cancel()

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():  # it is closing, and its parser reads nothing more
            self._last_data = self.loop.time()
            super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        self._watch_client()

    def _watch_client(self) -> None:
        """Start the client's timer if a request is incomplete or an answer is not read, else stop the timer.

        When the timer expires, the connection is closed.
        """
        cycle: RequestResponseCycle | None = self.cycle
        begun = self.conn.their_state is h11.IDLE and (cycle is None or self.conn.trailing_data[0])
        waiting = begun or self.conn.their_state is h11.SEND_BODY or self.flow.write_paused
        if waiting and self._client_timer is None:
            why = "the client sends its request, or reads the answer, too slowly"
            self._client_timer = self.loop.call_later(_CLIENT_SECONDS, self.abort, why)
        elif self._client_timer is not None and not waiting:
            self._client_timer.cancel()
            self._client_timer = None

    def send_400_response(self, msg: str) -> None:
        """Answer 400 to data that is not HTTP, or close the connection if another answer has begun.

        No further request of the connection is answered.
        """
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        self._pipelined = self._pipelined + 1 if self.conn.trailing_data[0] else 0
        if self._pipelined > _MAX_PIPELINED:
            self.transport.close()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_client()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch_client()

    @property
    def closing_order(self) -> tuple[bool, float]:
        """The sort key if there are too many connections; the lowest is closed first.

        It is (True if a request is being answered, loop time at which the client last sent data).
        """
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete, self._last_data

    def abort(self, why: str) -> None:
        """Log ``why``, and close the connection without sending the rest of an answer."""
        log.warning("the server closes a connection before its answer is complete", extra={"why": why})
        self.transport.abort()


class _WriteGuard:
    """A wrapper of a transport that ignores writes after the client has closed the connection.

    uvicorn learns of that only in the next iteration of the event loop. Until then uvloop would raise on a write, which
    would be logged as an error of Serried.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


def _get_closing_order(connection: _Connection) -> tuple[bool, float]:
    return connection.closing_order


Readiness = Callable[[], Mapping[str, bool]]

_BACKLOG = 4096
"""The maximum number of connections that wait in the kernel to be accepted (listen backlog)."""

KEEP_ALIVE_SECONDS = 120
"""The time for which an idle connection stays open.

Go's HTTP clients, such as kube-scheduler's, close theirs after 90 s. If the server closed first, a request that the
client sends at that moment would be lost.
"""


def ops_routes(readiness: Readiness, render: Callable[[], bytes]) -> APIRouter:
    """Return the routes ``/livez``, ``/readyz`` and ``/metrics``.

    ``readiness`` returns the conditions of ``/readyz`` by name; 503 if one is False. ``render`` returns the body of
    ``/metrics``. ``/livez`` only proves that the event loop runs: against other problems a restart does not help.
    """
    routes = APIRouter()

    @routes.get("/livez", response_class=PlainTextResponse)
    async def livez() -> str:
        return "ok\n"

    @routes.get("/readyz", response_class=PlainTextResponse)
    async def readyz() -> PlainTextResponse:
        return render_checks(readiness())

    @routes.get("/metrics")
    async def metrics() -> Response:
        return Response(render(), media_type=CONTENT_TYPE_LATEST)

    return routes


def render_checks(checks: Mapping[str, bool]) -> PlainTextResponse:
    """Return the answer to a probe: one line for each check by name, with status 200 if all are True, else 503."""
    lines = [f"[{'+' if passed else '-'}]{name} {'ok' if passed else 'not ready'}\n" for name, passed in checks.items()]
    return PlainTextResponse("".join(lines) or "ok\n", 200 if all(checks.values()) else 503)


class Server(uvicorn.Server):
    """A uvicorn server that accepts connections through `Intake`.

    It has no signal handlers: `serried.ops.process` handles signals, and sets ``should_exit`` to end the server.
    """

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None, throttle: Throttle) -> None:
        super().__init__(config)
        self._throttle = throttle
        self._tls = tls
        """The context for TLS connections; None for a server of plain HTTP only."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on ``sockets``; if None, on the configured address. Raises OSError if that is in use."""
        await self.lifespan.startup()
        listeners = sockets or listen_at(self.config.host, self.config.port)
        for listener in listeners:
            log.info("listening", extra={"host": self.config.host, "port": listener.getsockname()[1]})
        choose = choose_by_first_byte(self._tls)
        self.servers = [Intake(each, self._make, choose, self._throttle, limits=OPERATIONS) for each in listeners]  # type: ignore[misc]
        self.started = True

    def _make(self) -> asyncio.Protocol:
        return _Connection(self.config, self.server_state, self.lifespan.state)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Override uvicorn's context manager, which would install signal handlers, by one that does nothing."""
        yield


def listen_at(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address that ``host`` resolves to; "" and "::" mean all addresses.

    Raises OSError if the port is in use.
    """
    if host in {"", "::"}:
        return [listen_everywhere(port)]
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [socket.create_server(address[:2], family=family, backlog=_BACKLOG) for family, _, _, _, address in found]


def listen_everywhere(port: int) -> socket.socket:
    """Return a socket that listens on all addresses, IPv6 and IPv4; IPv4 alone if the machine has no IPv6.

    It is one socket for both, so that with ``port`` 0 both get the same free port. Raises OSError if it is in use.
    """
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                raise
    return socket.create_server(("", port), backlog=_BACKLOG)


def make_server(
    app: ASGIApp,
    host: str,
    port: int,
    patience: int = 5,
    tls: ssl.SSLContext | None = None,
    throttle: Throttle = no_throttle,
) -> Server:
    """Return a server of ``app``. Await its method `serve`, and set ``should_exit`` to end it.

    At the end, requests that are being answered get ``patience`` seconds to complete. A ``host`` of "" means all
    addresses, IPv4 and IPv6. With ``tls`` the port accepts TLS besides plain HTTP, and ``throttle`` is awaited before
    each TLS handshake.
    """
    options: dict[str, Any] = {"ws": "none", "lifespan": "off", "access_log": False, "log_config": None}
    # kube-scheduler ignores these headers, and each would cost time in its scheduling cycle.
    options |= {"proxy_headers": False, "server_header": False, "date_header": False}
    options |= {"timeout_keep_alive": KEEP_ALIVE_SECONDS, "timeout_graceful_shutdown": patience}
    return Server(uvicorn.Config(app, host, port, http=_Connection, backlog=_BACKLOG, **options), tls, throttle)
