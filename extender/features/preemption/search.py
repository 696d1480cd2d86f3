"""The search for victims of lower priority for a gang that does not fit (docs/preemption.md). Nothing here awaits.

The core calls `Preemptions.post_filter` when a gang was rejected for want of room and has no wider level left to try,
and `revisit` until the search has ended. A search is a planning task (`extender.core.scheduling.planning_tasks`). Its
result is used only if all victims still run as they were found, and the plan holds without them. Then the gang gets a
binding cycle like any other, whose first stage waits for the victims (`pre_bind`,
`extender.features.preemption.preempting`). A waiting gang remembers its search (`Search`) and the last result
(`Finding`).

After a search in vain, freed room leads to another search, even if the freed room is less than a member needs: with
victims of lower priority on the same node it may be enough. A few gangs are woken at a time, in turn.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import islice

from extender.core.feature import Decision, Feature, Memory, Refused
from extender.core.parts import Parts
from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.group import GroupState
from extender.core.scheduling.planning import KeptSlots
from extender.core.scheduling.planning_tasks import Make, Unfinished
from extender.features.preemption.preempting import Preempting
from extender.features.preemption.units import REFUSAL_SECONDS, Running, Units, keep_budgets, keep_gangs, spare_young
from extender.options import Method, PreemptionMode
from serried.api.group import PodGroup
from serried.api.names import GroupKey
from serried.api.reservation import Reservation, name_some
from serried.api.resources import Resources, add, count_slots, subtract
from serried.api.verdict import Mark, Reason, Verdict
from serried.cluster.usage import Vacancy
from serried.ops.steps import Work
from serried.plan.capacity import Capacity
from serried.plan.eviction import Allowances, Blocker, NoVictims, Preemption, Unit, measure_cost
from serried.plan.preemption import plan_victims
from serried.plan.request import Overlay, PlanRequest, Snapshot, Waiting
from serried.plan.revalidate import revalidate

_MIN_PAUSE_SECONDS = 1.0
"""The shortest time between two searches for a gang because of freed room."""

_AGAIN_SECONDS = 60.0
"""The time after which a search is repeated though nothing was freed: a group that was being bound may run now."""

_MAX_LOOKED_AT = 100
"""The number of gangs that are checked per tick, twice a second."""

_MAX_WOKEN = 4
"""The number of gangs that are woken per tick."""

_REST_SECONDS = 5.0
"""The shortest pause after a search in vain."""

_MAX_RESTARTS = 3
"""The number of times that a search is repeated because the cluster has changed during it."""


@dataclass(slots=True)
class Search(Memory):
    """The search for victims for one rejected gang; lives while the gang waits."""

    for_wait = True

    ask: PlanRequest
    waiting: Waiting
    refusal: Verdict

    opens_at: float
    """The loop time from which the gang may try a wider level; infinite if none is left."""

    runs: bool = False
    """True while victims are being searched."""

    again_at: float | None = None
    """The loop time from which freed room leads to another search after one in vain; None before the first search."""

    restarts: int = 0

    freed: tuple[int, ...] = ()
    """The count of releases of each kind of room when the gang was rejected."""

    taken: int = 0
    """The number of nodes on which pods of other schedulers took the room freed for this gang: no victims there."""

    finding: str = ""
    """The result of the last search, a phrase; "" before it, or if the user could do nothing about it."""

    asked: PlanRequest | None = None
    """The request that the planner rejected, to which the numbers of the refusal belong; None if it is ``ask``.

    ``ask`` closes more nodes: those on which earlier evictions were in vain.
    """

    def describe(self) -> Verdict:
        """Return the refusal, with the result of the search in its detail."""
        others = "pods of another scheduler took the room that was freed for it, so no more pods are evicted there"
        taken = f"on {self.taken} nodes {others}" if self.taken else ""
        return replace(self.refusal, detail=", ".join(filter(None, (self.refusal.detail, self.finding, taken))))


@dataclass(slots=True)
class Finding(Memory):
    """The result of the last search for a gang; lives until a binding cycle of the gang has succeeded."""

    found: Preemption | NoVictims | None = None


def find_preemption(gang: GroupState) -> Preemption | NoVictims | None:
    """Return the result of the last search for victims for a gang; None if there was none, or it found none in time."""
    memory = gang.memory.find(Finding)
    return memory.found if memory is not None else None


class Preemptions(Feature):
    """The feature of preemption. ``clock`` gives loop seconds, ``wall`` seconds since 1970.

    ``running_priorities`` counts the running pods by the priority in their spec.
    """

    memories = (Search, Finding)

    def __init__(self, parts: Parts) -> None:
        context = parts.context
        self._units = Units(context)
        self.stage = Preempting(parts, self._units)
        """The stage of a binding cycle in which victims are evicted."""

        self._planning_tasks = parts.planning_tasks
        self._queue = parts.queue
        self._features = context.features
        self._groups = context.groups
        self._store = context.store
        self._kept_slots = KeptSlots(context.store)
        self._snapshots = context.store.snapshots
        self._priorities = context.store.priorities
        self._running_priorities = context.store.running_priorities
        self._metrics = context.metrics
        self._clock = context.clock
        self._wall = context.wall
        self._mode = context.options.preemption
        self._method = context.options.preempt_by
        self._spare_seconds = context.options.preemption_spare_seconds

        self._searched: dict[GroupKey, None] = {}
        """The gangs whose last search found no victims, in the order of their next searches."""

    # --- a gang that does not fit ------------------------------------------------------------------------------

    def post_filter(self, refused: Refused, refusal: Verdict) -> Decision | Verdict:
        """Return the victims for a gang that was just rejected, with its plan; else the verdict to report."""
        gang, waiting, request, now = refused.gang, refused.waiting, refused.request, self._clock()
        asked, request = request, request.closing(self._queue.closed_to(waiting, request))
        if refusal.reason is Reason.BEHIND_HEAD:
            asked = request  # the gang was rejected because of these closed nodes only
        refusals, taken = gang.refusals, frozenset[str]()
        if refusals.spared or refusals.occupied:
            request = request.closing(refusals.find_spared(request.members, now, self._store))
            taken = refusals.find_occupied(now, self._store)
        found = self.consider(gang, waiting, request.closing(taken), refusal, refused.opens_in, len(taken))
        if (search := gang.memory.find(Search)) is not None:
            search.asked = asked
        return found

    def revisit(
        self, gang: GroupState, group: PodGroup, waiting: Waiting, said: Verdict | None
    ) -> Decision | Verdict | None:
        """Return the result of a search that has ended, else the verdict with the result of the last search."""
        search = gang.memory.find(Search)
        if said is not None and search is not None:
            search.refusal = said
            said = search.describe()
        found = self._collect_result(gang, group.key)
        return said if found is None else found

    def hints(self) -> Work[Iterable[GroupKey]]:
        """Return the gangs to be planned again because there may be victims for them by now."""
        due = self.take_due(self._groups.states)
        for group in due:
            state = self._groups.states[group]
            state.entry.ask_again()
            state.refusals.no_search_before = self._clock()
        yield from ()
        return due

    # --- its binding cycle -------------------------------------------------------------------------------------

    async def pre_bind(self, cycle: BindingCycle) -> Verdict | None:
        """Evict the victims of a cycle, and wait for their end. Return why the cycle is given up; None if not."""
        return await self.stage.run(cycle)

    async def recovered(self, dropped: Sequence[Reservation]) -> None:
        """Remove the conditions of victims whose records were dropped at recovery, or are gone."""
        for record in dropped:
            await self.stage.spare_victims(record)
        await self.stage.remove_stale_conditions()

    def ended(self, gang: GroupState, cycle: BindingCycle, refused: Collection[str], verdict: Verdict | None) -> None:
        """Take note of a cycle's end. If pods were evicted in vain, the gang waits before the next evictions."""
        bound = cycle.bound and cycle.bound >= cycle.reservation.slots.keys()
        if verdict is None:
            gang.memory.pop(Finding, None)
        if not cycle.eviction_sent:
            return
        if verdict is not None:
            self._pause(gang, cycle, refused if verdict.reason is Reason.DEADLINE_EXCEEDED else ())
        elif not bound and not cycle.reservation.need:
            self._pause(gang, cycle, refused)
        else:
            # Members that join a running gang in free room show nothing about evictions in vain.
            gang.refusals.forget_evictions()

    def _pause(self, gang: GroupState, cycle: BindingCycle, refused: Iterable[str]) -> None:
        """Delay the next evictions for a gang, longer after each eviction in vain.

        ``refused`` are the UIDs of members that kube-scheduler rejected on their nodes without a call of filter, as one
        of its own plugins knows more about the node. Later searches spare the pods on these nodes.
        """
        now, refusals = self._clock(), gang.refusals
        for uid in refused:
            pod, slot = self._store.pods.get(uid), cycle.reservation.slots.get(uid)
            if pod is not None and slot is not None:
                refusals.refuse(pod.shape, slot.node, self._store)
                refusals.spare(pod.shape, slot.node, now, self._store)
        refusals.pause_evictions(now)
        for node, uids in self._find_taken(cycle).items():
            refusals.note_occupied(node, uids, self._store)

    def _find_taken(self, cycle: BindingCycle) -> dict[str, frozenset[str]]:
        """Return pods of other schedulers that took room freed for a cycle's slots: their UIDs by node.

        The slots are those that were planned at the first eviction (``cleared``), as the cycle has released them by
        now. Pods that ran there already at that time (``foreign``) do not count.
        """
        pods = self._store.pods
        ending = {pod.node for uid in cycle.reservation.victims if (pod := pods.get(uid)) is not None and pod.bound}
        wanted: dict[str, Resources] = {}
        for uid, slot in cycle.cleared.items():
            member = pods.get(uid)
            if member is not None and member.pending and slot.node not in ending:
                wanted[slot.node] = add(wanted.get(slot.node, {}), dict(member.shape.requests))
        full = {name for name, request in wanted.items() if not self._has_room(name, request)}
        found: dict[str, set[str]] = {}
        for pod in self._store.list_foreign(full):
            if pod.uid not in cycle.foreign:
                found.setdefault(pod.node, set()).add(pod.uid)
        return {name: frozenset(uids) for name, uids in found.items()}

    def _has_room(self, name: str, request: Resources) -> bool:
        node, used = self._store.nodes.get(name), self._store.occupancy.used.get(name, {})
        return node is None or count_slots(node.allocatable, used, request) > 0

    # --- searching ---------------------------------------------------------------------------------------------

    def consider(
        self, gang: GroupState, waiting: Waiting, ask: PlanRequest, refusal: Verdict, opens_in: float, taken: int
    ) -> Decision | Verdict:
        """Begin a search for a gang that was just rejected. Return plan and victims, else the verdict to report.

        ``opens_in`` is the time until the gang may try a wider level, in seconds: nothing is evicted for a preferred
        level. ``taken`` is the number of nodes that ``ask`` closes because pods were evicted there in vain.
        """
        group = waiting.group
        now = self._clock()
        freed, last = self._snapshots.count_freed(), gang.memory.find(Search)
        search = gang.memory[Search] = Search(ask, waiting, refusal, now + opens_in, freed=freed, taken=taken)
        if self._mode is PreemptionMode.OFF:
            return refusal
        if now < gang.refusals.no_search_before:
            # If its last search was in vain, what has been freed since still wakes it sooner.
            gang.entry.retry_by(gang.refusals.no_search_before)
            if last is not None:
                search.finding, search.freed, search.again_at = last.finding, last.freed, last.again_at
            return search.describe()
        if self.find_objection(search):
            self._note_searched(group, search, 0.0)
            return refusal
        search.runs = True
        return self._collect_result(gang, group) or search.describe()

    def _collect_result(self, gang: GroupState, group: GroupKey) -> Decision | Verdict | None:
        """Return the result of a search that has ended; None if none runs, or it has not ended yet."""
        search = gang.memory.find(Search)
        if search is None or not search.runs:
            return None
        try:
            found = self._seek(search)
        except Unfinished:
            return None
        backoff = self._planning_tasks.settle(group)
        if isinstance(found, Preemption) and found.victims and not self._holds(found, search.ask):
            search.restarts += 1
            if search.restarts <= _MAX_RESTARTS:
                return self._collect_result(gang, group)
            found = None
        search.runs = False
        gang.memory.of(Finding).found = found
        return self._decide(gang, search, found, backoff.pause)

    def _decide(
        self, gang: GroupState, search: Search, found: Preemption | NoVictims | None, rest: float
    ) -> Decision | Verdict:
        """Return plan and victims, or the verdict to report; ``rest`` is the pause for the work of the search."""
        group = search.waiting.group
        sooner = self._find_sooner_room(group, found)
        acts = sooner is None and self._mode is not PreemptionMode.ADVICE
        if acts and isinstance(found, Preemption) and found.victims:
            return Decision(search.ask, found.plan, found.victims)
        self._rest(gang, found, rest)
        self._note_searched(group, search, rest)
        if sooner is not None:
            gang.entry.retry_by(sooner + _REST_SECONDS)
            return search.refusal  # its text contains the forecast
        search.finding = _explain(found)
        return search.describe()

    def _note_searched(self, group: GroupKey, search: Search, rest: float) -> None:
        """Put a gang into the queue for its next search, after a pause of ``rest`` seconds at least."""
        search.again_at = self._clock() + max(_MIN_PAUSE_SECONDS, rest)
        self._searched.pop(group, None)
        self._searched[group] = None

    def take_due(self, states: Mapping[GroupKey, GroupState]) -> list[GroupKey]:
        """Return the gangs whose search is due again. Called about twice a second."""
        due: list[GroupKey] = []
        for group in list(islice(self._searched, _MAX_LOOKED_AT)):
            if len(due) == _MAX_WOKEN:
                break
            del self._searched[group]
            search = states[group].memory.find(Search) if group in states else None
            if search is None or search.again_at is None:
                continue  # it no longer waits for room, or its search runs
            if self._is_due(search, search.again_at) and not self.find_objection(search):
                due.append(group)
            else:
                self._searched[group] = None  # behind all others
        return due

    def _is_due(self, search: Search, again_at: float) -> bool:
        now = self._clock()
        return now >= again_at and (search.freed != self._snapshots.count_freed() or now >= again_at + _AGAIN_SECONDS)

    def find_objection(self, search: Search) -> str:
        """Return why there are no victims for a gang, whatever runs, as a sentence; "" if there may be."""
        if Mark.ROOM not in search.refusal.reason.marks:
            return "it does not wait for room that others could leave"
        if search.ask.own_slots:
            return "it waits for the slots that are kept for it"
        if search.waiting.rejected:
            return (
                "no pod is evicted for it: kube-scheduler rejects a member for a reason that free room does not change"
            )
        if search.opens_at < math.inf:
            return "no pod is evicted for a preferred level: a wider level will be tried first"
        if not self._priorities.may_preempt(search.waiting.group):
            return "preemptionPolicy Never: its PriorityClass, the group or a member says so"
        return "" if self._is_anyone_lower(search.waiting.priority) else "nothing that runs has a lower priority"

    def _is_anyone_lower(self, priority: int) -> bool:
        """Return whether a pod or group of lower priority may run; if not, no search over all pods is needed."""
        if any(each < priority for each in self._running_priorities):
            return True
        return any(each < priority for each in self._priorities.list_levels())

    def _find_sooner_room(self, group: GroupKey, found: Preemption | NoVictims | None) -> float | None:
        """Return the loop time for which room is forecast, if that is sooner than the victims' grace periods end.

        None if it is later, or there are no victims, or there is no reliable forecast.
        """
        if not isinstance(found, Preemption):
            return None
        expected = (feature.expect_room(group) for feature in self._features[Feature.expect_room])
        at = min((each for each in expected if each is not None), default=None)
        if at is None:
            return None
        now = self._clock()
        ending = (unit for unit in found.victims if not unit.planned)
        grace = max((pod.grace for unit in ending for pod in unit.pods), default=-1)
        return at if now <= at <= now + grace else None

    def _seek(self, search: Search) -> Preemption | NoVictims | None:
        """Return the result of a search. Raises Unfinished while it runs."""
        group = search.waiting.group
        leaving = self._list_leaving(search)
        answer = self._planning_tasks.seek_victims(group, search.ask, leaving, self.prepare(search))
        found: Preemption | NoVictims | None = answer.found
        self._metrics.searched(_name_outcome(found), answer.seconds or 0.0)
        return found

    def _list_leaving(self, search: Search) -> Sequence[Vacancy]:
        return self._kept_slots.list_kept(search.ask.members)

    def prepare(self, search: Search, gone: AbstractSet[str] = frozenset()) -> Make:
        """Return the function that searches victims on a snapshot; ``gone`` are UIDs of pods to be left out."""
        spared = self._find_spared_priority(search.waiting.priority)
        latest = self._wall() - self._spare_seconds

        def make(snapshot: Snapshot, capacity: Capacity) -> Preemption | NoVictims:
            running = self._units.list_running(search.waiting.group, gone, snapshot.limit)
            if self._method is Method.EVICTION:
                running = keep_budgets(running)
            if not search.ask.need:
                running = keep_gangs(running)
            gentle = spare_young(running, spared, latest) if self._spare_seconds else running
            found = self._solve(snapshot, search, gentle, capacity)
            if isinstance(found, NoVictims) and gentle is not running:
                return self._solve(snapshot, search, running, capacity)
            return found

        return make

    def _solve(
        self, snapshot: Snapshot, search: Search, running: Running, capacity: Capacity
    ) -> Preemption | NoVictims:
        return plan_victims(
            snapshot,
            search.ask,
            search.waiting.priority,
            running.units,
            running.allowances,
            capacity,
        )

    def _find_spared_priority(self, priority: int) -> int:
        """Return the next lower priority in the cluster: young pods of this priority only are spared."""
        levels = {*self._priorities.list_levels(), *self._running_priorities}
        return max((each for each in levels if each < priority), default=priority)

    # --- dry runs by /debug ------------------------------------------------------------------------------------

    def try_out(self, gang: GroupState) -> Search | str:
        """Return the search for a gang as it would be now, in any mode and also in a pause; else why there is none."""
        search = gang.memory.find(Search)
        if search is None:
            return "it does not wait for room"
        return self.find_objection(search) or search

    def explain(self, gang: GroupState, found: Preemption | NoVictims | None) -> str:
        """Return a sentence: the result of such a search, and whether Serried would act on it.

        ``found`` is None if there was no result in time.
        """
        return _join(_describe_finding(found), self._find_reserve(gang, found))

    def _find_reserve(self, gang: GroupState, found: Preemption | NoVictims | None) -> str:
        """Return why victims that were found would not be evicted, a phrase; "" if they would."""
        search = gang.memory.find(Search)
        if search is None or not isinstance(found, Preemption) or not found.victims:
            return ""
        if self._mode is not PreemptionMode.ON:
            return (
                "but no pod is evicted: preemption is off"
                if self._mode is PreemptionMode.OFF
                else "but no pod is evicted: preemption only gives advice"
            )
        if self._find_sooner_room(search.waiting.group, found) is not None:
            return "but no pod is evicted: room is forecast sooner than they would have ended"
        pause = gang.refusals.no_search_before - self._clock()
        return (
            f"but no pod is evicted in the next {math.ceil(pause)} s: the last search was in vain" if pause > 0 else ""
        )

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
        return revalidate(found.plan, ask, now.nodes, without)

    def _breaks_more(self, found: Preemption) -> bool:
        """Return whether more gangs would break than when the victims were found, as spare members have ended."""
        allowances = Allowances(self._units.list_spares(found.victims))
        now = measure_cost(found.victims, allowances, 0).damages
        return any(each.broken > was.broken for each, was in zip(now, found.cost.damages, strict=True))

    def _rest(self, gang: GroupState, found: Preemption | NoVictims | None, pause: float) -> None:
        now = self._clock()
        gang.refusals.no_search_before = now + max(_REST_SECONDS, pause)
        if isinstance(found, Preemption) and not found.victims:
            gang.refusals.no_search_before = now
            gang.entry.retry_by(now)  # it fits by now
        elif found is None or (isinstance(found, NoVictims) and found.blocker is Blocker.PROTECTION):
            # Time alone may change this result, without any room being freed.
            gang.entry.retry_by(now + max(REFUSAL_SECONDS, pause))


def _name_outcome(found: Preemption | NoVictims | None) -> str:
    if isinstance(found, NoVictims):
        return found.blocker.value.capitalize()
    if found is None:
        return "Unfinished"
    return "Found" if found.victims else "Fits"


def _describe_finding(found: Preemption | NoVictims | None) -> str:
    """Return the text of `_explain`, or a text about results that a user can do nothing about."""
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
    return ""  # too little runs at a lower priority, and the user of the gang can do nothing about that


def describe_victims(units: Collection[Unit]) -> str:
    """Return a phrase with the number of the units' pods, and some of their names."""
    pods = [pod for unit in units for pod in unit.pods]
    return f"{len(pods)} pods of lower priority ({name_some(pods)})"


def _join(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
