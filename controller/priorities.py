"""The priority of PodGroups and CompositePodGroups of the fallback level, where no admission plugin resolves it.

As with the plugin, it is resolved once: to that of the class, of the global default, or to 0. A class that changes
later changes no group, and one that does not exist is waited for.
"""

from controller.writes import Writes
from serried.cluster.store import Store
from serried.kube.errors import NotFound
from serried.model.composite import Composite
from serried.model.group import GroupKey, Key, PodGroup
from serried.model.level import FALLBACK
from serried.model.priority import PriorityClass, resolve_priority


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
