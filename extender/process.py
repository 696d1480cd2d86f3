"""The extender process: its parts, wired.

Three listeners, one event loop: filter (with prioritize and preempt) and bind apart, because a gang's bind calls stay
open by the hundred and must not stand in the way of filter; operations (probes, metrics, debug) apart from both.
"""

import asyncio
import gc
import logging
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter

from extender.binding.reservations import Records
from extender.core import Core, Options
from extender.debug.routes import debug_routes
from extender.gate_switch import HoldSwitch
from extender.http.handlers import Verbs
from extender.http.server import Listener
from extender.isolation import Isolation
from extender.leader import AlwaysActive, Leadership
from extender.scheduling.backfill import Mode
from extender.scheduling.cycle import CycleStage
from extender.scheduling.nomination import Stamps
from extender.scheduling.repairs import Broken, Rules
from extender.scheduling.term import Term
from extender.status.reports import Reports
from serried import __version__
from serried.cluster.store import Store
from serried.kube.client import ApiClient
from serried.kube.discovery import keeps_group
from serried.kube.errors import ApiError, Forbidden, NotFound
from serried.kube.events import EventWriter
from serried.kube.feed import ALL_KINDS, GROUP_KINDS, OPTIONAL_KINDS, Feed, Item, Kind
from serried.kube.reflector import Reflector
from serried.kube.wire import LEASES, RESERVATIONS, Selection
from serried.model.eligibility import GangJobs
from serried.model.level import NATIVE, ApiLevel
from serried.model.pod import Pod
from serried.model.verdict import Reason
from serried.observe.metrics import ExtenderMetrics
from serried.process import run_process
from serried.settings import ExtenderSettings, extender_settings

log = logging.getLogger(__name__)


_ADOPTION_PAUSE, _ADOPTION_CAP = 1.0, 10.0
_PATIENCE = 3
"""So many failures in a row, and it is no matter of moments that the records cannot be read."""

KINDS = tuple(kind for kind in ALL_KINDS if kind is not Kind.PRIORITY_CLASSES)
"""What the extender watches: all but what the controller alone asks for."""


