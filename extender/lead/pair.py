"""Whether the scheduler beside this extender may go on: what the probes of both containers ask.

kube-scheduler keeps its Lease as long as it renews it, whatever has become of its extender. So its liveness probe asks
here. If either of them does not answer, or the extender cannot plan (`leadership`), the kubelet restarts the
scheduler: it gives the Lease up, and the other pair takes over.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from serried.ops.server import render_checks
from serried.settings import Address

PATIENCE_SECONDS = 0.7
"""How long either may take to answer. The probe itself waits longer, so that it hears which of them did not."""

KEPT_SECONDS = 0.5
"""How long an answer counts, from when it was asked for: less than the second between the scheduler's probes."""

_REQUEST = b"GET %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def _make_unverified() -> ssl.SSLContext:
    # Nothing is told to it, and on loopback nobody else can be there: the scheduler signs its certificate itself.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Pair:
    """The scheduler and the extender of one Pod."""

    def __init__(
        self,
        filter_listen: Address,
        scheduler_livez: str,
        plans: Callable[[], bool],
        client_ca: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._filter = filter_listen

        self._secured = client_ca is not None
        """Whether filter wants certificates, of which we have none."""

        self._plans = plans
        """Whether the extender plans, or need not."""

        self._scheduler = urlsplit(scheduler_livez)
        """Where the scheduler says whether it is alive; empty if it is not asked."""

        self._unverified = _make_unverified()
        self._filters = _Shared(self.check_filter, clock)
        self._schedules = _Shared(self.check_scheduler, clock)

    async def check_filter(self) -> bool:
        """Whether filter would answer: any answer of its listener is one, for they all come from the same place."""
        if self._secured:
            return await _greet(self._filter.host, self._filter.port, self._unverified)
        return bool(await _ask(self._filter.host, self._filter.port, "/"))

    async def check_scheduler(self) -> bool:
        """Whether the scheduler says that it is alive; true if it is not to be asked."""
        url = self._scheduler
        if url.hostname is None or url.port is None:
            return True
        return await _ask(url.hostname, url.port, url.path, self._unverified if url.scheme == "https" else None) == 200

    def routes(self) -> APIRouter:
        """``/livez/filter`` for the extender's start, ``/livez/pair`` for the scheduler's liveness."""
        routes = APIRouter()

        @routes.get("/livez/filter", response_class=PlainTextResponse)
        async def livez_filter() -> PlainTextResponse:
            return render_checks({"filter": await self._filters.ask()})

        @routes.get("/livez/pair", response_class=PlainTextResponse)
        async def livez_pair() -> PlainTextResponse:
            filters, schedules = await asyncio.gather(self._filters.ask(), self._schedules.ask())
            return render_checks({"filter": filters, "scheduler": schedules, "planning": self._plans()})

        return routes


class _Shared:
    """One check for all who ask: anybody may, and each check costs filter's loop a connection."""

    def __init__(self, check: Callable[[], Awaitable[bool]], clock: Callable[[], float]) -> None:
        self._check = check
        self._clock = clock
        self._last: asyncio.Future[bool] | None = None
        self._asked_at = 0.0

    async def ask(self) -> bool:
        """What the check that is under way says, or one that was asked for a moment ago."""
        now = self._clock()
        if self._last is None or (self._last.done() and now >= self._asked_at + KEPT_SECONDS):
            self._last = asyncio.ensure_future(self._check())
            self._asked_at = now
        # One who hangs up must not take the answer from the others.
        return await asyncio.shield(self._last)


async def _greet(host: str, port: int, tls: ssl.SSLContext) -> bool:
    """Whether somebody takes part in a handshake, if only to say that a certificate is missing."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=tls)
            writer.close()
    except ssl.SSLError:
        return True
    except OSError:
        return False
    return True


async def _ask(host: str, port: int, path: str, tls: ssl.SSLContext | None = None) -> int:
    """The status of the answer; 0 if none comes."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            try:
                writer.write(_REQUEST % path.encode())
                said = (await reader.readline()).split()
            finally:
                writer.close()
    except (OSError, ValueError):  # TimeoutError is an OSError
        return 0
    return int(said[1]) if len(said) > 1 and said[1].isdigit() else 0
