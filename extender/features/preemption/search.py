"""The search for victims of lower priority for a gang that does not fit (docs/preemption.md). Nothing here awaits.

The core calls `Preemptions.post_filter` when the planner has rejected a gang, and `revisit` until the search has ended.
A search is a planning task (`extender.core.scheduling.planning_tasks`). Its result is used only if all victims still
run on the same nodes, and the plan still fits without them. Then the gang gets a binding cycle like any other. In the
first stage of this cycle the victims are evicted (`pre_bind`, `extender.features.preemption.preempting`). A waiting
gang remembers its search (`Search`) and the last result (`Finding`).

After a search without result, the search is repeated when resources are freed, even if they are fewer than a member
needs: together with the resources of a victim on the same node they may suffice. If many gangs wait for that, a few at
a time get their next search, in turn.
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
from extender.core.scheduling.planning_tasks import Compute, Unfinished
from extender.features.preemption.preempting import Preempting
from extender.features.preemption.units import (
    REFUSED_EVICTION_SECONDS,
    Units,
    VictimCandidates,
    enforce_budgets,
    enforce_quorums,
    protect_young,
)
from extender.options import EvictionMethod, PreemptionMode
from serried.api.group import PodGroup
from serried.api.names import GroupKey, count_things
from serried.api.reservation import Reservation, name_victims
from serried.api.resources import Resources, add, count_slots, subtract
from serried.api.verdict import Reason, Trait, Verdict
from serried.cluster.usage import Vacancy
from serried.ops.steps import Work
from serried.plan.capacity import Capacity
from serried.plan.eviction import Allowances, Blocker, EvictionUnit, NoVictims, Preemption, measure_cost
from serried.plan.preemption import plan_victims
from serried.plan.request import Overlay, PlanRequest, Snapshot, Waiting
from serried.plan.revalidate import revalidate

_MIN_PAUSE_SECONDS = 1.0
"""The shortest time between two searches for one gang that follow from freed resources, in seconds."""

_REPEAT_SECONDS = 60.0
"""After how many seconds a search is repeated even if no resources were freed.

