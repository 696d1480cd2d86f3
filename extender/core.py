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
from extender.binding.effects import Effects
from extender.binding.evictions import Evictions
from extender.binding.nominator import Nominator
from extender.binding.recovery import Adoption
from extender.binding.reservations import Records
from extender.binding.run import CycleRunner
from extender.binding.tasks import Tasks
from extender.loop import SchedulingLoop
from extender.scheduling.activity import SchedulerActivity
from extender.scheduling.backfill import PATIENCE, Mode
from extender.scheduling.effects import Outbox
from extender.scheduling.endings import CycleEndings
from extender.scheduling.group_scheduler import GroupScheduler
from extender.scheduling.groups import Groups
from extender.scheduling.held import HeldPods
from extender.scheduling.moves import Moves
from extender.scheduling.nomination import Stamps
from extender.scheduling.offers import Offers
from extender.scheduling.permit import Permit
from extender.scheduling.planning import Planning
from extender.scheduling.queue import Queue
from extender.scheduling.repairs import USUAL, Repairs, Rules
from extender.scheduling.seats import SeatPlanner, Seats
from extender.scheduling.status_sink import StatusSink
from extender.scheduling.studies import Studies
from extender.scheduling.term import Term
from extender.service import ExtenderService
from serried.cluster.ledger import Ledger
from serried.cluster.store import Store
from serried.kube.client import ApiClient
from serried.metrics import ExtenderMetrics


@dataclass(frozen=True, slots=True)
class Options:
    """What may be chosen of the core. ``total`` and ``idle`` are the deadlines of the barrier; times are seconds."""

    stamps: Stamps = Stamps.AUTO
    stamp_window: int = 512
    backfill: Mode = Mode.FORECAST
    patience: float = PATIENCE
    ageing: float = math.inf
    rules: Rules = USUAL
    job_unknown_deadline: float = 30.0
    bindings: int = 64
    total: float = 300.0
    idle: float = 60.0


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
        self.ledger = Ledger(store.occupancy)
        self.outbox = Outbox()
        self.groups = Groups(store, self.ledger, status)
        self.held = HeldPods(store.pods)
        self.activity = SchedulerActivity(store, clock)

        # What decides.
        self.studies = Studies(store, self.groups, self.outbox, stopwatch, rest=rest)
        self.planning = Planning(store, self.studies, self.groups, clock, metrics=metrics)
        seats = Seats(store)
        self.queue = Queue(
            store,
            clock,
            wall,
            studies=self.studies,
            planner=SeatPlanner(store, seats, self.planning.plan).plan,
            metrics=metrics,
            mode=options.backfill,
            patience=options.patience,
            ageing=options.ageing,
        )
        repairs = Repairs(store, seats, self.outbox, clock, status=status, metrics=metrics, rules=options.rules)
        permit = Permit(store, term.leads)
        moves = Moves(
            store,
            self.ledger,
            self.groups,
            self.held,
            permit=permit,
            repairs=repairs,
            planning=self.planning,
            planner=SeatPlanner(store, seats, self.planning.plan_at_once),
            outbox=self.outbox,
            clock=clock,
        )
        offers = Offers(store, self.groups, moves, clock)
        endings = CycleEndings(store, self.ledger, self.groups, self.queue, outbox=self.outbox, clock=clock)
        self.group_scheduler = GroupScheduler(
            store,
            self.ledger,
            self.groups,
            self.held,
            term=term,
            queue=self.queue,
            studies=self.studies,
            planning=self.planning,
            seats=seats,
            repairs=repairs,
            permit=permit,
            moves=moves,
            offers=offers,
            endings=endings,
            activity=self.activity,
            outbox=self.outbox,
            clock=clock,
            stamps=options.stamps,
            job_unknown_deadline=options.job_unknown_deadline,
        )

        # What carries out.
        self.tasks = Tasks()
        self.nominator = Nominator(
            client, store, self.activity, clock, policy=options.stamps, window=options.stamp_window
        )
        evictions = Evictions(client, store, self.groups, term)
        binder = Binder(client, Window(options.bindings))
        self.runner = CycleRunner(
            store,
            self.ledger,
            term,
            self.group_scheduler,
            permit=permit,
            moves=moves,
            endings=endings,
            activity=self.activity,
            outbox=self.outbox,
            effects=Effects(self.nominator, evictions, self.studies, self.tasks),
            records=records,
            binder=binder,
            metrics=metrics,
            clock=clock,
            total=options.total,
            idle=options.idle,
        )
        self.adoption = Adoption(
            store,
            self.ledger,
            self.groups,
            term,
            endings=endings,
            group_scheduler=self.group_scheduler,
            runner=self.runner,
            nominator=self.nominator,
            records=records,
            client=client,
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
            group_scheduler=self.group_scheduler,
            nominator=self.nominator,
            runner=self.runner,
            binder=binder,
            client=client,
            clock=clock,
        )

    def end_term(self) -> None:
        """Another instance may lead from now on: all that goes on here ends, and nothing more is written."""
        self.group_scheduler.end_term()
        self.runner.end_term()
