"""The parts of ``/debug/groups/NAMESPACE/NAME`` that explain why a group waits, and what would make it run.

An inquiry is a request for an explanation that needs planning: why a gang does not fit, which change would make it fit,
or which pods would be evicted for it now (``?dryRun``). `Inquiries` answers it in a forked child process, so that
filter is not delayed. The ``view_`` functions create the parts of the document. Nothing is changed.
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
from serried.api.names import GroupKey, count_things, write_time
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
    describe_advice,
    describe_domain,
    diagnose,
    find_advice,
)
from serried.plan.fit import HurdleKind
from serried.plan.limit import Limit, TooLong
from serried.plan.request import PlanRequest, QueueKey, Snapshot, Waiting

_MAX_SECONDS = 2.0
"""The longest work of an inquiry about why a gang does not fit or what would help, in seconds."""

_MAX_SEARCH_SECONDS = 5.0
"""The longest work of a search for victims by ``?dryRun``, in seconds."""

_MAX_WAITING = 8
"""The largest number of inquiries that run or wait at a time; one of them runs."""


class TooManyInquiriesError(Exception):
    """Raised if `_MAX_WAITING` inquiries run or wait already."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of an inquiry about why a gang does not fit, and what would help."""

    diagnosis: Diagnosis | None
    """The analysis why the gang does not fit; None if it took too long."""

    advice: tuple[Advice, ...]

    complete: bool
    """True if the inquiry ended in time. If False, ``advice`` lacks the changes that were not tried yet."""

    spent_seconds: float
    longest_seconds: float
    """The longest time for which the inquiry blocked this process's event loop, in seconds."""


class Inquiries:
    """Answers users who ask why a gang does not fit, what would help, and whom it would preempt: one at a time.

    ``stopwatch`` returns the seconds of work of the calling thread.
    """

    def __init__(self, core: Core, stopwatch: Callable[[], float] = time.thread_time) -> None:
        self._core = core
        self._stopwatch = stopwatch
        self._lock = asyncio.Lock()
        self._waiting = 0

    async def diagnose(self, group: GroupKey) -> Finding | None:
        """Return why a gang that waits for free resources does not fit; None for other groups.

        Raises TooManyInquiriesError.
        """
        return await self._inquire(group, _Inquiry.explain)

    async def advise(self, group: GroupKey) -> Finding | None:
        """Return why a gang that waits for free resources does not fit, and changes that would make it fit.

        Return None for other groups. Raises TooManyInquiriesError.
        """
        return await self._inquire(group, _Inquiry.advise)

    async def dry_run(self, group: GroupKey) -> "DryRunView":
        """Search victims for a group now, without evicting them. If no search was possible, the document says why."""
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
    """One inquiry, created and run in the child process.

    ``diagnosis`` and ``advice`` hold the results so far. If TooLong ends the inquiry, the child returns these.
    """

    def __init__(self, core: Core, group: GroupKey, search: Search, limit: Limit) -> None:
        self.diagnosis: Diagnosis | None = None
        self.advice: list[Advice] = []
        self._core = core
        self._group = group
        self._ask = search.request
        self._asked = search.rejected_request or search.request
        self._limit = limit

    def explain(self) -> None:
        """Find out why the gang does not fit, and set ``diagnosis``. Raises TooLong."""
        store = self._core.store
        self.diagnosis = diagnose(make_snapshot(store, self._ask, self._limit), self._asked, store.capacity)

    def advise(self) -> None:
        """Set ``diagnosis``, and search changes that would make the gang fit.

        Each change is added to ``advice`` when it is found. Raises TooLong.
        """
        self.explain()
        store = self._core.store
        residents, keys = self._list_residents()
        snapshot = make_snapshot(store, self._ask, self._limit)
        find_advice(snapshot, self._ask, residents, store.capacity, keys=keys, found=self.advice)

    def _list_residents(self) -> tuple[list[RunningGang], set[str]]:
        """Return the running gangs other than this one, and the topology keys of all groups.

        The advice may be that one of these gangs moves to other nodes to make room, unless it is a tree of groups.
        """
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
    """Return the cluster as the planner would see it now for this request.

    ``limit`` is the time that planning on the snapshot may take; the planner raises TooLong when it is over.
    """
    leaving = KeptSlots(store).list_kept(request.members)
    return replace(store.snapshots.take(request.yielding_priority, request.members, leaving), limit=limit)


