"""The reconcile loop: turns each change in the Store into tasks of a queue, which workers carry out.

`Loop.on_change` is called by the feed; `Loop.run` starts the workers.

    feed ──change──▶ Loop.on_change ──Task──▶ WorkQueue ──▶ worker ──▶ Reconciler, Protection or Priorities
                                                 ▲                        │
                                                 └── backoff, delay ◀─────┘ failure, requeue_after_seconds

The queue behaves like client-go's (util/workqueue). A key is in the queue at most once, is worked on by one worker at a
time, is queued again if it was added meanwhile, and is delayed exponentially after failures. In addition, the queue
alternates between namespaces. Of the tasks that the API server rejected, the oldest is retried every few seconds. When
this retry succeeds, all others are retried at once, so the end of an outage is noticed soon.
"""

import asyncio
import heapq
import logging
import math
import random
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from controller.protection import Priorities, Protection
from controller.reconciler import Reconciler, Result
from serried.api.group import Composite, PodGroup, Workload
from serried.api.job import Job
from serried.api.kinds import OWNER_KINDS
from serried.api.names import JOB, GroupKey, Key
from serried.api.parent import OwnerKey, Parent, owner_key_of
from serried.api.pod import Pod
from serried.api.priority import PriorityClass
from serried.api.topology import LevelTable, TopologyLevels, may_change_labels
from serried.cluster.cache import Store
from serried.feed import GROUP_KINDS, Feed, Item
from serried.kube.errors import ApiError, Invalid
from serried.kube.retry import Backoff, FairQueue
from serried.ops.metrics import ControllerMetrics

K = TypeVar("K", bound=Hashable)


_BACKOFF = Backoff(first=0.1, cap=60.0)
"""The delays between the attempts at a key that fails repeatedly, in seconds."""


