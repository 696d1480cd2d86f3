"""The queue of gangs: their order, what wakes those that did not fit, and what the first of these keeps from others.

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
from heapq import nsmallest
from itertools import islice

from extender.core.scheduling.effects import Context
from extender.core.scheduling.group import GroupState
from extender.core.scheduling.planning import KeptSlotPlanner, Planning
from extender.core.scheduling.planning_tasks import PlanningTasks, Unfinished
from extender.core.scheduling.unschedulable import QueueOrder, UnschedulableGroups
from extender.features.backfill import Backfill
from serried.api.names import GroupKey
from serried.api.verdict import Verdict
from serried.plan.forecast import Forecast
from serried.plan.request import Plan, PlanRequest, Turn, Waiting
from serried.plan.steps import Work

_REVIEW_SECONDS = 30.0
"""How often the first of the gangs that do not fit is looked for: waiting alone may change who it is."""

_MAX_CANDIDATES = 4
"""How many gangs at a time are asked whether room can be kept for them."""

_CONTENDERS_PER_STEP = 500
"""Among how many gangs the first ones are looked for in one step."""


class Queue:
    """Gangs that wait for room. Synchronous, so that nothing changes between a plan and what it leads to.

    ``clock`` gives loop seconds.
    """

    def __init__(self, context: Context, planning_tasks: PlanningTasks, planning: Planning) -> None:
        self.unschedulable = UnschedulableGroups(context.store.nodes, context.store.occupancy.used)
        self._order = QueueOrder(context)
        self.backfill = Backfill(context, self._order, planning_tasks)
        self._planning_tasks = planning_tasks
        self._planner = KeptSlotPlanner(context.store, planning.plan)
        self._occupancy = context.store.occupancy
        self._nominations = context.store.nominations
        self._clock = context.clock

        self._contenders: dict[GroupKey, Waiting] = {}
        """Refused gangs for which room could be kept."""

        self._unforeseen: dict[GroupKey, tuple[Waiting, PlanRequest, Verdict]] = {}
        """Refused gangs whose forecast is being made: as the queue sees them, what was asked for, and the refusal."""

        self._behind: set[GroupKey] = set()
        """Gangs that would fit but for the head."""

        self._woken: set[GroupKey] = set()
        """Gangs that are to be planned again, until somebody takes them."""

        self._reviewed = -math.inf
        """When the first of the contenders was looked for last, in loop seconds."""

    def __contains__(self, group: GroupKey) -> bool:
        """Whether a gang waits for room."""
        return group in self.unschedulable

    # --- order -------------------------------------------------------------------------------------------------

    def describe(self, group: GroupKey, state: GroupState | None) -> Waiting:
        """A group as the queue sees it; ``state`` is what is remembered of it."""
        return self._order.describe(group, state)

    def order(self, waiting: Iterable[Waiting]) -> list[Waiting]:
        """The first one first."""
        return self._order.sort(waiting)

    def turn_of(self, waiting: Waiting) -> Turn:
        """Where a group stands by now: of two, the one with the smaller turn goes first."""
        return self._order.turn_of(waiting)

    def counts_as(self, waiting: Waiting) -> int:
        """The priority with which a group counts by now."""
        return self._order.raised_priority(waiting)

    def closed_to(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """The nodes that a gang must not use by what was decided when it was planned last."""
        return self.backfill.closed_to(waiting, request) if self.backfill.head is not None else frozenset()

    def list_kept(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return the nodes that members of a gang must not use unless its plan has placed them there."""
        return self.backfill.list_kept(waiting, request) if self.backfill.head is not None else frozenset()

    # --- plans -------------------------------------------------------------------------------------------------

    def plan(self, waiting: Waiting, request: PlanRequest) -> Plan | Verdict:
        """The plan of a gang whose turn it is, which takes nothing that is kept for the head; else why not.

        Raises Unfinished if the planner does; the gang is out of the unschedulable groups then.
        """
        group = waiting.group
        before = self._forecast()
        if self.backfill.head is not None:
            self.backfill.forget_pass(group)
        self.unschedulable.leave(group)
        self._behind.discard(group)
        answer = self._planner.plan(request)
        if isinstance(answer, Verdict):
            answer = self._refuse(waiting, request, answer)
        else:
            closed = self.closed_to(waiting, request)
            if not closed.isdisjoint(answer.nodes.values()) and not self.backfill.let_pass(group, request):
                answer = self._plan_beside(group, request, closed)
        if isinstance(answer, Plan):
            self._contenders.pop(group, None)
            self._unforeseen.pop(group, None)
            if group in self.backfill.contenders:
                self.backfill.placed(group)
        self._wake_if_changed(before)
        return answer

    def _refuse(self, waiting: Waiting, request: PlanRequest, refusal: Verdict) -> Verdict:
        self._put_back(waiting.group, request, refusal)
        return self._contend(waiting, request, refusal)

    def _put_back(self, group: GroupKey, request: PlanRequest, refusal: Verdict) -> None:
        put = self.unschedulable.put_late if self._planning_tasks.is_stale(group) else self.unschedulable.put
        put(group, request, refusal)

    def _contend(self, waiting: Waiting, request: PlanRequest, refusal: Verdict) -> Verdict:
        """Room may be kept for a gang that was refused, now or when its forecast is there; what is said of it."""
        group = waiting.group
        self._contenders.pop(group, None)
        self._unforeseen.pop(group, None)
        if not waiting.rejected and self.backfill.is_eligible(group, request, refusal):
            try:
                contends = self._has_turn_later(waiting) or self.backfill.contend(waiting, request)
            except Unfinished:
                self._unforeseen[group] = (waiting, request, refusal)
                contends = group in self.backfill
            if contends:
                self._contenders[group] = waiting
        return self.backfill.explain(group, refusal)

    def _has_turn_later(self, waiting: Waiting) -> bool:
        """Whether forecasts are being made for enough gangs of the namespace that are before this one.

        It contends all the same: the next look at those who do asks it if they did not fit.
        """
        before = (
            other
            for other, _, _ in self._unforeseen.values()
            if other.group.namespace == waiting.group.namespace and self._order.precedes(other, waiting)
        )
        return len(list(islice(before, _MAX_CANDIDATES))) == _MAX_CANDIDATES

    def foresee(self, waiting: Waiting) -> Verdict | None:
        """Go on with a refused gang whose forecast may be there now; what is to be said of it then."""
        found = self._unforeseen.get(waiting.group)
        if found is None or waiting.group not in self.unschedulable:
            return None
        before = self._forecast()
        _, request, refusal = found
        # The unschedulable groups goes on with what it knows: room that was freed since the refusal counts.
        answer = self._contend(waiting, request, refusal)
        self._wake_if_changed(before)
        return answer

    def _plan_beside(self, group: GroupKey, request: PlanRequest, closed: frozenset[str]) -> Plan | Verdict:
        answer = self._planner.plan(request.avoiding(closed))
        if isinstance(answer, Plan):
            return answer
        self._contenders.pop(group, None)
        self._behind.add(group)
        # What is freed on the head's other nodes may leave enough for both.
        self._put_back(group, request.avoiding(closed & self.backfill.find_narrow(request)), answer)
        return self.backfill.refuse(request)

    def note_preempting(self, group: GroupKey) -> None:
        """A gang gets room that others leave: none is kept for it any more."""
        before = self._forecast()
        self._contenders.pop(group, None)
        self._unforeseen.pop(group, None)
        self.backfill.placed(group)
        self._wake_if_changed(before)

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
        before = self._forecast()
        self.unschedulable.leave(group)
        self._behind.discard(group)
        self._contenders.pop(group, None)
        self._unforeseen.pop(group, None)
        self._planning_tasks.forget(group)
        self.backfill.withdraw(group)
        self._wake_if_changed(before)

    def end_term(self) -> None:
        """Another instance may lead from now on: nobody waits for a plan any more."""
        self._planning_tasks.clear()

    # --- wake-ups ----------------------------------------------------------------------------------------------

    def take_woken(self) -> set[GroupKey]:
        """The gangs that what has been freed could help, and those that the head no longer keeps away."""
        woken = self._woken | self._take_freed()
        self._woken = set()
        return woken

    def review(self) -> Work[None]:
        """Look at the head as time passes; may wake gangs. Called about twice a second."""
        now = self._clock()
        before = self._forecast()
        for group in self.backfill.review():
            self._rouse(group)
        self._wake_if_changed(before)
        head = self.backfill.head
        if now - self._reviewed < _REVIEW_SECONDS and (head is not None or not self._contenders):
            return
        self._reviewed = now
        self._order.note_levels()
        first: list[tuple[Turn, GroupKey]] = []
        rest = iter(list(self._contenders.values()))
        while some := [(self.turn_of(waiting), waiting.group) for waiting in islice(rest, _CONTENDERS_PER_STEP)]:
            first = nsmallest(_MAX_CANDIDATES, [*first, *some])
            if len(some) == _CONTENDERS_PER_STEP:
                yield
        head = self.backfill.head
        for _, group in first:
            waiting = self._contenders.get(group)
            if waiting is not None and (head is None or self._order.precedes(waiting, head.waiting)):
                self._rouse(group)

    def _take_freed(self) -> set[GroupKey]:
        freed, neighbours = self._occupancy.freed_nodes.take(), self._occupancy.freed_nodes.take_neighbours()
        withdrawn = self._nominations.withdrawn_nodes.take()
        return self.unschedulable.wake(freed, withdrawn, neighbours)

    def _rouse(self, group: GroupKey) -> None:
        self.unschedulable.leave(group)
        self._woken.add(group)

    def _forecast(self) -> Forecast | None:
        head = self.backfill.head
        return None if head is None else head.forecast

    def _wake_if_changed(self, before: Forecast | None) -> None:
        """Wake those who were kept away from nodes by another forecast: these may be free now, or for longer."""
        if before is not None and before is not self._forecast():
            for group in self._behind:
                if group in self.unschedulable:
                    self._rouse(group)
            self._behind.clear()
