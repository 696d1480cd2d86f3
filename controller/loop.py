"""The reconcile loop: changes in the Store become keys, workers take keys, compare and write.

One round for a key reads the Store, asks ``diff`` for the next action and carries it out, until nothing is left. So a
restart between two writes needs no care of its own: the next process does what is left.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from controller.diff import (
    CreatePodGroup,
    CreateWorkload,
    ReportAmbiguous,
    diff_job,
    duty_for,
    is_unserved,
)
from controller.echoes import PATIENCE, Echoes
from controller.protection import Protection
from controller.queue import WorkQueue
from controller.writes import Writes
from serried.cluster.store import Store
from serried.kube.errors import AlreadyExists, ApiError
from serried.kube.feed import Item
from serried.model.group import Job, Key, PodGroup, Workload
from serried.model.pod import Pod

log = logging.getLogger(__name__)

_TRIES_BEFORE_SAID = 4
"""AlreadyExists in a row before an event: the first ones only say that our caches lag behind another's create."""


class Subject(Enum):
    """What a task's key names."""

    JOB = "job"
    LEAVING = "leaving groups of"
    """A namespace (with no name): PodGroups are freed a namespace at a time."""


class Task(NamedTuple):
    """One unit of work."""

    subject: Subject
    key: Key

    def __str__(self) -> str:
        return f"{self.subject.value} {self.key}"


class Tally(Protocol):
    """What the loop tells the metrics (`observe.metrics.ControllerMetrics`)."""

    def reconciled(self, outcome: str, seconds: float) -> None:
        """One task ended: ok, retry (the API server refused) or error (a defect of ours)."""


class Loop:
    """Reconciles Jobs and frees PodGroups. ``synced`` says that the Store may be believed."""

    def __init__(
        self,
        store: Store,
        writes: Writes,
        protection: Protection,
        queue: WorkQueue[Task],
        clock: Callable[[], float],
        synced: asyncio.Event,
        tally: Tally,
    ) -> None:
        self.queue = queue
        self._tally, self._protection = tally, protection
        self._store, self._writes, self._clock, self._synced = store, writes, clock, synced
        self._echoes = Echoes(store, clock)
        self._said: dict[Key, str] = {}
        self._failing: set[Task] = set()

    # --- changes ---------------------------------------------------------------------------------------------------

    def note(self, old: Item | None, new: Item | None) -> None:
        """The Store changed so: queue what this may concern."""
        item = new or old
        match item:
            case Job():
                self._add(Subject.JOB, item.key)
            case Workload():
                self._echoes.drop(item)
                for version in (old, new):
                    self._add_job_of(version)
            case PodGroup():
                self._note_group(item)
            case Pod() if _ended(old, new):
                self._note_end(item)

    def _note_group(self, group: PodGroup) -> None:
        self._echoes.drop(group)
        if self._protection.note(group.key):
            self._look_later(group.key.namespace)
        if group.workload is not None:
            self._add_job_of(self._store.workloads.get(Key(group.key.namespace, group.workload)))

    def _note_end(self, pod: Pod) -> None:
        if pod.owner is not None and pod.owner.kind == "Job":
            self._add(Subject.JOB, Key(pod.namespace, pod.owner.name))
        if pod.group is not None and self._protection.note_end(Key(pod.namespace, pod.group)):
            self._look_later(pod.namespace)

    def _add_job_of(self, workload: Item | None) -> None:
        if isinstance(workload, Workload) and workload.job is not None:
            self._add(Subject.JOB, Key(workload.key.namespace, workload.job))

    def _add(self, subject: Subject, key: Key) -> None:
        self.queue.add(Task(subject, key))

    # --- work ------------------------------------------------------------------------------------------------------

    async def run(self, workers: int) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(workers):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            task = await self.queue.get()
            await self._synced.wait()
            begun = self._clock()
            outcome = await self._try(task)
            self._tally.reconciled(outcome, self._clock() - begun)
            self.queue.done(task)

    async def _try(self, task: Task) -> str:
        try:
            await self._reconcile(task)
        except ApiError as error:
            self._put_off(task, error)
            return "retry"
        except Exception as error:
            # One Job that we cannot digest must not stop the others.
            log.exception("reconciling failed", extra={"task": str(task)})
            self._put_off(task, error)
            return "error"
        self.queue.forget(task)
        self._failing.discard(task)
        return "ok"

    def _put_off(self, task: Task, error: Exception) -> None:
        failures = self.queue.retry(task)
        log.info("will try again", extra={"task": str(task), "failures": failures, "err": str(error)})

    async def _reconcile(self, task: Task) -> None:
        if task.subject is Subject.JOB:
            await self._reconcile_job(task)
        else:
            await self._free_groups(task.key.namespace)

    async def _reconcile_job(self, task: Task) -> None:
        # The Job is read anew each time: it may have gone, and come again, while a write was under way.
        while (job := self._store.jobs.get(task.key)) is not None:
            pods = [pod for pod in self._store.pods_of_job(job.key) if pod.owner and pod.owner.uid == job.uid]
            duty = duty_for(job, pods, self._store.schedulers, self._store.unasked)
            actions = diff_job(job, self._echoes.find(job), duty)
            if is_unserved(job, self._store.schedulers):
                self._report_unserved(job)
                return
            if not actions:
                break
            if isinstance(actions[0], ReportAmbiguous):
                self._report_ambiguous(actions[0])
                return
            await self._create(task, actions[0])
        self._said.pop(task.key, None)

    async def _create(self, task: Task, action: CreateWorkload | CreatePodGroup) -> None:
        try:
            if isinstance(action, CreateWorkload):
                self._echoes.add(await self._writes.create_workload(action))
            else:
                self._echoes.add(await self._writes.create_pod_group(action))
        except ApiError as error:
            self._report_failure(task, action, error)
            raise
        # Looks once more when the memory of this write ends: the object may have been deleted before we ever saw it.
        self.queue.add_after(task, PATIENCE + 1)

    def _report_failure(self, task: Task, action: CreateWorkload | CreatePodGroup, error: ApiError) -> None:
        patience = _TRIES_BEFORE_SAID if isinstance(error, AlreadyExists) else 1
        if task not in self._failing and self.queue.failures(task) + 1 >= patience:
            self._failing.add(task)
            self._writes.report_failure(action, error)

    def _report_ambiguous(self, action: ReportAmbiguous) -> None:
        if self._is_news(action.job, action.message):
            self._writes.report_ambiguous(action)

    def _report_unserved(self, job: Job) -> None:
        if self._is_news(job, job.scheduler):
            self._writes.report_unserved(job)

    def _is_news(self, job: Job, what: str) -> bool:
        said, self._said[job.key] = self._said.get(job.key), f"{job.uid} {what}"
        return said != self._said[job.key]

    async def _free_groups(self, namespace: str) -> None:
        try:
            await self._protection.look(namespace)
        finally:
            self._look_later(namespace)

    def _look_later(self, namespace: str) -> None:
        delay = self._protection.delay(namespace)
        if delay is not None:
            self.queue.add_after(Task(Subject.LEAVING, Key(namespace, "")), delay)


def _ended(old: Item | None, new: Item | None) -> bool:
    """Whether a pod went or finished: nothing else about pods asks for work."""
    return new is None or (isinstance(old, Pod) and isinstance(new, Pod) and old.phase is not new.phase)