@dataclass(eq=False)
class WorkQueue(Generic[K]):
    """A queue of keys that need work, like client-go's rate limiting queue. Each key is handed to one worker at a time.

    It alternates between namespaces, so that one with many keys does not delay the others.
    """

    clock: Callable[[], float]
    """Return the monotonic time in seconds."""

    random: Callable[[], float]
    """Return a number in [0, 1).

    Each backoff is shortened by up to a half, in proportion to this number, so that keys that failed together spread
    out.
    """

    namespace_of: Callable[[K], str]
    """Return the namespace of a key. The queue hands out one key of each namespace in turn."""

    backoff: Backoff = _BACKOFF

    _ready: FairQueue[K] = field(default_factory=FairQueue, init=False)
    """The keys that wait for a worker, in the order in which they are handed out."""

    _waiting: set[K] = field(default_factory=set, init=False)
    """The keys in ``_ready``, for a fast test of membership."""

    _working: set[K] = field(default_factory=set, init=False)
    """The keys that workers have taken and not reported by `done`."""

    _added_while_working: set[K] = field(default_factory=set, init=False)
    """The keys that were added while a worker had them. `done` queues them again."""

    _delayed_keys: list[tuple[float, int, K]] = field(default_factory=list, init=False)
    """A heap of the keys that `add_after` delays: the time at which the key is queued, a running number, the key.

    May contain entries that an earlier time has replaced.
    """

    _due: dict[K, float] = field(default_factory=dict, init=False)
    """By delayed key, the time at which it is queued. Heap entries with another time are outdated."""

    _last_delayed: int = field(default=0, init=False)
    """The running number of the latest heap entry; it breaks ties between equal times."""

    _failures: dict[K, int] = field(default_factory=dict, init=False)
    """The number of consecutive failures by key; no entry for a key whose last attempt succeeded."""

    _idle_workers: deque[asyncio.Future[None]] = field(default_factory=deque, init=False)
    """A future for each worker that waits in `get`, the longest waiting first. Its result wakes the worker."""

    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    """The timer that queues the next delayed key. None while no worker waits."""

    def __len__(self) -> int:
        return len(self._ready) + len(self._added_while_working)

    @property
    def idle(self) -> bool:
        """Return whether no key waits for a worker and no worker has one. Delayed keys do not count."""
        return not self._ready and not self._working

    def add(self, key: K) -> None:
        """Queue the key, unless it is queued already.

        A key that a worker has is queued when the worker reports it as done.
        """
        if key in self._working:
            self._added_while_working.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.add(self.namespace_of(key), key)
            self._wake_worker()

    def add_after(self, key: K, delay: float) -> None:
        """Queue the key after ``delay`` seconds. If the key is delayed already, the earlier time counts."""
        due = self.clock() + delay
        if self._due.get(key, math.inf) <= due:
            return
        self._due[key] = due
        self._last_delayed += 1
        heapq.heappush(self._delayed_keys, (due, self._last_delayed, key))
        if self._idle_workers:
            self._set_timer()

    def add_rate_limited(self, key: K) -> int:
        """Count a failure of the key, and queue it after the backoff for that number of failures. Return the number."""
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        self.add_after(key, self.backoff.delay(failures) * (1 - self.random() / 2))
        return failures

    def failures(self, key: K) -> int:
        """Return how often the key has failed since its last success."""
        return self._failures.get(key, 0)

    def forget(self, key: K) -> None:
        """Reset the key's number of failures, after a success or to start its backoff anew."""
        self._failures.pop(key, None)

    def try_get(self) -> K | None:
        """Return the next key to work on, None if no key is ready. The caller must call ``done`` with the key."""
        self._move_due_to_ready()
        key = self._ready.take()
        if key is None:
            return None
        self._waiting.discard(key)
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        """Report that a worker has finished with the key, failed or not.

        If the key was added meanwhile, it is queued again.
        """
        self._working.discard(key)
        if key in self._added_while_working:
            self._added_while_working.discard(key)
            self.add(key)

    def next_delay(self) -> float | None:
        """Return the seconds until the next delayed key is due, None if no key is delayed."""
        return max(0.0, self._delayed_keys[0][0] - self.clock()) if self._delayed_keys else None

    async def get(self) -> K:
        """Wait for a key to work on and return it. The caller must call ``done`` with the key."""
        while (key := self.try_get()) is None:
            called = asyncio.get_running_loop().create_future()
            self._idle_workers.append(called)
            self._set_timer()
            try:
                await called
            except asyncio.CancelledError:
                if called.done() and not called.cancelled():
                    self._wake_worker()  # another worker must get the key instead
                raise
        return key

    def _wake_worker(self) -> None:
        """Wake the worker that has waited longest. One is enough for one key; waking all would be expensive."""
        while self._idle_workers:
            called = self._idle_workers.popleft()
            if not called.done():
                called.set_result(None)
                return

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (delay := self.next_delay()) is not None:
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._move_due_to_ready()
        if self._idle_workers:
            self._set_timer()

    def _move_due_to_ready(self) -> None:
        now = self.clock()
        while self._delayed_keys and self._delayed_keys[0][0] <= now:
            due, _, key = heapq.heappop(self._delayed_keys)
            if self._due.get(key) == due:  # else the entry is outdated: the key was queued by an earlier one
                del self._due[key]
                self.add(key)


PROBE_SECONDS = 5.0
"""Seconds between two retries of the failed task with the oldest attempt, to learn whether an outage is over.

After an outage of the API server, the missing objects have to be created within 10 s.
"""

INVALID_SECONDS = 300.0
"""Seconds until a task is retried whose objects the API server rejects as invalid.

The reason may be an admission policy, which may change.
"""


