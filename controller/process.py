"""The controller process: creates its parts, fills the Store by watches, and reconciles while it holds the Lease.

`main` is entered from the command line and runs until SIGTERM or SIGINT.

The process also ends if it holds the Lease and makes no progress for long: a process that is stuck still renews its
Lease, so no other controller could take over. A write that the API server rejects counts as progress, because it would
reject the write of another controller, too.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from fastapi import APIRouter

from controller.diff.owner import Elastic, GangSettings, Suspended, Track
from controller.diff.sentences import malformed_event
from controller.loop import Loop
from controller.protection import RELEASE_TIMING, Priorities, Protection, ReleaseTiming
from controller.reconciler import Reconciler
from controller.writes import JOB_PODS, Writes, read_named_groups, read_pods_of, watched_kinds
from serried.api.job import GangJobs
from serried.api.level import ApiLevel
from serried.api.names import Malformed
from serried.cluster.cache import Store
from serried.feed import SELECTED_PODS, Feed, Item, Kind
from serried.kube.client import ApiClient
from serried.kube.election import TIMING, Election
from serried.kube.events import EventWriter
from serried.kube.retry import RateLimiter
from serried.ops.metrics import ControllerMetrics
from serried.ops.process import run_process
from serried.ops.tls import list_expiries
from serried.settings import ControllerSettings, controller_settings

BLIND_SECONDS = 60.0
"""Seconds without any open watch after which a controller that holds the Lease ends.

To list all objects of a large cluster anew takes some tens of seconds.
"""

STUCK_SECONDS = 180.0
"""Seconds without a finished task or write, while there are tasks, after which a controller that holds the Lease ends.

