"""The extender process: `main` reads the settings, and `Extender` wires listeners, watches, core and reports.

There are three listeners on one event loop. One is for filter, prioritize and preempt calls. Another is for bind calls:
hundreds of a gang's bind calls stay open at the same time, and must not delay filter. The third is for operations:
probes, metrics and ``/debug``.
"""

import asyncio
import logging
import math
import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from fastapi import APIRouter

from extender.core.binding.records import Records
from extender.core.http.server import Listener, Security
from extender.core.http.verbs import CallPath, Verbs
from extender.core.scheduling.effects import Context, Term
from extender.core.timeline import Reached
from extender.features.status.conditions import Conditions
from extender.features.status.levels import LevelReport
from extender.features.status.reports import Reports
from extender.lead.by_service import Candidacy, EndpointSlice
from extender.lead.holding import HoldSwitch, Isolation
from extender.lead.leadership import UNCONTESTED, Idleness, Leadership, Takeover
from extender.lead.pair import Pair
from extender.look.page import Broadcast, live_routes
from extender.look.routes import Gauges, SelfCheck, debug_routes, process_routes
from extender.look.sketch import Sketch
from extender.options import (
    Autoscaling,
    BackfillMode,
    BrokenAction,
    DisruptionTrigger,
    EvictionMethod,
    NominationPolicy,
    Options,
    PlainPodRule,
    PreemptionMode,
    RepairRules,
)
from extender.wiring import Core
from serried import __version__
from serried.api.group import FirstQuorum
from serried.api.job import GangJobs
from serried.api.level import ApiLevel
from serried.api.names import GroupKey
from serried.api.pod import Pod
from serried.cluster.cache import EndedMembers, Store
from serried.cluster.usage import Vacancy
from serried.drift import Comparison
from serried.feed import ALL_KINDS, GROUP_KINDS, OPTIONAL_KINDS, Feed, Item, Kind
from serried.kube.client import ApiClient
from serried.kube.election import TIMING, Election
from serried.kube.events import EventWriter
from serried.ops.metrics import ExtenderMetrics
from serried.ops.process import freeze_memory, run_process
from serried.ops.slices import Pace
from serried.ops.tls import CertificateError, CertificateFiles, ReloadingContext, list_names
from serried.ops.traces import MissingExtraError, Traces, make_traces
from serried.rules.all import RULES
from serried.settings import ExtenderSettings, extender_settings

log = logging.getLogger(__name__)


