"""Requests plans: for the group scheduler, which can wait for a plan, and for binding cycles, which cannot.

`Planning` turns requests into planning tasks: by `plan` for waiting gangs, by `plan_at_once` for those with a cycle.
`Queue` and `Reassignments` enter by `KeptSlotPlanner.plan`, which first gives replacements of deleted members their
vacancies (the slots kept for them), and plans only the other members.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from extender.core.scheduling.effects import Context
from extender.core.scheduling.group import GroupState
from extender.core.scheduling.planning_tasks import (
    INLINE_SECONDS,
    SHORT_SECONDS,
    URGENT_SECONDS,
    PlanningTasks,
    Unfinished,
)
from extender.core.scheduling.request import subtract_placed
from serried.api.names import GroupKey
from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.resources import Resources, add, count_slots, subtract
from serried.api.verdict import Reason, Trait, Verdict
from serried.cluster.cache import Store
from serried.cluster.usage import Vacancy
from serried.plan.fit import admits
from serried.plan.request import Plan, PlanRequest

_MIN_RETRY_SECONDS = 0.5
"""The shortest pause in seconds before a gang without a plan is planned again.

It applies if resources were freed while the plan was being made.
"""


class Planning:
    """Requests plans for groups, and lets groups back off whose plans cost much time. Every method is synchronous."""

    def __init__(self, context: Context, planning_tasks: PlanningTasks) -> None:
        self.vain_seconds = 0.0
        """The seconds that this process has spent on short plans that found no nodes.

        The loop that considers groups sets it to 0 before each round, and rests in proportion to it afterwards.
        """

        self._members = context.store.members
        self._planning_tasks = planning_tasks
        self._groups = context.groups
        self._clock = context.clock
        self._metrics = context.metrics

    def plan(
        self, request: PlanRequest, given_up: Iterable[Vacancy] = (), inline_seconds: float = INLINE_SECONDS
    ) -> Plan | Verdict:
        """Return the plan as of now, or the verdict why there is none. Raise Unfinished while it is being made.

        When the plan is there, the scheduling loop processes the group again, and the next call returns it. The
        vacancies in ``given_up`` count as free. This process may itself work on the plan for ``inline_seconds``.
        """
        answer = self._planning_tasks.plan(request, given_up, inline_seconds)
        found: Plan | Verdict = answer.found
        if answer.seconds is not None:
            self._metrics.planned(found.reason.value if isinstance(found, Verdict) else "Planned", answer.seconds)
            # After longer plans the group itself backs off.
            self.vain_seconds += (
                answer.seconds if isinstance(found, Verdict) and answer.seconds <= SHORT_SECONDS else 0.0
            )
        return found

    def plan_at_once(self, request: PlanRequest, given_up: Iterable[Vacancy] = ()) -> Plan | Verdict:
        """Return as `plan` does, but for a caller that cannot wait for the plan, such as an open binding cycle.

        While the plan is being made, return the verdict PLAN_UNFINISHED instead of raising Unfinished; the group is
        considered again when the plan is there. If no plan was found for members that join a cycle, i.e. a request
        without a quorum, the group backs off in proportion to the work. Until the backoff is over, further calls for
        such a request return PLAN_UNFINISHED, too.
        """
        group = self._members.group_of(request.members[0].uid)
        state = self._groups.states.get(group) if group is not None and not request.need else None
        unfinished = Verdict(Reason.PLAN_UNFINISHED, need=len(request.members))
        if state is not None and state.entry.backs_off(self._clock()):
            return unfinished
        try:
            found = self.plan(request, given_up, URGENT_SECONDS if request.need else INLINE_SECONDS)
        except Unfinished:
            return unfinished
        backoff = self._planning_tasks.drop_returned_plans(request)
        if state is not None and isinstance(found, Verdict) and backoff.seconds:
            state.entry.back_off(self._clock() + backoff.seconds)
        return found

    def describe_wait(self, state: GroupState, request: PlanRequest) -> Verdict | None:
        """Return the verdict PLANNING for a gang whose plan is being made.

        None if its last verdict says more, for instance what is missing, and so is to stay.
        """
        lasting = state.verdict is not None and Trait.OUTLASTS_PLANNING in state.verdict.reason.traits
        return None if lasting else Verdict(Reason.PLANNING, need=request.need or len(request.members))

    def back_off(self, state: GroupState, group: GroupKey, refusal: Verdict) -> None:
        """Let a group for which no plan was found back off if the search took long, in proportion to its work.

        ``refusal`` is the verdict why there is no plan. The group's plans are dropped. If resources
        were freed meanwhile, or the search was not finished, the group is planned again when the backoff is over.
        """
        now = self._clock()
        backoff = self._planning_tasks.drop_plans(group)
        if backoff.seconds:
            state.entry.back_off(now + backoff.seconds)
        if backoff.stale or refusal.reason is Reason.PLAN_UNFINISHED:
            state.entry.retry_by(now + max(backoff.seconds, _MIN_RETRY_SECONDS))

    def drop_plans(self, group: GroupKey) -> None:
        """Drop all plans of a group in the planning tasks, also unfinished ones, and the backoff for their cost.

        Call it when the group has accepted a plan, so that it needs no other one.
        """
        self._planning_tasks.drop_plans(group)


class Planner(Protocol):
    """A function that finds nodes for the members of a request: `Planning.plan` or `Planning.plan_at_once`."""

    def __call__(self, request: PlanRequest, given_up: Iterable[Vacancy] = ()) -> Plan | Verdict:
        """Return the plan, or the verdict that says why there is none.

        Vacancies count as used, except for those in ``given_up``.
        """


class KeptSlots:
    """Assigns replacements of deleted members to the vacancies kept for them. Every method is synchronous."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list_kept(self, members: Iterable[Pod]) -> list[Vacancy]:
        """Return the vacancies to which these members are assigned as replacements."""
        found = (self._store.vacancies.of_replacement(pod.uid) for pod in members)
        return [vacancy for vacancy in found if vacancy is not None]

    def assign(self, request: PlanRequest, used_by_node: Mapping[str, Resources]) -> dict[str, str]:
        """Return the replacements that fit into the vacancies kept for them, all in one domain: the node by member UID.

        Only members of the request are considered, and nodes that it allows. ``used_by_node`` is the usage of the
        nodes, in which the vacancies count as used.
        """
        replacements = [
            (pod, found)
            for pod in request.members
            if (found := self._store.vacancies.of_replacement(pod.uid)) is not None
        ]
        kept_slots: dict[str, str] = {}
        used: dict[str, Resources] = {}
        domains = set(request.pinned)
        for pod, vacancy in replacements:
            node = self._store.nodes.get(vacancy.pod.node)
            if (
                node is None
                or vacancy.refusal
                or (pod.uid, node.name) in request.excluded
                or node.name in request.closed
            ):
                continue
            if not _is_in(node, request.topology_key, domains) or not admits(pod.shape, node):
                continue
            # The usage includes the vacancy. The replacement may request more than it, or the node have less by now.
            others = subtract(used.get(node.name) or used_by_node.get(node.name, {}), dict(vacancy.pod.shape.requests))
            wish = dict(pod.shape.requests)
            if count_slots(node.allocatable, others, wish) > 0:
                kept_slots[pod.uid] = node.name
                used[node.name] = add(others, wish)
                if request.topology_key is not None:
                    domains.add(node.labels[request.topology_key])
        return kept_slots

    def release_unused(self, plan: Plan) -> None:
        """Release the vacancies of replacements that a plan places on another node."""
        for uid, node in plan.nodes.items():
            vacancy = self._store.vacancies.of_replacement(uid)
            if vacancy is not None and vacancy.pod.node != node:
                self._store.vacancies.close(vacancy)


