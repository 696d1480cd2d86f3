"""Planning one gang: generate placements, feasible, score, choose, assign (the step names of the native scheduler).

How well each placement would hold the gang, and which one gets it (feasible, score, choose, assign).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from serried.api.preference import Style
from serried.api.verdict import NO_LABEL, NO_USE_TO_WAIT, DomainShortage, Reason, Verdict
from serried.plan.capacity import Capacity, Domain
from serried.plan.coupled import list_waves
from serried.plan.packing import pack
from serried.plan.placement import CLUSTER, Placement, Step, Trial, generate_placements, list_steps
from serried.plan.request import Plan, PlanRequest, Snapshot


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement with its numbers."""

    placement: Placement

    placed: int
    """How many members would get a node."""

    room: int
    """How many members of their kind would; equal to ``placed`` where classes are mixed or nodes excluded."""

    slack: int
    """How many slots would stay free, summed over the classes."""

    parts: tuple[int, ...] = ()
    """How many domains of each narrower level the members would take."""

    around: tuple[int, ...] = ()
    """How many slots the wider domains around the placement have."""

    apart: int = 0
    """1 if existing members are elsewhere and none is here, else 0."""


def measure(trial: Trial, step: Step, placement: Placement) -> Candidate:
    """The numbers of one placement: exact for members of one class, reachable ones (a lower bound) otherwise."""
    hopeful = hope(trial, step, placement)
    nodes: Mapping[str, str] = {}
    if len(trial.classes) == 1 and not trial.barred(placement) and not trial.couples:
        if step.below and hopeful.placed:
            nodes = pack(trial, step, placement)
        return replace(hopeful, parts=_count_parts(trial, step, nodes.values()))
    nodes = pack(trial, step, placement)
    slack = hopeful.slack + hopeful.placed - len(nodes)
    return replace(
        hopeful, placed=len(nodes), room=len(nodes), slack=slack, parts=_count_parts(trial, step, nodes.values())
    )


def hope_for(trial: Trial, step: Step, placements: Iterable[Placement]) -> list[Candidate]:
    """As `hope`, for each placement."""
    trial.sum_up(step)
    hopes = []
    for placement in placements:
        trial.limit.spend(len(trial.classes))
        hopes.append(hope(trial, step, placement))
    return hopes


def hope(trial: Trial, step: Step, placement: Placement) -> Candidate:
    """The best that the placement's numbers can be, without trying: never worse than `measure`."""
    totals = trial.totals(placement)
    placed = sum(min(total, len(kind.members)) for total, kind in zip(totals, trial.classes, strict=True))
    apart = int(
        bool(trial.ask.assigned_nodes)
        and placement.names is not None
        and trial.ask.assigned_nodes.isdisjoint(placement.names)
    )
    return Candidate(
        placement,
        placed,
        room=totals[0] if len(totals) == 1 else placed,
        slack=sum(totals) - placed,
        parts=tuple(1 for _ in step.below),
        around=trial.around(placement, step),
        apart=apart,
    )


def _count_parts(trial: Trial, step: Step, nodes: Iterable[str]) -> tuple[int, ...]:
    used = set(nodes)
    return tuple(len({trial.census.label(level, node) for node in used}) or 1 for level in step.below)


def feasible(candidates: Iterable[Candidate], need: int) -> list[Candidate]:
    """The candidates that hold the quorum, or at least one member where no quorum is needed any more."""
    return [candidate for candidate in candidates if candidate.placed >= max(need, 1)]


def score(candidate: Candidate, style: Style) -> tuple[int, int, int, tuple[int, ...], tuple[int, ...], Domain]:
    """Smaller is better: beside existing members; most members; the tightest domain; fewest parts; and so on.

    Of equals the one with the tightest surroundings, so that the largest gang still fits elsewhere, then by name.
    Spread takes the roomiest domain instead of the tightest.
    """
    slack = candidate.slack if style is Style.PACK else -candidate.slack
    return candidate.apart, -candidate.placed, slack, candidate.parts, candidate.around, candidate.placement.domain


def choose(trial: Trial, step: Step, placements: Iterable[Placement]) -> Candidate | None:
    """The best placement that holds the quorum, None without one.

    Best hopes are tried first, and no more than needed: what cannot be better than the best found is not tried.
    """
    style = trial.ask.style
    hopes = feasible(hope_for(trial, step, placements), trial.ask.need)
    best: Candidate | None = None
    vain = False
    for hopeful in sorted(hopes, key=lambda candidate: score(candidate, style)):
        if best is not None and score(best, style) <= score(hopeful, style):
            break
        if vain and not trial.may_hold(hopeful.placement):
            continue
        tried = measure(trial, step, hopeful.placement)
        if not feasible([tried], trial.ask.need):
            vain = True
        elif best is None or score(tried, style) < score(best, style):
            best = tried
    return best


def assign(trial: Trial, step: Step, candidate: Candidate) -> Mapping[str, str]:
    """Member uid to node name, as many as the candidate's ``placed``."""
    return pack(trial, step, candidate.placement)