class Extender:
    """All parts of one extender process. If the API server's level changes, the process builds a new instance.

    ``level`` says which API of PodGroups the API server serves. ``client`` is connected. ``security`` authenticates
    callers of filter, bind, prioritize and preempt; None for plain HTTP. ``kept`` are the slots of ended members that
    the instance before this one kept for replacements.
    """

    def __init__(
        self,
        settings: ExtenderSettings,
        client: ApiClient,
        level: ApiLevel,
        metrics: ExtenderMetrics,
        security: Security | None = None,
        kept: Sequence[Vacancy] = (),
    ) -> None:
        self.settings = settings
        self.level = level
        self._client = client
        self._clock = asyncio.get_running_loop().time
        self._security = security
        self._inherited = kept
        self.store = Store(
            settings.schedulers,
            GangJobs(settings.gang_jobs),
            EndedMembers.KEEP_SLOTS,
            level,
            settings.other_profiles,
            rules=RULES,
        )
        self.leadership = self._make_leadership()
        self._election = self._make_election()
        # All writes go through this client: it checks before each try that this instance leads.
        leading = client.fenced(self.leadership.leads)
        self._wire_core(leading, metrics)
        self._wire_cluster(leading)
        self._wire_pages(metrics)

    def _wire_core(self, leading: ApiClient, metrics: ExtenderMetrics) -> None:
        settings, level, leads = self.settings, self.level, self.leadership.leads
        self.events = EventWriter(leading, "serried", gives_way=self._gives_way)
        self.reports = make_reports(leading, self.store, self.events, level, self._clock, self._binds, self._find_place)
        instance = f"{settings.lease_holder_prefix}_{uuid.uuid4()}"
        records = Records(leading, level.api_version, instance, leads, level.composite_api_version)
        self._records = records
        options, home = _read_options(settings), self._namespace
        context = Context(self.store, Term(leads), self.reports, metrics, options, self._clock, installation=home)
        self.core = Core(leading, context, records)
        call_path = CallPath.SERVICE if settings.lease_mode == "hold" else CallPath.SAME_POD
        self.verbs = Verbs(self.core.service, leads, metrics, self._clock, call_path)

    def _wire_cluster(self, leading: ApiClient) -> None:
        settings, leads = self.settings, self.leadership.leads
        native = lambda: self.store.schedules_gangs  # noqa: E731
        autoscalers = self.core.autoscalers
        autoscaled = lambda: bool(autoscalers.seen) if autoscalers.known else None  # noqa: E731
        self.holding = HoldSwitch(
            leading, settings.hold_switch, settings.hold, settings.hold_limit, native, self._clock, autoscaled
        )
        self.isolation = Isolation(
            self.store.members,
            self.store.groups,
            self.events,
            settings.schedulers,
            isolated=settings.isolated == "on",
            leads=leads,
        )
        self.endpoint_slice = self._make_endpoint_slice(leading)
        # Without the APIs of gangs, plain pods are placed all the same, and gangs get a reason.
        optional = OPTIONAL_KINDS | GROUP_KINDS
        self.feed = Feed(self._client, self.level, self.store, ALL_KINDS, on_change=self._note, optional=optional)
        self._level_report = LevelReport(leading, self.store.levels, self._may_report_levels, self._clock)
        self._idleness = self._make_idleness()
        self.takeover = Takeover(
            self.core.term, self.core.group_scheduler, self.leadership, self.core.recovery, synced=self.feed.synced
        )

    def _wire_pages(self, metrics: ExtenderMetrics) -> None:
        core, feed, level, leadership, isolation = self.core, self.feed, self.level, self.leadership, self.isolation
        self.selfcheck = SelfCheck(
            core,
            feed,
            level,
            leadership,
            holding=self.holding,
            isolation=isolation,
            endpoint_slice=self.endpoint_slice,
        )
        about = {"version": __version__, "apiLevel": level.name}
        self.broadcast = Broadcast(lambda: Sketch(core, self.reports.decisions), about)
        self.gauges = Gauges(core, feed, level, isolation, leadership=leadership, metrics=metrics)
        metrics.before_render(self.gauges.sample)

    def _note(self, old: Item | None, new: Item | None) -> None:
        if isinstance(old, Pod) and isinstance(new, Pod):
            self.core.groups.activity.note_pod(old, new)
        self.isolation.on_change(old, new)
        self.gauges.count_change(old, new)
        self.core.groups.wake()

    def _may_report_levels(self) -> bool:
        served = Kind.TOPOLOGY_LEVELS not in self.feed.unserved
        return served and self.feed.synced.is_set() and self.leadership.leads()

    def _gives_way(self) -> bool:
        return self.core.preemptions.stage.eviction_writes.is_on()

    def _binds(self) -> bool:
        return self.core.runner.burst.is_on()

    def _find_place(self, group: GroupKey) -> FirstQuorum | None:
        return self.core.group_scheduler.find_place(group)

    def _make_leadership(self) -> Leadership:
        prefix = self.settings.lease_holder_prefix if self.settings.lease else UNCONTESTED.holder
        return Leadership(prefix, self._on_leadership_change, time.time)

    def _make_election(self) -> Election | None:
        if self.settings.lease is None or self.settings.lease_mode != "hold":
            return None
        holder = self.settings.lease_holder_prefix
        return Election(self._client, self.settings.lease, holder, clock=self._clock, wall=time.time, timing=TIMING)

    def _make_idleness(self) -> Idleness:
        election = self._election
        return Idleness(
            # With a Lease of the extenders' own, an extender that holds it without knowing is as idle as a stuck one.
            # Rejected calls prove nothing then, because kube-scheduler also calls extenders that do not lead.
            leads=election.leads if election is not None else lambda: self.leadership.active,
            refused=(lambda: -math.inf) if election is not None else lambda: self.verbs.last_rejected,
            planned=lambda: self.core.loop.planned,
            # While watches are down it plans by the last known state, which must not count as planning.
            synced=lambda: self.feed.synced.is_set() and self.feed.blind_since == math.inf,
            clock=self._clock,
        )

    def _make_endpoint_slice(self, leading: ApiClient) -> EndpointSlice | None:
        settings = self.settings
        if settings.endpoint_slice is None:
            return None
        ports = {"filter": settings.filter_listen.port, "bind": settings.bind_listen.port}
        return EndpointSlice(
            leading, settings.endpoint_slice, settings.endpoint_address, ports, leads=self.leadership.leads
        )

    def _begin_next_term(self) -> bool:
        """End this term and begin the next one, unless a gang is bound in part. Return whether that was done.

        Called when the rights to read the records have changed. A gang that is bound in part needs its record to be
        finished, and the next term may not be able to read it.
        """
        cycles = [state.cycle for state in self.core.groups.states.values() if state.cycle is not None]
        # A gang is also half done between two tries to bind its rest, and while its record is written.
        if self._binds() or any(cycle.is_half_done for cycle in cycles):
            return False
        self._on_leadership_change(self.leadership.active)
        return True

    def _on_leadership_change(self, active: bool) -> None:  # noqa: FBT001 - the callback's one argument
        text = "this instance leads now" if active else "this instance does not lead"
        log.info(text, extra={"holder": self.leadership.holder})
        self.core.end_term()
        self.reports.end_term()
        self.holding.forget()
        if self.endpoint_slice is not None:
            self.endpoint_slice.on_leadership_change()
        self.takeover.on_leadership_change()

    async def run(self) -> None:
        """Run all listeners, watches and tasks until cancelled.

        At the end cancel open requests, wait until none is in flight, and delete the records that are no longer needed.
        Last of all, release the Lease if it is the extenders' own.
        """
        try:
            await self._run()
        finally:
            await self.broadcast.close()
            await self._cancel_requests()
            await self.core.runner.finished_records.remove_all()
            # Last of all, so that no request of this instance is in flight when the next leader begins.
            if self._election is not None:
                await self._election.release()

    async def _cancel_requests(self) -> None:
        """Cancel the binding cycles, evictions and nominations of this term, and wait until no request is in flight."""
        await self.core.tasks.close()
        await self.core.nominator.close()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name, work in self._list_work():
                tasks.create_task(work, name=name)
            await self.feed.synced.wait()
            self._inherit()
            self.core.service.synced = True
            freeze_memory()
            log.info("all caches are filled", extra={"nodes": len(self.store.nodes), "pods": len(self.store.pods)})
            await self.takeover.run()

    def _list_work(self) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        """Yield the name and the coroutine of each task that `run` starts."""
        throttle = Pace().throttle
        for name, address in (("filter", self.settings.filter_listen), ("bind", self.settings.bind_listen)):
            yield name, Listener(self.verbs.routes(), security=self._security, throttle=throttle).serve(*address)
        yield "feed", self.feed.run()
        yield "events", self.events.run()
        yield "reports", self.reports.run()
        yield "levels", self._level_report.run()
        yield "nominations", self.core.nominator.run()
        yield "groups", self.core.loop.run()
        yield "leadership", self._lead()
        yield "isolation", self.isolation.run()
        if self.endpoint_slice is not None:
            yield "endpoint slice", self.endpoint_slice.run()
        yield "autoscalers", self.core.autoscalers.run(lambda: self.core.term.active)
        yield "hold switch", self.holding.run(lambda: self.core.term.active, lambda: len(self.core.groups.held))
        begin = lambda: self._on_leadership_change(self.leadership.active)  # noqa: E731
        yield "contested records", self.takeover.watch_contested(self._records.contested, begin)
        yield "readable records", self.takeover.watch_records(self._records.may_read, self._begin_next_term)
        yield "selfcheck", self.selfcheck.check_group_field(self._client, self._namespace)

    def _inherit(self) -> None:
        # Called before the first term, because recovery and planning must not give away the kept slots.
        self.store.earlier_slots.restore_vacancies(self._inherited)
        self._inherited = ()

    @property
    def kept(self) -> Sequence[Vacancy]:
        """The slots kept for replacements of ended members, also the inherited ones that are not in the Store yet."""
        return [*self._inherited, *self.store.vacancies]

    async def _lead(self) -> None:
        if self._election is not None and self.settings.lease is not None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.leadership.watch(self._client, self.settings.lease))
                tasks.create_task(self._take_part_in_election(self._election))
        elif self.settings.lease is not None:
            await self.leadership.watch(self._client, self.settings.lease)
        else:
            self.leadership.set_lease(UNCONTESTED)

    async def _take_part_in_election(self, election: Election) -> None:
        """Take part in the extenders' own election, once all caches are full.

        The election writes the Lease. ``leadership`` reads from the Lease whether this instance leads.
        """
        await self.feed.synced.wait()
        await Candidacy(
            election, self.leadership, self._idleness.may_keep_leading, self._cancel_requests, self._clock
        ).run()

    @property
    def _namespace(self) -> str:
        """The namespace in which this Serried is installed."""
        return (self.settings.lease or self.settings.hold_switch).namespace

    def readiness(self) -> dict[str, bool]:
        """Return the conditions of ``/readyz`` by name; all must be True.

        An instance that does not lead is ready once its caches are full, a leader once it has read the records. Where
        kube-scheduler calls a Service with a selector, only the leader is ready, because the Service selects ready
        pods.
        """
        ready = {
            "synced": self.feed.synced.is_set(),
            "records": self.core.term.plans or not self.leadership.active,
        }
        if self.settings.lease_mode == "hold" and self.endpoint_slice is None:
            ready["leads"] = self.leadership.leads()
        return ready

    def update_refused_versions(self, level: ApiLevel) -> None:
        """Pass the messages in ``level`` about API versions that Serried cannot use to the Store and the self-check.

        The reasons of waiting groups name these versions, and so does ``/debug/selfcheck``. Call it when only these
        messages have changed. If the API of PodGroups has changed, a new instance is built instead.
        """
        self.store.set_native_obstacle(level.native_problem)
        self.selfcheck.set_refused(level.refused)
        self.core.groups.wake()

    def routes(self) -> Sequence[APIRouter]:
        """Return the routes of the operations listener that are the extender's own: ``/debug`` and ``/livez``."""
        return [
            debug_routes(self.core, self.reports, self.level, self.selfcheck.describe),
            process_routes(self.settings, Comparison(self._client, self.feed)),
            live_routes(self.broadcast),
            Pair(
                self.settings.filter_listen,
                self.settings.scheduler_livez,
                self._idleness.may_keep_leading,
                self.settings.client_ca_file,
            ).routes(),
        ]


