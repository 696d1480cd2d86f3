"""The pages of ``/debug`` about groups: their states, the queue, reservations, vacancies (kept slots) and decisions.

`GroupPages` has the handlers. The classes named ``...View``, and `GroupDetail`, are JSON documents that they return.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated

from fastapi import HTTPException, Query, Response

from extender.core.scheduling.binding_cycle import CycleStage
from extender.core.scheduling.group import GroupState
from extender.features.backfill import Head
from extender.features.preemption.search import find_preemption
from extender.features.repair import broken_since
from extender.features.status.reports import LoggedDecision, Reports
from extender.look.document import View, write_list, write_long
from extender.look.explain import (
    DiagnosisView,
    DryRunView,
    ForecastView,
    Inquiries,
    MilestoneView,
    PreemptionView,
    QueuePlaceView,
    TooManyInquiriesError,
    find_queue_key,
    read_dry_run,
    view_advice,
    view_finding,
    view_forecast,
    view_preemption,
    view_queue_place,
    view_timeline,
)
from extender.look.names import KINDS, GroupName, explain_none, find_groups_of, is_known, name_group
from extender.wiring import Core
from serried.api.group import PodGroup
from serried.api.level import ApiLevel
from serried.api.names import GroupKey, GroupKind, Key, decode_group_key
from serried.api.pod import Pod
from serried.api.verdict import Reason, render
from serried.cluster.cache import Store
from serried.cluster.usage import Vacancy
from serried.ops.slices import one_by_one
from serried.plan.request import Waiting


class DecisionView(View):
    """One decision on a group, as it was logged."""

    id: str
    """The id of the decision, which is in its log line as `decision`."""

    at: str
    group: str

    owner: str
    """The owner of the group, as kubectl names it (`job/train`); "" if it has none, and for a group that is gone."""

    kind: GroupKind
    reason: str
    text: str


class HeadView(GroupName):
    """The gang at the head of the queue, for which free resources are kept. Times are RFC 3339."""

    domain: str

    nodes: list[str]
    """The nodes whose free resources are kept for the gang at the head of the queue."""

    forecast: str
    """The time at which the gang should fit on the nodes that are kept for it; "" if that is unknown."""

    until: str
    """The time at which the nodes are no longer kept for the gang if it still does not fit."""

    missed: bool
    """True if the gang did not fit at the time of an earlier forecast.

    Of the gangs behind it, only those with activeDeadlineSeconds may then use its nodes.
    """

    passed: dict[str, str]
    """The gangs that may use the kept nodes before the forecast, each with the time at which it is expected to end."""

    owners: dict[str, str]
    """The owner of each gang in `passed`, as kubectl names it (`job/train`); "" without one."""


class WaitingView(View):
    """A gang in the queue, i.e. one that waits for free resources."""

    position: int
    """The place in the queue order, from 1."""

    namespace: str
    name: str
    kind: GroupKind

    owner: str
    """The owner of the group, as kubectl names it (`job/train`); "" without one."""

    priority: int

    countsAs: int
    """The priority by which the gang is sorted in the queue: `priority`, and what its waiting time has added."""

    since: str
    """The time since which it has its quorum, RFC 3339; "" if that is not known."""

    message: str


class QueueView(View):
    """The queue of the gangs that wait for free resources."""

    head: HeadView | None

    waiting: list[WaitingView]
    """The gangs of the queue, the first one first."""

    leftOff: int
    """The number of further gangs in the queue."""


def _view_head(core: Core, head: Head) -> HeadView:
    format_time = core.backfill.format_time
    return HeadView(
        **name_group(core, head.group),
        domain=head.forecast.domain,
        nodes=sorted(head.forecast.nodes),
        forecast="" if head.forecast.at is None else format_time(head.forecast.at),
        until=format_time(head.until),
        missed=head.has_missed,
        passed={str(group): format_time(end) for group, end in head.passed.items()},
        owners={str(group): core.store.membership.name_owner(group) for group in head.passed},
    )


def _view_waiting(core: Core, position: int, waiting: Waiting) -> WaitingView:
    state = core.groups.states.get(waiting.group)
    since = state.quorum_since if state is not None else None
    return WaitingView(
        position=position,
        **name_group(core, waiting.group),
        priority=waiting.priority,
        countsAs=core.queue.raised_priority(waiting),
        since="" if since is None else core.backfill.format_time(since),
        message=describe_verdict(state)[1],
    )


class ReservationView(GroupName):
    """The reservation of a group. `slots` has the names of the members by the node of their slots."""

    phase: str
    stage: str
    domain: str
    need: int
    atBind: int
    bound: int
    slots: dict[str, list[str]]


def view_reservation(core: Core, key: GroupKey) -> ReservationView | None:
    """Return the reservation of a group as a document; None if it has none."""
    reservation = core.ledger.of_group(key)
    state = core.groups.states.get(key)
    if reservation is None:
        return None
    slots: dict[str, list[str]] = {}
    for slot in reservation.slots.values():
        slots.setdefault(slot.node, []).append(slot.name)
    cycle = state.cycle if state else None
    return ReservationView(
        **name_group(core, key),
        phase=reservation.phase,
        stage=cycle.stage.value if cycle else "",
        domain=reservation.domain,
        need=reservation.need,
        atBind=len(cycle.at_bind) if cycle else 0,
        bound=len(cycle.bound) if cycle else 0,
        slots=slots,
    )


LEFT_OFF = "X-Left-Off"
"""The response header of ``/debug/groups`` with the number of groups that the limit leaves out."""

_STATES = ("Unknown", "Waiting", "Scheduled", *CycleStage)


class Diagnose(StrEnum):
    """The extent of the diagnosis of a gang that waits for free resources.

    No diagnosis (NONE), why it fits in no domain (DOMAINS), or that and changes with which it would fit (ADVICE).
    """

    NONE = "none"

    DOMAINS = "domains"
    """The reasons for which the planner can place no member on nodes of each domain."""

    ADVICE = "advice"
    """The reasons for which the planner can place no member on nodes of each domain, and changes that would help."""


class MemberView(View):
    """A member of a group. A node is "" if there is none."""

    name: str
    uid: str

    state: str
    """The state: `Waiting`, `Gated`, `Planned`, `Bound`, `Deleting`, or the phase of a pod that has ended."""

    gates: list[str]
    """The names of the pod's scheduling gates, except Serried's own."""

    node: str
    """The node to which it is bound."""

    planned: str
    """The node of its slot, i.e. the node that is reserved for it."""

    nominated: str
    """The ``status.nominatedNodeName`` of the pod."""


class ObjectView(View):
    """The API object of a group: its PodGroup or CompositePodGroup, or the Workload of which it is a part."""

    apiVersion: str
    kind: str
    name: str


class GroupView(GroupName):
    """A group, with what fits in one line of a table."""

    object: ObjectView | None
    policy: str

    minCount: int
    """The minCount of the group; 0 for policy basic."""

    members: int

    placed: int
    """The number of members that are bound or have succeeded."""

    waiting: int
    """The number of members that wait for a node, also those with a scheduling gate and unschedulable ones."""

    priority: int
    """The priority of the group, with which all its members are scheduled."""

    preempts: bool
    """True if pods of lower priority may be evicted for the group; False if a preemptionPolicy is Never."""

    topologyKey: str

    topologyLevel: str
    """The name of the topology level whose label is `topologyKey`; "" if no level has it."""

    domain: str
    state: str

    since: str
    """The time since which the group waits, is broken or runs, RFC 3339."""

    reason: str
    message: str


class GroupDetail(GroupView):
    """A group with its members (`detail`), and why it waits or where it will run."""

    preemption: PreemptionView | None
    """The result of the last search for victims, i.e. pods to evict for the group; None if none was made."""

    dryRun: DryRunView | None
    """The pods that would be evicted for the group now; None without `?dryRun`."""

    timeline: list[MilestoneView]
    """The milestones that the group has reached, the oldest first."""

    plan: ReservationView | None
    """The reservation of the group; None if it has none."""

    queue: QueuePlaceView | None
    """The place among the groups that wait for free resources; None if the group does not."""

    forecast: ForecastView | None
    """The forecast where and when the group will fit, if it is the head of the queue; None for other groups."""

    diagnosis: DiagnosisView | None
    """The reasons why the group does not fit.

    None if it does not wait for free resources, with `?diagnosis=none`, and if too many requests ask for a diagnosis.
    """

    unread: list[str]
    """A phrase about each annotation and label of Serried's that has no effect, and what was probably meant."""

    detail: list[MemberView]


