"""Which pods are the members of which group, and how the members of a group stand."""

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
from serried.plan.quorum import GroupMembers, Standing, combine, count_done, find_standing, make_members, order_by_rank


class Dirty:
    """Groups and pods that are to be looked at."""

    def __init__(self) -> None:
        self.groups: set[GroupKey] = set()
        """The groups that a change may concern."""

        self.members: dict[tuple[GroupKey, str], None] = {}
        """The members (UIDs) that have changed, each with the group that it is or was in; "" is the group itself."""

        self.orphans: set[str] = set()
        """The pods (UIDs) that left a group and belong to none now."""

    def add(self, group: GroupKey, uid: str = "") -> None:
        """A change may concern this group: one of its members alone, if there is a ``uid``."""
        self.groups.add(group)
        self.members[group, uid] = None

    def update(self, *groups: Iterable[GroupKey]) -> None:
        """A change may concern all of these."""
        for group in chain(*groups):
            self.add(group)

    def clear_groups(self) -> None:
        """Nobody looks at groups for now."""
        self.groups.clear()
        self.members.clear()

    def take_groups(self) -> set[GroupKey]:
        """The groups, and from now on none."""
        taken = self.groups
        self.groups = set()
        return taken

    def take_members(self) -> Iterable[tuple[GroupKey, str]]:
        """The members, and from now on none."""
        taken = self.members
        self.members = {}
        return taken

    def take_orphans(self) -> set[str]:
        """The pods, and from now on none."""
        taken = self.orphans
        self.orphans = set()
        return taken


