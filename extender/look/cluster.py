"""Copies of the planner's whole input: `take_capture` takes one from a running core, `restore` builds a core from one.

The first step of `take_capture` copies the Store's maps at one instant, in a few milliseconds for 50,000 pods. The
values in the maps are immutable, so they are not copied. Later steps remove fields that do not matter for decisions, or
that must not leave the process, such as annotations.

A restored core has the same state and code, but no API server. It decides like the original, but nothing is carried
out.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from extender.core.binding.records import Records
from extender.core.feature import Memory
from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.effects import Context, Term
from extender.core.scheduling.group import GroupState
from extender.core.scheduling.refusals import Fact, Refusals
from extender.core.timeline import StatusSink
from extender.features.backfill import Head
from extender.look.snapshot import (
    Capture,
    GroupMemory,
    KeptNodes,
    NodeOffer,
    NodeRefusal,
    Reserved,
    VacantSlot,
)
from extender.options import Options
from extender.wiring import Core
from serried.api.group import PodGroup, Workload
from serried.api.job import Job
from serried.api.level import ApiLevel
from serried.api.names import JOB, GroupKey, GroupKind, Key
from serried.api.pod import Link, Pod, Shape
from serried.api.reservation import Reservation
from serried.api.resources import Resources
from serried.api.selectors import Labels
from serried.api.verdict import Verdict
from serried.api.volume import VolumePool
from serried.cluster.cache import EndedMembers, Store, is_rival
from serried.cluster.usage import UsageSource, Vacancy
from serried.kube.client import ApiClient
from serried.ops.metrics import ExtenderMetrics
from serried.ops.steps import Work, finish
from serried.plan.forecast import Forecast
from serried.plan.request import Waiting
from serried.rules.all import RULES
from serried.rules.interpod.cluster import MatchingPods
from serried.rules.volumes.cluster import Volumes

_OPTIONS = TypeAdapter(Options)


class NoClient:
    """The API client of a restored core. It has no methods, because a restored core sends no requests."""


class SilentStatus:
    """The `StatusSink` of a restored core, which reports nothing. It has only the method that planning calls."""

    def report_verdict(self, group: GroupKey, verdict: Verdict) -> None:
        """Do nothing: the caller of a replay reads the verdict from the state of the group."""


def restore(capture: Capture) -> Core:
    """Return a core with the state that the capture has. Raises ValueError if its parts contradict each other."""
    core = _make_core(capture)
    store = core.store
    _fill(store, capture)
    while store.apply_rule_changes():
        pass
    for vacant in capture.vacancies:
        _restore_vacancy(store, vacant)
    for reserved in capture.reservations:
        _reserve(core, reserved)
    _add_remaining_usage(store, capture)
    for memory in capture.memories:
        _restore_group(core, memory, capture.pools)
    if capture.kept is not None:
        core.backfill.restore(_restore_head(capture.kept))
    store.dirty.clear_groups()
    store.dirty.take_orphans()
    core.queue.take_woken()
    core.queue.refresh_periodically()
    finish(core.backfill.list_requeues())
    core.term.active = True
    return core


def _make_core(capture: Capture) -> Core:
    store = Store(
        capture.schedulers,
        ended=EndedMembers.KEEP_SLOTS,
        level=capture.level,
        other_profiles=capture.profiles,
        rules=RULES,
    )
    store.rule(MatchingPods).are_counted = True
    context = Context(
        store,
        Term(lambda: True),
        cast("StatusSink", SilentStatus()),
        ExtenderMetrics(),
        _OPTIONS.validate_python(capture.settings),
        clock=lambda: capture.clock,
        wall=lambda: capture.wall,
    )
    client = cast("ApiClient", NoClient())
    records = Records(client, capture.level.api_version, "replay", lambda: False)
    # The stopwatch stands still, so no plan is given up because of the time that it takes.
    return Core(client, context, records, stopwatch=lambda: 0.0, fork=None)


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
    shapes: dict[Shape, Shape] = {}
    for pod in capture.pods:
        shape = _restore_pools(pod.shape, capture.pools)
        store.put_pod(replace(pod, shape=shapes.setdefault(shape, shape)))


def _restore_pools(shape: Shape, pools: Iterable[VolumePool]) -> Shape:
    """Return a pod's shape, i.e. what it demands of a node, with the volumes of its pools filled in from ``pools``.

    A pool has the PersistentVolumes that a volume claim may choose from. In a capture, the pools in the shapes of pods
    have no volumes (`_strip_pools`), because many pods share few pools.
    """
    if not shape.volumes:
        return shape
    known = {pool.amount: pool for pool in pools}
    chosen = [replace(each, pool=each.pool and known.get(each.pool.amount, each.pool)) for each in shape.volumes]
    return replace(shape, volumes=tuple(chosen))


def _strip_pools(shape: Shape) -> Shape:
    """Return a pod's shape, i.e. what it demands of a node, with the volumes removed from its pools.

    A pool has the PersistentVolumes that a volume claim may choose from. `_restore_pools` fills them in again.
    """
    chosen = [replace(each, pool=each.pool and replace(each.pool, volumes=())) for each in shape.volumes]
    return replace(shape, volumes=tuple(chosen)) if chosen else shape


def _restore_vacancy(store: Store, vacant: VacantSlot) -> None:
    pod = vacant.pod
    if not vacant.refusal:
        store.occupancy.add_usage(pod.uid, UsageSource.BOUND, pod.node, pod.shape.requests)
    store.vacancies.open(vacant.group, pod, vacant.refusal, vacant.leaf)
    found = next(each for each in store.vacancies.of_group(vacant.group) if each.pod.uid == pod.uid)
    _restore_replacement(store, found, vacant)


def _restore_replacement(store: Store, found: Vacancy, vacant: VacantSlot) -> None:
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


def _add_remaining_usage(store: Store, capture: Capture) -> None:
    """Add used resources to the nodes in the Store until each node has as many as in the capture.

    The Store lacks those of pods whose bind call was open, or just answered, at the time of the capture: the watch did
    not show these pods as bound yet.
    """
    for uid in capture.on_their_way:
        pod = store.pods.get(uid)
        if pod is not None and store.occupancy.node_of(uid) is None:
            store.occupancy.add_usage(uid, UsageSource.ASSUMED, pod.nominated, pod.shape.requests)
    for name in sorted(capture.used.keys() | store.occupancy.used.keys()):
        rest = _subtract(capture.used.get(name, {}), store.occupancy.used.get(name, {}))
        if rest:
            store.occupancy.add_usage(f"others:{name}", UsageSource.ASSUMED, name, rest)


def _subtract(used: Resources, known: Resources) -> tuple[tuple[str, int], ...]:
    names = sorted(used.keys() | known.keys())
    rest = ((name, used.get(name, 0) - known.get(name, 0)) for name in names)
    return tuple((name, amount) for name, amount in rest if amount)


def _restore_group(core: Core, memory: GroupMemory, pools: Sequence[VolumePool]) -> None:
    state = GroupState(
        memory.first_seen,
        verdict=memory.verdict,
        quorum_since=memory.quorum_since,
        started=memory.started,
        assigned_domain=memory.home,
    )
    nodes = core.store.nodes
    state.refusals = Refusals(
        {
            (_restore_pools(each.shape, pools), each.node): Fact(each.until, nodes.get(each.node))
            for each in memory.refusals
        },
        offers={_restore_pools(each.shape, pools): (each.until, each.nodes) for each in memory.offers},
    )
    if memory.rejection is not None:
        until, text, uid = memory.rejection
        state.refusals.rejection = Fact(until, text=text, member=uid)
    for kind in (kind for feature in core.context.features.all for kind in feature.memories):
        if kind.captured in memory.features:
            state.memory[kind] = _load_memory(kind, memory)
    core.groups.states[memory.group] = state
    reservation = core.ledger.of_group(memory.group)
    group = core.store.groups.get(memory.group)
    if reservation is not None and group is not None:
        now = core.clock()
        preempted = memory.preempted or bool(reservation.victims)
        state.cycle = BindingCycle(group, reservation, now, now, preempted=preempted)


_ADAPTERS: dict[type[Memory], TypeAdapter[Memory]] = {}


def _adapter_of(kind: type[Memory]) -> TypeAdapter[Memory]:
    return _ADAPTERS.get(kind) or _ADAPTERS.setdefault(kind, TypeAdapter(kind))


def _dump_memory(kind: type[Memory], memory: Memory) -> Any:
    """Return the state that a feature, such as repair, keeps of a group, as JSON. ``kind`` is its type."""
    return _adapter_of(kind).dump_python(memory, mode="json", exclude_defaults=True)


def _load_memory(kind: type[Memory], memory: GroupMemory) -> Memory:
    """Return the state that a feature, such as repair, keeps of a group, decoded from a capture. ``kind`` is its type.

    Raises ValueError, which names the wrong field of the snapshot.
    """
    try:
        return _adapter_of(kind).validate_python(memory.features[kind.captured])
    except ValidationError as problems:
        first = problems.errors(include_url=False)[0]
        where = ".".join(["memories", str(memory.group), kind.captured, *map(str, first["loc"])])
        raise ValueError(f"snapshot.{where}: {first['msg']}") from None


def _restore_head(kept: KeptNodes) -> Head:
    return Head(
        Waiting(kept.group, kept.priority, kept.since, kept.broken),
        Forecast(kept.domain, kept.nodes, kept.at, kept.shares),
        made=kept.made,
        until=kept.until,
        text=kept.text,
        exclusive_in=kept.exclusive_in,
        beyond_share=kept.beyond_share,
        has_missed=kept.late,
        first_missed=kept.missed,
        passed=dict(kept.passed),
    )


T = TypeVar("T")

_ITEMS_PER_STEP = 100

_OUR_LABELS = "scheduling.serried.dev/"

_LOWEST = -(1 << 31)


@dataclass(frozen=True, slots=True)
class _StoreCopy:
    """A copy of the Store's maps at one instant, for one capture. The values in them are not copied."""

    capture: Capture
    """The capture, still without pods, groups, Jobs and Workloads."""

    pods: Collection[Pod]
    groups: Collection[PodGroup]
    group_of: Mapping[str, GroupKey]
    jobs: Mapping[Key, Job]
    workloads: Mapping[Key, Workload]

    labels: frozenset[str]
    """The keys of the pod labels by which some feature of the core (`extender.core.feature`) decides."""


