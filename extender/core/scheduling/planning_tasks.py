"""Makes long plans, forecasts and searches for victims in forked child processes (docs/decisions/0054).

This process serves kube-scheduler's filter calls and must not be blocked. So `PlanningTasks.plan` makes a short plan
itself, at once. For a long one it queues a `PlanningTask` and raises `Unfinished`. A child process then works on the
cluster as it was at the fork. When its answer is there, the group is requeued and requests the plan again: the answer
is returned if it still fits the cluster.

Only one child runs at a time; the others are stopped (SIGSTOP). Tasks that have taken little work so far go first, and
among those the namespaces take turns.
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

SHORT_SECONDS = 0.05
"""The seconds of work up to which a task counts as short: such tasks go before longer ones."""

Compute = Callable[[Snapshot, Capacity], Any]
"""Computes the answer of a task from a snapshot of the cluster and the known counts of pods that fit on each node.

Raises TooLong when it has worked for as long as ``Snapshot.limit`` allows.
"""


class TaskKind(Enum):
    """The kind of a planning task: make a plan, forecast when a gang will fit, or search for victims."""

    PLAN = "plan"
    FORECAST = "forecast"
    PREEMPTION = "preemption"


@dataclass(slots=True, eq=False)
class PlanningTask:
    """One question of a group (a plan, a forecast or a search for victims), the work on it, and its answer.

    It is kept until the group has used the answer, or asks something else.
    """

    group: GroupKey
    kind: TaskKind
    request: PlanRequest

    given_up: tuple[Vacancy, ...]
    """The vacancies whose resources count as free for this task.

    They are kept for members of the request. These members would leave them for the nodes of a new plan.
    """

    compute: Compute
    """The function that makes the answer from a snapshot, in this process or in the child."""

    limit: float = 0.0
    """The seconds of work after which the task is given up without an answer."""

    number: int = 0
    """The number of the task, counted up from 0 in the order of creation."""

    tried_inline: bool = False
    """True if this process has tried to make the plan itself first, and it took too long."""

    child: Child | None = None
    """The child process that works on the task; None before it is started and after it has ended."""

    spent: float = 0.0
    """The seconds of work on the task so far."""

    batch: list["PlanningTask"] = field(default_factory=list)
    """Tasks for further short plans, which the child of this task makes afterwards if there is time. It saves forks."""

    in_batch: bool = False
    """True while the task is in the ``batch`` of another task, whose child is to work on it."""

    backoff_seconds: float = 0.0
    """The seconds for which the group backs off because a child did not start, died or did not answer; else 0."""

    done: bool = False
    """True once the task has an answer, or has failed or was given up."""

    returned: bool = False
    """True once the answer was returned to the group. Its seconds of work are reported only the first time."""

    found: Any = None
    """The answer: a plan, verdict, forecast or victims; None while there is none, and if a search was given up."""

    failure: Exception | None = None
    """The exception by which the work has ended; None without one. The group's next request raises it."""

    restarts: int = 0
    """The number of times that the plan was made again because the cluster had changed."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    """The nodes by name as they were at the fork."""

    names: Sequence[str] = ()
    """The names of ``nodes`` in the order in which the child reports how many members fit on each node."""

    version: int = 0
    """The state of the parent's counts of how many members fit on each node (`Capacity.version`) at the fork.

    By it the counts that the child reports are only used for nodes that have not changed since.
    """

    freed_count: tuple[int, int] = (0, 0)
    """The counters of how often resources were freed (`Snapshots.count_freed`) at the fork.

    If they differ later, resources were freed that the answer does not know of.
    """

    @property
    def sort_key(self) -> tuple[int, int]:
        """The sort key: the seconds of work so far in powers of two (0 for a short task), then the time of creation."""
        return int(math.log2(max(1.0, self.spent / SHORT_SECONDS)) + (self.spent >= SHORT_SECONDS)), self.number

    def begin_anew(self) -> None:
        """Reset the task, so that it is worked on again because its plan does not fit the cluster any more."""
        self.restarts += 1
        self.done = False
        self.found = None

    def matches(self, request: PlanRequest, given_up: tuple[Vacancy, ...]) -> bool:
        """Return whether the task would give the same answer for ``request`` and ``given_up`` as for its own.

        ``given_up`` are the vacancies whose resources count as free. True if the requests are equivalent
        (`PlanRequest.is_equivalent`) and the vacancies are the same objects.
        """
        same = len(given_up) == len(self.given_up) and all(map(operator.is_, given_up, self.given_up))
        return same and self.request.is_equivalent(request)


_MAX_BEGUN = 2
"""The number of tasks per namespace that may have a child at a time. Searches for victims are counted separately."""

_MAX_CHILDREN = 6
"""The number of child processes at a time: each needs some MiB of memory of its own."""

_MAX_BATCH = 16
"""The number of further plans that one child may make (`PlanningTask.batch`)."""

_BATCH_SECONDS = 0.1
"""The seconds of work after which a child begins no further plan of its batch.

