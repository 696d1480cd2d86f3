"""Why a gang does not fit, and what would make it fit: found on request, in slices, on a copy of the cluster."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from extender.core import Core
from extender.debug.slices import Slices, TooLongError
from extender.scheduling.kept_slots import KeptSlots
from serried.model.diagnosis import Advice, Diagnosis, Resident
from serried.model.group import GroupKey
from serried.model.plan import PlanRequest, Snapshot
from serried.model.pod import Pod
from serried.model.tree import Leaf
from serried.observe.pace import rest
from serried.plan.capacity import Capacity
from serried.plan.diagnosis import solve_diagnosis
from serried.plan.relaxation import solve_advice
from serried.plan.steps import Work

_MAX_SECONDS = 2.0
"""How much work an inquiry may take."""

_MAX_WAITING = 8
"""How many inquiries may wait for their turn."""

_GROUPS_PER_STEP = 100


class TooManyInquiriesError(Exception):
    """So many wait for their turn that no other is taken."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one gang."""

    diagnosis: Diagnosis | None
    """None if it took too long."""

    advice: tuple[Advice, ...]

    complete: bool
    """Whether all changes were tried in time."""

    spent_seconds: float
    longest_seconds: float
    """The longest time for which the loop was held."""


class Inquiries:
    """One at a time, in the order in which they are asked for. ``rest`` lets the loop have its turn for so long."""

    def __init__(
        self,
        core: Core,
        stopwatch: Callable[[], float] = time.perf_counter,
        rest: Callable[[float], Awaitable[None]] = rest,
    ) -> None:
        self._core = core
        self._stopwatch = stopwatch
        self._rest = rest
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def diagnose(self, group: GroupKey) -> Finding | None:
        """Why a gang that waits for room does not fit; None for any other group."""
        return await self._inquire(group, _Inquiry.explain)

    async def advise(self, group: GroupKey) -> Finding | None:
        """The same, with what would make it fit."""
        return await self._inquire(group, _Inquiry.advise)

    async def _inquire(self, group: GroupKey, begin: Callable[["_Inquiry"], Work[None]]) -> Finding | None:
        if self._waiting >= _MAX_WAITING:
            raise TooManyInquiriesError
        self._waiting += 1
        try:
            async with self._turn:
                ask = self._core.preemptions.find_refused(group)
                return None if ask is None else await self._work(_Inquiry(self._core, group, ask), begin)
        finally:
            self._waiting -= 1

    async def _work(self, inquiry: "_Inquiry", begin: Callable[["_Inquiry"], Work[None]]) -> Finding:
        slices = Slices(self._stopwatch, self._rest)
        complete = True
        try:
            await slices.finish(begin(inquiry), _MAX_SECONDS)
        except TooLongError:
            complete = False
        return Finding(inquiry.diagnosis, tuple(inquiry.advice), complete, slices.spent, slices.longest)


class _Inquiry:
    """One gang, and what has been found of it so far."""

    def __init__(self, core: Core, group: GroupKey, ask: PlanRequest) -> None:
        self.diagnosis: Diagnosis | None = None
        self.advice: list[Advice] = []
        self._core = core
        self._group = group
        self._ask = ask

    def explain(self) -> Work[None]:
        """Find out why the gang does not fit."""
        snapshot, capacity = self._freeze()
        self.diagnosis = yield from solve_diagnosis(snapshot, self._ask, capacity)

    def advise(self) -> Work[None]:
        """Find out what would make it fit, too."""
        residents, keys = yield from self._list_residents()
        snapshot, capacity = self._freeze()
        # Who has come or gone since is not in this snapshot as it was listed.
        pods = self._core.store.pods
        residents = [each for each in residents if all(_is_there(pod, pods.get(pod.uid)) for pod in each.pods)]
        yield
        self.diagnosis = yield from solve_diagnosis(snapshot, self._ask, capacity)
        yield from solve_advice(snapshot, self._ask, residents, capacity, keys=keys, found=self.advice)

    def _freeze(self) -> tuple[Snapshot, Capacity]:
        store = self._core.store
        leaving = KeptSlots(store).list_kept(self._ask.members)
        snapshot = store.snapshots.take(self._ask.yielding_priority, self._ask.members, leaving)
        frozen = store.capacity.freeze()
        return frozen.show(snapshot), frozen

    def _list_residents(self) -> Work[tuple[list[Resident], set[str]]]:
        """The other gangs that run, and the topology keys of all."""
        store = self._core.store
        residents = []
        keys: set[str] = set()
        for place, group in enumerate(list(store.groups.values()), 1):
            keys.update(level.key for level in group.preference.levels)
            keys.update([group.topology_key] if group.topology_key is not None else ())
            pods = [pod for pod in store.members.of_group(group.key) if pod.bound and not pod.deleting]
            if pods and group.policy.is_gang and group.key != self._group and group.parent is None:
                movable = isinstance(group.tree, Leaf)
                residents.append(Resident(str(group.key), pods, group.topology_key, movable))
            if place % _GROUPS_PER_STEP == 0:
                yield
        return residents, keys


def _is_there(before: Pod, now: Pod | None) -> bool:
    if now is before:
        return True
    return now is not None and now.bound and now.node == before.node and now.shape == before.shape