One write with all its attempts takes less.
"""


class IdleError(Exception):
    """Ends a controller that holds the Lease and makes no progress."""


class Idleness:
    """The watchdog of a controller that holds the Lease.

    `check` raises IdleError if the watches have shown nothing for `BLIND_SECONDS`, or the workers have finished nothing
    for `STUCK_SECONDS`.

    ``blind_since`` returns the time since when changes do not arrive from the API server; infinity while they do.
    ``has_work`` returns whether a worker has a task or could take one. All times are seconds of ``clock``.

    The limits are fixed, unlike those of the extender. A controller that ended starts anew, fills its caches before it
    asks for the Lease, and kubelet restarts it with a growing delay.
    """

    def __init__(
        self, blind_since: Callable[[], float], has_work: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        self._blind_since = blind_since
        self._has_work = has_work
        self._clock = clock
        self._finished = clock()
        """Time of the last progress: a task or a write ended, or there was no work."""

    def record_progress(self) -> None:
        """Record that something was finished.

        To be called after each task and after each write that the API server has answered, also if it failed: one task
        may have thousands of writes.
        """
        self._finished = self._clock()

    def check(self) -> None:
        """Raise IdleError if there was no progress for too long, so that another controller can get the Lease."""
        now = self._clock()
        if not self._has_work():
            self._finished = now
        if now - self._blind_since() >= BLIND_SECONDS:
            raise IdleError(f"no watch has received an answer of the API server for {BLIND_SECONDS:g} s")
        if now - self._finished >= STUCK_SECONDS:
            raise IdleError(f"tasks wait, but none has been finished for {STUCK_SECONDS:g} s")


log = logging.getLogger(__name__)

_SYNC_CHECK_SECONDS = 0.5

_IDLENESS_CHECK_SECONDS = 1.0
"""Seconds between two calls of `Idleness.check`."""


class Controller:
    """All parts of the controller process. One per process.

    The parts use one API level: the API group and version of Workloads and PodGroups that the API server serves.
    """

    def __init__(
        self,
        settings: ControllerSettings,
        client: ApiClient,
        level: ApiLevel,
        metrics: ControllerMetrics,
        *,
        timing: ReleaseTiming = RELEASE_TIMING,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self.store = Store(settings.schedulers, GangJobs(settings.gang_jobs), level=level, rules=())
        self.election = _make_election(settings, client)
        # All writes use this client: it checks the Lease again at each attempt.
        leading = client.fenced(self.election.leads) if self.election is not None else client
        self.events = self._make_events(leading)
        self.feed = self._make_feed(client, level)
        # The clock of the reflectors, which may differ from the event loop's.
        self._idleness = Idleness(lambda: self.feed.blind_since, lambda: self.loop.has_work, time.monotonic)
        self.loop = self._make_loop(client, Writes(leading, level, self.events), timing)
        self.queue = self.loop.queue
        metrics.before_render(self._set_gauges)

    def _make_loop(self, client: ApiClient, writes: Writes, timing: ReleaseTiming) -> Loop:
        clock = asyncio.get_running_loop().time
        record_progress = self._idleness.record_progress
        return Loop(
            self.store,
            self.feed,
            Reconciler(
                self.store,
                writes,
                _gang_settings(self._settings),
                read_pods=partial(read_pods_of, client, self.store.level),
                record_progress=record_progress,
                metrics=self._metrics,
                clock=clock,
            ),
            Protection(self.store, partial(read_named_groups, client), writes, clock, record_progress, timing),
            priorities=Priorities(self.store, writes),
            clock=clock,
            record_progress=record_progress,
            metrics=self._metrics,
        )

    def _set_gauges(self) -> None:
        leads = self.election is None or self.election.leads()
        self._metrics.active(int(leads))
        # A standby's queue is not its work: the leader carries it out.
        self._metrics.queued(len(self.queue) if leads else 0)
        self._metrics.certificates({use.value: expiry for use, expiry in list_expiries().items()})
        self.feed.set_gauges(time.monotonic())

    def _make_events(self, client: ApiClient) -> EventWriter:
        # The two events of a gang Job cost as much as its objects, so under load events are dropped first.
        return EventWriter(
            client,
            "serried-controller",
            limit=1000,
            writers=2,
            rate_limiter=RateLimiter(rate=50.0, burst=200),
            gives_way=lambda: len(self.queue) > 0,
        )

    def _make_feed(self, client: ApiClient, level: ApiLevel) -> Feed:
        return Feed(
            client,
            level,
            self.store,
            watched_kinds(level),
            on_change=self._on_change,
            selections={Kind.PODS: JOB_PODS, **SELECTED_PODS},
            on_malformed=self._report_malformed,
        )

    def _on_change(self, old: Item | None, new: Item | None) -> None:
        self.loop.on_change(old, new)
        # The Store records here what the extender has to plan again. The controller never reads it, so it would grow.
        self.store.dirty.clear_groups()
        self.store.dirty.orphans.clear()

    def _report_malformed(self, malformed: Malformed, about: Mapping[str, str]) -> None:
        sentence = malformed_event(malformed)
        self.events.emit(about, "Warning", sentence.reason, sentence.message)

    async def run(self) -> None:
        """Fill the Store until cancelled, and reconcile and write while this process holds the Lease.

        A standby queues tasks for every change and carries none out, so its queue is complete when it becomes the
        leader. A controller that loses the Lease ends, as Kubernetes' own controllers do: its half-done work is not
        remembered. Raises LeaseLostError or IdleError, in an exception group.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.feed.run())
                await self._await_first_lists()
                if self.election is not None:
                    await self.election.acquire()
                    tasks.create_task(self.election.keep())
                tasks.create_task(self.events.run())
                tasks.create_task(self.loop.run(self._settings.workers))
                tasks.create_task(self._check_idleness())
        finally:
            if self.election is not None:
                await self.election.release()

    async def _check_idleness(self) -> None:
        self._idleness.record_progress()  # before this, the tasks waited for the Lease, not for the workers
        while True:
            await asyncio.sleep(_IDLENESS_CHECK_SECONDS)
            self._idleness.check()

    async def _await_first_lists(self) -> None:
        """Wait until the Store has the first list of every watch, before the process asks for the Lease.

        Also return if only Workloads and PodGroups are missing, because the API server does not offer them.
        """
        while not self.feed.synced.is_set() and not self.loop.lacks_group_api:
            try:
                async with asyncio.timeout(_SYNC_CHECK_SECONDS):
                    await self.feed.synced.wait()
            except TimeoutError:
                continue
        log.info("all caches are filled", extra={"jobs": len(self.store.jobs), "workloads": len(self.store.workloads)})

    def readiness(self) -> dict[str, bool]:
        """Return the conditions of ``/readyz`` by name. There is one: every watch has its first list."""
        return {"synced": self.feed.synced.is_set()}

    def update_refused_versions(self, level: ApiLevel) -> None:
        """Do nothing: the extender reports the API versions that Serried cannot use, the controller only logs them.

        Called when discovery finds the same API group and version of PodGroups as before, but other versions that
        Serried cannot use. ``level`` has the messages about these.
        """

    def routes(self) -> Sequence[APIRouter]:
        """Return no HTTP routes besides the probes and metrics that each process has."""
        return []


def _make_election(settings: ControllerSettings, client: ApiClient) -> Election | None:
    if settings.lease is None:
        return None
    clock = asyncio.get_running_loop().time
    return Election(client, settings.lease, settings.lease_holder, clock=clock, wall=time.time, timing=TIMING)


def _gang_settings(settings: ControllerSettings) -> GangSettings:
    return GangSettings(
        schedulers=settings.schedulers,
        gang_jobs=GangJobs(settings.gang_jobs),
        elastic=Elastic(settings.elastic_jobs),
        suspended=Suspended(settings.suspended_jobs),
        track=Track(settings.track_jobs),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the controller until SIGTERM or SIGINT. Return the exit code."""
    settings = controller_settings(sys.argv[1:] if argv is None else argv)
    metrics = ControllerMetrics()
    return run_process(
        "controller",
        settings,
        settings.ops_listen,
        metrics,
        lambda client, level: Controller(settings, client, level, metrics),
    )
