"""The core of the extender, wired: state, decisions, and what carries them out, and the loop that has groups looked at.

No listener, no watch.

Each part is given what it needs in its constructor, and parts that are made later know those made before, never the
other way round.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from extender.autoscalers import Autoscalers
from extender.core.binding.binder import Binder, Window
from extender.core.binding.committed import EarlierBindings
from extender.core.binding.effects import Effects, OwnerLookup, Tasks
from extender.core.binding.nominator import Nominator
from extender.core.binding.records import Records
from extender.core.binding.recovery import Recovery, StrayNominations
from extender.core.binding.run import CycleRunner
from extender.core.feature import Feature
from extender.core.parts import Parts
from extender.core.scheduling.cycle_updates import CycleUpdates
from extender.core.scheduling.effects import Context
from extender.core.scheduling.group_scheduler import GroupScheduler
from extender.core.scheduling.planning import Planning
from extender.core.scheduling.planning_tasks import PlanningTasks
from extender.core.scheduling.queue import Queue
from extender.core.scheduling.scheduling_cycle import SchedulingCycle
from extender.core.service import ExtenderService
from extender.features.asking.asking import Asking
from extender.features.backfill import Backfill
from extender.features.disruption import Disruption
from extender.features.exclusive import Exclusive
from extender.features.kueue import KueueTopology
from extender.features.node_protection import NodeProtection
from extender.features.plain_pods import PlainPods
from extender.features.preemption.search import Preemptions
from extender.features.repair import Repairs
from serried.api.names import GroupKey
from serried.kube.client import ApiClient
from serried.ops.fork import Fork, fork
from serried.ops.log import name_group
from serried.ops.steps import Work

Result = TypeVar("Result")


log = logging.getLogger(__name__)


_TICK_SECONDS = 0.5
"""How often what waits for a time is looked at."""


_REST_FACTOR = 10.0
"""Freed room wakes groups after this many times the work that refusals took: filter is served by the loop, too."""


_MOST_OF_A_NAMESPACE = 100
"""How many groups of one namespace are looked at in a row while others of it, and those of others, wait."""


class Rounds:
    """Deals out the groups that are due, in rounds with so many of each namespace at most.

    A namespace with thousands of groups then waits for itself. Within a round the queue's order holds. A round is made
    in steps: of thousands of groups the order alone would keep filter waiting.
    """

    def __init__(self, in_turn: Callable[[set[GroupKey]], Work[list[GroupKey]]]) -> None:
        self._in_turn = in_turn
        self._left: dict[str, dict[GroupKey, None]] = {}
        """The groups of each namespace that have not had their turn, in their order."""

    def __bool__(self) -> bool:
        return bool(self._left)

    def clear(self) -> None:
        """Nobody is due any more."""
        self._left.clear()

    def next(self, due: set[GroupKey]) -> Work[list[GroupKey]]:
        """The next round: of what is due now, and of what was left."""
        counts: Counter[str] = Counter()
        chosen: set[GroupKey] = set()
        for key in (yield from self._in_turn(due)):
            left = self._left.setdefault(key.namespace, {})
            if counts[key.namespace] < _MOST_OF_A_NAMESPACE:
                left.pop(key, None)
                chosen.add(key)
                counts[key.namespace] += 1
            else:
                left[key] = None
        for namespace, left in list(self._left.items()):
            for key in list(islice(left, _MOST_OF_A_NAMESPACE - counts[namespace])):
                del left[key]
                chosen.add(key)
            if not left:
                del self._left[namespace]
        return (yield from self._in_turn(chosen))


class SchedulingLoop:
    """Looks, has decided, and has carried out."""

    def __init__(
        self, context: Context, planning: Planning, group_scheduler: GroupScheduler, *, runner: CycleRunner
    ) -> None:
        self._store = context.store
        self._groups = context.groups
        self._term = context.term
        self._planning = planning
        self._group_scheduler = group_scheduler
        self._runner = runner
        self._rounds = Rounds(group_scheduler.sort_by_turn)

        self.planned = -math.inf
        """When this instance last looked whether groups are due, or considered one, in its term; in loop seconds."""

    async def run(self) -> None:
        """Have groups considered until cancelled."""
        loop = asyncio.get_running_loop()
        tick = loop.time()
        rest_until = 0.0
        while True:
            await self._wait()
            if self._store.settle():
                self._groups.wake()
                await asyncio.sleep(0)
            if not self._term.active:
                self._group_scheduler.stand_by()
                self._rounds.clear()
                self._runner.carry_out()
                continue
            now = loop.time()
            self.planned = now
            self._planning.vain_seconds = 0.0
            due = self._group_scheduler.take_dirty()
            if now >= rest_until:
                due |= self._group_scheduler.take_woken()
            if now - tick >= _TICK_SECONDS:
                tick = now
                due |= await self._take_steps(self._group_scheduler.tick()) or set()
            self._runner.carry_out()
            await self.consider(due)
            rest_until = max(rest_until, loop.time() + _REST_FACTOR * self._planning.vain_seconds)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(_TICK_SECONDS):
                await self._groups.changed.wait()
        except TimeoutError:
            pass
        self._groups.changed.clear()

    async def consider(self, due: set[GroupKey]) -> None:
        """Have these groups considered, one after the other. Whatever goes wrong with one stops no other."""
        for key in await self._take_steps(self._rounds.next(due)) or ():
            if not self._term.active:
                return  # the term has ended between two groups
            self.planned = asyncio.get_running_loop().time()
            try:
                self._group_scheduler.consider(key)
            except Exception:
                log.exception("considering a group failed", extra=name_group(key))
                self._group_scheduler.retry_later(key)
            self._runner.carry_out()
            await asyncio.sleep(0)
        if self._rounds:
            self._groups.wake()

    async def _take_steps(self, work: Work[Result]) -> Result | None:
        """The result of work between whose steps others have their turn; None if the term ends before it is done."""
        while self._term.active:
            try:
                next(work)
            except StopIteration as done:
                result: Result = done.value
                return result
            self._runner.carry_out()
            await asyncio.sleep(0)
        work.close()
        return None


FEATURES: tuple[Callable[[Parts], Feature], ...] = (
    Repairs,
    Disruption,
    KueueTopology,
    Exclusive,
    Backfill,
    Preemptions,
    Asking,
    PlainPods,
    NodeProtection,
)
"""What has a say beside the core, in this order.

