"""The server for operations of both processes: uvicorn on a port that anybody in the cluster may reach.

Plain HTTP and TLS come to one port, and the listeners of the verbs by TLS take in their callers in the same way:
silence, halves of handshakes, thousands of them at once. Whoever opens many takes no handshake from others: each
address has its bound, waits behind itself alone, and of too many the first to go is one of the address that has most.
It is the oldest one: behind one address there may be many, as a node's probes and what its pods send, and who means it
is done soon.

Then a connection is uvicorn's, with two bounds that uvicorn lacks. Its own limit of concurrency would refuse probes,
too: here of too many connections the one that was of use longest ago ends. And uvicorn waits for ever for the rest of a
request, and for whoever does not read the answer.
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
"""How long a new connection may say nothing: browsers open some ahead."""

_HANDSHAKE_SECONDS = 10.0

_WAITING_SECONDS = 10.0
"""How long a connection may wait for its handshake: Go's clients have given up by then."""

_HANDSHAKES_OF_ONE = 32
"""How many handshakes of one address may be under way: each holds far more memory than a connection that waits."""

MOST_FROM_ONE = 128
"""How many connections of one address may be on their way in at a port for operations."""

_MOST_AT_ONCE = 1024
"""How many connections may be on their way in at a port for operations."""

_MOST = 256
"""How many connections there may be; probes, scrapers and people need far fewer."""

_PATIENCE_SECONDS = 20.0
"""How long a client may take to send a request that it has begun, or to read what buffers do not hold."""

_MOST_BEHIND = 16
"""How many requests in a row may have come before the answer to the one before; clients that wait have none."""

_PAUSE_SECONDS = 0.1
"""The rest after an error such as a lack of file descriptors."""

_TLS_BEGIN = b"\x16"
"""With what every connection by TLS begins, and no request by HTTP."""

Turn = Callable[[], Awaitable[None]]
"""Returns when there is time for a handshake, which is work that anybody can ask for."""

Make = Callable[[], asyncio.Protocol]
"""Makes the protocol of a connection; of those that are in, it is for the protocols to bound the number."""

Choose = Callable[[bytes], ssl.SSLContext | None]
"""By what TLS a connection goes on that begins with this byte; None for plain HTTP."""


