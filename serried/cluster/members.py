"""Which pods are the members of which group, and how the members of a group stand."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from serried.cluster.indexes import discard
from serried.cluster.membership import Membership
from serried.model.group import GroupKey, PodGroup
from serried.model.parent import OwnerKey, Parent
from serried.model.pod import Pod
from serried.model.tree import list_leaves
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

    def __contains__(self, group: object) -> bool:
        """Whether a group has a pod."""
        return group in self._members

    def groups(self) -> list[GroupKey]:
        """The groups that have a pod, with or without a PodGroup object."""
        return list(self._members)

    def group_of(self, uid: str) -> GroupKey | None:
        """The group of a known pod, maybe provisional; None for a pod of no group or an unknown pod."""
        return self._group_of.get(uid)

    def leaf_of(self, uid: str) -> str:
        """The PodGroup of a member within its tree; "" for a pod whose group is in none."""
        return self._leaf_of[uid].name if uid in self._leaf_of else ""

    def rank_of(self, uid: str) -> int | None:
        """The rank of a member in its gang; None for an unknown pod, or where nothing numbers the members."""
        pod = self._pods.get(uid)
        return self._membership.rank_of(pod) if pod is not None else None

    def of_group(self, group: GroupKey) -> list[Pod]:
        """Every known pod of the group, also bound and finished ones, in the order of arrival."""
        return [self._pods[uid] for uid in self._members.get(group, ())]

    def iterate(self, group: GroupKey) -> Iterator[Pod]:
        """As ``of_group``, one by one: for a caller that looks for the first of a kind."""
        return (self._pods[uid] for uid in self._members.get(group, ()))

    def count_placed(self, group: GroupKey) -> int:
        """How many members of a group that is no tree count toward its quorum: ``classify(group).placed``."""
        found = self._groups.get(group)
        job = self._membership.job_of(found) if found is not None else None
        min_count = (found.policy.min_count or 0) if found is not None else 0
        return count_placed(self.iterate(group), job, min_count)

    def classify(self, group: GroupKey, without: Collection[str] = ()) -> GroupMembers:
        """The members of a group by what they are to a plan, as if the pods ``without`` (UIDs) were not there."""
        found = self._groups.get(group)
        members = [pod for pod in self.of_group(group) if pod.uid not in without]
        if found is None or found.tree is None:
            return self._classify(found, members)
        below: dict[str, list[Pod]] = {leaf.name: [] for leaf in list_leaves(found.tree)}
        for pod in members:
            below.setdefault(self.leaf_of(pod.uid), []).append(pod)
        leaves = {name: self._groups.get(GroupKey(group.namespace, name)) for name in below}
        return combine({name: self._classify(leaves[name], pods) for name, pods in below.items()})

    def _classify(self, group: PodGroup | None, members: Iterable[Pod]) -> GroupMembers:
        job = self._membership.job_of(group) if group is not None else None
        min_count = (group.policy.min_count or 0) if group is not None else 0
        return classify(members, self._schedulers, job, min_count, self._parents)

    # --- the Store's own ---------------------------------------------------------------------------------------

    def join(self, uid: str, group: GroupKey) -> None:
        """A pod that is in no group joins one."""
        self._group_of[uid] = group
        self._members.setdefault(group, {})[uid] = None

    def note_leaf(self, uid: str, leaf: GroupKey | None) -> None:
        """The PodGroup of a member within its tree; None if its group is in none."""
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
        return group
