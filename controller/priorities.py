"""The priority of PodGroups at the fallback level, where no admission plugin resolves their class.

As with the plugin, it is resolved once: a class that changes later changes no PodGroup. A PodGroup that names no class
is left alone until there is a global default: without a priority it counts as 0.
"""

from controller.writes import Writes
from serried.cluster.store import Store
from serried.kube.errors import NotFound
from serried.model.group import GroupKey, Key, PodGroup
from serried.model.priority import PriorityClass, resolve_priority


class Priorities:
    """Gives PodGroups their priority."""

    def __init__(self, store: Store, writes: Writes) -> None:
        self._store = store
        self._writes = writes

    def awaiting(self, group: PodGroup) -> int | None:
        """The priority to be written for the PodGroup; None if it has one, or its class does not exist."""
        lacks = group.priority is None and not group.deleting
        return self.resolve(group.priority_class) if lacks else None

    def waiting_for(self, priority_class: PriorityClass) -> list[Key]:
        """The PodGroups that wait for this class; for the default class also those that name no class."""
        names = {priority_class.name, ""} if priority_class.is_default else {priority_class.name}
        groups = (group for group in self._store.groups.values() if group.priority_class in names)
        return [group.key.object_key for group in groups if self.awaiting(group) is not None]

    def resolve(self, name: str) -> int | None:
        """The priority to be written for a class ("" for no class); None if nothing is to be written."""
        priority = resolve_priority(name, self._store.priority_classes)
        return priority if name else priority or None

    async def settle(self, key: Key) -> None:
        """Write the PodGroup's priority if it still has none; raises ApiError."""
        group = self._store.groups.get(GroupKey(*key))
        priority = self.awaiting(group) if group is not None else None
        if group is None or priority is None:
            return
        try:
            await self._writes.set_priority(group, priority)
        except NotFound:
            pass  # it has gone meanwhile