def take_capture(core: Core, level: ApiLevel, group: GroupKey | None = None) -> Work[Capture]:
    """Return a generator that captures the planner's whole input step by step (`serried.ops.steps.Work`).

    The capture is the state at the first step. ``level`` is the API group and version of PodGroups that the cluster
    uses; it is a field of the capture. ``group`` is the group whose decision the reader of the capture wants to repeat;
    None for none in particular.
    """
    capture, rest = yield from take_capture_without_pods(core, level, group)
    pods: list[Pod] = []
    while batch := list(islice(rest, _ITEMS_PER_STEP)):
        pods += batch
        yield
    return replace(capture, pods=tuple(pods))


def take_capture_without_pods(
    core: Core, level: ApiLevel, group: GroupKey | None = None
) -> Work[tuple[Capture, Iterator[Pod]]]:
    """Return a generator that makes a capture without pods, and an iterator over the pods (`serried.ops.steps.Work`).

    The iterator creates the copy of each pod only when it is needed, which saves memory. A copy has only the fields
    that matter for decisions. ``level`` and ``group`` are as for `take_capture`.
    """
    copied = _copy_store(core, level, group)
    yield
    kept = [each for each in copied.groups if each.key.kind is not GroupKind.COMPOSITE]
    groups = yield from _strip_all(kept, _strip_group)
    needed, read = _list_needed_labels(copied), copied.labels
    vacancies = yield from _strip_all(copied.capture.vacancies, lambda each: _strip_vacancy(each, needed, read))
    named = {Key(each.key.namespace, each.workload) for each in groups if each.workload is not None}
    workloads = [copied.workloads[key] for key in sorted(named) if key in copied.workloads]
    yield
    owners = {Key(each.key.namespace, ref.name) for each in groups for ref in each.owners if ref.kind == JOB}
    owners |= {Key(each.key.namespace, each.job) for each in workloads if each.job is not None}
    capture = replace(
        copied.capture,
        groups=tuple(groups),
        vacancies=tuple(vacancies),
        workloads=tuple(replace(each, labels=_keep_ours(each.labels)) for each in workloads),
        jobs=tuple(copied.jobs[key] for key in sorted(owners) if key in copied.jobs),
    )
    return capture, _iterate_pods(copied)


