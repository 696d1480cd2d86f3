"""The life of a Serried process (`run_process`): credentials, discovery, work, listeners, signals, end.

The work is built for the API level that the cluster serves. When that changes, the work is ended as by a signal, and
built again: all state that must survive is in the API, or is passed on by the builder.

The operations listener is open from the start: ``/livez`` must not depend on the API server, because in an outage the
kubelet would restart processes that a restart cannot help.
"""

import asyncio
import gc
import logging
import resource
import signal
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import uvloop
from fastapi import APIRouter, FastAPI

from serried import __version__
from serried.api.level import ApiLevel
from serried.kube.auth import CredentialsError, load_credentials
from serried.kube.client import ApiClient
from serried.kube.discovery import Discovery
from serried.kube.errors import ApiError
from serried.kube.retry import Attempts, Backoff
from serried.ops.access import OPEN_PATHS, Guard, Reviews, TokenDemand
from serried.ops.log import configure_logging
from serried.ops.metrics import Metrics
from serried.ops.server import Server, make_server, ops_routes
from serried.ops.slices import Pace, Paced
from serried.ops.tls import CertificateError, CertificateFiles, ReloadingContext, make_self_signed
from serried.settings import Address, CommonSettings

log = logging.getLogger(__name__)

_DISCOVERY = Backoff(first=2.0, cap=2.0)
"""The constant pause between attempts to discover the served API."""

_SECONDS_BETWEEN_DISCOVERIES = 30.0
"""The interval of further discoveries. A change must be found twice in a row before it counts.

While a control plane is upgraded, its API servers may serve different APIs.
"""


class Work(Protocol):
    """The extender or controller of a process, for as long as the cluster serves one version of the PodGroup API."""

    async def run(self) -> None:
        """Work until cancelled, with listeners of its own if any. Nothing of it continues after that."""

    def readiness(self) -> Mapping[str, bool]:
        """Return the conditions of ``/readyz``."""

    def routes(self) -> Sequence[APIRouter]:
        """Return the routes that it adds to the operations listener."""

    def note_refused(self, level: ApiLevel) -> None:
        """Note that the API in use is the same, but the versions that cannot be used, or the reasons, have changed."""


Build = Callable[[ApiClient, ApiLevel], Work]
"""Creates the work for an API level. The work for the previous level has ended before."""


def run_process(name: str, settings: CommonSettings, ops: Address, metrics: Metrics, build: Build) -> int:
    """Run until SIGTERM or SIGINT. Return the exit code. ``name`` is extender or controller."""
    configure_logging(settings.log_level)
    raise_file_limit()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(Process(name, settings, metrics).run(ops, build))
    except CredentialsError as error:
        log.error("no access to a cluster", extra={"err": str(error)})
        return 1
    except CertificateError as error:
        log.error("certificates that cannot be used", extra={"err": str(error)})
        return 1


def make_operations_tls(settings: CommonSettings, ops: Address) -> ssl.SSLContext | None:
    """Return the TLS context of the operations listener; None if it listens on loopback only.

    Raises CertificateError.
    """
    if settings.tls_cert_file is not None:
        return ReloadingContext(CertificateFiles(settings.tls_cert_file, settings.tls_private_key_file or ""))
    return None if ops.is_loopback else make_self_signed()


