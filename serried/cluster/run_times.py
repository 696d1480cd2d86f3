"""The expected ends of running pods (`PodEnds`), for the forecast of when the gang at the head of the queue can start.

An end is known from a deadline of the pod or its Job, or estimated from the run times of earlier Jobs with the same
work, i.e. with an equal pod template (`Job.work`). Times are seconds since 1970, unless they are called loop seconds.
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
"""The number of Jobs with the same pod template (`Job.work`) of which run times are remembered: the latest ones."""

_MAX_WORKS = 2000
"""The number of different pod templates of Jobs (`Job.work`) of which run times are remembered."""

_PERMANENT_OWNERS = frozenset({"DaemonSet", "ReplicaSet", "ReplicationController", "StatefulSet", "Node"})
"""The kinds of owners whose pods run until a user ends them. Node is the owner of static pods."""


class Trust(Enum):
    """The sources that the expected end of a pod may be based on: deadlines only, or also run times of earlier Jobs."""

    DEADLINES = "deadlines"
    """Only deadlines that the kubelet or the Job controller enforces."""

    MEASURED = "measured"
    """Deadlines, and the run times of earlier Jobs with the same pod template (`Job.work`)."""


class Endings:
    """Finds when pods are expected to end. ``jobs`` is a live map of the Store.

    For each pod template (`Job.work`) it remembers the run times of the last Jobs that had it. The run time of a Job
    is that of its longest pod.
    """

    def __init__(self, jobs: Mapping[Key, Job]) -> None:
        self._jobs = jobs
        self._runs: OrderedDict[int, OrderedDict[str, int]] = OrderedDict()

    def learn(self, pod: Pod) -> None:
        """Remember the run time of a pod that has succeeded."""
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
        """Return when a pod is expected to end; a pod that does not run yet is assumed to start ``now``.

        Ends are known from the deletion of the pod, and from deadlines of the pod and its Job. With `Trust.MEASURED` an
        end is also estimated from the run times of earlier Jobs with the same pod template. The earliest of these ends
        counts. A measured run time is doubled until the end is after ``now``, as the pod may already run longer than
        earlier ones. If the Job creates a new pod when one has completed, only the pod's deletion and the Job's
        deadline count.

        If no end is known or estimated, return infinity if the pod's owner (such as a DaemonSet or StatefulSet)
        keeps it running until a user ends it, else None.
        """
        job = self._job_of(pod)
        start = now if pod.started is None else float(pod.started)
        known: list[float] = []
        if pod.deleting and pod.ends is not None:
            known.append(float(pod.ends))
        if job is not None and job.lifetime is not None:
            # The Job controller creates the pods first, and sets the Job's startTime a little later.
            known.append((now if job.started is None else float(job.started)) + job.lifetime)
        if job is None or _is_one_wave(job):
            if pod.lifetime is not None:
                known.append(start + pod.lifetime)
            if job is not None and trust is Trust.MEASURED:
                known.extend(self._forecast_end(job, start, now))
        if known:
            return min(known)
        return math.inf if pod.owner is not None and pod.owner.kind in _PERMANENT_OWNERS else None

    def find_begin(self, pod: Pod, now: float) -> float:
        """Return since when a pod uses its resources: its own start or that of its Job; ``now`` before the start.

        The start of the Job counts if the Job has more completions than parallelism. Then it starts a new pod for each
        one that ends, so that the resources of an ended pod are used again.
        """
        job = self._job_of(pod)
        begin = pod.started if job is None or _is_one_wave(job) else job.started
        return now if begin is None else float(begin)

    def _forecast_end(self, job: Job, start: float, now: float) -> list[float]:
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
    """Return whether a Job creates all its pods at once; otherwise it creates a new pod when one has completed."""
    return job.completions is None or job.completions <= job.parallelism


_OVERDUE_SECONDS = 10.0
"""The time from now after which a pod is expected to end that should have ended already."""

_YOUNG_SECONDS = 600.0
"""The age up to which a pod with unknown end counts as likely to end soon.

