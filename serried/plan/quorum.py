"""The members of a group: which count toward minCount, and which have still to be placed.

The rank of a gang's member: its number in what the gang was made for, and the order that follows from it.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from heapq import nsmallest
from itertools import chain
from types import MappingProxyType

from serried.api.group import Leaf, PodGroup, Tree
from serried.api.job import Job
from serried.api.names import Key
from serried.api.node import Node
from serried.api.parent import OwnerKey, Parent, Place
from serried.api.pod import Phase, Pod
from serried.plan.fit import is_unreachable

Position = tuple[str, tuple[int | str, ...], int, str, int, str]
"""Where a member comes in its gang; compared from the left."""


def find_rank(place: Place, index: int, parent: Parent) -> int | None:
    """The number of a pod in its parent: its completion index, after all pods of the Jobs before its own.

    None for a Job that the parent does not have, or not so large.
    """
    span = next((span for span in parent.spans if span.stage == place.stage), None)
    return span.first + place.job * span.each + index if span is not None and index < span.each else None


def order_by_rank(parents: Mapping[OwnerKey, Parent]) -> Callable[[Pod], Position]:
    """The key that sorts the members of a group: by what they are parts of, there by rank, and else by name.

    Names that end in numbers follow the numbers. Members of one parent have positions that agree with their ranks, also
    where the parent is not known, as far as labels tell.
    """
    starts: dict[Place, tuple[int | str, ...]] = {}

    def position(pod: Pod) -> Position:
        place = pod.place
        head = pod.owner.name if pod.owner is not None else ""
        start: tuple[int | str, ...] = ()
        if place is not None:
            head = place.parent
            start = starts.get(place) or starts.setdefault(place, _find_start(place, pod.namespace, parents))
        if pod.index is not None:
            return head, start, pod.index, "", 0, pod.name
        return head, start, -1, *_split(pod.name), pod.name

    return position


@lru_cache(1 << 16)
def _split(name: str) -> tuple[str, int]:
    # A gang is sorted at each look, and splitting the names of thousands of members took most of that.
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)


def _find_start(place: Place, namespace: str, parents: Mapping[OwnerKey, Parent]) -> tuple[int | str, ...]:
    parent = parents.get(OwnerKey(place.kind, Key(namespace, place.parent)))
    stages = [span.stage for span in parent.spans] if parent is not None else []
    known = stages.index(place.stage) if place.stage in stages else len(stages)
    stage = "" if place.replica else place.stage  # a replica's pods are numbered through leader and workers
    return len(place.replica), place.replica, known, stage, place.job


_NO_PARENTS: Mapping[OwnerKey, Parent] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The members of one PodGroup, sorted by what they are to the planner; of a tree the sum of its PodGroups."""

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

    below: Mapping[str, "GroupMembers"] = field(default_factory=dict)
    """The PodGroups that this is the sum of; empty for the members of one."""

    refused: tuple[Pod, ...] = ()
    """Members that ask for what kube-scheduler alone counts, and for which it found no node."""

    @property
    def leaves(self) -> Mapping[str, "GroupMembers"]:
        """The PodGroups by their names in the tree."""
        return self.below or {"": self}

    @property
    def placed_by_leaf(self) -> dict[str, int]:
        """``placed`` of each PodGroup, by its name in the tree."""
        return {name: each.placed for name, each in self.leaves.items()}

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


class Standing(Enum):
    """What a member is to the planner; the names are those of ``GroupMembers``."""

    BOUND = "bound"
    TERMINATING = "terminating"
    WAITING = "waiting"
    GATED = "gated"
    REFUSED = "refused"
    SUCCEEDED = "succeeded"

    NONE = "none"
    """It failed, is going before it was bound, or is not ours to place."""


def find_standing(pod: Pod, schedulers: Collection[str]) -> Standing:
    """Pending members of other schedulers are not ours to place and do not count."""
    if pod.bound:
        return Standing.TERMINATING if pod.deleting else Standing.BOUND
    if pod.phase is Phase.SUCCEEDED:
        return Standing.SUCCEEDED
    if not pod.pending or pod.scheduler not in schedulers:
        return Standing.NONE
    if pod.gated_by_others:
        return Standing.GATED
    return Standing.REFUSED if pod.refused else Standing.WAITING


def classify(
    members: Iterable[Pod], schedulers: Collection[str], job: Job | None = None, min_count: int = 0
) -> GroupMembers:
    """Sort the members of a group; the others are as `make_members` takes them."""
    found: dict[Standing, list[Pod]] = {standing: [] for standing in Standing}
    for pod in members:
        found[find_standing(pod, schedulers)].append(pod)
    return make_members(found, job, min_count)


