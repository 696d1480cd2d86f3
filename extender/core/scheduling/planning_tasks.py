"""Plans and forecasts that would hold the loop are made in a forked child, while filter is served (decision 54).

What is short runs straight through. What is not is asked of a child, which sees the cluster as it is then, and whoever
asked gets `Unfinished`. Its group is told when the answer is there, and asks again; a plan is taken only if it still
holds. One child works at a time, the others are stopped. Those that take little go first, namespace after namespace.
"""

import asyncio
import logging
import math
import operator
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import accumulate, islice
from typing import Any, NamedTuple

from extender.core.scheduling.effects import Context, WorkOnTasks
from serried.api.names import GroupKey
from serried.api.node import Node
from serried.api.verdict import Reason, Verdict
from serried.cluster.usage import Vacancy
from serried.ops.fork import Child, ChildError, Fork, WorkError, fork
from serried.ops.log import name_group
from serried.plan.capacity import Capacity, Packed
from serried.plan.fit import weigh
from serried.plan.forecast import Forecast
from serried.plan.limit import Limit, TooLong
from serried.plan.request import Plan, PlanRequest, Snapshot
from serried.plan.revalidate import revalidate
from serried.plan.tree import plan_group

GO_SECONDS = 0.05
"""Work that every task gets at once. One that takes more comes after those that take less."""

Make = Callable[[Snapshot, Capacity], Any]
"""Works out an answer on a snapshot. Raises TooLong if the snapshot's limit does not let it."""


class TaskKind(Enum):
    """What is asked for."""

    PLAN = "plan"
    FORECAST = "forecast"
    PREEMPTION = "preemption"


@dataclass(slots=True, eq=False)
class PlanningTask:
    """One question, and how far its answer is."""

    group: GroupKey
    kind: TaskKind
    request: PlanRequest

    leaving: tuple[Vacancy, ...]
    """Slots that count as free for it."""

    make: Make

    limit: float = 0.0
    """Seconds of work after which it is given up."""

    turn: int = 0
    """Its number among all tasks, in the order in which they were asked for."""

    tried: bool = False
    """Whether it was tried straight before."""

    child: Child | None = None
    """Who works on it; None before and after."""

    spent: float = 0.0
    """Seconds of work so far."""

    riders: list["PlanningTask"] = field(default_factory=list)
    """The tasks that its child works on, too, if there is time."""

    rides: bool = False
    """Whether the child of another one works on it."""

    pause: float = 0.0
    """For how many seconds more its group rests, as nobody could work on it."""

    done: bool = False
    """Whether the answer is there."""

    told: bool = False
    """Whether the answer was given to somebody."""

    found: Any = None
    """The answer."""

    failure: Exception | None = None
    """What was raised in its place."""

    restarts: int = 0

    nodes: Mapping[str, Node] = field(default_factory=dict)
    """The nodes as they were when the work began."""

    names: Sequence[str] = ()
    """Their names, in an order that the child knows, too."""

    version: int = 0
    """The version of the capacity then."""

    room: tuple[int, int] = (0, 0)
    """How often room had become free by then (`Snapshots.count_freed`)."""

    @property
    def place(self) -> tuple[int, int]:
        """Who took little comes before who took much, each time twice as much; of equals the first one."""
        return int(math.log2(max(1.0, self.spent / GO_SECONDS)) + (self.spent >= GO_SECONDS)), self.turn

    def begin_anew(self) -> None:
        """Its answer does not hold any more."""
        self.restarts += 1
        self.done = False
        self.found = None

    def asks(self, request: PlanRequest, leaving: tuple[Vacancy, ...]) -> bool:
        """Whether it answers this question."""
        same = len(leaving) == len(self.leaving) and all(map(operator.is_, leaving, self.leaving))
        return same and self.request.is_equivalent(request)


_MAX_BEGUN = 2
"""How many tasks of one namespace are under way at a time: each has a child, and takes its turns."""

_MAX_CHILDREN = 6
"""The same of all namespaces: each child has some MiB of memory of its own."""

