"""Makes plans and forecasts that would block the loop in a forked child, while filter is served (decision 54).

`PlanningTasks.plan` runs short plans at once. For a long one it queues a task and raises `Unfinished`. A child process
works on the cluster as it was at the fork. When the answer is there the group is requeued and asks again; a plan is
used only if it still fits. One child works at a time while the others are stopped. Tasks that have taken little work go
first, and namespaces take turns.
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
from serried.plan.capacity import Capacity, PackedCounts
from serried.plan.fit import weigh
from serried.plan.forecast import Forecast
from serried.plan.limit import Limit, TooLong
from serried.plan.request import Plan, PlanRequest, Snapshot
from serried.plan.revalidate import revalidate
from serried.plan.tree import plan_group

GO_SECONDS = 0.05
"""The seconds of work that every task gets first. A task that takes more comes after tasks that take less."""

Make = Callable[[Snapshot, Capacity], Any]
"""Computes an answer from a snapshot. Raises TooLong when the snapshot's limit is reached."""


class TaskKind(Enum):
    """The result of a planning task: a placement, a forecast of room, or the pods to evict."""

    PLAN = "plan"
    FORECAST = "forecast"
    PREEMPTION = "preemption"


@dataclass(slots=True, eq=False)
class PlanningTask:
    """One question of a group, with the work on it and its answer. Kept until the group uses the answer."""

    group: GroupKey
    kind: TaskKind
    request: PlanRequest

    leaving: tuple[Vacancy, ...]
    """The kept slots that count as free for the plan."""

    make: Make

    limit: float = 0.0
    """The seconds of work after which the task is given up."""

    turn: int = 0
    """The number of the task, in the order of creation."""

    tried: bool = False
    """True if the plan was tried in this process first."""

    child: Child | None = None
    """The child that works on the task; None before and after."""

    spent: float = 0.0
    """The seconds of work so far."""

    riders: list["PlanningTask"] = field(default_factory=list)
    """The tasks that its child works on afterwards, if there is time."""

    rides: bool = False
    """True while the child of another task is to work on it."""

    pause: float = 0.0
    """The seconds for which its group backs off, because no child could work on it."""

    done: bool = False
    """True once the answer, or the failure, is there."""

    told: bool = False
    """True once the answer was returned to the group; its work is then counted."""

    found: Any = None
    """The plan, verdict, forecast or victims; None without an answer."""

    failure: Exception | None = None
    """The exception that the work has raised instead."""

    restarts: int = 0

    nodes: Mapping[str, Node] = field(default_factory=dict)
    """The nodes as they were when the work began."""

    names: Sequence[str] = ()
    """The names of these nodes, in the order that the child uses."""

    version: int = 0
    """The version of the capacity when the work began."""

    room: tuple[int, int] = (0, 0)
    """The number of times that room had become free when the work began (`Snapshots.count_freed`)."""

    @property
    def place(self) -> tuple[int, int]:
        """The sort key: the work so far, in powers of two, then the order of creation."""
        return int(math.log2(max(1.0, self.spent / GO_SECONDS)) + (self.spent >= GO_SECONDS)), self.turn

    def begin_anew(self) -> None:
        """Make the task again, because its answer does not fit any more."""
        self.restarts += 1
        self.done = False
        self.found = None

    def asks(self, request: PlanRequest, leaving: tuple[Vacancy, ...]) -> bool:
        """Return whether the task answers this question."""
        same = len(leaving) == len(self.leaving) and all(map(operator.is_, leaving, self.leaving))
        return same and self.request.is_equivalent(request)


_MAX_BEGUN = 2
"""The number of tasks per namespace with a child."""

_MAX_CHILDREN = 6
"""The number of tasks in all with a child: each child has some MiB of memory of its own."""

_MAX_RIDERS = 16
"""The number of further plans that a child makes after the one that it was started for."""

_BATCH_SECONDS = 0.1
"""The seconds of work of all plans of one child: a fork blocks the loop for milliseconds, so short plans share one."""

_RIDE_SECONDS = 0.5
"""The seconds for which those further plans wait for this child before they get another one."""

_MAX_SEARCHES_BEGUN = 1
"""The number of searches for victims at a time: two searches in the same cluster would find the same victims."""