class DamageView(View):
    """The cost of evicting the victims of one priority. `pods` is the number of these victims."""

    priority: int

    violations: int
    """The number of evictions that exceed a PodDisruptionBudget."""

    broken: int
    """The number of gangs that lose their quorum, and of CompositePodGroups that keep too few child groups."""

    pods: int


class AlternativeView(View):
    """The second best domain of a search for victims, and the cost of evicting victims there."""

    domain: str
    cost: list[DamageView]


class PreemptionView(View):
    """The result of a search for victims, i.e. pods to evict so that a gang fits."""

    domain: str
    """The domain in which the gang would be placed.

    Without victims, the domain in which it would fit if evictions were allowed.
    """

    victims: list[str]
    """The victims as `namespace/name`, the highest priority first; empty if no evictions help."""

    cost: list[DamageView]
    """The cost of the victims of each priority, the highest priority first."""

    nextBest: AlternativeView | None
    """The second best domain; None if victims were chosen in fewer than two domains."""

    domainsFitting: int
    """The number of domains, among those searched, in which the gang would fit after evictions."""

    domainsExamined: int
    """The number of domains in which victims were chosen and their cost compared: at most `domainsFitting`."""

    blocker: str
    """The reason why no evictions help; "" if there are victims.

    It is `protection` if pods of lower priority must not be evicted, `priority` if only pods of no lower priority are
    in the way, and `room` if the gang would not fit even on empty nodes.
    """

    protections: list[str]
    """The reasons why pods must not be evicted, if `blocker` is `protection`; otherwise empty."""

    protected: int
    """The number of pods that must not be evicted, if `blocker` is `protection`.

    It is 0 if no single pod is protected, but budgets or gangs limit how many may be evicted.
    """


def view_preemption(found: Preemption | NoVictims | None) -> PreemptionView | None:
    """Return the result of a search for victims as a document; None without a result."""
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
"""The allowed values of ``?dryRun``: no parameter, the parameter without a value, or ``All`` as for the API server."""


class DryRunView(View):
    """The pods that would be evicted for a group now, by a search without effects."""

    message: str
    """A sentence that names the victims, or says why none would be evicted."""

    found: PreemptionView | None
    """The result of the search; None if there was no search, or it took too long."""


def read_dry_run(text: str | None) -> bool:
    """Return whether a request has the parameter ``?dryRun``.

    ``text`` is its value; None if the request does not have it. Raises HTTPException 400 for a value other than "" and
    ``All``.
    """
    if text not in _WORDS:
        raise HTTPException(400, f"dryRun is All or nothing, not {str(text)[:100]!r}")
    return text is not None


def find_queue_key(core: Core, group: GroupKey) -> tuple[QueueKey, Waiting]:
    """Return the key by which the queue sorts a group (the lowest first), and the values that the key is made of.

    The values are for instance the group's priority and the time since which it waits.
    """
    waiting = core.queue.describe(group, core.groups.states.get(group))
    return core.queue.sort_key(waiting), waiting


_MAX_DOMAINS = 50
_MAX_BEFORE = 10
_MAX_NODES = 100


class MilestoneView(View):
    """One milestone in the history of a group, such as that it was planned or bound, and its time."""

    milestone: str
    """The name, such as `planned`, `committed` or `bound`.

    `seen`: Serried has assessed the group for the first time. `quorum`: minCount members exist. `steered`: filter has
    answered with the node of a slot. `atBind`: the first bind call is open. `givenUp`: the plan was given up.
    """

    at: str
    """The time at which the group reached it, RFC 3339."""


class HurdleView(View):
    """A reason for which nodes are not feasible for a member, such as too little memory or a taint: a hurdle."""

    kind: HurdleKind

    name: str
    """The resource, or the key of the taint or label; "" if `kind` says all."""

    nodes: int
    """The number of nodes that are not feasible for the reason that `kind` and `name` say."""


