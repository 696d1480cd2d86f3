"""The members of a group: which count toward minCount, and which have still to be placed."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from serried.model.group import Job, PodGroup
from serried.model.node import Node
from serried.model.parent import OwnerKey, Parent
from serried.model.pod import Phase, Pod
from serried.model.tree import Leaf, Tree
from serried.plan.fit import is_unreachable
from serried.plan.rank import order_by_rank

_NO_PARENTS: Mapping[OwnerKey, Parent] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The members of one group, sorted by what they are to the planner; of a tree the sum of its PodGroups."""

    placed: int
    """How many members count toward minCount: bound ones, and succeeded or given-up ones, which need no pod.

    Without the latter a gang could never replace a failed pod after another one completed
    (kubernetes/kubernetes#142330).
    """

    bound: tuple[Pod, ...]

    waiting: tuple[Pod, ...]
    """Members that may be placed now, lowest rank first."""

    gated: tuple[Pod, ...]
    """Members that carry a scheduling gate of another owner."""

    terminating: tuple[Pod, ...] = ()
    """Members that still run, but are being deleted. They do not count toward minCount.

    Else their replacements would be bound one by one against a quorum that is about to go.
    """

    leaves: Mapping[str, "GroupMembers"] = field(default_factory=dict)
    """Of a tree, its PodGroups by name."""

    refused: tuple[Pod, ...] = ()
    """Members that ask for what kube-scheduler alone counts, and for which it found no node."""

    def need(self, min_count: int) -> int:
        """How many waiting members the quorum still takes; 0 when it stands."""
        return max(0, min_count - self.placed)

    def find_residents(self, nodes: Mapping[str, Node]) -> tuple[Pod, ...]:
        """The members whose nodes say in which domain the group is.

        Where no member is bound these are the terminating ones, so that a gang is never in two domains at a time. Those
        on an unreachable node are left out, because no watch will ever show that they have ended.
        """
        if self.bound:
            return self.bound
        return tuple(pod for pod in self.terminating if pod.node in nodes and not is_unreachable(nodes[pod.node]))


def classify(
    members: Iterable[Pod],
    schedulers: Collection[str],
    job: Job | None = None,
    min_count: int = 0,
    parents: Mapping[OwnerKey, Parent] = _NO_PARENTS,
) -> GroupMembers:
    """Sort the members of a group. Pending members of other schedulers are not ours to place and do not count.

    ``job`` is the Job whose gang the group is, if it is one: it remembers completed pods that have been deleted since,
    and the indexes that have failed for good (``backoffLimitPerIndex``). If it completes more pods than ``min_count``,
    completed ones count only once fewer than ``min_count`` are left: before that the next ones are a gang again.
    ``parents`` are all known parents.
    """
    bound: list[Pod] = []
    terminating: list[Pod] = []
    waiting: list[Pod] = []
    gated: list[Pod] = []
    refused: list[Pod] = []
    succeeded = 0
    for pod in members:
        if pod.bound:
            (terminating if pod.deleting else bound).append(pod)
        elif pod.phase is Phase.SUCCEEDED:
            succeeded += 1
        elif pod.pending and pod.scheduler in schedulers:
            (gated if pod.gated_by_others else refused if pod.refused else waiting).append(pod)
    waiting.sort(key=order_by_rank(parents))
    placed = len(bound) + _count_done(succeeded, job, min_count)
    return GroupMembers(placed, tuple(bound), tuple(waiting), tuple(gated), tuple(terminating), refused=tuple(refused))


def count_placed(members: Iterable[Pod], job: Job | None = None, min_count: int = 0) -> int:
    """``GroupMembers.placed`` alone: cheap enough to be asked for each member of a burst."""
    bound = succeeded = 0
    for pod in members:
        bound += pod.bound and not pod.deleting
        succeeded += pod.phase is Phase.SUCCEEDED and not pod.bound
    return bound + _count_done(succeeded, job, min_count)


def _count_done(succeeded: int, job: Job | None, min_count: int) -> int:
    done = succeeded if job is None else max(succeeded, job.completed) + job.given_up
    if job is not None and job.completions is not None and min_count:
        done = max(0, done - max(0, job.completions - min_count))
    return done


def combine(leaves: Mapping[str, GroupMembers]) -> GroupMembers:
    """How a tree stands: the sum of its PodGroups."""
    found = leaves.values()
    return GroupMembers(
        sum(each.placed for each in found),
        tuple(pod for each in found for pod in each.bound),
        tuple(pod for each in found for pod in each.waiting),
        tuple(pod for each in found for pod in each.gated),
        tuple(pod for each in found for pod in each.terminating),
        leaves,
        tuple(pod for each in found for pod in each.refused),
    )


def is_whole(group: PodGroup, group_members: GroupMembers) -> bool:
    """Whether the quorum of a group, or of a tree, is placed. A basic group without tree has none."""
    if group.tree is not None:
        return count_missing(group.tree, group_members.leaves) == 0
    return group_members.placed >= (group.policy.min_count or 0)


def count_missing(tree: Tree, leaves: Mapping[str, GroupMembers]) -> float:
    """The fewest members that are still to be placed before a tree stands; infinite if it has too few groups."""
    if isinstance(tree, Leaf):
        return leaves[tree.name].need(tree.need)
    missing = sorted(count_missing(each, leaves) for each in tree.below)
    return sum(missing[: tree.need]) if len(missing) >= tree.need else math.inf