def _strip_all(items: Iterable[T], strip: Callable[[T], T]) -> Work[list[T]]:
    done: list[T] = []
    rest = iter(items)
    while batch := list(islice(rest, _ITEMS_PER_STEP)):
        done += map(strip, batch)
        yield
    return done


def _copy_store(core: Core, level: ApiLevel, group: GroupKey | None) -> _StoreCopy:
    store = core.store
    return _StoreCopy(
        capture=_capture(core, level, group),
        pods=tuple(store.pods.values()),
        groups=tuple(store.groups.values()),
        group_of=store.members.copy_groups(),
        jobs=dict(store.jobs),
        workloads=dict(store.workloads),
        labels=frozenset(label for each in core.context.features.all for label in each.member_labels),
    )


def _capture(core: Core, level: ApiLevel, group: GroupKey | None) -> Capture:
    store, now = core.store, core.clock()
    return Capture(
        level=level,
        schedulers=store.schedulers,
        profiles=store.profiles,
        wall=core.context.wall(),
        clock=now,
        settings=_OPTIONS.dump_python(core.context.options, mode="json", exclude_defaults=True),
        nodes=tuple(store.nodes.values()),
        pods=(),
        used=dict(store.occupancy.used),
        pools=store.rule(Volumes).supply.copy_pools(),
        parents=tuple(store.parents.values()),
        composites=tuple(store.forest.composites.values()),
        priority_classes=tuple(store.priority_classes.values()),
        budgets=tuple(store.budgets.values()),
        reservations=tuple(_list_reserved(core)),
        vacancies=tuple(_list_vacant(store)),
        on_their_way=_find_on_their_way(core),
        memories=tuple(_capture_group(key, state, now) for key, state in core.groups.states.items()),
        kept=_capture_head(core.backfill.head),
        group=group,
    )


