"""Creates that the watch does not show yet (kube-controller-manager's ControllerExpectations, controller_utils.go).

Without this memory, a second look at an owner would create everything twice.
"""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from serried.cluster.indexes import reindex
from serried.cluster.membership import owner_key_in
from serried.cluster.store import Store
from serried.model.group import GroupKey, Key, PodGroup, Workload
from serried.model.parent import Owner, owner_key_of

TIMEOUT_SECONDS = 30.0
"""An object that the watch has not shown by then counts as deleted before it was seen."""

Created = TypeVar("Created", Workload, PodGroup)


class Expectations:
    """Created objects that the Store lacks."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        """The monotonic time in seconds."""
        self._workloads: _Expected[Workload] = _Expected(_owner_of)
        self._groups: _Expected[PodGroup] = _Expected(_workload_of)

    def __len__(self) -> int:
        return len(self._workloads) + len(self._groups)

    def expect(self, created: Workload | PodGroup) -> None:
        """The API server has created this; the watch may have shown it already."""
        until = self._clock() + TIMEOUT_SECONDS
        if isinstance(created, Workload):
            if created.key not in self._store.workloads:
                self._workloads.add(created, until)
        elif created.key not in self._store.groups:
            self._groups.add(created, until)

    def settle(self, seen: Workload | PodGroup) -> None:
        """The watch has shown the object, or its end."""
        (self._workloads if isinstance(seen, Workload) else self._groups).drop(seen.key)

    def workloads_of(self, owner: Owner) -> list[Workload]:
        """The expected Workloads of this very owner."""
        return self._workloads.of((owner_key_of(owner), owner.uid))

    def groups_of(self, workload: Workload) -> list[PodGroup]:
        """The expected PodGroups of a Workload."""
        return self._groups.of((workload.key.namespace, workload.key.name))

    def expire(self) -> list[Workload | PodGroup]:
        """Forget the objects that the watch has not shown in time; returns them, because their owners need a look."""
        return [*self._workloads.expire(self._clock()), *self._groups.expire(self._clock())]


class _Expected(Generic[Created]):
    """Expected objects of one kind, also by what they are looked up by: in a burst there are hundreds of them."""

    def __init__(self, read_origin: Callable[[Created], Hashable]) -> None:
        self._read_origin: Callable[[Created], Hashable] = read_origin
        """What the object was made for: the key by which it is looked up."""
        self._created: dict[Key | GroupKey, tuple[float, Created]] = {}
        """With the monotonic time at which the expectation expires."""
        self._by_origin: dict[Hashable, tuple[Key | GroupKey, ...]] = {}

    def __len__(self) -> int:
        return len(self._created)

    def add(self, created: Created, until: float) -> None:
        self.drop(created.key)
        self._created[created.key] = (until, created)
        reindex(self._by_origin, None, self._read_origin(created), created.key)

    def drop(self, key: Key | GroupKey) -> Created | None:
        _, created = self._created.pop(key, (0.0, None))
        if created is not None:
            reindex(self._by_origin, self._read_origin(created), None, key)
        return created

    def of(self, origin: Hashable) -> list[Created]:
        return [self._created[key][1] for key in self._by_origin.get(origin, ())]

    def expire(self, now: float) -> list[Created]:
        due = [key for key, (until, _) in self._created.items() if until <= now]
        return [created for key in due if (created := self.drop(key)) is not None]


def _owner_of(workload: Workload) -> Hashable:
    controller = next((each.uid for each in workload.owners if each.controller), None)
    return (owner_key_in(workload), controller)


def _workload_of(group: PodGroup) -> Hashable:
    return (group.key.namespace, group.workload)
