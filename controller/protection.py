"""Removes the finalizer of PodGroups that are being deleted, and writes priorities of groups.

`Protection` does the first, for PodGroups of every API group. `Priorities` does the second, for groups of Serried's own
API group (the fallback level, by CRDs).

    PodGroup deleting ──grace──▶ read pods ──no pod names it──▶ finalizer removed
                                  ▲    │ a pod names it
                                  └────┘ growing pause

The finalizer keeps a PodGroup as long as an unfinished pod names it. Any pod may name a PodGroup, and the watches show
only some pods. Therefore all pods of the namespace are read from the API server, a few seconds after the deletion: in
these (the grace) kube-controller-manager may remove the finalizer. One read decides about all PodGroups that were seen
as deleting before it began, so each pod that is older than the deletion is in it.

A priority is written once, as the admission plugin Priority does: the value of the class, of the global default class,
or 0. Later changes of the class have no effect. If the class does not exist, the priority stays unset until it does.
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
    """Writes ``spec.priority`` of PodGroups and CompositePodGroups of Serried's own API group that lack it.

    For groups of scheduling.k8s.io, the admission plugin Priority writes it.
    """

    def __init__(self, store: Store, writes: Writes) -> None:
        self._store = store
        self._writes = writes

    def missing_priority(self, group: PodGroup | Composite) -> int | None:
        """Return the priority to write for the group; None if there is nothing to write.

        That is so if the group has a priority, is being deleted, is not of Serried's own API group, or names a class
        that does not exist.
        """
        ours = FALLBACK.api_version in {group.api, self._store.level.api_version}
        lacks = ours and group.priority is None and not group.deleting
        return self.resolve(group.priority_class) if lacks else None

    def groups_without_priority(self, priority_class: PriorityClass) -> list[PodGroup | Composite]:
        """Return the groups that name this class and whose priority is not written yet."""
        groups: list[PodGroup | Composite] = [group for group in self._store.groups.values() if group.branch is None]
        groups += self._store.forest.composites.values()
        naming = (group for group in groups if group.priority_class == priority_class.name)
        return [group for group in naming if self.missing_priority(group) is not None]

    def resolve(self, name: str) -> int | None:
        """Return the value of the PriorityClass ``name``; None if it does not exist.

        "" stands for the global default class, or 0 without one.
        """
        return resolve_priority(name, self._store.priority_classes)

    async def set_group_priority(self, key: GroupKey) -> None:
        """Write the priority of the PodGroup ``key``, unless it has one or is gone. Raises ApiError."""
        await self._write_missing(self._store.groups.get(key))

    async def set_composite_priority(self, key: Key) -> None:
        """Write the priority of the CompositePodGroup ``key``, unless it has one or is gone. Raises ApiError."""
        await self._write_missing(self._store.forest.composites.get(key))

    async def _write_missing(self, group: PodGroup | Composite | None) -> None:
        priority = self.missing_priority(group) if group is not None else None
        if group is None or priority is None:
            return
        try:
            await self._writes.set_priority(group, priority)
        except NotFound:
            pass  # the group was deleted meanwhile


_WRITES_AT_ONCE = 8

_PAUSE = Backoff(first=1.0, cap=30.0)


@dataclass(frozen=True, slots=True)
class ReleaseTiming:
    """The times at which the pods of a namespace are read, to find those of a PodGroup that is being deleted."""

    grace_seconds: float = 5.0
    """Seconds after a deletion or the end of a pod during which the finalizer is left to kube-controller-manager.

    kube-controller-manager removes it, too, where its gate is on.
    """

    pause: Backoff = _PAUSE
    """The pauses in seconds after each read that found a pod. They grow."""

    @property
    def tick_seconds(self) -> float:
        """Return the length of a tick in seconds: the time of each read is rounded up to a whole number of ticks.

        So PodGroups of a namespace that are deleted at about the same time need only one read.
        """
        return self.pause.first


RELEASE_TIMING = ReleaseTiming()


@dataclass(slots=True)
class _Release:
    """A PodGroup that is being deleted and still has the finalizer. Times are in seconds of the monotonic clock."""

    not_before: float
    """The time until which the finalizer is left to kube-controller-manager."""

    due: float
    """The time of the next read of the namespace's pods for this PodGroup."""

    reads: int = 0
    """The number of times that pods were read for this PodGroup. The pause until the next read grows with it."""


