"""When running pods are expected to end: what they and their Jobs say, else how long earlier Jobs of the kind ran.

Times are seconds since 1970 and come in as arguments. Nothing here is needed to be right: it is what a forecast is
made of.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum
from statistics import median

from serried.model.group import Job, Key
from serried.model.parent import JOB
from serried.model.pod import Pod

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
