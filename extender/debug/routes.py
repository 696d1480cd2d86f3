"""``/debug``: why a gang waits, what is reserved, what was decided. Reads the state, changes nothing."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, HTTPException, Response
from pydantic import BaseModel

from extender.core import Core
from extender.debug.queue import queue_routes
from extender.scheduling.cycle import CycleStage
from extender.scheduling.group_state import GroupState
from extender.status.reports import Reports, Said
from serried.cluster.vacancies import Vacancy
from serried.model.group import GroupKey, GroupKind, PodGroup, decode_group_key
from serried.model.level import ApiLevel
from serried.model.pod import Pod
from serried.model.verdict import render

LEFT_OFF = "X-Left-Off"
"""The header of ``/debug/groups`` that says how many groups a limit has left off."""

_STATES = ("Unknown", "Waiting", "Scheduled", *CycleStage)


class MemberView(BaseModel):
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


class ObjectView(BaseModel):
    """The object that a group is, or of which it is a part."""

    apiVersion: str  # noqa: N815 - the API's own name
    kind: str
    name: str


class GroupView(BaseModel):
    """A group in one line."""

    namespace: str
    name: str
    kind: GroupKind
    object: ObjectView | None
    policy: str

    minCount: int  # noqa: N815 - the API's own name
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

    topologyKey: str  # noqa: N815
    domain: str
    state: str
    reason: str
    message: str


class GroupDetail(GroupView):
    """A group with its members."""

    detail: list[MemberView]


class NodeView(BaseModel):
    """A node: what it has, and what bound, assumed and reserved pods take of it."""

    name: str
    allocatable: dict[str, int]
    used: dict[str, int]
    unschedulable: bool
    labels: dict[str, str]


class ReservationView(BaseModel):
    """The slots kept for one state: member names by node."""

    namespace: str
    name: str
    kind: GroupKind
    phase: str
    stage: str
    domain: str
    need: int
    atBind: int  # noqa: N815
    bound: int
    slots: dict[str, list[str]]


class VacancyView(BaseModel):
    """The slot of a member that has ended."""

    namespace: str
    group: str
    kind: GroupKind
    member: str

    index: int | None
    """The member's completion index, None if it had none."""

    node: str
    """Where the member ran."""

    claimed: bool
    """Whether room is kept there."""

    refusal: str
    """Why the kubelet would not run the member, "" for any other end."""

    heir: str
    """The pod that comes in its place, "" while there is none."""

    seconds: float
    """How long the slot has been kept."""


class DecisionView(BaseModel):
    """One decision, newest first."""

    at: str
    group: str
    kind: GroupKind
    reason: str
    text: str


def debug_routes(core: Core, reports: Reports, level: ApiLevel, selfcheck: Callable[[], dict[str, Any]]) -> APIRouter:
    """The routes under ``/debug``.

    They are coroutines although they wait for nothing: FastAPI runs plain functions in other threads, and the state
    belongs to the event loop alone.
    """
    router = APIRouter(prefix="/debug", tags=["debug"])
    router.include_router(queue_routes(core))

    @router.get("/groups")
    async def list_groups(
        response: Response, limit: str = "500", state: str = "", namespace: str = ""
    ) -> list[GroupView]:
        most = _read_limit(limit)
        if state and state not in _STATES:
            raise HTTPException(400, f"state is one of {', '.join(_STATES)}, not {state[:100]!r}")
        keys = _find_groups(core, state, namespace)
        response.headers[LEFT_OFF] = str(max(0, len(keys) - most))
        return [_view_group(core, level, key) for key in keys[:most]]

    @router.get("/groups/{namespace}/{name:path}")
    async def show_group(namespace: str, name: str) -> GroupDetail:
        key = core.store.forest.lift(decode_group_key(namespace, name))
        members = core.store.members.of_group(key)
        if key not in core.store.groups and not members:
            raise HTTPException(404, f"no PodGroup {key} is known, and no pod names it; see /debug/groups")
        view = _view_group(core, level, key)
        return GroupDetail(**view.model_dump(), detail=[_view_member(core, pod) for pod in members])

    @router.get("/nodes")
    async def list_nodes(prefix: str = "", limit: int = 500) -> list[NodeView]:
        names = sorted(name for name in core.store.nodes if name.startswith(prefix))
        return [_view_node(core, name) for name in names[: max(0, limit)]]

    @router.get("/reservations")
    async def list_reservations() -> list[ReservationView]:
        return [view for reservation in core.ledger if (view := _view_reservation(core, reservation.group))]

    @router.get("/vacancies")
    async def list_vacancies() -> list[VacancyView]:
        return [_view_vacancy(core, vacancy) for vacancy in core.store.vacancies]

    @router.get("/decisions")
    async def list_decisions(limit: int = 100, group: str = "") -> list[DecisionView]:
        said = [one for one in reversed(reports.decisions) if not group or str(one.group) == group]
        return [_view_decision(one) for one in said[: max(0, limit)]]

    @router.get("/selfcheck")
    async def check() -> dict[str, Any]:
        return selfcheck()

    return router