class ExtenderFactory:
    """Builds an `Extender`, and a new one whenever the API server starts to serve another API of PodGroups.

    Each takes over the slots that the one before kept for replacements of ended members.

    ``make`` is called with the client, the API level (API group and version of PodGroups) and these slots.
    """

    def __init__(self, make: Callable[[ApiClient, ApiLevel, Sequence[Vacancy]], Extender]) -> None:
        self._make = make
        self._last: Extender | None = None

    def build(self, client: ApiClient, level: ApiLevel) -> Extender:
        """Return a new extender for PodGroups of the API ``level``. The one from the last call must have ended."""
        kept = self._last.kept if self._last is not None else ()
        self._last = self._make(client, level, kept)
        return self._last


def secure_verbs(settings: ExtenderSettings) -> Security | None:
    """Return the TLS context for kube-scheduler's calls, and the check of the client's certificate.

    Return None, which means plain HTTP, if the settings have no file of client CAs. Raises CertificateError if
    a file cannot be used.
    """
    if settings.client_ca_file is None:
        return None
    files = CertificateFiles(
        settings.tls_cert_file or "", settings.tls_private_key_file or "", client_ca=settings.client_ca_file
    )
    allowed = settings.client_names
    return Security(ReloadingContext(files), lambda certificate: not allowed or bool(allowed & list_names(certificate)))


