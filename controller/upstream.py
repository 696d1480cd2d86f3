"""Standing aside for kube-controller-manager, where its gate WorkloadWithJob is on: it makes Workloads for Jobs, too.

Nothing in the API says that the gate is on; its first Workload does. From then on the Jobs that it manages are left to
it for a while, so that two reconcilers do not race for each. A Job for which it makes nothing is ours, and so are all
until it is seen again.
"""

from collections.abc import Callable, Sequence

from controller.diff.labels import is_ours
from controller.diff.names import is_upstream_template, workload_name
from serried.cluster.membership import is_controlled_by
from serried.model.group import Job, Workload
from serried.model.parent import Owner, OwnerKey, owner_key_of

PATIENCE_SECONDS = 10.0
"""How long a Job is left to kube-controller-manager. It creates a Workload before the first pod."""


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
    """What is known of the other reconciler. ``clock`` is monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.is_seen = False
        self._clock = clock
        self._left: dict[OwnerKey, tuple[str, float]] = {}
        """The UID of each Job that is left to it, and since when."""

    def learn(self, owner: Owner, workloads: Sequence[Workload]) -> None:
        """These Workloads refer to the owner."""
        self.is_seen = self.is_seen or any(is_upstreams(workload, owner) for workload in workloads)

    def forget(self, owner_key: OwnerKey) -> None:
        """The owner has gone."""
        self._left.pop(owner_key, None)

    def seconds_left(self, owner: Owner) -> float:
        """How long the owner is still left to kube-controller-manager; 0 for one that we look after."""
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
        """Whether it makes a Workload for the owner: for a Job that no controller owns, where the name allows it."""
        return self.is_seen and isinstance(owner, Job) and owner.owner is None and is_upstream_template(owner)
