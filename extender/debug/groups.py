"""``/debug/groups``: how each group stands, and one of them in full."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Response

from extender.core import Core
from extender.debug.diagnosis import (
    DIAGNOSIS,
    DiagnosisView,
    ForecastView,
    MilestoneView,
    TurnView,
    view_advice,
    view_finding,
    view_forecast,
    view_timeline,
    view_turn,
)
from extender.debug.dry_runs import DryRunView, read_dry_run, try_out
from extender.debug.inquiries import Inquiries, TooManyInquiriesError
from extender.debug.preemption import PreemptionView, view_preemption
from extender.debug.reservations import ReservationView, view_reservation
from extender.debug.view import View, exemplify, write_list, write_long
from extender.scheduling.cycle import CycleStage
from extender.scheduling.group_state import GroupState
from serried.model.group import GroupKey, GroupKind, PodGroup, decode_group_key
from serried.model.level import ApiLevel
from serried.model.pod import Pod
from serried.model.verdict import render
from serried.observe.pace import one_by_one

LEFT_OFF = "X-Left-Off"
"""The header of ``/debug/groups`` that says how many groups a limit has left off."""

_STATES = ("Unknown", "Waiting", "Scheduled", *CycleStage)


class Diagnose(StrEnum):
    """What is found out about a gang that waits for room."""

    NONE = "none"

    DOMAINS = "domains"
    """What each domain lacks."""

    ADVICE = "advice"
    """That, and what would make the gang fit."""


class MemberView(View):
    """A member. A node is "" for none."""

    name: str
    uid: str

    state: str
    """How it stands."""

    node: str
    """Where it runs."""

    planned: str
    """The node that is reserved for it."""

    nominated: str
    """Its ``status.nominatedNodeName``."""


class ObjectView(View):
    """The object that a group is, or of which it is a part."""

    apiVersion: str
    kind: str
    name: str


class GroupView(View):
    """A group in one line."""

    namespace: str
    name: str
    kind: GroupKind
    object: ObjectView | None
    policy: str

    minCount: int
    """0 for policy basic."""

    members: int

    placed: int
    """How many members are bound or have succeeded."""

    waiting: int
    """How many members wait for a node, gated and refused ones among them."""

    priority: int
    """The one that counts, for the group and each member."""

    preempts: bool
    """Whether others may be evicted for the group."""

    topologyKey: str
    domain: str
    state: str
    reason: str
    message: str


class GroupDetail(GroupView):
    """A group with its members."""

    preemption: PreemptionView | None
    """What the last search for victims has found; None if there was none."""

    dryRun: DryRunView | None
    """What would be evicted for it now; None if nobody has asked."""

    timeline: list[MilestoneView]
    """What has happened to it, the oldest first."""

    plan: ReservationView | None
    """The slots that are kept for it; None without a plan."""

    queue: TurnView | None
    """Its place among those that wait for room; None if it does not."""

    forecast: ForecastView | None
    """None for all but the head of the queue."""

    diagnosis: DiagnosisView | None
    """Why it does not fit; None if it does not wait for room, or if many others are asked about right now."""

    detail: list[MemberView]


_OBJECT = ObjectView(apiVersion="scheduling.k8s.io/v1beta1", kind="PodGroup", name="training")

_EXAMPLE = GroupView(
    namespace="default",
    name="training",
    kind=GroupKind.POD_GROUP,
    object=_OBJECT,
    policy="Gang",
    minCount=8,
    members=8,
    placed=0,
    waiting=8,
    priority=0,
    preempts=True,
    topologyKey="topology.kubernetes.io/rack",
    domain="",
    state="Waiting",
    reason="NoDomainFits",
    message="NoDomainFits: no domain of topology.kubernetes.io/rack has room for 8 members (rack-2: 6, rack-1: 3)",
)

_DETAIL_EXAMPLE = GroupDetail(
    **_EXAMPLE.model_dump(),
    preemption=None,
    dryRun=DryRunView(message="nothing that runs has a lower priority", found=None),
    timeline=[
        MilestoneView(milestone="seen", at="2026-08-01T11:59:58Z"),
        MilestoneView(milestone="quorum", at="2026-08-01T12:00:00Z"),
    ],
    plan=None,
    queue=TurnView(position=2, length=5, before=["default/earlier"]),
    forecast=None,
    diagnosis=DIAGNOSIS,
    detail=[MemberView(name="training-0", uid="3f0c", state="Waiting", node="", planned="", nominated="")],
)


def groups_routes(core: Core, level: ApiLevel) -> APIRouter:
    """The routes, below ``/debug``."""
    router = APIRouter()
    inquiries = Inquiries(core)

    @router.get(
        "/groups",
        response_model=list[GroupView],
        responses=exemplify([_EXAMPLE], bad_request="The answer says what a parameter may be."),
    )
    async def list_groups(limit: str = "500", state: str = "", namespace: str = "") -> Response:
        """Every group in one line, by namespace and name.

        `state` and `namespace` choose some of them, `limit` the first ones; the header `X-Left-Off` says how many more
        there are.
        """
        most = _read_limit(limit)
        if state and state not in _STATES:
            raise HTTPException(400, f"state is one of {', '.join(_STATES)}, not {state[:100]!r}")
        keys = await _find_groups(core, state, namespace)
        # Between two of them one may go.
        response = await write_list(_view_group(core, level, key) for key in keys[:most] if _is_known(core, key))
        response.headers[LEFT_OFF] = str(max(0, len(keys) - most))
        return response

    @router.get(
        "/groups/{namespace}/{name:path}",
        response_model=GroupDetail,
        responses=exemplify(
            _DETAIL_EXAMPLE,
            bad_request="The answer says what a parameter may be.",
            not_found="The group is not known.",
            too_many_requests="Too many ask for advice at the same time.",
        ),
    )
    async def show_group(
        namespace: str,
        name: str,
        dry_run: Annotated[str | None, Query(alias="dryRun")] = None,
        diagnosis: Diagnose = Diagnose.DOMAINS,
    ) -> Response:
        """One group with its members: why it waits, what would make it run, and who would have to go for it.

        `name` is as the list of groups has it, or that of a PodGroup in a tree, which leads to the tree. With `?dryRun`
        victims are looked for anew, and nobody is evicted. `?diagnosis=advice` has the planner look for the cheapest
        change with which the gang fits: that is work of up to 2 s, in slices, one gang at a time; eight may wait for
        it, others get 429. `?diagnosis=none` leaves the domains out.
        """
        asked = read_dry_run(dry_run)
        key = core.store.forest.lift(decode_group_key(namespace, name))
        if not _is_known(core, key):
            raise HTTPException(404, f"no PodGroup {key} is known, and no pod names it; see /debug/groups")
        tried = await try_out(core, key) if asked else None
        found = await _inquire(inquiries, key, diagnosis)
        turn, forecast = await view_turn(core, key), await view_forecast(core, key)
        view = _view_group(core, level, key)
        state = core.groups.states.get(key)
        detail = GroupDetail(
            **view.model_dump(),
            preemption=view_preemption(state.preemption) if state is not None else None,
            dryRun=tried,
            timeline=view_timeline(core, key),
            plan=view_reservation(core, key),
            queue=turn,
            forecast=forecast,
            diagnosis=found,
            detail=[],
        )
        return await write_long(detail, "detail", _view_members(core, key))

    return router


async def _inquire(inquiries: Inquiries, key: GroupKey, diagnosis: Diagnose) -> DiagnosisView | None:
    if diagnosis is Diagnose.NONE:
        return None
    try:
        if diagnosis is Diagnose.DOMAINS:
            found = await inquiries.diagnose(key)
            return None if found is None else view_finding(found, None)
        found = await inquiries.advise(key)
        return None if found is None else view_finding(found, [view_advice(each) for each in found.advice])
    except TooManyInquiriesError:
        if diagnosis is Diagnose.DOMAINS:
            return None  # nobody has asked for it by name: the rest of the page is worth more than none
        raise HTTPException(429, "too many ask for advice at the same time; ask again later") from None


def _read_limit(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise HTTPException(400, f"limit is a number of groups, 0 or more, not {text[:100]!r}")
    return int(text)


def _is_known(core: Core, key: GroupKey) -> bool:
    return key in core.store.groups or key in core.store.members


async def _find_groups(core: Core, state: str, namespace: str) -> list[GroupKey]:
    found = [
        key
        async for key in one_by_one(core.store.groups.keys() | set(core.store.members.groups()))
        if namespace in ("", key.namespace) and state in ("", name_state(core.groups.states.get(key)))
    ]
    return sorted(found)


def _view_group(core: Core, level: ApiLevel, key: GroupKey) -> GroupView:
    group = core.store.groups.get(key)
    state = core.groups.states.get(key)
    # Not by classify(), which sorts: a reader holds the loop meanwhile.
    members = core.store.members.of_group(key)
    verdict = state.verdict if state is not None else None
    return GroupView(
        namespace=key.namespace,
        name=key.encoded,
        kind=key.kind,
        object=_view_object(group, level),
        policy="" if group is None else "Gang" if group.policy.is_gang else "Basic",
        minCount=(group.policy.min_count or 0) if group else 0,
        members=len(members),
        placed=count_placed(core, key),
        waiting=sum(pod.pending and pod.scheduler in core.store.schedulers for pod in members),
        priority=core.store.priorities.of_group(key),
        preempts=core.store.priorities.may_preempt(key),
        topologyKey=(group.topology_key or "") if group else "",
        domain=find_domain(core, group, state, members),
        state=name_state(state),
        reason=verdict.reason.value if verdict else "",
        message=render(verdict) if verdict else "",
    )


def _view_object(group: PodGroup | None, level: ApiLevel) -> ObjectView | None:
    if group is None:
        return None
    holder = group.holder(level.api_version, level.composite_api_version)
    return ObjectView(apiVersion=holder.api_version, kind=holder.kind, name=holder.name)


def name_state(state: GroupState | None) -> str:
    """How a group stands, in one word."""
    if state is None or state.verdict is None:
        return "Unknown"
    if state.cycle is not None:
        return state.cycle.stage.value
    return "Scheduled" if state.verdict.reason.value == "Scheduled" else "Waiting"


def count_placed(core: Core, key: GroupKey) -> int:
    """How many members count toward the quorum, in all PodGroups of a tree together."""
    return sum(core.store.members.count_placed(key).values())


def find_domain(core: Core, group: PodGroup | None, state: GroupState | None, members: Iterable[Pod]) -> str:
    """The domain that a group is in, or planned for; "" where it asks for none."""
    if group is None or group.topology_key is None:
        return ""
    if state is not None and state.cycle is not None:
        return state.cycle.reservation.domain
    nodes = (core.store.nodes.get(pod.node) for pod in members if pod.bound and not pod.deleting)
    return ",".join(sorted({node.labels.get(group.topology_key, "") for node in nodes if node is not None}))


def _view_members(core: Core, key: GroupKey) -> Iterator[MemberView]:
    """Each as it stands when it is its turn: between two of them some may be bound, or go."""
    for uid in [pod.uid for pod in core.store.members.of_group(key)]:
        pod = core.store.pods.get(uid)
        if pod is not None:
            yield _view_member(core, pod)


def _view_member(core: Core, pod: Pod) -> MemberView:
    slot = core.ledger.slot_of(pod.uid)
    state = "Bound" if pod.bound else pod.phase.value if pod.phase.value != "Active" else "Waiting"
    if pod.deleting:
        state = "Deleting"
    elif pod.gates:
        state = "Gated"
    elif slot is not None and not pod.bound:
        state = "Planned"
    return MemberView(
        name=pod.name,
        uid=pod.uid,
        state=state,
        node=pod.node,
        planned=slot.node if slot else "",
        nominated=pod.nominated,
    )