def trace_with(traces: Traces) -> Callable[[GroupKey, Sequence[Reached]], None]:
    """Return a callback that sends an OpenTelemetry trace of a gang whose quorum is bound.

    The trace is made of the gang's milestones with their times, such as planned, committed and bound.
    """

    def trace(group: GroupKey, way: Sequence[Reached]) -> None:
        about = {
            "k8s.namespace.name": group.namespace,
            "serried.group": group.encoded,
            "serried.kind": group.kind.value,
        }
        traces.send(f"gang {group}", about, [(reached.milestone.value, reached.at) for reached in way])

    return trace


def make_reports(
    client: ApiClient,
    store: Store,
    events: EventWriter,
    level: ApiLevel,
    clock: Callable[[], float],
    gives_way: Callable[[], bool] = lambda: False,
    find_place: Callable[[GroupKey], FirstQuorum | None] = lambda _: None,
) -> Reports:
    """Return the object that writes conditions and events about the groups of a Store.

    ``level`` is the API group and version at which PodGroups are written. While ``gives_way`` returns True the object
    delays its writes, so that Bindings get the API server's capacity. ``find_place`` returns the times that give a gang
    its place in the queue; None if it has no place. They are written to the gang's object, so that it keeps its place
    after a restart. ``clock`` returns loop seconds.
    """
    conditions = Conditions(client, level, store.groups, store.forest, members=store.members, find_place=find_place)
    return Reports(conditions, events, level, clock, store, gives_way)