class Extender:
    """The wired parts of one process. ``client`` is open, ``level`` is what discovery found."""

    def __init__(
        self, settings: ExtenderSettings, client: ApiClient, level: ApiLevel, metrics: ExtenderMetrics
    ) -> None:
        clock = asyncio.get_running_loop().time
        self.settings, self.level, self.metrics, self._client = settings, level, metrics, client
        self.store = Store(settings.schedulers, GangJobs(settings.gang_jobs))
        self.events = EventWriter(client, "serried")
        self.reports = Reports(client, self.store, self.events, level, clock)
        instance = f"{settings.lease_holder_prefix}_{uuid.uuid4()}"
        self.leadership = self._make_leadership()
        self.store.vacancies.keeping = True
        self.core = Core(
            client,
            self.store,
            Term(self.leadership.leads),
            Records(client, level.api_version, instance, self.leadership.leads),
            status=self.reports,
            meter=metrics,
            clock=clock,
            options=_read_options(settings),
        )
        self.holding = HoldSwitch(client, settings.hold_switch, settings.hold, settings.hold_limit, clock)
        self.isolation = Isolation(self.store, self.events, settings.schedulers, isolated=settings.isolated == "on")
        self.verbs = Verbs(self.core.service, lambda: self.leadership.active, metrics, clock)
        # Without the API of gangs plain pods are placed all the same, and gangs are told what they wait for.
        optional = OPTIONAL_KINDS | GROUP_KINDS
        self.feed = Feed(client, level, self.store, KINDS, self._note, optional=optional)
        self._turned = asyncio.Event()
        self._pods_keep_group: bool | None = None
        metrics.before_render(self._sample)

    def _note(self, old: Item | None, new: Item | None) -> None:
        if isinstance(old, Pod) and isinstance(new, Pod):
            self.core.activity.note_pod(old, new)
        self.isolation.note(old, new)
        self.core.groups.wake()

    def _make_leadership(self) -> Leadership:
        make = Leadership if self.settings.lease else AlwaysActive
        return make(self.settings.lease_holder_prefix, self._on_turn, time.time)

    def _on_turn(self, active: bool) -> None:  # noqa: FBT001 - the callback's one argument
        log.info("active" if active else "not active", extra={"holder": self.leadership.holder})
        self.core.end_term()
        self.reports.end_term()
        self._turned.set()

    async def run(self) -> None:
        """Answer, feed, decide and write until cancelled."""
        try:
            await self._run()
        finally:
            await self.core.tasks.close()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for address in (self.settings.filter_listen, self.settings.bind_listen):
                tasks.create_task(Listener(self.verbs.routes()).serve(*address))
            for work in (
                self.feed.run,
                self.events.run,
                self.reports.run,
                self.core.nominator.run,
                self.core.loop.run,
            ):
                tasks.create_task(work())
            tasks.create_task(self._follow_lease())
            tasks.create_task(self.leadership.watch_time())
            tasks.create_task(self.isolation.run())
            tasks.create_task(self._switch_holding())
            tasks.create_task(self._check_group_field())
            await self.feed.synced.wait()
            self.core.service.synced = True
            _settle_memory()
            log.info("caches are filled", extra={"nodes": len(self.store.nodes), "pods": len(self.store.pods)})
            while True:
                await self._turned.wait()
                self._turned.clear()
                await self._begin_term()

    async def _begin_term(self) -> None:
        failures = 0
        while self.leadership.active and not self.core.term.plans:
            try:
                if not await self.core.adoption.adopt():
                    continue  # the term ended under it; if the next one is ours, too, it begins at the beginning
            except ApiError as error:
                failures += 1
                self._meet_obstacle(error, failures)
                await asyncio.sleep(min(_ADOPTION_CAP, _ADOPTION_PAUSE * 2.0 ** min(20, failures - 1)))
                continue
            self.core.term.active = self.leadership.active  # it may have turned meanwhile
            self.core.group_scheduler.meet_obstacle("")

    def _meet_obstacle(self, error: ApiError, failures: int) -> None:
        """Nothing can be planned in this term yet: say so, and let go of whom it does not concern."""
        log.error("cannot read the Reservations, so nothing is planned yet", extra={"err": str(error)})
        lasting = isinstance(error, NotFound | Forbidden) or failures >= _PATIENCE
        if self.leadership.active and lasting:
            self.core.term.active = True
            self.core.group_scheduler.meet_obstacle(_describe(error))

    async def _follow_lease(self) -> None:
        if isinstance(self.leadership, AlwaysActive):
            self.leadership.begin()
            return
        lease = self.settings.lease
        assert lease is not None  # noqa: S101 - else leadership is AlwaysActive
        selection = Selection(namespace=lease.namespace, fields=f"metadata.name={lease.name}")
        await Reflector(self._client, LEASES, self.leadership.follow, selection=selection).run()

    async def _check_group_field(self) -> None:
        namespace = self.settings.lease.namespace if self.settings.lease else self.settings.hold_switch.namespace
        self._pods_keep_group = await keeps_group(self._client, self.level, namespace)
        if self._pods_keep_group is False and self.level.name == NATIVE.name:
            log.error("the API server drops what pods say of their PodGroup: is GenericWorkload on everywhere?")

    async def _switch_holding(self) -> None:
        while True:
            if self.core.term.active:
                await self.holding.settle(len(self.core.held))
            await asyncio.sleep(1.0)

    def _sample(self) -> None:
        gangs = self.core.groups.states.values()
        for stage in CycleStage:
            self.metrics.groups(stage.value, sum(g.cycle is not None and g.cycle.stage is stage for g in gangs))
        for reason in set(Reason) - {Reason.PLANNED, Reason.BINDING}:
            waiting = sum(g.cycle is None and g.verdict is not None and g.verdict.reason is reason for g in gangs)
            self.metrics.groups(reason.value, waiting)
        self.metrics.head(self.core.queue.backfill.seconds_ahead())
        self.metrics.vacancies(len(self.store.vacancies))
        self.metrics.unmarked(len(self.isolation.list_unmarked()))
        self.metrics.held("filter", len(self.core.held))
        self.metrics.held("gate", sum(pod.held_by_gate for pod in self.store.pods.values()))

    def selfcheck(self) -> dict[str, Any]:
        """What this process found and how it stands."""
        return {
            "version": __version__,
            "api": {
                "level": self.level.name,
                "group": self.level.group,
                "version": self.level.version,
                "podsKeepTheirGroup": self._pods_keep_group,
            },
            "schedulers": sorted(self.settings.schedulers),
            "active": self.leadership.active,
            "leaseHolder": self.leadership.holder,
            "planning": self.core.term.plans,
            "obstacle": self.core.term.obstacle,
            "synced": self.feed.synced.is_set(),
            "hold": {
                "mode": self.settings.hold,
                "way": self.holding.way,
                "obstacle": self.holding.obstacle,
                "heldByFilter": len(self.core.held),
            },
            "isolation": self.isolation.describe(),
            "objects": {
                "nodes": len(self.store.nodes),
                "pods": len(self.store.pods),
                "podGroups": len(self.store.groups),
                "workloads": len(self.store.workloads),
                "jobs": len(self.store.jobs),
                "reservations": len(self.core.ledger),
            },
            "watches": {
                kind.value: {
                    "listed": reflector.listed.is_set(),
                    "served": kind not in self.feed.unserved,
                    "malformed": self.feed.malformed[kind],
                    "silentSeconds": round(time.monotonic() - reflector.last_event_monotonic, 1),
                }
                for kind, reflector in self.feed.reflectors.items()
            },
        }

    def readiness(self) -> dict[str, bool]:
        """The conditions of ``/readyz``; a standby with full caches is ready, a leader once it has read the records."""
        return {
            "synced": self.feed.synced.is_set(),
            "records": self.core.term.plans or not self.leadership.active,
        }

    def routes(self) -> Sequence[APIRouter]:
        """``/debug``."""
        return [debug_routes(self.core, self.reports, self.level, self.selfcheck)]


def _read_options(settings: ExtenderSettings) -> Options:
    return Options(
        stamps=Stamps(settings.stamp),
        stamp_window=settings.stamp_window,
        backfill=Mode(settings.backfill),
        patience=settings.backfill_patience,
        ageing=settings.queue_ageing,
        rules=Rules(settings.repair_seconds, settings.broken_grace, Broken(settings.broken_gangs)),
        job_unknown_deadline=settings.job_unknown_deadline,
        bindings=settings.bind_concurrency,
        total=settings.barrier_deadline,
        idle=settings.barrier_idle,
    )


def _describe(error: ApiError) -> str:
    """What keeps us from the records, and what helps."""
    what = f"{RESERVATIONS} ({RESERVATIONS.version})"
    if isinstance(error, NotFound):
        return f"the API server does not serve {what}; install the CRDs"
    if isinstance(error, Forbidden):
        return f"the API server does not let us see {what}; apply the roles"
    return str(error)


def _settle_memory() -> None:
    # The filled caches stay: without this, every full collection would walk them while filter waits.
    gc.unfreeze()  # of an earlier API level
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code."""
    settings = extender_settings(sys.argv[1:] if argv is None else argv)
    metrics = ExtenderMetrics()
    return run_process(
        "extender",
        settings,
        settings.ops_listen,
        metrics,
        lambda client, level: Extender(settings, client, level, metrics),
    )