def make_members(
    found: Mapping[Standing, Sequence[Pod]],
    job: Job | None = None,
    min_count: int = 0,
    parents: Mapping[OwnerKey, Parent] = _NO_PARENTS,
) -> GroupMembers:
    """The members of a group; ``found`` has those that stand in each way.

    ``job`` is the Job whose gang the group is, if it is one: it remembers completed pods that have been deleted since,
    and the indexes that have failed for good (``backoffLimitPerIndex``). If it completes more pods than ``min_count``,
    completed ones count only once fewer than ``min_count`` are left: before that the next ones are a gang again.
    ``parents`` are all known parents.
    """
    bound, done = tuple(found[Standing.BOUND]), count_done(len(found[Standing.SUCCEEDED]), job, min_count)
    return GroupMembers(
        len(bound) + done,
        bound,
        tuple(sorted(found[Standing.WAITING], key=order_by_rank(parents))),
        tuple(found[Standing.GATED]),
        tuple(found[Standing.TERMINATING]),
        refused=tuple(found[Standing.REFUSED]),
    )


def count_done(succeeded: int, job: Job | None, min_count: int) -> int:
    """How many members count as placed though they need no pod; so many have ``succeeded`` and are there."""
    done = succeeded if job is None else max(succeeded, job.completed) + job.given_up
    if job is not None and job.completions is not None and min_count:
        done = max(0, done - max(0, job.completions - min_count))
    return done


def combine(leaves: Mapping[str, GroupMembers]) -> GroupMembers:
    """How a tree stands: the sum of its PodGroups."""
    found = leaves.values()
    return GroupMembers(
        sum(each.placed for each in found),
        tuple(chain.from_iterable(each.bound for each in found)),
        tuple(chain.from_iterable(each.waiting for each in found)),
        tuple(chain.from_iterable(each.gated for each in found)),
        tuple(chain.from_iterable(each.terminating for each in found)),
        leaves,
        tuple(chain.from_iterable(each.refused for each in found)),
    )


def is_whole(group: PodGroup, group_members: GroupMembers) -> bool:
    """Whether the quorum of a group is placed. A basic one has none."""
    return not group.policy.is_gang or count_missing(group.tree, group_members.placed_by_leaf) == 0


def count_missing(tree: Tree, placed: Mapping[str, int]) -> float:
    """The fewest members that are still to be placed before a tree stands; infinite if it has too few groups.

    ``placed`` has how many are, by the name of their PodGroup in the tree.
    """
    if isinstance(tree, Leaf):
        return max(0, tree.need - placed.get(tree.name, 0))
    missing = sorted(count_missing(each, placed) for each in tree.below)
    return sum(missing[: tree.need]) if len(missing) >= tree.need else math.inf


def count_standing(tree: Tree, placed: Mapping[str, int]) -> int:
    """How many members of a PodGroup's quorum are placed, or how many of the groups that a tree takes stand."""
    if isinstance(tree, Leaf):
        return min(tree.need, placed.get(tree.name, 0))
    return min(tree.need, sum(count_missing(each, placed) == 0 for each in tree.below))


def date_quorum(tree: Tree, group_members: GroupMembers) -> int | None:
    """Since when the members are there with which a tree could stand, in seconds since 1970.

    It goes by when the pods were created, so every process that is asked says the same. None if it cannot be told: too
    few members are there, or nothing is left to be placed but what others have left of it.
    """
    since = _date(tree, group_members.leaves)
    return None if math.isinf(since) else int(since)


def _date(tree: Tree, leaves: Mapping[str, GroupMembers]) -> float:
    if isinstance(tree, Leaf):
        return _date_leaf(tree, leaves[tree.name]) if tree.name in leaves else math.inf
    return _find_last(tree.need, [_date(each, leaves) for each in tree.below])


def _date_leaf(leaf: Leaf, group_members: GroupMembers) -> float:
    there = chain(group_members.bound, group_members.waiting, group_members.refused)
    done = group_members.placed - len(group_members.bound)
    created = [math.inf if pod.created is None else pod.created for pod in there]
    return _find_last(leaf.need - done, created)


def _find_last(need: int, times: Sequence[float]) -> float:
    """When so many of them were there first."""
    if need <= 0:
        return -math.inf
    return nsmallest(need, times)[-1] if need <= len(times) else math.inf
