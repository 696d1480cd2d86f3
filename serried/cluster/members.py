"""Which pods are the members of which group, and how the members of a group stand."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from serried.cluster.indexes import discard
from serried.cluster.membership import Membership
from serried.model.group import GroupKey, Job, PodGroup
from serried.model.parent import OwnerKey, Parent
from serried.model.pod import Pod
from serried.model.tree import Leaf, list_leaves
from serried.plan.quorum import GroupMembers, classify, combine, count_placed


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
        self._gated: dict[GroupKey, dict[str, None]] = {}
        """UIDs of the members that wait for the owner of a scheduling gate which is not ours."""

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
        return group in self._gated

    def of_group(self, group: GroupKey) -> list[Pod]:
        """Every known pod of the group, also bound and finished ones, in the order of arrival."""
        return [self._pods[uid] for uid in self._members.get(group, ())]

    def iterate(self, group: GroupKey) -> Iterator[Pod]:
        """As ``of_group``, one by one: for a caller that looks for the first of a kind."""
        return (self._pods[uid] for uid in self._members.get(group, ()))

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
        """How many members of each PodGroup count toward its quorum: ``classify(group, without).placed_by_leaf``."""
        below = self.by_leaf(group, [self._pods[uid] for uid in self._members.get(group, ()) if uid not in without])
        return {name: count_placed(pods, *self._find_counts(group.leaf(name))) for name, pods in below.items()}

    def classify(self, group: GroupKey, without: Collection[str] = ()) -> GroupMembers:
        """The members of a group by what they are to a plan, as if the pods ``without`` (UIDs) were not there."""
        members = [pod for pod in self.of_group(group) if pod.uid not in without]
        below = self.by_leaf(group, members)
        return combine({name: self._classify(group.leaf(name), pods) for name, pods in below.items()})

    def _classify(self, leaf: GroupKey, members: Iterable[Pod]) -> GroupMembers:
        return classify(members, self._schedulers, *self._find_counts(leaf), self._parents)

    def _find_counts(self, leaf: GroupKey) -> tuple[Job | None, int]:
        """The Job and the minCount by which finished members of a PodGroup count."""
        group = self._groups.get(leaf)
        return (self._membership.job_of(group), group.policy.min_count or 0) if group is not None else (None, 0)

    # --- the Store's own ---------------------------------------------------------------------------------------

    def join(self, uid: str, group: GroupKey) -> None:
        """A pod that is in no group joins one."""
        self._group_of[uid] = group
        self._members.setdefault(group, {})[uid] = None

    def note_gates(self, pod: Pod, group: GroupKey) -> None:
        """A member of this group came or changed."""
        if pod.pending and pod.gated_by_others and pod.scheduler in self._schedulers:
            self._gated.setdefault(group, {})[pod.uid] = None
        else:
            discard(self._gated, group, pod.uid)

    def note_leaf(self, uid: str, leaf: GroupKey | None) -> None:
        """The PodGroup of a member within its tree; None where that is the whole tree."""
        if leaf is not None:
            self._leaf_of[uid] = leaf
        else:
            self._leaf_of.pop(uid, None)

    def leave(self, uid: str) -> GroupKey | None:
        """A pod leaves its group; which that was, None if it was in none."""
        self._leaf_of.pop(uid, None)
        group = self._group_of.pop(uid, None)
        if group is not None:
            discard(self._members, group, uid)
            discard(self._gated, group, uid)
        return group