_LONG_SECONDS = 0.5
"""The seconds of work after which a search does not keep the next one waiting any more."""


class _Lane(NamedTuple):
    """A queue of tasks of one namespace, either searches for victims or other tasks."""

    namespace: str
    searches: bool
    """True for searches for victims."""


def _lane_of(task: PlanningTask) -> _Lane:
    return _Lane(task.group.namespace, task.kind is TaskKind.PREEMPTION)


class TaskTurns:
    """Chooses the next task to work on. ``planning_tasks`` is live: a task that is removed from it gets no turn."""

    def __init__(self, planning_tasks: Mapping[GroupKey, Sequence[PlanningTask]]) -> None:
        self._tasks = planning_tasks

        self._fresh: dict[_Lane, deque[PlanningTask]] = {}
        """The tasks without a child, in the order of creation."""

        self._begun: list[PlanningTask] = []
        """The tasks that have begun: each has a child, or is to be made again."""

        self._served: dict[str, int] = {}
        """The value of ``_count`` when a task of each namespace was last begun."""

        self._count = 0
        """The number of tasks that have begun."""

    def add(self, task: PlanningTask) -> None:
        """Add a new task."""
        self._fresh.setdefault(_lane_of(task), deque()).append(task)

    def add_again(self, task: PlanningTask) -> None:
        """Add a task that is to be made again."""
        self._begun.append(task)

    def clear(self) -> None:
        """Drop all tasks."""
        self._fresh.clear()
        self._begun.clear()
        self._served.clear()

    def choose(self) -> PlanningTask | None:
        """Return the task to work on next; None if there is none."""
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
        """Return the lanes in which another task may begin."""
        begun = Counter(_lane_of(each) for each in self._begun)
        short = Counter(_lane_of(each) for each in self._begun if not _is_long_search(each))
        free = [lane for lane in self._fresh if begun[lane] < _MAX_BEGUN]
        return [lane for lane in free if not lane.searches or short[lane] < _MAX_SEARCHES_BEGUN]

    def _rank(self, task: PlanningTask) -> tuple[int, int, int]:
        """Return the sort key of a task: its work so far, then the namespace served the longest ago."""
        level, turn = task.place
        return level, self._served.get(task.group.namespace, 0), turn

    def _find_first(self, lane: _Lane) -> PlanningTask | None:
        """Return the first open task of a lane; None if there is none, or the child of another task works on it."""
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
        """Return the plans that a child may make after its own: the next ones of each namespace."""
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
"""The seconds for which a plan may run in this process: filter waits as long."""

URGENT_SECONDS = 0.02
"""The seconds for which a plan may run in this process if an open binding cycle needs another node for a member."""

_TURN_SECONDS = 0.01
"""The seconds of a turn of a child, after which another task may come first."""

_MAX_TURN_SECONDS = 0.1
"""The seconds of a turn that count at most."""

_HANG_FACTOR = 4.0
"""A child is ended after this many times the work that it may do, plus `_HANG_SECONDS`."""

_HANG_SECONDS = 5.0
"""The seconds added to that limit."""

_FAILURE_PAUSES = (0.5, 30.0)
"""The first and longest backoff of a group whose child could not be started or died; doubled each time in a row."""

_PLAN_SECONDS = 2.0
"""The seconds of work for a plan."""

_FORECAST_SECONDS = 5.0
"""The seconds of work for a forecast."""

_PREEMPTION_SECONDS = 5.0
"""The seconds of work for a search for victims."""

_MAX_PREEMPTION_SECONDS = 80.0
"""The most seconds of work for a search that was given up repeatedly: doubled each time, up to this."""

_CONTENT_FRACTION = 0.5
"""The fraction of its limit after which a search for victims takes the best result so far."""

_MAX_PLAN_SECONDS = 32.0
"""The most seconds of work for a plan that was given up repeatedly: doubled each time, up to this."""

_PAUSE_FACTOR = 10.0
"""The backoff after a plan in vain, in times of its work: a tenth of the loop's time goes to such plans."""

_MAX_NODES_COUNTED_AT_ONCE = 2_000
"""The number of nodes to count for new classes up to which a plan is tried in this process."""

