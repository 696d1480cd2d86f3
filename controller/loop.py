"""The reconcile loop: changes in the Store become keys, workers take keys, compare and write.

What a look at a Job does is in `jobs`, what a look at a namespace's leaving PodGroups does in `protection`.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from controller.echoes import Echoes
from controller.jobs import Jobs, Looked
from controller.parents import Parents
from controller.priorities import Priorities
from controller.protection import Protection
from controller.queue import WorkQueue
from controller.retries import PROBE_SECONDS, Retries
from serried.cluster.store import Store
from serried.feed import Item
from serried.kube.errors import ApiError
from serried.metrics import ControllerMetrics
from serried.model.group import Job, Key, PodGroup, Workload
from serried.model.parent import JOB, OwnerKey, Parent
from serried.model.pod import Pod
from serried.model.priority import PriorityClass

log = logging.getLogger(__name__)


_OBSTACLE_SECONDS = 1.0


class Subject(Enum):
    """What a task's key names."""

    JOB = "job"
    JOB_SET = "JobSet"
    LEADER_WORKER_SET = "LeaderWorkerSet"
    LEAVING = "leaving groups of"
    """A namespace (with no name): PodGroups are freed a namespace at a time."""
    PRIORITY = "priority of"
    """A PodGroup."""


_PARENTS = frozenset({Subject.JOB_SET, Subject.LEADER_WORKER_SET})
_OWNERS = {JOB: Subject.JOB} | {subject.value: subject for subject in _PARENTS}
"""The subjects by their kinds in the API."""


class Task(NamedTuple):
    """One unit of work."""

    subject: Subject
    key: Key

    def __str__(self) -> str:
        return f"{self.subject.value} {self.key}"


