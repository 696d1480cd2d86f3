"""Where replacements go: into the slots that are kept for them, as far as these take them.

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


class KeptSlots:
    """The kept slots of replacements. Every method is synchronous."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list_kept(self, members: Iterable[Pod]) -> list[Vacancy]:
        """The kept slots that these members are replacements of."""
        found = (self._store.vacancies.of_replacement(pod.uid) for pod in members)
        return [vacancy for vacancy in found if vacancy is not None]

    def find(self, ask: PlanRequest, base: Mapping[str, Resources]) -> dict[str, str]:
        """Member UID to node: the replacements that their own slots take, in one domain; ``base`` is what is used."""
        replacements = [
            (pod, found) for pod in ask.members if (found := self._store.vacancies.of_replacement(pod.uid)) is not None
        ]
        kept_slots: dict[str, str] = {}
        used: dict[str, Resources] = {}
        domains = set(ask.pinned)
        for pod, vacancy in replacements:
            node = self._store.nodes.get(vacancy.pod.node)
            if node is None or vacancy.refusal or (pod.uid, node.name) in ask.excluded or node.name in ask.closed:
                continue
            if not _is_in(node, ask.topology_key, domains) or not admits(pod.shape, node):
                continue
            # The replacement's own claim is among what is used: another one may be larger, or its node smaller by now.
            others = subtract(used.get(node.name) or base.get(node.name, {}), dict(vacancy.pod.shape.requests))
            wish = dict(pod.shape.requests)
            if count_slots(node.allocatable, others, wish) > 0:
                kept_slots[pod.uid] = node.name
                used[node.name] = add(others, wish)
                if ask.topology_key is not None:
                    domains.add(node.labels[ask.topology_key])
        return kept_slots

    def move_out(self, plan: Plan) -> None:
        """A gang starts anew with this plan: it leaves those of its old slots that the plan does not use."""
        for uid, node in plan.nodes.items():
            vacancy = self._store.vacancies.of_replacement(uid)
            if vacancy is not None and vacancy.pod.node != node:
                self._store.vacancies.close(vacancy)


class KeptSlotPlanner:
    """Plans for members of which some may be replacements; ``plan`` finds nodes for those that are not."""

    def __init__(self, store: Store, kept_slots: KeptSlots, plan: Planner) -> None:
        self._store = store
        self._kept_slots = kept_slots
        self._plan = plan

    def plan(self, ask: PlanRequest) -> Plan | Verdict:
        """The answer to ``ask``: replacements get their own slots as far as these take them, the rest is planned."""
        kept = self._kept_slots.list_kept(ask.members)
        if not kept and not ask.own_slots:
            return self._plan(ask)
        kept_slots = self._kept_slots.find(ask, self._store.snapshots.take(ask.yielding_priority, ask.members).used)
        if ask.own_slots:
            return self._take_seats(ask, kept_slots)
        found = self._plan_beside(kept_slots, ask) if kept_slots else None
        if found is not None:
            return found
        # A gang that starts anew, and that its old slots do not help: their room is better than their places.
        return self._plan(ask, kept if ask.need else ())

    def _take_seats(self, ask: PlanRequest, kept_slots: dict[str, str]) -> Plan | Verdict:
        if not kept_slots:
            return Verdict(Reason.NO_CAPACITY, need=len(ask.members), detail="the slots kept for them are taken")
        return Plan(self._domain_of(ask, kept_slots), kept_slots)

    def _domain_of(self, ask: PlanRequest, kept_slots: Mapping[str, str]) -> str:
        node = self._store.nodes[next(iter(kept_slots.values()))]
        return node.labels[ask.topology_key] if ask.topology_key is not None else ""

    def _plan_beside(self, kept_slots: dict[str, str], ask: PlanRequest) -> Plan | None:
        """The plan in which these replacements have their own slots; None if it lacks the quorum."""
        domain = self._domain_of(ask, kept_slots)
        rest = leave_out(ask, kept_slots, self._store.nodes)
        if not rest.members:
            return Plan(domain, kept_slots)
        found = self._plan(rest.avoiding(self._find_outgrown(kept_slots, ask.members)))
        if isinstance(found, Plan):
            return Plan(domain, {**kept_slots, **found.nodes})
        return Plan(domain, kept_slots) if ask.need <= len(kept_slots) else None

    def _find_outgrown(self, kept_slots: Mapping[str, str], members: Iterable[Pod]) -> set[str]:
        """The nodes where a replacement takes more than its slot, which alone is known to be used."""
        asked = {pod.uid: pod.shape.requests for pod in members}
        kept = {vacancy.replacement: vacancy.pod.shape.requests for vacancy in self._kept_slots.list_kept(members)}
        return {node for uid, node in kept_slots.items() if asked[uid] != kept[uid]}


def _is_in(node: Node, key: str | None, domains: set[str]) -> bool:
    if key is None:
        return True
    return key in node.labels and (not domains or node.labels[key] in domains)
