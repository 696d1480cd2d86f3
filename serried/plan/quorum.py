"""How a group stands: who counts toward minCount, and who still has to be placed."""

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
class Standing:
    """The members of one group, sorted by what they are to the planner.

    ``placed`` counts bound members and those that need no pod any more, because they have succeeded or were given up:
    all count toward minCount, or a gang could never replace a failed pod after another one completed
    (kubernetes/kubernetes#142330). ``terminating`` still run, but are being deleted: they count toward nothing, or
    their replacements would be bound one by one against a quorum that is about to go. ``waiting`` may be placed now,
    lowest rank first; ``gated`` carry a scheduling gate of another owner, ``refused`` ask for what kube-scheduler alone
    counts, and it found no node for them. ``leaves`` are the PodGroups of a tree by name, whose sum it is then.
    """

    placed: int
    bound: tuple[Pod, ...]
    waiting: tuple[Pod, ...]
    gated: tuple[Pod, ...]
    terminating: tuple[Pod, ...] = ()
    leaves: Mapping[str, "Standing"] = field(default_factory=dict)
    refused: tuple[Pod, ...] = ()

    def need(self, min_count: int) -> int:
        """How many waiting members the quorum still takes; 0 when it stands."""
        return max(0, min_count - self.placed)

    def find_residents(self, nodes: Mapping[str, Node]) -> tuple[Pod, ...]:
        """The members whose nodes say in which domain the group is.

        While nobody else runs these are the terminating ones, so that a gang is never in two domains at a time; but not
        those on an unreachable node: nobody will ever hear that they have ended.
        """
        if self.bound:
            return self.bound
        return tuple(pod for pod in self.terminating if pod.node in nodes and not is_unreachable(nodes[pod.node]))


def size_up(
    members: Iterable[Pod],
    schedulers: Collection[str],
    job: Job | None = None,
    min_count: int = 0,
    parents: Mapping[OwnerKey, Parent] = _NO_PARENTS,
) -> Standing:
    """Sort the members of a group. Pending members of other schedulers are not ours to place and do not count.

    ``job`` is the Job whose gang it is, if it is one's: it remembers completed pods that have been deleted since, and
    the indexes that have failed for good (``backoffLimitPerIndex``). Of one that completes more than ``min_count``,
    those that are over count only when fewer are left than that: before, the next ones are a gang again. ``parents``
    are all that are known.
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
    return Standing(placed, tuple(bound), tuple(waiting), tuple(gated), tuple(terminating), refused=tuple(refused))


def count_placed(members: Iterable[Pod], job: Job | None = None, min_count: int = 0) -> int:
    """``Standing.placed`` alone, for those who ask for each member of a burst."""
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


def combine(leaves: Mapping[str, Standing]) -> Standing:
    """How a tree stands: the sum of its PodGroups."""
    standings = leaves.values()
    return Standing(
        sum(each.placed for each in standings),
        tuple(pod for each in standings for pod in each.bound),
        tuple(pod for each in standings for pod in each.waiting),
        tuple(pod for each in standings for pod in each.gated),
        tuple(pod for each in standings for pod in each.terminating),
        leaves,
        tuple(pod for each in standings for pod in each.refused),
    )


def is_whole(group: PodGroup, standing: Standing) -> bool:
    """Whether the quorum of a group, or of a tree, is placed. A basic group without tree has none."""
    if group.tree is not None:
        return count_missing(group.tree, standing.leaves) == 0
    return standing.placed >= (group.policy.min_count or 0)


def count_missing(tree: Tree, leaves: Mapping[str, Standing]) -> float:
    """The fewest members that are still to be placed before a tree stands; infinite if it has too few groups."""
    if isinstance(tree, Leaf):
        return leaves[tree.name].need(tree.need)
    missing = sorted(count_missing(each, leaves) for each in tree.below)
    return sum(missing[: tree.need]) if len(missing) >= tree.need else math.inf
