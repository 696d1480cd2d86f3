"""When pods leave their nodes, in loop seconds: what the forecast for the head of the queue is made of."""

import math
from collections.abc import Callable, Iterable, Mapping

from serried.cluster.endings import Endings, Trust
from serried.cluster.exclusives import find_exclusive_key
from serried.cluster.members import Members
from serried.cluster.occupancy import Occupancy
from serried.cluster.vacancies import Vacancies
from serried.model.group import GroupKey, PodGroup
from serried.model.plan import PlanRequest
from serried.model.pod import Pod
from serried.plan.forecast import Ending
from serried.plan.steps import Work

_OVERDUE_SECONDS = 10.0
"""A pod that should have ended already is given this time more."""

_YOUNG_SECONDS = 600.0
"""Pods that are younger are alike if nothing is known of their ends; each doubling of the age tells others apart."""

_PODS_A_STEP = 500
"""How many pods are looked at in one step of the work."""


class PodEnds:
    """Reads the maps and facets of the Store. ``clock`` gives loop seconds, ``wall`` seconds since 1970."""

    def __init__(
        self,
        pods: Mapping[str, Pod],
        groups: Mapping[GroupKey, PodGroup],
        members: Members,
        occupancy: Occupancy,
        vacancies: Vacancies,
        *,
        endings: Endings,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._pods = pods
        self._groups = groups
        self._members = members
        self._occupancy = occupancy
        self._vacancies = vacancies
        self._endings = endings
        self._clock = clock
        self._wall = wall

    def find_last(self, members: Iterable[Pod], trust: Trust) -> float | None:
        """When the last of these will have ended if all begin now; None if that is not known of each."""
        wall = self._wall()
        ends = [self._endings.expect(member, wall, trust) for member in members]
        # What begins now has not ended before: where a deadline is over, our clock may be ahead of the one it goes by.
        known = [end for end in ends if end is not None and end > wall]
        return self._clock() + max(known) - wall if len(known) == len(ends) else None

    def list_others(self, group: GroupKey, request: PlanRequest, vain: Mapping[str, int]) -> Work[list[Ending]]:
        """The endings of all pods of other groups that count somewhere: bound, assumed or reserved.

        A slot that is kept for the next member ends as the last one would have; the group's own is room at once.
        ``vain`` is how often nodes were kept in vain: what runs there is doubted the more.
        """
        # As they are now: who comes or goes between two steps is not in the snapshot either.
        pods = list(self._pods.values())
        key = request.topology_key if request.exclusive else None
        endings = self._list_vacant(group, key)
        for place, pod in enumerate(pods):
            node = pod.node if pod.bound else self._occupancy.node_of(pod.uid)
            if node and (other := self._members.group_of(pod.uid)) != group:
                endings.append(self._foresee(pod, node, vain.get(node, 0), holds_domain=self._holds(other, key)))
            if place % _PODS_A_STEP == 0:
                yield
        return endings

    def _list_vacant(self, group: GroupKey, key: str | None) -> list[Ending]:
        endings = []
        for vacancy in self._vacancies:
            node = self._occupancy.node_of(vacancy.claimant)
            own = vacancy.group == group
            if node and (own or not vacancy.replacement):
                at = self._clock() if own else self._expect(vacancy.pod)
                held = not own and self._holds(vacancy.group, key)
                endings.append(Ending(node, vacancy.pod.shape.requests, at, holds_domain=held))
        return endings

    def _holds(self, group: GroupKey | None, key: str | None) -> bool:
        """Whether a group has a domain of this key for itself."""
        return key is not None and group is not None and find_exclusive_key(self._groups.get(group)) == key

    def _foresee(self, pod: Pod, node: str, vain: int, *, holds_domain: bool) -> Ending:
        at = self._expect(pod)
        doubt = vain + self._count_doublings(pod) if at is None else 0
        return Ending(node, pod.shape.requests, at, doubt, holds_domain)

    def _count_doublings(self, pod: Pod) -> int:
        """How old a pod is of whose end nothing is known: it may be expected to run as long again as it has."""
        now = self._wall()
        age = max(0.0, now - self._endings.find_begin(pod, now))
        return max(0, math.frexp(age / _YOUNG_SECONDS)[1])

    def _expect(self, pod: Pod) -> float | None:
        now = self._clock()
        wall = self._wall()
        end = self._endings.expect(pod, wall)
        return None if end is None else max(now + _OVERDUE_SECONDS, now + end - wall)