Several short plans share a child, because a fork blocks the loop for milliseconds.
"""

_BATCH_WAIT_SECONDS = 0.5
"""The seconds for which short plans wait for a child that works on another task first (`PlanningTask.batch`).

After that other children may make them.
"""

_MAX_SEARCHES_BEGUN = 1
"""The number of searches for victims per namespace at a time: two would find the same victims."""

_LONG_SECONDS = 0.5
"""The seconds of work on a search for victims after which the next one of its namespace may begin, too."""


class _Lane(NamedTuple):
    """The key of one of the queues in `TaskQueue`: a namespace, and whether its tasks are searches for victims."""

    namespace: str
    searches: bool
    """True for searches for victims; False for plans and forecasts."""


def _lane_of(task: PlanningTask) -> _Lane:
    return _Lane(task.group.namespace, task.kind is TaskKind.PREEMPTION)


class TaskQueue:
    """The tasks that wait for work, and the choice of the one to work on next.

    ``planning_tasks`` are all tasks by group. The mapping is live: a task that its owner removes from it is not chosen
    any more.
    """

    def __init__(self, planning_tasks: Mapping[GroupKey, Sequence[PlanningTask]]) -> None:
        self._tasks = planning_tasks

        self._new: dict[_Lane, deque[PlanningTask]] = {}
        """The tasks that have not begun, in the order of creation, by namespace and kind (`_Lane`)."""

        self._begun: list[PlanningTask] = []
        """The tasks that have begun: each has a child, or is to be worked on again."""

        self._served: dict[str, int] = {}
        """The value of ``_count`` when a task of a namespace was last begun, by namespace."""

        self._count = 0
        """The number of tasks that were begun so far."""

    def add(self, task: PlanningTask) -> None:
        """Add a task that was just created."""
        self._new.setdefault(_lane_of(task), deque()).append(task)

    def add_again(self, task: PlanningTask) -> None:
        """Add a task that had begun before and is to be worked on again."""
        self._begun.append(task)

    def clear(self) -> None:
        """Drop all tasks."""
        self._new.clear()
        self._begun.clear()
        self._served.clear()

    def choose(self) -> PlanningTask | None:
        """Return the task to work on next; None if there is none.

        That is the one with the least work so far. Among equals, it is one of the namespace that has waited
        longest. A task that has not begun is chosen only while few enough children exist, in all and for its
        namespace.
        """
        self._begun = [each for each in self._begun if self._is_open(each)]
        may_begin = len(self._begun) < _MAX_CHILDREN
        waiting = (
            [task for lane in self._list_ready_lanes() if (task := self._find_first(lane)) is not None]
            if may_begin
            else []
        )
        chosen = min([*self._begun, *waiting], key=self._rank, default=None)
        if chosen is not None and chosen in waiting:
            self._begun.append(self._new[_lane_of(chosen)].popleft())
            self._count += 1
            self._served[chosen.group.namespace] = self._count
        return chosen

    def _list_ready_lanes(self) -> list[_Lane]:
        """Return the keys of those queues of which one more task may begin: not too many of its tasks are begun.

        There is a queue per namespace for searches for victims, and one for its other tasks.
        """
        begun = Counter(_lane_of(each) for each in self._begun)
        short = Counter(_lane_of(each) for each in self._begun if not _is_long_search(each))
        free = [lane for lane in self._new if begun[lane] < _MAX_BEGUN]
        return [lane for lane in free if not lane.searches or short[lane] < _MAX_SEARCHES_BEGUN]

    def _rank(self, task: PlanningTask) -> tuple[int, int, int]:
        """Return the sort key of a task: its work so far, then the namespace whose last task began longest ago."""
        level, number = task.sort_key
        return level, self._served.get(task.group.namespace, 0), number

    def _find_first(self, lane: _Lane) -> PlanningTask | None:
        """Return the first task of a queue that is not done; None if there is none.

        Also None if the child of another task is to make that first task soon (`PlanningTask.in_batch`).
        """
        new = self._new[lane]
        while new:
            if self._is_open(new[0]):
                return None if new[0].in_batch else new[0]
            new.popleft()
        del self._new[lane]
        if not any(each.namespace == lane.namespace for each in self._new):
            self._served.pop(lane.namespace, None)
        return None

    def list_batchable(self) -> list[PlanningTask]:
        """Return the waiting tasks, at most `_MAX_BATCH`, that a forked child may make after its own, oldest first."""
        lanes = (new for lane, new in self._new.items() if not lane.searches)
        open_plans = ((each for each in new if each.kind is TaskKind.PLAN and self._is_open(each)) for new in lanes)
        found = [task for plans in open_plans for task in islice(plans, _MAX_BATCH) if not task.in_batch]
        return sorted(found, key=lambda task: task.number)[:_MAX_BATCH]

    def _is_open(self, task: PlanningTask) -> bool:
        return not task.done and task in self._tasks.get(task.group, ())


def _is_long_search(task: PlanningTask) -> bool:
    return task.kind is TaskKind.PREEMPTION and task.spent > _LONG_SECONDS


log = logging.getLogger(__name__)

INLINE_SECONDS = 0.005
"""The seconds for which this process may work on a plan itself: kube-scheduler's filter calls wait as long."""

