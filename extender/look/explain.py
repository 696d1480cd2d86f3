"""The parts of ``/debug/groups/NAMESPACE/NAME`` that explain why a group waits, and what would make it run.

`Inquiries` finds out on request, in a forked child, why a gang does not fit, which change would make it fit, and which
pods would be evicted for it now (``?dryRun``). The ``view_`` functions make the documents; nothing is changed.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import nlargest

from fastapi import HTTPException

from extender.core.scheduling.group import GroupState
from extender.core.scheduling.planning import KeptSlots
from extender.core.timeline import Milestone, Reached
from extender.features.preemption.search import Search
from extender.features.repair import broken_since
from extender.look.document import View
from extender.wiring import Core
from serried.api.group import Leaf
from serried.api.names import GroupKey, write_time
from serried.cluster.cache import Store
from serried.cluster.run_times import Trust
from serried.ops.fork import NoAnswerError, answer_in_child
from serried.ops.slices import one_by_one
from serried.plan.eviction import Cost, NoVictims, Preemption
from serried.plan.explain import (
    Advice,
    Change,
    Diagnosis,
    DomainDiagnosis,
    HurdleCount,
    RunningGang,
    count_things,
    describe_advice,
    describe_domain,
    diagnose,
    find_advice,
)
from serried.plan.fit import HurdleKind
from serried.plan.limit import Limit, TooLong
from serried.plan.request import PlanRequest, QueueKey, Snapshot, Waiting

_MAX_SECONDS = 2.0
"""The work that an inquiry may take, in seconds."""

_MAX_SEARCH_SECONDS = 5.0
"""The work that a dry run may take, in seconds."""

_MAX_WAITING = 8
"""The number of inquiries that may wait for their turn."""


class TooManyInquiriesError(Exception):
    """Raised if `_MAX_WAITING` inquiries are waiting already."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of an inquiry about one gang."""

    diagnosis: Diagnosis | None
    """The reason why the gang does not fit; None if it took too long."""

    advice: tuple[Advice, ...]

    complete: bool
    """True if all changes were tried in time."""

    spent_seconds: float
    longest_seconds: float
    """The longest time for which the event loop was blocked."""


class Inquiries:
    """Answers inquiries about gangs, one at a time, in order. ``stopwatch`` measures the work of a thread."""

    def __init__(self, core: Core, stopwatch: Callable[[], float] = time.thread_time) -> None:
        self._core = core
        self._stopwatch = stopwatch
        self._lock = asyncio.Lock()
        self._waiting = 0

    async def diagnose(self, group: GroupKey) -> Finding | None:
        """Return why a gang that waits for room does not fit; None for other groups. Raises TooManyInquiriesError."""
        return await self._inquire(group, _Inquiry.explain)

    async def advise(self, group: GroupKey) -> Finding | None:
        """Return the same, with the changes that would make the gang fit. Raises TooManyInquiriesError."""
        return await self._inquire(group, _Inquiry.advise)

    async def dry_run(self, group: GroupKey) -> "DryRunView":
        """Search victims for a group now, and evict none. The view says why if there was no search."""
        state = self._core.groups.states.get(group)
        if not self._core.term.plans or state is None:
            return DryRunView(message="this instance does not plan the group: ask the instance that leads", found=None)
        if self._waiting >= _MAX_WAITING:
            return DryRunView(message="too many dry runs are running: ask again later", found=None)
        self._waiting += 1
        try:
            async with self._lock:
                return await self._dry_run(state)
        finally:
            self._waiting -= 1

    async def _dry_run(self, state: GroupState) -> "DryRunView":
        search = self._core.preemptions.find_search(state)
        if isinstance(search, str):
            return DryRunView(message=search, found=None)
        core = self._core

        def find() -> Preemption | NoVictims | None:
            limit = Limit(self._stopwatch, _MAX_SEARCH_SECONDS, _MAX_SEARCH_SECONDS / 2)
            found: Preemption | NoVictims | None = None
            with suppress(TooLong):
                found = core.preemptions.make_search_function(search)(
                    make_snapshot(core.store, search.request, limit), core.store.capacity
                )
            return found

        found: Preemption | NoVictims | None = None
        with suppress(NoAnswerError):
            found = (await answer_in_child(find, _MAX_SEARCH_SECONDS, core.fork)).found
        return DryRunView(message=core.preemptions.explain_dry_run(state, found), found=view_preemption(found))

    async def _inquire(self, group: GroupKey, begin: Callable[["_Inquiry"], None]) -> Finding | None:
        if self._waiting >= _MAX_WAITING:
            raise TooManyInquiriesError
        self._waiting += 1
        try:
            async with self._lock:
                state = self._core.groups.states.get(group)
                search = state.memory.find(Search) if state is not None else None
                return None if search is None else await self._work(group, search, begin)
        finally:
            self._waiting -= 1

    async def _work(self, group: GroupKey, search: Search, begin: Callable[["_Inquiry"], None]) -> Finding:
        def inquire() -> tuple[Diagnosis | None, list[Advice], bool]:
            inquiry = _Inquiry(self._core, group, search, Limit(self._stopwatch, _MAX_SECONDS))
            try:
                begin(inquiry)
            except TooLong:
                return inquiry.diagnosis, inquiry.advice, False
            return inquiry.diagnosis, inquiry.advice, True

        try:
            worked = await answer_in_child(inquire, _MAX_SECONDS, self._core.fork, self._stopwatch)
        except NoAnswerError:
            return Finding(None, (), complete=False, spent_seconds=0.0, longest_seconds=0.0)
        diagnosis, advice, complete = worked.found
        return Finding(diagnosis, tuple(advice), complete, worked.spent, worked.held)


