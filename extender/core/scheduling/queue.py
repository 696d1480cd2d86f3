"""The queue of gangs: their order, and what wakes those that did not fit.

As kube-scheduler's queue it has three parts:

    dirty, woken, due -------> active -- planned --> binding cycle
         ^        ^              |                        |
         |        |              +-- refused --+          +-- given up --+
         |        |                            v                         v
         |        +-- what could help -- unschedulable <-- over -- backoff (`QueueEntry.back_off`)
         |            it has changed      (`UnschedulableGroups`)
         +-- its time (`QueueEntry.retry_by`) --+

A gang is active for one look: then it has a plan, or it is unschedulable, and a hint says what room could help it. A
gang that is changed itself (its members, their shapes) is active at once.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from extender.core.feature import Feature
from extender.core.scheduling.effects import Context
from extender.core.scheduling.group import GroupState
from extender.core.scheduling.planning import KeptSlotPlanner, Planning
from extender.core.scheduling.planning_tasks import PlanningTasks
from extender.core.scheduling.unschedulable import UnschedulableGroups
from serried.api.names import GroupKey
from serried.api.verdict import Verdict
from serried.plan.request import Ageing, Plan, PlanRequest, Turn, Waiting, order_groups

_REVIEW_SECONDS = 30.0
"""How often it is looked which priorities there are: waiting raises a gang from one of them to the next."""


class QueueOrder:
    """Says which of two groups is before the other by now."""

    def __init__(self, context: Context) -> None:
        self._priorities = context.store.priorities
        self._vacancies = context.store.vacancies
        self._features = context.features
        self._clock = context.clock
        self._ageing = Ageing(context.options.ageing_seconds)

    def describe(self, group: GroupKey, state: GroupState | None) -> Waiting:
        """A group as the queue sees it; ``state`` is what is remembered of it."""
        # A member that has just ended counts at once: whoever was looked at first would get the room.
        broken = group in self._vacancies or (state is not None and bool(state.memory) and self._is_urgent(state))
        since = state.quorum_since if state is not None else None
        rejected = state is not None and state.refusals.rejection is not None
        return Waiting(group, self._priorities.of_group(group), math.inf if since is None else since, broken, rejected)

    def _is_urgent(self, state: GroupState) -> bool:
        return any(feature.is_urgent(state) for feature in self._features[Feature.is_urgent])

    def sort(self, waiting: Iterable[Waiting]) -> list[Waiting]:
        """The first one first."""
        return order_groups(waiting, self._ageing, self._clock())

    def precedes(self, first: Waiting, second: Waiting) -> bool:
        """Whether one group is before another."""
        now = self._clock()
        return self._ageing.place(first, now) < self._ageing.place(second, now)

    def turn_of(self, waiting: Waiting) -> Turn:
        """Where a group stands by now."""
        return self._ageing.place(waiting, self._clock())

    def raised_priority(self, waiting: Waiting) -> int:
        """The priority with which a group counts by now."""
        return self._ageing.raise_priority(waiting, self._clock())

    def note_levels(self) -> None:
        """Look which priorities there are: waiting raises a gang from one of these to the next."""
        self._ageing = replace(self._ageing, levels=sorted(self._priorities.list_levels()))


class Queue:
    """Gangs that wait for room. Synchronous, so that nothing changes between a plan and what it leads to.

    ``clock`` gives loop seconds.
    """

    def __init__(self, context: Context, planning_tasks: PlanningTasks, planning: Planning) -> None:
        self.unschedulable = UnschedulableGroups(context.store.nodes, context.store.occupancy.used)
        self.order = QueueOrder(context)
        self._features = context.features
        self._planning_tasks = planning_tasks
        self._planner = KeptSlotPlanner(context.store, planning.plan)
        self._occupancy = context.store.occupancy
        self._nominations = context.store.nominations

        self._clock = context.clock

        self._woken: set[GroupKey] = set()
        """Gangs that are to be planned again, until somebody takes them."""

        self._reviewed = -math.inf
        """When the priorities were looked at last, in loop seconds."""

    def __contains__(self, group: GroupKey) -> bool:
        """Whether a gang waits for room."""
        return group in self.unschedulable

    # --- order -------------------------------------------------------------------------------------------------

    def describe(self, group: GroupKey, state: GroupState | None) -> Waiting:
        """A group as the queue sees it; ``state`` is what is remembered of it."""
        return self.order.describe(group, state)

    def turn_of(self, waiting: Waiting) -> Turn:
        """Where a group stands by now: of two, the one with the smaller turn goes first."""
        return self.order.turn_of(waiting)

    def counts_as(self, waiting: Waiting) -> int:
        """The priority with which a group counts by now."""
        return self.order.raised_priority(waiting)

    def closed_to(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return the nodes that a gang must not use by now, as they are kept for others and do not hold both."""
        closed = frozenset[str]()
        for feature in self._features[Feature.closed_to]:
            if feature.busy:
                closed |= feature.closed_to(waiting, request)
        return closed

    def list_kept(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return the nodes that members of a gang must not use unless its plan has placed them there."""
        kept = frozenset[str]()
        for feature in self._features[Feature.kept_from]:
            if feature.busy:
                kept |= feature.kept_from(waiting, request)
        return kept

    # --- plans -------------------------------------------------------------------------------------------------

    def plan(self, waiting: Waiting, request: PlanRequest) -> Plan | Verdict:
        """The plan of a gang whose turn it is, which takes nothing that is kept for others; else why not.

        Raises Unfinished if the planner does; the gang is out of the unschedulable groups then.
        """
        self.unschedulable.leave(waiting.group)
        answer = self._planner.plan(request)
        if isinstance(answer, Verdict):
            return self._refuse(waiting, request, answer)
        for feature in self._features[Feature.filter]:
            if feature.busy and isinstance(answer, Plan):
                answer = feature.filter(waiting, request, answer)
        if isinstance(answer, Plan):
            self._tell_left(waiting.group, placed=True)
        return answer

    def _refuse(self, waiting: Waiting, request: PlanRequest, refusal: Verdict) -> Verdict:
        self.put_back(waiting.group, request, refusal)
        for feature in self._features[Feature.unschedulable]:
            refusal = feature.unschedulable(waiting, request, refusal)
        return refusal

    def put_back(self, group: GroupKey, request: PlanRequest, refusal: Verdict) -> None:
        """A gang was refused: it waits for the room that the request asks for."""
        put = self.unschedulable.put_late if self._planning_tasks.is_stale(group) else self.unschedulable.put
        put(group, request, refusal)

    def plan_beside(self, request: PlanRequest) -> Plan | Verdict:
        """A plan for a gang that has one already, of which some nodes are closed to it. Raises Unfinished."""
        return self._planner.plan(request)

    def note_preempting(self, group: GroupKey) -> None:
        """A gang gets room that others leave: none is kept for it any more."""
        self._tell_left(group, placed=True)

    def note_begun(self, group: GroupKey) -> None:
        """A gang has got its cycle: nothing that is freed has to wake it."""
        self.unschedulable.leave(group)

    def put_aside(self, group: GroupKey, request: PlanRequest) -> None:
        """A gang has just given back what it held: only what others free from now on is news to it."""
        self._woken |= self._take_freed()
        self.leave(group)
        self.unschedulable.put_aside(group, request)

    def leave(self, group: GroupKey) -> None:
        """A gang does not wait for room any more: it has lost its quorum, needs nothing, or is gone."""
        self.unschedulable.leave(group)
        self._planning_tasks.forget(group)
        self._tell_left(group, placed=False)

    def _tell_left(self, group: GroupKey, *, placed: bool) -> None:
        for feature in self._features[Feature.left]:
            if feature.busy:
                feature.left(group, placed=placed)

    def end_term(self) -> None:
        """Another instance may lead from now on: nobody waits for a plan any more."""
        self._planning_tasks.clear()

    # --- wake-ups ----------------------------------------------------------------------------------------------

    def take_woken(self) -> set[GroupKey]:
        """The gangs that what has been freed could help, and those that are roused."""
        woken = self._woken | self._take_freed()
        self._woken = set()
        return woken

    def review(self) -> None:
        """Look which priorities there are by now. Called about twice a second."""
        now = self._clock()
        if now - self._reviewed >= _REVIEW_SECONDS:
            self._reviewed = now
            self.order.note_levels()

    def _take_freed(self) -> set[GroupKey]:
        freed, reached = self._occupancy.freed_nodes.take(), self._occupancy.freed_nodes.take_reached()
        withdrawn = self._nominations.withdrawn_nodes.take()
        return self.unschedulable.wake(freed, withdrawn, reached)

    def rouse(self, group: GroupKey) -> None:
        """Have a gang planned again that waits for room."""
        self.unschedulable.leave(group)
        self._woken.add(group)