def freeze_memory() -> None:
    """Exempt all present objects from garbage collection. Call it when the caches are filled.

    The caches live long, and a full collection of them would be a pause without any answers.
    """
    gc.unfreeze()  # objects that were exempted at an earlier API level
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def raise_file_limit() -> None:
    """Raise the limit of open files to its maximum, because each member that waits at bind needs a connection.

    Many container runtimes set 1,024, for old programs that cannot handle more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Process:
    """A running process: its operations listener, and the work behind it."""

    def __init__(self, name: str, settings: CommonSettings, metrics: Metrics) -> None:
        # FastAPI's own pages load scripts from other sites, which could read everything that is shown here.
        self.app = FastAPI(title=f"Serried {name}", version=__version__, docs_url=None, redoc_url=None)
        """The application of the operations listener."""
        self._name = name
        self._settings = settings
        self._metrics = metrics
        self._pace = Pace()
        self._stop = asyncio.Event()
        self._work: Work | None = None
        """The present work; None until discovery has found an API."""
        self.app.include_router(ops_routes(self.readiness, metrics.render))
        self._own_routes = len(self.app.router.routes)

    async def run(self, ops: Address, build: Build) -> int:
        """Work until a signal, or until a part ends. Return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        credentials = load_credentials(self._settings.kubeconfig)
        async with ApiClient(credentials, component=self._name, metrics=self._metrics) as client:
            reviews = Reviews(client, self._settings.ops_auth_cache)
            guard = Guard(self.app, TokenDemand(self._settings.ops_auth), reviews, self._pace.throttle)
            server = make_server(
                Paced(guard, self._pace, OPEN_PATHS),
                *ops,
                tls=make_operations_tls(self._settings, ops),
                throttle=self._pace.throttle,
            )
            tasks = [
                asyncio.create_task(server.serve(), name="operations"),
                asyncio.create_task(self._stop.wait(), name="end"),
                asyncio.create_task(self.work_on(client, build), name="process"),
            ]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return await self._end(tasks, server)

    async def work_on(self, client: ApiClient, build: Build) -> None:
        """Build and run the work for the served API, again after each change of that, until the work ends."""
        discovery = Discovery(client, self._settings.api)
        level = await self._discover(discovery)
        while True:
            log.info("API found", extra={"api": level.name, "group": level.group, "version": level.version})
            work = asyncio.create_task(self._work_at(client, level, build), name="work")
            change = asyncio.create_task(self._await_change(discovery, level), name="discovery")
            try:
                await asyncio.wait([work, change], return_when=asyncio.FIRST_COMPLETED)
                if work.done():
                    return await work
                level = change.result()
                log.warning("the cluster serves another API now, so all work begins anew")
            finally:
                change.cancel()
                work.cancel()
                await asyncio.gather(work, change, return_exceptions=True)

    async def _work_at(self, client: ApiClient, level: ApiLevel, build: Build) -> None:
        self._work = build(client, level)
        del self.app.router.routes[self._own_routes :]
        for router in self._work.routes():
            self.app.include_router(router)
        await self._work.run()

    async def _await_change(self, discovery: Discovery, level: ApiLevel) -> ApiLevel:
        """Return the new API level when the cluster serves another one. Never returns if a level is configured.

        Changes in the versions that cannot be used do not end the work; it is notified of them.
        """
        before = level
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_DISCOVERIES)
            if self._settings.api != "auto":
                continue
            try:
                found = await discovery.find()
            except ApiError as error:
                log.info("cannot ask which API the cluster serves", extra={"err": str(error)})
                continue
            if _are_same(found, before) and not _are_same(found, level):
                if found != level:
                    return found
                level = found
                if self._work is not None:
                    self._work.note_refused(level)
            before = found

    async def _discover(self, discovery: Discovery) -> ApiLevel:
        attempts = Attempts(_DISCOVERY)
        while True:
            try:
                return await discovery.find()
            except ApiError as error:
                log.error("cannot find out which API the cluster serves; trying again", extra={"err": str(error)})
                await attempts.rest()

    async def _end(self, tasks: Sequence[asyncio.Task[object]], server: Server) -> int:
        serving, stopping, working = tasks
        ended = [(name, task) for name, task in (("operations", serving), ("work", working)) if task.done()]
        server.should_exit = True
        stopping.cancel()
        working.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._stop.is_set():
            return 0
        for name, task in ended:
            error = None if task.cancelled() else task.exception()
            log.error("the process ends, because a part of it has ended", exc_info=error, extra={"part": name})
        return 1

    def readiness(self) -> Mapping[str, bool]:
        """Return the conditions of ``/readyz``, also before there is work."""
        return {"started": False} if self._work is None else self._work.readiness()


def _are_same(one: ApiLevel, other: ApiLevel) -> bool:
    """Return whether two results of discovery are equal, including the refused versions."""
    return one == other and one.refused == other.refused