_MAX_RIDERS = 16
"""How many plans a child makes after the one that it was started for."""

_BATCH_SECONDS = 0.1
"""How much work all of them together may be: a fork costs the loop some milliseconds, and one may wait for the rest."""

_RIDE_SECONDS = 0.5
"""How long these plans wait for its answer, and for no other child."""

_MAX_SEARCHES_BEGUN = 1
"""The same for searches for victims: two that see the same cluster find the same victims, and only one gets them."""

_LONG_SECONDS = 0.5
"""A search that has taken so much work keeps no other waiting, as long as there are not too many of them."""


class _Lane(NamedTuple):
    """Tasks that begin one after the other."""

    namespace: str
    searches: bool
    """Whether victims are looked for."""


def _lane_of(task: PlanningTask) -> _Lane:
    return _Lane(task.group.namespace, task.kind is TaskKind.PREEMPTION)


class TaskTurns:
    """The tasks that are not done. ``tasks`` is live: one that is not in it any more has no turn."""

    def __init__(self, planning_tasks: Mapping[GroupKey, Sequence[PlanningTask]]) -> None:
        self._tasks = planning_tasks

        self._fresh: dict[_Lane, deque[PlanningTask]] = {}
        """Those that have not begun, in the order in which they were asked for."""

        self._begun: list[PlanningTask] = []
        """Those that have: each has a child."""

        self._served: dict[str, int] = {}
        """When a task of each namespace was begun last, as a number of ``_count``."""

        self._count = 0
        """How many tasks have begun."""

    def add(self, task: PlanningTask) -> None:
        """Something new is asked for."""
        self._fresh.setdefault(_lane_of(task), deque()).append(task)

    def add_again(self, task: PlanningTask) -> None:
        """A task is to be made once more."""
        self._begun.append(task)

    def clear(self) -> None:
        """Nobody waits for anything."""
        self._fresh.clear()
        self._begun.clear()
        self._served.clear()

    def choose(self) -> PlanningTask | None:
        """The next one; None if nothing is to be done."""
        self._begun = [each for each in self._begun if self._is_open(each)]
        room = len(self._begun) < _MAX_CHILDREN
        waiting = [task for lane in self._list_free() if (task := self._find_first(lane)) is not None] if room else []
        chosen = min([*self._begun, *waiting], key=self._rank, default=None)
        if chosen is not None and chosen in waiting:
            self._begun.append(self._fresh[_lane_of(chosen)].popleft())
            self._count += 1
            self._served[chosen.group.namespace] = self._count
        return chosen

    def _list_free(self) -> list[_Lane]:
        """The lanes in which another task may begin."""
        begun = Counter(_lane_of(each) for each in self._begun)
        short = Counter(_lane_of(each) for each in self._begun if not _is_long_search(each))
        free = [lane for lane in self._fresh if begun[lane] < _MAX_BEGUN]
        return [lane for lane in free if not lane.searches or short[lane] < _MAX_SEARCHES_BEGUN]

    def _rank(self, task: PlanningTask) -> tuple[int, int, int]:
        """As their places are; of equals that of the namespace of which one was begun the longest ago."""
        level, turn = task.place
        return level, self._served.get(task.group.namespace, 0), turn

    def _find_first(self, lane: _Lane) -> PlanningTask | None:
        """The first task of a lane that has not begun and that somebody still waits for."""
        fresh = self._fresh[lane]
        while fresh:
            if self._is_open(fresh[0]):
                return None if fresh[0].rides else fresh[0]
            fresh.popleft()
        del self._fresh[lane]
        if not any(each.namespace == lane.namespace for each in self._fresh):
            self._served.pop(lane.namespace, None)
        return None

    def list_riders(self) -> list[PlanningTask]:
        """The plans that a child may make after another one: the next ones of each namespace."""
        lanes = (fresh for lane, fresh in self._fresh.items() if not lane.searches)
        open_plans = ((each for each in fresh if each.kind is TaskKind.PLAN and self._is_open(each)) for fresh in lanes)
        found = [task for plans in open_plans for task in islice(plans, _MAX_RIDERS) if not task.rides]
        return sorted(found, key=lambda task: task.turn)[:_MAX_RIDERS]

    def _is_open(self, task: PlanningTask) -> bool:
        return not task.done and task in self._tasks.get(task.group, ())