class KeptSlotPlanner:
    """Plans members of which some may replace deleted ones, for which vacancies are kept.

    Enter by the method `plan`: it assigns vacancies to members, and has the planner find nodes for the others.
    """

    def __init__(self, store: Store, plan: Planner) -> None:
        self._store = store
        self._kept_slots = KeptSlots(store)
        self._plan = plan

    def plan(self, request: PlanRequest) -> Plan | Verdict:
        """Return the plan for a request, or the verdict that says why there is none.

        Replacements get the vacancies kept for them if they fit. If the quorum does not fit beside these, all members
        are planned anew, and the vacancies count as free. A request without a quorum never has vacancies count as free.
        In a request for replacements alone (``own_slots``), members get their vacancies or no node.
        """
        kept = self._kept_slots.list_kept(request.members)
        if not kept and not request.own_slots:
            return self._plan(request)
        kept_slots = self._kept_slots.assign(
            request, self._store.snapshots.take(request.yielding_priority, request.members).used
        )
        if request.own_slots:
            return self._plan_kept_slots(request, kept_slots)
        found = self._plan_beside(kept_slots, request) if kept_slots else None
        if found is not None:
            return found
        # A gang that starts anew does not fit beside its vacancies, so their resources count as free.
        return self._plan(request, kept if request.need else ())

    def _plan_kept_slots(self, request: PlanRequest, kept_slots: dict[str, str]) -> Plan | Verdict:
        if not kept_slots:
            return Verdict(
                Reason.NO_CAPACITY,
                need=len(request.members),
                detail=("other pods use the nodes that Serried kept for the replacements"),
            )
        return Plan(self._domain_of(request, kept_slots), kept_slots)

    def _domain_of(self, request: PlanRequest, kept_slots: Mapping[str, str]) -> str:
        node = self._store.nodes[next(iter(kept_slots.values()))]
        return node.labels[request.topology_key] if request.topology_key is not None else ""

    def _plan_beside(self, kept_slots: dict[str, str], request: PlanRequest) -> Plan | None:
        """Return the plan in which replacements have their vacancies; None if fewer members than the quorum get a node.

        ``kept_slots`` are the nodes of these replacements by UID.
        """
        domain = self._domain_of(request, kept_slots)
        rest = subtract_placed(request, kept_slots, self._store.nodes)
        if not rest.members:
            return Plan(domain, kept_slots)
        found = self._plan(rest.closing(self._find_outgrown(kept_slots, request.members)))
        if isinstance(found, Plan):
            return Plan(domain, {**kept_slots, **found.nodes})
        return Plan(domain, kept_slots) if request.need <= len(kept_slots) else None

    def _find_outgrown(self, kept_slots: Mapping[str, str], members: Iterable[Pod]) -> set[str]:
        """Return the nodes on which a replacement requests more or less resources than the vacancy kept for it has.

        The usage of such a node counts the vacancy, not the replacement. So no other member may be planned there.
        ``kept_slots`` are the nodes of the replacements by UID, ``members`` the pods of the request.
        """
        asked = {pod.uid: pod.shape.requests for pod in members}
        kept = {vacancy.replacement: vacancy.pod.shape.requests for vacancy in self._kept_slots.list_kept(members)}
        return {node for uid, node in kept_slots.items() if asked[uid] != kept[uid]}


def _is_in(node: Node, key: str | None, domains: set[str]) -> bool:
    if key is None:
        return True
    return key in node.labels and (not domains or node.labels[key] in domains)