Each doubling of it makes that less likely.
"""


@dataclass(eq=False)
class PodEnds:
    """Lists the expected ends of the cluster's pods, in loop seconds, for forecasts.

    The maps are live maps of the Store. ``clock`` returns loop seconds, ``wall`` seconds since 1970.
    """

    pods: Mapping[str, Pod]
    groups: Mapping[GroupKey, PodGroup]
    members: Members
    occupancy: Occupancy
    vacancies: Vacancies
    endings: Endings
    clock: Callable[[], float]
    wall: Callable[[], float]

    def find_last(self, members: Iterable[Pod], trust: Trust) -> float | None:
        """Return when the last of these pods will have ended if all start now; None if one end is unknown."""
        wall = self.wall()
        ends = [self.endings.expect(member, wall, trust) for member in members]
        # An end in the past is ignored: our clock may be ahead of the clock that the deadline refers to.
        known = [end for end in ends if end is not None and end > wall]
        return self.clock() + max(known) - wall if len(known) == len(ends) else None

    def list_others(self, group: GroupKey, request: PlanRequest, vain: Mapping[str, int], limit: Limit) -> list[Ending]:
        """Return the expected ends of all pods outside of ``group`` that use a node: bound, assumed or with a slot.

        The slot of a vacancy counts as free when the ended member would have ended; that of a vacancy of ``group`` is
        free now. ``request`` is what the gang asks of the planner. If it asks for a domain that no other gang uses
        (``request.exclusive``), `Ending.holds_domain` is True for pods of other gangs that have their domain of the
        same key to themselves. An unknown end has a number instead of a time (`Ending.doubt`). It grows with the age of
        the pod, and with ``vain``, the number of times, by node, that Serried kept the node free for ``group`` in vain.

        ``limit`` is charged for each pod, and raises an exception if the time for the plan is used up.
        """
        key = request.topology_key if request.exclusive else None
        endings = self._list_vacant(group, key)
        for pod in self.pods.values():
            limit.spend()
            node = pod.node if pod.bound else self.occupancy.node_of(pod.uid)
            if node and (other := self.members.group_of(pod.uid)) != group:
                endings.append(
                    self._forecast_end(pod, node, vain.get(node, 0), holds_domain=self._is_exclusive(other, key))
                )
        return endings

    def _list_vacant(self, group: GroupKey, key: str | None) -> list[Ending]:
        endings = []
        for vacancy in self.vacancies:
            node = self.occupancy.node_of(vacancy.holder)
            own = vacancy.group == group
            if node and (own or not vacancy.replacement):
                at = self.clock() if own else self._expect(vacancy.pod)
                held = not own and self._is_exclusive(vacancy.group, key)
                endings.append(Ending(node, vacancy.pod.shape.requests, at, 0, held, vacancy.holder))
        return endings

    def _is_exclusive(self, group: GroupKey | None, key: str | None) -> bool:
        """Return whether a group demands a domain of this topology key to itself, without any other gang.

        False if group or key is None.
        """
        return key is not None and group is not None and find_exclusive_key(self.groups.get(group)) == key

    def _forecast_end(self, pod: Pod, node: str, vain: int, *, holds_domain: bool) -> Ending:
        at = self._expect(pod)
        doubt = vain + self._count_doublings(pod) if at is None else 0
        return Ending(node, pod.shape.requests, at, doubt, holds_domain, pod.uid)

    def _count_doublings(self, pod: Pod) -> int:
        """Return how often `_YOUNG_SECONDS` has to be doubled to exceed the age of a pod; 0 for a younger pod.

        The older a pod without known end is, the longer it may still run.
        """
        now = self.wall()
        age = max(0.0, now - self.endings.find_begin(pod, now))
        return max(0, math.frexp(age / _YOUNG_SECONDS)[1])

    def _expect(self, pod: Pod) -> float | None:
        now = self.clock()
        wall = self.wall()
        end = self.endings.expect(pod, wall)
        return None if end is None else max(now + _OVERDUE_SECONDS, now + end - wall)
