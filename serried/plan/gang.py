"""Plans one gang (`plan_gang`).

The steps have the names of the native PodGroup scheduling: generate placements, feasible, score, choose, assign. The
domains are tried from the narrowest preferred level to the required one (`list_steps`).
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
    """A placement with the numbers by which it is compared."""

    placement: Placement

    placed: int
    """The number of members that get a node."""

    room: int
    """The number of members that would fit if there were more; ``placed`` if shapes or exclusions differ."""

    slack: int
    """The number of slots that stay free, summed over the classes."""

    parts: tuple[int, ...] = ()
    """The number of domains of each narrower level that the members use."""

    around: tuple[int, ...] = ()
    """The number of slots in each of the wider domains around the placement."""

    apart: int = 0
    """1 if there are existing members and none of them is in this placement, else 0."""


def measure(trial: Trial, step: Step, placement: Placement) -> Candidate:
    """Return a placement with its exact numbers; with several classes they are what `pack` achieves, a lower bound."""
    best_case = estimate(trial, step, placement)
    nodes: Mapping[str, str] = {}
    if len(trial.classes) == 1 and not trial.find_excluded(placement) and not trial.couples:
        if step.below and best_case.placed:
            nodes = pack(trial, step, placement)
        return replace(best_case, parts=_count_parts(trial, step, nodes.values()))
    nodes = pack(trial, step, placement)
    slack = best_case.slack + best_case.placed - len(nodes)
    return replace(
        best_case, placed=len(nodes), room=len(nodes), slack=slack, parts=_count_parts(trial, step, nodes.values())
    )


def estimate_each(trial: Trial, step: Step, placements: Iterable[Placement]) -> list[Candidate]:
    """Return the `estimate` of each placement."""
    trial.sum_by_domain(step)
    best_cases = []
    for placement in placements:
        trial.limit.spend(len(trial.classes))
        best_cases.append(estimate(trial, step, placement))
    return best_cases


def estimate(trial: Trial, step: Step, placement: Placement) -> Candidate:
    """Return an upper bound of a placement's numbers from slots alone. It is never worse than that of `measure`."""
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
    """Return the candidates that place the quorum, or at least one member if the quorum is running already."""
    return [candidate for candidate in candidates if candidate.placed >= max(need, 1)]


def score(candidate: Candidate, style: Style) -> tuple[int, int, int, tuple[int, ...], tuple[int, ...], Domain]:
    """Return the sort key of a candidate; the smallest is the best.

    The order is: near existing members; most members; least slack (with Spread most); fewest narrower domains; least
    slots around, so that larger gangs still fit elsewhere; name.
    """
    slack = candidate.slack if style is Style.PACK else -candidate.slack
    return candidate.apart, -candidate.placed, slack, candidate.parts, candidate.around, candidate.placement.domain


def choose(trial: Trial, step: Step, placements: Iterable[Placement]) -> Candidate | None:
    """Return the best placement that places the quorum; None without one.

    Upper bounds decide the order. Packing stops when no remaining upper bound is better than the best result.
    """
    style = trial.ask.style
    best_cases = feasible(estimate_each(trial, step, placements), trial.ask.need)
    best: Candidate | None = None
    failed = False
    for best_case in sorted(best_cases, key=lambda candidate: score(candidate, style)):
        if best is not None and score(best, style) <= score(best_case, style):
            break
        if failed and not trial.may_hold(best_case.placement):
            continue
        tried = measure(trial, step, best_case.placement)
        if not feasible([tried], trial.ask.need):
            failed = True
        elif best is None or score(tried, style) < score(best, style):
            best = tried
    return best


def assign(trial: Trial, step: Step, candidate: Candidate) -> Mapping[str, str]:
    """Return the node name by member UID, for ``placed`` members of the candidate."""
    return pack(trial, step, candidate.placement)


_MAX_DOMAINS_REPORTED = 10


def plan_gang(snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None = None) -> Plan | Verdict:
    """Return nodes for at least ``ask.need`` members in one domain, or the reason why there are none.

    Further members are placed as far as they fit into the same domain. With ``need`` 0 (late or surplus members) one
    placed member is enough. The result does not depend on the order of nodes. It is exact for members of one shape, and
    for a few dozen of several. For more a refusal may be wrong; a plan is always valid.

    ``capacity`` has slots that are counted already; without it all nodes are counted.
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
    best_cases = estimate_each(trial, step, generate_placements(trial.census, step, ask))
    # Only the reported domains are packed. With many domains and classes packing all would cost more than the plan.
    candidates = [measure(trial, step, each.placement) for each in _rank(best_cases)[:_MAX_DOMAINS_REPORTED]]
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
        return Verdict(Reason.DOMAIN_FULL, domains[0].slots, waiting, step.key[-1], domains, len(best_cases))
    return Verdict(
        Reason.NO_DOMAIN_FITS,
        have=domains[0].slots if domains else 0,
        need=max(ask.need, 1),
        key=step.key[-1],
        domains=domains,
        domain_count=len(best_cases),
        detail=_explain(trial, step, candidates),
    )


def _rank(candidates: Sequence[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda candidate: (-candidate.room, candidate.placement.domain))


def _explain_never(trial: Trial, step: Step) -> str:
    """Return a phrase if the gang would fit in no domain of an empty cluster; "" if it would, or if it is unknown."""
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
    """Return further phrases for a refusal by NO_DOMAIN_FITS."""
    whole = estimate(trial, Step((), ()), CLUSTER)
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
