"""Our own creates until the watch shows them: without this memory, a second look at a Job would create twice."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from controller.diff import Found
from controller.owners import Owner, kind_of
from serried.cluster.indexes import reindex
from serried.cluster.membership import split_replaced
from serried.cluster.store import Store
from serried.model.group import GroupKey, Job, Key, PodGroup, Workload
from serried.model.parent import JOB, Parent

PATIENCE = 30.0
"""Seconds after which an object that the watch never showed is taken for deleted before it was seen."""


Made = TypeVar("Made", Workload, PodGroup)


class Echoes:
    """Created objects that the Store lacks. ``clock`` is monotonic."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._workloads: _Unseen[Workload] = _Unseen(_owner_in)
        self._groups: _Unseen[PodGroup] = _Unseen(_workload_in)

    def __len__(self) -> int:
        return len(self._workloads) + len(self._groups)

    def add(self, made: Workload | PodGroup) -> None:
        """The API server has created this; the watch may have shown it already."""
        until = self._clock() + PATIENCE
        if isinstance(made, Workload):
            if made.key not in self._store.workloads:
                self._workloads.add(made, until)
        elif made.key not in self._store.groups:
            self._groups.add(made, until)

    def drop(self, seen: Workload | PodGroup) -> None:
        """The watch showed the object, or its end."""
        (self._workloads if isinstance(seen, Workload) else self._groups).drop(seen.key)

    def find(self, job: Job) -> Found:
        """What discovery by reference finds for a Job, with what we have created a moment ago."""
        referring = self._store.membership.referring_to(job)
        referring += self._workloads.at(_place_of(job))
        workloads, replaced = split_replaced(referring)
        outdated: list[Workload | PodGroup] = [group for each in replaced for group in self._seen_groups_of(each)]
        outdated += replaced
        if len(workloads) != 1:
            return Found(workloads, outdated=outdated)
        return Found(workloads, self._groups_of(workloads[0]), outdated)

    def find_for_parent(self, parent: Parent) -> Found:
        """The same for a parent: the PodGroups of all its replicas."""
        workloads = self._store.membership.workloads_of(parent)
        workloads += self._workloads.at(_place_of(parent))
        if len(workloads) != 1:
            return Found(workloads)
        return Found(workloads, self._groups_of(workloads[0]))

    def _groups_of(self, workload: Workload) -> list[PodGroup]:
        return self._seen_groups_of(workload) + self._groups.at((workload.key.namespace, workload.key.name))

    def _seen_groups_of(self, workload: Workload) -> list[PodGroup]:
        """Those that are objects; inline ones come and go with the Workload."""
        return [] if workload.inline else self._store.membership.groups_of(workload)

    def expire(self) -> list[Workload | PodGroup]:
        """Forget what the watch has not shown for PATIENCE, and return it: its owners have to be looked at."""
        return [*self._workloads.expire(self._clock()), *self._groups.expire(self._clock())]


class _Unseen(Generic[Made]):
    """Objects by key, and by the place at which they are looked for: in a burst there are hundreds."""

    def __init__(self, place: Callable[[Made], Hashable]) -> None:
        self._place: Callable[[Made], Hashable] = place
        self._made: dict[Key | GroupKey, tuple[float, Made]] = {}
        self._at: dict[Hashable, tuple[Key | GroupKey, ...]] = {}

    def __len__(self) -> int:
        return len(self._made)

    def add(self, made: Made, until: float) -> None:
        self.drop(made.key)
        self._made[made.key] = (until, made)
        reindex(self._at, None, self._place(made), made.key)

    def drop(self, key: Key | GroupKey) -> Made | None:
        _, made = self._made.pop(key, (0.0, None))
        if made is not None:
            reindex(self._at, self._place(made), None, key)
        return made

    def at(self, place: Hashable) -> list[Made]:
        return [self._made[key][1] for key in self._at.get(place, ())]

    def expire(self, now: float) -> list[Made]:
        due = [key for key, (until, _) in self._made.items() if until <= now]
        return [made for key in due if (made := self.drop(key)) is not None]


def _owner_in(workload: Workload) -> Hashable:
    controller = next((each.uid for each in workload.owners if each.controller), None)
    kind, name = workload.parent or (JOB, workload.job)
    return (workload.key.namespace, kind, name, controller)


def _place_of(owner: Owner) -> Hashable:
    return (owner.key.namespace, kind_of(owner), owner.key.name, owner.uid)


def _workload_in(group: PodGroup) -> Hashable:
    return (group.key.namespace, group.workload)
