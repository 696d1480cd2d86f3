"""Where heirs go: into the slots that are kept for them, as far as these take them.

A slot is kept for the member that comes in the place of one that has ended (`serried.cluster.vacancies`).
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from extender.scheduling.requests import leave_out
from serried.cluster.store import Store
from serried.cluster.vacancies import Vacancy
from serried.model.node import Node
from serried.model.plan import Plan, PlanRequest
from serried.model.pod import Pod
from serried.model.resources import Resources, add, count_slots, subtract
from serried.model.verdict import Reason, Verdict
from serried.plan.fit import admits


class Planner(Protocol):
    """Finds nodes for the members of a request."""

    def __call__(self, request: PlanRequest, leaving: Iterable[Vacancy] = ()) -> Plan | Verdict:
        """The plan; kept slots count as used, but for those that the members would be ``leaving``."""


class Seats:
    """The kept slots of heirs. Every method is synchronous."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list_inherited(self, members: Iterable[Pod]) -> list[Vacancy]:
        """The kept slots that these members are heirs of."""
        found = (self._store.vacancies.of_heir(pod.uid) for pod in members)
        return [vacancy for vacancy in found if vacancy is not None]

    def find(self, ask: PlanRequest, base: Mapping[str, Resources]) -> dict[str, str]:
        """Member UID to node: the heirs whose own slot takes them, all in one domain; ``base`` is what is used."""
        heirs = [(pod, found) for pod in ask.members if (found := self._store.vacancies.of_heir(pod.uid)) is not None]
        seats: dict[str, str] = {}
        used: dict[str, Resources] = {}
        domains = set(ask.pinned)
        for pod, vacancy in heirs:
            node = self._store.nodes.get(vacancy.pod.node)
            if node is None or vacancy.refusal or (pod.uid, node.name) in ask.excluded:
                continue
            if not _is_in(node, ask.topology_key, domains) or not admits(pod.shape, node):
                continue
            # The heir's own claim is among what is used: another one may be larger, or its node smaller by now.
            others = subtract(used.get(node.name) or base.get(node.name, {}), dict(vacancy.pod.shape.requests))
            wish = dict(pod.shape.requests)
            if count_slots(node.allocatable, others, wish) > 0:
                seats[pod.uid] = node.name
                used[node.name] = add(others, wish)
                if ask.topology_key is not None:
                    domains.add(node.labels[ask.topology_key])
        return seats

    def move_out(self, plan: Plan) -> None:
        """A gang starts anew with this plan: it leaves those of its old slots that the plan does not use."""
        for uid, node in plan.nodes.items():
            vacancy = self._store.vacancies.of_heir(uid)
            if vacancy is not None and vacancy.pod.node != node:
                self._store.vacancies.close(vacancy)


class SeatPlanner:
    """Plans for members of which some may be heirs; ``plan`` finds nodes for those that are not."""

    def __init__(self, store: Store, seats: Seats, plan: Planner) -> None:
        self._store = store
        self._seats = seats
        self._plan = plan

    def plan(self, ask: PlanRequest) -> Plan | Verdict:
        """The answer to ``ask``: heirs get their own slots as far as these take them, the rest is planned."""
        inherited = self._seats.list_inherited(ask.members)
        if not inherited and not ask.own_slots:
            return self._plan(ask)
        seats = self._seats.find(ask, self._store.snapshots.take(ask.yielding_priority, ask.members).used)
        if ask.own_slots:
            return self._take_seats(ask, seats)
        found = self._plan_beside(seats, ask) if seats else None
        if found is not None:
            return found
        # A gang that starts anew, and that its old slots do not help: their room is better than their places.
        return self._plan(ask, inherited if ask.need else ())

    def _take_seats(self, ask: PlanRequest, seats: dict[str, str]) -> Plan | Verdict:
        if not seats:
            return Verdict(Reason.NO_CAPACITY, need=len(ask.members), detail="the slots kept for them are taken")
        return Plan(self._domain_of(ask, seats), seats)

    def _domain_of(self, ask: PlanRequest, seats: Mapping[str, str]) -> str:
        node = self._store.nodes[next(iter(seats.values()))]
        return node.labels[ask.topology_key] if ask.topology_key is not None else ""

    def _plan_beside(self, seats: dict[str, str], ask: PlanRequest) -> Plan | None:
        """The plan in which these heirs have their own slots; None if it lacks the quorum."""
        domain = self._domain_of(ask, seats)
        rest = leave_out(ask, seats, self._store.nodes)
        if not rest.members:
            return Plan(domain, seats)
        found = self._plan(rest.avoiding(self._find_outgrown(seats, ask.members)))
        if isinstance(found, Plan):
            return Plan(domain, {**seats, **found.nodes})
        return Plan(domain, seats) if ask.need <= len(seats) else None

    def _find_outgrown(self, seats: Mapping[str, str], members: Iterable[Pod]) -> set[str]:
        """The nodes where an heir takes more than its slot, which alone is known to be used."""
        asked = {pod.uid: pod.shape.requests for pod in members}
        inherited = {vacancy.heir: vacancy.pod.shape.requests for vacancy in self._seats.list_inherited(members)}
        return {node for uid, node in seats.items() if asked[uid] != inherited[uid]}


def _is_in(node: Node, key: str | None, domains: set[str]) -> bool:
    if key is None:
        return True
    return key in node.labels and (not domains or node.labels[key] in domains)
