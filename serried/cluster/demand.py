"""How many members of a gang its owner wants to run now: slots of dead members beyond that are not kept."""

from serried.cluster.store import Store
from serried.model.group import Job, Key, OwnerRef, PodGroup
from serried.model.parent import JOB, REPLICA, OwnerKey, Parent, ParentKind, stages_of
from serried.plan.quorum import GroupMembers


def count_wanted(store: Store, group: PodGroup, group_members: GroupMembers) -> int:
    """How many members are to run at a time, without those that need no pod any more.

    0 if the owner has ended, or is about to, is suspended, is being deleted or is gone. If no known owner says a
    number, it is what minCount still takes, as long as a member is left. A tree wants what its PodGroups want.
    """
    below = ((store.groups.get(group.key.leaf(name)), each) for name, each in group_members.leaves.items())
    return sum(_count_of_leaf(store, leaf, each) for leaf, each in below if leaf is not None)


def _count_of_leaf(store: Store, group: PodGroup, group_members: GroupMembers) -> int:
    job = store.membership.job_of(group)
    if job is not None:
        return _count_of_job(job)
    size = _count_of_owner(store, group)
    if size is None:
        left = group_members.bound or group_members.waiting or group_members.gated or group_members.refused
        size = (group.policy.min_count or 0) if left else 0
    return max(0, size - (group_members.placed - len(group_members.bound)))


def _count_of_job(job: Job) -> int:
    if job.finished or job.ending or job.suspended or job.deleting:
        return 0
    if job.completions is None:
        return job.parallelism
    return max(0, min(job.parallelism, job.completions - job.completed - job.given_up))


def _count_of_owner(store: Store, group: PodGroup) -> int | None:
    """The size that the group's controlling owner gives it, 0 if that is gone, None if it says nothing."""
    owner = next((owner for owner in group.owners if owner.controller), None)
    if owner is None:
        return None
    if owner.kind == JOB:
        return 0  # else it would be known
    return _count_of_parent(store, group, owner) if owner.kind in set(ParentKind) else None


def _count_of_parent(store: Store, group: PodGroup, owner: OwnerRef) -> int | None:
    parent = store.parents.get(OwnerKey(owner.kind, Key(group.key.namespace, owner.name)))
    if parent is None:
        return 0 if owner.kind in store.membership.followed else None
    if parent.uid != owner.uid or parent.finished or parent.deleting or _is_beyond(parent, group.labels.get(REPLICA)):
        return 0
    sizes = {stage.name: stage.size for stage in stages_of(parent)}
    return sizes.get(group.template or "") if parent.staged else sum(sizes.values())


def _is_beyond(parent: Parent, replica: str | None) -> bool:
    """Whether the parent's number of replicas does not reach up to this one (any more)."""
    return (
        replica is not None and parent.replicas is not None and replica.isdecimal() and int(replica) >= parent.replicas
    )
