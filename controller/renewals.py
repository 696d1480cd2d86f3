"""Suspended Jobs whose objects are made anew, because what they say has changed before any pod has come."""

from controller.diff.changes import Observed
from controller.diff.duty import Duty
from serried.cluster.store import Store
from serried.model.group import Job
from serried.model.parent import Owner, OwnerKey, owner_key_of


class Renewals:
    """Decides once for what a Job says: objects that say something else again are not ours to quarrel about."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._renewed: dict[OwnerKey, tuple[object, frozenset[str]]] = {}
        """What a Job said, and the UIDs of the objects that were there and go."""

    def begin(self, owner: Owner, observed: Observed, duty: Duty) -> bool:
        """Whether our objects may go, to be made anew from what the Job says now: nobody waits, and nobody will yet."""
        if not isinstance(owner, Job) or not self._is_idle(owner, duty):
            return False
        owner_key = owner_key_of(owner)
        said = owner.uid, owner.topology_key, owner.preference, owner.disruption
        there = frozenset({each.uid for each in observed.workloads} | {each.uid for each in observed.groups})
        before, leaving = self._renewed.get(owner_key, (None, frozenset[str]()))
        if before == said and not there <= leaving:
            return False
        self._renewed[owner_key] = said, leaving if before == said else there
        return True

    def forget(self, owner_key: OwnerKey) -> None:
        """The owner has gone."""
        self._renewed.pop(owner_key, None)

    def _is_idle(self, job: Job, duty: Duty) -> bool:
        pods = (pod for pod in self._store.owners.pods_of(owner_key_of(job)) if pod.owner and pod.owner.uid == job.uid)
        return duty in {Duty.START, Duty.TRACK} and job.suspended and next(pods, None) is None
