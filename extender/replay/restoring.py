"""Builds the extender's core anew from a capture: the same state, the same code, and no API server.

What is decided then is put into the ledger and the outbox of this core alone; nothing is carried out.
"""

from typing import cast

from extender.binding.reservations import Records
from extender.core import Core, Options
from extender.scheduling.backfill import Head
from extender.scheduling.cycle import BindingCycle
from extender.scheduling.group_state import GroupState, Refusal
from extender.scheduling.status_sink import StatusSink
from extender.scheduling.term import Term
from serried.cluster.occupancy import ClaimKind
from serried.cluster.store import EndedMembers, Store
from serried.cluster.vacancies import Vacancy
from serried.decode.values import Codec
from serried.kube.client import ApiClient
from serried.metrics import ExtenderMetrics
from serried.model.capture import Capture, GroupMemory, KeptNodes, Reserved, VacantSlot
from serried.model.group import GroupKey
from serried.model.reservation import Reservation
from serried.model.resources import Resources
from serried.model.verdict import Verdict
from serried.plan.forecast import Forecast
from serried.plan.order import Waiting
from serried.plan.steps import finish


class Nobody:
    """Stands where nothing is called: there is no API server, and nobody is told anything."""


class Silence:
    """Nobody is told how groups stand: of a `StatusSink` only ``say`` is called where nothing is carried out."""

    def say(self, group: GroupKey, verdict: Verdict) -> None:
        """The group stands like this now; it is in its memory, too."""


def restore(capture: Capture) -> Core:
    """The core as it was when the capture was taken. Raises ValueError if the capture contradicts itself."""
    store = Store(
        capture.schedulers, ended=EndedMembers.KEEP_SLOTS, level=capture.level, other_profiles=capture.profiles
    )
    client = cast("ApiClient", Nobody())
    term = Term(lambda: True)
    core = Core(
        client,
        store,
        term,
        Records(client, capture.level.api_version, "replay", lambda: False),
        status=cast("StatusSink", Silence()),
        metrics=ExtenderMetrics(),
        clock=lambda: capture.clock,
        wall=lambda: capture.wall,
        stopwatch=lambda: 0.0,  # no plan is given up for the time that it takes
        rest=_go_on,
        options=Codec().reader(Options)(capture.settings, "settings"),
    )
    _fill(store, capture)
    for vacant in capture.vacancies:
        _reopen(store, vacant)
    for reserved in capture.reservations:
        _reserve(core, reserved)
    _claim_rest(store, capture)
    for memory in capture.memories:
        _remember(core, memory)
    if capture.kept is not None:
        core.queue.backfill.head = _restore_head(capture.kept)
    store.touched.clear_groups()
    store.touched.take_orphans()
    core.queue.take_woken()
    finish(core.queue.review())
    term.active = True
    return core


async def _go_on(_: float) -> None:
    return None


def _fill(store: Store, capture: Capture) -> None:
    for node in capture.nodes:
        store.put_node(node)
    for found in capture.priority_classes:
        store.put_priority_class(found)
    for budget in capture.budgets:
        store.put_budget(budget)
    for job in capture.jobs:
        store.put_job(job)
    for parent in capture.parents:
        store.put_parent(parent)
    for composite in capture.composites:
        store.put_composite(composite)
    for workload in capture.workloads:
        store.put_workload(workload)
    for group in capture.groups:
        store.put_group(group)
    for pod in capture.pods:
        store.put_pod(pod)


def _reopen(store: Store, vacant: VacantSlot) -> None:
    pod = vacant.pod
    if not vacant.refusal:
        store.occupancy.claim(pod.uid, ClaimKind.BOUND, pod.node, pod.shape.requests)
    store.vacancies.open(vacant.group, pod, vacant.refusal, vacant.leaf)
    found = next(each for each in store.vacancies.of_group(vacant.group) if each.pod.uid == pod.uid)
    _complete(store, found, vacant)


def _complete(store: Store, found: Vacancy, vacant: VacantSlot) -> None:
    found.since = vacant.since
    if vacant.replacement:
        store.vacancies.assign(found, vacant.replacement)


def _reserve(core: Core, reserved: Reserved) -> None:
    reservation = Reservation(
        group=reserved.group,
        group_uid=reserved.group_uid,
        domain=reserved.domain,
        need=reserved.need,
        slots={slot.uid: slot for slot in reserved.slots},
        committed=reserved.committed,
        parts=reserved.parts,
        victims=reserved.victims,
    )
    pods = {uid: core.store.pods[uid] for uid in reservation.slots if uid in core.store.pods}
    core.ledger.reserve(reservation, pods)


def _claim_rest(store: Store, capture: Capture) -> None:
    """What else was used on each node: by pods whose bind call was seen, before the watch showed them."""
    for uid in capture.on_their_way:
        pod = store.pods.get(uid)
        if pod is not None and store.occupancy.node_of(uid) is None:
            store.occupancy.claim(uid, ClaimKind.ASSUMED, pod.nominated, pod.shape.requests)
    for name in sorted(capture.used.keys() | store.occupancy.used.keys()):
        rest = _subtract(capture.used.get(name, {}), store.occupancy.used.get(name, {}))
        if rest:
            store.occupancy.claim(f"others:{name}", ClaimKind.ASSUMED, name, rest)


def _subtract(used: Resources, known: Resources) -> tuple[tuple[str, int], ...]:
    names = sorted(used.keys() | known.keys())
    rest = ((name, used.get(name, 0) - known.get(name, 0)) for name in names)
    return tuple((name, amount) for name, amount in rest if amount)


def _remember(core: Core, memory: GroupMemory) -> None:
    state = GroupState(
        memory.first_seen,
        verdict=memory.verdict,
        quorum_since=memory.quorum_since,
        broken_since=memory.broken_since,
        started=memory.started,
        stood=memory.stood,
        home=memory.home,
    )
    nodes = core.store.nodes
    state.refusals = {(each.shape, each.node): Refusal(each.until, nodes.get(each.node)) for each in memory.refusals}
    state.offers = {each.shape: (each.until, each.nodes) for each in memory.offers}
    core.groups.states[memory.group] = state
    reservation = core.ledger.of_group(memory.group)
    group = core.store.groups.get(memory.group)
    if reservation is not None and group is not None:
        now = core.clock()
        preempted = memory.preempted or bool(reservation.victims)
        state.cycle = BindingCycle(group, reservation, now, now, preempted=preempted)


def _restore_head(kept: KeptNodes) -> Head:
    return Head(
        Waiting(kept.group, kept.priority, kept.since, kept.broken),
        Forecast(kept.domain, kept.nodes, kept.at),
        made=kept.made,
        until=kept.until,
        text=kept.text,
        exclusive_in=kept.exclusive_in,
        late=kept.late,
        missed=kept.missed,
        passed=dict(kept.passed),
    )
