"""Runs a Serried process from start to end (`run_process`): credentials, discovery, listeners, signals.

What the process does, as extender or as controller, is an instance of `Work`. It is built for the API level that
discovery has found, i.e. the version of the PodGroup API that the cluster serves. When the level changes, the `Work` is
cancelled as by a signal, and a new one is built. State that must survive this is in the API, or the builder keeps it.

The operations listener is open from the start, before the API server has answered. Else ``/livez`` would fail while the
API server is down, and the kubelet would restart the process again and again, to no avail.
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
"""The constant pause between failed attempts of the first discovery."""

_SECONDS_BETWEEN_DISCOVERIES = 30.0
"""The interval of further discoveries. A change counts only if two in a row find it.

The reason is that the API servers of a control plane may serve different APIs while it is upgraded.
"""


class Work(Protocol):
    """The extender or controller of a process, for as long as the cluster serves one version of the PodGroup API."""

    async def run(self) -> None:
        """Run the extender or controller until cancelled. All its tasks and listeners have ended when this returns."""

    def readiness(self) -> Mapping[str, bool]:
        """Return the conditions of ``/readyz`` by name; the process is ready if all are True."""

    def routes(self) -> Sequence[APIRouter]:
        """Return routes to be served by the operations listener, besides probes and metrics."""

    def update_refused_versions(self, level: ApiLevel) -> None:
        """Replace the messages about API versions that Serried cannot use by those in ``level.refused``.

        Called when a later discovery has found the same level, but other messages of this kind.
        """


Build = Callable[[ApiClient, ApiLevel], Work]
"""A function that creates the `Work` for an API level. It is called after the `Work` for the previous level ended."""


def run_process(name: str, settings: CommonSettings, ops: Address, metrics: Metrics, build: Build) -> int:
    """Run the process ``name`` (extender or controller) until SIGTERM or SIGINT. Return its exit code.

    ``ops`` is the address of the operations listener. ``build`` creates the `Work`. The exit code is 0 after a signal,
    and 1 if credentials or certificates cannot be used, or if a part of the process ends by itself.
    """
    configure_logging(settings.log_level)
    raise_file_limit()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(Process(name, settings, metrics).run(ops, build))
    except CredentialsError as error:
        log.error("the process ends, because it has no usable credentials for a cluster", extra={"err": str(error)})
        return 1
    except CertificateError as error:
        log.error("the process ends, because it cannot load its certificates", extra={"err": str(error)})
        return 1


def make_operations_tls(settings: CommonSettings, ops: Address) -> ssl.SSLContext | None:
    """Return the TLS context of the operations listener at ``ops``.

    It uses the configured certificate; without one, a self-signed certificate, or None for plain HTTP if ``ops`` is a
    loopback address. Raises CertificateError if the configured files cannot be used.
    """
    if settings.tls_cert_file is not None:
        return ReloadingContext(CertificateFiles(settings.tls_cert_file, settings.tls_private_key_file or ""))
    return None if ops.is_loopback else make_self_signed()


def freeze_memory() -> None:
    """Exempt all present Python objects from garbage collection. Call it when the first lists of all kinds are cached.

    The cached objects live long, and while all of them are searched for garbage, the process answers no calls.
    """
    gc.unfreeze()  # objects that were exempted at an earlier API level
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit, because each waiting bind call needs a connection.

    Many container runtimes set a soft limit of 1,024, for old programs that cannot handle more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Process:
    """The running process: its operations listener, and its `Work`, which is the extender or the controller itself.

    A `Work` is for one API level, i.e. for PodGroups of scheduling.k8s.io or of Serried's own CRDs.
    """

    def __init__(self, name: str, settings: CommonSettings, metrics: Metrics) -> None:
        # FastAPI's own pages load scripts from other sites, which could read everything that is shown here.
        self.app = FastAPI(title=f"Serried {name}", version=__version__, docs_url=None, redoc_url=None)
        """The application of the operations listener; the routes of the present `Work` are added to it."""
        self._name = name
        self._settings = settings
        self._metrics = metrics
        self._pace = Pace()
        self._stop = asyncio.Event()
        self._work: Work | None = None
        """The `Work` for the present API level; None until the first discovery has succeeded."""
        self.app.include_router(ops_routes(self.readiness, metrics.render))
        self._own_routes = len(self.app.router.routes)

    async def run(self, ops: Address, build: Build) -> int:
        """Run until a signal, or until the listener or the `Work` ends by itself.

        Return the exit code: 0 after a signal, else 1.
        """
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
                asyncio.create_task(self.run_work(client, build), name="process"),
            ]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return await self._end(tasks, server)

    async def run_work(self, client: ApiClient, build: Build) -> None:
        """Find the API level that the cluster serves, and build and run the `Work` for it, until that ends by itself.

        When the level changes, cancel the `Work` and build another one for the new level.
        """
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
                log.warning("the cluster serves another API for PodGroups now, so the process fills its caches again")
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
        """Repeat discovery until it finds another API level than ``level`` twice in a row, and return that.

        Never returns if ``--api`` names a level. If the level stays and only the list of versions that Serried cannot
        use has changed, the process's `Work` (the extender or the controller) gets the new list.
        """
        before = level
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_DISCOVERIES)
            if self._settings.api != "auto":
                continue
            try:
                found = await discovery.find()
            except ApiError as error:
                log.info(
                    "cannot find out whether the cluster still serves the same API; trying again later",
                    extra={"err": str(error)},
                )
                continue
            if _are_same(found, before) and not _are_same(found, level):
                if found != level:
                    return found
                level = found
                if self._work is not None:
                    self._work.update_refused_versions(level)
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
            log.error(
                "the process ends, because one of its parts ended unexpectedly", exc_info=error, extra={"part": name}
            )
        return 1

    def readiness(self) -> Mapping[str, bool]:
        """Return the conditions of ``/readyz`` by name; until there is a `Work`, only ``started``, which is False."""
        return {"started": False} if self._work is None else self._work.readiness()


def _are_same(one: ApiLevel, other: ApiLevel) -> bool:
    """Return whether two levels are equal, including ``refused`` (unusable versions), which ``==`` does not compare."""
    return one == other and one.refused == other.refused
