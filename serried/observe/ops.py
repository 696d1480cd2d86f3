"""The routes and the server for operations that both processes share: probes and metrics."""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import uvicorn
from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp

from serried.observe.bounded import BOUNDED, make_bounded
from serried.observe.intake import OPERATIONS, Intake, Turn, take_none, tell_apart

Readiness = Callable[[], Mapping[str, bool]]

log = logging.getLogger(__name__)

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
        return make_bounded(self)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def listen_at(host: str, port: int) -> list[socket.socket]:
    """Sockets on each address of ``host``; "" is every address. Raises OSError if the port is taken."""
    if not host:
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
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=BOUNDED,
        ws="none",
        lifespan="off",
        access_log=False,
        # kube-scheduler reads none of these headers, and each would take time in its scheduling cycle.
        proxy_headers=False,
        server_header=False,
        date_header=False,
        log_config=None,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=patience,
        backlog=_BACKLOG,
    )
    return Server(config, tls, turn)
