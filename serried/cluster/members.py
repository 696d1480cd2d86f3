"""The members of each group, counted by their state (`Members`).

`Dirty` has the groups and members that have changed since the scheduling loop last processed them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from serried.api.group import Branch, Leaf, PodGroup, list_leaves
from serried.api.job import Job
from serried.api.names import GroupKey
from serried.api.parent import OwnerKey, Parent
from serried.api.pod import Pod
from serried.cluster.index import discard
from serried.cluster.membership import Membership
from serried.plan.quorum import (
    GroupMembers,
    MemberState,
    count_done,
    find_member_state,
    make_members,
    order_by_rank,
    sum_members,
)


class Dirty:
    """The groups and pods that have changed, so that the scheduling loop has to process them again.

    The Store adds to it, the loop takes from it.
    """

    def __init__(self) -> None:
        self.groups: set[GroupKey] = set()
        """The groups that a change may affect."""

        self.members: dict[tuple[GroupKey, str], None] = {}
        """The changed members, as an ordered set of pairs: the present or former group, and the UID.

        The UID "" stands for the group itself.
        """

        self.orphans: set[str] = set()
        """The UIDs of pods that left a group and belong to none now."""

    def add(self, group: GroupKey, uid: str = "") -> None:
        """Mark a group as changed. ``uid`` is the member that has changed, "" for the group itself."""
        self.groups.add(group)
        self.members[group, uid] = None

    def update(self, *groups: Iterable[GroupKey]) -> None:
        """Mark all these groups as changed."""
        for group in chain(*groups):
            self.add(group)

    def clear_groups(self) -> None:
        """Forget all groups and members that are marked, because this process schedules no groups at present."""
        self.groups.clear()
        self.members.clear()

    def take_groups(self) -> set[GroupKey]:
        """Return the groups that are marked as changed, and clear them."""
        taken = self.groups
        self.groups = set()
        return taken

    def take_members(self) -> Iterable[tuple[GroupKey, str]]:
        """Return the changed members as pairs of group and UID ("" for the group itself), and clear them."""
        taken = self.members
        self.members = {}
        return taken

    def take_orphans(self) -> set[str]:
        """Return the UIDs of the pods that left a group and belong to none now, and clear them."""
        taken = self.orphans
        self.orphans = set()
        return taken


class Members:
    """The members of each group. The members of a tree (PodGroups under a CompositePodGroup) are under the tree's key.

    `Membership` decides which group a pod belongs to, and the Store then calls `join` and `leave`. The maps passed in
    are live maps of the Store.
    """

    def __init__(
        self,
        pods: Mapping[str, Pod],
        groups: Mapping[GroupKey, PodGroup],
        parents: Mapping[OwnerKey, Parent],
        membership: Membership,
        schedulers: Collection[str],
    ) -> None:
        self._pods = pods
        self._groups = groups
        self._parents = parents
        self._membership = membership
        self._schedulers = schedulers
        self._group_of: dict[str, GroupKey] = {}
        self._leaf_of: dict[str, GroupKey] = {}
        """By pod UID: the member's PodGroup within the tree of its group. Only for members of trees."""

        self._members: dict[GroupKey, dict[str, None]] = {}
        self._state_of: dict[str, tuple[MemberState, str]] = {}
        """By pod UID: the state with which the member was counted, and its PodGroup in the tree ("" without tree)."""

        self._by_state: dict[tuple[GroupKey, MemberState], dict[str, None]] = {}
        self._counts: dict[GroupKey, Counter[tuple[MemberState, str]]] = {}
        self._disrupted: dict[GroupKey, dict[str, None]] = {}
        """The members with a condition DisruptionTarget, bound or not."""

    def __contains__(self, group: object) -> bool:
        """Return whether a group has a pod."""
        return group in self._members

    def groups(self) -> list[GroupKey]:
        """Return the groups that have a pod, with or without a PodGroup object."""
        return list(self._members)

    def group_of(self, uid: str) -> GroupKey | None:
        """Return the group of a pod; None if the pod is unknown or in no group.

        Its key may be provisional: the PodGroup does not exist yet.
        """
        return self._group_of.get(uid)

    def copy_groups(self) -> dict[str, GroupKey]:
        """Return by UID the PodGroup of each member, as a copy. For a tree it is the member's PodGroup in the tree."""
        return {**self._group_of, **self._leaf_of}

    def leaf_of(self, uid: str) -> str:
        """Return the name of a member's PodGroup in the tree of its group; "" if the group is no tree."""
        return self._leaf_of[uid].name if uid in self._leaf_of else ""

    def rank_of(self, uid: str) -> int | None:
        """Return the number of a member in its gang, from 0, such as its completion index.

        None if the pod is unknown, or if the members have no numbers.
        """
        pod = self._pods.get(uid)
        return self._membership.rank_of(pod) if pod is not None else None

    def has_gated(self, group: GroupKey) -> bool:
        """Return whether a member has a scheduling gate other than Serried's. O(1), because filter calls it."""
        return (group, MemberState.GATED) in self._by_state

    def of_group(self, group: GroupKey) -> list[Pod]:
        """Return all pods of a group, including bound and finished ones, in the order of the watch."""
        return [self._pods[uid] for uid in self._members.get(group, ())]

    def iterate(self, group: GroupKey) -> Iterator[Pod]:
        """Yield the pods that ``of_group`` returns, for a caller that may stop early."""
        return (self._pods[uid] for uid in self._members.get(group, ()))

    def iterate_in_state(self, group: GroupKey, state: MemberState) -> Iterator[Pod]:
        """Yield the members of a group in one state, such as BOUND or WAITING, in the order in which they got it."""
        return (self._pods[uid] for uid in self._by_state.get((group, state), ()))

    def iterate_disrupted(self, group: GroupKey) -> Iterator[Pod]:
        """Yield the members of a group that have a condition DisruptionTarget."""
        return (self._pods[uid] for uid in self._disrupted.get(group, ()))

    def has_disrupted(self, group: GroupKey) -> bool:
        """Return whether a member of a group has a condition DisruptionTarget."""
        return group in self._disrupted

    def by_leaf(self, group: GroupKey, pods: Sequence[Pod]) -> Mapping[str, Sequence[Pod]]:
        """Return these pods of a group by the name of their PodGroup in its tree.

        Each PodGroup of the tree has an entry, also without pods. A group that is no tree has one entry, "".
        """
        found = self._groups.get(group)
        if found is None or isinstance(found.tree, Leaf):
            return {"": pods}
        below: dict[str, list[Pod]] = {leaf.name: [] for leaf in list_leaves(found.tree)}
        for pod in pods:
            below.setdefault(self.leaf_of(pod.uid), []).append(pod)
        return below

    def count_placed(self, group: GroupKey, without: Collection[str] = ()) -> dict[str, int]:
        """Return by PodGroup the number of members that count toward its minCount.

        They are bound, or their Job counts them as done: completed, or given up after a failure. The keys are the names
        of the PodGroups in a tree, "" for a group that is no tree. Pods with UIDs in ``without`` do not count, but what
        the Job's status counts as done stays.

        The result is ``classify(group, without).placed_by_leaf``, but costs only O(``without`` + PodGroups of the
        tree). So it can be called for every member when many change at once.
        """
        counts = self._counts.get(group, Counter())
        if without:
            members = self._members.get(group, {})
            counts = counts - Counter(self._state_of[uid] for uid in without if uid in members)
        found = self._groups.get(group)
        tree = found.tree if found is not None else None
        names = [leaf.name for leaf in list_leaves(tree)] if isinstance(tree, Branch) else [""]
        lost = {name: Counter[MemberState]() for name in names}
        for (state, leaf), number in counts.items():
            lost.setdefault(leaf if isinstance(tree, Branch) else "", Counter())[state] += number
        return {name: self._count_placed(group.leaf(name), each) for name, each in lost.items()}

    def _count_placed(self, leaf: GroupKey, counts: Mapping[MemberState, int]) -> int:
        return counts[MemberState.BOUND] + count_done(counts[MemberState.SUCCEEDED], *self._find_counts(leaf))

    def sort_for_placement(self, group: GroupKey, pods: Sequence[Pod]) -> tuple[Pod, ...]:
        """Return these pods of a group in the order of placement: by PodGroup of the tree, then lowest rank first.

        The rank is the number of a member in its gang, such as its completion index.
        """
        position = order_by_rank(self._parents)
        below = self.by_leaf(group, pods).values()
        return tuple(chain.from_iterable(sorted(each, key=position) for each in below))

    def classify(self, group: GroupKey, without: Collection[str] = ()) -> GroupMembers:
        """Return the members of a group by their state (bound, waiting and so on), for a plan.

        The members with UIDs in ``without`` are left out.
        """
        below: dict[str, dict[MemberState, Sequence[Pod]]] = {}
        for state in MemberState:
            pods = [pod for pod in self.iterate_in_state(group, state) if pod.uid not in without]
            for name, each in self.by_leaf(group, pods).items():
                below.setdefault(name, dict.fromkeys(MemberState, ()))[state] = each
        leaves = {name: (found, *self._find_counts(group.leaf(name))) for name, found in below.items()}
        return sum_members({name: make_members(*each, self._parents) for name, each in leaves.items()})

    def _find_counts(self, leaf: GroupKey) -> tuple[Job | None, int]:
        """Return the Job that controls a PodGroup, and its minCount; None and 0 if the PodGroup does not exist.

        Both decide whether members that have succeeded count toward the quorum. ``leaf`` is the PodGroup's key.
        """
        group = self._groups.get(leaf)
        return (self._membership.job_of(group), group.policy.min_count or 0) if group is not None else (None, 0)

    # --- the Store's own ---------------------------------------------------------------------------------------

    def join(self, uid: str, group: GroupKey) -> None:
        """Add a pod that is in no group to a group."""
        self._group_of[uid] = group
        self._members.setdefault(group, {})[uid] = None

    def set_leaf(self, uid: str, leaf: GroupKey | None) -> None:
        """Set the PodGroup of a member within the tree of its group; None if the group is no tree."""
        if leaf is not None:
            self._leaf_of[uid] = leaf
        else:
            self._leaf_of.pop(uid, None)

    def update(self, pod: Pod) -> None:
        """Count a member in its present state.

        Call it if the pod has joined or changed, or has another PodGroup in its tree.
        """
        group = self._group_of[pod.uid]
        now = find_member_state(pod, self._schedulers), self.leaf_of(pod.uid)
        before = self._state_of.get(pod.uid)
        if before != now:
            self._uncount(pod.uid, group)
            self._state_of[pod.uid] = now
            self._by_state.setdefault((group, now[0]), {})[pod.uid] = None
            self._counts.setdefault(group, Counter())[now] += 1
        if pod.disruption:
            self._disrupted.setdefault(group, {})[pod.uid] = None
        else:
            discard(self._disrupted, group, pod.uid)

    def _uncount(self, uid: str, group: GroupKey) -> None:
        before = self._state_of.pop(uid, None)
        if before is None:
            return
        discard(self._by_state, (group, before[0]), uid)
        counts = self._counts[group]
        counts[before] -= 1
        if not counts[before]:
            del counts[before]
        if not counts:
            del self._counts[group]

    def leave(self, uid: str) -> GroupKey | None:
        """Remove a pod from its group. Return the group; None if it was in none."""
        self._leaf_of.pop(uid, None)
        group = self._group_of.pop(uid, None)
        if group is not None:
            discard(self._members, group, uid)
            discard(self._disrupted, group, uid)
            self._uncount(uid, group)
        return group
