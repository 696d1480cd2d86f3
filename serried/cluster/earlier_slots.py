"""Slots of members that ended before this Store could see it.

A pod that has failed is still there, and says when it ended. And the Store of this process for another API level has
kept slots: those are kept on, each for the group that its member would belong to at this level.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from serried.api.group import PodGroup
from serried.api.names import GroupKey
from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.resources import count_slots
from serried.cluster.members import Members
from serried.cluster.membership import Membership, Owners, owner_of_provisional
from serried.cluster.usage import ClaimKind, Vacancies, Vacancy


@dataclass(eq=False)
class EarlierSlots:
    """Opens vacancies for them. The maps and facets are the Store's own and live."""

    nodes: Mapping[str, Node]
    pods: Mapping[str, Pod]
    groups: Mapping[GroupKey, PodGroup]
    vacancies: Vacancies
    members: Members
    membership: Membership
    owners: Owners
    pending_victims: Collection[str]

    awaiting: set[GroupKey] = field(default_factory=set, init=False)
    """Under which keys slots are kept of gangs that have no object at this level yet."""

    def recall(self, pod: Pod, since: float) -> None:
        """A member that is still there has ended at ``since``: its slot is kept if nobody has the room by now."""
        node = self.nodes.get(pod.node)
        used = self.vacancies.occupancy.used.get(pod.node, {})
        if node is None or not count_slots(node.allocatable, used, dict(pod.shape.requests)):
            return
        key = self.members.group_of(pod.uid)
        if key is not None and self._stands(key) and pod.uid not in self.pending_victims:
            self._open(Vacancy(key, pod, self.members.leaf_of(pod.uid), pod.refusal, since))

    def inherit(self, kept: Iterable[Vacancy]) -> None:
        """Keep on what another Store has kept, for as long as that would have. To be called once all is listed.

        Whether the owner still wants the slot is not asked here, as in a Store that has lived on.
        """
        for vacancy in kept:
            replacement = self.pods.get(vacancy.replacement)
            heir = self._find_heir(vacancy.pod)
            if heir is None or (replacement is not None and replacement.bound):
                continue
            group, leaf = heir
            self._open(Vacancy(group, vacancy.pod, leaf, vacancy.refusal, vacancy.since))
            if group not in self.groups:
                self.awaiting.add(group)

    def settle(self) -> None:
        """A group has come or changed: it may be one that slots have waited for."""
        for key in list(self.awaiting):
            for vacancy in self.vacancies.of_group(key):
                heir = self._find_heir(vacancy.pod)
                if heir is not None and heir[0] in self.groups:
                    self.vacancies.move(vacancy, *heir)
            if key not in self.vacancies:
                self.awaiting.discard(key)

    def _open(self, vacancy: Vacancy) -> None:
        pod, occupancy = vacancy.pod, self.vacancies.occupancy
        occupancy.claim(pod.uid, ClaimKind.BOUND, pod.node, pod.shape.requests)
        self.vacancies.open(vacancy.group, pod, vacancy.refusal, vacancy.leaf, since=vacancy.since)
        occupancy.forget(pod.uid)

    def _find_heir(self, pod: Pod) -> tuple[GroupKey, str] | None:
        """The gang of a member that is gone, and the member's PodGroup in its tree; None if there is no such gang.

        By what the pod names, else by its owner: an API server drops fields that it does not serve, and in 1.35 the
        group has a name of another kind. An owner's gang may still wait for its objects to be made anew.
        """
        for each in (pod, replace(pod, group=None)):
            own = self.membership.resolve(each)
            group = self.membership.find_group(each)
            if own is not None and group is not None and (self._stands(group) or self._waits(group)):
                return group, own.name if own != group else ""
        return None

    def _stands(self, key: GroupKey) -> bool:
        group = self.groups.get(key)
        return group is not None and group.policy.is_gang

    def _waits(self, key: GroupKey) -> bool:
        owner = owner_of_provisional(key)
        return owner is not None and self.owners.find(owner) is not None