class Members:
    """The members of each group, under the key of its tree if it is in one.

    The maps are the Store's own and live. It also says who joins and leaves: who is a member is a question of several
    objects (`Membership`).
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
        self._members: dict[GroupKey, dict[str, None]] = {}
        self._standing_of: dict[str, tuple[Standing, str]] = {}
        """How each member was counted: what it is, and its PodGroup in the tree."""

        self._by_standing: dict[tuple[GroupKey, Standing], dict[str, None]] = {}
        self._counts: dict[GroupKey, Counter[tuple[Standing, str]]] = {}
        self._disrupted: dict[GroupKey, dict[str, None]] = {}
        """Those that somebody disrupts, also when they are not bound (any more)."""

    def __contains__(self, group: object) -> bool:
        """Whether a group has a pod."""
        return group in self._members

    def groups(self) -> list[GroupKey]:
        """The groups that have a pod, with or without a PodGroup object."""
        return list(self._members)

    def group_of(self, uid: str) -> GroupKey | None:
        """The group of a known pod, maybe provisional; None for a pod of no group or an unknown pod."""
        return self._group_of.get(uid)

    def copy_groups(self) -> dict[str, GroupKey]:
        """The PodGroup of each member as of now, by UID; of a tree, the one that the member names."""
        return {**self._group_of, **self._leaf_of}

    def leaf_of(self, uid: str) -> str:
        """The name of a member's PodGroup in its tree; "" where that is the whole tree."""
        return self._leaf_of[uid].name if uid in self._leaf_of else ""

    def rank_of(self, uid: str) -> int | None:
        """The rank of a member in its gang; None for an unknown pod, or where nothing numbers the members."""
        pod = self._pods.get(uid)
        return self._membership.rank_of(pod) if pod is not None else None

    def has_gated(self, group: GroupKey) -> bool:
        """Whether a member waits for the owner of a scheduling gate which is not ours. O(1): filter asks for it."""
        return (group, Standing.GATED) in self._by_standing

    def of_group(self, group: GroupKey) -> list[Pod]:
        """Every known pod of the group, also bound and finished ones, in the order of arrival."""
        return [self._pods[uid] for uid in self._members.get(group, ())]

    def iterate(self, group: GroupKey) -> Iterator[Pod]:
        """As ``of_group``, one by one: for a caller that looks for the first of a kind."""
        return (self._pods[uid] for uid in self._members.get(group, ()))

    def iterate_standing(self, group: GroupKey, standing: Standing) -> Iterator[Pod]:
        """The members of a group that stand so, one by one, whoever came to stand so first before the others."""
        return (self._pods[uid] for uid in self._by_standing.get((group, standing), ()))

    def iterate_disrupted(self, group: GroupKey) -> Iterator[Pod]:
        """The members of a group that somebody disrupts, one by one."""
        return (self._pods[uid] for uid in self._disrupted.get(group, ()))

    def has_disrupted(self, group: GroupKey) -> bool:
        """Whether somebody disrupts a member of a group."""
        return group in self._disrupted

    def by_leaf(self, group: GroupKey, pods: Sequence[Pod]) -> Mapping[str, Sequence[Pod]]:
        """Members of a group by the name of their PodGroup in its tree; each PodGroup of the tree has an entry."""
        found = self._groups.get(group)
        if found is None or isinstance(found.tree, Leaf):
            return {"": pods}
        below: dict[str, list[Pod]] = {leaf.name: [] for leaf in list_leaves(found.tree)}
        for pod in pods:
            below.setdefault(self.leaf_of(pod.uid), []).append(pod)
        return below

    def count_placed(self, group: GroupKey, without: Collection[str] = ()) -> dict[str, int]:
        """How many members of each PodGroup count toward its quorum: ``classify(group, without).placed_by_leaf``.

        O(``without`` and the PodGroups of the tree): cheap enough to be asked for each member of a burst.
        """
        counts = self._counts.get(group, Counter())
        if without:
            members = self._members.get(group, {})
            counts = counts - Counter(self._standing_of[uid] for uid in without if uid in members)
        found = self._groups.get(group)
        tree = found.tree if found is not None else None
        names = [leaf.name for leaf in list_leaves(tree)] if isinstance(tree, Branch) else [""]
        lost = {name: Counter[Standing]() for name in names}
        for (standing, leaf), number in counts.items():
            lost.setdefault(leaf if isinstance(tree, Branch) else "", Counter())[standing] += number
        return {name: self._count_placed(group.leaf(name), each) for name, each in lost.items()}

    def _count_placed(self, leaf: GroupKey, counts: Mapping[Standing, int]) -> int:
        return counts[Standing.BOUND] + count_done(counts[Standing.SUCCEEDED], *self._find_counts(leaf))

    def in_order(self, group: GroupKey, pods: Sequence[Pod]) -> tuple[Pod, ...]:
        """Some members of a group as they are placed: PodGroup by PodGroup, in each of them the lowest rank first."""
        position = order_by_rank(self._parents)
        below = self.by_leaf(group, pods).values()
        return tuple(chain.from_iterable(sorted(each, key=position) for each in below))

    def classify(self, group: GroupKey, without: Collection[str] = ()) -> GroupMembers:
        """The members of a group by what they are to a plan, as if the pods ``without`` (UIDs) were not there."""
        below: dict[str, dict[Standing, Sequence[Pod]]] = {}
        for standing in Standing:
            pods = [pod for pod in self.iterate_standing(group, standing) if pod.uid not in without]
            for name, each in self.by_leaf(group, pods).items():
                below.setdefault(name, dict.fromkeys(Standing, ()))[standing] = each
        leaves = {name: (found, *self._find_counts(group.leaf(name))) for name, found in below.items()}
        return combine({name: make_members(*each, self._parents) for name, each in leaves.items()})

    def _find_counts(self, leaf: GroupKey) -> tuple[Job | None, int]:
        """The Job and the minCount by which finished members of a PodGroup count."""
        group = self._groups.get(leaf)
        return (self._membership.job_of(group), group.policy.min_count or 0) if group is not None else (None, 0)

    # --- the Store's own ---------------------------------------------------------------------------------------

    def join(self, uid: str, group: GroupKey) -> None:
        """A pod that is in no group joins one."""
        self._group_of[uid] = group
        self._members.setdefault(group, {})[uid] = None

    def note_leaf(self, uid: str, leaf: GroupKey | None) -> None:
        """The PodGroup of a member within its tree; None where that is the whole tree."""
        if leaf is not None:
            self._leaf_of[uid] = leaf
        else:
            self._leaf_of.pop(uid, None)

    def note(self, pod: Pod) -> None:
        """A member has joined, has changed, or is in another PodGroup of its tree."""
        group = self._group_of[pod.uid]
        now = find_standing(pod, self._schedulers), self.leaf_of(pod.uid)
        before = self._standing_of.get(pod.uid)
        if before != now:
            self._uncount(pod.uid, group)
            self._standing_of[pod.uid] = now
            self._by_standing.setdefault((group, now[0]), {})[pod.uid] = None
            self._counts.setdefault(group, Counter())[now] += 1
        if pod.disruption:
            self._disrupted.setdefault(group, {})[pod.uid] = None
        else:
            discard(self._disrupted, group, pod.uid)

    def _uncount(self, uid: str, group: GroupKey) -> None:
        before = self._standing_of.pop(uid, None)
        if before is None:
            return
        discard(self._by_standing, (group, before[0]), uid)
        counts = self._counts[group]
        counts[before] -= 1
        if not counts[before]:
            del counts[before]
        if not counts:
            del self._counts[group]

    def leave(self, uid: str) -> GroupKey | None:
        """A pod leaves its group; which that was, None if it was in none."""
        self._leaf_of.pop(uid, None)
        group = self._group_of.pop(uid, None)
        if group is not None:
            discard(self._members, group, uid)
            discard(self._disrupted, group, uid)
            self._uncount(uid, group)
        return group