class Loop:
    """Looks at Jobs and their parents, and frees PodGroups.

    ``synced`` says that the Store may be believed, ``is_obstructed`` that only Workloads and PodGroups are missing.
    ``priorities`` is None where an admission plugin gives PodGroups their priority.
    """

    def __init__(
        self,
        store: Store,
        jobs: Jobs,
        parents: Parents,
        echoes: Echoes,
        protection: Protection,
        priorities: Priorities | None,
        queue: WorkQueue[Task],
        clock: Callable[[], float],
        synced: asyncio.Event,
        is_obstructed: Callable[[], bool],
        metrics: ControllerMetrics,
    ) -> None:
        self.queue = queue
        self._metrics, self._protection, self._priorities = metrics, protection, priorities
        self._store, self._jobs, self._parents, self._echoes = store, jobs, parents, echoes
        self._clock, self._synced, self._is_obstructed = clock, synced, is_obstructed
        self._retries: Retries[Task] = Retries(queue, clock)

    # --- changes ---------------------------------------------------------------------------------------------------

    def note(self, old: Item | None, new: Item | None) -> None:
        """The Store changed so: queue what this may concern."""
        item = new or old
        match item:
            case Job():
                self._add(Subject.JOB, item.key)
            case Parent():
                self._add(Subject(item.kind.value), item.key)
            case Workload():
                self._echoes.drop(item)
                for version in (old, new):
                    self._add_owner_of(version)
            case PodGroup():
                self._note_group(item)
            case Pod():
                self._note_pod(item, old, new)
            case PriorityClass() if self._priorities is not None:
                for key in self._priorities.waiting_for(item):
                    self._add(Subject.PRIORITY, key)

    def _note_group(self, group: PodGroup) -> None:
        self._echoes.drop(group)
        if self._priorities is not None and self._priorities.awaiting(group) is not None:
            self._add(Subject.PRIORITY, group.key.object_key)
        if self._protection.note(group.key):
            self._look_later(group.key.namespace)
        if group.workload is not None:
            self._add_owner_of(self._store.workloads.get(Key(group.key.namespace, group.workload)))

    def _note_pod(self, pod: Pod, old: Item | None, new: Item | None) -> None:
        if pod.place is not None and pod.place.replica and _turned(old, new):
            self._add(Subject(pod.place.kind.value), Key(pod.namespace, pod.place.parent))
        if _ended(old, new):
            self._note_end(pod)

    def _note_end(self, pod: Pod) -> None:
        if pod.owner is not None and pod.owner.kind == "Job":
            self._add(Subject.JOB, Key(pod.namespace, pod.owner.name))
        if pod.group is not None and self._protection.note_end(pod.group):
            self._look_later(pod.namespace)

    def _add_owner_of(self, workload: Item | None) -> None:
        if isinstance(workload, Workload) and workload.parent is not None:
            kind, name = workload.parent
            self._add(Subject(kind), Key(workload.key.namespace, name))
        if isinstance(workload, Workload) and workload.job is not None:
            self._add(Subject.JOB, Key(workload.key.namespace, workload.job))

    def _add_controller_of(self, item: Workload | PodGroup) -> None:
        owner = next((each for each in item.owners if each.controller), None)
        if owner is not None and owner.kind in _OWNERS:
            self._add(_OWNERS[owner.kind], Key(item.key.namespace, owner.name))

    def _add(self, subject: Subject, key: Key) -> None:
        self.queue.add(Task(subject, key))

    # --- work ------------------------------------------------------------------------------------------------------

    async def run(self, workers: int) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._probe())
            tasks.create_task(self._tell_obstacle())
            for _ in range(workers):
                tasks.create_task(self._work())

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            _attempt(self._retries.probe)
            _attempt(self._expire_echoes)

    def _expire_echoes(self) -> None:
        for unseen in self._echoes.expire():
            self._add_controller_of(unseen)

    async def _tell_obstacle(self) -> None:
        while True:
            await asyncio.sleep(_OBSTACLE_SECONDS)
            if self._is_obstructed():
                _attempt(self._jobs.tell_obstacle)
                _attempt(self._parents.tell_obstacle)

    async def _work(self) -> None:
        while True:
            task = await self.queue.get()
            await self._synced.wait()
            begun = self._clock()
            result = await self._try(task)
            if task.subject is Subject.JOB:
                self._metrics.synced(result, self._clock() - begun)
            self.queue.done(task)

    async def _try(self, task: Task) -> str:
        try:
            looked = await self._look(task)
        except ApiError as error:
            self._put_off(task, error)
            return "retry"
        except Exception as error:
            # One Job that we cannot digest must not stop the others.
            log.exception("a look failed", extra={"task": str(task)})
            self._put_off(task, error)
            return "error"
        self._retries.accept(task, wrote=looked.created)
        if looked.again is not None:
            self.queue.add_after(task, looked.again)
        return "success"

    def _put_off(self, task: Task, error: Exception) -> None:
        failures = self._retries.refuse(task, error)
        fate = "will try again when it changes" if failures is None else "will try again"
        log.info(fate, extra={"task": str(task), "failures": failures, "err": str(error)})

    async def _look(self, task: Task) -> Looked:
        if task.subject is Subject.JOB:
            return await self._jobs.look(task.key, self.queue.failures(task))
        if task.subject in _PARENTS:
            return await self._parents.look(OwnerKey(task.subject.value, task.key), self.queue.failures(task))
        if task.subject is Subject.LEAVING:
            await self._free_groups(task.key.namespace)
        elif self._priorities is not None:
            await self._priorities.settle(task.key)
        return Looked()

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
        # What is done every few seconds must not end for one odd object.
        log.exception("work in the background failed")


def _ended(old: Item | None, new: Item | None) -> bool:
    """Whether a pod went or finished: nothing else about the pods of Jobs asks for work."""
    return new is None or (isinstance(old, Pod) and isinstance(new, Pod) and old.phase is not new.phase)


def _turned(old: Item | None, new: Item | None) -> bool:
    """Whether a leader came or is going: its replica needs a PodGroup then, or may have been the last of its parent."""
    if not (isinstance(old, Pod) and isinstance(new, Pod)):
        return True
    return (old.place, old.deleting) != (new.place, new.deleting)