def list_unread(store: Store, key: GroupKey) -> list[str]:
    """Return a phrase about each annotation and label of Serried's on a group or its owner that has no effect."""
    owner_key, group = store.membership.owner_of(key), store.groups.get(key)
    owner = store.owners.find(owner_key) if owner_key is not None else None
    return [each.stray for each in (owner, group) if each is not None and each.stray]


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
            return None  # the default of the page: the rest is better than an error
        raise HTTPException(429, "too many requests for advice are running; try again later") from None


def _read_limit(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise HTTPException(400, f"limit is a number of groups, 0 or more, not {text[:100]!r}")
    return int(text)


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
    # Not by classify(), which sorts, and would block the event loop for longer.
    members = core.store.members.of_group(key)
    reason, message = describe_verdict(state)
    topology_key = (group.topology_key or "") if group else ""
    return GroupView(
        **name_group(core, key),
        object=_view_object(group, level),
        policy="" if group is None else "Gang" if group.policy.is_gang else "Basic",
        minCount=(group.policy.min_count or 0) if group else 0,
        members=len(members),
        placed=count_placed(core, key),
        waiting=sum(pod.pending and pod.scheduler in core.store.schedulers for pod in members),
        priority=core.store.priorities.of_group(key),
        preempts=core.store.priorities.may_preempt(key),
        topologyKey=topology_key,
        topologyLevel=core.store.levels.name_label(topology_key),
        domain=find_domain(core, group, state, members),
        state=name_state(state),
        since=find_since(core, state),
        reason=reason,
        message=message,
    )


def _view_object(group: PodGroup | None, level: ApiLevel) -> ObjectView | None:
    if group is None:
        return None
    holder = group.object_reference(level.api_version, level.composite_api_version)
    if not holder.name:
        return None
    return ObjectView(apiVersion=holder.api_version, kind=holder.kind, name=holder.name)


def name_state(state: GroupState | None) -> str:
    """Return the state of a group in one word: Unknown, Waiting, Scheduled, or the name of its binding cycle's stage.

    ``state`` is None for a group that was not considered yet.
    """
    if state is None or state.verdict is None:
        return "Unknown"
    if state.cycle is not None:
        return state.cycle.stage.value
    return "Scheduled" if state.verdict.reason.value == "Scheduled" else "Waiting"


def find_since(core: Core, state: GroupState | None) -> str:
    """Return the time since which a group waits, is broken or runs, RFC 3339; now if it was not considered yet."""
    return core.backfill.format_time(core.clock() if state is None else find_start(state))


def find_start(state: GroupState) -> float:
    """Return the loop time since which a group waits, is broken or runs."""
    if state.verdict is None:
        return state.first_seen
    since = broken_since(state)
    if state.verdict.reason is Reason.BROKEN and since is not None:
        return since
    if state.verdict.reason is Reason.SCHEDULED:
        return state.reason_since
    # After a restart of the extender, the pods have waited for longer than it runs.
    made = state.quorum_since if not state.started else None
    return state.waiting_since if made is None else min(made, state.waiting_since)


def describe_verdict(state: GroupState | None) -> tuple[str, str]:
    """Return the reason and the sentence of a group's verdict; both are "" if the group was not considered yet."""
    verdict = state.verdict if state is not None else None
    return (verdict.reason.value, render(verdict)) if verdict is not None else ("", "")


def count_placed(core: Core, key: GroupKey) -> int:
    """Return the number of members that are bound or have succeeded, in all PodGroups of a tree together."""
    return sum(core.store.members.count_placed(key).values())


def find_domain(core: Core, group: PodGroup | None, state: GroupState | None, members: Iterable[Pod]) -> str:
    """Return the domain in which a group is planned, or the domains in which its members run, joined by commas.

    Return "" if it requires no topology key, or runs nowhere.
    """
    if group is None or group.topology_key is None:
        return ""
    if state is not None and state.cycle is not None:
        return state.cycle.reservation.domain
    nodes = (core.store.nodes.get(pod.node) for pod in members if pod.bound and not pod.deleting)
    return ",".join(sorted({node.labels.get(group.topology_key, "") for node in nodes if node is not None}))


def _view_members(core: Core, key: GroupKey) -> Iterator[MemberView]:
    """Yield the documents of a group's members. Each is created when it is needed, and deleted members are left out."""
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
        gates=list(pod.foreign_gates),
        node=pod.node,
        planned=slot.node if slot else "",
        nominated=pod.nominated,
    )


