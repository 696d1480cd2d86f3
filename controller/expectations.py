"""Creations that the watch has yet to show (kube-controller-manager's ControllerExpectations, controller_utils.go).

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
"""After this time an object that the watch never showed is taken for deleted before it was seen."""

Created = TypeVar("Created", Workload, PodGroup)


class Expectations:
    """Created objects that the Store lacks. ``clock`` is monotonic."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._workloads: _Expected[Workload] = _Expected(_owner_in)
        self._groups: _Expected[PodGroup] = _Expected(_workload_in)

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
        """The watch showed the object, or its end."""
        (self._workloads if isinstance(seen, Workload) else self._groups).drop(seen.key)

    def workloads_of(self, owner: Owner) -> list[Workload]:
        """The expected Workloads of this very owner."""
        return self._workloads.at((owner_key_of(owner), owner.uid))

    def groups_of(self, workload: Workload) -> list[PodGroup]:
        """The expected PodGroups of a Workload."""
        return self._groups.at((workload.key.namespace, workload.key.name))

    def expire(self) -> list[Workload | PodGroup]:
        """Forget what the watch has not shown in time, and return it: its owners have to be looked at."""
        return [*self._workloads.expire(self._clock()), *self._groups.expire(self._clock())]


class _Expected(Generic[Created]):
    """Objects by key, and by the place at which they are looked for: in a burst there are hundreds."""

    def __init__(self, place: Callable[[Created], Hashable]) -> None:
        self._place: Callable[[Created], Hashable] = place
        self._created: dict[Key | GroupKey, tuple[float, Created]] = {}
        """With the time at which the expectation expires."""
        self._at: dict[Hashable, tuple[Key | GroupKey, ...]] = {}

    def __len__(self) -> int:
        return len(self._created)

    def add(self, created: Created, until: float) -> None:
        self.drop(created.key)
        self._created[created.key] = (until, created)
        reindex(self._at, None, self._place(created), created.key)

    def drop(self, key: Key | GroupKey) -> Created | None:
        _, created = self._created.pop(key, (0.0, None))
        if created is not None:
            reindex(self._at, self._place(created), None, key)
        return created

    def at(self, place: Hashable) -> list[Created]:
        return [self._created[key][1] for key in self._at.get(place, ())]

    def expire(self, now: float) -> list[Created]:
        due = [key for key, (until, _) in self._created.items() if until <= now]
        return [created for key in due if (created := self.drop(key)) is not None]


def _owner_in(workload: Workload) -> Hashable:
    controller = next((each.uid for each in workload.owners if each.controller), None)
    return (owner_key_in(workload), controller)


def _workload_in(group: PodGroup) -> Hashable:
    return (group.key.namespace, group.workload)
