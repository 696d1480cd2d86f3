"""The four verbs as raw handlers: bytes in, a decision of the desk, bytes out.

kube-scheduler reads no body of an answer that is not 200, so errors travel in the protocol's own ``Error`` field where
it has one. Nothing here raises: an exception would be a traceback to us and a blank 500 to the scheduler.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from extender.desk import Desk
from extender.payloads import (
    MOST_BYTES,
    BadRequest,
    read_args,
    read_bind,
    read_preemption,
    write_error,
    write_filter,
    write_preemption,
    write_scores,
)

log = logging.getLogger(__name__)


class Timer(Protocol):
    """Told how long each verb took, for the metrics."""

    def verb(self, name: str, seconds: float) -> None:
        """One call was answered."""


class Verbs:
    """Handlers over one desk. ``active`` says whether this instance may answer at all."""

    def __init__(self, desk: Desk, active: Callable[[], bool], timer: Timer, clock: Callable[[], float]) -> None:
        self._desk, self._active, self._timer, self._clock = desk, active, timer, clock

    def app(self) -> Starlette:
        """An ASGI application with the four verbs."""
        handlers = {"filter": self.filter, "prioritize": self.prioritize, "preempt": self.preempt, "bind": self.bind}
        return Starlette(routes=[Route(f"/{name}", handler, methods=["POST"]) for name, handler in handlers.items()])

    async def filter(self, request: Request) -> Response:
        """POST /filter: ExtenderArgs to ExtenderFilterResult."""
        start = self._clock()
        try:
            args = read_args(await self._read(request))
            return _json(write_filter(self._desk.filter(args.pod, args.names), args))
        except Exception as error:  # noqa: BLE001 - see the module's contract
            return _refuse("filter", error, 200)
        finally:
            self._timer.verb("filter", self._clock() - start)

    async def prioritize(self, request: Request) -> Response:
        """POST /prioritize: ExtenderArgs to HostPriorityList. The protocol has no error here: the status says it."""
        try:
            args = read_args(await self._read(request))
            return _json(write_scores(self._desk.prioritize(args.names)))
        except Exception as error:  # noqa: BLE001 - see the module's contract
            return _refuse("prioritize", error, 400)

    async def preempt(self, request: Request) -> Response:
        """POST /preempt: ExtenderPreemptionArgs to ExtenderPreemptionResult; no error in the protocol here either."""
        try:
            args = read_preemption(await self._read(request))
            return _json(write_preemption(args, self._desk.preempt(args.pod, args.victims)))
        except Exception as error:  # noqa: BLE001 - see the module's contract
            return _refuse("preempt", error, 400)

    async def bind(self, request: Request) -> Response:
        """POST /bind: ExtenderBindingArgs to ExtenderBindingResult; a member's call stays open until its gang binds."""
        start = self._clock()
        try:
            args = read_bind(await self._read(request))
            return _json(write_error(await self._desk.bind(args, lambda: _hangup(request))))
        except Exception as error:  # noqa: BLE001 - see the module's contract
            return _refuse("bind", error, 200)
        finally:
            self._timer.verb("bind", self._clock() - start)

    async def _read(self, request: Request) -> bytes:
        if not self._active():
            raise _NotActiveError("this instance is not active: its scheduler does not hold the Lease")
        chunks, size = [], 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > MOST_BYTES:
                raise BadRequest(f"the body is larger than {MOST_BYTES} bytes")
            chunks.append(chunk)
        return b"".join(chunks)


class _NotActiveError(Exception):
    """Another instance must answer; the connection is closed so that the scheduler's next one finds it."""


async def _hangup(request: Request) -> None:
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return


def _refuse(verb: str, error: Exception, status: int) -> Response:
    if isinstance(error, _NotActiveError):
        return _json(write_error(f"serried {verb}: {error}"), 503, {"Connection": "close"})
    if isinstance(error, ClientDisconnect):
        return _json(write_error(f"serried {verb}: the client hung up"), status)
    if isinstance(error, BadRequest):
        # The rest of an oversized body is still on the wire: only a new connection is clean.
        return _json(write_error(f"serried {verb}: {error}"), status, {"Connection": "close"})
    log.error("a verb failed", extra={"verb": verb}, exc_info=error)
    return _json(
        write_error(f"serried {verb}: internal error ({type(error).__name__}), see the extender's log"), status
    )


def _json(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")
