"""The core of the extender, wired: state, decisions, and what carries them out. No listener, no watch.

Each part is given what it needs in its constructor, and parts that are made later know those made before, never the
other way round.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from extender.binding.binder import Binder, Window
from extender.binding.committed import EarlierBindings
from extender.binding.effects import Effects, OwnerLookup, Tasks
from extender.binding.evictions import Evictions
from extender.binding.nominator import Nominator
from extender.binding.preempting import Preempting
from extender.binding.records import Records
from extender.binding.recovery import Recovery, StrayNominations
from extender.binding.run import CycleRunner
from extender.loop import SchedulingLoop
from extender.scheduling.effects import Context
from extender.scheduling.group_scheduler import GroupScheduler
from extender.scheduling.members import CycleTending
from extender.scheduling.plain_pods import PlainPods
from extender.scheduling.planning import Planning
from extender.scheduling.preemption import Preemptions
from extender.scheduling.queue import Queue
from extender.scheduling.repair import Repairs
from extender.scheduling.scheduling_cycle import SchedulingCycle
from extender.scheduling.studies import Studies
from extender.service import ExtenderService
from serried.kube.client import ApiClient


class Core:
    """The parts. ``records`` writes for this instance's term; ``stopwatch`` and ``rest`` are those of `Studies`."""

    def __init__(
        self,
        client: ApiClient,
        context: Context,
        records: Records,
        *,
        stopwatch: Callable[[], float] = time.perf_counter,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.context = context
        self.store = context.store
        self.term = context.term
        self.clock = context.clock
        self.ledger = context.ledger
        self.outbox = context.outbox
        self.groups = context.groups
        self.studies = Studies(context, stopwatch, rest)
        self.planning = Planning(context, self.studies)
        self.queue = Queue(context, self.studies, self.planning)
        self._wire_decisions(context)
        self._wire_effects(client, context, records)

    def _wire_decisions(self, context: Context) -> None:
        queue = self.queue
        self.preemptions = Preemptions(context, self.studies, queue.backfill)
        self._repairs = Repairs(context, queue.backlog)
        self._plain_pods = PlainPods(context, queue.backfill)
        self.tending = CycleTending(context, queue, self._repairs, self.planning)
        self._scheduling_cycle = SchedulingCycle(context, queue, self.planning, self.preemptions, self.tending.endings)
        self.group_scheduler = GroupScheduler(
            context, queue, self._repairs, self._plain_pods, self._scheduling_cycle, self.tending
        )

    def _wire_effects(self, client: ApiClient, context: Context, records: Records) -> None:
        self.tasks = Tasks()
        self.nominator = Nominator(client, context)
        binder = Binder(client, Window(context.options.bindings))
        owner_lookup = OwnerLookup(client, context.groups, context.clock)
        effects = Effects(self.nominator, Evictions(client, context), owner_lookup, self.studies, self.tasks)
        moves, earlier = self.tending.moves, EarlierBindings(client, context)
        self.preempting = Preempting(client, context, self.nominator, records, moves, self.preemptions)
        self.runner = CycleRunner(
            context, self.group_scheduler, self.tending, effects, self.preempting, records, binder, earlier
        )
        strays = StrayNominations(client, context, nominator=self.nominator)
        self.recovery = Recovery(
            context, records, earlier, strays, self._scheduling_cycle, self.runner, self.preempting, self._repairs
        )
        self.loop = SchedulingLoop(context, self.planning, self.group_scheduler, runner=self.runner)
        self.service = ExtenderService(context, self._plain_pods, self.tending, self.nominator, self.runner, binder)

    def end_term(self) -> None:
        """Another instance may lead from now on: all that goes on here ends, and nothing more is written."""
        self.group_scheduler.end_term()
        for uid in self.runner.end_term():
            # kube-scheduler may know nothing of it: the next term of ours wakes it.
            self.groups.held.note(uid, self.clock())
