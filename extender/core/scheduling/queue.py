"""The queue of gangs: their order, and what requeues gangs that did not fit.

`GroupScheduler` takes gangs from it, and `SchedulingCycle` plans them by `Queue.plan`. Like kube-scheduler's queue it
has three parts:

    dirty, woken, due -------> active -- planned --> binding cycle
         ^        ^              |                        |
         |        |              +-- rejected --+         +-- aborted ----+
         |        |                             v                         v
         |        +-- freed resources -- unschedulable <-- over -- backoff (`QueueEntry.back_off`)
         |            that may help     (`UnschedulableGroups`)
         +-- retry time (`QueueEntry.retry_by`) --+

A gang is active for one try. Then it has a plan, or is unschedulable with a queueing hint: the freed resources that
could help it. A gang is dirty, i.e. active at once, when its members or their shapes change.
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
from serried.plan.request import Ageing, Plan, PlanRequest, QueueKey, Waiting, order_groups

_REFRESH_SECONDS = 30.0
"""The period in seconds in which the priorities that gangs have are listed again.

Ageing raises a waiting gang from one of these priorities to the next.
"""


class QueueOrder:
    """Computes the order of groups in the queue, as of the moment of each call."""

    def __init__(self, context: Context) -> None:
        self._priorities = context.store.priorities
        self._vacancies = context.store.vacancies
        self._features = context.features
        self._clock = context.clock
        self._ageing = Ageing(context.options.ageing_seconds)

    def describe(self, group: GroupKey, state: GroupState | None) -> Waiting:
        """Return the values that decide a group's place in the queue, such as its priority.

        ``state`` is None for a group that the scheduler has not seen yet.
        """
        # A member that has just ended counts at once, or the gang that is considered first would get its resources.
        broken = group in self._vacancies or (state is not None and bool(state.memory) and self._is_urgent(state))
        since = state.quorum_since if state is not None else None
        rejected = state is not None and state.refusals.rejection is not None
        return Waiting(group, self._priorities.of_group(group), math.inf if since is None else since, broken, rejected)

    def _is_urgent(self, state: GroupState) -> bool:
        return any(feature.is_urgent(state) for feature in self._features[Feature.is_urgent])

    def sort(self, waiting: Iterable[Waiting]) -> list[Waiting]:
        """Return the groups in queue order."""
        return order_groups(waiting, self._ageing, self._clock())

    def precedes(self, first: Waiting, second: Waiting) -> bool:
        """Return whether the first group goes before the second."""
        now = self._clock()
        return self._ageing.sort_key(first, now) < self._ageing.sort_key(second, now)

    def sort_key(self, waiting: Waiting) -> QueueKey:
        """Return the sort key of a group as of now: the group with the smallest key goes first."""
        return self._ageing.sort_key(waiting, self._clock())

    def raised_priority(self, waiting: Waiting) -> int:
        """Return the priority of a group as of now: the longer it waits, the more its priority is raised (ageing)."""
        return self._ageing.raise_priority(waiting, self._clock())

    def refresh_priorities(self) -> None:
        """Update the list of priorities that gangs have at present.

        A gang that waits is raised from one priority of this list to the next (ageing).
        """
        self._ageing = replace(self._ageing, levels=sorted(self._priorities.list_values()))


class Queue:
    """The gangs that wait for free resources. Synchronous, so that nothing changes between a plan and its reservation.

    ``clock`` returns loop seconds.
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
        """The gangs to plan again, until `take_woken` returns them."""

        self._refreshed_at = -math.inf
        """The loop time at which the priorities were last listed."""

    def __contains__(self, group: GroupKey) -> bool:
        """Return whether a gang is unschedulable, i.e. waits until freed resources could help it."""
        return group in self.unschedulable

    # --- order -------------------------------------------------------------------------------------------------

    def describe(self, group: GroupKey, state: GroupState | None) -> Waiting:
        """Return the values that decide a group's place in the queue, such as its priority.

        ``state`` is None for a group that the scheduler has not seen yet.
        """
        return self.order.describe(group, state)

    def sort_key(self, waiting: Waiting) -> QueueKey:
        """Return the sort key of a group as of now: the group with the smallest key goes first."""
        return self.order.sort_key(waiting)

    def raised_priority(self, waiting: Waiting) -> int:
        """Return the priority of a group as of now, raised by ageing."""
        return self.order.raised_priority(waiting)

    def list_closed_nodes(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return the nodes that the plan for the gang ``waiting`` must not use, as features keep them for other gangs.

        A node kept for the head of the queue is not returned if the whole gang ``waiting`` fits on it besides the head.
        """
        closed = frozenset[str]()
        for feature in self._features[Feature.list_closed_nodes]:
            if feature.busy:
                closed |= feature.list_closed_nodes(waiting, request)
        return closed

    def list_kept_nodes(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        """Return all nodes that features keep for other gangs than ``waiting``.

        Members of this gang that get a slot after its plan must not use them.
        """
        kept = frozenset[str]()
        for feature in self._features[Feature.list_kept_nodes]:
            if feature.busy:
                kept |= feature.list_kept_nodes(waiting, request)
        return kept

    # --- plans -------------------------------------------------------------------------------------------------

    def plan(self, waiting: Waiting, request: PlanRequest) -> Plan | Verdict:
        """Plan a gang. Return a plan that respects the nodes kept for other gangs, or the verdict why there is none.

        After a verdict the gang is unschedulable. Raise Unfinished while a child process makes the plan; until
        it is done the gang is not among the unschedulable ones.
        """
        self.unschedulable.leave(waiting.group)
        answer = self._planner.plan(request)
        if isinstance(answer, Verdict):
            return self._refuse(waiting, request, answer)
        for feature in self._features[Feature.filter]:
            if feature.busy and isinstance(answer, Plan):
                answer = feature.filter(waiting, request, answer)
        if isinstance(answer, Plan):
            self._notify_left(waiting.group, placed=True)
        return answer

    def _refuse(self, waiting: Waiting, request: PlanRequest, refusal: Verdict) -> Verdict:
        self.put_back(waiting.group, request, refusal)
        for feature in self._features[Feature.unschedulable]:
            refusal = feature.unschedulable(waiting, request, refusal)
        return refusal

    def put_back(self, group: GroupKey, request: PlanRequest, refusal: Verdict) -> None:
        """Add a gang to the unschedulable ones, after the planner has rejected ``request`` with this verdict."""
        put = self.unschedulable.put_stale if self._planning_tasks.is_stale(group) else self.unschedulable.put
        put(group, request, refusal)

    def plan_again(self, request: PlanRequest) -> Plan | Verdict:
        """Plan a gang once more, after a feature has forbidden more nodes in its request. Return plan or verdict.

        ``request`` is the gang's request without these nodes. Unlike `plan`, this method calls no feature, and does not
        change the queue. Raise Unfinished while a child process makes the plan.
        """
        return self._planner.plan(request)

    def note_preempting(self, group: GroupKey) -> None:
        """Note that a gang gets the resources of victims, so that features keep no other nodes for it any longer."""
        self._notify_left(group, placed=True)

    def note_begun(self, group: GroupKey) -> None:
        """Note that a gang has a binding cycle, so that freed resources do not requeue it."""
        self.unschedulable.leave(group)

    def put_released(self, group: GroupKey, request: PlanRequest) -> None:
        """Add a gang that has just released its slots to the unschedulable ones.

        Other gangs that these resources could help are requeued, but not this gang: its binding cycle has failed.
        """
        self._woken |= self._take_freed()
        self.leave(group)
        self.unschedulable.put_released(group, request)

    def leave(self, group: GroupKey) -> None:
        """Remove a gang that no longer waits: it is placed or deleted, or lacks its quorum.

        Drop its planning tasks, i.e. the long plans and searches that a child process computes for it.
        """
        self.unschedulable.leave(group)
        self._planning_tasks.drop_group(group)
        self._notify_left(group, placed=False)

    def _notify_left(self, group: GroupKey, *, placed: bool) -> None:
        for feature in self._features[Feature.left_queue]:
            if feature.busy:
                feature.left_queue(group, placed=placed)

    def end_term(self) -> None:
        """Drop all planning tasks (work in child processes), because another instance may lead from now on."""
        self._planning_tasks.clear()

    # --- wake-ups ----------------------------------------------------------------------------------------------

    def take_woken(self) -> set[GroupKey]:
        """Return the gangs to plan again, and forget them: freed resources could help them, or they were requeued."""
        woken = self._woken | self._take_freed()
        self._woken = set()
        return woken

    def refresh_periodically(self) -> None:
        """Update the list of priorities, which ageing uses, every `_REFRESH_SECONDS`. Called about twice a second."""
        now = self._clock()
        if now - self._refreshed_at >= _REFRESH_SECONDS:
            self._refreshed_at = now
            self.order.refresh_priorities()

    def _take_freed(self) -> set[GroupKey]:
        freed, reached = self._occupancy.freed_nodes.take(), self._occupancy.freed_nodes.take_reached()
        withdrawn = self._nominations.withdrawn_nodes.take()
        return self.unschedulable.wake(freed, withdrawn, reached)

    def requeue(self, group: GroupKey) -> None:
        """Have an unschedulable gang planned again: the next `take_woken` returns it."""
        self.unschedulable.leave(group)
        self._woken.add(group)
