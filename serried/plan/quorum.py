"""Sorts the members of a group by state (`GroupMembers`), orders them by rank, and counts what its quorum lacks."""

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
"""The sort key of a member in its gang."""


def find_rank(place: Place, index: int, parent: Parent) -> int | None:
    """Return the number of a pod in its parent: its completion index, plus all pods of the Jobs before its own.

    None if the parent has no such Job, or a smaller one.
    """
    span = next((span for span in parent.spans if span.stage == place.stage), None)
    return span.first + place.job * span.each + index if span is not None and index < span.each else None


def order_by_rank(parents: Mapping[OwnerKey, Parent]) -> Callable[[Pod], Position]:
    """Return the sort key for members of a group: by parent and rank, otherwise by name.

    Numbers at the end of names are compared as numbers. For members of one parent the order agrees with their ranks; if
    the parent is unknown, as far as labels tell.
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
    """The members of one PodGroup by their state; for a tree the sum of its PodGroups."""

    placed: int
    """The number of members that count toward minCount: bound, succeeded and given-up ones.

    Succeeded and given-up members need no pod. If they did not count, a gang could not replace a failed pod after
    another one has completed (kubernetes/kubernetes#142330).
    """

    bound: tuple[Pod, ...]

    waiting: tuple[Pod, ...]
    """The members that may be placed now, lowest rank first."""

    gated: tuple[Pod, ...]
    """The members with a scheduling gate of another owner."""

    terminating: tuple[Pod, ...] = ()
    """The members that are bound and being deleted. They do not count toward minCount.

    If they did, their replacements would be bound one by one for a quorum that is about to be lost.
    """

    below: Mapping[str, "GroupMembers"] = field(default_factory=dict)
    """For a tree the members by PodGroup; empty for one PodGroup."""

    refused: tuple[Pod, ...] = ()
    """The members that kube-scheduler rejected because of resources that only it counts."""

    @property
    def leaves(self) -> Mapping[str, "GroupMembers"]:
        """The members by the name of the PodGroup in the tree."""
        return self.below or {"": self}

    @property
    def placed_by_leaf(self) -> dict[str, int]:
        """The number ``placed`` by the name of the PodGroup in the tree."""
        return {name: each.placed for name, each in self.leaves.items()}

    def need(self, min_count: int) -> int:
        """Return how many waiting members the quorum still needs; 0 if it is complete."""
        return max(0, min_count - self.placed)

    def find_residents(self, nodes: Mapping[str, Node]) -> tuple[Pod, ...]:
        """Return the members whose nodes determine the domain of the group.

        If no member is bound they are the terminating ones, so that a gang never uses two domains at a time. Members on
        unreachable nodes are left out, because the watch will not show their end.
        """
        if self.bound:
            return self.bound
        return tuple(pod for pod in self.terminating if pod.node in nodes and not is_unreachable(nodes[pod.node]))


class MemberState(Enum):
    """The state of a member for the planner; the names are those of ``GroupMembers``."""

    BOUND = "bound"
    TERMINATING = "terminating"
    WAITING = "waiting"
    GATED = "gated"
    REFUSED = "refused"
    SUCCEEDED = "succeeded"

    NONE = "none"
    """The member has failed, was deleted before it was bound, or belongs to another scheduler."""


def find_member_state(pod: Pod, schedulers: Collection[str]) -> MemberState:
    """Return the state of a member. Pending members of other schedulers do not count (NONE)."""
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
    """Sort members by state. The other parameters are those of `make_members`."""
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
    """Return the members of a group, given by state in ``found``.

    ``job`` is the Job that owns the group, if there is one. It counts completed pods that are deleted already, and
    failed indexes (``backoffLimitPerIndex``). If it has more completions than ``min_count``, completed pods only count
    when fewer than ``min_count`` are left: until then the next pods form a gang again. ``parents`` are all known
    parents.
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
    """Return how many members count as placed without a pod; ``succeeded`` is the number of succeeded pods."""
    done = succeeded if job is None else max(succeeded, job.completed) + job.given_up
    if job is not None and job.completions is not None and min_count:
        done = max(0, done - max(0, job.completions - min_count))
    return done


def sum_members(leaves: Mapping[str, GroupMembers]) -> GroupMembers:
    """Return the members of a tree as the sum of its PodGroups."""
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
    """Return whether the quorum of a group is placed. A basic group needs none."""
    return not group.policy.is_gang or count_missing(group.tree, group_members.placed_by_leaf) == 0


def count_missing(tree: Tree, placed: Mapping[str, int]) -> float:
    """Return the fewest members that complete the quorum of a tree; infinity if it has too few groups.

    ``placed`` is the number of placed members by the name of the PodGroup in the tree.
    """
    if isinstance(tree, Leaf):
        return max(0, tree.need - placed.get(tree.name, 0))
    missing = sorted(count_missing(each, placed) for each in tree.below)
    return sum(missing[: tree.need]) if len(missing) >= tree.need else math.inf


def count_complete(tree: Tree, placed: Mapping[str, int]) -> int:
    """Return how many members of a PodGroup's quorum are placed, or how many child groups of a tree are complete."""
    if isinstance(tree, Leaf):
        return min(tree.need, placed.get(tree.name, 0))
    return min(tree.need, sum(count_missing(each, placed) == 0 for each in tree.below))


def find_quorum_time(tree: Tree, group_members: GroupMembers) -> int | None:
    """Return since when the quorum of a tree has existed, in seconds since 1970.

    It follows from the creation times of pods, so all processes agree. None if members are missing, or if the quorum
    needs no further members.
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
    """Return the time at which the first ``need`` of these existed."""
    if need <= 0:
        return -math.inf
    return nsmallest(need, times)[-1] if need <= len(times) else math.inf
