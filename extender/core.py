"""The core of the extender, wired: state, decisions, and what carries them out. No listener, no watch.

Each part is given what it needs in its constructor, and parts that are made later know those made before, never the
other way round.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from extender.binding.binder import Binder, Window
from extender.binding.committed import EarlierBindings, UnseenMembers
from extender.binding.effects import Effects, OwnerLookup, Tasks
from extender.binding.evictions import Evictions
from extender.binding.nominator import Nominator
from extender.binding.preempting import TIMEOUT_SECONDS, Preempting
from extender.binding.records import Records
from extender.binding.recovery import Recovery, StrayNominations
from extender.binding.run import CycleRunner
from extender.loop import SchedulingLoop
from extender.scheduling.backfill import PATIENCE_SECONDS, Backfill, Mode
from extender.scheduling.backlog import ALL_PERCENT, Backlog, QueueOrder
from extender.scheduling.disruption import Disrupted, Disruptions
from extender.scheduling.effects import Context, Outbox
from extender.scheduling.group import Groups, Term
from extender.scheduling.group_scheduler import GroupScheduler
from extender.scheduling.members import CycleTending, Moves, Offers
from extender.scheduling.permit import Permit
from extender.scheduling.plain_pods import PlainPods, PlainRule
from extender.scheduling.planning import KeptSlotPlanner, KeptSlots, Planning
from extender.scheduling.preemption import Method, Preemptions
from extender.scheduling.preemption import Mode as PreemptionMode
from extender.scheduling.queue import Queue
from extender.scheduling.repair import USUAL, Repairs, Rules
from extender.scheduling.request import ExclusiveShares
from extender.scheduling.scheduling_cycle import CycleEndings, NominationPolicy, SchedulingCycle
from extender.scheduling.studies import Studies
from extender.scheduling.units import Units
from extender.service import ExtenderService
from extender.status.timeline import StatusSink, Timelines
from serried.cluster.cache import Store
from serried.cluster.ledger import Ledger
from serried.cluster.run_times import PodEnds
from serried.kube.client import ApiClient
from serried.ops.metrics import ExtenderMetrics


@dataclass(frozen=True, slots=True)
class Options:
    """What may be chosen of the core."""

    nomination: NominationPolicy = NominationPolicy.AUTO

    nomination_window: int = 512
    """How many nominated members may be without a filter call at a time."""

    backfill: Mode = Mode.FORECAST

    patience_seconds: float = PATIENCE_SECONDS
    """How long room is kept for the head of the queue beyond its forecast at first."""

    share_percent: int = ALL_PERCENT
    """How many of all nodes, or of the domains of a key, are kept for the gangs of one namespace at most."""

    plain: PlainRule = PlainRule.PASS
    """Whether pods of no gang are kept off the nodes of the head of the queue."""

    ageing_seconds: float = math.inf
    """How long a gang waits before it counts as of the next higher priority."""

    rules: Rules = USUAL
    """What is done for broken gangs."""

    disrupted: Disrupted = Disrupted.PREEMPTED
    """When a gang goes with one of its members."""

    preemption: PreemptionMode = PreemptionMode.ON

    preempt_by: Method = Method.EVICTION

    preemption_timeout_seconds: float = TIMEOUT_SECONDS
    """How long victims may take to end."""

    preemption_spare_seconds: float = 0.0
    """How long what has just started is spared from a gang of the next higher priority."""

    job_unknown_seconds: float = 30.0
    """How long a pod is held whose Job is not known, before the API server is asked whether there is one."""

    bindings: int = 64
    """How many Bindings may be in flight at first."""

    barrier_seconds: float = 300.0
    """How long a member's bind call waits for its gang at most."""

    barrier_idle_seconds: float = 60.0
    """The same without any progress."""


