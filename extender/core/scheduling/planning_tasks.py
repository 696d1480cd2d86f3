"""Plans and forecasts that would hold the loop are made in slices, between which it serves filter (decision 18).

What is short runs straight through. What is not begins on a copy of the cluster as it is then, and whoever asked gets
`Unfinished`. Its group is told when the answer is there, and asks again; a plan is taken only if it still holds. Those
that take little go first, one namespace after the other.
"""

import asyncio
import logging
import math
import operator
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate
from typing import Any, NamedTuple

from extender.core.scheduling.effects import Context, WorkOnTasks
from serried.api.names import GroupKey
from serried.api.node import Node
from serried.api.verdict import Reason, Verdict
from serried.cluster.usage import Vacancy
from serried.ops.log import name_group
from serried.plan.capacity import Capacity
from serried.plan.fit import weigh
from serried.plan.forecast import Forecast
from serried.plan.request import Plan, PlanRequest, Snapshot
from serried.plan.revalidate import revalidate
from serried.plan.steps import Deadline, Work, finish
from serried.plan.tree import solve_group

GO_SECONDS = 0.05
"""Work that every task gets at once. One that takes more comes after those that take less."""

Make = Callable[[Snapshot, Capacity], Work[Any]]
"""Begins the work on a snapshot."""


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

    deadline: Deadline | None = None
    """How it is told to end soon; None if it cannot end sooner."""

    limit: float = 0.0
    """Seconds of work after which it is given up."""

    turn: int = 0
    """Its number among all tasks, in the order in which they were asked for."""

    tried: bool = False
    """Whether it was tried straight before."""

    work: Work[Any] | None = None
    """The work while it goes on."""

    spent: float = 0.0
    """Seconds of work so far."""

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
        self.work = None
        self.found = None

    def asks(self, request: PlanRequest, leaving: tuple[Vacancy, ...]) -> bool:
        """Whether it answers this question."""
        same = len(leaving) == len(self.leaving) and all(map(operator.is_, leaving, self.leaving))
        return same and self.request.asks_the_same(request)


_MAX_BEGUN = 8
"""How many tasks of one namespace are under way at a time: each has a copy of the cluster, and takes its turns."""

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
        """Those that have: each has a copy of the cluster."""

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
        waiting = [task for lane in self._list_free() if (task := self._find_first(lane)) is not None]
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
                return fresh[0]
            fresh.popleft()
        del self._fresh[lane]
        if not any(each.namespace == lane.namespace for each in self._fresh):
            self._served.pop(lane.namespace, None)
        return None

    def _is_open(self, task: PlanningTask) -> bool:
        return not task.done and task in self._tasks.get(task.group, ())


def _is_long_search(task: PlanningTask) -> bool:
    return task.kind is TaskKind.PREEMPTION and task.spent > _LONG_SECONDS


log = logging.getLogger(__name__)

STRAIGHT_SECONDS = 0.005
"""How long a plan may run straight through: filter waits as long."""

URGENT_SECONDS = 0.02
"""The same for a plan that a cycle cannot do without: one member needs another node."""

_SLICE_SECONDS = 0.002
"""The length of a slice; the loop has as long for itself after each."""

_PLAN_SECONDS = 2.0
"""How much work a plan may take."""

_FORECAST_SECONDS = 5.0
"""How much work a forecast may take."""

_PREEMPTION_SECONDS = 5.0
"""How much work the search for victims may take."""

_MAX_PREEMPTION_SECONDS = 80.0
"""How much work a search may take that was given up again and again: each time twice as much, up to this."""

_DEADLINE_FRACTION = 0.5
"""After which part of the work that it may take a search for victims is to end with what it has."""

_MAX_PLAN_SECONDS = 32.0
"""How much work a plan may take that was given up again and again: each time twice as much, up to this."""

_PAUSE_FACTOR = 10.0
"""A plan in vain is tried again after this many times the work that it took: it may take a tenth of the loop."""

_MAX_NODES_COUNTED_AT_ONCE = 2_000
"""A plan that has to count more nodes for classes that are not counted yet is not tried straight."""

_MAX_WEIGHT_READ_AT_ONCE = 200
"""Nor a plan for classes that weigh more in all (`fit.weigh`): to look them up alone may take longer than a slice."""

