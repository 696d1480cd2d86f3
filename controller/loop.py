"""The reconcile loop: a change in the Store becomes a task in the queue, and workers carry tasks out.

The work itself is elsewhere: `reconciler` looks after owners, `protection` after PodGroups that are being deleted, and
`priorities` after PodGroups without a priority.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from controller.expectations import Expectations
from controller.priorities import Priorities
from controller.protection import Protection
from controller.queue import WorkQueue
from controller.reconciler import Reconciler, Result
from controller.retries import BLAMED_SECONDS, PROBE_SECONDS, Retries
from serried.cluster.store import Store
from serried.feed import Item
from serried.kube.errors import ApiError
from serried.metrics import ControllerMetrics
from serried.model.composite import Composite
from serried.model.group import GroupKey, Job, Key, PodGroup, Workload
from serried.model.parent import JOB, OwnerKey, Parent, ParentKind, owner_key_of
from serried.model.pod import Pod
from serried.model.priority import PriorityClass

log = logging.getLogger(__name__)


_SECONDS_BETWEEN_OBSTACLE_REPORTS = 1.0


class Subject(Enum):
    """What kind of thing a task's key names; the value is for logs."""

    JOB = JOB
    JOB_SET = ParentKind.JOB_SET.value
    LEADER_WORKER_SET = ParentKind.LEADER_WORKER_SET.value
    LEAVING = "leaving groups of"
    """A namespace, in a key without name: the PodGroups of one namespace are freed together."""
    PRIORITY = "priority of"
    """A PodGroup that lacks its priority."""
    COMPOSITE_PRIORITY = "priority of composite"
    """A CompositePodGroup that lacks its priority."""


_OWNER_KINDS = frozenset({JOB, *ParentKind})


class Task(NamedTuple):
    """One unit of work."""

    subject: Subject
    key: Key

    def __str__(self) -> str:
        subject = "job" if self.subject is Subject.JOB else self.subject.value
        return f"{subject} {self.key}"


class Loop:
    """Turns changes into tasks, and has its workers carry them out."""

    def __init__(
        self,
        store: Store,
        reconciler: Reconciler,
        expectations: Expectations,
        queue: WorkQueue[Task],
        *,
        protection: Protection,
        priorities: Priorities,
        clock: Callable[[], float],
        synced: asyncio.Event,
        is_obstructed: Callable[[], bool],
        note_finished: Callable[[], None],
        metrics: ControllerMetrics,
    ) -> None:
        self.queue = queue
        self._store = store
        self._reconciler = reconciler
        self._expectations = expectations
        self._protection = protection
        self._priorities = priorities
        self._clock = clock
        """The monotonic time in seconds."""
        self._synced = synced
        """Set while the Store is complete; tasks wait for it."""
        self._is_obstructed = is_obstructed
        """Whether everything but Workloads and PodGroups is listed, and the API server does not show these."""
        self._note_finished = note_finished
        """Called when a look has ended."""
        self._metrics = metrics
        self._retries: Retries[Task] = Retries(queue, clock)

    # --- changes ---------------------------------------------------------------------------------------------------

    def note(self, old: Item | None, new: Item | None) -> None:
        """An object in the Store has changed from ``old`` to ``new``: queue what this may concern."""
        item = new or old
        match item:
            case Job() | Parent():
                self._add_owner(owner_key_of(item))
            case Workload():
                self._expectations.settle(item)
                for version in (old, new):
                    self._add_owners_of(version)
            case PodGroup():
                self._note_group(item)
                if _is_more_than_status(old, new) and item.workload is not None:
                    self._add_owners_of(self._store.workloads.get(Key(item.key.namespace, item.workload)))
            case Pod():
                self._note_pod(item, old, new)
            case PriorityClass():
                for group in self._priorities.waiting_for(item):
                    self._note_priority(group)
            case Composite():
                self._note_priority(item)

    def _note_group(self, group: PodGroup) -> None:
        self._expectations.settle(group)
        self._note_priority(group)
        if self._protection.note(group.key):
            self._look_later(group.key.namespace)

    def _note_priority(self, group: PodGroup | Composite) -> None:
        if self._priorities.awaiting(group) is None:
            return
        if isinstance(group, PodGroup):
            self._add(Subject.PRIORITY, group.key.object_key)
        else:
            self._add(Subject.COMPOSITE_PRIORITY, group.key)

    def _note_pod(self, pod: Pod, old: Item | None, new: Item | None) -> None:
        if pod.place is not None and pod.place.replica and _has_moved(old, new):
            self._add_owner(OwnerKey(pod.place.kind, Key(pod.namespace, pod.place.parent)))
        if _has_ended(old, new):
            self._note_end(pod)

    def _note_end(self, pod: Pod) -> None:
        if pod.owner is not None and pod.owner.kind == "Job":
            self._add(Subject.JOB, Key(pod.namespace, pod.owner.name))
        if pod.group is not None and self._protection.note_end(pod.group):
            self._look_later(pod.namespace)

    def _add_owners_of(self, workload: Item | None) -> None:
        for owner_key in self._store.membership.referents_of(workload) if isinstance(workload, Workload) else ():
            self._add_owner(owner_key)

    def _add_controller_of(self, item: Workload | PodGroup) -> None:
        owner = next((each for each in item.owners if each.controller), None)
        if owner is not None:
            self._add_owner(OwnerKey(owner.kind, Key(item.key.namespace, owner.name)))

    def _add_owner(self, owner_key: OwnerKey) -> None:
        if owner_key.kind in _OWNER_KINDS:
            self._add(Subject(owner_key.kind), owner_key.key)

    def _add(self, subject: Subject, key: Key) -> None:
        self.queue.add(Task(subject, key))

    # --- work ------------------------------------------------------------------------------------------------------

    async def run(self, workers: int) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._probe())
            tasks.create_task(self._report_obstacle())
            for _ in range(workers):
                tasks.create_task(self._work())

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            _attempt(self._retries.probe)
            _attempt(self._expire_expectations)

    def _expire_expectations(self) -> None:
        for unseen in self._expectations.expire():
            self._add_controller_of(unseen)

    async def _report_obstacle(self) -> None:
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_OBSTACLE_REPORTS)
            if self._is_obstructed():
                _attempt(self._reconciler.report_obstacle)

    async def _work(self) -> None:
        while True:
            task = await self.queue.get()
            await self._synced.wait()
            begun = self._clock()
            result = await self._try(task)
            if task.subject is Subject.JOB:
                self._metrics.synced(result, self._clock() - begun)
            self.queue.done(task)
            self._note_finished()

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
        if task.subject.value in _OWNER_KINDS:
            return await self._reconciler.reconcile(OwnerKey(task.subject.value, task.key), self.queue.failures(task))
        if task.subject is Subject.LEAVING:
            await self._free_groups(task.key.namespace)
        elif task.subject is Subject.PRIORITY:
            await self._priorities.settle_group(GroupKey(*task.key))
        else:
            await self._priorities.settle_composite(task.key)
        return Result()

    async def _free_groups(self, namespace: str) -> None:
        try:
            await self._protection.look(namespace)
        finally:
            self._look_later(namespace)

    def _look_later(self, namespace: str) -> None:
        delay = self._protection.delay(namespace)
        if delay is not None:
            self.queue.add_after(Task(Subject.LEAVING, Key(namespace, "")), delay)


def _attempt(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        # A defect that one object brings out must not end the work of every few seconds.
        log.exception("work in the background failed")


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
