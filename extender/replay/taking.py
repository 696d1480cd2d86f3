"""Takes the planner's whole input as it is at one instant.

The instant is one copy of each map, a few milliseconds for 50,000 pods; the values in them never change. What is left
out, and what may not leave the process, is seen to afterwards, in steps.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from extender.core import Core, Options
from extender.scheduling.backfill import Head
from extender.scheduling.group_state import VAIN_SECONDS, GroupState
from serried.cluster.store import is_rival
from serried.decode.values import Codec
from serried.model.budget import DisruptionBudget
from serried.model.capture import Capture, GroupMemory, KeptNodes, NodeOffer, NodeRefusal, Reserved, VacantSlot
from serried.model.group import GroupKey, GroupKind, Job, Key, PodGroup, Workload
from serried.model.level import ApiLevel
from serried.model.parent import JOB
from serried.model.pod import Link, Pod
from serried.model.selectors import Labels
from serried.plan.steps import Work

T = TypeVar("T")

_ITEMS_PER_STEP = 100

_OUR_LABELS = "scheduling.serried.dev/"

_LOWEST = -(1 << 31)


@dataclass(frozen=True, slots=True)
class _Instant:
    """What the Store had."""

    capture: Capture
    """All but pods, groups and what belongs to these."""

    pods: Collection[Pod]
    groups: Collection[PodGroup]
    group_of: Mapping[str, GroupKey]
    jobs: Mapping[Key, Job]
    workloads: Mapping[Key, Workload]


def take_capture(core: Core, level: ApiLevel, group: GroupKey | None = None) -> Work[Capture]:
    """The input as of the first step. ``group`` is the one whose decision is asked about."""
    capture, rest = yield from take_parts(core, level, group)
    pods: list[Pod] = []
    while batch := list(islice(rest, _ITEMS_PER_STEP)):
        pods += batch
        yield
    return replace(capture, pods=tuple(pods))


def take_parts(core: Core, level: ApiLevel, group: GroupKey | None = None) -> Work[tuple[Capture, Iterator[Pod]]]:
    """The same with its pods apart, each of which is made when it is asked for: nobody has to hold all of them."""
    instant = _freeze(core, level, group)
    yield
    kept = [each for each in instant.groups if each.key.kind is not GroupKind.COMPOSITE]
    groups = yield from _work_through(kept, _strip_group)
    told = _list_told_labels(instant.capture.budgets)
    vacancies = yield from _work_through(instant.capture.vacancies, lambda each: _strip_vacancy(each, told))
    named = {Key(each.key.namespace, each.workload) for each in groups if each.workload is not None}
    workloads = [instant.workloads[key] for key in sorted(named) if key in instant.workloads]
    yield
    owners = {Key(each.key.namespace, ref.name) for each in groups for ref in each.owners if ref.kind == JOB}
    owners |= {Key(each.key.namespace, each.job) for each in workloads if each.job is not None}
    capture = replace(
        instant.capture,
        groups=tuple(groups),
        vacancies=tuple(vacancies),
        workloads=tuple(replace(each, labels=_keep_ours(each.labels)) for each in workloads),
        jobs=tuple(instant.jobs[key] for key in sorted(owners) if key in instant.jobs),
    )
    return capture, _iterate_pods(instant)


def _work_through(items: Iterable[T], strip: Callable[[T], T]) -> Work[list[T]]:
    done: list[T] = []
    rest = iter(items)
    while batch := list(islice(rest, _ITEMS_PER_STEP)):
        done += map(strip, batch)
        yield
    return done


def _freeze(core: Core, level: ApiLevel, group: GroupKey | None) -> _Instant:
    store = core.store
    return _Instant(
        capture=Capture(
            level=level,
            schedulers=store.schedulers,
            profiles=store.profiles,
            wall=core.wall(),
            clock=core.clock(),
            settings=Codec().writer(Options)(core.options),
            nodes=tuple(store.nodes.values()),
            pods=(),
            used=dict(store.occupancy.used),
            parents=tuple(store.parents.values()),
            composites=tuple(store.forest.composites.values()),
            priority_classes=tuple(store.priority_classes.values()),
            budgets=tuple(store.budgets.values()),
            reservations=tuple(_list_reserved(core)),
            vacancies=tuple(
                VacantSlot(each.group, each.pod, each.leaf, each.refusal, each.since, each.replacement)
                for each in store.vacancies
            ),
            on_their_way=_find_on_their_way(core),
            memories=tuple(_remember(key, state, core.clock()) for key, state in core.groups.states.items()),
            kept=_keep_nodes(core.queue.backfill.head),
            group=group,
        ),
        pods=tuple(store.pods.values()),
        groups=tuple(store.groups.values()),
        group_of=store.members.copy_groups(),
        jobs=dict(store.jobs),
        workloads=dict(store.workloads),
    )


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
    waiting = {pod.uid for pod in nominations.of_others(_LOWEST, ())}
    return frozenset(nominations.uids - waiting)


def _remember(key: GroupKey, state: GroupState, now: float) -> GroupMemory:
    return GroupMemory(
        group=key,
        first_seen=state.first_seen,
        quorum_since=state.quorum_since,
        broken_since=state.broken_since,
        started=state.started,
        stood=state.stood,
        home=state.home,
        refusals=tuple(
            NodeRefusal(shape, node, min(found.until, now + VAIN_SECONDS))
            for (shape, node), found in state.refusals.items()
            if now < found.until
        ),
        offers=tuple(NodeOffer(shape, names, until) for shape, (until, names) in state.offers.items() if now < until),
        verdict=state.verdict,
        preempted=state.cycle is not None and state.cycle.preempted,
    )


def _keep_nodes(head: Head | None) -> KeptNodes | None:
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
        made=head.made,
        until=head.until,
        text=head.text,
        exclusive_in=head.exclusive_in,
        late=head.late,
        missed=head.missed,
        passed=dict(head.passed),
    )


# --- what is left out -------------------------------------------------------------------------------------------------


def _iterate_pods(instant: _Instant) -> Iterator[Pod]:
    """The pods that count somewhere, or are members, each with what decides and nothing else."""
    told = _list_told_labels(instant.capture.budgets)
    for pod in instant.pods:
        group = instant.group_of.get(pod.uid)
        waits = pod.pending and (bool(pod.nominated) or is_rival(pod, instant.capture.profiles))
        if group is not None or pod.bound or waits:
            yield _strip_pod(pod, group, told.get(pod.namespace))


def _list_told_labels(budgets: Iterable[DisruptionBudget]) -> dict[str, set[str]]:
    """By namespace, the labels of pods by which PodDisruptionBudgets choose."""
    told: dict[str, set[str]] = {}
    for budget in budgets:
        told.setdefault(budget.key.namespace, set()).update(each.key for each in budget.selector or ())
    return told


def _strip_pod(pod: Pod, group: GroupKey | None, told: Collection[str] | None) -> Pod:
    labels = {name: value for name, value in pod.labels.items() if name in told} if told else {}
    # The group that was found stands in the place of what led to it: Jobs and Workloads are not looked at again.
    owner = pod.owner if group is not None or pod.owner is None or pod.owner.kind != JOB else None
    return replace(
        pod,
        labels=labels,
        group=group,
        link=None if group is None else Link.FIELD,
        owner=owner,
        place=None if group is None else pod.place,
        claims=(),
        version="",
    )


def _strip_vacancy(vacant: VacantSlot, told: Mapping[str, Collection[str]]) -> VacantSlot:
    return replace(vacant, pod=_strip_pod(vacant.pod, vacant.group, told.get(vacant.group.namespace)))


def _strip_group(group: PodGroup) -> PodGroup:
    return replace(group, labels=_keep_ours(group.labels), finalizers=(), condition=None, version="")


def _keep_ours(labels: Labels) -> Labels:
    return {name: value for name, value in labels.items() if name.startswith(_OUR_LABELS)}