class Retries(Generic[K]):
    """The tasks whose last attempt failed. Decides when each is retried; owned by the loop."""

    def __init__(self, queue: WorkQueue[K], clock: Callable[[], float]) -> None:
        self._queue = queue
        self._clock = clock
        """Return the monotonic time in seconds."""
        self._failed: dict[K, float] = {}
        """The time of the last attempt by task, oldest attempt first."""
        self._last_success = -math.inf
        """The time of the last successful write of any task."""
        self._last_fan_out = -math.inf
        """The time at which all failed tasks were last queued together."""

    def __len__(self) -> int:
        return len(self._failed)

    def record_failure(self, task: K, error: Exception) -> int | None:
        """Record that a task failed, and queue it after its backoff. Return its number of consecutive failures.

        If the API server rejects the task as invalid, and other tasks have written successfully since the task's last
        failure, the task's own objects must be invalid. Then return None: the task is retried when its objects change,
        or after INVALID_SECONDS.
        """
        before = self._failed.pop(task, None)
        if isinstance(error, Invalid) and before is not None and before < self._last_success:
            self._queue.forget(task)
            self._queue.add_after(task, INVALID_SECONDS)
            return None
        self._failed[task] = self._clock()
        return self._queue.add_rate_limited(task)

    def record_success(self, task: K, *, wrote: bool) -> None:
        """Record that a task succeeded. ``wrote``: it has written something, so the API server accepts writes.

        If it had failed before and has now written, an outage is over. Then all failed tasks are queued at once, but at
        most every PROBE_SECONDS, because single failures come and go.
        """
        self._queue.forget(task)
        if wrote:
            self._last_success = self._clock()
        if self._failed.pop(task, None) is not None and wrote and self._clock() >= self._last_fan_out + PROBE_SECONDS:
            self._last_fan_out = self._clock()
            for other in self._failed:
                self._queue.add(other)

    def retry_oldest(self) -> None:
        """Queue the failed task with the oldest attempt, without waiting for its backoff.

        To be called every PROBE_SECONDS.
        """
        task = next(iter(self._failed), None)
        if task is not None:
            self._failed[task] = self._failed.pop(task)
            self._queue.add(task)


log = logging.getLogger(__name__)


_SECONDS_BETWEEN_API_CHECKS = 1.0


RELEASE_GROUPS = "leaving groups of"
"""`Task.subject` of a task that removes the finalizer from deleted PodGroups of a namespace. Its key has no name."""

PRIORITY = "priority of"
"""`Task.subject` of a task that writes the priority of a PodGroup."""

COMPOSITE_PRIORITY = "priority of composite"
"""`Task.subject` of a task that writes the priority of a CompositePodGroup."""


class Task(NamedTuple):
    """One entry of the queue. ``subject`` says what is to be done, ``key`` for which object or namespace."""

    subject: str
    """The work of the task on ``key``: the kind of an owner to reconcile, or one of the constants of this module.

    These are RELEASE_GROUPS, PRIORITY and COMPOSITE_PRIORITY. Appears in logs.
    """

    key: Key

    def __str__(self) -> str:
        subject = "job" if self.subject == JOB else self.subject
        return f"{subject} {self.key}"