What a gang is refused with is said by those before `Preemptions`, which looks for victims only then. `Asking` comes
after it: nodes are bought for those for whom nobody goes.
"""

F = TypeVar("F", bound=Feature)


class Core:
    """The parts. ``records`` writes for this instance's term; ``stopwatch`` and ``fork`` are for `PlanningTasks`.

    ``features`` make what has a say beside it.
    """

    def __init__(
        self,
        client: ApiClient,
        context: Context,
        records: Records,
        *,
        stopwatch: Callable[[], float] = time.thread_time,
        fork: Fork | None = fork,
        features: Iterable[Callable[[Parts], Feature]] = FEATURES,
    ) -> None:
        self.context = context
        self.fork = fork
        self.store = context.store
        self.term = context.term
        self.clock = context.clock
        self.ledger = context.ledger
        self.outbox = context.outbox
        self.groups = context.groups
        self.planning_tasks = PlanningTasks(context, stopwatch, fork)
        self.planning = Planning(context, self.planning_tasks)
        self.queue = Queue(context, self.planning_tasks, self.planning)
        self.cycle_updates = CycleUpdates(context, self.queue, self.planning)
        self._scheduling_cycle = SchedulingCycle(context, self.queue, self.planning, self.cycle_updates.endings)
        self.group_scheduler = GroupScheduler(context, self.queue, self._scheduling_cycle, self.cycle_updates)
        self._wire_effects(client, context, records)
        reassignments = self.cycle_updates.reassignments
        self.autoscalers = Autoscalers(client, context.options.autoscaler, self.groups.wake)
        parts = Parts(
            context,
            client,
            self.planning_tasks,
            self.queue,
            reassignments,
            self.nominator,
            records,
            self.autoscalers,
        )
        context.features.install([make(parts) for make in features])

    def _wire_effects(self, client: ApiClient, context: Context, records: Records) -> None:
        self.tasks = Tasks()
        self.nominator = Nominator(client, context)
        binder = Binder(client, Window(context.options.bindings))
        owner_lookup = OwnerLookup(client, context.groups, context.clock)
        effects = Effects(self.nominator, owner_lookup, self.planning_tasks, self.tasks)
        earlier = EarlierBindings(client, context)
        self.runner = CycleRunner(context, self.group_scheduler, self.cycle_updates, effects, records, binder, earlier)
        strays = StrayNominations(client, context, nominator=self.nominator)
        self.recovery = Recovery(context, records, earlier, strays, self._scheduling_cycle, self.runner)
        self.loop = SchedulingLoop(context, self.planning, self.group_scheduler, runner=self.runner)
        self.service = ExtenderService(context, self.cycle_updates, self.nominator, self.runner, binder)

    def feature(self, kind: type[F]) -> F:
        """The feature of this class. Raises LookupError where it was left out."""
        for each in self.context.features.all:
            if isinstance(each, kind):
                return each
        raise LookupError(kind.__name__)

    @property
    def backfill(self) -> Backfill:
        """What keeps room for the head of the queue."""
        return self.feature(Backfill)

    @property
    def node_protection(self) -> NodeProtection:
        """What protects nodes from autoscalers."""
        return self.feature(NodeProtection)

    @property
    def preemptions(self) -> Preemptions:
        """What looks for victims."""
        return self.feature(Preemptions)

    def end_term(self) -> None:
        """Another instance may lead from now on: all that goes on here ends, and nothing more is written."""
        self.group_scheduler.end_term()
        for uid in self.runner.end_term():
            # kube-scheduler may know nothing of it: the next term of ours wakes it.
            self.groups.held.add(uid, self.clock())