def _read_options(settings: ExtenderSettings) -> Options:
    return Options(
        nomination=NominationPolicy(settings.stamp),
        nomination_window=settings.stamp_window,
        backfill=BackfillMode(settings.backfill),
        patience_seconds=settings.backfill_patience,
        share_percent=settings.namespace_share,
        plain=PlainPodRule(settings.backfill_plain),
        ageing_seconds=settings.queue_ageing,
        rules=RepairRules(settings.repair_seconds, settings.broken_grace, BrokenAction(settings.broken_gangs)),
        disrupted=DisruptionTrigger(settings.disrupted_gangs),
        preemption=PreemptionMode(settings.preemption),
        preempt_by=EvictionMethod(settings.preempt_by),
        preemption_timeout_seconds=settings.preemption_timeout,
        preemption_spare_seconds=settings.preemption_spare,
        autoscaler=Autoscaling(settings.autoscaler),
        ask_seconds=settings.ask_for,
        provisioning_class=settings.provisioning_class,
        autoscaler_keys=settings.autoscaler_labels,
        job_unknown_seconds=settings.job_unknown_deadline,
        bindings=settings.bind_concurrency,
        barrier_seconds=settings.barrier_deadline,
        barrier_idle_seconds=settings.barrier_idle,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the extender until SIGTERM or SIGINT.

    Return the exit code: 2 if a certificate file cannot be used, or if an extra package is missing.
    """
    settings = extender_settings(sys.argv[1:] if argv is None else argv)
    metrics = ExtenderMetrics()
    try:
        traces = make_traces(settings.traces) if settings.traces else None
        security = secure_verbs(settings)
    except (MissingExtraError, CertificateError) as error:
        sys.stderr.write(f"serried extender: {error}\n")
        return 2

    def make(client: ApiClient, level: ApiLevel, kept: Sequence[Vacancy]) -> Extender:
        extender = Extender(settings, client, level, metrics, security, kept)
        if traces is not None:
            extender.core.context.timelines.on_bound = trace_with(traces)
        return extender

    return run_process("extender", settings, settings.ops_listen, metrics, ExtenderFactory(make).build)
