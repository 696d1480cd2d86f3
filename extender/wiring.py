"""The wiring of the extender's core: `Core` creates its parts, and `SchedulingLoop.run` plans the groups that are due.

A group is due if it has changed, if freed resources could help it, or if a periodic check asks for it.

The core has no listener and no watch. `extender.process` adds them; tests and simulations do without.

Each part gets the other parts that it needs in its constructor, so it knows only parts that were created before it.
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
from extender.core.binding.binder import Binder, BindWindow
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
"""The pause between two rounds of periodic work, such as checking deadlines, in seconds."""


_REST_FACTOR = 10.0
"""The pause after plans of groups that did not fit, as a multiple of the time that these plans took.

If they took 0.1 s, freed resources make no group due for the next 1 s, because the same event loop answers filter.
Other reasons, such as a changed pod, make groups due all the same.
"""


_MOST_OF_A_NAMESPACE = 100
"""The largest number of groups of one namespace in one round."""


class Rounds:
    """Divides the groups that are due into rounds, with at most `_MOST_OF_A_NAMESPACE` groups per namespace in each.

    So a namespace with thousands of groups does not delay other namespaces. An instance is true while groups are left
    for later rounds. ``sort`` sorts groups into queue order, in steps, because sorting thousands at once would delay
    filter.
    """

    def __init__(self, sort: Callable[[set[GroupKey]], Work[list[GroupKey]]]) -> None:
        self._sort = sort
        self._left: dict[str, dict[GroupKey, None]] = {}
        """The groups that are left for later rounds, by namespace. The dict is an ordered set, in queue order."""

    def __bool__(self) -> bool:
        return bool(self._left)

    def clear(self) -> None:
        """Forget the groups that are left for later rounds."""
        self._left.clear()

    def next(self, due: set[GroupKey]) -> Work[list[GroupKey]]:
        """Return the groups of the next round in queue order, as work that is done in steps.

        They are chosen from the groups that have become ``due`` and those left by earlier rounds. The rest is left
        again.
        """
        counts: Counter[str] = Counter()
        chosen: set[GroupKey] = set()
        for key in (yield from self._sort(due)):
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
        return (yield from self._sort(chosen))


class SchedulingLoop:
    """The loop that considers each group that is due: it plans the group, or finds out why it cannot be placed.

    A group is due if it has changed, if freed resources could help it, or if a periodic check asks for it. After each
    group the loop carries out the decision, for instance starts a binding cycle. One task of the process.
    """

    def __init__(
        self, context: Context, planning: Planning, group_scheduler: GroupScheduler, *, runner: CycleRunner
    ) -> None:
        self._store = context.store
        self._groups = context.groups
        self._term = context.term
        self._planning = planning
        self._group_scheduler = group_scheduler
        self._runner = runner
        self._rounds = Rounds(group_scheduler.sort_in_queue_order)

        self.planned = -math.inf
        """The loop time at which this instance last looked for due groups, or considered one, while it led.

        The watchdog of the process reads it: a leader that does not plan for long must give up the Lease.
        """

    async def run(self) -> None:
        """Consider groups when they become due, and do periodic work twice per second. Run until cancelled.

        No group is considered, and no periodic work is done, before the recovery of a term and between terms.
        """
        loop = asyncio.get_running_loop()
        tick = loop.time()
        rest_until = 0.0
        while True:
            await self._wait()
            if self._store.apply_rule_changes():
                self._groups.wake()
                await asyncio.sleep(0)
            if not self._term.active:
                self._group_scheduler.drop_queued()
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
                due |= await self._take_steps(self._group_scheduler.run_periodic_work()) or set()
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
        """Consider the groups of the next round, one after the other, until the term ends.

        ``due`` are the groups that have become due: they have changed, or freed resources could help them. A round has
        only some groups of each namespace (`Rounds`); the others are left for the next one. An exception for one group
        is logged, and that group is tried later.
        """
        for key in await self._take_steps(self._rounds.next(due)) or ():
            if not self._term.active:
                return  # the term has ended between two groups
            self.planned = asyncio.get_running_loop().time()
            try:
                self._group_scheduler.consider(key)
            except Exception:
                log.exception(
                    "could not plan a group because of an internal error; trying it later", extra=name_group(key)
                )
                self._group_scheduler.retry_later(key)
            self._runner.carry_out()
            await asyncio.sleep(0)
        if self._rounds:
            self._groups.wake()

    async def _take_steps(self, work: Work[Result]) -> Result | None:
        """Do the steps of ``work``, a generator, and let other tasks run after each one.

        Return the result of the work; None if the term ends first.
        """
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
"""The constructors of the features, such as preemption, in the order in which the core calls them at each point.

A feature takes part in planning and binding like a plugin of kube-scheduler (`extender.core.feature.Feature`).

`Preemptions` comes after the features that may reject a gang, because victims are searched only for gangs that no
feature rejects. `Asking` follows it, because nodes are requested from an autoscaler only if there are no victims.
"""

F = TypeVar("F", bound=Feature)


class Core:
    """All parts of one extender except listeners and watches. One instance per `extender.process.Extender`.

    ``client`` and ``records`` (the API objects Reservation) write only while this instance leads. ``stopwatch``
    measures the time of plans in seconds. ``fork`` starts child processes for long plans; None if all plans are made in
    this process. ``features`` are the constructors of the features, i.e. plugins such as preemption.
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
        binder = Binder(client, BindWindow(context.options.bindings))
        owner_lookup = OwnerLookup(client, context.groups, context.clock)
        effects = Effects(self.nominator, owner_lookup, self.planning_tasks, self.tasks)
        earlier = EarlierBindings(client, context)
        self.runner = CycleRunner(context, self.group_scheduler, self.cycle_updates, effects, records, binder, earlier)
        strays = StrayNominations(client, context, nominator=self.nominator)
        self.recovery = Recovery(context, records, earlier, strays, self._scheduling_cycle, self.runner)
        self.loop = SchedulingLoop(context, self.planning, self.group_scheduler, runner=self.runner)
        self.service = ExtenderService(context, self.cycle_updates, self.nominator, self.runner, binder)

    def feature(self, kind: type[F]) -> F:
        """Return this core's instance of a feature, such as `Preemptions`, by its class ``kind``.

        Raises LookupError if this core was created without it.
        """
        for each in self.context.features.all:
            if isinstance(each, kind):
                return each
        raise LookupError(kind.__name__)

    @property
    def backfill(self) -> Backfill:
        """The feature that keeps free resources for the head of the queue."""
        return self.feature(Backfill)

    @property
    def node_protection(self) -> NodeProtection:
        """The feature that keeps autoscalers from removing nodes that are reserved or kept for gangs."""
        return self.feature(NodeProtection)

    @property
    def preemptions(self) -> Preemptions:
        """The feature that searches victims and evicts them."""
        return self.feature(Preemptions)

    def end_term(self) -> None:
        """End the term: cancel all binding cycles, and write nothing more, because another instance may lead now."""
        self.group_scheduler.end_term()
        for uid in self.runner.end_term():
            # kube-scheduler may not notice the end of the cycle: the next term of this instance requeues the pod.
            self.groups.held.add(uid, self.clock())
