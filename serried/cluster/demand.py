"""How many members of a gang its owner wants to run now: slots of dead members beyond that are nobody's."""

from serried.cluster.store import Store
from serried.model.group import GroupKey, Job, Key, OwnerRef, PodGroup
from serried.model.parent import JOB, REPLICA, Family, Parent, ParentKind, stages_of
from serried.plan.quorum import Standing


def count_wanted(store: Store, group: PodGroup, standing: Standing) -> int:
    """How many members are to run at a time. Who needs no pod any more is not wanted.

    0 where the owner has ended, or is about to, is suspended, is being deleted or is gone. Where no owner that is known
    says a number, it is what minCount still takes, as long as anybody is left. Of a tree: what its PodGroups want.
    """
    if group.tree is not None:
        namespace = group.key.namespace
        below = ((store.groups.get(GroupKey(namespace, name)), each) for name, each in standing.leaves.items())
        return sum(count_wanted(store, leaf, each) for leaf, each in below if leaf is not None)
    job = store.membership.job_of(group)
    if job is not None:
        return _count_of_job(job)
    size = _count_of_owner(store, group)
    if size is None:
        left = standing.bound or standing.waiting or standing.gated or standing.refused
        size = (group.policy.min_count or 0) if left else 0
    return max(0, size - (standing.placed - len(standing.bound)))


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
    parent = store.parents.get(Family(owner.kind, Key(group.key.namespace, owner.name)))
    if parent is None:
        return 0 if owner.kind in store.parentage.followed else None
    if parent.uid != owner.uid or parent.finished or parent.deleting or _is_beyond(parent, group.labels.get(REPLICA)):
        return 0
    sizes = {stage.name: stage.size for stage in stages_of(parent)}
    return sizes.get(group.template or "") if parent.staged else sum(sizes.values())


def _is_beyond(parent: Parent, replica: str | None) -> bool:
    """Whether a replica is one of those that a smaller number of replicas leaves out."""
    return (
        replica is not None and parent.replicas is not None and replica.isdecimal() and int(replica) >= parent.replicas
    )
