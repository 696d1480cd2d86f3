"""The queue of gangs: their order, what wakes those that did not fit, and what the first of these keeps from others."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from extender.scheduling.backfill import PATIENCE, Backfill, Mode
from extender.scheduling.studies import Studies, Unfinished
from serried.cluster.backlog import Backlog
from serried.cluster.store import Store
from serried.metrics import ExtenderMetrics
from serried.model.group import BARE_KINDS, GroupKey, PodGroup
from serried.model.plan import Plan, PlanRequest
from serried.model.verdict import Verdict
from serried.plan.forecast import Forecast
from serried.plan.order import Ageing, Waiting, order_groups

_REVIEW = 30.0
"""So often the first of the gangs that do not fit is looked for, in seconds: waiting alone may change who it is."""

_TRIED = 4
"""So many gangs at a time are asked whether room can be kept for them."""

Planner = Callable[[PlanRequest], Plan | Verdict]


class Queue:
    """Gangs that wait for room. Synchronous, so that nothing changes between a plan and what it leads to.

    ``planner`` finds the nodes of a gang whose turn it is. ``ageing`` is after how many seconds a gang counts as of the
    next higher priority (infinite for never).
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float],
        wall: Callable[[], float],
        *,
        studies: Studies,
        planner: Planner,
        metrics: ExtenderMetrics,
        mode: Mode = Mode.FORECAST,
        patience: float = PATIENCE,
        ageing: float = math.inf,
    ) -> None:
        self.backlog = Backlog(store.nodes, store.occupancy.used)
        self.backfill = Backfill(
            store,
            clock,
            wall,
            metrics=metrics,
            precedes=self.precedes,
            studies=studies,
            mode=mode,
            patience=patience,
        )
        self._studies = studies
        self._planner = planner
        self._store, self._clock = store, clock
        self._ageing = Ageing(ageing)
        self._contenders: dict[GroupKey, Waiting] = {}
        # Refused gangs whose forecast is being made.
        self._unforeseen: dict[GroupKey, tuple[PlanRequest, Verdict]] = {}
        self._woken: set[GroupKey] = set()
        self._reviewed = -math.inf

    def __contains__(self, group: GroupKey) -> bool:
        """Whether a gang waits for room."""
        return group in self.backlog

    # --- order -------------------------------------------------------------------------------------------------

    def describe(self, group: GroupKey, since: float | None, *, broken: bool = False) -> Waiting:
        """A group as the queue sees it; ``since`` is when its quorum stood first, None if it does not."""
        priority = self._find_priority(group, self._store.groups.get(group))
        return Waiting(group, priority, math.inf if since is None else since, broken)

    def _find_priority(self, key: GroupKey, group: PodGroup | None) -> int:
        if group is None:
            return 0
        if group.key.kind in BARE_KINDS:  # its pods alone have one
            return min((pod.priority for pod in self._store.members.of_group(key)), default=0)
        return group.priority or 0

    def order(self, waiting: Iterable[Waiting]) -> list[Waiting]:
        """The first one first."""
        return order_groups(waiting, self._ageing, self._clock())

    def precedes(self, first: Waiting, second: Waiting) -> bool:
        """Whether one group is before another in the queue."""
        now = self._clock()
        return self._ageing.place(first, now) < self._ageing.place(second, now)

    def counts_as(self, waiting: Waiting) -> int:
        """The priority that a group counts with by now."""
        return self._ageing.raised(waiting, self._clock())

    def closed_to(self, waiting: Waiting, ask: PlanRequest) -> frozenset[str]:
        """The nodes that a gang must not use by what was decided when it was planned last."""
        return self.backfill.closed_to(waiting, ask)

    # --- plans -------------------------------------------------------------------------------------------------

    def plan(self, waiting: Waiting, ask: PlanRequest) -> Plan | Verdict:
        """The plan of a gang whose turn it is, which takes nothing that is kept for the head; else why not.

        Raises Unfinished if the planner does; the gang is out of the backlog then.
        """
        group, before = waiting.group, self._forecast()
        self.backfill.forget_pass(group)
        self.backlog.leave(group)
        answer = self._planner(ask)
        if isinstance(answer, Verdict):
            answer = self._refuse(waiting, ask, answer)
        else:
            closed = self.backfill.closed_to(waiting, ask)
            if not closed.isdisjoint(answer.nodes.values()) and not self.backfill.let_pass(group, ask):
                answer = self._plan_beside(group, ask.avoiding(closed))
        if isinstance(answer, Plan):
            self._contenders.pop(group, None)
            self._unforeseen.pop(group, None)
            self.backfill.placed(group)
        self._wake_if_changed(before)
        return answer

    def _refuse(self, waiting: Waiting, ask: PlanRequest, refusal: Verdict) -> Verdict:
        group = waiting.group
        self.backlog.put(group, ask, refusal)
        self._contenders.pop(group, None)
        self._unforeseen.pop(group, None)
        if self.backfill.is_eligible(group, ask, refusal):
            try:
                contends = self.backfill.contend(waiting, ask)
            except Unfinished:
                self._unforeseen[group] = ask, refusal
                contends = group in self.backfill
            if contends:
                self._contenders[group] = waiting
        return self.backfill.explain(group, refusal)

    def foresee(self, waiting: Waiting) -> Verdict | None:
        """Go on with a refused gang whose forecast may be there now; what is to be said of it then."""
        found = self._unforeseen.get(waiting.group)
        if found is None or waiting.group not in self.backlog:
            return None
        before = self._forecast()
        answer = self._refuse(waiting, *found)
        self._wake_if_changed(before)
        return answer

    def _plan_beside(self, group: GroupKey, ask: PlanRequest) -> Plan | Verdict:
        answer = self._planner(ask)
        if isinstance(answer, Plan):
            return answer
        self._contenders.pop(group, None)
        self.backlog.put(group, ask, answer)
        return self.backfill.refuse(ask)

    def note_begun(self, group: GroupKey) -> None:
        """A gang has got its cycle: nothing that is freed has to wake it."""
        self.backlog.leave(group)

    def put_aside(self, group: GroupKey, ask: PlanRequest) -> None:
        """A gang has just given back what it held: only what others free from now on is news to it."""
        self._woken |= self._take_freed()
        self.leave(group)
        self.backlog.put_aside(group, ask)

    def leave(self, group: GroupKey) -> None:
        """A gang does not wait for room any more: it has lost its quorum, needs nothing, or is gone."""
        before = self._forecast()
        self.backlog.leave(group)
        self._contenders.pop(group, None)
        self._unforeseen.pop(group, None)
        self._studies.forget(group)
        self.backfill.withdraw(group)
        self._wake_if_changed(before)

    # --- wake-ups ----------------------------------------------------------------------------------------------

    def take_woken(self) -> set[GroupKey]:
        """The gangs that what has been freed could help, and those that the head no longer keeps away."""
        woken, self._woken = self._woken | self._take_freed(), set()
        return woken

    def review(self) -> None:
        """Look at the head as time passes; may wake gangs. Called about twice a second."""
        now, before = self._clock(), self._forecast()
        for group in self.backfill.review():
            self._rouse(group)
        self._wake_if_changed(before)
        head = self.backfill.head
        if now - self._reviewed < _REVIEW and (head is not None or not self._contenders):
            return
        self._reviewed = now
        self._ageing = replace(self._ageing, levels=sorted({g.priority or 0 for g in self._store.groups.values()}))
        for waiting in self.order(self._contenders.values())[:_TRIED]:
            if head is None or self.precedes(waiting, head.waiting):
                self._rouse(waiting.group)

    def _take_freed(self) -> set[GroupKey]:
        return self.backlog.wake(
            self._store.occupancy.freed_nodes.take(), self._store.nominations.withdrawn_nodes.take()
        )

    def _rouse(self, group: GroupKey) -> None:
        self.backlog.leave(group)
        self._woken.add(group)

    def _forecast(self) -> Forecast | None:
        head = self.backfill.head
        return None if head is None else head.forecast

    def _wake_if_changed(self, before: Forecast | None) -> None:
        """Wake those who were kept away from nodes by another forecast: these may be free now, or for longer."""
        if before is not None and before is not self._forecast():
            for group in self.backlog:
                if self.backlog.closed_to(group):
                    self._rouse(group)
