"""The reconcile loop: a change in the Store becomes a task in the queue, and workers carry tasks out.

The queue keeps client-go's promises (util/workqueue): a key waits at most once, is never worked on twice at a time,
comes again if it was added meanwhile, and after a failure with an exponential delay of its own. Beyond that, namespaces
take turns, and of the tasks that the API server refused the oldest is tried every few seconds: when it succeeds, all
others are tried at once, so the end of an outage is noticed soon.
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
from serried.api.topology import LevelTable, TopologyLevels, decides_otherwise
from serried.cluster.cache import Store
from serried.feed import GROUP_KINDS, Feed, Item
from serried.kube.errors import ApiError, Invalid
from serried.kube.retry import Backoff, Turns
from serried.ops.metrics import ControllerMetrics

K = TypeVar("K", bound=Hashable)


_BACKOFF = Backoff(first=0.1, cap=60.0)
"""The delays of a key that fails again and again."""


@dataclass(eq=False)
class WorkQueue(Generic[K]):
    """The queue."""

    clock: Callable[[], float]
    """The monotonic time in seconds."""

    random: Callable[[], float]
    """Numbers in [0, 1): the share of half a delay that is taken off, so that keys do not come back together."""

    namespace_of: Callable[[K], str]
    """Whose turn a key comes in."""

    backoff: Backoff = _BACKOFF

    _ready: Turns[K] = field(default_factory=Turns, init=False)
    """The keys that wait for a worker."""

    _waiting: set[K] = field(default_factory=set, init=False)
    """The same as a set."""

    _working: set[K] = field(default_factory=set, init=False)
    """The keys that workers have taken."""

    _again: set[K] = field(default_factory=set, init=False)
    """The keys that were added while they were worked on."""

    _later: list[tuple[float, int, K]] = field(default_factory=list, init=False)
    """A heap of delayed keys: when they are due, a running number, the key. May have outdated entries."""

    _due: dict[K, float] = field(default_factory=dict, init=False)
    """When each delayed key is due; it tells which entry of the heap counts."""

    _delayed: int = field(default=0, init=False)
    """The running number of the heap's last entry."""

    _failures: dict[K, int] = field(default_factory=dict, init=False)
    """How often each key has failed in a row."""

    _idle: deque[asyncio.Future[None]] = field(default_factory=deque, init=False)
    """The workers that wait for a key."""

    _alarm: asyncio.TimerHandle | None = field(default=None, init=False)
    """Rings when the next delayed key is due, while a worker waits."""

    def __len__(self) -> int:
        return len(self._ready) + len(self._again)

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is worked on; keys with a delay do not count."""
        return not self._ready and not self._working

    def add(self, key: K) -> None:
        """The key needs work."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.add(self.namespace_of(key), key)
            self._call_worker()

    def add_after(self, key: K, delay: float) -> None:
        """The key needs work after ``delay`` seconds; of several delays the one that ends first counts."""
        due = self.clock() + delay
        if self._due.get(key, math.inf) <= due:
            return
        self._due[key] = due
        self._delayed += 1
        heapq.heappush(self._later, (due, self._delayed, key))
        if self._idle:
            self._set_alarm()

    def retry(self, key: K) -> int:
        """The key failed: it comes again after its backoff. Returns how often it has failed in a row."""
        failures = self._failures.get(key, 0) + 1
        self._failures[key] = failures
        self.add_after(key, self.backoff.delay(failures) * (1 - self.random() / 2))
        return failures

    def failures(self, key: K) -> int:
        """How often the key has failed in a row."""
        return self._failures.get(key, 0)

    def forget(self, key: K) -> None:
        """The key succeeded: its next failure is the first."""
        self._failures.pop(key, None)

    def take(self) -> K | None:
        """The next key to work on, None if there is none now. Call ``done`` with it in any case."""
        self._wake_due()
        key = self._ready.take()
        if key is None:
            return None
        self._waiting.discard(key)
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        """The work on a taken key has ended, well or not."""
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def next_delay(self) -> float | None:
        """Seconds until a delayed key is due, None without one."""
        return max(0.0, self._later[0][0] - self.clock()) if self._later else None

    async def get(self) -> K:
        """The next key to work on, when there is one."""
        while (key := self.take()) is None:
            called = asyncio.get_running_loop().create_future()
            self._idle.append(called)
            self._set_alarm()
            try:
                await called
            except asyncio.CancelledError:
                if called.done() and not called.cancelled():
                    self._call_worker()  # another worker must take the key instead
                raise
        return key

    def _call_worker(self) -> None:
        """Wake one worker for one key: to wake them all would cost more than the work."""
        while self._idle:
            called = self._idle.popleft()
            if not called.done():
                called.set_result(None)
                return

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if (delay := self.next_delay()) is not None:
            self._alarm = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._wake_due()
        if self._idle:
            self._set_alarm()

    def _wake_due(self) -> None:
        now = self.clock()
        while self._later and self._later[0][0] <= now:
            due, _, key = heapq.heappop(self._later)
            if self._due.get(key) == due:  # else an earlier entry has done for this one
                del self._due[key]
                self.add(key)