def _is_long_search(task: PlanningTask) -> bool:
    return task.kind is TaskKind.PREEMPTION and task.spent > _LONG_SECONDS


log = logging.getLogger(__name__)

STRAIGHT_SECONDS = 0.005
"""How long a plan may run straight through: filter waits as long."""

URGENT_SECONDS = 0.02
"""The same for a plan that a cycle cannot do without: one member needs another node."""

_TURN_SECONDS = 0.01
"""How long a child works before it is looked whether another one comes first."""

_MAX_TURN_SECONDS = 0.1
"""How much of a turn counts at the most."""

_HANG_FACTOR = 4.0
"""A child that has not answered after this many times the work that it may do, and some seconds, is ended."""

_HANG_SECONDS = 5.0
"""These seconds."""

_FAILURE_PAUSES = (0.5, 30.0)
"""For how long a group rests for which no child could be started, or one died: each time in a row twice as long."""

_PLAN_SECONDS = 2.0
"""How much work a plan may take."""

_FORECAST_SECONDS = 5.0
"""How much work a forecast may take."""

_PREEMPTION_SECONDS = 5.0
"""How much work the search for victims may take."""

_MAX_PREEMPTION_SECONDS = 80.0
"""How much work a search may take that was given up again and again: each time twice as much, up to this."""

_CONTENT_FRACTION = 0.5
"""After which part of the work that it may take a search for victims is to be content with what it has."""

_MAX_PLAN_SECONDS = 32.0
"""How much work a plan may take that was given up again and again: each time twice as much, up to this."""

_PAUSE_FACTOR = 10.0
"""A plan in vain is tried again after this many times the work that it took: it may take a tenth of the loop."""

_MAX_NODES_COUNTED_AT_ONCE = 2_000
"""A plan that has to count more nodes for classes that are not counted yet is not tried straight."""

_MAX_WEIGHT_READ_AT_ONCE = 200
"""Nor a plan for classes that weigh more in all (`fit.weigh`): to look them up alone may take too long."""

_MAX_RESTARTS = 3
"""How often a plan is made anew because the cluster has changed meanwhile."""

_MAX_ANSWERS = 4
"""How many answers of a group wait to be asked for."""


class Report(NamedTuple):
    """What a child says of one task."""

    finished: bool
    """Whether it has an answer; False if that took too long."""

    found: Any
    """The answer."""

    seconds: float
    """The work that it was."""


class Said(NamedTuple):
    """What a child says."""

    reports: list[Report]
    """Of the task that it was started for, then of those that it came to beside."""

    packed: Packed
    """What it has counted on its way."""


class Unfinished(Exception):
    """The answer is not there yet; the group is told when it is."""


class Answer(NamedTuple):
    """What a task has found."""

    found: Any

    seconds: float | None
    """The work that it took; None if that was told before."""


class PlanBackoff(NamedTuple):
    """What is due for plans in vain."""

    pause: float
    """Seconds for which the group rests."""

    stale: bool
    """Whether room was freed while the plans were made."""