URGENT_SECONDS = 0.02
"""The seconds for which this process may work on a plan itself for an open binding cycle.

That is more, because a member of the cycle needs another node at once, before kube-scheduler's bind calls time out.
"""

_SLICE_SECONDS = 0.01
"""The seconds for which a child runs before `TaskQueue.choose` may prefer another task."""

_MAX_SLICE_SECONDS = 0.1
"""The most seconds that count as work for one such slice, as the machine may have been suspended."""

_HANG_FACTOR = 4.0
"""A child is killed if it has not answered after its task's limit times this, plus `_HANG_SECONDS`."""

_HANG_SECONDS = 5.0
"""The seconds that a child gets in addition to `_HANG_FACTOR` times its task's limit before it is killed."""

_FAILURE_PAUSES = (0.5, 30.0)
"""The first and the longest backoff in seconds after a child has failed; doubled with each failure in a row."""

_PLAN_SECONDS = 2.0
"""The seconds of work after which the first try at a plan is given up."""

_FORECAST_SECONDS = 5.0
"""The seconds of work after which a forecast is given up."""

_PREEMPTION_SECONDS = 5.0
"""The seconds of work after which the first search for victims of a group is given up."""

_MAX_PREEMPTION_SECONDS = 80.0
"""The most seconds of work for a search for victims. Each search that is given up doubles them for the next."""

_CONTENT_FRACTION = 0.5
"""The fraction of its time limit after which a search for victims returns the best result so far."""

_MAX_PLAN_SECONDS = 32.0
"""The most seconds of work for a plan. Each try that is given up doubles them for the next."""

_PAUSE_FACTOR = 10.0
"""The backoff after a long plan that found nothing, as a multiple of its seconds of work."""

_MAX_NODES_COUNTED_AT_ONCE = 2_000
"""The largest plan that this process tries itself, by how often it has to count how many members fit on a node.

For instance members with 3 different requests in a cluster of 500 nodes make 1,500 counts. Counts made for an earlier
plan cost nothing.
"""