class DomainNeedView(View):
    """A domain in which a gang does not fit, and what is missing there."""

    domain: str
    """The domain; "" for the whole cluster."""

    slots: int
    """The number of members that fit; an upper limit if members differ in what they request."""

    need: int

    nodes: int
    """The number of nodes in the domain."""

    hurdles: list[HurdleView]
    """The reasons for which the planner can place no member on nodes of the domain, the most frequent first."""

    taken: bool
    """True if an exclusive gang occupies the domain."""

    text: str
    """The reasons and the occupation of the domain, as one line for people."""


class QueuePlaceView(View):
    """The place of a group in the queue."""

    position: int
    """The place in the queue order, from 1."""

    length: int
    """The number of groups in the queue, i.e. those that wait for free resources."""

    before: list[str]
    """The last ten groups before this one, in queue order."""

    owners: list[str]
    """The owners of the groups in `before`, in the same order, as kubectl names them (`job/train`); "" for none."""


class ForecastView(View):
    """The forecast for the gang at the head of the queue: where and when it will fit."""

    domain: str

    at: str
    """The time at which the gang should fit, RFC 3339; "" if it is unknown."""

    nodes: list[str]

    basis: str
    """A phrase that says how it is known when the pods on `nodes` will end."""


class AdviceView(View):
    """A change of the cluster or the gang with which the planner has found a plan."""

    change: Change

    text: str
    """The action to take, as a phrase for people."""

    nodes: list[str]
    """The nodes to uncordon, or the nodes to which another gang would move; empty for other changes."""

    name: str
    """The resource or topology key to change, or the gang to move; "" if the change has none."""

    before: int
    after: int

    domain: str
    """The domain to which another gang would move; "" if it needs no particular one, or for other changes."""

    plannedDomain: str
    """The domain in which this gang would fit after the change; "" without a topology key."""


class DiagnosisView(View):
    """The reasons why a gang that waits for free resources does not fit, by domain and in sum."""

    key: str
    """The topology key in whose domains the gang was tried; "" if it needs none."""

    need: int

    domains: list[DomainNeedView]
    """The domains in which the gang does not fit; at most 50, those with the least missing first."""

    domainsLeftOff: int
    """The number of further domains that `domains` leaves out."""

    hurdles: list[HurdleView]
    """The reasons for which the planner can place no member on nodes of all domains; the most important first."""

    dominant: str
    """The first of `hurdles` as a phrase; "" if there is none."""

    advice: list[AdviceView] | None
    """The changes that would make the gang fit, the cheapest first; None without `?diagnosis=advice`."""

    complete: bool
    """True if all possible changes were tried in time, so that `advice` is complete."""

    seconds: float
    """The work that this diagnosis took, in seconds."""

    longestSliceSeconds: float
    """The longest time for which this diagnosis blocked the extender's event loop, in seconds."""


def view_timeline(core: Core, key: GroupKey) -> list[MilestoneView]:
    """Return the milestones that a group has reached, the oldest first."""
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
    """Return the place of a group in the queue; None if it does not wait for free resources."""
    queue = core.queue
    others = [
        find_queue_key(core, group)[0]
        async for group in one_by_one(queue.unschedulable)
        if group != key and group in queue
    ]
    if key not in queue:
        return None
    own, _ = find_queue_key(core, key)
    earlier = [other for other in others if other < own]
    nearest = [group for *_, group in sorted(nlargest(_MAX_BEFORE, earlier))]
    return QueuePlaceView(
        position=len(earlier) + 1,
        length=len(others) + 1,
        before=[str(group) for group in nearest],
        owners=[core.store.membership.name_owner(group) for group in nearest],
    )


async def view_forecast(core: Core, key: GroupKey) -> ForecastView | None:
    """Return when and where the group will fit, if it is the head of the queue; None for any other group."""
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
    """Return a phrase that says how it is known when the pods on ``nodes`` will end.

    The phrase has the number of pods with a deadline, of those whose end is estimated from earlier Jobs of the kind,
    and of the others. Pods of the group itself, ``key``, are not counted.
    """
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
    """Return the result of an inquiry as a document; None if it took too long.

    ``advice`` are the documents of the changes that would help; None if none were searched.
    """
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
    """Return a change that would make a gang fit, as a document."""
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