class Core:
    """The parts. ``term`` is this instance's, ``records`` writes for it.

    ``wall`` gives seconds since 1970, ``clock`` loop seconds; ``stopwatch`` and ``rest`` are those of `Studies`.
    """

    def __init__(
        self,
        client: ApiClient,
        store: Store,
        term: Term,
        records: Records,
        *,
        status: StatusSink,
        metrics: ExtenderMetrics,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
        stopwatch: Callable[[], float] = time.perf_counter,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
        options: Options,
    ) -> None:
        self.store = store
        self.term = term
        self.clock = clock
        self.wall = wall
        self.options = options
        self.ledger = Ledger(store.occupancy, store.yields)
        self.outbox = Outbox()
        self.timelines = Timelines(wall)
        self.groups = Groups(
            store,
            self.ledger,
            status,
            self.timelines,
            clock,
            metrics=metrics,
            job_unknown_seconds=options.job_unknown_seconds,
        )
        self.held = self.groups.held
        self.activity = self.groups.activity
        self.studies = Studies(
            store.nodes,
            store.members,
            store.snapshots,
            store.capacity,
            groups=self.groups,
            outbox=self.outbox,
            stopwatch=stopwatch,
            rest=rest,
        )
        self.context = Context(
            store, self.ledger, self.groups, term, self.outbox, status, self.timelines, metrics, clock, wall
        )
        self._wire_decisions(self.context, options)
        self._wire_effects(client, self.context, records, options)

    def _wire_decisions(self, context: Context, options: Options) -> None:
        store, self.planning = self.store, Planning(context, self.studies)
        kept_slots = KeptSlots(store)
        order = QueueOrder(context, ageing_seconds=options.ageing_seconds)
        backlog = Backlog(store.nodes, store.occupancy.used)
        self.queue = Queue(
            context,
            order,
            backlog,
            self._make_backfill(context, order, options),
            self.studies,
            planner=KeptSlotPlanner(store, kept_slots, self.planning.plan).plan,
        )
        self._plain_pods = PlainPods(context, self.queue.backfill, rule=options.plain, disrupted=options.disrupted)
        self._repairs = Repairs(context, kept_slots, backlog, rules=options.rules, share_percent=options.share_percent)
        self._permit = Permit(store, self.ledger, self.groups, self.term.leads)
        self._moves = Moves(
            context,
            permit=self._permit,
            repairs=self._repairs,
            planning=self.planning,
            planner=KeptSlotPlanner(store, kept_slots, self.planning.plan_at_once),
        )
        self._offers = Offers(context, moves=self._moves)
        self._endings = CycleEndings(context, self.queue)
        self.tending = CycleTending(
            context, permit=self._permit, moves=self._moves, offers=self._offers, endings=self._endings
        )
        self.preemptions = Preemptions(
            context,
            Units(context),
            self.studies,
            kept_slots,
            self.queue.backfill,
            mode=options.preemption,
            method=options.preempt_by,
            spare_seconds=options.preemption_spare_seconds,
        )
        self.exclusive_shares = ExclusiveShares(context, options.share_percent)
        self._scheduling_cycle = SchedulingCycle(
            context,
            self.queue,
            self.planning,
            exclusive_shares=self.exclusive_shares,
            kept_slots=kept_slots,
            preemptions=self.preemptions,
            endings=self._endings,
            nomination=options.nomination,
        )
        self.group_scheduler = GroupScheduler(
            context,
            queue=self.queue,
            repairs=self._repairs,
            disruptions=Disruptions(context, rule=options.disrupted, method=options.preempt_by),
            plain_pods=self._plain_pods,
            scheduling_cycle=self._scheduling_cycle,
            tending=self.tending,
            endings=self._endings,
        )

    def _make_backfill(self, context: Context, order: QueueOrder, options: Options) -> Backfill:
        store = self.store
        pod_ends = PodEnds(
            store.pods,
            store.groups,
            store.members,
            store.occupancy,
            store.vacancies,
            endings=store.endings,
            clock=self.clock,
            wall=self.wall,
        )
        return Backfill(
            context,
            order,
            pod_ends,
            self.studies,
            mode=options.backfill,
            patience_seconds=options.patience_seconds,
            share_percent=options.share_percent,
        )

    def _wire_effects(self, client: ApiClient, context: Context, records: Records, options: Options) -> None:
        self.tasks = Tasks()
        self.nominator = Nominator(
            client,
            self.store,
            self.activity,
            self.clock,
            policy=options.nomination,
            window=options.nomination_window,
        )
        binder = Binder(client, Window(options.bindings))
        owner_lookup = OwnerLookup(client, self.groups, self.clock)
        effects = Effects(self.nominator, Evictions(client, context), owner_lookup, self.studies, self.tasks)
        self.preempting = Preempting(
            client,
            context,
            self.nominator,
            records=records,
            permit=self._permit,
            moves=self._moves,
            preemptions=self.preemptions,
            timeout_seconds=options.preemption_timeout_seconds,
        )
        earlier = EarlierBindings(context, UnseenMembers(client, context))
        self.runner = CycleRunner(
            context,
            self.group_scheduler,
            tending=self.tending,
            permit=self._permit,
            moves=self._moves,
            endings=self._endings,
            effects=effects,
            preempting=self.preempting,
            records=records,
            binder=binder,
            earlier=earlier,
            total=options.barrier_seconds,
            idle=options.barrier_idle_seconds,
        )
        self.recovery = Recovery(
            context,
            records=records,
            earlier=earlier,
            stray_nominations=StrayNominations(client, context, nominator=self.nominator),
            scheduling_cycle=self._scheduling_cycle,
            endings=self._endings,
            runner=self.runner,
            preempting=self.preempting,
            repairs=self._repairs,
        )
        self.loop = SchedulingLoop(context, self.planning, self.group_scheduler, runner=self.runner)
        self.service = ExtenderService(
            context,
            moves=self._moves,
            offers=self._offers,
            plain_pods=self._plain_pods,
            tending=self.tending,
            nominator=self.nominator,
            runner=self.runner,
            binder=binder,
        )

    def end_term(self) -> None:
        """Another instance may lead from now on: all that goes on here ends, and nothing more is written."""
        self.group_scheduler.end_term()
        for uid in self.runner.end_term():
            self.held.note(uid, self.clock())  # kube-scheduler may know nothing of it: the next term of ours wakes it