_MAX_WEIGHT_READ_AT_ONCE = 200
"""The most node constraints of members (labels, taints, resources) with which this process tries a plan itself.

Members with equal requests and constraints count once. The unit is that of `fit.weigh`: 1 for a usual pod.
"""

_MAX_RESTARTS = 3
"""The number of times that a child makes a plan again because the cluster has changed meanwhile."""

_MAX_ANSWERS = 4
"""The number of answers (plans, forecasts and results of searches) that are kept per group until it uses them."""


class TaskResult(NamedTuple):
    """The result of one task, as the child process sends it."""

    finished: bool
    """True if there is an answer; False if the limit was reached."""

    found: Any
    """The answer (a plan, verdict, forecast or victims); None if the limit was reached."""

    seconds: float
    """The seconds of work on this task."""


class ChildMessage(NamedTuple):
    """The one message that a child process sends, when it ends.

    It has the results of the tasks, and how many members fit on each node, so that the parent need not count again.
    """

    reports: list[TaskResult]
    """The results: first that of the child's own task, then those of its ``batch`` for which there was time."""

    packed: PackedCounts
    """The numbers of members that fit on each node, as far as the child has counted them: the parent need not."""


class Unfinished(Exception):
    """Raised for a request whose answer is not there yet. The group is requeued when it is."""


class Answer(NamedTuple):
    """An answer to a group's request for a plan or for victims."""

    found: Any

    seconds: float | None
    """The seconds of work for this answer; None if it was returned before, so that its work is counted once."""


class PlanBackoff(NamedTuple):
    """The backoff of a group because of the work on its plans: for how long, and whether a plan is outdated."""

    seconds: float
    """The seconds for which the group backs off; 0 for no backoff."""

    stale: bool
    """True if resources were freed while a plan was made, so that another try may succeed at once."""