PROBE_SECONDS = 5.0
"""The time between two tries out of turn. Objects are to be created within 10 s of the API server's return."""

BLAMED_SECONDS = 300.0
"""The time until a task is tried again whose own objects are to blame: what refuses them may be an admission policy."""


class Retries(Generic[K]):
    """The refused tasks of a queue, oldest try first."""

    def __init__(self, queue: WorkQueue[K], clock: Callable[[], float]) -> None:
        self._queue = queue
        self._clock = clock
        """The monotonic time in seconds."""
        self._refused: dict[K, float] = {}
        """With the time of the last try."""
        self._last_success = -math.inf
        """When a write has last succeeded."""
        self._last_fan_out = -math.inf
        """When all refused tasks were last queued together."""

    def __len__(self) -> int:
        return len(self._refused)

    def refuse(self, task: K, error: Exception) -> int | None:
        """The task failed: it comes again after its backoff. Returns how often it has failed in a row.

        Returns None if the task comes again when its objects change, or after BLAMED_SECONDS: the API server calls it
        invalid while others succeed, so its objects are to blame.
        """
        before = self._refused.pop(task, None)
        if isinstance(error, Invalid) and before is not None and before < self._last_success:
            self._queue.forget(task)
            self._queue.add_after(task, BLAMED_SECONDS)
            return None
        self._refused[task] = self._clock()
        return self._queue.retry(task)

    def accept(self, task: K, *, wrote: bool) -> None:
        """The task succeeded. If it was refused before and has ``wrote`` something now, the API server is back.

        Then all refused tasks are queued, at most once in PROBE_SECONDS: refusals of single tasks come and go.
        """
        self._queue.forget(task)
        if wrote:
            self._last_success = self._clock()
        if self._refused.pop(task, None) is not None and wrote and self._clock() >= self._last_fan_out + PROBE_SECONDS:
            self._last_fan_out = self._clock()
            for other in self._refused:
                self._queue.add(other)

    def probe(self) -> None:
        """Try the task that has waited longest, out of turn. To be called every PROBE_SECONDS."""
        task = next(iter(self._refused), None)
        if task is not None:
            self._refused[task] = self._refused.pop(task)
            self._queue.add(task)


log = logging.getLogger(__name__)


_SECONDS_BETWEEN_OBSTACLE_REPORTS = 1.0


LEAVING = "leaving groups of"
"""The subject of a task for a namespace, in a key without name: its PodGroups are freed together."""

PRIORITY = "priority of"
"""The subject of a task for a PodGroup that lacks its priority."""

COMPOSITE_PRIORITY = "priority of composite"
"""The subject of a task for a CompositePodGroup that lacks its priority."""


class Task(NamedTuple):
    """One unit of work."""

    subject: str
    """What the key names: the kind of an owner, ``LEAVING``, ``PRIORITY`` or ``COMPOSITE_PRIORITY``. Logs show it."""

    key: Key

    def __str__(self) -> str:
        subject = "job" if self.subject == JOB else self.subject
        return f"{subject} {self.key}"


