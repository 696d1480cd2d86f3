"""Health checks of a Pod with a kube-scheduler and its extender, for the probes of both containers.

kube-scheduler keeps its Lease as long as it renews it, even while its extender does not answer. So its liveness probe
asks `Pair` for ``/livez/pair``. If kube-scheduler or filter does not answer, or the extender is idle for too long
(`leadership.Idleness`), the kubelet restarts kube-scheduler. It then releases the Lease, and the other pair takes over.
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
"""The timeout of each check, in seconds. The probe's own timeout is longer, so its answer names the failed check."""

KEPT_SECONDS = 0.5
"""The time for which a result is reused, in seconds: less than the second between kube-scheduler's probes."""

_REQUEST = b"GET %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def _make_unverified() -> ssl.SSLContext:
    # kube-scheduler signs its certificate itself. On loopback no other process can answer, and no secret is sent.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Pair:
    """The checks of one Pod's kube-scheduler and extender. ``clock`` is in seconds."""

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
        """True if the filter listener wants client certificates. The probe has none."""

        self._plans = plans
        """Returns False if the extender should plan and has not for too long."""

        self._scheduler = urlsplit(scheduler_livez)
        """The URL of kube-scheduler's /livez; empty if it is not to be checked."""

        self._unverified = _make_unverified()
        self._filters = _Shared(self.check_filter, clock)
        self._schedules = _Shared(self.check_scheduler, clock)

    async def check_filter(self) -> bool:
        """Return whether the filter listener answers a request, with any status, or a TLS handshake."""
        if self._secured:
            return await _greet(self._filter.host, self._filter.port, self._unverified)
        return bool(await _ask(self._filter.host, self._filter.port, "/"))

    async def check_scheduler(self) -> bool:
        """Return whether kube-scheduler's /livez answers with 200; True if no URL was set."""
        url = self._scheduler
        if url.hostname is None or url.port is None:
            return True
        return await _ask(url.hostname, url.port, url.path, self._unverified if url.scheme == "https" else None) == 200

    def routes(self) -> APIRouter:
        """Return the routes ``/livez/filter``, the extender's startup probe, and ``/livez/pair``, the scheduler's."""
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
    """One check whose result concurrent callers share: any client may call, and each check opens a connection."""

    def __init__(self, check: Callable[[], Awaitable[bool]], clock: Callable[[], float]) -> None:
        self._check = check
        self._clock = clock
        self._last: asyncio.Future[bool] | None = None
        self._asked_at = 0.0

    async def ask(self) -> bool:
        """Return the result of the check that is running, or that was started less than `KEPT_SECONDS` ago."""
        now = self._clock()
        if self._last is None or (self._last.done() and now >= self._asked_at + KEPT_SECONDS):
            self._last = asyncio.ensure_future(self._check())
            self._asked_at = now
        # A caller that disconnects must not cancel the check of the others.
        return await asyncio.shield(self._last)


async def _greet(host: str, port: int, tls: ssl.SSLContext) -> bool:
    """Return whether the server takes part in a TLS handshake, if only to demand a certificate."""
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
    """Send GET, and return the status code; 0 if there is no answer in time."""
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
