"""Plans and forecasts that would hold the loop are made in slices, between which it serves filter (decision 18).

What is short runs straight through. What is not begins on a copy of the cluster as it is then, and whoever asked gets
`Unfinished`. Its group is told when the answer is there, and asks again; a plan is taken only if it still holds.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from extender.scheduling.effects import Outbox, WorkOnStudies
from extender.scheduling.groups import Groups
from serried.cluster.store import Store
from serried.cluster.vacancies import Vacancy
from serried.model.group import GroupKey
from serried.model.node import Node
from serried.model.plan import Plan, PlanRequest, Snapshot
from serried.model.verdict import Reason, Verdict
from serried.observe.log import name_group
from serried.plan.capacity import Capacity
from serried.plan.check import still_holds
from serried.plan.forecast import Forecast
from serried.plan.steps import Work
from serried.plan.tree import solve_group

log = logging.getLogger(__name__)

STRAIGHT = 0.005
"""So long a plan may run straight through, in seconds: filter waits as long."""

URGENT = 0.02
"""So long a plan may run straight through that a cycle cannot do without: one member needs another node."""

_SLICE = 0.002
"""So long a slice is; the loop has as long for itself after each."""

GO = 0.05
"""So much work everybody gets at once; who takes more comes after those who take less."""

_PLAN, _FORECAST, _MOST = 2.0, 5.0, 32.0
"""What a plan and a forecast may cost, in seconds of work; and a plan that was given up again and again."""

_SHARE = 10.0
"""What was in vain is tried again after so many times the work that it took: it may take a tenth of the loop."""

_NODES_AT_ONCE = 2_000
"""Counting so many for a class that is not counted yet is no straight plan."""

_RESTARTS = 3

_KEPT = 4
"""So many answers of a group wait to be asked for."""

Make = Callable[[Snapshot, Capacity], Work[Any]]


class Unfinished(Exception):
    """The answer is not there yet; the group is told when it is."""


class Answer(NamedTuple):
    """What was found, and what it cost in seconds of work; None if that was told before."""

    found: Any
    seconds: float | None


class Toll(NamedTuple):
    """``pause`` seconds are due for what was in vain; ``stale`` if room was freed while it was looked for."""

    pause: float
    stale: bool


@dataclass(slots=True, eq=False)
class _Study:
    group: GroupKey
    ask: PlanRequest
    leaving: tuple[Vacancy, ...]
    forecast: bool
    make: Make
    limit: float
    turn: int
    tried: bool
    work: Work[Any] | None = None
    spent: float = 0.0
    done: bool = False
    told: bool = False
    found: Any = None
    failure: Exception | None = None
    restarts: int = 0
    nodes: Mapping[str, Node] = field(default_factory=dict)
    room: tuple[int, int] = (0, 0)

    @property
    def place(self) -> tuple[int, int]:
        """Who took little comes before who took much, each time twice as much; of equals the first one."""
        return int(math.log2(max(1.0, self.spent / GO)) + (self.spent >= GO)), self.turn

    def asks(self, ask: PlanRequest, leaving: tuple[Vacancy, ...]) -> bool:
        """Whether it answers this question."""
        same = len(leaving) == len(self.leaving) and all(map(_is, leaving, self.leaving))
        return same and self.ask.asks_the_same(ask)


class Studies:
    """The plans and forecasts that are being made, by group. Every method but ``work`` is synchronous.

    ``groups`` are told of an answer that is there; ``outbox`` asks for ``work`` when it has something to do.
    ``stopwatch`` measures the work, in seconds, ``rest`` lets the loop have its turn for so many.
    """

    def __init__(
        self,
        store: Store,
        groups: Groups,
        outbox: Outbox,
        stopwatch: Callable[[], float] = time.perf_counter,
        *,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._groups = groups
        self._outbox = outbox
        self._stopwatch = stopwatch
        self._rest = rest
        self._studies: dict[GroupKey, list[_Study]] = {}
        # Groups whose last answer took long, and what they may take next time.
        self._slow: dict[GroupKey, float] = {}
        self._tolls: dict[GroupKey, Toll] = {}
        self._turn = 0
        self._working, self._shift = False, 0

    def __len__(self) -> int:
        return sum(not study.done for studies in self._studies.values() for study in studies)

    # --- asking ------------------------------------------------------------------------------------------------

    def plan(self, ask: PlanRequest, leaving: Iterable[Vacancy] = (), straight: float = STRAIGHT) -> Answer:
        """The plan for an ask, or the verdict. Raises Unfinished; what holds now is what is answered.

        ``straight`` is how long it may run straight through, in seconds.
        """
        group = self._store.members.group_of(ask.members[0].uid) if ask.members else None
        make: Make = lambda snapshot, capacity: solve_group(snapshot, ask, capacity)  # noqa: E731
        return self._answer(group or GroupKey("", ""), ask, tuple(leaving), make, straight, forecast=False)

    def foresee(self, group: GroupKey, ask: PlanRequest, make: Make) -> Forecast | None:
        """A group's forecast. Raises Unfinished; the answer is given once."""
        found: Forecast | None = self._answer(group, ask, (), make, STRAIGHT, forecast=True).found
        self._drop(group, forecast=True)
        return found

    def _answer(
        self,
        group: GroupKey,
        ask: PlanRequest,
        leaving: tuple[Vacancy, ...],
        make: Make,
        straight: float,
        *,
        forecast: bool,
    ) -> Answer:
        study = next((each for each in self._of(group, forecast=forecast) if each.asks(ask, leaving)), None)
        if study is None:
            short = straight > STRAIGHT or not self._is_long(group, ask)
            answer = self._run_straight(ask, leaving, make, straight) if short else None
            if answer is not None:
                return answer
            limit = self._limit(group, forecast=forecast)
            self._open(_Study(group, ask, leaving, forecast, make, limit, self._turn, tried=short))
            raise Unfinished
        if not study.done:
            self._set_to_work()  # the end of a term ends all work
            raise Unfinished
        if study.failure is not None:
            self._drop(group, forecast=forecast)
            raise study.failure
        return self._take(study) if self._holds(study, ask) else self._renew(study, ask)

    def _run_straight(self, ask: PlanRequest, leaving: tuple[Vacancy, ...], make: Make, limit: float) -> Answer | None:
        begun = self._stopwatch()
        work = make(self._store.snapshots.take(ask.priority, ask.members, leaving), self._store.capacity)
        try:
            while self._stopwatch() - begun < limit:
                next(work)
        except StopIteration as done:
            return Answer(done.value, self._stopwatch() - begun)
        work.close()  # the cluster may change before it goes on, so it would not know what it has seen
        return None

    def _is_long(self, group: GroupKey, ask: PlanRequest) -> bool:
        if group in self._slow:
            return True
        shapes = {id(member.shape): member.shape for member in ask.members}  # shared, and slow to hash by the thousand
        missing = self._store.capacity.count_missing(set(shapes.values()))
        return missing * len(self._store.nodes) > _NODES_AT_ONCE

    def _limit(self, group: GroupKey, *, forecast: bool) -> float:
        return _FORECAST if forecast else self._slow.get(group, _PLAN)

    def _holds(self, study: _Study, ask: PlanRequest) -> bool:
        if not isinstance(study.found, Plan):
            return True
        now = self._store.snapshots.take(ask.priority, ask.members, study.leaving)
        return still_holds(study.found, ask, study.nodes, now)

    def _renew(self, study: _Study, ask: PlanRequest) -> Answer:
        """The ground has changed: once more, straight if by now that will do.

        What took long is looked for straight in the domain that was found, which is much less work. For this there is
        more time in the end: gangs with shorter plans may not take the room of one with a long plan for ever.
        """
        last, again = study.restarts >= _RESTARTS, ask
        if study.spent > GO and ask.topology_key is not None:
            again = replace(ask, pinned=frozenset({study.found.domain}))
        make: Make = lambda snapshot, capacity: solve_group(snapshot, again, capacity)  # noqa: E731
        answer = self._run_straight(again, study.leaving, make, GO if last else STRAIGHT)
        if answer is not None and (again is ask or isinstance(answer.found, Plan)):
            self._studies[study.group].remove(study)
            return answer
        if not last:
            study.restarts += 1
            study.done, study.work, study.found = False, None, None
            self._set_to_work()
            raise Unfinished
        changed = "the cluster changed each time before a plan was there"
        members = len(study.ask.members)
        study.found = Verdict(Reason.PLAN_UNFINISHED, have=round(study.spent), need=members, detail=changed)
        return self._take(study)

    def _take(self, study: _Study) -> Answer:
        seconds = None if study.told else study.spent
        if seconds is not None:
            before = self._tolls.get(study.group, Toll(0.0, stale=False))
            pause = before.pause + (study.spent * _SHARE if study.spent > GO else 0.0)
            self._tolls[study.group] = Toll(pause, before.stale or study.room != self._measure_room())
        study.told = True
        return Answer(study.found, seconds)

    def collect(self, ask: PlanRequest) -> Toll:
        """As ``settle``, but what is still being made goes on."""
        group = self._store.members.group_of(ask.members[0].uid) or GroupKey("", "")
        if group in self._studies:
            kept = [each for each in self._studies[group] if each.forecast or not each.told]
            self._studies[group] = kept
        return self._tolls.pop(group, Toll(0.0, stale=False))

    # --- groups ------------------------------------------------------------------------------------------------

    def settle(self, group: GroupKey) -> Toll:
        """The answers of a group's plans have been used: what is due for them if they were in vain."""
        self._drop(group, forecast=False)
        return self._tolls.pop(group, Toll(0.0, stale=False))

    def forget(self, group: GroupKey) -> None:
        """Nobody waits for the answers of a group any more."""
        self._studies.pop(group, None)
        self._slow.pop(group, None)
        self._tolls.pop(group, None)

    def clear(self) -> None:
        """Nobody waits for anything; who works on it stops, whether or not it is told so itself."""
        self._working, self._shift = False, self._shift + 1
        self._studies.clear()
        self._slow.clear()
        self._tolls.clear()

    def _of(self, group: GroupKey, *, forecast: bool) -> list[_Study]:
        return [study for study in self._studies.get(group, ()) if study.forecast is forecast]

    def _drop(self, group: GroupKey, *, forecast: bool) -> None:
        left = self._of(group, forecast=not forecast)
        if left:
            self._studies[group] = left
        else:
            self._studies.pop(group, None)

    def _open(self, study: _Study) -> None:
        self._turn += 1
        # A question that is asked in another way now is asked no more; two may belong to one answer.
        kept = [each for each in self._studies.get(study.group, ()) if each.done or each.forecast is not study.forecast]
        self._studies[study.group] = [*kept[-_KEPT:], study]
        self._set_to_work()

    # --- work --------------------------------------------------------------------------------------------------

    def _set_to_work(self) -> None:
        if not self._working:
            self._working = True
            self._outbox.put(WorkOnStudies())

    def work(self) -> Coroutine[Any, Any, None]:
        """Make all answers that are asked for, the loop's turn after each slice."""
        return self._work(self._shift)

    async def _work(self, shift: int) -> None:
        try:
            while shift == self._shift and (study := self._choose()) is not None:
                begun = self._stopwatch()
                self._advance(study, begun)
                await self._rest(self._stopwatch() - begun)
        finally:
            if shift == self._shift:
                self._working = False

    def _choose(self) -> _Study | None:
        studies: Collection[_Study] = [each for some in self._studies.values() for each in some if not each.done]
        return min(studies, key=lambda study: study.place, default=None)

    def _advance(self, study: _Study, begun: float) -> None:
        if study.work is None and not study.tried and not self._is_long(study.group, study.ask):
            # Somebody else has counted meanwhile what it needs: a burst of gangs of one new shape counts it once.
            self._studies[study.group].remove(study)
            self._groups.note_study(study.group)
            return
        try:
            work = study.work or self._begin(study)
            next(work)
            while self._stopwatch() - begun < _SLICE:
                next(work)
        except StopIteration as done:
            study.found, study.done = done.value, True
        except Exception as error:
            log.exception("a plan failed", extra=name_group(study.group))
            study.failure, study.done = error, True
        study.spent += self._stopwatch() - begun
        if not study.done and study.spent > study.limit:
            self._give_up(study)
        if study.done:
            study.work = None
            self._note_cost(study)
            self._groups.note_study(study.group)

    def _begin(self, study: _Study) -> Work[Any]:
        snapshot = self._store.snapshots.take(study.ask.priority, study.ask.members, study.leaving)
        frozen = self._store.capacity.freeze()
        shown = frozen.show(snapshot)
        study.nodes, study.room = shown.nodes, self._measure_room()
        study.work = study.make(shown, frozen)
        return study.work

    def _give_up(self, study: _Study) -> None:
        study.done = True
        if not study.forecast:
            study.found = Verdict(Reason.PLAN_UNFINISHED, have=round(study.limit), need=len(study.ask.members))
            self._slow[study.group] = min(_MOST, 2 * study.limit)

    def _note_cost(self, study: _Study) -> None:
        if study.spent > GO:
            self._slow.setdefault(study.group, _PLAN)

    def _measure_room(self) -> tuple[int, int]:
        return self._store.occupancy.freed, self._store.nominations.withdrawn


def _is(one: object, other: object) -> bool:
    return one is other
