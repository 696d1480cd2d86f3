"""Sorts the members of a group by state (`GroupMembers`), orders them by rank, and counts what its quorum lacks.

`serried.cluster.members` keeps the members of all groups by `make_members`; schedulers and features of the extender
read them.
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
"""The sort key of a member in its gang, see `order_by_rank`."""


def find_rank(place: Place, index: int, parent: Parent) -> int | None:
    """Return the rank of a pod in its parent, i.e. its position among the pods of all Jobs of e.g. a JobSet.

    The rank is the pod's completion index plus the number of pods of all Jobs before its own. ``place`` says which Job
    of the parent the pod belongs to, ``index`` is its completion index in the Job. Return None if the parent has no
    such Job, or if the Job has fewer pods.
    """
    span = next((span for span in parent.spans if span.stage == place.stage), None)
    return span.first + place.job * span.each + index if span is not None and index < span.each else None


def order_by_rank(parents: Mapping[OwnerKey, Parent]) -> Callable[[Pod], Position]:
    """Return a function that returns the sort key of a member: by parent and rank if known, otherwise by name.

    ``parents`` are the known parents, e.g. JobSets. The ranks of members whose parent is unknown are guessed from their
    labels. Numbers at the end of names are compared as numbers, so ``w-2`` comes before ``w-10``.
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
    # Cached: a gang is sorted for each plan, and most of that time was spent on splitting thousands of names.
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)


def _find_start(place: Place, namespace: str, parents: Mapping[OwnerKey, Parent]) -> tuple[int | str, ...]:
    parent = parents.get(OwnerKey(place.kind, Key(namespace, place.parent)))
    stages = [span.stage for span in parent.spans] if parent is not None else []
    known = stages.index(place.stage) if place.stage in stages else len(stages)
    stage = "" if place.replica else place.stage  # a replica's pods are numbered across leader and workers
    return len(place.replica), place.replica, known, stage, place.job


