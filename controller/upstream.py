"""Standing aside for kube-controller-manager, where its gate WorkloadWithJob is on: it makes Workloads for Jobs, too.

Nothing in the API says that the gate is on; its first Workload does. From then on the Jobs that it manages are left to
it for a while, so that two reconcilers do not race for each. A Job for which it makes nothing is ours, and so are all
until it is seen again.
"""

from collections.abc import Callable, Sequence

from controller.names import is_upstream_template, workload_name
from controller.owners import is_ours
from serried.cluster.membership import is_controlled_by
from serried.model.group import Job, Key, Workload

PATIENCE = 10.0
"""Seconds that a Job is left to kube-controller-manager. It creates a Workload before the first pod."""


def is_upstreams(workload: Workload, job: Job) -> bool:
    """Whether kube-controller-manager made the Workload: its name and its owner, and not our label."""
    # In this order, because only the last one costs a hash.
    return not is_ours(workload, job) and is_controlled_by(workload, job) and workload.key.name == workload_name(job)


class Upstream:
    """What is known of the other reconciler. ``clock`` is monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seen = False
        self._clock = clock
        self._left: dict[Key, tuple[str, float]] = {}

    def learn(self, job: Job, workloads: Sequence[Workload]) -> None:
        """These Workloads refer to the Job."""
        self.seen = self.seen or any(is_upstreams(workload, job) for workload in workloads)

    def forget(self, key: Key) -> None:
        """The Job has gone."""
        self._left.pop(key, None)

    def seconds_left(self, job: Job) -> float:
        """How long the Job is still left to kube-controller-manager; 0 for one that we look after."""
        if not self.looks_after(job):
            return 0.0
        uid, since = self._left.get(job.key, ("", 0.0))
        if uid != job.uid:
            since = self._clock()
            self._left[job.key] = job.uid, since
        if (left := since + PATIENCE - self._clock()) > 0:
            return left
        self.seen = False  # it has stopped, or what was seen was another's
        return 0.0

    def looks_after(self, job: Job) -> bool:
        """Whether it makes a Workload for the Job: not if a controller owns it, and where the name does not allow."""
        return self.seen and job.owner is None and is_upstream_template(job)