class _Inquiry:
    """One inquiry in the child, with its results so far, which count also if it takes too long."""

    def __init__(self, core: Core, group: GroupKey, search: Search, limit: Limit) -> None:
        self.diagnosis: Diagnosis | None = None
        self.advice: list[Advice] = []
        self._core = core
        self._group = group
        self._ask = search.request
        self._asked = search.rejected_request or search.request
        self._limit = limit

    def explain(self) -> None:
        """Set ``diagnosis``. Raises TooLong."""
        store = self._core.store
        self.diagnosis = diagnose(make_snapshot(store, self._ask, self._limit), self._asked, store.capacity)

    def advise(self) -> None:
        """Set ``diagnosis`` and ``advice``. Raises TooLong; the advice found so far is kept."""
        self.explain()
        store = self._core.store
        residents, keys = self._list_residents()
        snapshot = make_snapshot(store, self._ask, self._limit)
        find_advice(snapshot, self._ask, residents, store.capacity, keys=keys, found=self.advice)

    def _list_residents(self) -> tuple[list[RunningGang], set[str]]:
        """Return the other running gangs, and the topology keys of all groups."""
        store = self._core.store
        residents = []
        keys: set[str] = set()
        for group in store.groups.values():
            self._limit.spend()
            keys.update(level.key for level in group.preference.levels)
            keys.update([group.topology_key] if group.topology_key is not None else ())
            pods = [pod for pod in store.members.of_group(group.key) if pod.bound and not pod.deleting]
            if pods and group.policy.is_gang and group.key != self._group and group.parent is None:
                movable = isinstance(group.tree, Leaf)
                residents.append(RunningGang(str(group.key), pods, group.topology_key, movable))
        return residents, keys


def make_snapshot(store: Store, request: PlanRequest, limit: Limit) -> Snapshot:
    """Return the cluster as the planner would see it now for this request."""
    leaving = KeptSlots(store).list_kept(request.members)
    return replace(store.snapshots.take(request.yielding_priority, request.members, leaving), limit=limit)


class DamageView(View):
    """The cost of the victims of one priority."""

    priority: int
    violations: int
    broken: int
    pods: int


class AlternativeView(View):
    """Another domain, and its cost."""

    domain: str
    cost: list[DamageView]


class PreemptionView(View):
    """The result of a search for victims."""

    domain: str
    """The domain of the plan; without victims, the domain that lacks least."""

    victims: list[str]
    """The namespace and name of each victim, the highest priority first."""

    cost: list[DamageView]
    """The cost by priority, the highest first."""

    nextBest: AlternativeView | None
    """The next best domain; None if there is none, or none was examined."""

    domainsFitting: int
    """The number of domains that would hold the gang after some evictions."""

    domainsExamined: int
    """The number of these domains for which victims were chosen, the most promising first."""

    blocker: str
    """The obstacle if no evictions help: protection, priority or room; "" with victims."""

    protections: list[str]
    """For protection: the reasons why pods may not be evicted."""

    protected: int
    """For protection: the number of pods that may not be evicted; 0 if a PodDisruptionBudget allows too few."""