_NO_PARENTS: Mapping[OwnerKey, Parent] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The members of one PodGroup by their state, or for a tree those of all its PodGroups together."""

    placed: int
    """The number of members that count toward minCount: bound, succeeded, and indexes that their Job has given up.

    Succeeded members and given-up indexes need no pod. If they did not count, a gang could not replace a failed pod
    after another one has completed (kubernetes/kubernetes#142330).
    """

    bound: tuple[Pod, ...]
    """The members that are bound, are not being deleted, and have not ended."""

    waiting: tuple[Pod, ...]
    """The members that may be placed now, in the order of rank."""

    gated: tuple[Pod, ...]
    """The members with a scheduling gate that Serried has not set and that its owner has not removed yet."""

    terminating: tuple[Pod, ...] = ()
    """The members that are bound and being deleted. They do not count toward minCount.

    If they did, their replacements would be bound one by one for a quorum that is about to be lost.
    """

    below: Mapping[str, "GroupMembers"] = field(default_factory=dict)
    """The members of each PodGroup of a tree by name; empty for a single PodGroup."""

    refused: tuple[Pod, ...] = ()
    """The pending members that no node can take as far as is known, e.g. because their ResourceClaim does not exist."""

    @property
    def leaves(self) -> Mapping[str, "GroupMembers"]:
        """The members of each PodGroup by its name in the tree; for a single PodGroup they are under ""."""
        return self.below or {"": self}

    @property
    def placed_by_leaf(self) -> dict[str, int]:
        """The number of members that count toward minCount, by the name of the PodGroup in the tree.

        They are bound or succeeded, or their Job has given them up (``placed``). For a single PodGroup the number is
        under the name "".
        """
        return {name: each.placed for name, each in self.leaves.items()}

    def need(self, min_count: int) -> int:
        """Return how many of the waiting members must be placed to complete the quorum; 0 if it is complete."""
        return max(0, min_count - self.placed)

    def find_residents(self, nodes: Mapping[str, Node]) -> tuple[Pod, ...]:
        """Return the members that fix the domain of the group: new members have to join the domain of their nodes.

        They are the bound members. If there are none, they are the terminating ones, so that a gang never uses two
        domains at a time. Terminating members on unreachable nodes are left out, because their kubelet cannot report
        their end; ``nodes`` are the nodes of the cluster by name, which show that.
        """
        if self.bound:
            return self.bound
        return tuple(pod for pod in self.terminating if pod.node in nodes and not is_unreachable(nodes[pod.node]))


class MemberState(Enum):
    """The states of a member that the planner distinguishes.

    A member is bound (BOUND), bound and being deleted (TERMINATING), or has succeeded (SUCCEEDED). A pending member may
    be placed now (WAITING), has a scheduling gate of somebody else (GATED), or can be taken by no node as far as is
    known (REFUSED). Any other member does not count (NONE).
    """

    BOUND = "bound"
    TERMINATING = "terminating"
    WAITING = "waiting"
    GATED = "gated"
    REFUSED = "refused"
    SUCCEEDED = "succeeded"

    NONE = "none"
    """The member does not count: it has failed, was deleted before it was bound, or belongs to another scheduler."""


def find_member_state(pod: Pod, schedulers: Collection[str]) -> MemberState:
    """Return the state of a member. ``schedulers`` are the scheduler names that Serried plans for.

    A pending member of another scheduler does not count (NONE).
    """
    if pod.bound:
        return MemberState.TERMINATING if pod.deleting else MemberState.BOUND
    if pod.phase is Phase.SUCCEEDED:
        return MemberState.SUCCEEDED
    if not pod.pending or pod.scheduler not in schedulers:
        return MemberState.NONE
    if pod.gated_by_others:
        return MemberState.GATED
    return MemberState.REFUSED if pod.refused else MemberState.WAITING


def classify(
    members: Iterable[Pod], schedulers: Collection[str], job: Job | None = None, min_count: int = 0
) -> GroupMembers:
    """Return the members of a group by state. ``schedulers`` are the scheduler names that Serried plans for.

    ``job`` and ``min_count`` are those of `make_members`.
    """
    found: dict[MemberState, list[Pod]] = {state: [] for state in MemberState}
    for pod in members:
        found[find_member_state(pod, schedulers)].append(pod)
    return make_members(found, job, min_count)


def make_members(
    found: Mapping[MemberState, Sequence[Pod]],
    job: Job | None = None,
    min_count: int = 0,
    parents: Mapping[OwnerKey, Parent] = _NO_PARENTS,
) -> GroupMembers:
    """Return the members of a group as one value. ``found`` has them by state.

    ``job`` is the Job that owns the group; None without one. Its status also counts completed pods that are deleted
    already, and indexes that the Job has given up (``backoffLimitPerIndex``). ``parents`` are all known parents of
    Jobs, e.g. JobSets, from which the rank of members follows.

    If the Job has more completions than ``min_count``, the Job controller replaces a completed pod by the pod of the
    next index, which belongs to the gang. So completed pods only count toward minCount when fewer than ``min_count``
    completions are left. For instance with 10 completions and ``min_count`` 4, the 7th completed pod is the first that
    counts. If ``min_count`` is 0, all completed pods count.
    """
    bound, done = tuple(found[MemberState.BOUND]), count_done(len(found[MemberState.SUCCEEDED]), job, min_count)
    return GroupMembers(
        len(bound) + done,
        bound,
        tuple(sorted(found[MemberState.WAITING], key=order_by_rank(parents))),
        tuple(found[MemberState.GATED]),
        tuple(found[MemberState.TERMINATING]),
        refused=tuple(found[MemberState.REFUSED]),
    )


def count_done(succeeded: int, job: Job | None, min_count: int) -> int:
    """Return how many members count toward minCount although they no longer run: they have completed, or were given up.

    ``succeeded`` is the number of succeeded pods that still exist. If the group has a Job, its status counts completed
    pods that are deleted, too, and the indexes that it has given up. ``job`` and ``min_count`` are those of
    `make_members`, which says when completed members do not count.
    """
    done = succeeded if job is None else max(succeeded, job.completed) + job.given_up
    if job is not None and job.completions is not None and min_count:
        done = max(0, done - max(0, job.completions - min_count))
    return done


def sum_members(leaves: Mapping[str, GroupMembers]) -> GroupMembers:
    """Return the members of a tree, given those of each of its PodGroups by name."""
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


def has_quorum(group: PodGroup, group_members: GroupMembers) -> bool:
    """Return whether enough members of a group are placed for its quorum. It is True for groups with basic policy."""
    return not group.policy.is_gang or count_missing(group.tree, group_members.placed_by_leaf) == 0


def count_missing(tree: Tree, placed: Mapping[str, int]) -> float:
    """Return how many further members at least have to be placed to complete the quorum of a tree.

    ``placed`` has the number of placed members of each PodGroup by its name in the tree. Return infinity if the tree
    has fewer child groups than its minGroupCount.
    """
    if isinstance(tree, Leaf):
        return max(0, tree.need - placed.get(tree.name, 0))
    missing = sorted(count_missing(each, placed) for each in tree.below)
    return sum(missing[: tree.need]) if len(missing) >= tree.need else math.inf


def count_complete(tree: Tree, placed: Mapping[str, int]) -> int:
    """Return how many members of a PodGroup are placed, or for a tree how many child groups have their quorum.

    It is at most the number that the quorum needs. ``placed`` has the number of placed members of each PodGroup by its
    name in the tree.
    """
    if isinstance(tree, Leaf):
        return min(tree.need, placed.get(tree.name, 0))
    return min(tree.need, sum(count_missing(each, placed) == 0 for each in tree.below))


def find_quorum_time(tree: Tree, group_members: GroupMembers) -> int | None:
    """Return since when enough pods for the quorum of a tree exist, in seconds since 1970.

    It is computed from the creation times of the pods, so all instances agree. Return None if members are missing, or
    if no pod is needed for the quorum.
    """
    since = _find_time(tree, group_members.leaves)
    return None if math.isinf(since) else int(since)


def _find_time(tree: Tree, leaves: Mapping[str, GroupMembers]) -> float:
    if isinstance(tree, Leaf):
        return _find_leaf_time(tree, leaves[tree.name]) if tree.name in leaves else math.inf
    return _find_last(tree.need, [_find_time(each, leaves) for each in tree.below])


def _find_leaf_time(leaf: Leaf, group_members: GroupMembers) -> float:
    there = chain(group_members.bound, group_members.waiting, group_members.refused)
    done = group_members.placed - len(group_members.bound)
    created = [math.inf if pod.created is None else pod.created for pod in there]
    return _find_last(leaf.need - done, created)


def _find_last(need: int, times: Sequence[float]) -> float:
    """Return the ``need``-th of these times in ascending order: -infinity for 0, infinity if there are fewer times."""
    if need <= 0:
        return -math.inf
    return nsmallest(need, times)[-1] if need <= len(times) else math.inf
