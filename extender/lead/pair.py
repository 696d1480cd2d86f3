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
"""The timeout of each check, in seconds.

It is shorter than the probe's, so that the answer can name the failed check.
"""

REUSE_SECONDS = 0.5
"""The time for which the result of a check is reused, in seconds: less than the period of kube-scheduler's probe."""

_REQUEST = b"GET %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def _make_unverified() -> ssl.SSLContext:
    # kube-scheduler signs its certificate itself. On loopback no other process can answer, and no secret is sent.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Pair:
    """The checks of one Pod's kube-scheduler and extender.

    ``filter_listen`` is the address of the filter listener. ``scheduler_livez`` is the URL of kube-scheduler's /livez,
    "" if it is not to be checked. ``client_ca`` is the file of the CA for callers; None if filter is plain HTTP.
    ``may_keep_leading`` is `extender.lead.leadership.Idleness.may_keep_leading`: False if kube-scheduler leads, and the
    extender has not planned for too long. ``clock`` returns seconds.
    """

    def __init__(
        self,
        filter_listen: Address,
        scheduler_livez: str,
        may_keep_leading: Callable[[], bool],
        client_ca: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._filter = filter_listen

        self._secured = client_ca is not None
        """True if the filter listener demands client certificates.

        The check has none, so it only does a TLS handshake.
        """

        self._may_keep_leading = may_keep_leading
        """Returns False if kube-scheduler leads and the extender has not planned for too long."""

        self._scheduler = urlsplit(scheduler_livez)
        """The URL of kube-scheduler's /livez; empty if it is not to be checked."""

        self._unverified = _make_unverified()
        self._filters = _SharedCheck(self.check_filter, clock)
        self._schedules = _SharedCheck(self.check_scheduler, clock)

    async def check_filter(self) -> bool:
        """Return whether the filter listener answers in time.

        Any status is an answer. If it demands client certificates, of which this check has none, a TLS handshake is
        one, too.
        """
        if self._secured:
            return await _answers_tls(self._filter.host, self._filter.port, self._unverified)
        return bool(await _get_status(self._filter.host, self._filter.port, "/"))

    async def check_scheduler(self) -> bool:
        """Return whether kube-scheduler's /livez answers with status 200; True if it is not to be checked."""
        url = self._scheduler
        if url.hostname is None or url.port is None:
            return True
        return (
            await _get_status(url.hostname, url.port, url.path, self._unverified if url.scheme == "https" else None)
            == 200
        )

    def routes(self) -> APIRouter:
        """Return the routes for the probes.

        ``/livez/filter`` is for the extender's startup probe. ``/livez/pair`` is for kube-scheduler's liveness probe.
        """
        routes = APIRouter()

        @routes.get("/livez/filter", response_class=PlainTextResponse)
        async def livez_filter() -> PlainTextResponse:
            return render_checks({"filter": await self._filters.ask()})

        @routes.get("/livez/pair", response_class=PlainTextResponse)
        async def livez_pair() -> PlainTextResponse:
            filters, schedules = await asyncio.gather(self._filters.ask(), self._schedules.ask())
            return render_checks({"filter": filters, "scheduler": schedules, "planning": self._may_keep_leading()})

        return routes


class _SharedCheck:
    """A check of which concurrent callers share one run.

    The routes need no authentication, so without this any client could open many connections to the checked server.
    """

    def __init__(self, check: Callable[[], Awaitable[bool]], clock: Callable[[], float]) -> None:
        self._check = check
        self._clock = clock
        self._last: asyncio.Future[bool] | None = None
        self._asked_at = 0.0

    async def ask(self) -> bool:
        """Return the result of the check.

        It is that of the last run if that is under way or began less than `REUSE_SECONDS` ago; otherwise of a new run.
        """
        now = self._clock()
        if self._last is None or (self._last.done() and now >= self._asked_at + REUSE_SECONDS):
            self._last = asyncio.ensure_future(self._check())
            self._asked_at = now
        # A caller that disconnects must not cancel the check of the others.
        return await asyncio.shield(self._last)


async def _answers_tls(host: str, port: int, tls: ssl.SSLContext) -> bool:
    """Return whether the server answers a TLS handshake in time. A rejection for want of a certificate counts, too."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=tls)
            writer.close()
    except ssl.SSLError:
        return True
    except OSError:
        return False
    return True


async def _get_status(host: str, port: int, path: str, tls: ssl.SSLContext | None = None) -> int:
    """Send GET without a body, and return the status code; 0 if there is no valid answer in time."""
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
