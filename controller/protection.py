"""Takes the protection off PodGroups that are being deleted, and gives priorities to PodGroups of the fallback level.

Any pod may name a PodGroup, and the watches show only some pods. So the pods of a namespace are read when a PodGroup of
it is being deleted, and again after a growing pause while a pod still names it. One read answers for all PodGroups that
were seen deleting before it, so every pod that is older than the deletion counts.

A priority is resolved once, as by the admission plugin: that of the class, of the global default, or 0. A class that
changes later changes no group, and one that does not exist is waited for.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from controller.writes import Writes
from serried.api.group import PROTECTION, Composite, PodGroup
from serried.api.level import FALLBACK
from serried.api.names import GroupKey, Key
from serried.api.pod import Phase
from serried.api.priority import PriorityClass, resolve_priority
from serried.cluster.cache import Store
from serried.kube.errors import ApiError, NotFound
from serried.kube.retry import Backoff


class Priorities:
    """Gives groups their priority."""

    def __init__(self, store: Store, writes: Writes) -> None:
        self._store = store
        self._writes = writes

    def awaiting(self, group: PodGroup | Composite) -> int | None:
        """The priority to be written for the group; None if it has one, or its class does not exist."""
        ours = FALLBACK.api_version in {group.api, self._store.level.api_version}
        lacks = ours and group.priority is None and not group.deleting
        return self.resolve(group.priority_class) if lacks else None

    def waiting_for(self, priority_class: PriorityClass) -> list[PodGroup | Composite]:
        """The groups that wait for this class."""
        groups: list[PodGroup | Composite] = [group for group in self._store.groups.values() if group.branch is None]
        groups += self._store.forest.composites.values()
        naming = (group for group in groups if group.priority_class == priority_class.name)
        return [group for group in naming if self.awaiting(group) is not None]

    def resolve(self, name: str) -> int | None:
        """The priority to be written for a class ("" for no class); None if nothing is to be written yet."""
        return resolve_priority(name, self._store.priority_classes)

    async def settle_group(self, key: GroupKey) -> None:
        """Write the PodGroup's priority if it still has none; raises ApiError."""
        await self._settle(self._store.groups.get(key))

    async def settle_composite(self, key: Key) -> None:
        """Write the CompositePodGroup's priority if it still has none; raises ApiError."""
        await self._settle(self._store.forest.composites.get(key))

    async def _settle(self, group: PodGroup | Composite | None) -> None:
        priority = self.awaiting(group) if group is not None else None
        if group is None or priority is None:
            return
        try:
            await self._writes.set_priority(group, priority)
        except NotFound:
            pass  # it has gone meanwhile


_WRITES_AT_ONCE = 8

_PAUSE = Backoff(first=1.0, cap=30.0)


@dataclass(frozen=True, slots=True)
class ReleaseTiming:
    """When a leaving PodGroup is looked at."""

    grace_seconds: float = 5.0
    """How long a PodGroup is left to kube-controller-manager, which does the same where its gate is on."""

    pause: Backoff = _PAUSE
    """The pauses after looks that found a pod; the first of them is the length of a tick, too."""

    @property
    def tick_seconds(self) -> float:
        """Looks fall on multiples of this time."""
        return self.pause.first


RELEASE_TIMING = ReleaseTiming()


@dataclass(slots=True)
class _Wait:
    """A PodGroup that is being deleted. Times are those of the monotonic clock, in seconds."""

    ripe: float
    """The end of the grace time; the PodGroup is left alone before."""

    due: float
    """The time of the next look."""

    looks: int = 0
    """How many looks have found a pod that names it."""


