"""Which members go together, as their disruption mode is ``all``."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from serried.cluster.members import Members
from serried.model.group import GroupKey, PodGroup
from serried.model.pod import Pod


class Company(NamedTuple):
    """The group of members that go together; of a tree, the PodGroups in it."""

    group: GroupKey
    parts: frozenset[str]


class Companies:
    """Looks companies up. The maps are the Store's and live."""

    def __init__(self, pods: Mapping[str, Pod], groups: Mapping[GroupKey, PodGroup], members: Members) -> None:
        self._pods = pods
        self._groups = groups
        self._members = members

    def of_pod(self, uid: str) -> Company | None:
        """That of a bound member; None for one that goes by itself, and for any other pod."""
        key, pod = self._members.group_of(uid), self._pods.get(uid)
        group = self._groups.get(key) if key is not None else None
        if group is None or pod is None or not pod.bound:
            return None
        parts = group.find_disrupted(self._members.leaf_of(uid))
        return Company(group.key, parts) if parts else None

    def list_running(self, company: Company) -> list[Pod]:
        """The members that are bound, and that nobody has begun to delete."""
        running = [pod for pod in self._members.iterate(company.group) if pod.bound and not pod.deleting]
        return [pod for pod in running if self._members.leaf_of(pod.uid) in company.parts]

    def list_whole(self, uids: Collection[str]) -> list[GroupKey]:
        """The groups of which no member would run any more without these pods; of a tree, all such groups in it."""
        whole: list[GroupKey] = []
        for key in sorted({key for uid in uids if (key := self._members.group_of(uid)) is not None}):
            group = self._groups.get(key)
            if group is not None:
                running = [pod.uid for pod in self._members.iterate(key) if pod.bound and not pod.deleting]
                staying = self._list_groups(group, (uid for uid in running if uid not in uids))
                going = self._list_groups(group, (uid for uid in running if uid in uids))
                whole += [each for each in going if each not in staying]
        return whole

    def _list_groups(self, group: PodGroup, uids: Iterable[str]) -> dict[GroupKey, None]:
        """The groups of a tree that have these members below them."""
        parts = {self._members.leaf_of(uid): None for uid in uids}
        return {key: None for part in sorted(parts) for key in group.list_path(part)}