_MAX_RESTARTS = 3
"""How often a plan is made anew because the cluster has changed meanwhile."""

_MAX_ANSWERS = 4
"""How many answers of a group wait to be asked for."""


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
    ``stopwatch`` measures the work, in seconds, ``rest`` lets the loop have its turn for so many seconds.
    """

    _context: Context
    _stopwatch: Callable[[], float] = time.perf_counter
    _rest: Callable[[float], Awaitable[None]] = asyncio.sleep

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
        make: Make = lambda snapshot, capacity: solve_group(snapshot, request, capacity)  # noqa: E731
        key = group or GroupKey("", "")
        return self._answer(PlanningTask(key, TaskKind.PLAN, request, tuple(leaving), make), straight_seconds)

    def foresee(self, group: GroupKey, request: PlanRequest, make: Make) -> Forecast | None:
        """A group's forecast. Raises Unfinished; the answer is given once."""
        found: Forecast | None = self._answer(PlanningTask(group, TaskKind.FORECAST, request, (), make)).found
        self._drop(group, TaskKind.FORECAST)
        return found

    def seek_victims(
        self, group: GroupKey, request: PlanRequest, leaving: Iterable[Vacancy], make: Make, deadline: Deadline
    ) -> Answer:
        """Who has to end so that a group fits; None if that took too long. Raises Unfinished; answered once.

        When half of the time is over, ``deadline`` is made: the work is to end with the best that it has. A search that
        takes too long all the same gets twice the time the next time. The cluster may have changed since the search
        began: whether the answer holds, the caller sees to.
        """
        answer = self._answer(PlanningTask(group, TaskKind.PREEMPTION, request, tuple(leaving), make, deadline))
        self._drop(group, TaskKind.PREEMPTION)
        return answer

    def _answer(self, asked: PlanningTask, straight_seconds: float = STRAIGHT_SECONDS) -> Answer:
        group, kind, request, leaving = asked.group, asked.kind, asked.request, asked.leaving
        task = next((each for each in self._of(group, kind) if each.asks(request, leaving)), None)
        if task is None:
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
        return self._take(task) if self._holds(task, request) else self._renew(task, request)

    def _run_straight(
        self, request: PlanRequest, leaving: tuple[Vacancy, ...], make: Make, limit: float
    ) -> Answer | None:
        begun = self._stopwatch()
        work = make(
            self._context.store.snapshots.take(request.yielding_priority, request.members, leaving),
            self._context.store.capacity,
        )
        try:
            while self._stopwatch() - begun < limit:
                next(work)
        except StopIteration as done:
            return Answer(done.value, self._stopwatch() - begun)
        work.close()  # the cluster may change before it goes on, so it would not know what it has seen
        return None

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
        return finish(revalidate(task.found, request, task.nodes, now))

    def _renew(self, task: PlanningTask, request: PlanRequest) -> Answer:
        """The ground has changed: once more, straight if by now that will do.

        What took long is looked for straight in the domain that was found, which is much less work. For this there is
        more time in the end: gangs with shorter plans may not take the room of one with a long plan for ever.
        """
        last = task.restarts >= _MAX_RESTARTS
        again = request
        if task.spent > GO_SECONDS and request.topology_key is not None:
            again = replace(request, pinned=frozenset({task.found.domain}))
        make: Make = lambda snapshot, capacity: solve_group(snapshot, again, capacity)  # noqa: E731
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
        return self._take(task)

    def _take(self, task: PlanningTask) -> Answer:
        seconds = None if task.told else task.spent
        if seconds is not None:
            before = self._backoffs.get(task.group, PlanBackoff(0.0, stale=False))
            pause = before.pause + (task.spent * _PAUSE_FACTOR if task.spent > GO_SECONDS else 0.0)
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

    # --- groups ------------------------------------------------------------------------------------------------

    def settle(self, group: GroupKey) -> PlanBackoff:
        """The answers of a group's plans have been used: what is due for them if they were in vain."""
        self._drop(group, TaskKind.PLAN)
        return self._backoffs.pop(group, PlanBackoff(0.0, stale=False))

    def forget(self, group: GroupKey) -> None:
        """Nobody waits for the answers of a group any more."""
        self._tasks.pop(group, None)
        self._slow.pop(group, None)
        self._patience.pop(group, None)
        self._backoffs.pop(group, None)

    def clear(self) -> None:
        """Nobody waits for anything; who works on it stops, whether or not it is told so itself."""
        self._working = False
        self._shift += 1
        self._tasks.clear()
        self._turns.clear()
        self._slow.clear()
        self._patience.clear()
        self._backoffs.clear()

    def _of(self, group: GroupKey, kind: TaskKind) -> list[PlanningTask]:
        return [task for task in self._tasks.get(group, ()) if task.kind is kind]

    def _drop(self, group: GroupKey, kind: TaskKind) -> None:
        left = [task for task in self._tasks.get(group, ()) if task.kind is not kind]
        if left:
            self._tasks[group] = left
        else:
            self._tasks.pop(group, None)

    def _open(self, task: PlanningTask) -> None:
        task.limit = self._find_limit(task.group, task.kind)
        task.turn = self._turn
        self._turn += 1
        # A question that is asked in another way now is asked no more; two may belong to one answer.
        kept = [each for each in self._tasks.get(task.group, ()) if each.done or each.kind is not task.kind]
        self._tasks[task.group] = [*kept[-_MAX_ANSWERS:], task]
        self._turns.add(task)
        self._set_to_work()

    # --- work --------------------------------------------------------------------------------------------------

    def _set_to_work(self) -> None:
        if not self._working:
            self._working = True
            self._context.outbox.put(WorkOnTasks())

    def work(self) -> Coroutine[Any, Any, None]:
        """Make all answers that are asked for, the loop's turn after each slice."""
        return self._work(self._shift)

    async def _work(self, shift: int) -> None:
        try:
            while shift == self._shift and (task := self._turns.choose()) is not None:
                begun = self._stopwatch()
                self._advance(task, begun)
                await self._rest(self._stopwatch() - begun)
        finally:
            if shift == self._shift:
                self._working = False

    def _advance(self, task: PlanningTask, begun: float) -> None:
        if task.work is None and not task.tried and not self._is_long(task.group, task.request):
            # Somebody else has counted meanwhile what it needs: a burst of gangs of one new shape counts it once.
            self._tasks[task.group].remove(task)
            self._context.groups.note_task(task.group)
            return
        self._make_slice(task, begun)
        task.spent += self._stopwatch() - begun
        if not task.done and task.spent > task.limit:
            self._give_up(task)
        elif task.deadline is not None:
            task.deadline.passed = task.spent > task.limit * _DEADLINE_FRACTION
        if task.done:
            task.work = None
            self._note_cost(task)
            self._context.groups.note_task(task.group)

    def _make_slice(self, task: PlanningTask, begun: float) -> None:
        try:
            work = task.work or self._begin(task)
            next(work)
            while self._stopwatch() - begun < _SLICE_SECONDS:
                next(work)
        except StopIteration as done:
            task.found = done.value
            task.done = True
        except Exception as error:
            log.exception("a plan failed", extra=name_group(task.group))
            task.failure = error
            task.done = True

    def _begin(self, task: PlanningTask) -> Work[Any]:
        snapshot = self._context.store.snapshots.take(
            task.request.yielding_priority, task.request.members, task.leaving
        )
        frozen = self._context.store.capacity.freeze()
        shown = frozen.show(snapshot)
        task.nodes = shown.nodes
        task.room = self._context.store.snapshots.count_freed()
        task.work = task.make(shown, frozen)
        return task.work

    def _give_up(self, task: PlanningTask) -> None:
        task.done = True
        if task.kind is TaskKind.PLAN:
            task.found = Verdict(Reason.PLAN_UNFINISHED, have=round(task.limit), need=len(task.request.members))
            self._slow[task.group] = min(_MAX_PLAN_SECONDS, 2 * task.limit)
        if task.kind is TaskKind.PREEMPTION:
            self._patience[task.group] = min(_MAX_PREEMPTION_SECONDS, 2 * task.limit)

    def _note_cost(self, task: PlanningTask) -> None:
        if task.spent > GO_SECONDS and task.kind is not TaskKind.PREEMPTION:
            self._slow.setdefault(task.group, _PLAN_SECONDS)
