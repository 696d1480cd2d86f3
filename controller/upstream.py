"""Leaves Jobs to kube-controller-manager where its gate WorkloadWithJob is on: then it makes Workloads for Jobs, too.

The API does not say that the gate is on; the first Workload that it makes does. From then on each Job that it manages
is left to it for a while, so that two controllers do not race. If it makes nothing in that time the gate counts as off,
and all Jobs are ours until its next Workload is seen.
"""

from collections.abc import Callable, Sequence

from controller.diff.names import is_upstream_template, workload_name
from serried.cluster.membership import is_controlled_by
from serried.decode.provenance import is_ours
from serried.model.group import Job, Workload
from serried.model.parent import Owner, OwnerKey, owner_key_of

PATIENCE_SECONDS = 10.0
"""How long a Job is left to kube-controller-manager, which creates a Workload before the first pod."""


def is_upstreams(workload: Workload, owner: Owner) -> bool:
    """Whether kube-controller-manager made the Workload: its name and its owner, and not our label."""
    # In this order, because only the last one costs a hash.
    return (
        isinstance(owner, Job)
        and not is_ours(workload, owner)
        and is_controlled_by(workload, owner)
        and workload.key.name == workload_name(owner)
    )


class Upstream:
    """What is known of kube-controller-manager."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.is_seen = False
        """Whether a Workload that it made has been seen, so that its gate counts as on."""
        self._clock = clock
        """The monotonic time in seconds."""
        self._left: dict[OwnerKey, tuple[str, float]] = {}
        """The UID of each Job that is left to it, and the time since when."""

    def learn(self, owner: Owner, workloads: Sequence[Workload]) -> None:
        """Look whether it made one of these Workloads, which refer to the owner."""
        self.is_seen = self.is_seen or any(is_upstreams(workload, owner) for workload in workloads)

    def forget(self, owner_key: OwnerKey) -> None:
        """The owner has gone."""
        self._left.pop(owner_key, None)

    def seconds_left(self, owner: Owner) -> float:
        """How long the owner is still left to kube-controller-manager; 0 for one that is ours."""
        if not self.looks_after(owner):
            return 0.0
        owner_key = owner_key_of(owner)
        uid, since = self._left.get(owner_key, ("", 0.0))
        if uid != owner.uid:
            since = self._clock()
            self._left[owner_key] = owner.uid, since
        if (left := since + PATIENCE_SECONDS - self._clock()) > 0:
            return left
        self.is_seen = False  # it has stopped, or what was seen was another's
        return 0.0

    def looks_after(self, owner: Owner) -> bool:
        """Whether it makes Workloads for such an owner: its own Job, that no controller owns, of a name it can use."""
        if not self.is_seen or not isinstance(owner, Job) or owner.managed_by:
            return False
        return owner.owner is None and is_upstream_template(owner)
