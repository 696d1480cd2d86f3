"""Whether others have to go for a gang that does not fit, and who (docs/preemption.md). Nothing here awaits.

Asked once a gang was refused for want of room and no wider level is left for it to try. A search is a planning task
(`extender.core.scheduling.planning_tasks`): its answer is taken only if all victims still run as they were found and
the plan holds once they are gone. From then on the gang is in a binding cycle like any other, whose first stage waits
for the victims (`extender.features.preemption.preempting`).

After a search in vain freed room leads to another one, even if it alone could help nobody: less may be free than a
member needs, and yet enough once those of lower priority beside it go. A few gangs are woken at a time, in turns.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from extender.core.scheduling.effects import Context
from extender.core.scheduling.group import GroupState, Search
from extender.core.scheduling.planning import KeptSlots
from extender.core.scheduling.planning_tasks import Make, PlanningTasks, Unfinished
from extender.features.backfill import Backfill
from extender.features.preemption.units import REFUSAL_SECONDS, Running, Units, keep_budgets, keep_gangs, spare_young
from extender.options import Method, PreemptionMode
from serried.api.names import GroupKey
from serried.api.pod import Pod
from serried.api.reservation import Reservation, Victim
from serried.api.resources import Resources, subtract
from serried.api.verdict import Mark, Reason, Verdict
from serried.cluster.usage import PendingVictims, Vacancy
from serried.plan.capacity import Capacity
from serried.plan.eviction import Allowances, Blocker, NoVictims, Preemption, Unit, measure_cost
from serried.plan.preemption import solve_victims
from serried.plan.request import Overlay, PlanRequest, Snapshot, Waiting
from serried.plan.revalidate import revalidate
from serried.plan.steps import Deadline, Work, finish

_MIN_PAUSE_SECONDS = 1.0
"""The shortest time between two searches of a gang that only freed room has led to."""

_AGAIN_SECONDS = 60.0
"""After which time a gang is searched for again though nothing was freed: a group that was being bound may run now."""

_MAX_LOOKED_AT = 100
"""How many gangs are looked at at a time, twice a second."""

_MAX_WOKEN = 4
"""How many of them are woken at a time."""

_REST_SECONDS = 5.0
"""The pause after a search in vain."""

_MAX_RESTARTS = 3
"""How often victims are looked for anew because the cluster has changed meanwhile."""

_MAX_NAMED = 3
"""How many victims are named in a sentence."""


class Decision(NamedTuple):
    """A gang gets the room of others."""

    ask: PlanRequest
    preemption: Preemption


class Preemptions:
    """Decides on preemption. ``clock`` gives loop seconds, ``wall`` seconds since 1970.

    ``running_priorities`` are how many pods of each priority run, by what the pods themselves say.
    """

    def __init__(self, context: Context, planning_tasks: PlanningTasks, backfill: Backfill) -> None:
        self._units = Units(context)
        self._planning_tasks = planning_tasks
        self._kept_slots = KeptSlots(context.store)
        self._backfill = backfill
        self._snapshots = context.store.snapshots
        self._priorities = context.store.priorities
        self._running_priorities = context.store.running_priorities
        self._metrics = context.metrics
        self._clock = context.clock
        self._wall = context.wall
        self._mode = context.options.preemption
        self.method = context.options.preempt_by
        self._spare_seconds = context.options.preemption_spare_seconds

        self._searched: dict[GroupKey, None] = {}
        """The gangs whose last search found no victims, in the order in which they are searched for again."""

    # --- searching ---------------------------------------------------------------------------------------------

    def consider(
        self, gang: GroupState, waiting: Waiting, ask: PlanRequest, refusal: Verdict, opens_in: float, taken: int
    ) -> Decision | Verdict:
        """Who goes for a gang that was just refused; else what is said of it.

        ``opens_in`` is in how many seconds it may try a wider level: nobody goes for a preference. ``taken`` is of how
        many nodes ``ask`` keeps off because others have ended there in vain.
        """
        group = waiting.group
        now = self._clock()
        freed, last = self._snapshots.count_freed(), gang.search
        gang.search = search = Search(ask, waiting, refusal, now + opens_in, freed=freed, taken=taken)
        if self._mode is PreemptionMode.OFF:
            return refusal
        if now < gang.refusals.no_search_before:
            # If its last search was in vain, what has been freed since still wakes it sooner.
            gang.entry.retry_by(gang.refusals.no_search_before)
            if last is not None:
                search.finding, search.freed, search.again_at = last.finding, last.freed, last.again_at
            return search.tell()
        if self.find_objection(search):
            self._note_searched(group, search, 0.0)
            return refusal
        search.runs = True
        return self.go_on(gang, group) or search.tell()

    def go_on(self, gang: GroupState, group: GroupKey) -> Decision | Verdict | None:
        """The answer to a search if it is there by now; None if nothing is searched, or not found yet."""
        search = gang.search
        if search is None or not search.runs:
            return None
        try:
            found = self._seek(search)
        except Unfinished:
            return None
        backoff = self._planning_tasks.settle(group)
        if isinstance(found, Preemption) and found.victims and not self._holds(found, search.ask):
            search.restarts += 1
            search.deadline = Deadline()
            if search.restarts <= _MAX_RESTARTS:
                return self.go_on(gang, group)
            found = None
        search.runs = False
        gang.preemption = found
        return self._decide(gang, search, found, backoff.pause)

    def _decide(
        self, gang: GroupState, search: Search, found: Preemption | NoVictims | None, rest: float
    ) -> Decision | Verdict:
        """What follows from what was found, and has cost ``rest`` seconds of rest."""
        group = search.waiting.group
        sooner = self._find_sooner_room(group, found)
        acts = sooner is None and self._mode is not PreemptionMode.ADVICE
        if acts and isinstance(found, Preemption) and found.victims:
            return Decision(search.ask, found)
        self._rest(gang, found, rest)
        self._note_searched(group, search, rest)
        if sooner is not None:
            gang.entry.retry_by(sooner + _REST_SECONDS)
            return search.refusal  # which says when there will be room
        search.finding = _explain(found)
        return search.tell()

    def _note_searched(self, group: GroupKey, search: Search, rest: float) -> None:
        """A search was in vain; its work costs the gang ``rest`` seconds."""
        search.again_at = self._clock() + max(_MIN_PAUSE_SECONDS, rest)
        self._searched.pop(group, None)
        self._searched[group] = None

    def take_due(self, states: Mapping[GroupKey, GroupState]) -> list[GroupKey]:
        """The gangs for which victims may be found by now, though none were. Called about twice a second."""
        due: list[GroupKey] = []
        for group in list(islice(self._searched, _MAX_LOOKED_AT)):
            if len(due) == _MAX_WOKEN:
                break
            del self._searched[group]
            search = states[group].search if group in states else None
            if search is None or search.again_at is None:
                continue  # it waits for no room any more, or is searched for
            if self._is_due(search, search.again_at) and not self.find_objection(search):
                due.append(group)
            else:
                self._searched[group] = None  # behind all others
        return due

    def _is_due(self, search: Search, again_at: float) -> bool:
        now = self._clock()
        return now >= again_at and (search.freed != self._snapshots.count_freed() or now >= again_at + _AGAIN_SECONDS)

    def find_objection(self, search: Search) -> str:
        """Why nobody goes for a gang, whoever runs, a sentence; "" if somebody may."""
        if Mark.ROOM not in search.refusal.reason.marks:
            return "it does not wait for room that others could leave"
        if search.ask.own_slots:
            return "it waits for the slots that are kept for it"
        if search.waiting.rejected:
            return "nobody is evicted for it: kube-scheduler refuses a member for a reason that room does not mend"
        if search.opens_at < math.inf:
            return "nobody is evicted for a preference: a wider level will be tried first"
        if not self._priorities.may_preempt(search.waiting.group):
            return "preemptionPolicy Never: its PriorityClass, the group or a member says so"
        return "" if self._is_anyone_lower(search.waiting.priority) else "nothing that runs has a lower priority"

    def _is_anyone_lower(self, priority: int) -> bool:
        """Whether anything may run of lower priority; if not, nobody has to look at all pods."""
        if any(each < priority for each in self._running_priorities):
            return True
        return any(each < priority for each in self._priorities.list_levels())

    def _find_sooner_room(self, group: GroupKey, found: Preemption | NoVictims | None) -> float | None:
        """When room is forecast for a gang before the victims would have ended, if these take their full time.

        None if they would have ended by then, or nothing is forecast that can be relied on, or nobody is to end.
        """
        head = self._backfill.head
        if head is None or head.group != group or head.forecast.at is None or not isinstance(found, Preemption):
            return None
        if self._backfill.has_missed():
            return None
        now = self._clock()
        ending = (unit for unit in found.victims if not unit.planned)
        grace = max((pod.grace for unit in ending for pod in unit.pods), default=-1)
        return head.forecast.at if now <= head.forecast.at <= now + grace else None

    def _seek(self, search: Search) -> Preemption | NoVictims | None:
        """The answer to a search. Raises Unfinished."""
        group = search.waiting.group
        leaving = self._list_leaving(search)
        answer = self._planning_tasks.seek_victims(group, search.ask, leaving, self.prepare(search), search.deadline)
        found: Preemption | NoVictims | None = answer.found
        self._metrics.searched(_name_outcome(found), answer.seconds or 0.0)
        return found

    def _list_leaving(self, search: Search) -> Sequence[Vacancy]:
        return self._kept_slots.list_kept(search.ask.members)

    def prepare(self, search: Search, gone: AbstractSet[str] = frozenset()) -> Make:
        """What looks for victims; as if the pods with the UIDs ``gone`` were gone."""
        spared = self._find_spared_priority(search.waiting.priority)
        latest = self._wall() - self._spare_seconds

        def make(snapshot: Snapshot, capacity: Capacity) -> Work[Preemption | NoVictims]:
            running = yield from self._units.list_running(search.waiting.group, gone)
            if self.method is Method.EVICTION:
                running = yield from keep_budgets(running)
            if not search.ask.need:
                running = yield from keep_gangs(running)
            gentle = (yield from spare_young(running, spared, latest)) if self._spare_seconds else running
            found = yield from self._solve(snapshot, search, gentle, capacity)
            if isinstance(found, NoVictims) and gentle is not running:
                return (yield from self._solve(snapshot, search, running, capacity))
            return found

        return make

    def _solve(
        self, snapshot: Snapshot, search: Search, running: Running, capacity: Capacity
    ) -> Work[Preemption | NoVictims]:
        return (
            yield from solve_victims(
                snapshot,
                search.ask,
                search.waiting.priority,
                running.units,
                running.allowances,
                capacity,
                search.deadline,
            )
        )

    def _find_spared_priority(self, priority: int) -> int:
        """The next lower priority that there is: of one level above only, others are spared."""
        levels = {*self._priorities.list_levels(), *self._running_priorities}
        return max((each for each in levels if each < priority), default=priority)

    # --- for whoever asks --------------------------------------------------------------------------------------

    def try_out(self, gang: GroupState) -> Search | str:
        """The search for a gang as it would be now, whatever the mode, and also in a pause; else why there is none."""
        if gang.search is None:
            return "it does not wait for room"
        return self.find_objection(gang.search) or replace(gang.search, deadline=Deadline())

    def describe(self, gang: GroupState, found: Preemption | NoVictims | None) -> str:
        """What such a search has found, and whether it would be done, a sentence; None is not found in time."""
        return _join(_describe_finding(found), self._find_reserve(gang, found))

    def _find_reserve(self, gang: GroupState, found: Preemption | NoVictims | None) -> str:
        """Why victims that were found would not go all the same, a phrase; "" if they would."""
        if gang.search is None or not isinstance(found, Preemption) or not found.victims:
            return ""
        if self._mode is not PreemptionMode.ON:
            return (
                "but nobody goes: preemption is off"
                if self._mode is PreemptionMode.OFF
                else "but nobody goes: it is advice"
            )
        if self._find_sooner_room(gang.search.waiting.group, found) is not None:
            return "but nobody goes: room is forecast sooner than they would have ended"
        pause = gang.refusals.no_search_before - self._clock()
        return f"but nobody goes in the next {math.ceil(pause)} s: the last search was in vain" if pause > 0 else ""

    # --- what was found ----------------------------------------------------------------------------------------

    def _holds(self, found: Preemption, ask: PlanRequest) -> bool:
        if not all(self._units.is_current(unit) for unit in found.victims) or self._breaks_more(found):
            return False
        now = self._snapshots.take(ask.priority, ask.members, self._kept_slots.list_kept(ask.members))
        used: dict[str, Resources] = {}
        for pod in (pod for unit in found.victims for pod in unit.pods):
            base = used.get(pod.node) or now.used.get(pod.node, {})
            used[pod.node] = subtract(base, dict(pod.shape.requests))
        assigned = [now.nodes.get(name) for name in found.plan.nodes.values()]
        if any(node is None for node in assigned):
            return False
        key = ask.topology_key
        if key and any(node is not None and node.labels.get(key) != found.plan.domain for node in assigned):
            return False
        without = replace(now, used=Overlay(used, now.used), over=used.keys())
        return finish(revalidate(found.plan, ask, now.nodes, without))

    def _breaks_more(self, found: Preemption) -> bool:
        """Whether more gangs would break by now: what they could spare has ended meanwhile, or ends for others."""
        allowances = Allowances(self._units.list_spares(found.victims))
        now = finish(measure_cost(found.victims, allowances, 0)).damages
        return any(each.broken > was.broken for each, was in zip(now, found.cost.damages, strict=True))

    def _rest(self, gang: GroupState, found: Preemption | NoVictims | None, pause: float) -> None:
        now = self._clock()
        gang.refusals.no_search_before = now + max(_REST_SECONDS, pause)
        if isinstance(found, Preemption) and not found.victims:
            gang.refusals.no_search_before = now
            gang.entry.retry_by(now)  # it fits by now
        elif found is None or (isinstance(found, NoVictims) and found.blocker is Blocker.PROTECTION):
            # No room has to be freed for another answer: time alone changes it.
            gang.entry.retry_by(now + max(REFUSAL_SECONDS, pause))

    def find_contest(self, nodes: Iterable[str]) -> str:
        """Why those who run on these nodes must not go now that they may have been chosen, a phrase; "" if they may."""
        return self._units.find_contest(nodes)

    def breaks(self, reservation: Reservation) -> bool:
        """Whether a gang has too few members by now without those that are to end for this reservation."""
        return self._units.breaks(reservation.victims)

    # --- failures ----------------------------------------------------------------------------------------------

    def note_refused(self, group: GroupKey, refused: Mapping[str, str]) -> None:
        """The API server does not evict these pods for a gang, by their UIDs: they are no victims for a while."""
        self._units.refusals.add(group, refused)


def _name_outcome(found: Preemption | NoVictims | None) -> str:
    if isinstance(found, NoVictims):
        return found.blocker.value.capitalize()
    if found is None:
        return "Unfinished"
    return "Found" if found.victims else "Fits"


def _describe_finding(found: Preemption | NoVictims | None) -> str:
    """As `_explain`, also where whoever waits could change nothing."""
    if isinstance(found, Preemption) and not found.victims:
        return "it fits without any evictions by now"
    if isinstance(found, NoVictims) and found.blocker is Blocker.PRIORITY:
        where = f" of {found.domain}" if found.domain else ""
        return f"preemption would help, but pods{where} of priority {found.priority} are not lower"
    if isinstance(found, NoVictims) and found.blocker is Blocker.ROOM:
        return "it would not fit if everything went that has a lower priority"
    return _explain(found)


def _explain(found: Preemption | NoVictims | None) -> str:
    if found is None:
        return "no victims were found in time"
    if isinstance(found, Preemption):
        return f"it would fit without {describe_victims(found.victims)}" if found.victims else ""
    where = f" of {found.domain}" if found.domain else ""
    if found.blocker is Blocker.PROTECTION:
        count = "1 pod" if found.protected == 1 else f"{found.protected} pods" if found.protected else "pods"
        return f"preemption would help, but {count}{where} may not be evicted: {', '.join(found.protections)}"
    return ""  # of lower priority there is not enough: nothing that whoever waits could change


def describe_victims(units: Collection[Unit]) -> str:
    """How many pods, and some of their names."""
    pods = [pod for unit in units for pod in unit.pods]
    return f"{len(pods)} pods of lower priority ({name_some(pods)})"


def describe_wait(reservation: Reservation, pending_victims: PendingVictims) -> Verdict:
    """How a gang stands whose victims are to end."""
    victims = reservation.victims
    ended = len(victims) - pending_victims.count_left(reservation.group)
    return Verdict(Reason.PREEMPTING, have=ended, need=len(victims), detail=name_some(victims.values()))


def name_some(victims: Collection[Pod | Victim]) -> str:
    """The names of the first of these, and how many more there are."""
    more = f" and {len(victims) - _MAX_NAMED} more" if len(victims) > _MAX_NAMED else ""
    return ", ".join(f"{each.namespace}/{each.name}" for each in islice(victims, _MAX_NAMED)) + more


def _join(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