def _list_vacant(store: Store) -> Iterator[VacantSlot]:
    for each in store.vacancies:
        yield VacantSlot(each.group, each.pod, each.leaf, each.refusal, each.since, each.replacement)


def _list_reserved(core: Core) -> Iterator[Reserved]:
    for each in core.ledger:
        state = core.groups.states.get(each.group)
        yield Reserved(
            group=each.group,
            group_uid=each.group_uid,
            domain=each.domain,
            need=each.need,
            slots=tuple(each.slots.values()),
            committed=each.committed,
            parts=dict(each.parts),
            victims=tuple(each.victims.values()),
            since=state.cycle.started if state is not None and state.cycle is not None else None,
        )


def _find_on_their_way(core: Core) -> frozenset[str]:
    nominations = core.store.nominations
    waiting = {pod.uid for pod in nominations.list_competing(_LOWEST, ())}
    return frozenset(nominations.uids - waiting)


_UNENDING_SECONDS = 1800.0
"""The seconds for which a rejection of a node by kube-scheduler holds in a snapshot, if it has no fixed end.

JSON has no infinity.
"""


def _capture_group(key: GroupKey, state: GroupState, now: float) -> GroupMemory:
    refusals, rejection = state.refusals, state.refusals.rejection
    return GroupMemory(
        group=key,
        first_seen=state.first_seen,
        quorum_since=state.quorum_since,
        started=state.started,
        home=state.assigned_domain,
        refusals=tuple(
            NodeRefusal(_strip_pools(shape), node, min(found.until, now + _UNENDING_SECONDS))
            for (shape, node), found in refusals.excluded.items()
            if now < found.until
        ),
        offers=tuple(
            NodeOffer(_strip_pools(shape), names, until)
            for shape, (until, names) in refusals.offers.items()
            if now < until
        ),
        rejection=None if rejection is None else (rejection.until, rejection.text, rejection.member),
        verdict=state.verdict,
        preempted=state.cycle is not None and state.cycle.preempted,
        features={kind.captured: _dump_memory(kind, each) for kind, each in state.memory.items() if kind.captured},
    )


