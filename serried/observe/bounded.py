"""uvicorn's connections with bounds: of their number, of a request's head, of the time in which it has to arrive.

uvicorn itself ends a connection that is idle after an answer, and no other: one that sends nothing, half a request, or
does not read its answer, stays for ever.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

log = logging.getLogger(__name__)

_MOST = 512
"""How many connections there may be; probes, scrapers and people need far fewer."""

_ARRIVAL_SECONDS = 20.0
"""How long a request may take to arrive, from the connection's or its own first byte to its last."""

_READING_SECONDS = 20.0
"""How long a client may leave unread what is written for it, beyond what buffers hold."""

_LINGER_SECONDS = 2.0
"""How long the rest of a refused request is read and dropped: a reset would take the answer with it."""

_MAX_HEAD_BYTES = 1 << 16


class _Alarm:
    """Rings once, unless it is stopped before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._ring)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Connection(HttpToolsProtocol):
    """One connection. Of too many, the one that was of use longest ago ends: first of those that wait for no answer."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._arrival = _Alarm(self.loop, partial(self.give_up, "the request does not arrive"))
        """Runs while a request has not arrived whole."""

        self._reading = _Alarm(self.loop, partial(self.give_up, "the answer is not read"))
        """Runs while the client does not read."""

        self._head_bytes = 0
        """How much has arrived since the last head was complete."""

        self._refused = False
        """Whether what still arrives is dropped."""

        self._since = self.loop.time()
        """When the connection was of use last, in loop seconds."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(cast("asyncio.Transport", _Patient(transport)))
        self._arrival.start(_ARRIVAL_SECONDS)
        if len(self.connections) > _MOST:
            others = [each for each in self.connections if isinstance(each, _Connection) and each is not self]
            oldest = min(others, key=_find_rank)
            self.connections.discard(oldest)  # it ends later in this turn of the loop, in which more may come
            oldest.give_up("there are too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrival.stop()
        self._reading.stop()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return  # it was told so, and its parser understands nothing more
        self._head_bytes += len(data)
        self._arrival.start(_ARRIVAL_SECONDS)
        super().data_received(data)
        if self._head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._since = self.loop.time()
        self._arrival.start(_ARRIVAL_SECONDS)

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        self._arrival.stop()
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading.start(_READING_SECONDS)

    def resume_writing(self) -> None:
        self._reading.stop()
        super().resume_writing()

    @property
    def rank(self) -> tuple[bool, float]:
        """Which of two gives way: the lower."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete, self._since

    def give_up(self, why: str) -> None:
        """End at once."""
        log.warning("a connection is given up", extra={"why": why})
        self.transport.abort()

    def _refuse_head(self) -> None:
        log.warning("a connection is given up", extra={"why": "the request's head is too large"})
        self._refused = True
        self._arrival.stop()
        self.transport.write(STATUS_LINE[431] + b"content-length: 0\r\nconnection: close\r\n\r\n")
        if self.transport.can_write_eof():  # TLS has no half of a connection
            self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)


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


class _Counted(_Connection):
    """One connection, which says when it has ended."""

    def __init__(self, leave: Callable[[], None], **how: Any) -> None:
        super().__init__(**how)
        self._leave = leave

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._leave()


def make_bounded(leave: Callable[[], None], server: uvicorn.Server) -> asyncio.Protocol:
    """A connection of a server that has started; it calls ``leave`` at its end."""
    return _Counted(leave, config=server.config, server_state=server.server_state, app_state=server.lifespan.state)


BOUNDED: type[asyncio.Protocol] = _Connection
"""For ``uvicorn.Config.http``."""
