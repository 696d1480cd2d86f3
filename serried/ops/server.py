"""The HTTP server for operations (`make_server`): uvicorn, on a port that all clients in the cluster may reach.

One port accepts plain HTTP and TLS. `Intake` accepts connections, also for the TLS listeners of the verbs. It limits
the number of connections that are not established yet, in all and per address: a client that opens many, silent ones or
with half a handshake, must not block others. Handshakes of one address wait for each other. Above a limit the oldest
connection of the address with the most is closed. It is the oldest because one address may stand for many clients, such
as all pods of a node, and serious ones are established soon.

An established connection is handled by uvicorn, with two limits that it lacks (`_Connection`). uvicorn's limit of
concurrency would reject probes; here the connection that has been idle longest is closed. And uvicorn would wait for
ever for the rest of a request, and for clients that do not read the answer.
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
"""The timeout for the first byte of a connection. It is long because browsers open spare connections."""

_HANDSHAKE_SECONDS = 10.0

_WAITING_SECONDS = 10.0
"""The maximum wait before a handshake. Go's clients give up after this time."""

_HANDSHAKES_OF_ONE = 32
"""The maximum number of concurrent handshakes per address: each needs far more memory than a waiting connection."""

MOST_FROM_ONE = 128
"""The maximum number of unestablished connections per address at a port for operations."""

_MOST_AT_ONCE = 1024
"""The maximum number of unestablished connections at a port for operations."""

_MOST = 256
"""The maximum number of established connections. Probes, scrapers and people need far fewer."""

_PATIENCE_SECONDS = 20.0
"""The timeout for a client to send the rest of a request, or to read what exceeds the buffers."""

_MOST_BEHIND = 16
"""The maximum number of consecutive pipelined requests. Clients that wait for answers send none."""

_PAUSE_SECONDS = 0.1
"""The pause after an error such as a lack of file descriptors."""

_TLS_BEGIN = b"\x16"
"""The first byte of every TLS connection, and of no HTTP request."""

Throttle = Callable[[], Awaitable[None]]
"""Waits until a handshake may start. Handshakes are expensive, and any client can cause them."""

Make = Callable[[], asyncio.Protocol]
"""Creates the protocol of an established connection; the protocols limit the number of these."""

Choose = Callable[[bytes], ssl.SSLContext | None]
"""Returns the TLS context for a connection by its first byte; None for plain HTTP."""