@dataclass(slots=True, eq=False)
class PlanningTasks:
    """The planning tasks of all groups. One instance per core.

    It puts `WorkOnTasks` into the outbox when there is work, and the owner of the outbox then runs `work`, the only
    coroutine here. ``stopwatch`` returns the seconds of work of the calling thread. ``fork`` starts a child; with
    None this process does everything itself, however long it takes.
    """

    _context: Context
    _stopwatch: Callable[[], float] = time.thread_time
    _fork: Fork | None = fork

    _tasks: dict[GroupKey, list[PlanningTask]] = field(default_factory=dict, init=False)
    """All tasks by group, in the order of creation."""

    _queue: TaskQueue = field(init=False)

    _plan_limits: dict[GroupKey, float] = field(default_factory=dict, init=False)
    """The seconds of work after which a group's next plan is given up, for groups whose last plan took long."""

    _search_limits: dict[GroupKey, float] = field(default_factory=dict, init=False)
    """The seconds of work after which a group's next search is given up, if its last search was given up."""

    _backoffs: dict[GroupKey, PlanBackoff] = field(default_factory=dict, init=False)
    """By group, the backoff because of the work on plans returned to it.

    `drop_plans` and `drop_returned_plans` return it, and remove it here.
    """

    _count: int = field(default=0, init=False)
    """The number of tasks created so far."""

    _working: bool = field(default=False, init=False)
    """True while `work` runs, or is in the outbox to be run."""

    _generation: int = field(default=0, init=False)
    """A number that `clear` changes. A `work` that was started before stops when it sees the change."""

    _failure_pause: float = field(default=0.0, init=False)
    """The seconds of the last backoff after a child has failed; 0 once a child has sent an answer."""

    def __post_init__(self) -> None:
        self._queue = TaskQueue(self._tasks)

    def __len__(self) -> int:
        return sum(not task.done for planning_tasks in self._tasks.values() for task in planning_tasks)

    # --- requests ----------------------------------------------------------------------------------------------

    def plan(
        self, request: PlanRequest, given_up: Iterable[Vacancy] = (), inline_seconds: float = INLINE_SECONDS
    ) -> Answer:
        """Return the plan for a request, or the verdict why there is none. It fits the cluster as it is now.

        Raise Unfinished if a child process has to make it. ``given_up`` are the vacancies whose resources count
        as free. This process may work on the plan itself for ``inline_seconds``.
        """
        group = self._context.store.members.group_of(request.members[0].uid) if request.members else None
        compute: Compute = lambda snapshot, capacity: plan_group(snapshot, request, capacity)  # noqa: E731
        key = group or GroupKey("", "")
        return self._answer(PlanningTask(key, TaskKind.PLAN, request, tuple(given_up), compute), inline_seconds)

    def find_forecast(self, group: GroupKey, request: PlanRequest, compute: Compute) -> Forecast | None:
        """Return the forecast for a group, made by ``compute``; None if it took too long.

        Raise Unfinished while it is being made. A forecast is returned once: the call after that makes a new one.
        """
        found: Forecast | None = self._answer(PlanningTask(group, TaskKind.FORECAST, request, (), compute)).found
        self._drop(group, TaskKind.FORECAST)
        return found

    def find_victims(
        self, group: GroupKey, request: PlanRequest, given_up: Iterable[Vacancy], compute: Compute
    ) -> Answer:
        """Return the result of a search for victims, made by ``compute``; its ``found`` is None if it took too long.

        Raise Unfinished during the search. A result is returned once: the call after that begins a new search, with
        twice the time if the last one took too long. ``given_up`` are the vacancies whose resources count as
        free. The caller has to check that the result still holds, because the cluster may have changed since
        the search began.
        """
        answer = self._answer(PlanningTask(group, TaskKind.PREEMPTION, request, tuple(given_up), compute))
        self._drop(group, TaskKind.PREEMPTION)
        return answer

    def _answer(self, asked: PlanningTask, inline_seconds: float = INLINE_SECONDS) -> Answer:
        group, kind, request, given_up = asked.group, asked.kind, asked.request, asked.given_up
        task = next((each for each in self._of(group, kind) if each.matches(request, given_up)), None)
        if task is None:
            inline_seconds = inline_seconds if self._fork is not None else math.inf
            asked.tried_inline = inline_seconds > INLINE_SECONDS or not self._is_long(group, request)
            answer = self._run_inline(request, given_up, asked.compute, inline_seconds) if asked.tried_inline else None
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

    def _run_inline(
        self, request: PlanRequest, given_up: tuple[Vacancy, ...], compute: Compute, limit: float
    ) -> Answer | None:
        begun = self._stopwatch()
        try:
            found = compute(self._take(request, given_up, Limit(self._stopwatch, limit)), self._context.store.capacity)
        except TooLong:
            return None
        return Answer(found, self._stopwatch() - begun)

    def _take(self, request: PlanRequest, given_up: tuple[Vacancy, ...], limit: Limit) -> Snapshot:
        return replace(
            self._context.store.snapshots.take(request.yielding_priority, request.members, given_up), limit=limit
        )

    def _is_long(self, group: GroupKey, request: PlanRequest) -> bool:
        if group in self._plan_limits:
            return True
        # Shapes are shared objects. Hashing thousands of them, or one with a thousand requests, is slow.
        shapes = {id(member.shape): member.shape for member in request.members}.values()
        if any(weight > _MAX_WEIGHT_READ_AT_ONCE for weight in accumulate(map(weigh, shapes))):
            return True
        missing = self._context.store.capacity.count_missing(set(shapes))
        return missing * len(self._context.store.nodes) > _MAX_NODES_COUNTED_AT_ONCE

    def _find_limit(self, group: GroupKey, kind: TaskKind) -> float:
        if kind is TaskKind.PREEMPTION:
            return self._search_limits.get(group, _PREEMPTION_SECONDS)
        return _FORECAST_SECONDS if kind is TaskKind.FORECAST else self._plan_limits.get(group, _PLAN_SECONDS)

    def _still_fits(self, task: PlanningTask, request: PlanRequest) -> bool:
        if not isinstance(task.found, Plan):
            return True
        now = self._context.store.snapshots.take(request.yielding_priority, request.members, task.given_up)
        return revalidate(task.found, request, task.nodes, now)

    def _make_again(self, task: PlanningTask, request: PlanRequest) -> Answer:
        """Make a plan again that does not fit the changed cluster. Return it if this process can make it quickly.

        Otherwise raise Unfinished, and let a child make it again, up to `_MAX_RESTARTS` times. After that, return the
        verdict PLAN_UNFINISHED. If the last plan took long and has a domain, this process only tries that domain, which
        is much less work. At the last try this process may work longer than usual, as gangs with short plans may have
        taken the free resources each time before.
        """
        last = task.restarts >= _MAX_RESTARTS
        again = request
        if task.spent > SHORT_SECONDS and request.topology_key is not None:
            again = replace(request, pinned=frozenset({task.found.domain}))
        compute: Compute = lambda snapshot, capacity: plan_group(snapshot, again, capacity)  # noqa: E731
        answer = self._run_inline(again, task.given_up, compute, SHORT_SECONDS if last else INLINE_SECONDS)
        if answer is not None and (again is request or isinstance(answer.found, Plan)):
            self._tasks[task.group].remove(task)
            return answer
        if not last:
            task.begin_anew()
            self._queue.add_again(task)
            self._request_work()
            raise Unfinished
        changed = "the cluster changed during each try"
        members = len(task.request.members)
        task.found = Verdict(Reason.PLAN_UNFINISHED, have=round(task.spent), need=members, detail=changed)
        return self._return_answer(task)

    def _return_answer(self, task: PlanningTask) -> Answer:
        seconds = None if task.returned else task.spent
        if seconds is not None:
            before = self._backoffs.get(task.group, PlanBackoff(0.0, stale=False))
            pause = (
                before.seconds
                + (task.spent * _PAUSE_FACTOR if task.spent > SHORT_SECONDS else 0.0)
                + task.backoff_seconds
            )
            self._backoffs[task.group] = PlanBackoff(
                pause, before.stale or task.freed_count != self._context.store.snapshots.count_freed()
            )
        task.returned = True
        return Answer(task.found, seconds)

    def drop_returned_plans(self, request: PlanRequest) -> PlanBackoff:
        """Drop the plans for a request's group that were returned to it. Plans still being made are kept.

        Return for how long the group has to back off because of the work on the dropped plans.
        """
        group = self._context.store.members.group_of(request.members[0].uid) or GroupKey("", "")
        if group in self._tasks:
            kept = [each for each in self._tasks[group] if each.kind is not TaskKind.PLAN or not each.returned]
            self._tasks[group] = kept
        return self._backoffs.pop(group, PlanBackoff(0.0, stale=False))

    def is_stale(self, group: GroupKey) -> bool:
        """Return whether resources were freed while a plan for a group was made, so that it may be outdated."""
        backoff = self._backoffs.get(group)
        return backoff is not None and backoff.stale

    def is_working_for(self, group: GroupKey) -> bool:
        """Return whether a plan, a forecast or a search for victims is being made for a group."""
        return any(not task.done for task in self._tasks.get(group, ()))

    # --- groups ------------------------------------------------------------------------------------------------

    def drop_plans(self, group: GroupKey) -> PlanBackoff:
        """Drop all plans of a group, also unfinished ones.

        Return for how long the group has to back off because of the work on plans that were returned to it.
        """
        self._drop(group, TaskKind.PLAN)
        return self._backoffs.pop(group, PlanBackoff(0.0, stale=False))

    def drop_group(self, group: GroupKey) -> None:
        """Drop all tasks of a group, with the time limits for its next tasks and its backoff."""
        _end(self._tasks.pop(group, ()))
        self._plan_limits.pop(group, None)
        self._search_limits.pop(group, None)
        self._backoffs.pop(group, None)

    def clear(self) -> None:
        """Drop all tasks, time limits and backoffs of all groups, and kill the children."""
        self._working = False
        self._generation += 1
        for tasks in self._tasks.values():
            _end(tasks)
        self._tasks.clear()
        self._queue.clear()
        self._plan_limits.clear()
        self._search_limits.clear()
        self._backoffs.clear()

    def _of(self, group: GroupKey, kind: TaskKind) -> list[PlanningTask]:
        return [task for task in self._tasks.get(group, ()) if task.kind is kind]

    def _drop(self, group: GroupKey, kind: TaskKind) -> None:
        self._keep_only(group, [task for task in self._tasks.get(group, ()) if task.kind is not kind])

    def _keep_only(self, group: GroupKey, kept: list[PlanningTask]) -> None:
        """Drop the tasks of a group that are not in ``kept``."""
        _end(task for task in self._tasks.get(group, ()) if task not in kept)
        if kept:
            self._tasks[group] = kept
        else:
            self._tasks.pop(group, None)

    def _enqueue(self, task: PlanningTask) -> None:
        task.limit = self._find_limit(task.group, task.kind)
        task.number = self._count
        self._count += 1
        # A new task replaces an open one of its kind. Answers are kept: one try of a group may need several.
        kept = [each for each in self._tasks.get(task.group, ()) if each.done or each.kind is not task.kind]
        self._keep_only(task.group, [*kept[-_MAX_ANSWERS:], task])
        self._queue.add(task)
        self._request_work()

    # --- work --------------------------------------------------------------------------------------------------

    def _request_work(self) -> None:
        if not self._working:
            self._working = True
            self._context.outbox.put(WorkOnTasks())

    def work(self) -> Coroutine[Any, Any, None]:
        """Return a coroutine that works on the tasks, one child at a time, until none is left or `clear` is called."""
        return self._work(self._generation)

    async def _work(self, generation: int) -> None:
        worked: PlanningTask | None = None
        try:
            while generation == self._generation and (task := self._queue.choose()) is not None:
                if worked is not None and worked is not task and worked.child is not None:
                    worked.child.pause()
                worked = task
                await self._advance(task)
        finally:
            if generation == self._generation:
                self._working = False
                for tasks in self._tasks.values():
                    _end(tasks)

    async def _advance(self, task: PlanningTask) -> None:
        if task.child is None and not task.tried_inline and not self._is_long(task.group, task.request):
            # Another task has counted slots for its shapes meanwhile, so this process can make the plan now.
            self._tasks[task.group].remove(task)
            self._context.groups.note_task_done(task.group)
            return
        child = task.child or self._begin(task)
        if child is not None:
            child.resume()
            clock = asyncio.get_running_loop().time
            begun = clock()
            await asyncio.wait((child.answer,), timeout=_SLICE_SECONDS)
            # While the machine stood still, the child stood still, too.
            task.spent += min(clock() - begun, _MAX_SLICE_SECONDS)
            if task.child is not child:
                return  # the task was dropped meanwhile
            if task.spent > _BATCH_WAIT_SECONDS:
                _release_batch(task)
            if child.answer.done():
                self._receive(task, child)
            elif task.spent > _HANG_SECONDS + _HANG_FACTOR * task.limit:
                self._fail(task, f"the planning process has not answered for {task.spent:.0f} s")
        if task.done:
            _end((task,))
            self._requeue_group(task)

    def _begin(self, task: PlanningTask) -> Child | None:
        """Start a child for a task. Return None, and give the task up, if no process can be started."""
        assert self._fork is not None  # noqa: S101 - without it nothing is a task
        if task.kind is TaskKind.PLAN:
            task.batch = [
                each for each in self._queue.list_batchable() if each.tried_inline or self._is_long_task(each)
            ]
        store = self._context.store
        nodes, freed_count = dict(store.nodes), store.snapshots.count_freed()
        for each in (task, *task.batch):
            each.nodes, each.freed_count = nodes, freed_count
        task.names, task.version, task.spent = tuple(nodes), store.capacity.version, 0.0
        try:
            task.child = self._fork(partial(self._make_in_child, task), 2 * task.limit + 1)
        except OSError as error:
            task.batch = []
            self._fail(task, f"Serried could not start the planning process: {error.strerror}")
            return None
        for each in task.batch:
            each.in_batch = True
        return task.child

    def _is_long_task(self, task: PlanningTask) -> bool:
        return self._is_long(task.group, task.request)

    def _make_in_child(self, task: PlanningTask) -> ChildMessage:
        """Work on a task, then on the other short plans that share its child (``batch``) while there is time.

        Runs in the child.
        """
        capacity = self._context.store.capacity
        made, reports = capacity.made, [self._answer_for(task, task.limit)]
        for each in task.batch:
            left = _BATCH_SECONDS - sum(report.seconds for report in reports)
            if left <= 0 or not (report := self._answer_for(each, left)).finished:
                break
            reports.append(report)
        return ChildMessage(reports, capacity.export_tables(made, task.names))

    def _answer_for(self, task: PlanningTask, seconds: float) -> TaskResult:
        begun = self._stopwatch()
        limit = Limit(self._stopwatch, seconds, seconds * _CONTENT_FRACTION)
        found, finished = None, True
        try:
            found = task.compute(self._take(task.request, task.given_up, limit), self._context.store.capacity)
        except TooLong:
            finished = False
        return TaskResult(finished, found, self._stopwatch() - begun)

    def _receive(self, task: PlanningTask, child: Child) -> None:
        try:
            said: ChildMessage = child.answer.result()
        except ChildError as error:
            self._fail(task, f"the planning process {error}")
            return
        except WorkError as error:
            log.error("an internal error stopped the planning of a gang: %s", error, extra=name_group(task.group))
            task.failure = error
            task.done = True
            return
        self._failure_pause = 0.0
        self._context.store.capacity.import_tables(said.packed, task.names, task.version)
        for each, report in zip((task, *task.batch), said.reports, strict=False):
            each.spent = report.seconds
            if report.finished:
                each.found = report.found
                each.done = True
            else:
                self._give_up(each)
        for each in task.batch:
            if each.done:
                self._requeue_group(each)

    def _requeue_group(self, task: PlanningTask) -> None:
        """Requeue the group of a task that is done, so that it uses the answer."""
        self._note_cost(task)
        self._context.groups.note_task_done(task.group)

    def _fail(self, task: PlanningTask, why: str) -> None:
        """Give a task up because its child could not be started, died or did not answer. Let its group back off.

        ``why`` is a phrase for log and verdict.
        """
        log.warning("a gang could not be planned now: %s; it is tried again later", why, extra=name_group(task.group))
        least, most = _FAILURE_PAUSES
        task.backoff_seconds = self._failure_pause = min(most, max(least, 2 * self._failure_pause))
        self._give_up(task, why)

    def _give_up(self, task: PlanningTask, why: str = "") -> None:
        """End a task without an answer, and double the time limit for the group's next task of this kind.

        A forecast's limit stays the same. ``why`` is a phrase for the verdict; "" if the task has reached its limit.
        """
        task.done = True
        if task.kind is TaskKind.PLAN:
            need = len(task.request.members)
            task.found = Verdict(Reason.PLAN_UNFINISHED, have=round(task.limit), need=need, detail=why)
            self._plan_limits[task.group] = min(_MAX_PLAN_SECONDS, 2 * task.limit)
        if task.kind is TaskKind.PREEMPTION:
            self._search_limits[task.group] = min(_MAX_PREEMPTION_SECONDS, 2 * task.limit)

    def _note_cost(self, task: PlanningTask) -> None:
        if task.spent > SHORT_SECONDS and task.kind is not TaskKind.PREEMPTION:
            self._plan_limits.setdefault(task.group, _PLAN_SECONDS)


def _end(tasks: Iterable[PlanningTask]) -> None:
    """Kill the children of these tasks. Other children may make the short plans that were to share them (``batch``)."""
    for task in tasks:
        _release_batch(task)
        if task.child is not None:
            task.child.kill()
            task.child = None


def _release_batch(task: PlanningTask) -> None:
    """Empty a task's ``batch``, the quick plans that its forked child should make, so that other children may."""
    for each in task.batch:
        each.in_batch = False
    task.batch = []