class VacancyView(View):
    """A vacancy: the slot of a bound member that ended without success, kept for its replacement."""

    namespace: str
    group: str
    kind: GroupKind
    member: str

    index: int | None
    """The completion index of the member that ended; None if it had none."""

    node: str
    """The node on which the member ran, and on which the slot is."""

    claimed: bool
    """True if the resources of the member that ended are kept on the node for its replacement."""

    refusal: str
    """The reason with which the kubelet rejected the member at admission; "" if the member ended otherwise.

    The resources of a member that the kubelet has rejected are not kept.
    """

    replacement: str
    """The name of the pod that replaces the member; "" while there is none."""

    seconds: float
    """The time for which the slot has been kept, in seconds."""


def _view_vacancy(core: Core, vacancy: Vacancy) -> VacancyView:
    replacement = core.store.pods.get(vacancy.replacement)
    now = core.clock()
    return VacancyView(
        namespace=vacancy.group.namespace,
        group=vacancy.group.encoded,
        kind=vacancy.group.kind,
        member=vacancy.pod.name,
        index=vacancy.pod.index,
        node=vacancy.pod.node,
        claimed=core.store.occupancy.node_of(vacancy.holder) is not None,
        refusal=vacancy.refusal,
        replacement=replacement.name if replacement is not None else "",
        seconds=round(now - (now if vacancy.since is None else vacancy.since), 1),
    )


