"""When running pods are expected to end, for the forecast for the head of the queue.

Pods and their Jobs say it, else it is how long earlier Jobs of the kind ran. Times are seconds since 1970 and come in
as arguments.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from statistics import median

from serried.api.group import PodGroup
from serried.api.job import Job
from serried.api.names import JOB, GroupKey, Key
from serried.api.pod import Pod
from serried.cluster.members import Members
from serried.cluster.priorities import find_exclusive_key
from serried.cluster.usage import Occupancy, Vacancies
from serried.plan.forecast import Ending
from serried.plan.limit import Limit
from serried.plan.request import PlanRequest

_MAX_JOBS = 5
"""Of how many Jobs of one kind of work the run times are remembered."""

_MAX_WORKS = 2000
"""Of how many kinds of work they are."""

_STAYING = frozenset({"DaemonSet", "ReplicaSet", "ReplicationController", "StatefulSet", "Node"})
"""Controllers of pods that run until a user ends them (Node: static pods)."""


class Trust(Enum):
    """What an ending may be read off."""

    DEADLINES = "deadlines"
    """What the kubelet or the Job controller will enforce."""

    MEASURED = "measured"
    """That, and how long earlier Jobs of the kind ran."""


class Endings:
    """Knows when pods end. ``jobs`` is the Store's map, which is live.

    Remembered are the run times of the last Jobs of each kind of work: of each Job the longest of its pods.
    """

    def __init__(self, jobs: Mapping[Key, Job]) -> None:
        self._jobs = jobs
        self._runs: OrderedDict[int, OrderedDict[str, int]] = OrderedDict()

    def learn(self, pod: Pod) -> None:
        """A pod has succeeded."""
        job = self._job_of(pod)
        if job is None or pod.started is None or pod.ends is None:
            return
        runs = self._runs.setdefault(job.work, OrderedDict())
        runs[job.uid] = max(1, pod.ends - pod.started, runs.get(job.uid, 0))
        self._runs.move_to_end(job.work)
        if len(runs) > _MAX_JOBS:
            runs.popitem(last=False)
        if len(self._runs) > _MAX_WORKS:
            self._runs.popitem(last=False)

    def expect(self, pod: Pod, now: float, trust: Trust = Trust.MEASURED) -> float | None:
        """When the pod will have left its node if it runs now or begins now.

        None if that is not known, infinity if it is there to stay. A measured run time that the pod has outlived is
        doubled until its end lies ahead.
        """
        job = self._job_of(pod)
        start = now if pod.started is None else float(pod.started)
        known: list[float] = []
        if pod.deleting and pod.ends is not None:
            known.append(float(pod.ends))
        if job is not None and job.lifetime is not None:
            # The Job controller makes the pods first, and writes when the Job began a little later.
            known.append((now if job.started is None else float(job.started)) + job.lifetime)
        if job is None or _is_one_wave(job):
            if pod.lifetime is not None:
                known.append(start + pod.lifetime)
            if job is not None and trust is Trust.MEASURED:
                known.extend(self._foresee(job, start, now))
        if known:
            return min(known)
        return math.inf if pod.owner is not None and pod.owner.kind in _STAYING else None

    def find_begin(self, pod: Pod, now: float) -> float:
        """Since when the room of a pod has been used by what it belongs to: a Job of several waves uses it again."""
        job = self._job_of(pod)
        begin = pod.started if job is None or _is_one_wave(job) else job.started
        return now if begin is None else float(begin)

    def _foresee(self, job: Job, start: float, now: float) -> list[float]:
        runs = self._runs.get(job.work)
        if not runs:
            return []
        run = float(median(runs.values()))
        while start + run <= now:
            run *= 2
        return [start + run]

    def _job_of(self, pod: Pod) -> Job | None:
        if pod.owner is None or pod.owner.kind != JOB:
            return None
        job = self._jobs.get(Key(pod.namespace, pod.owner.name))
        return job if job is not None and job.uid == pod.owner.uid else None


def _is_one_wave(job: Job) -> bool:
    """Whether a pod of the Job that ends is followed by none: else its room is not free when it ends."""
    return job.completions is None or job.completions <= job.parallelism


_OVERDUE_SECONDS = 10.0
"""A pod that should have ended already is given this time more."""

_YOUNG_SECONDS = 600.0
"""Pods that are younger are alike if nothing is known of their ends; each doubling of the age tells others apart."""


@dataclass(eq=False)
class PodEnds:
    """Reads the maps and facets of the Store. ``clock`` gives loop seconds, ``wall`` seconds since 1970."""

    pods: Mapping[str, Pod]
    groups: Mapping[GroupKey, PodGroup]
    members: Members
    occupancy: Occupancy
    vacancies: Vacancies
    endings: Endings
    clock: Callable[[], float]
    wall: Callable[[], float]

    def find_last(self, members: Iterable[Pod], trust: Trust) -> float | None:
        """When the last of these will have ended if all begin now; None if that is not known of each."""
        wall = self.wall()
        ends = [self.endings.expect(member, wall, trust) for member in members]
        # What begins now has not ended before: where a deadline is over, our clock may be ahead of the one it goes by.
        known = [end for end in ends if end is not None and end > wall]
        return self.clock() + max(known) - wall if len(known) == len(ends) else None

    def list_others(self, group: GroupKey, request: PlanRequest, vain: Mapping[str, int], limit: Limit) -> list[Ending]:
        """The endings of all pods of other groups that count somewhere: bound, assumed or reserved.

        A slot that is kept for the next member ends as the last one would have; the group's own is room at once.
        ``vain`` is how often nodes were kept in vain: what runs there is doubted the more.
        """
        key = request.topology_key if request.exclusive else None
        endings = self._list_vacant(group, key)
        for pod in self.pods.values():
            limit.spend()
            node = pod.node if pod.bound else self.occupancy.node_of(pod.uid)
            if node and (other := self.members.group_of(pod.uid)) != group:
                endings.append(self._foresee(pod, node, vain.get(node, 0), holds_domain=self._holds(other, key)))
        return endings

    def _list_vacant(self, group: GroupKey, key: str | None) -> list[Ending]:
        endings = []
        for vacancy in self.vacancies:
            node = self.occupancy.node_of(vacancy.claimant)
            own = vacancy.group == group
            if node and (own or not vacancy.replacement):
                at = self.clock() if own else self._expect(vacancy.pod)
                held = not own and self._holds(vacancy.group, key)
                endings.append(Ending(node, vacancy.pod.shape.requests, at, 0, held, vacancy.claimant))
        return endings

    def _holds(self, group: GroupKey | None, key: str | None) -> bool:
        """Whether a group has a domain of this key for itself."""
        return key is not None and group is not None and find_exclusive_key(self.groups.get(group)) == key

    def _foresee(self, pod: Pod, node: str, vain: int, *, holds_domain: bool) -> Ending:
        at = self._expect(pod)
        doubt = vain + self._count_doublings(pod) if at is None else 0
        return Ending(node, pod.shape.requests, at, doubt, holds_domain, pod.uid)

    def _count_doublings(self, pod: Pod) -> int:
        """How old a pod is of whose end nothing is known: it may be expected to run as long again as it has."""
        now = self.wall()
        age = max(0.0, now - self.endings.find_begin(pod, now))
        return max(0, math.frexp(age / _YOUNG_SECONDS)[1])

    def _expect(self, pod: Pod) -> float | None:
        now = self.clock()
        wall = self.wall()
        end = self.endings.expect(pod, wall)
        return None if end is None else max(now + _OVERDUE_SECONDS, now + end - wall)