Pods of a gang that was just being bound were no victims then. They may be by now.
"""

_MAX_CHECKED = 100
"""The maximum number of gangs that are checked per tick (twice a second) whether their search is to be repeated."""

_MAX_REQUEUED = 4
"""The maximum number of gangs whose search is repeated per tick (twice a second)."""

_PAUSE_AFTER_VAIN_SECONDS = 5.0
"""The shortest pause after a search that found no victims, in seconds."""

_MAX_RESTARTS = 3
"""The maximum number of repeats of one search at once, each because the cluster had changed during the search."""


@dataclass(slots=True)
class Search(Memory):
    """The search for victims for one gang that the planner has rejected; lives while the gang waits for resources."""

    for_wait = True

    request: PlanRequest
    """The members to find victims for, and the nodes that are excluded."""

    waiting: Waiting

    refusal: Verdict
    """The reason why the planner has rejected the gang."""

    wider_level_at: float
    """The loop time from which the gang may be planned at a wider topology level; infinite if none is left.

    Nothing is searched before: pods are evicted only for the widest level.
    """

    running: bool = False
    """True while victims are being searched."""

    repeat_from: float | None = None
    """The loop time from which freed resources lead to another search.

    None until the first search has ended, or was found to be pointless.
    """

    restarts: int = 0
    """The number of times that the search was repeated because its result was outdated when it ended."""

    freed_counts: tuple[int, ...] = ()
    """The Store's counters of freed resources and withdrawn nominations when the gang was rejected.

    If they differ later, something was freed since.
    """

    taken_nodes: int = 0
    """The number of nodes left out because pods of other schedulers took what earlier evictions had freed there."""

    result_text: str = ""
    """The result of the last search, a phrase for the gang's verdict.

    It is "" before the first search, and for results about which the gang's user can do nothing.
    """

    rejected_request: PlanRequest | None = None
    """The request that the planner rejected; None if it is ``request``. The numbers in ``refusal`` belong to it.

    ``request`` excludes more nodes: those kept for other gangs, and those on which earlier evictions were in vain.
    """

    def describe(self) -> Verdict:
        """Return the planner's verdict (``refusal``), with the result of the last search added to its detail.

        The detail also says on how many nodes no more pods are evicted, because pods of other schedulers took what
        earlier evictions had freed there.
        """
        others = (
            "pods of another scheduler took the resources that evictions had freed, so Serried evicts no more "
            "pods there"
        )
        taken = f"on {self.taken_nodes} nodes {others}" if self.taken_nodes else ""
        return replace(self.refusal, detail="; ".join(filter(None, (self.refusal.detail, self.result_text, taken))))


@dataclass(slots=True)
class Finding(Memory):
    """The result of the last search for a gang; lives until a binding cycle of the gang has succeeded."""

    found: Preemption | NoVictims | None = None
    """The victims with the plan, or why there are none; None if the search exceeded its time before it had a result."""


def find_preemption(gang: GroupState) -> Preemption | NoVictims | None:
    """Return the result of the last search for victims for a gang.

    That is the victims with the plan, or why there are none. None if no search has ended since the gang was bound last,
    or if the last one exceeded its time before it had a result.
    """
    memory = gang.memory.find(Finding)
    return memory.found if memory is not None else None


class Preemptions(Feature):
    """The feature that evicts pods of lower priority for gangs that do not fit: it searches victims and evicts them."""

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
        """The gangs whose last search found no victims, in the order in which they are checked for another search."""

    # --- a gang that does not fit ------------------------------------------------------------------------------

    def post_filter(self, refused: Refused, refusal: Verdict) -> Decision | Verdict:
        """Start a search for victims for a gang that the planner has just rejected, with the verdict ``refusal``.

        Return the victims with the plan if the search has ended at once and Serried may evict; else the verdict to
        report, i.e. ``refusal``, maybe with the result of the search in its detail.
        """
        gang, waiting, request, now = refused.gang, refused.waiting, refused.request, self._clock()
        rejected, request = request, request.closing(self._queue.list_closed_nodes(waiting, request))
        if refusal.reason is Reason.BEHIND_HEAD:
            rejected = request  # the gang was rejected because of these closed nodes only
        refusals, taken = gang.refusals, frozenset[str]()
        if refusals.exempt or refusals.taken_by_others:
            request = request.closing(refusals.find_exempt(request.members, now, self._store))
            taken = refusals.find_taken_by_others(now, self._store)
        found = self.start_search(gang, waiting, request.closing(taken), refusal, refused.opens_in, len(taken))
        if (search := gang.memory.find(Search)) is not None:
            search.rejected_request = rejected
        return found

    def revisit(
        self, gang: GroupState, group: PodGroup, waiting: Waiting, said: Verdict | None
    ) -> Decision | Verdict | None:
        """Continue the search for victims of a gang that still waits.

        Return victims and plan when the search has found them, else the verdict to report: ``said``, which is the
        planner's last verdict about the gang, with the result of the last search in its detail. Return None if no
        search has ended just now, and ``said`` is None.
        """
        search = gang.memory.find(Search)
        if said is not None and search is not None:
            search.refusal = said
            said = search.describe()
        found = self._collect_result(gang, group.key)
        return said if found is None else found

    def list_requeues(self) -> Work[Iterable[GroupKey]]:
        """Return the gangs whose search has to be repeated, because there may be victims for them by now.

        The method is a generator, as for all work that a feature may do in steps (`Work`), and the gangs are its return
        value. The core plans these gangs again, and calls `post_filter` if they still do not fit.
        """
        due = self.pop_due(self._groups.states)
        for group in due:
            state = self._groups.states[group]
            state.entry.force_retry()
            state.refusals.no_search_before = self._clock()
        yield from ()
        return due

    # --- its binding cycle -------------------------------------------------------------------------------------

    async def pre_bind(self, cycle: BindingCycle) -> Verdict | None:
        """Evict the victims of a cycle, and wait for their end. Return why the cycle is to be given up; None if not."""
        return await self.stage.run(cycle)

    async def recovered(self, dropped: Sequence[Reservation]) -> None:
        """Remove the condition DisruptionTarget from victims of earlier terms that are not evicted any more.

        These are the victims of ``dropped``, i.e. of records that could not be continued, and victims that no record
        names. The core calls this once per term, after the recovery from records and before it plans any gang.
        """
        for record in dropped:
            await self.stage.spare_victims(record)
        await self.stage.remove_stale_conditions()

    def ended(self, gang: GroupState, cycle: BindingCycle, refused: Collection[str], verdict: Verdict | None) -> None:
        """Start a pause before the next evictions for a gang whose cycle has ended, if pods were evicted in vain.

        In vain: ``verdict`` is set, so the cycle was given up; or the cycle was for members beyond the quorum, and not
        all of them were bound. If pods were evicted with success, the next pause is short again. ``refused`` are the
        UIDs of members that kube-scheduler rejected.
        """
        bound = cycle.bound and cycle.bound >= cycle.reservation.slots.keys()
        if verdict is None:
            gang.memory.pop(Finding, None)
        if not cycle.eviction_sent:
            return
        if verdict is not None:
            self._pause_evictions(gang, cycle, refused if verdict.reason is Reason.DEADLINE_EXCEEDED else ())
        elif not bound and not cycle.reservation.need:
            self._pause_evictions(gang, cycle, refused)
        else:
            # Members that join a running gang in free room show nothing about evictions in vain.
            gang.refusals.reset_preemptions()

    def _pause_evictions(self, gang: GroupState, cycle: BindingCycle, refused: Iterable[str]) -> None:
        """Delay the next evictions for a gang; the pause doubles with each preemption in vain.

        ``refused`` are the UIDs of members for which kube-scheduler found no node although the victims were gone. It
        did not even call filter, so one of its own plugins rejects the planned node. Later searches evict no pods on
        these nodes, nor on nodes where pods of other schedulers took the freed resources.
        """
        now, refusals = self._clock(), gang.refusals
        for uid in refused:
            pod, slot = self._store.pods.get(uid), cycle.reservation.slots.get(uid)
            if pod is not None and slot is not None:
                refusals.exclude_node(pod.shape, slot.node, self._store)
                refusals.exempt_from_evictions(pod.shape, slot.node, now, self._store)
        refusals.pause_evictions(now)
        for node, uids in self._find_intruders(cycle).items():
            refusals.note_taken_by_others(node, uids, self._store)

    def _find_intruders(self, cycle: BindingCycle) -> dict[str, frozenset[str]]:
        """Return the pods of other schedulers that use the resources freed for a cycle: their UIDs by node.

        Only nodes count on which the waiting members planned there no longer all fit, although the victims there are
        gone. The slots are those planned at the first eviction (``cycle.evicted_for``), as the cycle has released its
        slots by now. Pods that ran there before the first eviction (``cycle.foreign_pods``) do not count.
        """
        pods = self._store.pods
        ending = {pod.node for uid in cycle.reservation.victims if (pod := pods.get(uid)) is not None and pod.bound}
        wanted: dict[str, Resources] = {}
        for uid, slot in cycle.evicted_for.items():
            member = pods.get(uid)
            if member is not None and member.pending and slot.node not in ending:
                wanted[slot.node] = add(wanted.get(slot.node, {}), dict(member.shape.requests))
        full = {name for name, request in wanted.items() if not self._has_room(name, request)}
        found: dict[str, set[str]] = {}
        for pod in self._store.list_foreign(full):
            if pod.uid not in cycle.foreign_pods:
                found.setdefault(pod.node, set()).add(pod.uid)
        return {name: frozenset(uids) for name, uids in found.items()}

    def _has_room(self, name: str, request: Resources) -> bool:
        node, used = self._store.nodes.get(name), self._store.occupancy.used.get(name, {})
        return node is None or count_slots(node.allocatable, used, request) > 0

    # --- searching ---------------------------------------------------------------------------------------------

    def start_search(
        self, gang: GroupState, waiting: Waiting, request: PlanRequest, refusal: Verdict, opens_in: float, taken: int
    ) -> Decision | Verdict:
        """Begin a search for a gang that the planner has just rejected.

        Return victims and plan if the search has ended at once, else the verdict to report. No search begins while
        preemption is off, in a pause after earlier evictions or searches, or if it would be pointless
        (`find_reason_not_to_search`). ``refusal`` is the planner's verdict. ``opens_in`` is the time in seconds until
        the gang may be planned at a wider topology level; infinite if none is left. ``request`` has the members, and
        excludes nodes; ``taken`` of these nodes are excluded because pods of other schedulers took what evictions had
        freed there.
        """
        group = waiting.group
        now = self._clock()
        freed, last = self._snapshots.count_freed(), gang.memory.find(Search)
        search = gang.memory[Search] = Search(
            request, waiting, refusal, now + opens_in, freed_counts=freed, taken_nodes=taken
        )
        if self._mode is PreemptionMode.OFF:
            return refusal
        if now < gang.refusals.no_search_before:
            # If its last search found no victims, resources freed since then still lead to a search before that time.
            gang.entry.retry_by(gang.refusals.no_search_before)
            if last is not None:
                search.result_text, search.freed_counts, search.repeat_from = (
                    last.result_text,
                    last.freed_counts,
                    last.repeat_from,
                )
            return search.describe()
        if self.find_reason_not_to_search(search):
            self._queue_next_search(group, search, 0.0)
            return refusal
        search.running = True
        return self._collect_result(gang, group) or search.describe()

    def _collect_result(self, gang: GroupState, group: GroupKey) -> Decision | Verdict | None:
        """Continue the running search of a gang. Once it has ended, return victims and plan, or the verdict to report.

        Return None if no search runs, or it has not ended yet. If victims were found, but the cluster has changed
        since, the search is repeated, up to three times; after that it counts as without a result.
        """
        search = gang.memory.find(Search)
        if search is None or not search.running:
            return None
        try:
            found = self._run_search(search)
        except Unfinished:
            return None
        backoff = self._planning_tasks.drop_plans(group)
        if isinstance(found, Preemption) and found.victims and not self._is_still_valid(found, search.request):
            search.restarts += 1
            if search.restarts <= _MAX_RESTARTS:
                return self._collect_result(gang, group)
            found = None
        search.running = False
        gang.memory.get_or_create(Finding).found = found
        return self._decide(gang, search, found, backoff.seconds)

    def _decide(
        self, gang: GroupState, search: Search, found: Preemption | NoVictims | None, pause: float
    ) -> Decision | Verdict:
        """Return victims and plan if Serried acts on the result ``found`` of a search, else the verdict to report.

        Serried evicts nothing if ``--preemption`` only gives advice, or if resources are forecast to be free before the
        victims would have ended. ``pause`` is the shortest time until the next search, in seconds; after a search that
        took long it is long, too.
        """
        group = search.waiting.group
        sooner = self._forecast_before_victims_end(group, found)
        acts = sooner is None and self._mode is not PreemptionMode.ADVICE
        if acts and isinstance(found, Preemption) and found.victims:
            return Decision(search.request, found.plan, found.victims)
        self._pause_searches(gang, found, pause)
        self._queue_next_search(group, search, pause)
        if sooner is not None:
            gang.entry.retry_by(sooner + _PAUSE_AFTER_VAIN_SECONDS)
            return search.refusal  # its text contains the forecast
        search.result_text = _explain(found)
        return search.describe()

    def _queue_next_search(self, group: GroupKey, search: Search, pause: float) -> None:
        """Append a gang to the queue for its next search, which begins after ``pause`` seconds at the earliest."""
        search.repeat_from = self._clock() + max(_MIN_PAUSE_SECONDS, pause)
        self._searched.pop(group, None)
        self._searched[group] = None

    def pop_due(self, states: Mapping[GroupKey, GroupState]) -> list[GroupKey]:
        """Remove from the queue, and return, the gangs whose search is due again. Called about twice a second.

        A search is due if its pause is over and resources were freed since the gang was rejected, or a minute after the
        end of the pause. ``states`` has all gangs; gangs that do not wait any more are dropped from the queue. At most
        four gangs are returned.
        """
        due: list[GroupKey] = []
        for group in list(islice(self._searched, _MAX_CHECKED)):
            if len(due) == _MAX_REQUEUED:
                break
            del self._searched[group]
            search = states[group].memory.find(Search) if group in states else None
            if search is None or search.repeat_from is None:
                continue  # it no longer waits for room, or its search runs
            if self._is_due(search, search.repeat_from) and not self.find_reason_not_to_search(search):
                due.append(group)
            else:
                self._searched[group] = None  # behind all others
        return due

    def _is_due(self, search: Search, repeat_from: float) -> bool:
        now = self._clock()
        return now >= repeat_from and (
            search.freed_counts != self._snapshots.count_freed() or now >= repeat_from + _REPEAT_SECONDS
        )

    def find_reason_not_to_search(self, search: Search) -> str:
        """Return why a search for victims would be pointless for a gang, a sentence; "" if there may be victims.

        For instance the gang does not wait for resources, its preemptionPolicy is Never, or no pod of lower priority
        runs.
        """
        if Trait.NEEDS_RESOURCES not in search.refusal.reason.traits:
            return "evictions do not help this gang"
        if search.request.own_slots:
            return "the gang waits for the nodes that Serried keeps for its replacements"
        if search.waiting.rejected:
            return (
                "Serried evicts no pod: kube-scheduler rejects a member for a reason that free resources do not change"
            )
        if search.wider_level_at < math.inf:
            return "Serried evicts no pod for a preferred level: it tries a wider level first"
        if not self._priorities.may_preempt(search.waiting.group):
            return "the PriorityClass, the group or a member has preemptionPolicy Never"
        return "" if self._has_lower_priority(search.waiting.priority) else "no running pod has a lower priority"

    def _has_lower_priority(self, priority: int) -> bool:
        """Return whether a pod or group with a priority below ``priority`` may be running.

        Checked before a search: if it is False, the search over all pods is not needed.
        """
        if any(each < priority for each in self._running_priorities):
            return True
        return any(each < priority for each in self._priorities.list_values())

    def _forecast_before_victims_end(self, group: GroupKey, found: Preemption | NoVictims | None) -> float | None:
        """Return the loop time at which a gang is forecast to fit without evictions, if the victims would end later.

        None if the longest grace period of the victims ends before that time, if there are no victims that run, or if
        there is no reliable forecast.
        """
        if not isinstance(found, Preemption):
            return None
        expected = (feature.find_forecast_time(group) for feature in self._features[Feature.find_forecast_time])
        at = min((each for each in expected if each is not None), default=None)
        if at is None:
            return None
        now = self._clock()
        ending = (unit for unit in found.victims if not unit.planned)
        grace = max((pod.grace for unit in ending for pod in unit.pods), default=-1)
        return at if now <= at <= now + grace else None

    def _run_search(self, search: Search) -> Preemption | NoVictims | None:
        """Start or continue the planning task of a search, and return its result; None if it took too long.

        Raise Unfinished while the task runs; the gang is requeued when it has ended.
        """
        group = search.waiting.group
        leaving = self._list_kept_slots(search)
        answer = self._planning_tasks.find_victims(group, search.request, leaving, self.make_search_function(search))
        found: Preemption | NoVictims | None = answer.found
        self._metrics.searched(_name_outcome(found), answer.seconds or 0.0)
        return found

    def _list_kept_slots(self, search: Search) -> Sequence[Vacancy]:
        return self._kept_slots.list_kept(search.request.members)

    def make_search_function(self, search: Search, gone: AbstractSet[str] = frozenset()) -> Compute:
        """Return the function that searches the victims for ``search`` on a snapshot. A planning task runs it.

        The function first leaves out pods that have just started, and takes them only if there are no other victims.
        ``gone`` are the UIDs of pods that count as deleted.
        """
        spared = self._find_spared_priority(search.waiting.priority)
        latest = self._wall() - self._spare_seconds

        def make(snapshot: Snapshot, capacity: Capacity) -> Preemption | NoVictims:
            candidates = self._units.list_candidates(search.waiting.group, gone, snapshot.limit)
            if self._method is EvictionMethod.EVICTION:
                candidates = enforce_budgets(candidates)
            if not search.request.need:
                candidates = enforce_quorums(candidates)
            gentle = protect_young(candidates, spared, latest) if self._spare_seconds else candidates
            found = self._solve(snapshot, search, gentle, capacity)
            if isinstance(found, NoVictims) and gentle is not candidates:
                return self._solve(snapshot, search, candidates, capacity)
            return found

        return make

    def _solve(
        self, snapshot: Snapshot, search: Search, candidates: VictimCandidates, capacity: Capacity
    ) -> Preemption | NoVictims:
        return plan_victims(
            snapshot,
            search.request,
            search.waiting.priority,
            candidates.units,
            candidates.allowances,
            capacity,
        )

    def _find_spared_priority(self, priority: int) -> int:
        """Return the highest priority in the cluster below ``priority``; ``priority`` itself if there is none.

        Pods of this priority that have just started are no victims if others suffice.
        """
        levels = {*self._priorities.list_values(), *self._running_priorities}
        return max((each for each in levels if each < priority), default=priority)

    # --- dry runs by /debug ------------------------------------------------------------------------------------

    def find_search(self, gang: GroupState) -> Search | str:
        """Return the `Search` of a waiting gang, for a dry run of it. Nothing is searched yet.

        If a search would be pointless, return the reason instead, a sentence. The `Search` is returned even while
        preemption is off, and during the pause after an earlier search.
        """
        search = gang.memory.find(Search)
        if search is None:
            return "the gang does not wait for free resources"
        return self.find_reason_not_to_search(search) or search

    def explain_dry_run(self, gang: GroupState, found: Preemption | NoVictims | None) -> str:
        """Return a sentence about the result ``found`` of a dry run: the victims, and whether Serried would evict them.

        ``found`` is None if the dry run took too long.
        """
        return _join(_describe_finding(found), self._explain_no_eviction(gang, found))

    def _explain_no_eviction(self, gang: GroupState, found: Preemption | NoVictims | None) -> str:
        """Return why Serried would not evict the victims ``found`` now, a phrase; "" if it would, or there are none."""
        search = gang.memory.find(Search)
        if search is None or not isinstance(found, Preemption) or not found.victims:
            return ""
        if self._mode is not PreemptionMode.ON:
            return (
                "but Serried evicts no pod: preemption is off (--preemption)"
                if self._mode is PreemptionMode.OFF
                else "but Serried evicts no pod: preemption only gives advice (--preemption)"
            )
        if self._forecast_before_victims_end(search.waiting.group, found) is not None:
            return "but Serried evicts no pod: the gang is forecast to fit before these pods would have ended"
        pause = gang.refusals.no_search_before - self._clock()
        return (
            f"but Serried evicts no pod in the next {math.ceil(pause)} s: the last search found no victims"
            if pause > 0
            else ""
        )

    # --- what was found ----------------------------------------------------------------------------------------

    def _is_still_valid(self, found: Preemption, request: PlanRequest) -> bool:
        if not all(self._units.is_current(unit) for unit in found.victims) or self._breaks_more(found):
            return False
        now = self._snapshots.take(request.priority, request.members, self._kept_slots.list_kept(request.members))
        used: dict[str, Resources] = {}
        for pod in (pod for unit in found.victims for pod in unit.pods):
            base = used.get(pod.node) or now.used.get(pod.node, {})
            used[pod.node] = subtract(base, dict(pod.shape.requests))
        assigned = [now.nodes.get(name) for name in found.plan.nodes.values()]
        if any(node is None for node in assigned):
            return False
        key = request.topology_key
        if key and any(node is not None and node.labels.get(key) != found.plan.domain for node in assigned):
            return False
        without = replace(now, used=Overlay(used, now.used), over=used.keys())
        return revalidate(found.plan, request, now.nodes, without)

    def _breaks_more(self, found: Preemption) -> bool:
        """Return whether the evictions would bring more gangs below their quorum than when the victims were found.

        Members of these gangs may have ended meanwhile.
        """
        allowances = Allowances(self._units.list_spare_members(found.victims))
        now = measure_cost(found.victims, allowances, 0).damages
        return any(each.broken > was.broken for each, was in zip(now, found.cost.damages, strict=True))

    def _pause_searches(self, gang: GroupState, found: Preemption | NoVictims | None, pause: float) -> None:
        now = self._clock()
        gang.refusals.no_search_before = now + max(_PAUSE_AFTER_VAIN_SECONDS, pause)
        if isinstance(found, Preemption) and not found.victims:
            gang.refusals.no_search_before = now
            gang.entry.retry_by(now)  # it fits by now
        elif found is None or (isinstance(found, NoVictims) and found.blocker is Blocker.PROTECTION):
            # Time alone may change this result, without any room being freed.
            gang.entry.retry_by(now + max(REFUSED_EVICTION_SECONDS, pause))


def _name_outcome(found: Preemption | NoVictims | None) -> str:
    if isinstance(found, NoVictims):
        return found.blocker.value.capitalize()
    if found is None:
        return "Unfinished"
    return "Found" if found.victims else "Fits"


def _describe_finding(found: Preemption | NoVictims | None) -> str:
    """Return a sentence about the result of a search, for dry runs; ``found`` is None if the search took too long.

    There is a sentence for each result, also for those that a verdict does not mention because the user of the gang can
    do nothing about them, e.g. if no evictions would help.
    """
    if isinstance(found, Preemption) and not found.victims:
        return "the gang fits without evictions now"
    if isinstance(found, NoVictims) and found.blocker is Blocker.PRIORITY:
        where = f" of {found.domain}" if found.domain else ""
        return f"preemption would help, but pods{where} of priority {found.priority} have no lower priority"
    if isinstance(found, NoVictims) and found.blocker is Blocker.ROOM:
        return "the gang would not fit even if all pods of lower priority were evicted"
    return _explain(found)


def _explain(found: Preemption | NoVictims | None) -> str:
    if found is None:
        return "Serried found no victims in time"
    if isinstance(found, Preemption):
        return f"the gang would fit without {describe_victims(found.victims)}" if found.victims else ""
    where = f" of {found.domain}" if found.domain else ""
    if found.blocker is Blocker.PROTECTION:
        count = count_things(found.protected, "pod") if found.protected else "pods"
        return f"preemption would help, but {count}{where} may not be evicted: {', '.join(found.protections)}"
    return ""  # too little runs at a lower priority, and the user of the gang can do nothing about that


def describe_victims(units: Collection[EvictionUnit]) -> str:
    """Return a phrase with the number of victims, which are the pods in these units, and some of their names.

    A unit has the pods that are evicted together.
    """
    pods = [pod for unit in units for pod in unit.pods]
    return f"{count_things(len(pods), 'pod')} of lower priority ({name_victims(pods)})"


def _join(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
