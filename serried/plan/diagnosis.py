"""Why a gang does not fit: how many members each domain has room for, and what keeps them off the other nodes."""

from collections import Counter
from collections.abc import Collection, Iterable

from serried.model.diagnosis import Diagnosis, DomainDiagnosis, Hurdle, HurdleCount, HurdleKind
from serried.model.node import Node
from serried.model.plan import PlanRequest, Snapshot
from serried.model.resources import PROVIDED, Resources, capacity
from serried.plan.capacity import Capacity
from serried.plan.classes import MemberClass
from serried.plan.domains import Candidate, hope_for
from serried.plan.fit import find_rejection
from serried.plan.steps import Work, finish
from serried.plan.topology import Step, generate_placements
from serried.plan.trial import Trial

_NODES_PER_STEP = 200

_NOTHING: Resources = {}


def diagnose(snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None = None) -> Diagnosis:
    """As `solve_diagnosis`, at once."""
    return finish(solve_diagnosis(snapshot, ask, capacity))


def solve_diagnosis(snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None = None) -> Work[Diagnosis]:
    """What each domain of the gang's topology key lacks, in steps.

    Of members of several shapes, hurdles are those of the shape that has the fewest slots. A tree is looked at as if
    all of its members were one gang of its root.
    """
    trial = Trial(snapshot, ask, capacity)
    yield from trial.count()
    key = ask.topology_key
    step = Step((key,) if key is not None else (), ())
    placements = generate_placements(trial.census, step, ask)
    hopes = yield from hope_for(trial, step, placements)
    hardest = min(trial.classes, key=trial.census.total)
    found = []
    total: Counter[Hurdle] = Counter()
    for each in sorted(hopes, key=lambda hope: (-hope.room, hope.placement.domain)):
        diagnosis, counts = yield from _look_at(trial, snapshot, hardest, each)
        found.append(diagnosis)
        total.update(counts)
    if key is not None and not ask.pinned:
        found += [DomainDiagnosis(name, 0, 0, (), taken=True) for name in sorted(ask.taken)]
    return Diagnosis(key or "", max(1, ask.need), tuple(found), len(found), _rank(total))


def _look_at(
    trial: Trial, snapshot: Snapshot, kind: MemberClass, hope: Candidate
) -> Work[tuple[DomainDiagnosis, Counter[Hurdle]]]:
    names = snapshot.nodes if hope.placement.names is None else hope.placement.names
    counts: Counter[Hurdle] = Counter()
    for place, name in enumerate(names, 1):
        hurdle = _find_hurdle(kind, snapshot.nodes[name], trial.census.used(name), trial.ask.closed)
        if hurdle is not None:
            counts[hurdle] += 1
        if place % _NODES_PER_STEP == 0:
            yield
    yield
    return DomainDiagnosis(hope.placement.name, hope.room, len(names), _rank(counts)), counts


def _find_hurdle(kind: MemberClass, node: Node, used: Resources, closed: Collection[str]) -> Hurdle | None:
    """What keeps a member off a node; None if one fits."""
    if node.name in closed:
        return Hurdle(HurdleKind.KEPT)
    rejection = find_rejection(kind.shape, node)
    if rejection is not None:
        return rejection
    lacking = list(_list_lacking(kind.request, node, used))
    return Hurdle(HurdleKind.RESOURCE, max(lacking)[1]) if lacking else None


def _list_lacking(request: Resources, node: Node, used: Resources) -> Iterable[tuple[float, str]]:
    """The resources of which too little is free, with the part of the request that is missing."""
    for name, amount in request.items():
        free = capacity(node.allocatable, name) - used.get(name, 0)
        if amount > 0 and free < amount:
            yield (amount - max(0, free)) / amount, name.removeprefix(PROVIDED)


def _rank(counts: Counter[Hurdle]) -> tuple[HurdleCount, ...]:
    return tuple(HurdleCount(hurdle, nodes) for hurdle, nodes in sorted(counts.items(), key=lambda one: (-one[1], one)))
