"""Check after each turn of a `Churn` that groups are evicted whole and start whole."""

from collections import defaultdict
from dataclasses import dataclass

from serried.api.names import Disruption
from serried.api.pod import Pod
from tests.support.churn import Churn, Owner

PodsByGroup = dict[str, set[str]]
"""Names of pods by the name of their PodGroup."""


@dataclass(frozen=True)
class PartialGroup:
    """A violation: only a part of a group was evicted or bound, in a turn."""

    turn: int
    group: str
    pods: frozenset[str]


class AtomicityCheck:
    """Runs a churn, and checks every group after each turn, when all evictions of the turn have been made."""

    def __init__(self, churn: Churn) -> None:
        self.kept_members: list[PartialGroup] = []
        """Members of groups with disruption mode all that still run after another member was evicted."""

        self.bound_without_quorum: list[PartialGroup] = []
        """Bound members of gangs that never had their quorum bound."""

        self.evicted_whole = 0
        """Number of evictions of at least two members of a group with disruption mode all."""

        self.preemptors: set[str] = set()
        """Owners of gangs that were bound whole, after evictions for them."""

        self._churn = churn
        self._whole: set[str] = set()
        """PodGroups that had their quorum bound, and had bound members ever since."""

    async def run(self, turns: int) -> None:
        """Run some turns, and check all groups after each."""
        for _ in range(turns):
            before = self._list_running()
            seen = len(self._churn.evictions)
            await self._churn.run(1)
            evicted = {each.pod for each in self._churn.evictions[seen:]}
            self._check_victims(before, evicted)
            self._check_gangs(evicted)

    def _check_victims(self, before: PodsByGroup, evicted: set[str]) -> None:
        now = self._list_running()
        whole = {owner.name for owner in self._list_gangs() if owner.mode is Disruption.ALL}
        for group, mates in before.items():
            if group.rpartition("-")[0] not in whole or not mates & evicted:
                continue
            self.evicted_whole += len(mates & evicted) > 1
            if staying := mates & now.get(group, set()):
                self.kept_members.append(PartialGroup(self._churn.turn, group, frozenset(staying)))

    def _check_gangs(self, evicted: set[str]) -> None:
        bound = self._list_bound()
        for owner in self._list_gangs():
            # Pods that were evicted in this turn had been bound before.
            there = bound.get(owner.group, set()) | (evicted & set(owner.pods))
            if len(there) >= owner.min_count:
                self._whole.add(owner.group)
                self.preemptors |= {each.preemptor for each in self._churn.evictions if each.preemptor == owner.name}
            elif there and owner.group not in self._whole:
                self.bound_without_quorum.append(PartialGroup(self._churn.turn, owner.group, frozenset(there)))
        self._whole &= bound.keys()

    def _list_gangs(self) -> list[Owner]:
        return [owner for owner in self._churn.owners.values() if owner.min_count]

    def _list_running(self) -> PodsByGroup:
        return self._sort([each for each in self._churn.list_pods() if each.bound and not each.deleting])

    def _list_bound(self) -> PodsByGroup:
        return self._sort([each for each in self._churn.list_pods() if each.bound])

    def _sort(self, pods: list[Pod]) -> PodsByGroup:
        found: PodsByGroup = defaultdict(set)
        for each in pods:
            if each.group is not None:
                found[each.group.name].add(each.name)
        return found
