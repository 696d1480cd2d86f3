"""Restores the vacancies of members that ended before this Store was filled from the API server (`EarlierSlots`).

There are two sources: failed pods that still exist (`EarlierSlots.restore_ended`), and the vacancies of the previous
Store of this process (`EarlierSlots.restore_vacancies`). A process replaces its Store when the cluster begins to serve
PodGroups at another API level (version of the PodGroup API).
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
from serried.cluster.usage import UsageSource, Vacancies, Vacancy


@dataclass(eq=False)
class EarlierSlots:
    """Opens vacancies for members that ended before the Store was filled from the API server.

    The Store owns it. The maps passed in are the Store's own, so they always show its present objects.
    """

    nodes: Mapping[str, Node]
    pods: Mapping[str, Pod]
    groups: Mapping[GroupKey, PodGroup]
    vacancies: Vacancies
    members: Members
    membership: Membership
    owners: Owners
    pending_victims: Collection[str]

    awaiting: set[GroupKey] = field(default_factory=set, init=False)
    """The provisional keys (made from the owner) of gangs that have no PodGroup yet at the API version in use now.

    They have vacancies that are taken over from the previous Store, which used another API version.
    """

    def restore_ended(self, pod: Pod, since: float) -> None:
        """Open a vacancy for a member that has ended and whose pod still exists, if its node still has the resources.

        ``since`` is the time of its end in loop seconds. No effect if the pod is in no gang, or was a victim.
        """
        node = self.nodes.get(pod.node)
        used = self.vacancies.occupancy.used.get(pod.node, {})
        if node is None or not count_slots(node.allocatable, used, dict(pod.shape.requests)):
            return
        key = self.members.group_of(pod.uid)
        if key is not None and self._is_gang(key) and pod.uid not in self.pending_victims:
            self._open(Vacancy(key, pod, self.members.leaf_of(pod.uid), pod.refusal, since))

    def restore_vacancies(self, kept: Iterable[Vacancy]) -> None:
        """Open the vacancies ``kept`` by the previous Store again. Call it when all kinds are listed.

        Each keeps the time since which it waits for a replacement, so it ends when it would have ended in that Store.
        Vacancies whose gang is gone, or whose replacement was bound, are not opened.
        """
        for vacancy in kept:
            replacement = self.pods.get(vacancy.replacement)
            successor = self._find_successor(vacancy.pod)
            if successor is None or (replacement is not None and replacement.bound):
                continue
            group, leaf = successor
            self._open(Vacancy(group, vacancy.pod, leaf, vacancy.refusal, vacancy.since))
            if group not in self.groups:
                self.awaiting.add(group)

    def move_inherited(self) -> None:
        """Move vacancies from a provisional key to their gang's PodGroup, if this exists by now.

        A provisional key is made from the gang's owner, such as a Job, while there is no PodGroup. These vacancies are
        from the previous Store, which used another API version. The Store calls this after a group has changed.
        """
        for key in list(self.awaiting):
            for vacancy in self.vacancies.of_group(key):
                successor = self._find_successor(vacancy.pod)
                if successor is not None and successor[0] in self.groups:
                    self.vacancies.move(vacancy, *successor)
            if key not in self.vacancies:
                self.awaiting.discard(key)

    def _open(self, vacancy: Vacancy) -> None:
        pod, occupancy = vacancy.pod, self.vacancies.occupancy
        occupancy.add_usage(pod.uid, UsageSource.BOUND, pod.node, pod.shape.requests)
        self.vacancies.open(vacancy.group, pod, vacancy.refusal, vacancy.leaf, since=vacancy.since)
        occupancy.forget(pod.uid)

    def _find_successor(self, pod: Pod) -> tuple[GroupKey, str] | None:
        """Return the gang of a member that ended, and the member's PodGroup in the tree; None if the gang is gone.

        It is the gang that the pod names. If no such gang exists, it is that of the pod's owner, such as a Job, even if
        the owner's PodGroup still has to be recreated. The name may be of another API version than the one in use: in
        1.35, for instance, a pod names a Workload, and not a PodGroup.
        """
        for each in (pod, replace(pod, group=None)):
            own = self.membership.resolve(each)
            group = self.membership.find_group(each)
            if own is not None and group is not None and (self._is_gang(group) or self._is_awaited(group)):
                return group, own.name if own != group else ""
        return None

    def _is_gang(self, key: GroupKey) -> bool:
        group = self.groups.get(key)
        return group is not None and group.policy.is_gang

    def _is_awaited(self, key: GroupKey) -> bool:
        owner = owner_of_provisional(key)
        return owner is not None and self.owners.find(owner) is not None