@dataclass(eq=False)
class Protection:
    """Frees PodGroups.

    After `note` or `note_end` has returned True, and after each `look`, `look` is to be called in `delay` seconds.
    """

    store: Store

    read_named: Callable[[str], Awaitable[AbstractSet[GroupKey]]]
    """Reads the PodGroups that the pods of a namespace name (`writes.read_named_groups`)."""

    writes: Writes

    clock: Callable[[], float]
    """The monotonic time in seconds."""

    note_finished: Callable[[], None]
    """Called when a write was answered."""

    timing: ReleaseTiming = RELEASE_TIMING

    _waits: dict[str, dict[GroupKey, _Wait]] = field(default_factory=dict, init=False)
    """The PodGroups that are being deleted, by namespace."""

    def note(self, key: GroupKey) -> bool:
        """The PodGroup changed in the Store, or went. Returns whether it has just become one to look at."""
        if self._find(key) is None:
            self._forget(key)
            return False
        waits = self._waits.setdefault(key.namespace, {})
        if key in waits:
            return False
        ripe = self.clock() + self.timing.grace_seconds
        waits[key] = _Wait(ripe, due=self._to_tick(ripe))
        return True

    def note_end(self, key: GroupKey) -> bool:
        """A pod that names the PodGroup ended. Returns whether its next look is due earlier now."""
        wait = self._waits.get(key.namespace, {}).get(key)
        due = self._to_tick(self.clock() + self.timing.grace_seconds)
        if wait is None or wait.due <= due:
            return False
        wait.due = due
        return True

    def delay(self, namespace: str) -> float | None:
        """Seconds until the next look at a namespace, None if nothing waits there."""
        waits = self._waits.get(namespace)
        return max(0.0, min(wait.due for wait in waits.values()) - self.clock()) if waits else None

    async def look(self, namespace: str) -> None:
        """Free the PodGroups that no pod names, if a look is due. Raises the first ApiError after trying all."""
        waits = self._waits.get(namespace, {})
        now = self.clock()
        if not any(wait.due <= now for wait in waits.values()):
            return
        ripe = [key for key, wait in waits.items() if wait.ripe <= now]
        # Before anything can fail, and before a pod's end during the read makes it earlier again.
        for key in ripe:
            self._postpone(waits[key])
        unsure = [group for key in ripe if (group := self._find(key)) is not None and not self._has_known_pod(group)]
        if unsure:
            named = await self.read_named(namespace)
            await self._free([group for group in unsure if group.key not in named])

    async def _free(self, groups: Sequence[PodGroup]) -> None:
        refusals: list[ApiError] = []
        for begin in range(0, len(groups), _WRITES_AT_ONCE):
            some = groups[begin : begin + _WRITES_AT_ONCE]
            outcomes = await asyncio.gather(*(self._free_one(group) for group in some))
            refusals += filter(None, outcomes)
        if refusals:
            raise refusals[0]

    async def _free_one(self, group: PodGroup) -> ApiError | None:
        # Pods that belong to it through their Job, without naming it, do not count: they join the PodGroup that is
        # made next, which may need the same name.
        try:
            await self.writes.keep_finalizers(group, [name for name in group.finalizers if name != PROTECTION])
        except NotFound:
            pass  # it has gone meanwhile
        except ApiError as error:
            return error
        finally:
            self.note_finished()
        self._forget(group.key)
        return None

    def _find(self, key: GroupKey) -> PodGroup | None:
        """The PodGroup if it is being deleted and still has its protection."""
        group = self.store.groups.get(key)
        return group if group is not None and group.deleting and PROTECTION in group.finalizers else None

    def _has_known_pod(self, group: PodGroup) -> bool:
        """Whether the watch shows a live pod that names the PodGroup. Its end will be noted, so no read is needed."""
        members = self.store.members.of_group(group.key)
        return any(pod.group == group.key and pod.phase is Phase.ACTIVE for pod in members)

    def _forget(self, key: GroupKey) -> None:
        waits = self._waits.get(key.namespace, {})
        waits.pop(key, None)
        if not waits:
            self._waits.pop(key.namespace, None)

    def _postpone(self, wait: _Wait) -> None:
        wait.looks += 1
        wait.due = self._to_tick(self.clock() + self.timing.pause.delay(wait.looks))

    def _to_tick(self, when: float) -> float:
        return math.ceil(when / self.timing.tick_seconds) * self.timing.tick_seconds
