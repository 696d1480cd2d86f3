"""The controller process: builds the parts, feeds them, serves its operations listener, ends on a signal."""

import asyncio
import logging
import random
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack

from fastapi import FastAPI

from controller.loop import GRACE, Loop, Task
from controller.queue import WorkQueue
from controller.writes import Writes
from serried import __version__
from serried.cluster.store import Store
from serried.kube.auth import CredentialsError, load_credentials
from serried.kube.client import ApiClient
from serried.kube.discovery import discover
from serried.kube.errors import ApiError
from serried.kube.events import EventWriter
from serried.kube.feed import Feed, Item, Kind
from serried.model.level import ApiLevel
from serried.observe.log import configure_logging
from serried.observe.metrics import ControllerMetrics
from serried.observe.ops import Server, make_server, ops_routes
from serried.settings import ControllerSettings, controller_settings

log = logging.getLogger(__name__)

KINDS = (Kind.PODS, Kind.JOBS, Kind.POD_GROUPS, Kind.WORKLOADS)


class Controller:
    """The wired parts of one process. ``client`` is open, ``level`` is what discovery found."""

    def __init__(
        self,
        settings: ControllerSettings,
        client: ApiClient,
        level: ApiLevel,
        metrics: ControllerMetrics,
        grace: float = GRACE,
    ) -> None:
        clock = asyncio.get_running_loop().time
        self._settings, self._metrics = settings, metrics
        self.store = Store(settings.schedulers)
        self.events = EventWriter(client, "serried-controller")
        self.queue: WorkQueue[Task] = WorkQueue(clock, random.random)
        self.feed = Feed(client, level, self.store, KINDS, self._note)
        writes = Writes(client, level, self.events)
        self.loop = Loop(self.store, writes, self.queue, clock, self.feed.synced, metrics, grace)
        metrics.before_render(lambda: metrics.queued(len(self.queue)))

    def _note(self, old: Item | None, new: Item | None) -> None:
        self.loop.note(old, new)

    async def run(self) -> None:
        """Feed, reconcile and write until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.events.run())
            tasks.create_task(self.feed.run())
            tasks.create_task(self.loop.run(self._settings.workers))
            await self.feed.synced.wait()
            log.info("caches are filled", extra={"jobs": len(self.store.jobs), "workloads": len(self.store.workloads)})

    def readiness(self) -> dict[str, bool]:
        """The conditions of ``/readyz``."""
        return {"synced": self.feed.synced.is_set()}

    def ops_app(self) -> FastAPI:
        """Probes and metrics."""
        app = FastAPI(title="Serried controller", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
        app.include_router(ops_routes(self.readiness, self._metrics.render))
        return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code."""
    settings = controller_settings(sys.argv[1:] if argv is None else argv)
    configure_logging(settings.log_level)
    try:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            return runner.run(_serve(settings))
    except CredentialsError as error:
        log.error("no access to a cluster", extra={"err": str(error)})
        return 1


def _new_loop() -> asyncio.AbstractEventLoop:
    import uvloop  # noqa: PLC0415 - heavy, and only the process needs it

    return uvloop.new_event_loop()


async def _serve(settings: ControllerSettings) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    metrics = ControllerMetrics()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            ApiClient(load_credentials(settings.kubeconfig), component="controller", hooks=metrics)
        )
        level = await _discover(client, settings.api, stop)
        if level is None:
            return 0
        log.info("API found", extra={"api": level.name, "group": level.group, "version": level.version})
        controller = Controller(settings, client, level, metrics)
        return await _run_until(stop, controller, make_server(controller.ops_app(), *settings.ops_listen))


async def _discover(client: ApiClient, wanted: str, stop: asyncio.Event) -> ApiLevel | None:
    while not stop.is_set():
        try:
            return await discover(client, wanted)
        except ApiError as error:
            log.error("cannot find out which API the cluster serves; trying again", extra={"err": str(error)})
        try:
            async with asyncio.timeout(2.0):
                await stop.wait()
        except TimeoutError:
            continue
    return None


async def _run_until(stop: asyncio.Event, controller: Controller, server: Server) -> int:
    tasks = [asyncio.create_task(work) for work in (controller.run(), server.serve(), stop.wait())]
    work, serving, stopping = tasks
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    work.cancel()
    stopping.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if stop.is_set():
        return 0
    for task in (work, serving):
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the controller failed", exc_info=error)
    return 1
