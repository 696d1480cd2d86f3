"""How listeners take in what anybody can send them: silence, halves of handshakes, thousands of them at once.

Whoever opens many takes nothing from others: each address has its bound, waits for handshakes behind itself alone, and
of too many the first to go is one of the address that has most. It is the oldest one: behind one address there may be
many, as a node's probes and what its pods send, and who means it is done soon.
"""

import asyncio
import logging
import socket
import ssl
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

log = logging.getLogger(__name__)

_FIRST_BYTE_SECONDS = 20.0
"""How long a new connection may say nothing: browsers open some ahead."""

_HANDSHAKE_SECONDS = 10.0

_WAITING_SECONDS = 10.0
"""How long a connection may wait for its handshake: Go's clients have given up by then."""

_HANDSHAKES_OF_ONE = 32
"""How many handshakes of one address may be under way: each holds far more memory than a connection that waits."""

MOST_FROM_ONE = 128
"""How many connections of one address may be on their way in at a port for operations, and how many may be open."""

_MOST_AT_ONCE = 1024
"""How many connections may be on their way in at a port for operations."""

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