_MAX_WEIGHT_READ_AT_ONCE = 200
"""The weight of all classes (`fit.weigh`) up to which a plan is tried here: looking them up takes time."""

_MAX_RESTARTS = 3
"""The number of times a plan is made again because the cluster has changed meanwhile."""

_MAX_ANSWERS = 4
"""The number of unused answers that are kept per group."""


class Report(NamedTuple):
    """The result of one task, sent by the child."""

    finished: bool
    """True if there is an answer; False if the limit was reached."""

    found: Any
    """The answer; None without one."""

    seconds: float
    """The seconds of work."""


class Said(NamedTuple):
    """The message that a child sends at its end."""

    reports: list[Report]
    """The results: of the task that the child was started for, then of the riders that it reached."""

    packed: PackedCounts
    """The slots that the child has counted, for the parent's capacity."""


class Unfinished(Exception):
    """Raised while the answer is being made; the group is requeued when it is there."""


class Answer(NamedTuple):
    """The answer of a task."""

    found: Any

    seconds: float | None
    """The seconds of work; None if they were returned before."""


class PlanBackoff(NamedTuple):
    """The backoff after plans in vain."""

    pause: float
    """The seconds for which the group backs off."""

    stale: bool
    """True if room was freed while the plans were made."""


@dataclass(slots=True, eq=False)
class PlanningTasks:
    """The plans, forecasts and searches for victims that are being made, by group. One instance per core.

    The outbox has `work` run when there is something to do; it is the only method that is not synchronous.
    ``stopwatch`` measures the work of a thread, in seconds. ``fork`` starts a child; with None everything runs in this
    process, however long it takes.
    """

    _context: Context
    _stopwatch: Callable[[], float] = time.thread_time
    _fork: Fork | None = fork

    _tasks: dict[GroupKey, list[PlanningTask]] = field(default_factory=dict, init=False)

    _turns: TaskTurns = field(init=False)

    _slow: dict[GroupKey, float] = field(default_factory=dict, init=False)
    """The groups whose last answer took long, with the seconds of work for their next plan."""

    _patience: dict[GroupKey, float] = field(default_factory=dict, init=False)
    """The groups whose last search for victims was given up, with the seconds of work for the next one."""

    _backoffs: dict[GroupKey, PlanBackoff] = field(default_factory=dict, init=False)
    """The backoffs for answers that were returned, until the group takes them."""

    _turn: int = field(default=0, init=False)
    """The number of tasks so far."""

    _working: bool = field(default=False, init=False)
    """True while `work` runs or is in the outbox."""

    _shift: int = field(default=0, init=False)
    """A number that changes when all work is dropped: a `work` that began before then stops."""

    _failure_pause: float = field(default=0.0, init=False)
    """The backoff of the last group whose child has failed; 0 once a child has answered."""

    def __post_init__(self) -> None:
        self._turns = TaskTurns(self._tasks)

    def __len__(self) -> int:
        return sum(not task.done for planning_tasks in self._tasks.values() for task in planning_tasks)

    # --- requests ----------------------------------------------------------------------------------------------

    def plan(
        self, request: PlanRequest, leaving: Iterable[Vacancy] = (), straight_seconds: float = STRAIGHT_SECONDS
    ) -> Answer:
        """Return the plan or verdict for a request, which holds now. Raise Unfinished while it is being made.

        The plan may run in this process for ``straight_seconds``.
        """
        group = self._context.store.members.group_of(request.members[0].uid) if request.members else None
        make: Make = lambda snapshot, capacity: plan_group(snapshot, request, capacity)  # noqa: E731
        key = group or GroupKey("", "")
        return self._answer(PlanningTask(key, TaskKind.PLAN, request, tuple(leaving), make), straight_seconds)

    def find_forecast(self, group: GroupKey, request: PlanRequest, make: Make) -> Forecast | None:
        """Return the forecast of a group. Raise Unfinished while it is being made. The answer is returned once."""
        found: Forecast | None = self._answer(PlanningTask(group, TaskKind.FORECAST, request, (), make)).found
        self._drop(group, TaskKind.FORECAST)
        return found

    def seek_victims(self, group: GroupKey, request: PlanRequest, leaving: Iterable[Vacancy], make: Make) -> Answer:
        """Return the victims that have to end so that a group fits; None if the search took too long.

        Raise Unfinished during the search. The answer is returned once. After half of its time the search takes the
        best result so far. A search that was given up gets twice the time the next time. The caller has to check that
        the answer still holds, because the cluster may have changed since the search began.
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
            self._enqueue(asked)
            raise Unfinished
        if not task.done:
            self._request_work()  # work may have ended with the last term
            raise Unfinished
        if task.failure is not None:
            self._drop(group, kind)
            raise task.failure
        return self._return_answer(task) if self._still_fits(task, request) else self._make_again(task, request)

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
        # Shapes are shared objects. Hashing thousands of them, or one with a thousand requests, is slow.
        shapes = {id(member.shape): member.shape for member in request.members}.values()
        if any(weight > _MAX_WEIGHT_READ_AT_ONCE for weight in accumulate(map(weigh, shapes))):
            return True
        missing = self._context.store.capacity.count_missing(set(shapes))
        return missing * len(self._context.store.nodes) > _MAX_NODES_COUNTED_AT_ONCE

    def _find_limit(self, group: GroupKey, kind: TaskKind) -> float:
        if kind is TaskKind.PREEMPTION:
            return self._patience.get(group, _PREEMPTION_SECONDS)
        return _FORECAST_SECONDS if kind is TaskKind.FORECAST else self._slow.get(group, _PLAN_SECONDS)

    def _still_fits(self, task: PlanningTask, request: PlanRequest) -> bool:
        if not isinstance(task.found, Plan):
            return True
        now = self._context.store.snapshots.take(request.yielding_priority, request.members, task.leaving)
        return revalidate(task.found, request, task.nodes, now)

    def _make_again(self, task: PlanningTask, request: PlanRequest) -> Answer:
        """Make a plan again that does not fit the changed cluster: in this process if that is short enough.

        A plan that took long is tried only in the domain that was found, which is much less work. After the last
        restart it gets more time, because gangs with shorter plans must not take the room of this one again and again.
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
            self._request_work()
            raise Unfinished
        changed = "the cluster changed each time before a plan was there"
        members = len(task.request.members)
        task.found = Verdict(Reason.PLAN_UNFINISHED, have=round(task.spent), need=members, detail=changed)
        return self._return_answer(task)

    def _return_answer(self, task: PlanningTask) -> Answer:
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
        """Return as ``settle`` does, but keep tasks that are still being made."""
        group = self._context.store.members.group_of(request.members[0].uid) or GroupKey("", "")
        if group in self._tasks:
            kept = [each for each in self._tasks[group] if each.kind is not TaskKind.PLAN or not each.told]
            self._tasks[group] = kept
        return self._backoffs.pop(group, PlanBackoff(0.0, stale=False))

    def is_stale(self, group: GroupKey) -> bool:
        """Return whether room was freed while a returned plan was made, since the group was settled last."""
        backoff = self._backoffs.get(group)
        return backoff is not None and backoff.stale

    def works_for(self, group: GroupKey) -> bool:
        """Return whether a plan, a forecast or a search for victims is being made for a group."""
        return any(not task.done for task in self._tasks.get(group, ()))

    # --- groups ------------------------------------------------------------------------------------------------

    def settle(self, group: GroupKey) -> PlanBackoff:
        """Drop the plans of a group, whose answers were used. Return the backoff if they were in vain."""
        self._drop(group, TaskKind.PLAN)
        return self._backoffs.pop(group, PlanBackoff(0.0, stale=False))

    def forget(self, group: GroupKey) -> None:
        """Drop all tasks of a group, and its limits."""
        _end(self._tasks.pop(group, ()))
        self._slow.pop(group, None)
        self._patience.pop(group, None)
        self._backoffs.pop(group, None)

    def clear(self) -> None:
        """Drop all tasks of all groups, and end their children."""
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
        self._keep_only(group, [task for task in self._tasks.get(group, ()) if task.kind is not kind])

    def _keep_only(self, group: GroupKey, kept: list[PlanningTask]) -> None:
        """Drop the tasks of a group but for these."""
        _end(task for task in self._tasks.get(group, ()) if task not in kept)
        if kept:
            self._tasks[group] = kept
        else:
            self._tasks.pop(group, None)

    def _enqueue(self, task: PlanningTask) -> None:
        task.limit = self._find_limit(task.group, task.kind)
        task.turn = self._turn
        self._turn += 1
        # A new question replaces an open one of its kind. Answers stay: one try may ask several questions.
        kept = [each for each in self._tasks.get(task.group, ()) if each.done or each.kind is not task.kind]
        self._keep_only(task.group, [*kept[-_MAX_ANSWERS:], task])
        self._turns.add(task)
        self._request_work()

    # --- work --------------------------------------------------------------------------------------------------

    def _request_work(self) -> None:
        if not self._working:
            self._working = True
            self._context.outbox.put(WorkOnTasks())

    def work(self) -> Coroutine[Any, Any, None]:
        """Return the coroutine that makes all answers, one child at a time."""
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
            # Another task has counted its classes meanwhile: a burst of gangs of one new shape counts it once.
            self._tasks[task.group].remove(task)
            self._context.groups.note_task_done(task.group)
            return
        child = task.child or self._begin(task)
        if child is not None:
            child.resume()
            clock = asyncio.get_running_loop().time
            begun = clock()
            await asyncio.wait((child.answer,), timeout=_TURN_SECONDS)
            # While the machine stood still, the child stood still, too.
            task.spent += min(clock() - begun, _MAX_TURN_SECONDS)
            if task.child is not child:
                return  # the task was dropped meanwhile
            if task.spent > _RIDE_SECONDS:
                _return_riders(task)
            if child.answer.done():
                self._receive(task, child)
            elif task.spent > _HANG_SECONDS + _HANG_FACTOR * task.limit:
                self._fail(task, f"the process that worked on it has not answered after {task.spent:.0f} s")
        if task.done:
            _end((task,))
            self._settle_task(task)

    def _begin(self, task: PlanningTask) -> Child | None:
        """Start a child for a task. Return None, and give the task up, if no process can be started."""
        assert self._fork is not None  # noqa: S101 - without it nothing is a task
        if task.kind is TaskKind.PLAN:
            task.riders = [each for each in self._turns.list_riders() if each.tried or self._is_long_task(each)]
        store = self._context.store
        nodes, room = dict(store.nodes), store.snapshots.count_freed()
        for each in (task, *task.riders):
            each.nodes, each.room = nodes, room
        task.names, task.version, task.spent = tuple(nodes), store.capacity.version, 0.0
        try:
            task.child = self._fork(partial(self._make_in_child, task), 2 * task.limit + 1)
        except OSError as error:
            task.riders = []
            self._fail(task, f"no process could be started for it: {error.strerror}")
            return None
        for each in task.riders:
            each.rides = True
        return task.child

    def _is_long_task(self, task: PlanningTask) -> bool:
        return self._is_long(task.group, task.request)

    def _make_in_child(self, task: PlanningTask) -> Said:
        """Make the answer, then those of riders while there is time. Runs in the child."""
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

    def _receive(self, task: PlanningTask, child: Child) -> None:
        try:
            said: Said = child.answer.result()
        except ChildError as error:
            self._fail(task, f"the process that worked on it {error}")
            return
        except WorkError as error:
            log.error("an internal error stopped the planning of a gang: %s", error, extra=name_group(task.group))
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
        """Requeue the group of a task that is done."""
        self._note_cost(task)
        self._context.groups.note_task_done(task.group)

    def _fail(self, task: PlanningTask, why: str) -> None:
        """Give a task up because its child could not be started or died, with a backoff; ``why`` is a phrase."""
        log.warning("a gang could not be planned now: %s; it is tried again later", why, extra=name_group(task.group))
        least, most = _FAILURE_PAUSES
        task.pause = self._failure_pause = min(most, max(least, 2 * self._failure_pause))
        self._give_up(task, why)

    def _give_up(self, task: PlanningTask, why: str = "") -> None:
        """Give a task up, because it has taken too long or for the phrase ``why``."""
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
    """End the work on these tasks."""
    for task in tasks:
        _return_riders(task)
        if task.child is not None:
            task.child.kill()
            task.child = None


def _return_riders(task: PlanningTask) -> None:
    """Return the riders of a task to the queue."""
    for each in task.riders:
        each.rides = False
    task.riders = []