@dataclass(eq=False)
class Loop:
    """Turns changes into tasks, and has its workers carry them out."""

    store: Store
    feed: Feed
    reconciler: Reconciler
    protection: Protection
    priorities: Priorities

    clock: Callable[[], float]
    """The monotonic time in seconds."""

    note_finished: Callable[[], None]
    """Called when a look has ended."""

    metrics: ControllerMetrics

    def __post_init__(self) -> None:
        self.queue: WorkQueue[Task] = WorkQueue(self.clock, random.random, lambda task: task.key.namespace)
        self._retries: Retries[Task] = Retries(self.queue, self.clock)

    # --- changes ---------------------------------------------------------------------------------------------------

    def note(self, old: Item | None, new: Item | None) -> None:
        """An object in the Store has changed from ``old`` to ``new``: queue what this may concern."""
        item = new or old
        match item:
            case Job() | Parent():
                self._add_owner(owner_key_of(item))
            case Workload():
                self.reconciler.expectations.settle(item)
                for version in (old, new):
                    self._add_owners_of(version)
            case PodGroup():
                self._note_group(item)
                if _is_more_than_status(old, new) and item.workload is not None:
                    self._add_owners_of(self.store.workloads.get(Key(item.key.namespace, item.workload)))
            case Pod():
                self._note_pod(item, old, new)
            case PriorityClass():
                self._note_class(item)
            case Composite():
                self._note_priority(item)
            case TopologyLevels():
                self._note_levels(old, new)

    def _note_group(self, group: PodGroup) -> None:
        self.reconciler.expectations.settle(group)
        self._note_priority(group)
        if self.protection.note(group.key):
            self._look_later(group.key.namespace)

    def _note_class(self, priority_class: PriorityClass) -> None:
        for group in self.priorities.waiting_for(priority_class):
            self._note_priority(group)

    def _note_levels(self, old: Item | None, new: Item | None) -> None:
        if not decides_otherwise(_read_status(old), _read_status(new)):
            return
        for owner_key in self.reconciler.take_unresolved():
            self._add_owner(owner_key)

    def _note_priority(self, group: PodGroup | Composite) -> None:
        if self.priorities.awaiting(group) is None:
            return
        if isinstance(group, PodGroup):
            self._add(PRIORITY, group.key.object_key)
        else:
            self._add(COMPOSITE_PRIORITY, group.key)

    def _note_pod(self, pod: Pod, old: Item | None, new: Item | None) -> None:
        if pod.place is not None and pod.place.replica and _has_moved(old, new):
            self._add_owner(OwnerKey(pod.place.kind, Key(pod.namespace, pod.place.parent)))
        if _has_ended(old, new):
            self._note_end(pod)

    def _note_end(self, pod: Pod) -> None:
        if pod.owner is not None and pod.owner.kind == JOB:
            self._add(JOB, Key(pod.namespace, pod.owner.name))
        if pod.group is not None and self.protection.note_end(pod.group):
            self._look_later(pod.namespace)

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
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._probe())
            tasks.create_task(self._report_obstacle())
            for _ in range(workers):
                tasks.create_task(self._work())

    @property
    def is_obstructed(self) -> bool:
        """Whether everything but Workloads and PodGroups is listed, and the API server does not show these."""
        return bool(self.store.obstacles.native) and self.feed.unlisted <= GROUP_KINDS

    @property
    def has_work(self) -> bool:
        """Whether workers could do something now, or are at it."""
        # Without the API of gangs each worker holds a task and waits; Jobs are told so. Nobody else could do more.
        return self.feed.synced.is_set() and not self.queue.idle

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            _attempt(self._retries.probe)
            _attempt(self._expire_expectations)

    def _expire_expectations(self) -> None:
        for unseen in self.reconciler.expectations.expire():
            self._add_controller_of(unseen)

    async def _report_obstacle(self) -> None:
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_OBSTACLE_REPORTS)
            if self.is_obstructed:
                _attempt(self.reconciler.report_obstacle)

    async def _work(self) -> None:
        while True:
            task = await self.queue.get()
            await self.feed.synced.wait()  # until the Store is complete
            begun = self.clock()
            result = await self._try(task)
            if task.subject == JOB:
                self.metrics.synced(result, self.clock() - begun)
            self.queue.done(task)
            self.note_finished()

    async def _try(self, task: Task) -> str:
        try:
            result = await self._look(task)
        except ApiError as error:
            self._put_off(task, error)
            return "retry"
        except Exception as error:
            # A defect that one owner brings out must not stop the work for all others.
            log.exception("a look failed", extra={"task": str(task)})
            self._put_off(task, error)
            return "error"
        self._retries.accept(task, wrote=result.created)
        if result.requeue_after_seconds is not None:
            self.queue.add_after(task, result.requeue_after_seconds)
        return "success"

    def _put_off(self, task: Task, error: Exception) -> None:
        failures = self._retries.refuse(task, error)
        plan = f"will try again when it changes, or in {BLAMED_SECONDS:g} s" if failures is None else "will try again"
        log.info(plan, extra={"task": str(task), "failures": failures, "err": str(error)})

    async def _look(self, task: Task) -> Result:
        if task.subject in OWNER_KINDS:
            return await self.reconciler.reconcile(OwnerKey(task.subject, task.key), self.queue.failures(task))
        if task.subject == LEAVING:
            await self._free_groups(task.key.namespace)
        elif task.subject == PRIORITY:
            await self.priorities.settle_group(GroupKey(*task.key))
        else:
            await self.priorities.settle_composite(task.key)
        return Result()

    async def _free_groups(self, namespace: str) -> None:
        try:
            await self.protection.look(namespace)
        finally:
            self._look_later(namespace)

    def _look_later(self, namespace: str) -> None:
        delay = self.protection.delay(namespace)
        if delay is not None:
            self.queue.add_after(Task(LEAVING, Key(namespace, "")), delay)


def _attempt(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        # A defect that one object brings out must not end the work of every few seconds.
        log.exception("work in the background failed")


def _read_status(levels: Item | None) -> LevelTable | None:
    return levels.status if isinstance(levels, TopologyLevels) else None


def _is_more_than_status(old: Item | None, new: Item | None) -> bool:
    """Whether a PodGroup has changed, came or went; how its gang stands asks for no look at its owner.

    A look goes through all PodGroups of the owner, and a set of 10,000 replicas has as many conditions.
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
    )


def _has_ended(old: Item | None, new: Item | None) -> bool:
    """Whether a pod went or finished. Nothing else about the pods of Jobs asks for work."""
    return new is None or (isinstance(old, Pod) and isinstance(new, Pod) and old.phase is not new.phase)


def _has_moved(old: Item | None, new: Item | None) -> bool:
    """Whether a leader came, is going or changed its replica.

    A new replica needs a PodGroup, and the PodGroup of one that is gone may have to be deleted.
    """
    if not (isinstance(old, Pod) and isinstance(new, Pod)):
        return True
    return (old.place, old.deleting) != (new.place, new.deleting)
