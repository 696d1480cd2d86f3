"""uvicorn's connections with bounds: of their number, of a request's head, of the time in which it has to arrive.

uvicorn itself ends a connection that is idle after an answer, and no other: one that sends nothing, half a request, or
does not read its answer, stays for ever. And it begins whatever one read of a socket holds, thousands of requests.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from serried.observe.intake import MOST_FROM_ONE

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

GONE = "serried.gone"
"""Where a request's scope has the asyncio.Event that is set when its connection has ended.

To ask ``receive`` for that would read the body, and promise to.
"""

_MOST_WAITING = 16
"""How many requests may wait behind the one that is being answered; clients that wait for answers have none."""


class _TooManyError(Exception):
    """So many requests wait on one connection that no other is read."""


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
    """One connection.

    Of too many, of one address or in all, the one that was of use longest ago ends: first of those that wait for no
    answer.
    """

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

        self._answered: RequestResponseCycle | None = None
        """The request that is being answered, or was last; uvicorn knows the one that has come last."""

        self._since = self.loop.time()
        """When the connection was of use last, in loop seconds."""

        self._gone = asyncio.Event()
        """Set at its end."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(cast("asyncio.Transport", _Patient(transport)))
        self._arrival.start(_ARRIVAL_SECONDS)
        others = [each for each in self.connections if isinstance(each, _Connection) and each is not self]
        neighbours = [each for each in others if each.address == self.address]
        if len(neighbours) >= MOST_FROM_ONE:
            self._make_room(neighbours)
        elif len(others) >= _MOST:
            self._make_room(others)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        self._arrival.stop()
        self._reading.stop()
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        if self._answered is not None:
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_done():
            return  # it was told so, and its parser understands nothing more
        self._head_bytes += len(data)
        self._arrival.start(_ARRIVAL_SECONDS)
        super().data_received(data)
        if self._head_bytes > _MAX_HEAD_BYTES and not self._is_done():
            self._refuse_head()

    def _is_done(self) -> bool:
        """Whether what arrives is dropped."""
        return self._refused or self.transport.is_closing()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _MOST_WAITING:
            self._end_after_answers()
            raise _TooManyError  # which ends the parsing of what has arrived
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[GONE] = self._gone
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

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, if it was read."""
        if not self._refused:
            super().send_400_response(msg)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading.start(_READING_SECONDS)

    def resume_writing(self) -> None:
        self._reading.stop()
        super().resume_writing()

    @property
    def address(self) -> str:
        """Where it comes from."""
        return self.client[0] if self.client else ""

    @property
    def rank(self) -> tuple[bool, float]:
        """Which of two gives way: the lower."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete, self._since

    def give_up(self, why: str) -> None:
        """End at once."""
        log.warning("a connection is given up", extra={"why": why})
        self.transport.abort()

    def _make_room(self, others: Sequence["_Connection"]) -> None:
        oldest = min(others, key=_find_rank)
        self.connections.discard(oldest)  # it ends later in this turn of the loop, in which more may come
        oldest.give_up("there are too many connections")

    def _end_after_answers(self) -> None:
        self._refused = True
        self._arrival.stop()
        self.cycle.keep_alive = False

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

    uvicorn learns with the loop's next turn that the client has hung up, and never that a refusal was the last word
    while it was at work on an answer. uvloop raises, and that would be logged as a failure of ours.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not (self._ended or self._transport.is_closing()):
            self._transport.write(data)

    def write_eof(self) -> None:
        self._ended = True
        self._transport.write_eof()


def _find_rank(connection: _Connection) -> tuple[bool, float]:
    return connection.rank


def make_bounded(server: uvicorn.Server) -> asyncio.Protocol:
    """A connection of a server that has started."""
    return _Connection(server.config, server.server_state, server.lifespan.state)


BOUNDED: type[asyncio.Protocol] = _Connection
"""For ``uvicorn.Config.http``."""
