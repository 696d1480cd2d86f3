"""Who asks for plans: the group scheduler, which can wait for one, and cycles, which cannot.

A member that comes in the place of one that has ended gets the slot that is kept for it, if that takes it; only the
others are planned.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from extender.core.scheduling.effects import Context
from extender.core.scheduling.group import GroupState
from extender.core.scheduling.planning_tasks import (
    GO_SECONDS,
    STRAIGHT_SECONDS,
    URGENT_SECONDS,
    PlanningTasks,
    Unfinished,
)
from extender.core.scheduling.request import leave_out
from serried.api.names import GroupKey
from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.resources import Resources, add, count_slots, subtract
from serried.api.verdict import Mark, Reason, Verdict
from serried.cluster.cache import Store
from serried.cluster.usage import Vacancy
from serried.plan.fit import admits
from serried.plan.request import Plan, PlanRequest

_SOON_SECONDS = 0.5
"""What was refused while room was freed elsewhere is planned again after this time at the earliest."""


class Planning:
    """Plans for groups. Every method is synchronous. ``clock`` gives loop seconds."""

    def __init__(self, context: Context, planning_tasks: PlanningTasks) -> None:
        self.vain_seconds = 0.0
        """The work of straight plans that were refused; whoever reads it sets it back."""

        self._members = context.store.members
        self._planning_tasks = planning_tasks
        self._groups = context.groups
        self._clock = context.clock
        self._metrics = context.metrics

    def plan(
        self, request: PlanRequest, leaving: Iterable[Vacancy] = (), straight_seconds: float = STRAIGHT_SECONDS
    ) -> Plan | Verdict:
        """The plan, or why there is none, as of now. Raises Unfinished.

        ``straight_seconds`` as in `PlanningTasks.plan`.
        """
        answer = self._planning_tasks.plan(request, leaving, straight_seconds)
        found: Plan | Verdict = answer.found
        if answer.seconds is not None:
            self._metrics.planned(found.reason.value if isinstance(found, Verdict) else "Planned", answer.seconds)
            # Who takes longer than that has a pause of its own.
            self.vain_seconds += answer.seconds if isinstance(found, Verdict) and answer.seconds <= GO_SECONDS else 0.0
        return found

    def plan_at_once(self, request: PlanRequest, leaving: Iterable[Vacancy] = ()) -> Plan | Verdict:
        """As ``plan`` for a cycle, which can do without: a plan that is not there yet is none for now.

        The cycle's group is looked at again when it is. Late members wait for the pause after a plan in vain.
        """
        group = self._members.group_of(request.members[0].uid)
        state = self._groups.states.get(group) if group is not None and not request.need else None
        unfinished = Verdict(Reason.PLAN_UNFINISHED, need=len(request.members))
        if state is not None and state.entry.backs_off(self._clock()):
            return unfinished
        try:
            found = self.plan(request, leaving, URGENT_SECONDS if request.need else STRAIGHT_SECONDS)
        except Unfinished:
            return unfinished
        backoff = self._planning_tasks.collect(request)
        if state is not None and isinstance(found, Verdict) and backoff.pause:
            state.entry.back_off(self._clock() + backoff.pause)
        return found

    def describe_wait(self, state: GroupState, request: PlanRequest) -> Verdict | None:
        """What is said of a gang whose plan is being made; None if what the last plan was refused for says more."""
        lasting = state.verdict is not None and Mark.LASTS in state.verdict.reason.marks
        return None if lasting else Verdict(Reason.PLANNING, need=request.need or len(request.members))

    def rest(self, state: GroupState, group: GroupKey, refusal: Verdict) -> None:
        """A gang was refused: if that took long, it is planned again after a pause in proportion."""
        now = self._clock()
        backoff = self._planning_tasks.settle(group)
        if backoff.pause:
            state.entry.back_off(now + backoff.pause)
        if backoff.stale or refusal.reason is Reason.PLAN_UNFINISHED:
            state.entry.retry_by(now + max(backoff.pause, _SOON_SECONDS))

    def settle(self, group: GroupKey) -> None:
        """A group was planned: what its plans in vain have cost is forgotten."""
        self._planning_tasks.settle(group)


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

    def __init__(self, store: Store, plan: Planner) -> None:
        self._store = store
        self._kept_slots = KeptSlots(store)
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
        found = self._plan(rest.closing(self._find_outgrown(kept_slots, ask.members)))
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
