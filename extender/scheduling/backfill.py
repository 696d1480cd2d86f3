"""Room that is kept for the first gang that does not fit, and who may use it meanwhile (decision 12).

At most one gang, the *head*, has such a reservation: the nodes that are forecast to hold it first. It is memory only,
it ends, and it binds gangs only. A gang behind the head gets a node of these only if it is known to have ended before.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from extender.scheduling.studies import Studies
from serried.cluster.endings import Trust
from serried.cluster.store import Store
from serried.decode.times import write_time
from serried.metrics import ExtenderMetrics
from serried.model.group import GroupKey
from serried.model.plan import PlanRequest, Snapshot
from serried.model.pod import Pod
from serried.model.verdict import Reason, Verdict
from serried.plan.capacity import Capacity
from serried.plan.forecast import Ending, Forecast, solve_forecast
from serried.plan.order import Waiting
from serried.plan.steps import Work

PATIENCE = 600.0
"""For so many seconds beyond its forecast, or without one, room is kept at first."""

_MARGIN = 5.0
"""A gang that passes must have ended so many seconds before the head's forecast: its pods do not start at once."""

_OVERDUE = 10.0
"""A pod that should have ended already is given so many seconds more."""

_REFRESH = 60.0
"""After so many seconds a forecast may be replaced by a better one."""

_STEP = 500
"""So many pods are looked at in one step of a forecast."""

_MOST_TURNS = 12
"""So often, at most, the time for which room is kept is doubled."""

_FORESEEABLE = frozenset({Reason.NO_CAPACITY, Reason.NO_DOMAIN_FITS, Reason.DOMAIN_FULL})


class Mode(StrEnum):
    """Whether room is kept for the head."""

    FORECAST = "forecast"
    OFF = "off"


@dataclass(slots=True)
class Head:
    """The first gang that does not fit. Times are loop seconds.

    ``until`` is when its reservation ends at the latest; ``late`` whether a forecast for it has been missed;
    ``passed`` are the gangs that were let onto its nodes, and when they will have ended; ``told`` is the forecast as
    people read it.
    """

    waiting: Waiting
    forecast: Forecast
    made: float
    until: float
    told: str
    late: bool = False
    passed: dict[GroupKey, float] = field(default_factory=dict)

    @property
    def group(self) -> GroupKey:
        """Whose reservation it is."""
        return self.waiting.group


@dataclass(slots=True)
class _Rest:
    """A gang that has no reservation before ``until``: it had ``turns`` in vain, or none would help it."""

    until: float = -math.inf
    turns: int = 0


