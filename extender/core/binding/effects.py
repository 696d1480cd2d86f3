"""Carries out single effects of decisions: nominations, activations, owner lookups and background work.

An effect is an order of a decision, e.g. "nominate these members" (`scheduling.effects`). Decisions only put effects
into a list, the outbox, and wait for nothing. After each decision `CycleRunner.carry_out` takes them out. It starts
binding cycles itself (`StartCycle`), and calls `Effects.carry_out` for all other effects.

`OwnerLookup` asks the API server, not a watch, whether the owner exists for which pods wait: a Job, JobSet or
LeaderWorkerSet. It sends a list request for one name: Serried has the right to list, a list shows the newest state, and
an empty list comes from the API server itself, while a 404 may come from a proxy.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Set
from typing import Any, TypeAlias, assert_never

from extender.core.binding.nominator import Nominator
from extender.core.scheduling.awaited_owner import Waiter
from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.effects import (
    Activate,
    ActivateIdle,
    Effect,
    InBackground,
    LookUpOwner,
    Nominate,
    Release,
    Requeue,
    StartCycle,
    WorkOnTasks,
)
from extender.core.scheduling.group import Groups
from extender.core.scheduling.planning_tasks import PlanningTasks
from serried.api.names import GroupKey
from serried.api.parent import OwnerKey
from serried.cluster.membership import owner_of_provisional
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError
from serried.kube.wire import Selection, identity, owners, select_name
from serried.ops.log import name_group

log = logging.getLogger(__name__)

_MAX_LOOKUPS = 8
"""The maximum number of owner lookups at the same time."""


class OwnerLookup:
    """Asks the API server whether the owner exists for which pods wait: a Job, JobSet or LeaderWorkerSet.

    ``clock`` returns the time of the asyncio loop in seconds.
    """

    def __init__(self, client: ApiClient, groups: Groups, clock: Callable[[], float]) -> None:
        self._client = client
        self._groups = groups
        self._clock = clock
        self._few = asyncio.Semaphore(_MAX_LOOKUPS)

    async def look_up(self, key: GroupKey, waiters: Set[Waiter]) -> None:
        """Ask the API server whether the owner exists for which the pods of a group wait, and requeue the group.

        The answer, or that there was none, is written into the group's state. ``waiters`` are these pods, one `Waiter`
        for all pods with the same owner UID.
        """
        owner_key = owner_of_provisional(key)
        if owner_key is None:
            return
        try:
            async with self._few:
                found = await self._find_uid(owner_key)
        except ApiError as error:
            text = "could not ask the API server whether the owner of waiting pods exists; trying again"
            log.warning(text, extra={**name_group(key), "err": str(error)})
            self._note_unknown(key, str(error))
        except Exception as error:
            self._note_unknown(key, repr(error))  # else the API server would not be asked again
            raise
        else:
            self._note_found(key, waiters, found)
        self._groups.mark_dirty(key)

    async def _find_uid(self, owner_key: OwnerKey) -> str:
        namespace, name = owner_key.key
        selection = Selection(namespace, fields=select_name(name))
        found = [each async for each in self._client.items(owners(owner_key.kind), selection)]
        return next((uid for _, named, uid in map(identity, found) if named == name), "")

    def _note_found(self, key: GroupKey, waiters: Set[Waiter], found: str) -> None:
        state = self._groups.states.get(key)
        if state is not None and state.awaited is not None:
            state.awaited.note_found(waiters, found, self._clock())

    def _note_unknown(self, key: GroupKey, why: str) -> None:
        state = self._groups.states.get(key)
        if state is not None and state.awaited is not None:
            state.awaited.note_unknown(why, self._clock())


class Tasks:
    """The background tasks of one term, so that they can be cancelled together.

    asyncio itself keeps only weak references to tasks.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task. If it fails, the error is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task ended with an internal error and is not repeated", exc_info=error)

    def cancel(self) -> None:
        """Cancel every task."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Cancel every task and wait for its end. The next leader continues by the records, as after a crash."""
        tasks = list(self._tasks)
        self.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


Work: TypeAlias = Coroutine[Any, Any, None]
"""A coroutine that runs in the background."""


class Effects:
    """Carries out effects, the orders of decisions; `CycleRunner` alone starts binding cycles (`StartCycle`).

    Nothing here waits: writes are queued or run in the background.
    """

    def __init__(
        self,
        nominator: Nominator,
        owner_lookup: OwnerLookup,
        planning_tasks: PlanningTasks,
        tasks: Tasks,
    ) -> None:
        self._nominator = nominator
        self._owner_lookup = owner_lookup
        self._planning_tasks = planning_tasks
        self._tasks = tasks

    def carry_out(self, effect: Effect) -> None:
        """Start to carry out one effect, without waiting for its end.

        Raise TypeError for `StartCycle`, which `CycleRunner` handles.
        """
        match effect:
            case Nominate(cycle, uids):
                self._nominator.nominate(cycle, uids)
            case Release(uids, pods):
                self._nominator.release(uids, pods)
            case Activate(pod):
                self._nominator.activate(pod)
            case Requeue(pod, node):
                self._nominator.requeue(pod, node)
            case ActivateIdle(cycle):
                self._nominator.activate_idle(cycle)
            case StartCycle():
                raise TypeError(effect)
            case _:
                self._tasks.spawn(self._work_on(effect))

    def _work_on(self, effect: InBackground | LookUpOwner | WorkOnTasks) -> Work:
        match effect:
            case InBackground(begin):
                return begin()
            case LookUpOwner(group, waiters):
                return self._owner_lookup.look_up(group, waiters)
            case WorkOnTasks():
                return self._planning_tasks.work()
            case _:
                assert_never(effect)

    def nominate(self, cycle: BindingCycle) -> None:
        """Queue all members of a cycle for nomination to the nodes of their slots."""
        self._nominator.nominate_all(cycle)

    def spawn(self, work: Work) -> None:
        """Run a coroutine as a background task, which is cancelled at the end of the term."""
        self._tasks.spawn(work)

    def end_term(self) -> frozenset[str]:
        """Cancel the nominator's writes in the background and all tasks, because another instance may lead from now on.

        Return the UIDs of the pods that were to be activated, i.e. tried by kube-scheduler, and were not yet.
        """
        dropped = self._nominator.end_term()
        self._tasks.cancel()
        return dropped
