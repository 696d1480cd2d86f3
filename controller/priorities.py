"""The priority of PodGroups and CompositePodGroups at the fallback level, where no admission plugin resolves it.

It is resolved once, like there: that of the class, of the global default, or 0. A class that changes later changes no
group, and one that does not exist is waited for.
"""

from controller.writes import Writes
from serried.cluster.store import Store
from serried.kube.errors import NotFound
from serried.model.composite import Composite
from serried.model.group import GroupKey, Key, PodGroup
from serried.model.priority import PriorityClass, resolve_priority


class Priorities:
    """Gives groups their priority."""

    def __init__(self, store: Store, writes: Writes) -> None:
        self._store = store
        self._writes = writes

    def awaiting(self, group: PodGroup | Composite) -> int | None:
        """The priority that the group lacks; None if it has one, or there is none to be had."""
        lacks = group.priority is None and not group.deleting
        return self.resolve(group.priority_class) if lacks else None

    def waiting_for(self, found: PriorityClass) -> list[PodGroup | Composite]:
        """The groups that wait for this class."""
        groups: list[PodGroup | Composite] = [group for group in self._store.groups.values() if group.tree is None]
        groups += self._store.forest.composites.values()
        return [each for each in groups if each.priority_class == found.name and self.awaiting(each) is not None]

    def resolve(self, name: str) -> int | None:
        """The priority to be written for a class, "" for none; None if there is nothing to be written yet."""
        return resolve_priority(name, self._store.priority_classes)

    async def settle_group(self, key: GroupKey) -> None:
        """Write the priority of a PodGroup, if it still has none; raises ApiError."""
        await self._settle(self._store.groups.get(key))

    async def settle_composite(self, key: Key) -> None:
        """Write that of a CompositePodGroup; raises ApiError."""
        await self._settle(self._store.forest.composites.get(key))

    async def _settle(self, group: PodGroup | Composite | None) -> None:
        priority = self.awaiting(group) if group is not None else None
        if group is None or priority is None:
            return
        try:
            await self._writes.set_priority(group, priority)
        except NotFound:
            pass  # it has gone meanwhile