def _capture_head(head: Head | None) -> KeptNodes | None:
    if head is None:
        return None
    return KeptNodes(
        group=head.group,
        priority=head.waiting.priority,
        since=head.waiting.since,
        broken=head.waiting.broken,
        domain=head.forecast.domain,
        nodes=head.forecast.nodes,
        at=head.forecast.at,
        shares=head.forecast.shares,
        made=head.made,
        until=head.until,
        text=head.text,
        exclusive_in=head.exclusive_in,
        beyond_share=head.beyond_share,
        late=head.has_missed,
        missed=head.first_missed,
        passed=tuple(head.passed.items()),
    )


# --- what is left out -------------------------------------------------------------------------------------------------


def _iterate_pods(copied: _StoreCopy) -> Iterator[Pod]:
    """Yield the pods that matter for decisions, each with only the fields that matter.

    They are the members of groups, bound pods, and waiting pods that are nominated or compete for resources.
    """
    needed = _list_needed_labels(copied)
    for pod in copied.pods:
        group = copied.group_of.get(pod.uid)
        waits = pod.pending and (bool(pod.nominated) or is_rival(pod, copied.capture.profiles))
        if group is not None or pod.bound or waits:
            yield _strip_pod(pod, group, needed.get(pod.namespace, copied.labels))


def _list_needed_labels(copied: _StoreCopy) -> dict[str, set[str]]:
    """Return the keys of pod labels that matter for decisions, for each namespace with a PodDisruptionBudget.

    They are the keys that the selectors of the namespace's budgets name, and those by which features of the core
    decide, which are the same for all namespaces.
    """
    needed: dict[str, set[str]] = {}
    for budget in copied.capture.budgets:
        needed.setdefault(budget.key.namespace, set(copied.labels)).update(each.key for each in budget.selector or ())
    return needed


def _strip_pod(pod: Pod, group: GroupKey | None, needed: Collection[str]) -> Pod:
    labels = {name: pod.labels[name] for name in needed if name in pod.labels}
    # The pod gets a link to its group, so that a replay need not find the group from Jobs and Workloads.
    owner = pod.owner if group is not None or pod.owner is None or pod.owner.kind != JOB else None
    return replace(
        pod,
        shape=_strip_pools(pod.shape),
        labels=labels,
        group=group,
        link=None if group is None else Link.FIELD,
        owner=owner,
        place=None if group is None else pod.place,
        claims=(),
        version="",
    )


def _strip_vacancy(vacant: VacantSlot, needed: Mapping[str, Collection[str]], read: Collection[str]) -> VacantSlot:
    return replace(vacant, pod=_strip_pod(vacant.pod, vacant.group, needed.get(vacant.group.namespace, read)))


def _strip_group(group: PodGroup) -> PodGroup:
    return replace(group, labels=_keep_ours(group.labels), finalizers=(), condition=None, first_quorum=None, version="")


def _keep_ours(labels: Labels) -> Labels:
    return {name: value for name, value in labels.items() if name.startswith(_OUR_LABELS)}