class Backfill:
    """The reservation of the head.

    ``wall`` gives seconds since 1970, ``clock`` loop seconds. ``precedes`` is the order of the queue, ``patience`` how
    long room is kept beyond its forecast, or without one, in seconds.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float],
        wall: Callable[[], float],
        *,
        metrics: ExtenderMetrics,
        precedes: Callable[[Waiting, Waiting], bool],
        studies: Studies,
        mode: Mode = Mode.FORECAST,
        patience: float = PATIENCE,
    ) -> None:
        self.head: Head | None = None
        self._studies = studies
        self._store, self._clock, self._wall, self._metrics = store, clock, wall, metrics
        self._precedes, self._mode, self._patience = precedes, mode, patience
        self._promises: dict[GroupKey, float | None] = {}
        self._rests: dict[GroupKey, _Rest] = {}

    def __contains__(self, group: GroupKey) -> bool:
        return self.head is not None and self.head.group == group

    # --- the head ----------------------------------------------------------------------------------------------

    def is_eligible(self, group: GroupKey, ask: PlanRequest, refusal: Verdict) -> bool:
        """Whether room may be kept for a gang that was refused: its quorum is at stake, and it is not resting.

        None is kept for one that is kept from domains: what it waits for is not room alone.
        """
        rest = self._rests.get(group)
        resting = rest is not None and self._clock() < rest.until
        return self._mode is Mode.FORECAST and self._is_foreseeable(ask, refusal) and not resting

    def _is_foreseeable(self, ask: PlanRequest, refusal: Verdict) -> bool:
        return ask.need > 0 and not ask.taken and refusal.reason in _FORESEEABLE

    def contend(self, waiting: Waiting, ask: PlanRequest) -> bool:
        """Make an eligible gang the head if it is the first, or keep it so; whether room could ever hold it.

        Raises Unfinished as long as its forecast is being made.
        """
        head = self.head
        if head is not None and head.group != waiting.group and not self._precedes(waiting, head.waiting):
            return True
        now = self._clock()
        if head is not None and head.group == waiting.group:
            return self._renew(head, waiting, ask, now)
        forecast = self._foresee(waiting.group, ask)
        if forecast is not None:
            turns = self._rests[waiting.group].turns if waiting.group in self._rests else 0
            at = now if forecast.at is None else forecast.at
            until = at + self._patience * 2.0 ** min(turns, _MOST_TURNS)
            self.head = Head(waiting, forecast, now, until, self._tell(forecast), late=turns > 0)
            self._promise(waiting.group, forecast)
        else:
            self._rests.setdefault(waiting.group, _Rest()).until = now + _REFRESH
        return forecast is not None

    def _renew(self, head: Head, waiting: Waiting, ask: PlanRequest, now: float) -> bool:
        head.waiting = waiting
        outdated = self._is_outdated(head, now)
        head.late = head.late or (head.forecast.at is not None and now > head.forecast.at)
        if not outdated and now - head.made < _REFRESH:
            return True
        forecast = self._foresee(head.group, ask)
        if forecast is None:
            self._rests.setdefault(head.group, _Rest()).until = now + _REFRESH
            self.head = None
        elif outdated or _is_better(forecast, head.forecast, now):
            head.forecast, head.told = forecast, self._tell(forecast)
            self._promise(head.group, forecast)
        head.made = now
        return forecast is not None

    def explain(self, group: GroupKey, refusal: Verdict) -> Verdict:
        """The refusal of a gang; that of the head says what is kept for it."""
        if self.head is None or self.head.group != group:
            return refusal
        return replace(refusal, detail=", ".join(part for part in (refusal.detail, self.head.told) if part))

    def review(self) -> list[GroupKey]:
        """End the head's reservation if its time is over; the gangs that are to be planned anew.

        These are the head if its forecast has been missed or cannot hold, and those that have rested.
        """
        now = self._clock()
        due = list(self._take_rested(now))
        if self.head is not None and now >= self.head.until:
            self._give_up(self.head, now)
        elif self.head is not None and self._is_outdated(self.head, now):
            due.append(self.head.group)
        return due

    def _is_outdated(self, head: Head, now: float) -> bool:
        missed = head.forecast.at is not None and now > head.forecast.at
        return missed or not head.forecast.nodes <= self._store.nodes.keys()

    def _take_rested(self, now: float) -> Iterator[GroupKey]:
        for group, rest in self._rests.items():
            if -math.inf < rest.until <= now:
                rest.until = -math.inf
                yield group

    def _give_up(self, head: Head, now: float) -> None:
        # Others have their turn for as long as it had them wait in vain, and then it has a longer one: so nobody
        # waits for ever, neither it nor those that it keeps away.
        rest = self._rests.setdefault(head.group, _Rest())
        rest.until = now + self._patience * 2.0 ** min(rest.turns, _MOST_TURNS)
        rest.turns += 1
        self.head = None

    def placed(self, group: GroupKey) -> None:
        """A gang got its room."""
        if group in self._promises:
            self._metrics.settled(*_judge(self._promises.pop(group), self._clock()))
        self._release(group)

    def withdraw(self, group: GroupKey) -> None:
        """A gang does not wait for room any more, though it got none."""
        if group in self._promises:
            del self._promises[group]
            self._metrics.settled("withdrawn", None)
        self._release(group)

    def _release(self, group: GroupKey) -> None:
        self._rests.pop(group, None)
        if self.head is not None and self.head.group == group:
            self.head = None

    def _promise(self, group: GroupKey, forecast: Forecast) -> None:
        # What counts is what was said first: a forecast that is put off again and again keeps no promise.
        if self._promises.get(group) is None:
            self._promises[group] = forecast.at
            if forecast.at is not None:
                self._metrics.promised(forecast.at - self._clock())

    def seconds_ahead(self) -> float:
        """How far ahead the head's forecast lies; not a number if there is none."""
        at = self.head.forecast.at if self.head is not None else None
        return math.nan if at is None else at - self._clock()

    # --- who may pass ------------------------------------------------------------------------------------------

    def closed_to(self, waiting: Waiting, ask: PlanRequest) -> frozenset[str]:
        """The nodes that are kept from a gang: those of the head, if it is behind that and was not let pass.

        A gang that runs already gets its late members anywhere.
        """
        head = self.head
        if head is None or ask.need == 0 or waiting.group == head.group or waiting.group in head.passed:
            return frozenset()
        return frozenset() if self._precedes(waiting, head.waiting) else head.forecast.nodes

    def let_pass(self, group: GroupKey, ask: PlanRequest) -> bool:
        """Whether a gang behind the head will have ended before the head's forecast; it may use its nodes then."""
        head = self.head
        if head is None or head.forecast.at is None:
            return False
        end = self._end_of(ask, Trust.DEADLINES if head.late else Trust.MEASURED)
        if end is None or end + _MARGIN > head.forecast.at:
            return False
        head.passed[group] = end
        return True

    def forget_pass(self, group: GroupKey) -> None:
        """A gang that was let pass is planned anew: by now it may end too late."""
        if self.head is not None:
            self.head.passed.pop(group, None)

    def refuse(self, ask: PlanRequest) -> Verdict:
        """The verdict of a gang that would fit but for the head."""
        head = self.head
        assert head is not None  # noqa: S101 - narrows for the type checker: nothing is closed without a head
        return Verdict(Reason.BEHIND_HEAD, need=ask.need, key=str(head.group), detail=head.told)

    def _end_of(self, ask: PlanRequest, trust: Trust) -> float | None:
        """When the last member will have ended if all begin now; None if nobody can tell."""
        wall = self._wall()
        ends = [self._store.endings.expect(member, wall, trust) for member in ask.members]
        known = [end for end in ends if end is not None]
        return self._clock() + max(known) - wall if len(known) == len(ends) else None

    # --- forecasts ---------------------------------------------------------------------------------------------

    def _foresee(self, group: GroupKey, ask: PlanRequest) -> Forecast | None:
        def make(snapshot: Snapshot, capacity: Capacity) -> Work[Forecast | None]:
            endings = yield from self._endings(group)
            return (yield from solve_forecast(snapshot, ask, endings, capacity))

        return self._studies.foresee(group, ask, make)

    def _endings(self, group: GroupKey) -> Work[list[Ending]]:
        """The endings of all pods of others that count somewhere: bound, assumed or reserved.

        A slot that is kept for the next member ends as the last one would have; the group's own is room at once.
        """
        node_of, endings = self._store.occupancy.node_of, []
        # As they are now: who comes or goes between two steps is not in the snapshot either.
        pods, vacancies = list(self._store.pods.values()), list(self._store.vacancies)
        for vacancy in vacancies:
            node, own = node_of(vacancy.claimant), vacancy.group == group
            if node and (own or not vacancy.heir):
                at = self._clock() if own else self._expect(vacancy.pod)
                endings.append(Ending(node, vacancy.pod.shape.requests, at))
        for place, pod in enumerate(pods):
            node = pod.node if pod.bound else node_of(pod.uid)
            if node and self._store.members.group_of(pod.uid) != group:
                endings.append(Ending(node, pod.shape.requests, self._expect(pod)))
            if place % _STEP == 0:
                yield
        return endings

    def _expect(self, pod: Pod) -> float | None:
        """When a pod will have left its node, in loop seconds."""
        now, wall = self._clock(), self._wall()
        end = self._store.endings.expect(pod, wall)
        return None if end is None else max(now + _OVERDUE, now + end - wall)

    def _tell(self, forecast: Forecast) -> str:
        place = f"{len(forecast.nodes)} nodes{f' of {forecast.domain}' if forecast.domain else ''}"
        if forecast.at is None:
            return f"{place} are kept for it, and nobody can tell when they will have room"
        return f"{place} are kept for it, and are expected to have room at {self.tell_time(forecast.at)}"

    def tell_time(self, at: float) -> str:
        """A loop time as people read it, RFC 3339 to the second."""
        return write_time(self._wall() + at - self._clock())


_KEPT = 30.0
"""A promise is kept if its gang is placed no more seconds after the forecast: that long, pods may take to end."""


def _judge(at: float | None, now: float) -> tuple[str, float | None]:
    if at is None:
        return "unforeseen", None
    return ("kept" if now - at <= _KEPT else "missed"), now - at


def _is_better(new: Forecast, old: Forecast, now: float) -> bool:
    """Whether changing over is worth it: a tenth of the wait, or a time where there was none."""
    if new.at is None or old.at is None:
        return new.at is not None
    return new.at - now < 0.9 * (old.at - now)