def choose_by_first_byte(tls: ssl.SSLContext | None) -> Choose:
    """Return the chooser for plain HTTP and TLS on one port; without ``tls`` for plain HTTP only.

    Probes of the kubelet and port-forwards use plain HTTP, tokens need TLS. `Guard` decides who may use which.
    """
    return lambda first: tls if first == _TLS_BEGIN else None


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits for the number of unestablished connections. Above a limit the oldest connection is closed."""

    from_one: int
    """The maximum per address."""

    at_once: int
    """The maximum in all. The closed connection is one of the address that has most."""


OPERATIONS = Bounds(MOST_FROM_ONE, _MOST_AT_ONCE)


async def no_throttle() -> None:
    """Return at once: a `Throttle` without waiting."""


class _Address:
    """The unestablished connections of one address."""

    def __init__(self) -> None:
        self.entering: dict[asyncio.Task[None], None] = {}
        """The tasks of its connections, the oldest first."""
        self.next = asyncio.Lock()
        """Held by the only connection that waits for a turn, so that addresses get turns one after the other."""
        self.handshakes = asyncio.Semaphore(_HANDSHAKES_OF_ONE)


class Intake:
    """Accepts the connections of ``listener`` until it is closed."""

    def __init__(
        self, listener: socket.socket, make: Make, choose: Choose, throttle: Throttle, *, bounds: Bounds
    ) -> None:
        self._throttle = throttle
        self.sockets = [listener]
        self._make = make
        self._choose = choose
        self._bounds = bounds
        self._loop = asyncio.get_running_loop()
        self._addresses: defaultdict[str, _Address] = defaultdict(_Address)
        """The addresses with unestablished connections."""
        self._entering = 0
        """The number of unestablished connections."""
        listener.settimeout(0)
        self._accepting = self._loop.create_task(self._accept(listener), name="intake: connections")

    def close(self) -> None:
        """Stop accepting connections, and close those that are not established."""
        for task in (self._accepting, *self._list_tasks()):
            task.cancel()
        for listener in self.sockets:
            listener.close()

    async def wait_closed(self) -> None:
        """Wait until all tasks have ended."""
        await asyncio.gather(self._accepting, *self._list_tasks(), return_exceptions=True)

    def _list_tasks(self) -> list[asyncio.Task[None]]:
        return [task for address in self._addresses.values() for task in address.entering]

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, address = await self._loop.sock_accept(listener)
            except OSError as error:
                log.warning("a connection cannot be accepted", extra={"err": str(error)})
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            self._start_task(connection, address[0])
            # Other work of the loop may run between two connections of a long backlog.
            await asyncio.sleep(0)

    def _start_task(self, connection: socket.socket, name: str) -> None:
        address = self._addresses[name]

        def end(task: asyncio.Task[None]) -> None:
            if address.entering.pop(task, self) is None:
                self._entering -= 1
            if not address.entering and self._addresses.get(name) is address:
                del self._addresses[name]

        task = self._loop.create_task(self._take_in(connection, address))
        address.entering[task] = None
        self._entering += 1
        task.add_done_callback(end)
        if len(address.entering) > self._bounds.from_one:
            self._end_oldest(address)
        elif self._entering > self._bounds.at_once:
            self._end_oldest(max(self._addresses.values(), key=lambda address: len(address.entering)))

    def _end_oldest(self, address: _Address) -> None:
        oldest = next(iter(address.entering))
        del address.entering[oldest]
        self._entering -= 1
        oldest.cancel()

    async def _take_in(self, connection: socket.socket, address: _Address) -> None:
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
        async with asyncio.timeout(_WAITING_SECONDS) as patience, address.handshakes:
            async with address.next:
                await self._throttle()
            patience.reschedule(None)
            await self._loop.connect_accepted_socket(
                self._make, connection, ssl=tls, ssl_handshake_timeout=_HANDSHAKE_SECONDS
            )

    async def _read_first_byte(self, connection: socket.socket) -> bytes:
        """Return the first byte, which remains to be read. Raises OSError if none comes."""
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
    """An established connection.

    Above the limit the connection that has been idle longest is closed, first among those without a pending answer. h11
    limits the head of a request, and reads the next request after the answer.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        self._late: asyncio.TimerHandle | None = None
        """The timer that runs while the client has to send or read; None at other times."""

        self._since = self.loop.time()
        """The loop time at which data last arrived."""

        self._behind = 0
        """The number of consecutive requests that arrived before the previous answer."""

        super().connection_made(cast("asyncio.Transport", _WriteGuard(transport)))
        self._watch_client()
        if len(self.connections) > _MOST:
            others = [each for each in self.connections if isinstance(each, _Connection) and each is not self]
            oldest = min(others, key=_find_rank)
            # its removal happens later in this turn of the loop, in which more may arrive
            self.connections.discard(oldest)
            oldest.give_up("there are too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        if self._late is not None:
            self._late.cancel()

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():  # it is closing, and its parser reads nothing more
            self._since = self.loop.time()
            super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        self._watch_client()

    def _watch_client(self) -> None:
        """Start the timer while a request is incomplete or the answer is not read, and stop it otherwise."""
        cycle: RequestResponseCycle | None = self.cycle
        begun = self.conn.their_state is h11.IDLE and (cycle is None or self.conn.trailing_data[0])
        waiting = begun or self.conn.their_state is h11.SEND_BODY or self.flow.write_paused
        if waiting and self._late is None:
            why = "the request does not arrive, or the answer is not read"
            self._late = self.loop.call_later(_PATIENCE_SECONDS, self.give_up, why)
        elif self._late is not None and not waiting:
            self._late.cancel()
            self._late = None

    def send_400_response(self, msg: str) -> None:
        """Answer 400 to what is not HTTP, unless an answer has begun. No further request is answered."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        self._behind = self._behind + 1 if self.conn.trailing_data[0] else 0
        if self._behind > _MOST_BEHIND:
            self.transport.close()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_client()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch_client()

    @property
    def rank(self) -> tuple[bool, float]:
        """The sort key for closing: the connection with the lowest is closed first."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete, self._since

    def give_up(self, why: str) -> None:
        """Close the connection at once."""
        log.warning("a connection is given up", extra={"why": why})
        self.transport.abort()


class _WriteGuard:
    """A transport that ignores writes after it was closed.

    uvicorn only learns in the next turn of the loop that the client has closed. Until then uvloop raises, which would
    be logged as an error of Serried.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


def _find_rank(connection: _Connection) -> tuple[bool, float]:
    return connection.rank


Readiness = Callable[[], Mapping[str, bool]]

_BACKLOG = 4096
"""The maximum number of connections that wait to be accepted."""

KEEP_ALIVE_SECONDS = 120
"""The time for which idle connections stay open.

Go's clients close them after 90 s; closing first would lose requests.
"""


def ops_routes(readiness: Readiness, render: Callable[[], bytes]) -> APIRouter:
    """Return the routes ``/livez``, ``/readyz`` (each condition of ``readiness`` by name) and ``/metrics``.

    Liveness only proves that the event loop runs, because a restart helps against nothing else.
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
    """Return the answer to a probe: each check by name, with status 200 if all pass, else 503."""
    lines = [f"[{'+' if passed else '-'}]{name} {'ok' if passed else 'not ready'}\n" for name, passed in checks.items()]
    return PlainTextResponse("".join(lines) or "ok\n", 200 if all(checks.values()) else 503)


class Server(uvicorn.Server):
    """A uvicorn server without signal handlers: the process handles signals and sets ``should_exit``."""

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None, throttle: Throttle) -> None:
        super().__init__(config)
        self._throttle = throttle
        self._tls = tls
        """The context for TLS connections; None if TLS is not offered."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on ``sockets``, or else on the configured address. Raises OSError if it is taken."""
        await self.lifespan.startup()
        listeners = sockets or listen_at(self.config.host, self.config.port)
        for listener in listeners:
            log.info("listening", extra={"host": self.config.host, "port": listener.getsockname()[1]})
        choose = choose_by_first_byte(self._tls)
        self.servers = [Intake(each, self._make, choose, self._throttle, bounds=OPERATIONS) for each in listeners]  # type: ignore[misc]
        self.started = True

    def _make(self) -> asyncio.Protocol:
        return _Connection(self.config, self.server_state, self.lifespan.state)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


