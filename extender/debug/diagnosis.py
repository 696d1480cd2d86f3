"""Why a group waits, and what would make it run, as ``/debug/groups/NAMESPACE/NAME`` shows it."""

from heapq import nlargest

from extender.core import Core
from extender.debug.inquiries import Finding
from extender.debug.queue import find_turn
from extender.debug.view import View
from extender.scheduling.timeline import Milestone, Reached
from serried.cluster.endings import Trust
from serried.decode.times import write_time
from serried.model.diagnosis import (
    Advice,
    Change,
    DomainDiagnosis,
    HurdleCount,
    HurdleKind,
    count_things,
    describe_advice,
    describe_domain,
)
from serried.model.group import GroupKey
from serried.observe.pace import one_by_one

_MAX_DOMAINS = 50
_MAX_BEFORE = 10
_MAX_NODES = 100


class MilestoneView(View):
    """Something that has happened to the group."""

    milestone: str
    """What: `seen`, `quorum`, `planned`, `steered`, `atBind`, `committed`, `bound`, `givenUp`, `broken` and so on."""

    at: str
    """RFC 3339."""


class HurdleView(View):
    """What keeps members off nodes."""

    kind: HurdleKind

    name: str
    """The resource, the key of the taint or of the label; "" where the kind says it all."""

    nodes: int
    """Of how many nodes."""


class DomainNeedView(View):
    """How far a domain is from holding the gang."""

    domain: str
    """"" for the whole cluster."""

    slots: int
    """How many members it has room for; at most, where they are of several shapes."""

    need: int

    nodes: int
    """How many nodes it has."""

    hurdles: list[HurdleView]
    """What keeps members off those that take none, the most frequent first."""

    taken: bool
    """Whether another gang has it for itself."""

    text: str
    """All of that in one line."""


class TurnView(View):
    """Its place in the queue."""

    position: int
    """1 for the first."""

    length: int
    """How many wait for room."""

    before: list[str]
    """Those right before it, the nearest last."""


class ForecastView(View):
    """When and where there will be room; for the head of the queue only."""

    domain: str

    at: str
    """RFC 3339, "" if nobody can tell."""

    nodes: list[str]

    basis: str
    """What the time is read off."""


class AdviceView(View):
    """A change with which the planner has found a plan."""

    change: Change

    text: str
    """What to do, a phrase."""

    nodes: list[str]
    """The nodes to be uncordoned, or those to which another gang goes."""

    name: str
    """The resource, the topology key, or the other gang; "" for none."""

    before: int
    after: int

    domain: str
    """Where another gang goes, "" for anywhere."""

    plannedDomain: str
    """Where this gang would go, "" for anywhere."""


class DiagnosisView(View):
    """Why a gang that waits for room does not fit."""

    key: str
    """The topology key, "" without one."""

    need: int

    domains: list[DomainNeedView]
    """The nearest to holding it first."""

    domainsLeftOff: int
    """How many more domains there are."""

    hurdles: list[HurdleView]
    """Those of all domains; the first is the dominant one."""

    dominant: str
    """The dominant one as a phrase, "" if there is none."""

    advice: list[AdviceView] | None
    """What would make it fit, the cheapest first; None if nobody has asked."""

    complete: bool
    """Whether everything was tried in time."""

    seconds: float
    """The work that it took."""

    longestSliceSeconds: float
    """For how long it held the event loop at the most."""


DIAGNOSIS = DiagnosisView(
    key="topology.kubernetes.io/rack",
    need=8,
    domains=[
        DomainNeedView(
            domain="rack-7",
            slots=3,
            need=8,
            nodes=8,
            hurdles=[
                HurdleView(kind=HurdleKind.RESOURCE, name="cpu", nodes=4),
                HurdleView(kind=HurdleKind.TAINT, name="gpu", nodes=1),
            ],
            taken=False,
            text="rack-7: 3 of 8; cpu 4 nodes, taint gpu 1 node",
        )
    ],
    domainsLeftOff=0,
    hurdles=[HurdleView(kind=HurdleKind.RESOURCE, name="cpu", nodes=4)],
    dominant="cpu 4 nodes",
    advice=[
        AdviceView(
            change=Change.SMALLER,
            text="ask for 14 cpu instead of 16; it would go to rack-7",
            nodes=[],
            name="cpu",
            before=16_000,
            after=14_000,
            domain="",
            plannedDomain="rack-7",
        )
    ],
    complete=True,
    seconds=0.12,
    longestSliceSeconds=0.004,
)
"""An example."""


def view_timeline(core: Core, key: GroupKey) -> list[MilestoneView]:
    """What has happened to a group, the oldest first."""
    reached = list(core.timelines.of_group(key))
    state = core.groups.states.get(key)
    if (
        state is not None
        and state.broken_since is not None
        and Milestone.BROKEN not in {each.milestone for each in reached[-3:]}
    ):
        # Repairs see it at once, and tell it only when it has lasted.
        reached.append(Reached(Milestone.BROKEN, core.wall() + state.broken_since - core.clock()))
    return [
        MilestoneView(milestone=each.milestone.value, at=write_time(each.at))
        for each in sorted(reached, key=lambda each: each.at)
    ]


async def view_turn(core: Core, key: GroupKey) -> TurnView | None:
    """Its place in the queue; None if it does not wait for room."""
    queue = core.queue
    others = [find_turn(core, group)[0] async for group in one_by_one(queue.backlog) if group != key and group in queue]
    if key not in queue:
        return None
    own, _ = find_turn(core, key)
    earlier = [turn for turn in others if turn < own]
    nearest = sorted(nlargest(_MAX_BEFORE, earlier))
    return TurnView(position=len(earlier) + 1, length=len(others) + 1, before=[str(group) for *_, group in nearest])


async def view_forecast(core: Core, key: GroupKey) -> ForecastView | None:
    """The forecast of the head of the queue; None for any other group."""
    backfill = core.queue.backfill
    head = backfill.head
    if head is None or head.group != key:
        return None
    forecast = head.forecast
    return ForecastView(
        domain=forecast.domain,
        at="" if forecast.at is None else backfill.tell_time(forecast.at),
        nodes=sorted(forecast.nodes)[:_MAX_NODES],
        basis=await _describe_basis(core, key, forecast.nodes),
    )


async def _describe_basis(core: Core, key: GroupKey, nodes: frozenset[str]) -> str:
    """How it is known when the pods on these nodes end."""
    store, now = core.store, core.wall()
    others = enforced = known = 0
    async for pod in one_by_one(store.pods.values()):
        is_there = pod.uid in store.pods  # or it has ended since, and is in no group any more
        if is_there and pod.bound and pod.node in nodes and store.members.group_of(pod.uid) != key:
            others += 1
            enforced += store.endings.expect(pod, now, Trust.DEADLINES) is not None
            known += store.endings.expect(pod, now, Trust.MEASURED) is not None
    return (
        f"the ends of {count_things(others, 'pod')}: {enforced} with a deadline, {known - enforced} by how long "
        f"earlier Jobs of the kind ran, {others - known} of which nothing is known"
    )


def view_finding(finding: Finding, advice: list[AdviceView] | None) -> DiagnosisView | None:
    """None if it took too long."""
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
    """A change."""
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
