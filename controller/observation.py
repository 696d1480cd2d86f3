"""The objects that exist for an owner: in the Store, or created and not yet in it."""

from collections.abc import Collection

from controller.diff.changes import Observed
from controller.expectations import Expectations
from serried.cluster.membership import is_made_for, split_replaced
from serried.cluster.store import Store
from serried.model.group import Job, PodGroup, Workload
from serried.model.parent import Owner, owner_key_of


def observe(store: Store, expectations: Expectations, owner: Owner) -> Observed:
    """The objects of an owner, found by reference, with those that we have created a moment ago."""
    referring = store.membership.referring_to(owner) + expectations.workloads_of(owner)
    counting, replaced = split_replaced(referring, owner)
    workloads = [workload for workload in counting if not workload.api] or counting  # as `Membership.workloads_of`
    outdated: list[Workload | PodGroup] = [group for each in replaced for group in _known_groups_of(store, each, owner)]
    outdated += replaced
    if len(workloads) != 1:
        return Observed(workloads, outdated=outdated)
    expected = [each for each in expectations.groups_of(workloads[0]) if is_made_for(owner, each, workloads[0])]
    groups = _known_groups_of(store, workloads[0], owner) + expected
    return Observed(workloads, groups, outdated, _find_replicas(store, owner))


def _known_groups_of(store: Store, workload: Workload, owner: Owner) -> list[PodGroup]:
    """The Workload's PodGroups that are objects of their own; inline ones are a part of the Workload."""
    return [] if workload.inline else store.membership.groups_of(workload, owner)


def _find_replicas(store: Store, owner: Owner) -> Collection[str]:
    if isinstance(owner, Job) or owner.replicas is None:
        return ()
    places = (pod.place for pod in store.owners.pods_of(owner_key_of(owner)) if not pod.deleting)
    return dict.fromkeys(place.replica for place in places if place is not None)
