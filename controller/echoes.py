"""Our own creates until the watch shows them: without this memory, a second look at a Job would create twice."""

from collections.abc import Callable
from typing import TypeVar

from controller.diff import Found
from controller.owners import Owner, kind_of
from serried.cluster.membership import split_replaced
from serried.cluster.store import Store
from serried.model.group import Job, Key, PodGroup, Workload
from serried.model.parent import JOB, Parent

PATIENCE = 30.0
"""Seconds after which an object that the watch never showed is taken for deleted before it was seen."""


Made = TypeVar("Made", Workload, PodGroup)


class Echoes:
    """Created objects that the Store lacks. ``clock`` is monotonic."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._workloads: dict[Key, tuple[float, Workload]] = {}
        self._groups: dict[Key, tuple[float, PodGroup]] = {}

    def __len__(self) -> int:
        return len(self._workloads) + len(self._groups)

    def add(self, made: Workload | PodGroup) -> None:
        """The API server has created this; the watch may have shown it already."""
        until = self._clock() + PATIENCE
        if isinstance(made, Workload):
            if made.key not in self._store.workloads:
                self._workloads[made.key] = (until, made)
        elif made.key not in self._store.groups:
            self._groups[made.key] = (until, made)

    def drop(self, seen: Workload | PodGroup) -> None:
        """The watch showed the object, or its end."""
        (self._workloads if isinstance(seen, Workload) else self._groups).pop(seen.key, None)

    def find(self, job: Job) -> Found:
        """What discovery by reference finds for a Job, with what we have created a moment ago."""
        membership = self._store.membership
        referring = membership.referring_to(job)
        referring += [made for _, made in self._workloads.values() if _refers_to(made, job)]
        workloads, replaced = split_replaced(referring)
        outdated: list[Workload | PodGroup] = [group for each in replaced for group in self._groups_of(each)]
        outdated += replaced
        if len(workloads) != 1:
            return Found(workloads, outdated=outdated)
        groups = self._groups_of(workloads[0])
        groups += [made for _, made in self._groups.values() if _made_from(made, workloads[0])]
        return Found(workloads, groups, outdated)

    def find_for_parent(self, parent: Parent) -> Found:
        """The same for a parent: the PodGroups of all its replicas."""
        workloads = self._store.parentage.workloads_of(parent)
        workloads += [made for _, made in self._workloads.values() if _refers_to(made, parent)]
        if len(workloads) != 1:
            return Found(workloads)
        groups = self._groups_of(workloads[0])
        groups += [made for _, made in self._groups.values() if _made_from(made, workloads[0])]
        return Found(workloads, groups)

    def _groups_of(self, workload: Workload) -> list[PodGroup]:
        """Those that are objects; inline ones come and go with the Workload."""
        return [] if workload.inline else self._store.membership.groups_of(workload)

    def expire(self) -> list[Workload | PodGroup]:
        """Forget what the watch has not shown for PATIENCE, and return it: its owners have to be looked at."""
        return [*_expire(self._workloads, self._clock()), *_expire(self._groups, self._clock())]


def _expire(pending: dict[Key, tuple[float, Made]], now: float) -> list[Made]:
    return [pending.pop(key)[1] for key in [key for key, (until, _) in pending.items() if until <= now]]


def _refers_to(workload: Workload, owner: Owner) -> bool:
    controller = next((each.uid for each in workload.owners if each.controller), None)
    kind, name = workload.parent or (JOB, workload.job)
    found = (workload.key.namespace, kind, name, controller)
    return found == (owner.key.namespace, kind_of(owner), owner.key.name, owner.uid)


def _made_from(group: PodGroup, workload: Workload) -> bool:
    return (group.key.namespace, group.workload) == (workload.key.namespace, workload.key.name)
