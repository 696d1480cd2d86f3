"""How a process of ours lives: credentials, discovery, the work, the listeners, a signal, the end.

The work is built for the API that the cluster serves. When that changes, it is ended like by a signal and built anew:
everything that must survive is in the API, but for what whoever builds it hands over.

The operations listener is open from the first moment: ``/livez`` must not depend on the API server, or an outage of it
would make the kubelet restart a process that no restart can help.
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
"""The pauses, all alike, until the API server says which API it serves."""

_SECONDS_BETWEEN_DISCOVERIES = 30.0
"""How often it is asked again. Another answer must come twice in a row before it counts.

While a control plane is being upgraded, one of its API servers may serve what the next one does not.
"""


class Work(Protocol):
    """What a process does once it knows its cluster."""

    async def run(self) -> None:
        """Work, with listeners of its own if it has some, until cancelled; nothing of it goes on after that."""

    def readiness(self) -> Mapping[str, bool]:
        """The conditions of ``/readyz``."""

    def routes(self) -> Sequence[APIRouter]:
        """What it adds to the operations listener."""

    def note_refused(self, level: ApiLevel) -> None:
        """The API that it works with is the same, but other versions beside it cannot be used, or for other reasons."""


Build = Callable[[ApiClient, ApiLevel], Work]
"""Makes the work for the API that the cluster serves; that for another API has ended by then."""


def run_process(name: str, settings: CommonSettings, ops: Address, metrics: Metrics, build: Build) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code. ``name`` is that of the process: extender, controller."""
    configure_logging(settings.log_level)
    allow_open_files()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(Process(name, settings, metrics).live(ops, build))
    except CredentialsError as error:
        log.error("no access to a cluster", extra={"err": str(error)})
        return 1
    except CertificateError as error:
        log.error("certificates that cannot be used", extra={"err": str(error)})
        return 1


def secure_operations(settings: CommonSettings, ops: Address) -> ssl.SSLContext | None:
    """What the operations listener speaks TLS with; None where nobody needs it. Raises CertificateError."""
    if settings.tls_cert_file is not None:
        return ReloadingContext(CertificateFiles(settings.tls_cert_file, settings.tls_private_key_file or ""))
    return None if ops.is_loopback else make_self_signed()


def settle_memory() -> None:
    """Exempt what is in memory now from garbage collection; to be called when the caches are filled.

    The caches stay, and a full collection that walked them would be a pause in which nothing is answered.
    """
    gc.unfreeze()  # what was exempted at an earlier API level
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def allow_open_files() -> None:
    """Let this process have as many open files as it may: each member that waits at its bind call is a connection.

    Many container runtimes leave it at 1,024, for programs of long ago that cannot have more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Process:
    """A process of ours: its operations listener, and the work that goes on behind it."""

    def __init__(self, name: str, settings: CommonSettings, metrics: Metrics) -> None:
        # FastAPI's own pages load their scripts from elsewhere, and these could read all that is shown here.
        self.app = FastAPI(title=f"Serried {name}", version=__version__, docs_url=None, redoc_url=None)
        """What the operations listener serves."""
        self._name = name
        self._settings = settings
        self._metrics = metrics
        self._pace = Pace()
        self._stop = asyncio.Event()
        self._work: Work | None = None
        """None until discovery has found an API."""
        self.app.include_router(ops_routes(self.readiness, metrics.render))
        self._own_routes = len(self.app.router.routes)

    async def live(self, ops: Address, build: Build) -> int:
        """Work until a signal comes or a part ends; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        credentials = load_credentials(self._settings.kubeconfig)
        async with ApiClient(credentials, component=self._name, metrics=self._metrics) as client:
            reviews = Reviews(client, self._settings.ops_auth_cache)
            guard = Guard(self.app, TokenDemand(self._settings.ops_auth), reviews, self._pace.admit)
            server = make_server(
                Paced(guard, self._pace, OPEN_PATHS),
                *ops,
                tls=secure_operations(self._settings, ops),
                turn=self._pace.admit,
            )
            tasks = [
                asyncio.create_task(server.serve(), name="operations"),
                asyncio.create_task(self._stop.wait(), name="end"),
                asyncio.create_task(self.work_on(client, build), name="process"),
            ]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return await self._end(tasks, server)

    async def work_on(self, client: ApiClient, build: Build) -> None:
        """Build the work for the API that the cluster serves, and anew when that changes, until it ends."""
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
        """The API level that the cluster has turned to; does not return if a level is forced.

        What has changed in the versions that cannot be used is no reason to begin anew: the work is told.
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
            if _say_same(found, before) and not _say_same(found, level):
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
        """The conditions of ``/readyz``, also while there is no work yet."""
        return {"started": False} if self._work is None else self._work.readiness()


def _say_same(one: ApiLevel, other: ApiLevel) -> bool:
    """Whether two answers of discovery are alike, also in what they refuse."""
    return one == other and one.refused == other.refused