def listen_at(host: str, port: int) -> list[socket.socket]:
    """Return sockets for each address of ``host``; "" and "::" are all addresses.

    Raises OSError if the port is taken.
    """
    if host in {"", "::"}:
        return [listen_everywhere(port)]
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [socket.create_server(address[:2], family=family, backlog=_BACKLOG) for family, _, _, _, address in found]


def listen_everywhere(port: int) -> socket.socket:
    """Return a socket for all addresses: IPv6 and IPv4, or IPv4 alone if there is no IPv6.

    One socket serves both, so that ``port`` 0 is one port. Raises OSError if the port is taken.
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
    """Return a server for the running loop. Call `serve`, and set ``should_exit`` to end it.

    Open requests then get ``patience`` seconds. A ``host`` of "" is all addresses, IPv4 and IPv6. With ``tls`` it
    accepts TLS besides plain HTTP, and each handshake waits for its ``turn``.
    """
    options: dict[str, Any] = {"ws": "none", "lifespan": "off", "access_log": False, "log_config": None}
    # kube-scheduler ignores these headers, and each would cost time in its scheduling cycle.
    options |= {"proxy_headers": False, "server_header": False, "date_header": False}
    options |= {"timeout_keep_alive": KEEP_ALIVE_SECONDS, "timeout_graceful_shutdown": patience}
    return Server(uvicorn.Config(app, host, port, http=_Connection, backlog=_BACKLOG, **options), tls, throttle)