class GroupPages:
    """The handlers of the pages about groups. One instance per core."""

    def __init__(self, core: Core, reports: Reports, level: ApiLevel) -> None:
        self._core = core
        self._reports = reports
        self._level = level
        self._inquiries = Inquiries(core)

    async def list_groups(self, limit: str = "500", state: str = "", namespace: str = "") -> Response:
        """Return the groups, sorted by namespace and name, without their members.

        `state` and `namespace` select groups. `limit` is the largest number of groups that are returned; the header
        `X-Left-Off` has the number of further ones.
        """
        core, most = self._core, _read_limit(limit)
        if state and state not in _STATES:
            raise HTTPException(400, f"state is one of {', '.join(_STATES)}, not {state[:100]!r}")
        keys = await _find_groups(core, state, namespace)
        # The list is made in steps, in which a group may be deleted.
        response = await write_list(_view_group(core, self._level, key) for key in keys[:most] if is_known(core, key))
        response.headers[LEFT_OFF] = str(max(0, len(keys) - most))
        return response

    async def show_group(
        self,
        namespace: str,
        name: str,
        dry_run: Annotated[str | None, Query(alias="dryRun")] = None,
        diagnosis: Diagnose = Diagnose.DOMAINS,
    ) -> Response:
        """Return one group with its members: why it waits, what would make it run, and which pods would be evicted.

        `name` is the name in the list of groups, or the name of a PodGroup in a tree, for which the tree is returned.
        With `?dryRun` victims are searched for the group now, but not evicted. With `?diagnosis=advice` the planner
        searches changes with which the gang would fit. That is work of up to 2 s in a child process, for one gang at a
        time; eight requests may wait for it, further ones get 429. `?diagnosis=none` leaves out why the gang does not
        fit.
        """
        core, asked = self._core, read_dry_run(dry_run)
        key = core.store.forest.find_tree_key(decode_group_key(namespace, name))
        if not is_known(core, key):
            raise HTTPException(404, f"no PodGroup {key} is known, and no pod names it; see /debug/groups")
        tried = await self._inquiries.dry_run(key) if asked else None
        found = await _inquire(self._inquiries, key, diagnosis)
        place, forecast = await view_queue_place(core, key), await view_forecast(core, key)
        state = core.groups.states.get(key)
        detail = GroupDetail(
            **_view_group(core, self._level, key).model_dump(),
            preemption=view_preemption(find_preemption(state)) if state is not None else None,
            dryRun=tried,
            timeline=view_timeline(core, key),
            plan=view_reservation(core, key),
            queue=place,
            forecast=forecast,
            diagnosis=found,
            unread=list_unread(core.store, key),
            detail=[],
        )
        return await write_long(detail, "detail", _view_members(core, key))

    async def look_up(self, namespace: str, kind: str, name: str) -> list[GroupName]:
        """Return the groups to which an object belongs; it may have several.

        `kind` is podgroup, pod, workload, job, jobset or leaderworkerset.
        """
        core, object_key = self._core, Key(namespace, name)
        if kind not in KINDS:
            raise HTTPException(400, f"a kind is one of {', '.join(KINDS)}, not {kind[:100]!r}")
        found = {core.store.forest.find_tree_key(key) async for key in find_groups_of(core, kind, object_key)}
        if not found:
            raise HTTPException(404, await explain_none(core, kind, object_key))
        return [GroupName(**name_group(core, key)) for key in sorted(found)]

    async def show_queue(self, limit: int = 500) -> Response:
        """Return the gangs that wait for free resources, in queue order, and the nodes that are kept for the head.

        `limit` is the largest number of gangs that are returned; `leftOff` is the number of further ones.
        """
        core, queue = self._core, self._core.queue
        keys = [find_queue_key(core, group) async for group in one_by_one(queue.unschedulable) if group in queue]
        waiting = [each for _, each in sorted(keys)]
        shown = waiting[: max(0, limit)]
        head = None if core.backfill.head is None else _view_head(core, core.backfill.head)
        view = QueueView(head=head, waiting=[], leftOff=len(waiting) - len(shown))
        # The list is made in steps, in which a gang may leave the queue.
        places = (_view_waiting(core, place, each) for place, each in enumerate(shown, 1) if each.group in queue)
        return await write_long(view, "waiting", places)

    async def list_reservations(self) -> Response:
        """Return every reservation: the slots of a gang's members, and how far their binding is."""
        groups = [reservation.group for reservation in self._core.ledger]
        # The list is made in steps, in which a reservation may end.
        return await write_list(view for group in groups if (view := view_reservation(self._core, group)))

    async def list_vacancies(self) -> Response:
        """Return every vacancy: the kept slot of a member that ended without success, and its replacement."""
        return await write_list(_view_vacancy(self._core, vacancy) for vacancy in list(self._core.store.vacancies))

    async def list_decisions(self, limit: int = 100, group: str = "") -> Response:
        """Return the last decisions, at most `limit`, the newest first.

        `group` (`namespace/name`) selects one group.
        """
        said = [one for one in reversed(self._reports.decisions) if not group or str(one.group) == group]
        return await write_list(_view_decision(self._core, one) for one in said[: max(0, limit)])

    async def show_decision(self, id: str) -> DecisionView:  # noqa: A002 - the path's own word
        """Return the decision with this id, which is the `decision` in its log line. The last 1000 are kept."""
        decisions = self._reports.decisions
        found = next((one for one in decisions if one.id == id), None)
        if found is None:
            raise HTTPException(404, f"no decision {id[:100]!r} is among the last {len(decisions)}")
        return _view_decision(self._core, found)


def _view_decision(core: Core, said: LoggedDecision) -> DecisionView:
    return DecisionView(
        id=said.id,
        at=said.at,
        group=str(said.group),
        owner=core.store.membership.name_owner(said.group),
        kind=said.group.kind,
        reason=said.reason,
        text=said.text,
    )
