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
from extender.scheduling.backfill import PATIENCE_SECONDS, Backfill, Mode, PlainPods, PlainRule
from extender.scheduling.backlog import Backlog, QueueOrder
from extender.scheduling.disruption import Candidates, Disrupted, Disruptions, OverlookedPreemptors, RefusedPreemptors
from extender.scheduling.effects import Outbox
from extender.scheduling.group import Groups, HeldPods, SchedulerActivity, Term
from extender.scheduling.group_scheduler import GroupScheduler
from extender.scheduling.members import CycleTending, Moves, Offers
from extender.scheduling.permit import Permit
from extender.scheduling.planning import KeptSlotPlanner, KeptSlots, Planning
from extender.scheduling.preemption import Method, Preemptions, Refusals
from extender.scheduling.preemption import Mode as PreemptionMode
from extender.scheduling.queue import Queue
from extender.scheduling.repair import USUAL, Repairs, Rules, SlotShares
from extender.scheduling.request import ExclusiveShares
from extender.scheduling.scheduling_cycle import CycleEndings, NominationPolicy, SchedulingCycle
from extender.scheduling.studies import Studies
from extender.scheduling.units import Units
from extender.service import ExtenderService
from extender.status.timeline import Chronicle, StatusSink, Timelines
from serried.cluster.cache import Store
from serried.cluster.ledger import Ledger
from serried.cluster.priorities import Companies
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

    backfill_share_percent: int = 100
    """Of how many of all nodes room is kept for a gang of one namespace at most."""

    exclusive_share_percent: int = 100
    """How many of the domains of a key the exclusive gangs of one namespace may have."""

    repair_share_percent: int = 100
    """On how many of all nodes slots are kept for the gangs of one namespace."""

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
        status = Chronicle(self.timelines, status)
        self.groups = Groups(store.touched, store.members, self.ledger, status, clock, metrics=metrics)
        self.held = HeldPods(store.pods)
        self.activity = SchedulerActivity(store, clock)

        # What decides.
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
        self.planning = Planning(store.members, self.studies, self.groups, clock, metrics=metrics)
        kept_slots = KeptSlots(store)
        order = QueueOrder(store.priorities, store.vacancies, clock, ageing_seconds=options.ageing_seconds)
        pod_ends = PodEnds(
            store.pods,
            store.groups,
            store.members,
            store.occupancy,
            store.vacancies,
            endings=store.endings,
            clock=clock,
            wall=wall,
        )
        backfill = Backfill(
            store.nodes,
            order,
            pod_ends,
            self.studies,
            metrics=metrics,
            clock=clock,
            wall=wall,
            mode=options.backfill,
            patience_seconds=options.patience_seconds,
            share_percent=options.backfill_share_percent,
        )
        backlog = Backlog(store.nodes, store.occupancy.used)
        self.queue = Queue(
            order,
            backlog,
            backfill,
            self.studies,
            planner=KeptSlotPlanner(store, kept_slots, self.planning.plan).plan,
            occupancy=store.occupancy,
            nominations=store.nominations,
            clock=clock,
        )
        repairs = Repairs(
            store,
            kept_slots,
            SlotShares(store, backlog, options.repair_share_percent),
            self.outbox,
            clock=clock,
            status=status,
            metrics=metrics,
            rules=options.rules,
        )
        permit = Permit(store, self.ledger, self.groups, term.leads)
        moves = Moves(
            store,
            self.ledger,
            self.groups,
            self.held,
            permit=permit,
            repairs=repairs,
            planning=self.planning,
            planner=KeptSlotPlanner(store, kept_slots, self.planning.plan_at_once),
            outbox=self.outbox,
            clock=clock,
        )
        offers = Offers(
            store.pods,
            store.nodes,
            store.members,
            store.uncounted,
            groups=self.groups,
            moves=moves,
            activity=self.activity,
            clock=clock,
        )
        endings = CycleEndings(
            store,
            self.ledger,
            self.groups,
            self.queue,
            activity=self.activity,
            outbox=self.outbox,
            clock=clock,
        )
        companies = Companies(store.pods, store.groups, store.members)
        disruptions = Disruptions(
            store.pods,
            store.members,
            store.membership,
            store.forest,
            companies=companies,
            vacancies=store.vacancies,
            yields=store.yields,
            outbox=self.outbox,
            status=status,
            rule=options.disrupted,
            method=options.preempt_by,
        )
        refused_preemptors = RefusedPreemptors(self.groups, self.outbox)
        overlooked_preemptors = OverlookedPreemptors(store, self.outbox, clock)
        candidates = Candidates(
            store.pods,
            store.members,
            companies,
            store.occupancy,
            priorities=store.priorities,
            groups=self.groups,
            refused=refused_preemptors,
            rule=options.disrupted,
        )
        plain_pods = PlainPods(
            store.pods, store.schedulers, backfill, self.ledger, outbox=self.outbox, clock=clock, rule=options.plain
        )
        refusals = Refusals(clock)
        self.preemptions = Preemptions(
            Units(
                store.pods,
                store.nodes,
                store.groups,
                store.members,
                companies,
                priorities=store.priorities,
                budgets=store.budgets,
                yields=store.yields,
                groups=self.groups,
                profiles=store.profiles,
                rivals=store.rivals,
                find_refusal=refusals.find,
            ),
            self.studies,
            kept_slots,
            backfill,
            snapshots=store.snapshots,
            priorities=store.priorities,
            running_priorities=store.running_priorities,
            refusals=refusals,
            metrics=metrics,
            clock=clock,
            wall=wall,
            mode=options.preemption,
            method=options.preempt_by,
            spare_seconds=options.preemption_spare_seconds,
        )
        self.exclusive_shares = ExclusiveShares(store, self.ledger, options.exclusive_share_percent)
        scheduling_cycle = SchedulingCycle(
            store,
            self.ledger,
            self.queue,
            self.planning,
            exclusive_shares=self.exclusive_shares,
            kept_slots=kept_slots,
            preemptions=self.preemptions,
            groups=self.groups,
            endings=endings,
            held=self.held,
            outbox=self.outbox,
            clock=clock,
            nomination=options.nomination,
        )
        self.tending = CycleTending(
            store,
            self.ledger,
            self.groups,
            term,
            permit=permit,
            moves=moves,
            offers=offers,
            endings=endings,
            activity=self.activity,
            outbox=self.outbox,
            clock=clock,
        )
        self.group_scheduler = GroupScheduler(
            store,
            self.groups,
            self.held,
            term,
            queue=self.queue,
            planning=self.planning,
            repairs=repairs,
            disruptions=disruptions,
            plain_pods=plain_pods,
            refused_preemptors=refused_preemptors,
            overlooked_preemptors=overlooked_preemptors,
            scheduling_cycle=scheduling_cycle,
            tending=self.tending,
            endings=endings,
            outbox=self.outbox,
            clock=clock,
            wall=wall,
            job_unknown_seconds=options.job_unknown_seconds,
        )

        # What carries out.
        self.tasks = Tasks()
        self.nominator = Nominator(
            client, store, self.activity, clock, policy=options.nomination, window=options.nomination_window
        )
        evictions = Evictions(client, store, self.groups, term)
        binder = Binder(client, Window(options.bindings))
        owner_lookup = OwnerLookup(client, self.groups, clock)
        effects = Effects(self.nominator, evictions, owner_lookup, self.studies, self.tasks)
        self.preempting = Preempting(
            client,
            store,
            term,
            self.nominator,
            records=records,
            permit=permit,
            moves=moves,
            preemptions=self.preemptions,
            companies=companies,
            status=status,
            metrics=metrics,
            clock=clock,
            method=options.preempt_by,
            timeout_seconds=options.preemption_timeout_seconds,
        )
        unseen = UnseenMembers(client, store.pods, term)
        earlier = EarlierBindings(store, self.ledger, term, unseen)
        self.runner = CycleRunner(
            store,
            self.ledger,
            term,
            self.group_scheduler,
            tending=self.tending,
            permit=permit,
            moves=moves,
            endings=endings,
            activity=self.activity,
            outbox=self.outbox,
            effects=effects,
            preempting=self.preempting,
            records=records,
            binder=binder,
            earlier=earlier,
            metrics=metrics,
            clock=clock,
            total=options.barrier_seconds,
            idle=options.barrier_idle_seconds,
        )
        self.recovery = Recovery(
            store,
            self.ledger,
            self.groups,
            term,
            records=records,
            unseen=unseen,
            earlier=earlier,
            stray_nominations=StrayNominations(
                client, store.pods, store.members, self.ledger, nominator=self.nominator, term=term
            ),
            scheduling_cycle=scheduling_cycle,
            endings=endings,
            runner=self.runner,
            preempting=self.preempting,
            repairs=repairs,
            clock=clock,
        )
        self.loop = SchedulingLoop(self.groups, term, self.planning, self.group_scheduler, runner=self.runner)
        self.service = ExtenderService(
            store,
            self.groups,
            self.held,
            self.activity,
            moves=moves,
            offers=offers,
            candidates=candidates,
            plain_pods=plain_pods,
            overlooked_preemptors=overlooked_preemptors,
            tending=self.tending,
            nominator=self.nominator,
            runner=self.runner,
            binder=binder,
            client=client,
            timelines=self.timelines,
            clock=clock,
        )

    def end_term(self) -> None:
        """Another instance may lead from now on: all that goes on here ends, and nothing more is written."""
        self.group_scheduler.end_term()
        for uid in self.runner.end_term():
            self.held.note(uid, self.clock())  # kube-scheduler may know nothing of it: the next term of ours wakes it
