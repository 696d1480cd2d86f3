"""Who asks for plans: the group scheduler, which can wait for one, and cycles, which cannot."""

import math
from collections.abc import Callable, Iterable

from extender.scheduling.group import Groups, GroupState
from extender.scheduling.studies import GO_SECONDS, STRAIGHT_SECONDS, URGENT_SECONDS, Studies, Unfinished
from serried.api.names import GroupKey
from serried.api.verdict import Reason, Verdict
from serried.cluster.members import Members
from serried.cluster.usage import Vacancy
from serried.ops.metrics import ExtenderMetrics
from serried.plan.request import Plan, PlanRequest

_SOON_SECONDS = 0.5
"""What was refused while room was freed elsewhere is planned again after this time at the earliest."""

_LASTING = frozenset(
    {
        Reason.BEHIND_HEAD,
        Reason.BROKEN,
        Reason.DEADLINE_EXCEEDED,
        Reason.DOMAIN_FULL,
        Reason.GROUPS_UNPLACED,
        Reason.NO_CAPACITY,
        Reason.NO_DOMAIN_FITS,
        Reason.PLAN_OUTDATED,
        Reason.PLAN_UNFINISHED,
        Reason.RECORD_FAILED,
    }
)
"""Reasons that hold until the next plan is there."""


class Planning:
    """Plans for groups. Every method is synchronous. ``clock`` gives loop seconds."""

    def __init__(
        self,
        members: Members,
        studies: Studies,
        groups: Groups,
        clock: Callable[[], float],
        *,
        metrics: ExtenderMetrics,
    ) -> None:
        self.vain_seconds = 0.0
        """The work of straight plans that were refused; whoever reads it sets it back."""

        self._members = members
        self._studies = studies
        self._groups = groups
        self._clock = clock
        self._metrics = metrics

    def plan(
        self, request: PlanRequest, leaving: Iterable[Vacancy] = (), straight_seconds: float = STRAIGHT_SECONDS
    ) -> Plan | Verdict:
        """The plan, or why there is none, as of now. Raises Unfinished; ``straight_seconds`` as in `Studies.plan`."""
        answer = self._studies.plan(request, leaving, straight_seconds)
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
        if state is not None and self._clock() < state.not_before:
            return unfinished
        try:
            found = self.plan(request, leaving, URGENT_SECONDS if request.need else STRAIGHT_SECONDS)
        except Unfinished:
            return unfinished
        toll = self._studies.collect(request)
        if state is not None and isinstance(found, Verdict) and toll.pause:
            state.not_before = self._clock() + toll.pause
        return found

    def describe_wait(self, state: GroupState, request: PlanRequest) -> Verdict | None:
        """What is said of a gang whose plan is being made; None if what the last plan was refused for says more."""
        lasting = state.verdict is not None and state.verdict.reason in _LASTING
        return None if lasting else Verdict(Reason.PLANNING, need=request.need or len(request.members))

    def rest(self, state: GroupState, group: GroupKey, refusal: Verdict) -> None:
        """A gang was refused: if that took long, it is planned again after a pause in proportion."""
        now = self._clock()
        toll = self._studies.settle(group)
        if toll.pause:
            state.not_before = now + toll.pause
        if toll.stale or refusal.reason is Reason.PLAN_UNFINISHED:
            state.retry_at = min(state.retry_at, now + max(toll.pause, _SOON_SECONDS))

    def settle(self, group: GroupKey) -> None:
        """A group was planned: what its plans in vain have cost is forgotten."""
        self._studies.settle(group)

    def end_term(self) -> None:
        """Another instance may lead from now on: nobody waits for a plan any more."""
        self._studies.clear()

    def is_due(self, state: GroupState) -> bool:
        """Whether a time has come for which a gang waits. Once: who cannot be planned then waits for a change."""
        now = self._clock()
        rested = 0 < state.not_before <= now
        again = state.cycle is None and state.retry_at <= now
        if rested:
            state.not_before = 0.0
            if state.cycle is not None:
                state.cycle.note_refill(())
        if again:
            state.retry_at = math.inf
            state.tried = ()
        return rested or again