@dataclass(eq=False)
class Loop:
    """Turns changes in the Store into tasks, and runs the workers that carry out the tasks. One per process."""

    store: Store
    feed: Feed
    reconciler: Reconciler
    protection: Protection
    priorities: Priorities

    clock: Callable[[], float]
    """Return the monotonic time in seconds."""

    record_progress: Callable[[], None]
    """Called when a task has ended, failed or not, for the watchdog of the process."""

    metrics: ControllerMetrics

    def __post_init__(self) -> None:
        self.queue: WorkQueue[Task] = WorkQueue(self.clock, random.random, lambda task: task.key.namespace)
        self._retries: Retries[Task] = Retries(self.queue, self.clock)

    # --- changes ---------------------------------------------------------------------------------------------------

    def on_change(self, old: Item | None, new: Item | None) -> None:
        """Queue the tasks that became necessary by the change of an object in the Store.

        ``old`` is None for a new object, ``new`` is None for a deleted one.
        """
        item = new or old
        match item:
            case Job() | Parent():
                self._add_owner(owner_key_of(item))
            case Workload():
                self.reconciler.expectations.observe(item)
                for version in (old, new):
                    self._add_owners_of(version)
            case PodGroup():
                self._on_group(item)
                if _differs_beyond_status(old, new) and item.workload is not None:
                    self._add_owners_of(self.store.workloads.get(Key(item.key.namespace, item.workload)))
            case Pod():
                self._on_pod(item, old, new)
            case PriorityClass():
                self._on_priority_class(item)
            case Composite():
                self._add_if_priority_missing(item)
            case TopologyLevels():
                self._on_levels(old, new)

    def _on_group(self, group: PodGroup) -> None:
        self.reconciler.expectations.observe(group)
        self._add_if_priority_missing(group)
        if self.protection.observe_group(group.key):
            self._add_release_later(group.key.namespace)

    def _on_priority_class(self, priority_class: PriorityClass) -> None:
        for group in self.priorities.groups_without_priority(priority_class):
            self._add_if_priority_missing(group)

    def _on_levels(self, old: Item | None, new: Item | None) -> None:
        if not may_change_labels(_read_status(old), _read_status(new)):
            return
        for owner_key in self.reconciler.pop_unresolved():
            self._add_owner(owner_key)

    def _add_if_priority_missing(self, group: PodGroup | Composite) -> None:
        if self.priorities.missing_priority(group) is None:
            return
        if isinstance(group, PodGroup):
            self._add(PRIORITY, group.key.object_key)
        else:
            self._add(COMPOSITE_PRIORITY, group.key)

    def _on_pod(self, pod: Pod, old: Item | None, new: Item | None) -> None:
        if pod.place is not None and pod.place.replica and _leader_changed(old, new):
            self._add_owner(OwnerKey(pod.place.kind, Key(pod.namespace, pod.place.parent)))
        if _has_ended(old, new):
            self._on_pod_end(pod)

    def _on_pod_end(self, pod: Pod) -> None:
        if pod.owner is not None and pod.owner.kind == JOB:
            self._add(JOB, Key(pod.namespace, pod.owner.name))
        if pod.group is not None and self.protection.observe_pod_end(pod.group):
            self._add_release_later(pod.namespace)

    def _add_owners_of(self, workload: Item | None) -> None:
        for owner_key in self.store.membership.referents_of(workload) if isinstance(workload, Workload) else ():
            self._add_owner(owner_key)

    def _add_controller_of(self, item: Workload | PodGroup) -> None:
        owner = next((each for each in item.owners if each.controller), None)
        if owner is not None:
            self._add_owner(OwnerKey(owner.kind, Key(item.key.namespace, owner.name)))

    def _add_owner(self, owner_key: OwnerKey) -> None:
        if owner_key.kind in OWNER_KINDS:
            self._add(owner_key.kind, owner_key.key)

    def _add(self, subject: str, key: Key) -> None:
        self.queue.add(Task(subject, key))

    # --- work ------------------------------------------------------------------------------------------------------

    async def run(self, workers: int) -> None:
        """Run the workers, the regular retries and the reports of a missing API of gangs until cancelled.

        ``workers`` is the number of tasks carried out at a time.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._retry_regularly())
            tasks.create_task(self._report_api_unavailable())
            for _ in range(workers):
                tasks.create_task(self._run_worker())

    @property
    def lacks_group_api(self) -> bool:
        """Return whether Serried cannot read Workloads or PodGroups, so that no gang can be created.

        The API server does not serve them, or denies access. True only when all other watches have their first list.
        """
        return bool(self.store.obstacles.native) and self.feed.unlisted <= GROUP_KINDS

    @property
    def has_work(self) -> bool:
        """Return whether a worker has a task, or the queue has a task for one. Delayed tasks do not count.

        False until all watches have their first list.
        """
        # Without the API of gangs, each worker holds a task and waits. Another leader could do no more.
        return self.feed.synced.is_set() and not self.queue.idle

    async def _retry_regularly(self) -> None:
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            _run_safely(self._retries.retry_oldest)
            _run_safely(self._requeue_expired)

    def _requeue_expired(self) -> None:
        for unseen in self.reconciler.expectations.expire():
            self._add_controller_of(unseen)

    async def _report_api_unavailable(self) -> None:
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_API_CHECKS)
            if self.lacks_group_api:
                _run_safely(self.reconciler.report_api_unavailable)

    async def _run_worker(self) -> None:
        while True:
            task = await self.queue.get()
            await self.feed.synced.wait()  # until the Store is complete
            begun = self.clock()
            result = await self._process(task)
            if task.subject == JOB:
                self.metrics.synced(result, self.clock() - begun)
            self.queue.done(task)
            self.record_progress()

    async def _process(self, task: Task) -> str:
        try:
            result = await self._dispatch(task)
        except ApiError as error:
            self._requeue_failed(task, error)
            return "retry"
        except Exception as error:
            # A defect that one owner triggers must not stop the work for all other owners.
            log.exception("an internal error stopped a task", extra={"task": str(task)})
            self._requeue_failed(task, error)
            return "error"
        self._retries.record_success(task, wrote=result.created)
        if result.requeue_after_seconds is not None:
            self.queue.add_after(task, result.requeue_after_seconds)
        return "success"

    def _requeue_failed(self, task: Task, error: Exception) -> None:
        failures = self._retries.record_failure(task, error)
        plan = (
            f"a task failed; it is tried again after a change, or in {INVALID_SECONDS:g} s"
            if failures is None
            else "a task failed; it is tried again"
        )
        log.info(plan, extra={"task": str(task), "failures": failures, "err": str(error)})

    async def _dispatch(self, task: Task) -> Result:
        if task.subject in OWNER_KINDS:
            return await self.reconciler.reconcile(OwnerKey(task.subject, task.key), self.queue.failures(task))
        if task.subject == RELEASE_GROUPS:
            await self._release_groups(task.key.namespace)
        elif task.subject == PRIORITY:
            await self.priorities.set_group_priority(GroupKey(*task.key))
        else:
            await self.priorities.set_composite_priority(task.key)
        return Result()

    async def _release_groups(self, namespace: str) -> None:
        try:
            await self.protection.release_due(namespace)
        finally:
            self._add_release_later(namespace)

    def _add_release_later(self, namespace: str) -> None:
        delay = self.protection.seconds_until_due(namespace)
        if delay is not None:
            self.queue.add_after(Task(RELEASE_GROUPS, Key(namespace, "")), delay)


def _run_safely(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        # A defect that one object triggers must not end the regular work for all others.
        log.exception("an internal error stopped a periodic task; it runs again at its next time")


def _read_status(levels: Item | None) -> LevelTable | None:
    return levels.status if isinstance(levels, TopologyLevels) else None


def _differs_beyond_status(old: Item | None, new: Item | None) -> bool:
    """Return whether a PodGroup was added, deleted, or changed in more than its status.

    A change of status needs no reconciliation of the owner. To reconcile after each would be too expensive: a
    LeaderWorkerSet with 10,000 replicas has as many PodGroups, whose conditions change one by one, and each
    reconciliation goes through all of them.
    """
    if not (isinstance(old, PodGroup) and isinstance(new, PodGroup)):
        return True
    return new != replace(
        old,
        version=new.version,
        condition=new.condition,
        ready=new.ready,
        scheduled=new.scheduled,
        told_natively=new.told_natively,
        preempted=new.preempted,
        first_quorum=new.first_quorum,
    )


def _has_ended(old: Item | None, new: Item | None) -> bool:
    """Return whether a pod was deleted or changed its phase. Other changes of a Job's pods need no reconciliation."""
    return new is None or (isinstance(old, Pod) and isinstance(new, Pod) and old.phase is not new.phase)


def _leader_changed(old: Item | None, new: Item | None) -> bool:
    """Return whether a leader pod was added, deleted or given to another replica, or its deletion has begun.

    A replica is one leader pod of a LeaderWorkerSet or the like, with its workers. A new replica needs a PodGroup, and
    the PodGroup of a removed replica may have to be deleted.
    """
    if not (isinstance(old, Pod) and isinstance(new, Pod)):
        return True
    return (old.place, old.deleting) != (new.place, new.deleting)
