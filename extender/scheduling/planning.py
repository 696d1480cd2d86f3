"""Who asks for plans: the group scheduler, which can wait for one, and cycles, which cannot."""

import math
from collections.abc import Callable, Iterable

from extender.scheduling.group_state import GroupState
from extender.scheduling.groups import Groups
from extender.scheduling.studies import GO, STRAIGHT, URGENT, Studies, Unfinished
from serried.cluster.store import Store
from serried.cluster.vacancies import Vacancy
from serried.metrics import ExtenderMetrics
from serried.model.group import GroupKey
from serried.model.plan import Plan, PlanRequest
from serried.model.verdict import Reason, Verdict

_SOON = 0.5
"""What was refused while room was freed elsewhere is planned again after so many seconds at the earliest."""

_LASTING = frozenset(
    {
        *(Reason.NO_CAPACITY, Reason.NO_DOMAIN_FITS, Reason.DOMAIN_FULL, Reason.GROUPS_UNPLACED, Reason.BEHIND_HEAD),
        *(Reason.PLAN_UNFINISHED, Reason.PLAN_OUTDATED, Reason.DEADLINE_EXCEEDED, Reason.RECORD_FAILED, Reason.BROKEN),
    }
)
"""Reasons that hold until the next plan is there."""


class Planning:
    """Plans for groups. Every method is synchronous.

    ``vain`` counts the seconds of work that straight plans took which were refused; whoever reads it sets it back.
    """

    def __init__(
        self,
        store: Store,
        studies: Studies,
        groups: Groups,
        clock: Callable[[], float],
        *,
        metrics: ExtenderMetrics,
    ) -> None:
        self.vain = 0.0
        self._store = store
        self._studies = studies
        self._groups = groups
        self._clock = clock
        self._metrics = metrics

    def plan(self, ask: PlanRequest, leaving: Iterable[Vacancy] = (), straight: float = STRAIGHT) -> Plan | Verdict:
        """The plan, or why there is none, as of now. Raises Unfinished; ``straight`` as in `Studies.plan`."""
        answer = self._studies.plan(ask, leaving, straight)
        found: Plan | Verdict = answer.found
        if answer.seconds is not None:
            self._metrics.planned(found.reason.value if isinstance(found, Verdict) else "Planned", answer.seconds)
            # Who takes longer than that has a pause of its own.
            self.vain += answer.seconds if isinstance(found, Verdict) and answer.seconds <= GO else 0.0
        return found

    def plan_at_once(self, ask: PlanRequest, leaving: Iterable[Vacancy] = ()) -> Plan | Verdict:
        """As ``plan`` for a cycle, which can do without: a plan that is not there yet is none for now.

        The cycle's group is looked at again when it is. Late members wait for the pause after a plan in vain.
        """
        group = self._store.members.group_of(ask.members[0].uid)
        gang = self._groups.states.get(group) if group is not None and not ask.need else None
        unfinished = Verdict(Reason.PLAN_UNFINISHED, need=len(ask.members))
        if gang is not None and self._clock() < gang.not_before:
            return unfinished
        try:
            found = self.plan(ask, leaving, URGENT if ask.need else STRAIGHT)
        except Unfinished:
            return unfinished
        toll = self._studies.collect(ask)
        if gang is not None and isinstance(found, Verdict) and toll.pause:
            gang.not_before = self._clock() + toll.pause
        return found

    def describe_wait(self, gang: GroupState, ask: PlanRequest) -> Verdict | None:
        """What is said of a gang whose plan is being made; None if what the last plan was refused for says more."""
        told = gang.verdict is not None and gang.verdict.reason in _LASTING
        return None if told else Verdict(Reason.PLANNING, need=ask.need or len(ask.members))

    def rest(self, gang: GroupState, group: GroupKey, refusal: Verdict) -> None:
        """A gang was refused: if that took long, it is planned again after a pause in proportion."""
        now, toll = self._clock(), self._studies.settle(group)
        if toll.pause:
            gang.not_before = now + toll.pause
        if toll.stale or refusal.reason is Reason.PLAN_UNFINISHED:
            gang.retry_at = min(gang.retry_at, now + max(toll.pause, _SOON))

    def is_due(self, gang: GroupState) -> bool:
        """Whether a time has come for which a gang waits. Once: who cannot be planned then waits for a change."""
        now = self._clock()
        rested, again = 0 < gang.not_before <= now, gang.cycle is None and gang.retry_at <= now
        if rested:
            gang.not_before = 0.0
            if gang.cycle is not None:
                gang.cycle.refilled = ()
        if again:
            gang.retry_at = math.inf
            gang.tried = ()
        return rested or again
