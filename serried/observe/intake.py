"""Connections of the listener for operations: plain HTTP and TLS on one port, told apart by their first byte.

The kubelet's probes and a port-forward come by plain HTTP, tokens by TLS; who may use which is for others to say.
"""

import asyncio
import logging
import socket
import ssl
from collections import defaultdict
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

_FIRST_BYTE_SECONDS = 20.0
"""How long a new connection may say nothing: browsers open some ahead."""

_HANDSHAKE_SECONDS = 10.0

MOST_FROM_ONE = 128
"""How many connections one address may have open, so that the others stay served."""

_PAUSE_SECONDS = 0.1
"""The rest after an error such as a lack of file descriptors."""

_TLS_BEGIN = b"\x16"
"""With what every connection by TLS begins, and no request by HTTP."""

Turn = Callable[[], Awaitable[None]]
"""Returns when there is time for a handshake, which is work that anybody can ask for."""

Make = Callable[[Callable[[], None]], asyncio.Protocol]
"""Makes the protocol of a connection, which calls what it is given when the connection has ended."""


async def take_none() -> None:
    """The turn where nobody has to wait."""


class Intake:
    """Takes in what comes to ``listener`` until it is closed. Without ``tls`` that is plain HTTP only."""

    def __init__(self, listener: socket.socket, make: Make, tls: ssl.SSLContext | None, turn: Turn) -> None:
        self._turn = turn
        self.sockets = [listener]
        self._make = make
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._open: defaultdict[str, set[object]] = defaultdict(set)
        """Connections by address."""
        self._tasks: set[asyncio.Task[None]] = set()
        listener.settimeout(0)
        self._accepting = self._loop.create_task(self._accept(listener), name="operations: connections")

    def close(self) -> None:
        """Take nothing more in."""
        for task in (self._accepting, *self._tasks):
            task.cancel()
        for listener in self.sockets:
            listener.close()

    async def wait_closed(self) -> None:
        """Return when nobody is being taken in any more."""
        await asyncio.gather(self._accepting, *self._tasks, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, address = await self._loop.sock_accept(listener)
            except OSError as error:
                log.warning("a connection cannot be accepted", extra={"err": str(error)})
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if len(self._open[address[0]]) >= MOST_FROM_ONE:
                connection.close()
                continue
            task = self._loop.create_task(self._take_in(connection, self._enter(address[0])))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _enter(self, address: str) -> Callable[[], None]:
        """Count a connection; returns what takes it off again, once."""
        connection = object()
        self._open[address].add(connection)

        def leave() -> None:
            self._open[address].discard(connection)
            if not self._open[address]:
                del self._open[address]

        return leave

    async def _take_in(self, connection: socket.socket, leave: Callable[[], None]) -> None:
        try:
            connection.settimeout(0)
            begins_by_tls = await self._hear(connection) == _TLS_BEGIN
            if begins_by_tls:
                await self._turn()
            await self._loop.connect_accepted_socket(
                lambda: self._make(leave),
                connection,
                ssl=self._tls if begins_by_tls else None,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS if begins_by_tls and self._tls else None,
            )
        except (OSError, TimeoutError):
            leave()
            connection.close()
        except asyncio.CancelledError:
            leave()
            connection.close()
            raise

    async def _hear(self, connection: socket.socket) -> bytes:
        """The first byte, which stays there to be read; raises TimeoutError if none comes."""
        heard = asyncio.Event()
        self._loop.add_reader(connection.fileno(), heard.set)
        try:
            async with asyncio.timeout(_FIRST_BYTE_SECONDS):
                await heard.wait()
        finally:
            self._loop.remove_reader(connection.fileno())
        return connection.recv(1, socket.MSG_PEEK)