def view_preemption(found: Preemption | NoVictims | None) -> PreemptionView | None:
    """Return the document of a search; None if there was no search, or no result in time."""
    if found is None:
        return None
    if isinstance(found, NoVictims):
        return PreemptionView(
            domain=found.domain,
            victims=[],
            cost=[],
            nextBest=None,
            domainsFitting=0,
            domainsExamined=0,
            blocker=found.blocker.value,
            protections=list(found.protections),
            protected=found.protected,
        )
    other = found.runner_up
    return PreemptionView(
        domain=found.plan.domain,
        victims=[f"{pod.namespace}/{pod.name}" for unit in found.victims for pod in unit.pods],
        cost=_view_cost(found.cost),
        nextBest=None if other is None else AlternativeView(domain=other.domain, cost=_view_cost(other.cost)),
        domainsFitting=found.domains_fitting,
        domainsExamined=found.domains_examined,
        blocker="",
        protections=[],
        protected=0,
    )


def _view_cost(cost: Cost) -> list[DamageView]:
    return [DamageView(**damage._asdict()) for damage in cost.damages]


_WORDS = (None, "", "All")
"""The values of ``?dryRun``: none, as users type it, or ``All`` as for the API server."""


class DryRunView(View):
    """The pods that would be evicted for a group now."""

    message: str
    """The victims, or why none would be evicted, as a sentence."""

    found: PreemptionView | None
    """The result of the search; None if there was none, or no result in time."""


def read_dry_run(text: str | None) -> bool:
    """Return whether a dry run is wanted. Raises HTTPException 400 for an unknown value."""
    if text not in _WORDS:
        raise HTTPException(400, f"dryRun is All or nothing, not {str(text)[:100]!r}")
    return text is not None


def find_queue_key(core: Core, group: GroupKey) -> tuple[QueueKey, Waiting]:
    """Return the sort key of a group in the queue, and the values of which it is made."""
    waiting = core.queue.describe(group, core.groups.states.get(group))
    return core.queue.sort_key(waiting), waiting


_MAX_DOMAINS = 50
_MAX_BEFORE = 10
_MAX_NODES = 100


class MilestoneView(View):
    """One step in the history of a group."""

    milestone: str
    """The step: `seen`, `quorum`, `planned`, `steered`, `atBind`, `committed`, `bound`, `givenUp`, `broken` etc."""

    at: str
    """The time, RFC 3339."""


class HurdleView(View):
    """A condition that keeps members off nodes."""

    kind: HurdleKind

    name: str
    """The resource, or the key of the taint or label; "" if the kind has no name."""

    nodes: int
    """The number of nodes with this hurdle."""


class DomainNeedView(View):
    """A domain that does not hold the gang, and what it lacks."""

    domain: str
    """The domain; "" for the whole cluster."""

    slots: int
    """The number of members that fit; an upper limit if members have several shapes."""

    need: int

    nodes: int
    """The number of its nodes."""

    hurdles: list[HurdleView]
    """The hurdles on nodes that take no member, the most frequent first."""

    taken: bool
    """True if an exclusive gang occupies the domain."""

    text: str
    """The hurdles and the occupation of the domain, as one line for people."""


class QueuePlaceView(View):
    """The place of a group in the queue."""

    position: int
    """The place; 1 for the first."""

    length: int
    """The number of groups that wait for room."""

    before: list[str]
    """The groups right before it, the nearest last."""

    owners: list[str]
    """The owners of these groups, in the same order."""


class ForecastView(View):
    """The forecast of room for the head of the queue."""

    domain: str

    at: str
    """The time, RFC 3339; "" if it is unknown."""

    nodes: list[str]

    basis: str
    """The basis of the forecast, as a phrase."""


class AdviceView(View):
    """A change with which the planner has found a plan."""

    change: Change

    text: str
    """The action, as a phrase."""

    nodes: list[str]
    """The nodes to be uncordoned, or the nodes to which another gang would move."""

    name: str
    """The resource, the topology key, or the other gang; "" for none."""

    before: int
    after: int

    domain: str
    """The domain to which another gang would move; "" for any."""

    plannedDomain: str
    """The domain of this gang's plan; "" for any."""


class DiagnosisView(View):
    """The reasons why a gang that waits for room does not fit."""

    key: str
    """The topology key, "" without one."""

    need: int

    domains: list[DomainNeedView]
    """The domains; those that lack least come first."""

    domainsLeftOff: int
    """The number of domains that are left out here."""

    hurdles: list[HurdleView]
    """The hurdles of all domains; the first is the dominant one."""

    dominant: str
    """The dominant hurdle as a phrase; "" if there is none."""

    advice: list[AdviceView] | None
    """The changes that would make it fit, the cheapest first; None if `?diagnosis=advice` was not set."""

    complete: bool
    """True if all changes were tried in time."""

    seconds: float
    """The work that it took, in seconds."""

    longestSliceSeconds: float
    """The longest time for which it blocked the event loop."""