_MAX_DOMAINS_REPORTED = 10


def plan_gang(snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None = None) -> Plan | Verdict:
    """Nodes for at least ``ask.need`` members in one domain, or the reason why not.

    Members beyond the quorum get a node as far as they fit into the same domain. With ``need`` 0 (members that come
    late, or are surplus) one placed member is enough. Deterministic: the order of nodes does not matter. Exact for
    members of one shape, and for a few dozen of several; else a refusal of several can be wrong, a plan never.

    ``capacity`` are the snapshot's slots as far as they are counted already; without it, every node is looked at.
    """
    pinned = ask.pinned if ask.topology_key is not None else frozenset[str]()
    if len(pinned) > 1:
        return Verdict(Reason.DOMAIN_CONFLICT, key=ask.topology_key or "", detail=", ".join(sorted(pinned)))
    if len(ask.members) < ask.need:
        return Verdict(Reason.QUORUM_MISSING, have=len(ask.members), need=ask.need)
    if not ask.members:
        return Plan(next(iter(pinned), ""), {})
    trial = Trial(snapshot, ask, capacity)
    trial.count()
    for step in list_steps(ask):
        best = choose(trial, step, generate_placements(trial.census, step, ask))
        if best is not None:
            return _plan(trial, step, best)
    return _refuse(trial, step)


def _plan(trial: Trial, step: Step, best: Candidate) -> Plan:
    domain = best.placement.domain[len(trial.ask.within)] if trial.ask.topology_key is not None else ""
    nodes = assign(trial, step, best)
    plan, rules = Plan(domain, nodes, best.slack // len(trial.classes)), trial.rules
    if rules is None or not rules.couples:
        return plan
    return replace(plan, waves=list_waves(rules, trial.classes, nodes), keys=tuple(rules.list_keys()))


def _refuse(trial: Trial, step: Step) -> Verdict:
    ask = trial.ask
    hopes = hope_for(trial, step, generate_placements(trial.census, step, ask))
    # Only what is told is measured: with many domains and classes the rest would cost more than the plan.
    candidates = [measure(trial, step, each.placement) for each in _rank(hopes)[:_MAX_DOMAINS_REPORTED]]
    if len(step.key) == len(ask.within):
        never = _explain_never(trial, step)
        rules = "" if trial.rules is None else trial.rules.describe()
        detail = ", ".join(filter(None, (never, rules)))
        return Verdict(Reason.NO_CAPACITY, have=candidates[0].room, need=max(ask.need, 1), detail=detail)
    domains = tuple(
        DomainShortage("/".join(candidate.placement.domain), candidate.room) for candidate in _rank(candidates)
    )
    if ask.topology_key is not None and ask.pinned and len(step.key) == len(ask.within) + 1:
        waiting = ask.need or len(ask.members)
        return Verdict(Reason.DOMAIN_FULL, domains[0].slots, waiting, step.key[-1], domains, len(hopes))
    return Verdict(
        Reason.NO_DOMAIN_FITS,
        have=domains[0].slots if domains else 0,
        need=max(ask.need, 1),
        key=step.key[-1],
        domains=domains,
        domain_count=len(hopes),
        detail=_explain(trial, step, candidates),
    )


def _rank(candidates: Sequence[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda candidate: (-candidate.room, candidate.placement.domain))


def _explain_never(trial: Trial, step: Step) -> str:
    """That no domain would hold the gang even if nothing ran, a phrase; "" if one would, or it is not known."""
    counts = trial.count_empty(step.key)
    if counts is None or (step.key and not trial.census.domains(step.key)):
        return ""
    around = tuple(value for _, value in trial.ask.within)
    inside = {domain: count for domain, count in counts.items() if domain[: len(around)] == around}
    best = min(inside, key=lambda domain: (-inside[domain], domain), default=())
    most = inside.get(best, 0)
    if most >= max(trial.ask.need, 1):
        return ""
    where = (
        f"{'/'.join(best)} would hold {most} and no other more" if most and step.key else f"there is room for {most}"
    )
    return f"even if nothing ran {where}, {NO_USE_TO_WAIT}"


def _explain(trial: Trial, step: Step, candidates: Sequence[Candidate]) -> str:
    """What else is worth saying when no domain fits."""
    whole = hope(trial, Step((), ()), CLUSTER)
    if feasible([whole], trial.ask.need):
        whole = measure(trial, Step((), ()), CLUSTER)
    taken = trial.ask.taken
    parts = [] if candidates or taken else [NO_LABEL]
    if trial.rules is not None and (rules := trial.rules.describe()):
        parts.append(rules)
    if never := _explain_never(trial, step):
        parts.append(never)
    if taken:
        parts.append(f"{len(taken)} more are exclusively others'")
    if feasible([whole], trial.ask.need):
        parts.append(f"the whole cluster has room for {whole.room}")
    return ", ".join(parts)
