"""The controller process: builds the parts, feeds them, serves its operations listener, ends on a signal.

It also ends if it holds the Lease and does no work for long, because it renews the Lease all the same. Then the other
controller takes over. A look that the API server refuses is work: the other one would be refused, too.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from fastapi import APIRouter

from controller.diff.owner import Elastic, GangSettings, Suspended, Track
from controller.diff.sentences import tell_malformed
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
"""How long a kind may not be followed: a new list of a large cluster takes some tens of seconds."""

STUCK_SECONDS = 180.0
"""How long nothing may be finished while there is work. It is longer than any one write takes with all its attempts."""


class IdleError(Exception):
    """This controller holds the Lease and does no work."""


class Idleness:
    """Looked at every now and then while the Lease is held. All times are seconds of ``clock``.

    ``blind_since`` is since when changes do not reach us, infinity while they do. ``has_work`` says whether there is
    something that workers could do at this moment, or are at.

    Unlike the extender's it needs no patience that grows. Whoever is idle ends, begins anew and asks for the Lease only
    when its caches are filled, and its kubelet lets it wait longer each time.
    """

    def __init__(
        self, blind_since: Callable[[], float], has_work: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        self._blind_since = blind_since
        self._has_work = has_work
        self._clock = clock
        self._finished = clock()
        """When something was last finished, or there was nothing to be done."""

    def note_finished(self) -> None:
        """A look has ended, or a write of one was answered, well or not: one look may have thousands of them."""
        self._finished = self._clock()

    def check(self) -> None:
        """Raises IdleError if the Lease is to be given up."""
        now = self._clock()
        if not self._has_work():
            self._finished = now
        if now - self._blind_since() >= BLIND_SECONDS:
            raise IdleError(f"the API server has shown no changes of what is watched for {BLIND_SECONDS:g} s")
        if now - self._finished >= STUCK_SECONDS:
            raise IdleError(f"there is work, and nothing was finished for {STUCK_SECONDS:g} s")


log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5

_IDLENESS_SECONDS = 1.0
"""How often whoever holds the Lease looks whether it works."""


class Controller:
    """The wired parts of one process, for the API level that discovery has found."""

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
        # Whatever changes something goes this way, and is asked again at each attempt.
        leading = client.fenced(self.election.leads) if self.election is not None else client
        self.events = self._make_events(leading)
        self.feed = self._make_feed(client, level)
        # The reflectors' clock, whatever the event loop's is.
        self._idleness = Idleness(lambda: self.feed.blind_since, lambda: self.loop.has_work, time.monotonic)
        self.loop = self._make_loop(client, Writes(leading, level, self.events), timing)
        self.queue = self.loop.queue
        metrics.before_render(self._set_gauges)

    def _make_loop(self, client: ApiClient, writes: Writes, timing: ReleaseTiming) -> Loop:
        clock = asyncio.get_running_loop().time
        note_finished = self._idleness.note_finished
        return Loop(
            self.store,
            self.feed,
            Reconciler(
                self.store,
                writes,
                _gang_settings(self._settings),
                read_pods=partial(read_pods_of, client, self.store.level),
                note_finished=note_finished,
                metrics=self._metrics,
                clock=clock,
            ),
            Protection(self.store, partial(read_named_groups, client), writes, clock, note_finished, timing),
            priorities=Priorities(self.store, writes),
            clock=clock,
            note_finished=note_finished,
            metrics=self._metrics,
        )

    def _set_gauges(self) -> None:
        leads = self.election is None or self.election.leads()
        self._metrics.active(int(leads))
        # What a standby has noted it leaves to whoever leads.
        self._metrics.queued(len(self.queue) if leads else 0)
        self._metrics.certificates({use.value: expiry for use, expiry in list_expiries().items()})
        self.feed.show(time.monotonic())

    def _make_events(self, client: ApiClient) -> EventWriter:
        # Two events a gang Job, at full speed, cost as much as its objects: they are the first to give way.
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
            on_change=self._note,
            selections={Kind.PODS: JOB_PODS, **SELECTED_PODS},
            on_malformed=self._report_malformed,
        )

    def _note(self, old: Item | None, new: Item | None) -> None:
        self.loop.note(old, new)
        # The extender reads these notes; here they would only grow.
        self.store.dirty.clear_groups()
        self.store.dirty.orphans.clear()

    def _report_malformed(self, malformed: Malformed, about: Mapping[str, str]) -> None:
        sentence = tell_malformed(malformed)
        self.events.emit(about, "Warning", sentence.reason, sentence.message)

    async def run(self) -> None:
        """Feed until cancelled; reconcile and write while the Lease is ours.

        A standby notes every change, too, and carries none out: its queue has all that may be left to do when its turn
        comes. Whoever loses the Lease ends, as Kubernetes' own controllers do: what it has half done is not remembered.
        So does whoever holds it and does no work. Raises LeaseLostError or IdleError in a group.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.feed.run())
                await self._await_sight()
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
        self._idleness.note_finished()  # what has waited for our turn has not waited for our workers
        while True:
            await asyncio.sleep(_IDLENESS_SECONDS)
            self._idleness.check()

    async def _await_sight(self) -> None:
        """Return when there is something to do: whoever sees nothing yet lets others lead."""
        while not self.feed.synced.is_set() and not self.loop.is_obstructed:
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self.feed.synced.wait()
            except TimeoutError:
                continue
        log.info("caches are filled", extra={"jobs": len(self.store.jobs), "workloads": len(self.store.workloads)})

    def readiness(self) -> dict[str, bool]:
        """The conditions of ``/readyz``."""
        return {"synced": self.feed.synced.is_set()}

    def note_refused(self, level: ApiLevel) -> None:
        """It is in the log already; no owner waits for a version that is refused."""

    def routes(self) -> Sequence[APIRouter]:
        """Nothing beside probes and metrics."""
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
    """Run until SIGTERM or SIGINT; returns the exit code."""
    settings = controller_settings(sys.argv[1:] if argv is None else argv)
    metrics = ControllerMetrics()
    return run_process(
        "controller",
        settings,
        settings.ops_listen,
        metrics,
        lambda client, level: Controller(settings, client, level, metrics),
    )