@dataclass(slots=True, eq=False)
class PlanningTasks:
    """The plans and forecasts that are being made, by group. Every method but ``work`` is synchronous.

    Groups are told of an answer that is there; the outbox asks for ``work`` when it has something to do.
    ``stopwatch`` measures the work of a thread, in seconds. ``fork`` starts a child; None lets everything run straight
    through, however long it takes.
    """

    _context: Context
    _stopwatch: Callable[[], float] = time.thread_time
    _fork: Fork | None = fork

    _tasks: dict[GroupKey, list[PlanningTask]] = field(default_factory=dict, init=False)

    _turns: TaskTurns = field(init=False)

    _slow: dict[GroupKey, float] = field(default_factory=dict, init=False)
    """Groups whose last answer took long, and how many seconds of work their next plan may take."""

    _patience: dict[GroupKey, float] = field(default_factory=dict, init=False)
    """Groups whose last search for victims was given up, and how many seconds of work their next one may take."""

    _backoffs: dict[GroupKey, PlanBackoff] = field(default_factory=dict, init=False)
    """What is due for answers that were given."""

    _turn: int = field(default=0, init=False)
    """How many tasks there were."""

    _working: bool = field(default=False, init=False)
    """Whether somebody works, or was asked to."""

    _shift: int = field(default=0, init=False)
    """A number that changes when all work ends: who began before then stops."""

    _failure_pause: float = field(default=0.0, init=False)
    """For how long the last group has to rest whose child has failed; 0 if one has answered since."""

    def __post_init__(self) -> None:
        self._turns = TaskTurns(self._tasks)

    def __len__(self) -> int:
        return sum(not task.done for planning_tasks in self._tasks.values() for task in planning_tasks)

    # --- asking ------------------------------------------------------------------------------------------------

    def plan(
        self, request: PlanRequest, leaving: Iterable[Vacancy] = (), straight_seconds: float = STRAIGHT_SECONDS
    ) -> Answer:
        """The plan for a request, or the verdict. Raises Unfinished; what holds now is what is answered.

        It may run straight through for ``straight_seconds``.
        """
        group = self._context.store.members.group_of(request.members[0].uid) if request.members else None
        make: Make = lambda snapshot, capacity: plan_group(snapshot, request, capacity)  # noqa: E731
        key = group or GroupKey("", "")
        return self._answer(PlanningTask(key, TaskKind.PLAN, request, tuple(leaving), make), straight_seconds)

    def find_forecast(self, group: GroupKey, request: PlanRequest, make: Make) -> Forecast | None:
        """A group's forecast. Raises Unfinished; the answer is given once."""
        found: Forecast | None = self._answer(PlanningTask(group, TaskKind.FORECAST, request, (), make)).found
        self._drop(group, TaskKind.FORECAST)
        return found

    def seek_victims(self, group: GroupKey, request: PlanRequest, leaving: Iterable[Vacancy], make: Make) -> Answer:
        """Who has to end so that a group fits; None if that took too long. Raises Unfinished; answered once.

        When half of the time is over, the search is to be content with the best that it has. One that
        takes too long all the same gets twice the time the next time. The cluster may have changed since the search
        began: whether the answer holds, the caller sees to.
        """
        answer = self._answer(PlanningTask(group, TaskKind.PREEMPTION, request, tuple(leaving), make))
        self._drop(group, TaskKind.PREEMPTION)
        return answer

    def _answer(self, asked: PlanningTask, straight_seconds: float = STRAIGHT_SECONDS) -> Answer:
        group, kind, request, leaving = asked.group, asked.kind, asked.request, asked.leaving
        task = next((each for each in self._of(group, kind) if each.asks(request, leaving)), None)
        if task is None:
            straight_seconds = straight_seconds if self._fork is not None else math.inf
            asked.tried = straight_seconds > STRAIGHT_SECONDS or not self._is_long(group, request)
            answer = self._run_straight(request, leaving, asked.make, straight_seconds) if asked.tried else None
            if answer is not None:
                return answer
            self._open(asked)
            raise Unfinished
        if not task.done:
            self._set_to_work()  # the end of a term ends all work
            raise Unfinished
        if task.failure is not None:
            self._drop(group, kind)
            raise task.failure
        return self._give(task) if self._holds(task, request) else self._renew(task, request)

    def _run_straight(
        self, request: PlanRequest, leaving: tuple[Vacancy, ...], make: Make, limit: float
    ) -> Answer | None:
        begun = self._stopwatch()
        try:
            found = make(self._take(request, leaving, Limit(self._stopwatch, limit)), self._context.store.capacity)
        except TooLong:
            return None
        return Answer(found, self._stopwatch() - begun)

    def _take(self, request: PlanRequest, leaving: tuple[Vacancy, ...], limit: Limit) -> Snapshot:
        return replace(
            self._context.store.snapshots.take(request.yielding_priority, request.members, leaving), limit=limit
        )

    def _is_long(self, group: GroupKey, request: PlanRequest) -> bool:
        if group in self._slow:
            return True
        # Shapes are shared, and slow to hash by the thousand, or where one asks a node for a thousand things.
        shapes = {id(member.shape): member.shape for member in request.members}.values()
        if any(weight > _MAX_WEIGHT_READ_AT_ONCE for weight in accumulate(map(weigh, shapes))):
            return True
        missing = self._context.store.capacity.count_missing(set(shapes))
        return missing * len(self._context.store.nodes) > _MAX_NODES_COUNTED_AT_ONCE

    def _find_limit(self, group: GroupKey, kind: TaskKind) -> float:
        if kind is TaskKind.PREEMPTION:
            return self._patience.get(group, _PREEMPTION_SECONDS)
        return _FORECAST_SECONDS if kind is TaskKind.FORECAST else self._slow.get(group, _PLAN_SECONDS)

    def _holds(self, task: PlanningTask, request: PlanRequest) -> bool:
        if not isinstance(task.found, Plan):
            return True
        now = self._context.store.snapshots.take(request.yielding_priority, request.members, task.leaving)
        return revalidate(task.found, request, task.nodes, now)

    def _renew(self, task: PlanningTask, request: PlanRequest) -> Answer:
        """The ground has changed: once more, straight if by now that will do.

        What took long is looked for straight in the domain that was found, which is much less work. For this there is
        more time in the end: gangs with shorter plans may not take the room of one with a long plan for ever.
        """
        last = task.restarts >= _MAX_RESTARTS
        again = request
        if task.spent > GO_SECONDS and request.topology_key is not None:
            again = replace(request, pinned=frozenset({task.found.domain}))
        make: Make = lambda snapshot, capacity: plan_group(snapshot, again, capacity)  # noqa: E731
        answer = self._run_straight(again, task.leaving, make, GO_SECONDS if last else STRAIGHT_SECONDS)
        if answer is not None and (again is request or isinstance(answer.found, Plan)):
            self._tasks[task.group].remove(task)
            return answer
        if not last:
            task.begin_anew()
            self._turns.add_again(task)
            self._set_to_work()
            raise Unfinished
        changed = "the cluster changed each time before a plan was there"
        members = len(task.request.members)
        task.found = Verdict(Reason.PLAN_UNFINISHED, have=round(task.spent), need=members, detail=changed)
        return self._give(task)

    def _give(self, task: PlanningTask) -> Answer:
        seconds = None if task.told else task.spent
        if seconds is not None:
            before = self._backoffs.get(task.group, PlanBackoff(0.0, stale=False))
            pause = before.pause + (task.spent * _PAUSE_FACTOR if task.spent > GO_SECONDS else 0.0) + task.pause
            self._backoffs[task.group] = PlanBackoff(
                pause, before.stale or task.room != self._context.store.snapshots.count_freed()
            )
        task.told = True
        return Answer(task.found, seconds)

    def collect(self, request: PlanRequest) -> PlanBackoff:
        """As ``settle``, but what is still being made goes on."""
        group = self._context.store.members.group_of(request.members[0].uid) or GroupKey("", "")
        if group in self._tasks:
            kept = [each for each in self._tasks[group] if each.kind is not TaskKind.PLAN or not each.told]
            self._tasks[group] = kept
        return self._backoffs.pop(group, PlanBackoff(0.0, stale=False))

    def is_stale(self, group: GroupKey) -> bool:
        """Whether room was freed while one of the plans was made that a group was given since it was settled last."""
        backoff = self._backoffs.get(group)
        return backoff is not None and backoff.stale

    def works_for(self, group: GroupKey) -> bool:
        """Return whether a plan, a forecast or a search for victims is being made for a group."""
        return any(not task.done for task in self._tasks.get(group, ()))

    # --- groups ------------------------------------------------------------------------------------------------

    def settle(self, group: GroupKey) -> PlanBackoff:
        """The answers of a group's plans have been used: what is due for them if they were in vain."""
        self._drop(group, TaskKind.PLAN)
        return self._backoffs.pop(group, PlanBackoff(0.0, stale=False))

    def forget(self, group: GroupKey) -> None:
        """Nobody waits for the answers of a group any more."""
        _end(self._tasks.pop(group, ()))
        self._slow.pop(group, None)
        self._patience.pop(group, None)
        self._backoffs.pop(group, None)

    def clear(self) -> None:
        """Nobody waits for anything; who works on it stops, whether or not it is told so itself."""
        self._working = False
        self._shift += 1
        for tasks in self._tasks.values():
            _end(tasks)
        self._tasks.clear()
        self._turns.clear()
        self._slow.clear()
        self._patience.clear()
        self._backoffs.clear()

    def _of(self, group: GroupKey, kind: TaskKind) -> list[PlanningTask]:
        return [task for task in self._tasks.get(group, ()) if task.kind is kind]

    def _drop(self, group: GroupKey, kind: TaskKind) -> None:
        self._keep(group, [task for task in self._tasks.get(group, ()) if task.kind is not kind])

    def _keep(self, group: GroupKey, kept: list[PlanningTask]) -> None:
        """Keep these of the tasks of a group."""
        _end(task for task in self._tasks.get(group, ()) if task not in kept)
        if kept:
            self._tasks[group] = kept
        else:
            self._tasks.pop(group, None)

    def _open(self, task: PlanningTask) -> None:
        task.limit = self._find_limit(task.group, task.kind)
        task.turn = self._turn
        self._turn += 1
        # A question that is asked in another way now is asked no more; two may belong to one answer.
        kept = [each for each in self._tasks.get(task.group, ()) if each.done or each.kind is not task.kind]
        self._keep(task.group, [*kept[-_MAX_ANSWERS:], task])
        self._turns.add(task)
        self._set_to_work()

    # --- work --------------------------------------------------------------------------------------------------

    def _set_to_work(self) -> None:
        if not self._working:
            self._working = True
            self._context.outbox.put(WorkOnTasks())

    def work(self) -> Coroutine[Any, Any, None]:
        """Have all answers made that are asked for, by one child after the other."""
        return self._work(self._shift)

    async def _work(self, shift: int) -> None:
        worked: PlanningTask | None = None
        try:
            while shift == self._shift and (task := self._turns.choose()) is not None:
                if worked is not None and worked is not task and worked.child is not None:
                    worked.child.pause()
                worked = task
                await self._advance(task)
        finally:
            if shift == self._shift:
                self._working = False
                for tasks in self._tasks.values():
                    _end(tasks)

    async def _advance(self, task: PlanningTask) -> None:
        if task.child is None and not task.tried and not self._is_long(task.group, task.request):
            # Somebody else has counted meanwhile what it needs: a burst of gangs of one new shape counts it once.
            self._tasks[task.group].remove(task)
            self._context.groups.note_task(task.group)
            return
        child = task.child or self._begin(task)
        if child is not None:
            child.resume()
            clock = asyncio.get_running_loop().time
            begun = clock()
            await asyncio.wait((child.answer,), timeout=_TURN_SECONDS)
            # If all of us stood still, so did the child.
            task.spent += min(clock() - begun, _MAX_TURN_SECONDS)
            if task.child is not child:
                return  # nobody waits for it any more
            if task.spent > _RIDE_SECONDS:
                _set_down(task)
            if child.answer.done():
                self._hear(task, child)
            elif task.spent > _HANG_SECONDS + _HANG_FACTOR * task.limit:
                self._fail(task, f"the process that worked on it has not answered after {task.spent:.0f} s")
        if task.done:
            _end((task,))
            self._settle_task(task)

    def _begin(self, task: PlanningTask) -> Child | None:
        """Start a child for a task; None if there is none to be had, and the task is given up."""
        assert self._fork is not None  # noqa: S101 - without it nothing is a task
        if task.kind is TaskKind.PLAN:
            task.riders = [each for each in self._turns.list_riders() if each.tried or self._is_long_task(each)]
        store = self._context.store
        nodes, room = dict(store.nodes), store.snapshots.count_freed()
        for each in (task, *task.riders):
            each.nodes, each.room = nodes, room
        task.names, task.version, task.spent = tuple(nodes), store.capacity.version, 0.0
        try:
            task.child = self._fork(partial(self._work_out, task), 2 * task.limit + 1)
        except OSError as error:
            task.riders = []
            self._fail(task, f"no process could be started for it: {error.strerror}")
            return None
        for each in task.riders:
            each.rides = True
        return task.child

    def _is_long_task(self, task: PlanningTask) -> bool:
        return self._is_long(task.group, task.request)

    def _work_out(self, task: PlanningTask) -> Said:
        """Work out the answer, and those of riders as far as there is time. In the child."""
        capacity = self._context.store.capacity
        made, reports = capacity.made, [self._answer_for(task, task.limit)]
        for each in task.riders:
            left = _BATCH_SECONDS - sum(report.seconds for report in reports)
            if left <= 0 or not (report := self._answer_for(each, left)).finished:
                break
            reports.append(report)
        return Said(reports, capacity.export_tables(made, task.names))

    def _answer_for(self, task: PlanningTask, seconds: float) -> Report:
        begun = self._stopwatch()
        limit = Limit(self._stopwatch, seconds, seconds * _CONTENT_FRACTION)
        found, finished = None, True
        try:
            found = task.make(self._take(task.request, task.leaving, limit), self._context.store.capacity)
        except TooLong:
            finished = False
        return Report(finished, found, self._stopwatch() - begun)

    def _hear(self, task: PlanningTask, child: Child) -> None:
        try:
            said: Said = child.answer.result()
        except ChildError as error:
            self._fail(task, f"the process that worked on it {error}")
            return
        except WorkError as error:
            log.error("a plan failed: %s", error, extra=name_group(task.group))
            task.failure = error
            task.done = True
            return
        self._failure_pause = 0.0
        self._context.store.capacity.import_tables(said.packed, task.names, task.version)
        for each, report in zip((task, *task.riders), said.reports, strict=False):
            each.spent = report.seconds
            if report.finished:
                each.found = report.found
                each.done = True
            else:
                self._give_up(each)
        for each in task.riders:
            if each.done:
                self._settle_task(each)

    def _settle_task(self, task: PlanningTask) -> None:
        """A task is done: its group is told."""
        self._note_cost(task)
        self._context.groups.note_task(task.group)

    def _fail(self, task: PlanningTask, why: str) -> None:
        """The machine has not let a child work, a phrase says ``why``: nobody asks again at once."""
        log.warning("a plan was not made: %s", why, extra=name_group(task.group))
        least, most = _FAILURE_PAUSES
        task.pause = self._failure_pause = min(most, max(least, 2 * self._failure_pause))
        self._give_up(task, why)

    def _give_up(self, task: PlanningTask, why: str = "") -> None:
        """A task has no answer: it has taken too long, or the phrase says ``why``."""
        task.done = True
        if task.kind is TaskKind.PLAN:
            need = len(task.request.members)
            task.found = Verdict(Reason.PLAN_UNFINISHED, have=round(task.limit), need=need, detail=why)
            self._slow[task.group] = min(_MAX_PLAN_SECONDS, 2 * task.limit)
        if task.kind is TaskKind.PREEMPTION:
            self._patience[task.group] = min(_MAX_PREEMPTION_SECONDS, 2 * task.limit)

    def _note_cost(self, task: PlanningTask) -> None:
        if task.spent > GO_SECONDS and task.kind is not TaskKind.PREEMPTION:
            self._slow.setdefault(task.group, _PLAN_SECONDS)


def _end(tasks: Iterable[PlanningTask]) -> None:
    """Nobody works on these any more."""
    for task in tasks:
        _set_down(task)
        if task.child is not None:
            task.child.kill()
            task.child = None


def _set_down(task: PlanningTask) -> None:
    """Its child has no time for others."""
    for each in task.riders:
        each.rides = False
    task.riders = []