@dataclass(eq=False)
class Protection:
    """Removes the finalizer of PodGroups that are being deleted and that no unfinished pod names.

    The reconcile loop (`controller.loop`) has the only instance. It calls `release_due` when the time by
    `seconds_until_due` has passed. It asks for that time after each `release_due`, and after `observe_group` or
    `observe_pod_end` has returned True.
    """

    store: Store

    read_named_groups: Callable[[str], Awaitable[AbstractSet[GroupKey]]]
    """Reads from the API server which PodGroups a namespace's unfinished pods name (`writes.read_named_groups`)."""

    writes: Writes

    clock: Callable[[], float]
    """Return the monotonic time in seconds."""

    record_progress: Callable[[], None]
    """Called when the API server has answered a write, for the watchdog of the process."""

    timing: ReleaseTiming = RELEASE_TIMING

    _releases: dict[str, dict[GroupKey, _Release]] = field(default_factory=dict, init=False)
    """The PodGroups that are being deleted and still have the finalizer, by namespace."""

    def observe_group(self, key: GroupKey) -> bool:
        """Take note of a changed PodGroup: whether it is being deleted and still has the finalizer.

        Return True if it is and was not before, so that the time of the next read may be earlier.
        """
        if self._find(key) is None:
            self._forget(key)
            return False
        releases = self._releases.setdefault(key.namespace, {})
        if key in releases:
            return False
        not_before = self.clock() + self.timing.grace_seconds
        releases[key] = _Release(not_before, due=self._round_up_to_tick(not_before))
        return True

    def observe_pod_end(self, key: GroupKey) -> bool:
        """Plan an earlier read of the pods, because a pod that names the PodGroup has finished or was deleted.

        Return True if the next read is earlier now; False if it was early enough, or the PodGroup waits for none.
        """
        release = self._releases.get(key.namespace, {}).get(key)
        due = self._round_up_to_tick(self.clock() + self.timing.grace_seconds)
        if release is None or release.due <= due:
            return False
        release.due = due
        return True

    def seconds_until_due(self, namespace: str) -> float | None:
        """Return the seconds until pods of the namespace must be read again, None if no PodGroup there waits for it."""
        releases = self._releases.get(namespace)
        return max(0.0, min(release.due for release in releases.values()) - self.clock()) if releases else None

    async def release_due(self, namespace: str) -> None:
        """Read the pods of the namespace if the time has come, and remove the finalizer of PodGroups that no pod names.

        The pods are not read if the Store has an unfinished pod of each PodGroup. Raises ApiError at once if the read
        fails. If writes fail, raises the first ApiError after all PodGroups were tried.
        """
        releases = self._releases.get(namespace, {})
        now = self.clock()
        if not any(release.due <= now for release in releases.values()):
            return
        candidates = [key for key, release in releases.items() if release.not_before <= now]
        # Before the read, which may fail, and during which the end of a pod may bring the next read forward again.
        for key in candidates:
            self._postpone(releases[key])
        unsure = [
            group for key in candidates if (group := self._find(key)) is not None and not self._has_known_pod(group)
        ]
        if unsure:
            named = await self.read_named_groups(namespace)
            await self._take_finalizers_off([group for group in unsure if group.key not in named])

    async def _take_finalizers_off(self, groups: Sequence[PodGroup]) -> None:
        refusals: list[ApiError] = []
        for begin in range(0, len(groups), _WRITES_AT_ONCE):
            some = groups[begin : begin + _WRITES_AT_ONCE]
            outcomes = await asyncio.gather(*(self._take_finalizer_off(group) for group in some))
            refusals += filter(None, outcomes)
        if refusals:
            raise refusals[0]

    async def _take_finalizer_off(self, group: PodGroup) -> ApiError | None:
        # Pods that belong to the PodGroup through their Job, without naming it, do not count: they join the PodGroup
        # that is created next, which may need the same name.
        try:
            await self.writes.set_finalizers(group, [name for name in group.finalizers if name != PROTECTION])
        except NotFound:
            pass  # the PodGroup is gone already
        except ApiError as error:
            return error
        finally:
            self.record_progress()
        self._forget(group.key)
        return None

    def _find(self, key: GroupKey) -> PodGroup | None:
        """Return the PodGroup from the Store if it is being deleted and still has the finalizer, else None."""
        group = self.store.groups.get(key)
        return group if group is not None and group.deleting and PROTECTION in group.finalizers else None

    def _has_known_pod(self, group: PodGroup) -> bool:
        """Return whether the Store has an unfinished pod that names the PodGroup.

        No read is needed then, because the watch will show the end of that pod.
        """
        members = self.store.members.of_group(group.key)
        return any(pod.group == group.key and pod.phase is Phase.ACTIVE for pod in members)

    def _forget(self, key: GroupKey) -> None:
        releases = self._releases.get(key.namespace, {})
        releases.pop(key, None)
        if not releases:
            self._releases.pop(key.namespace, None)

    def _postpone(self, release: _Release) -> None:
        release.reads += 1
        release.due = self._round_up_to_tick(self.clock() + self.timing.pause.delay(release.reads))

    def _round_up_to_tick(self, when: float) -> float:
        return math.ceil(when / self.timing.tick_seconds) * self.timing.tick_seconds