def _read_limit(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise HTTPException(400, f"limit is a number of groups, 0 or more, not {text[:100]!r}")
    return int(text)


def _find_groups(core: Core, state: str, namespace: str) -> list[GroupKey]:
    keys = core.store.groups.keys() | set(core.store.members.groups())
    return sorted(
        key
        for key in keys
        if namespace in ("", key.namespace) and state in ("", _name_state(core.groups.states.get(key)))
    )


def _view_group(core: Core, level: ApiLevel, key: GroupKey) -> GroupView:
    group = core.store.groups.get(key)
    state = core.groups.states.get(key)
    members = core.store.members.of_group(key)
    group_members = core.store.members.classify(key)
    verdict = state.verdict if state is not None else None
    return GroupView(
        namespace=key.namespace,
        name=key.encoded,
        kind=key.kind,
        object=_view_object(group, level),
        policy="" if group is None else "Gang" if group.policy.is_gang else "Basic",
        minCount=(group.policy.min_count or 0) if group else 0,
        members=len(members),
        placed=group_members.placed,
        waiting=len(group_members.waiting) + len(group_members.gated) + len(group_members.refused),
        priority=core.store.priorities.of_group(key),
        preempts=core.store.priorities.may_preempt(key),
        topologyKey=(group.topology_key or "") if group else "",
        domain=_domain(core, group, state, group_members.bound),
        state=_name_state(state),
        reason=verdict.reason.value if verdict else "",
        message=render(verdict) if verdict else "",
    )


def _view_object(group: PodGroup | None, level: ApiLevel) -> ObjectView | None:
    if group is None:
        return None
    holder = group.holder(level.api_version)
    return ObjectView(apiVersion=holder.api_version, kind=holder.kind, name=holder.name)


def _name_state(state: GroupState | None) -> str:
    if state is None or state.verdict is None:
        return "Unknown"
    if state.cycle is not None:
        return state.cycle.stage.value
    return "Scheduled" if state.verdict.reason.value == "Scheduled" else "Waiting"


def _domain(core: Core, group: PodGroup | None, state: GroupState | None, bound: tuple[Pod, ...]) -> str:
    if group is None or group.topology_key is None:
        return ""
    if state is not None and state.cycle is not None:
        return state.cycle.reservation.domain
    nodes = (core.store.nodes.get(pod.node) for pod in bound)
    return ",".join(sorted({node.labels.get(group.topology_key, "") for node in nodes if node is not None}))


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


def _view_node(core: Core, name: str) -> NodeView:
    node = core.store.nodes[name]
    return NodeView(
        name=name,
        allocatable=dict(node.allocatable),
        used=dict(core.store.occupancy.used.get(name, {})),
        unschedulable=node.unschedulable,
        labels=dict(node.labels),
    )


def _view_reservation(core: Core, key: GroupKey) -> ReservationView | None:
    reservation = core.ledger.of_group(key)
    state = core.groups.states.get(key)
    if reservation is None:
        return None
    slots: dict[str, list[str]] = {}
    for slot in reservation.slots.values():
        slots.setdefault(slot.node, []).append(slot.name)
    cycle = state.cycle if state else None
    return ReservationView(
        namespace=key.namespace,
        name=key.encoded,
        kind=key.kind,
        phase=reservation.phase,
        stage=cycle.stage.value if cycle else "",
        domain=reservation.domain,
        need=reservation.need,
        atBind=len(cycle.at_bind) if cycle else 0,
        bound=len(cycle.bound) if cycle else 0,
        slots=slots,
    )


def _view_vacancy(core: Core, vacancy: Vacancy) -> VacancyView:
    heir = core.store.pods.get(vacancy.heir)
    now = core.clock()
    return VacancyView(
        namespace=vacancy.group.namespace,
        group=vacancy.group.encoded,
        kind=vacancy.group.kind,
        member=vacancy.pod.name,
        index=vacancy.pod.index,
        node=vacancy.pod.node,
        claimed=core.store.occupancy.node_of(vacancy.claimant) is not None,
        refusal=vacancy.refusal,
        heir=heir.name if heir is not None else "",
        seconds=round(now - (now if vacancy.since is None else vacancy.since), 1),
    )


def _view_decision(said: Said) -> DecisionView:
    return DecisionView(at=said.at, group=str(said.group), kind=said.group.kind, reason=said.reason, text=said.text)