def view_timeline(core: Core, key: GroupKey) -> list[MilestoneView]:
    """Return the history of a group, the oldest step first."""
    reached = list(core.context.timelines.of_group(key))
    since = broken_since(core.groups.states.get(key))
    if since is not None and Milestone.BROKEN not in {each.milestone for each in reached[-3:]}:
        # `Repairs` notes the milestone only after the grace period.
        reached.append(Reached(Milestone.BROKEN, core.context.wall() + since - core.clock()))
    return [
        MilestoneView(milestone=each.milestone.value, at=write_time(each.at))
        for each in sorted(reached, key=lambda each: each.at)
    ]


async def view_queue_place(core: Core, key: GroupKey) -> QueuePlaceView | None:
    """Return the place of a group in the queue; None if it does not wait for room."""
    queue = core.queue
    others = [
        find_queue_key(core, group)[0]
        async for group in one_by_one(queue.unschedulable)
        if group != key and group in queue
    ]
    if key not in queue:
        return None
    own, _ = find_queue_key(core, key)
    earlier = [turn for turn in others if turn < own]
    nearest = [group for *_, group in sorted(nlargest(_MAX_BEFORE, earlier))]
    return QueuePlaceView(
        position=len(earlier) + 1,
        length=len(others) + 1,
        before=[str(group) for group in nearest],
        owners=[core.store.membership.name_owner(group) for group in nearest],
    )


async def view_forecast(core: Core, key: GroupKey) -> ForecastView | None:
    """Return the forecast of the head of the queue; None for any other group."""
    backfill = core.backfill
    head = backfill.head
    if head is None or head.group != key:
        return None
    forecast = head.forecast
    return ForecastView(
        domain=forecast.domain,
        at="" if forecast.at is None else backfill.format_time(forecast.at),
        nodes=sorted(forecast.nodes)[:_MAX_NODES],
        basis=await _describe_basis(core, key, forecast.nodes),
    )


async def _describe_basis(core: Core, key: GroupKey, nodes: frozenset[str]) -> str:
    """Return a phrase that says how it is known when the pods on these nodes end."""
    store, now = core.store, core.context.wall()
    others = enforced = known = 0
    async for pod in one_by_one(store.pods.values()):
        is_there = pod.uid in store.pods  # the pod may have been deleted between two steps
        if is_there and pod.bound and pod.node in nodes and store.members.group_of(pod.uid) != key:
            others += 1
            enforced += store.endings.expect(pod, now, Trust.DEADLINES) is not None
            known += store.endings.expect(pod, now, Trust.MEASURED) is not None
    return (
        f"the ends of {count_things(others, 'pod')}: {enforced} with a deadline, {known - enforced} by how long "
        f"earlier Jobs of the kind ran, {others - known} of which nothing is known"
    )


def view_finding(finding: Finding, advice: list[AdviceView] | None) -> DiagnosisView | None:
    """Return the document of a finding; None if the inquiry took too long."""
    found = finding.diagnosis
    if found is None:
        return None
    return DiagnosisView(
        key=found.key,
        need=found.need,
        domains=[_view_domain(each, found.need) for each in found.domains[:_MAX_DOMAINS]],
        domainsLeftOff=max(0, found.domain_count - _MAX_DOMAINS),
        hurdles=[_view_hurdle(each) for each in found.hurdles],
        dominant=str(found.hurdles[0]) if found.hurdles else "",
        advice=advice,
        complete=finding.complete,
        seconds=round(finding.spent_seconds, 4),
        longestSliceSeconds=round(finding.longest_seconds, 4),
    )


def view_advice(advice: Advice) -> AdviceView:
    """Return the document of one change."""
    return AdviceView(
        change=advice.change,
        text=describe_advice(advice),
        nodes=list(advice.nodes[:_MAX_NODES]),
        name=advice.name,
        before=advice.before,
        after=advice.after,
        domain=advice.domain,
        plannedDomain=advice.plan.domain,
    )


def _view_domain(found: DomainDiagnosis, need: int) -> DomainNeedView:
    return DomainNeedView(
        domain=found.domain,
        slots=found.slots,
        need=need,
        nodes=found.nodes,
        hurdles=[_view_hurdle(each) for each in found.hurdles],
        taken=found.taken,
        text=describe_domain(found, need),
    )


def _view_hurdle(count: HurdleCount) -> HurdleView:
    return HurdleView(kind=count.hurdle.kind, name=count.hurdle.name, nodes=count.nodes)
