"""Suspended Jobs whose objects are deleted and made anew, because their annotations changed before they had a pod."""

from controller.diff.changes import Observed
from controller.diff.duty import Duty
from serried.cluster.store import Store
from serried.model.group import Job
from serried.model.parent import Owner, OwnerKey, owner_key_of


class Renewals:
    """Decides which Jobs' objects are made anew.

    Once for each change of a Job: if the new objects differ from it as well, another client wants it so.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._renewed: dict[OwnerKey, tuple[object, frozenset[str]]] = {}
        """What each Job asked for when its objects were last given up, and the UIDs of these objects."""

    def begin(self, owner: Owner, observed: Observed, duty: Duty) -> bool:
        """Whether the Job's objects may be deleted, to be made anew; no pod waits for them while it is suspended."""
        if not isinstance(owner, Job) or not self._is_idle(owner, duty):
            return False
        owner_key = owner_key_of(owner)
        wish = (owner.uid, owner.topology_key, owner.preference, owner.disruption)
        there = frozenset({each.uid for each in observed.workloads} | {each.uid for each in observed.groups})
        last_wish, leaving = self._renewed.get(owner_key, (None, frozenset[str]()))
        if last_wish == wish and not there <= leaving:
            return False
        self._renewed[owner_key] = (wish, leaving if last_wish == wish else there)
        return True

    def forget(self, owner_key: OwnerKey) -> None:
        """The owner has gone."""
        self._renewed.pop(owner_key, None)

    def _is_idle(self, job: Job, duty: Duty) -> bool:
        pods = (pod for pod in self._store.owners.pods_of(owner_key_of(job)) if pod.owner and pod.owner.uid == job.uid)
        return duty in {Duty.START, Duty.TRACK} and job.suspended and next(pods, None) is None