def tell_apart(tls: ssl.SSLContext | None) -> Choose:
    """Plain HTTP and TLS on one port; without ``tls`` it is plain HTTP only.

    The kubelet's probes and a port-forward come by plain HTTP, tokens by TLS; who may use which is for others to say.
    """
    return lambda first: tls if first == _TLS_BEGIN else None


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many connections may be on their way in."""

    from_one: int
    """How many of one address; of more the oldest goes."""

    at_once: int
    """How many in all; of more the oldest goes, of the address that has most."""


OPERATIONS = Bounds(MOST_FROM_ONE, _MOST_AT_ONCE)


async def take_none() -> None:
    """The turn where nobody has to wait."""


class _Address:
    """What comes from one address."""

    def __init__(self) -> None:
        self.entering: dict[asyncio.Task[None], None] = {}
        """What takes in its connections, first the oldest."""
        self.next = asyncio.Lock()
        """Whoever has it waits for a turn. One alone does, so one address gets its turn after the other."""
        self.handshakes = asyncio.Semaphore(_HANDSHAKES_OF_ONE)


class Intake:
    """Takes in what comes to ``listener`` until it is closed."""

    def __init__(self, listener: socket.socket, make: Make, choose: Choose, turn: Turn, *, bounds: Bounds) -> None:
        self._turn = turn
        self.sockets = [listener]
        self._make = make
        self._choose = choose
        self._bounds = bounds
        self._loop = asyncio.get_running_loop()
        self._addresses: defaultdict[str, _Address] = defaultdict(_Address)
        """Those from which a connection is on its way in."""
        self._entering = 0
        """How many connections are on their way in."""
        listener.settimeout(0)
        self._accepting = self._loop.create_task(self._accept(listener), name="intake: connections")

    def close(self) -> None:
        """Take nothing more in."""
        for task in (self._accepting, *self._list_tasks()):
            task.cancel()
        for listener in self.sockets:
            listener.close()

    async def wait_closed(self) -> None:
        """Return when nobody is being taken in any more."""
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
            self._let_enter(connection, address[0])
            # Many may stand in line: what else the loop has to do comes between any two.
            await asyncio.sleep(0)

    def _let_enter(self, connection: socket.socket, name: str) -> None:
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
            tls = self._choose(await self._hear(connection))
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
                await self._turn()
            patience.reschedule(None)
            await self._loop.connect_accepted_socket(
                self._make, connection, ssl=tls, ssl_handshake_timeout=_HANDSHAKE_SECONDS
            )

    async def _hear(self, connection: socket.socket) -> bytes:
        """The first byte, which stays there to be read; raises OSError if none comes."""
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
    """One connection.

    Of too many the one that was of use longest ago ends: first of those that wait for no answer. h11 bounds a request's
    head, and takes the next request when the one before is answered.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        self._late: asyncio.TimerHandle | None = None
        """Runs while we wait for the client."""

        self._since = self.loop.time()
        """When the connection was of use last, in loop seconds."""

        self._behind = 0
        """How many requests in a row have come before the answer to the one before."""

        super().connection_made(cast("asyncio.Transport", _Patient(transport)))
        self._watch_client()
        if len(self.connections) > _MOST:
            others = [each for each in self.connections if isinstance(each, _Connection) and each is not self]
            oldest = min(others, key=_find_rank)
            self.connections.discard(oldest)  # it ends later in this turn of the loop, in which more may come
            oldest.give_up("there are too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        if self._late is not None:
            self._late.cancel()

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():  # it was told so, and its parser understands nothing more
            self._since = self.loop.time()
            super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        self._watch_client()

    def _watch_client(self) -> None:
        """Give the client a time for what it has begun, and none for a rest between two requests."""
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
        """Answer what is no HTTP, unless an answer has begun; nothing else is answered any more."""
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
        """Which of two gives way: the lower."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete, self._since

    def give_up(self, why: str) -> None:
        """End at once."""
        log.warning("a connection is given up", extra={"why": why})
        self.transport.abort()


class _Patient:
    """A transport that drops what is written after its end.

    uvicorn learns with the loop's next turn that the client has hung up. uvloop raises until then, and that would be
    logged as a failure of ours.
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
"""How many connections may wait to be accepted."""

KEEP_ALIVE_SECONDS = 120
"""How long idle connections stay open: longer than the 90 s of Go's clients, whose request would be lost otherwise."""


def ops_routes(readiness: Readiness, render: Callable[[], bytes]) -> APIRouter:
    """``/livez``, ``/readyz`` (with each condition of ``readiness`` by name) and ``/metrics``.

    Liveness only shows that the event loop turns: a restart helps against nothing else.
    """
    routes = APIRouter()

    @routes.get("/livez", response_class=PlainTextResponse)
    async def livez() -> str:
        return "ok\n"

    @routes.get("/readyz", response_class=PlainTextResponse)
    async def readyz() -> PlainTextResponse:
        return tell_checks(readiness())

    @routes.get("/metrics")
    async def metrics() -> Response:
        return Response(render(), media_type=CONTENT_TYPE_LATEST)

    return routes


def tell_checks(checks: Mapping[str, bool]) -> PlainTextResponse:
    """The answer to a probe: 200 if all of its checks pass, and each of them by name."""
    lines = [f"[{'+' if passed else '-'}]{name} {'ok' if passed else 'not ready'}\n" for name, passed in checks.items()]
    return PlainTextResponse("".join(lines) or "ok\n", 200 if all(checks.values()) else 503)


class Server(uvicorn.Server):
    """uvicorn beside other work: signals belong to the process, which sets ``should_exit``."""

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None, turn: Turn) -> None:
        super().__init__(config)
        self._turn = turn
        self._tls = tls
        """For those who come by TLS; None if nobody can."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, on ``sockets`` or else on the address. Raises OSError if that is taken."""
        await self.lifespan.startup()
        listeners = sockets or listen_at(self.config.host, self.config.port)
        for listener in listeners:
            log.info("listening", extra={"host": self.config.host, "port": listener.getsockname()[1]})
        choose = tell_apart(self._tls)
        self.servers = [Intake(each, self._make, choose, self._turn, bounds=OPERATIONS) for each in listeners]  # type: ignore[misc]
        self.started = True

    def _make(self) -> asyncio.Protocol:
        return _Connection(self.config, self.server_state, self.lifespan.state)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def listen_at(host: str, port: int) -> list[socket.socket]:
    """Sockets on each address of ``host``; "" and "::" are every address. Raises OSError if the port is taken."""
    if host in {"", "::"}:
        return [listen_everywhere(port)]
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [socket.create_server(address[:2], family=family, backlog=_BACKLOG) for family, _, _, _, address in found]


def listen_everywhere(port: int) -> socket.socket:
    """A socket on every address of this machine: IPv6 and IPv4, or IPv4 alone where there is no IPv6.

    One socket for both, so that ``port`` 0 is one port. Raises OSError if the port is taken.
    """
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                raise
    return socket.create_server(("", port), backlog=_BACKLOG)


def make_server(
    app: ASGIApp, host: str, port: int, patience: int = 5, tls: ssl.SSLContext | None = None, turn: Turn = take_none
) -> Server:
    """A server for the running loop: `serve` it, and set ``should_exit`` to end it.

    Open requests get ``patience`` seconds then. A ``host`` of "" is every address, IPv4 and IPv6. With ``tls`` it
    understands TLS as well as plain HTTP; each handshake waits for its ``turn``.
    """
    options: dict[str, Any] = {"ws": "none", "lifespan": "off", "access_log": False, "log_config": None}
    # kube-scheduler reads none of these headers, and each would take time in its scheduling cycle.
    options |= {"proxy_headers": False, "server_header": False, "date_header": False}
    options |= {"timeout_keep_alive": KEEP_ALIVE_SECONDS, "timeout_graceful_shutdown": patience}
    return Server(uvicorn.Config(app, host, port, http=_Connection, backlog=_BACKLOG, **options), tls, turn)
