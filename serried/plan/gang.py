"""Plans one gang (`plan_gang`): one domain that holds its quorum, and a node for each member.

`serried.plan.tree.plan_group` calls it, for a tree once for each PodGroup that it tries. The steps have the names of
the native PodGroup scheduling: generate placements, feasible, score, choose, assign. A placement is a domain with its
nodes. Levels are tried from the narrowest preferred level to the required one (`list_search_levels`), and at each level
all its domains are compared.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from serried.api.preference import Style
from serried.api.verdict import NO_LABEL, NO_USE_TO_WAIT, DomainShortage, Reason, Verdict
from serried.plan.capacity import Capacity, Domain
from serried.plan.coupled import list_waves
from serried.plan.packing import pack
from serried.plan.placement import CLUSTER, Placement, PlanState, SearchLevel, generate_placements, list_search_levels
from serried.plan.request import Plan, PlanRequest, Snapshot


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement (a domain and its nodes), and how well the gang fits there. `score` compares candidates."""

    placement: Placement

    placed: int
    """The number of members of the gang that get a node in the placement."""

    room: int
    """The number of members that would fit if the gang had any number of them.

    It equals ``placed`` if members have several shapes or rules about each other, or if kube-scheduler has rejected
    nodes of the placement for some of them.
    """

    slack: int
    """The number of further members that fit after the gang is placed, summed over all member shapes."""

    parts: tuple[int, ...] = ()
    """The number of domains that the members use at each level narrower than the placement, the widest level first."""

    around: tuple[int, ...] = ()
    """The number of members that fit in each wider domain around the placement, the narrowest domain first."""

    apart: int = 0
    """1 if the gang has running members and none of them is in this placement, otherwise 0."""


def measure(state: PlanState, search_level: SearchLevel, placement: Placement) -> Candidate:
    """Place the gang in one domain as a test.

    Return the `Candidate` with how many members get a node, how many more fit etc. In contrast to `estimate`, it counts
    members that really get a node. If the numbers of members that fit on the nodes do not say that exactly, as with
    several shapes or with rules between members, nodes are assigned as a test (`pack`).
    """
    best_case = estimate(state, search_level, placement)
    nodes: Mapping[str, str] = {}
    if len(state.classes) == 1 and not state.find_excluded(placement) and not state.couples:
        if search_level.below and best_case.placed:
            nodes = pack(state, search_level, placement)
        return replace(best_case, parts=_count_parts(state, search_level, nodes.values()))
    nodes = pack(state, search_level, placement)
    slack = best_case.slack + best_case.placed - len(nodes)
    return replace(
        best_case,
        placed=len(nodes),
        room=len(nodes),
        slack=slack,
        parts=_count_parts(state, search_level, nodes.values()),
    )


def estimate_each(state: PlanState, search_level: SearchLevel, placements: Iterable[Placement]) -> list[Candidate]:
    """Return the `estimate` for each placement: how many members get a node there, how many more fit etc.

    ``placements`` are domains of ``search_level``.
    """
    state.sum_by_domain(search_level)
    best_cases = []
    for placement in placements:
        state.limit.spend(len(state.classes))
        best_cases.append(estimate(state, search_level, placement))
    return best_cases


def estimate(state: PlanState, search_level: SearchLevel, placement: Placement) -> Candidate:
    """Return the `Candidate` for one domain in the best case: how many members get a node there, how many more fit etc.

    It is computed from the counts of members that fit, without assigning nodes. The candidate's score is never worse
    than that of `measure`. All numbers but ``parts``, the domains used at narrower levels, are equal to those of
    `measure` if the members have one shape and no rules about each other, and if kube-scheduler has rejected no node of
    the domain for them.
    """
    totals = state.totals(placement)
    placed = sum(min(total, len(kind.members)) for total, kind in zip(totals, state.classes, strict=True))
    apart = int(
        bool(state.ask.assigned_nodes)
        and placement.names is not None
        and state.ask.assigned_nodes.isdisjoint(placement.names)
    )
    return Candidate(
        placement,
        placed,
        room=totals[0] if len(totals) == 1 else placed,
        slack=sum(totals) - placed,
        parts=tuple(1 for _ in search_level.below),
        around=state.count_around(placement, search_level),
        apart=apart,
    )


def _count_parts(state: PlanState, search_level: SearchLevel, nodes: Iterable[str]) -> tuple[int, ...]:
    used = set(nodes)
    return tuple(len({state.census.label(level, node) for node in used}) or 1 for level in search_level.below)


def feasible(candidates: Iterable[Candidate], need: int) -> list[Candidate]:
    """Return the candidates with at least ``need`` members that get a node (``placed``).

    If ``need`` is 0 (the quorum is running), one such member is enough.
    """
    return [candidate for candidate in candidates if candidate.placed >= max(need, 1)]


def score(candidate: Candidate, style: Style) -> tuple[int, int, int, tuple[int, ...], tuple[int, ...], Domain]:
    """Return the sort key of a candidate; the candidate with the smallest key is the best.

    Compared are, in this order: whether running members of the gang are there; the most members placed; the least
    slack, i.e. how many more members would fit (with Style.SPREAD the most); the fewest domains used at narrower
    levels; the fewest members that fit in the wider domains around it, so that larger gangs still fit elsewhere; the
    name.
    """
    slack = candidate.slack if style is Style.PACK else -candidate.slack
    return candidate.apart, -candidate.placed, slack, candidate.parts, candidate.around, candidate.placement.domain


def choose(state: PlanState, search_level: SearchLevel, placements: Iterable[Placement]) -> Candidate | None:
    """Return the best of the ``placements`` that hold the quorum, as a `Candidate`; None if none does.

    ``search_level`` is the level of the topology, such as rack, whose domains the placements are. Placements are
    measured in the order of their estimates, until no remaining estimate is better than the best result.
    """
    style = state.ask.style
    best_cases = feasible(estimate_each(state, search_level, placements), state.ask.need)
    best: Candidate | None = None
    failed = False
    for best_case in sorted(best_cases, key=lambda candidate: score(candidate, style)):
        if best is not None and score(best, style) <= score(best_case, style):
            break
        if failed and not state.may_hold(best_case.placement):
            continue
        tried = measure(state, search_level, best_case.placement)
        if not feasible([tried], state.ask.need):
            failed = True
        elif best is None or score(tried, style) < score(best, style):
            best = tried
    return best


def assign(state: PlanState, search_level: SearchLevel, candidate: Candidate) -> Mapping[str, str]:
    """Return the node name by member UID for the members that the candidate places."""
    return pack(state, search_level, candidate.placement)


_MAX_DOMAINS_REPORTED = 10


def plan_gang(snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None = None) -> Plan | Verdict:
    """Return nodes for at least ``ask.need`` members in one domain, or the verdict why that is impossible.

    Further members are placed as far as they fit into the same domain. With ``need`` 0 (the quorum is running) one
    placed member is enough for a plan. ``capacity`` has counts of earlier plans; if it is None, all nodes are counted.

    The result does not depend on the order of nodes. It is exact for members of one shape, and for a few dozen members
    of several shapes. For more, the verdict may say that the gang does not fit although it would; a plan is always
    valid.
    """
    pinned = ask.pinned if ask.topology_key is not None else frozenset[str]()
    if len(pinned) > 1:
        return Verdict(Reason.DOMAIN_CONFLICT, key=ask.topology_key or "", detail=", ".join(sorted(pinned)))
    if len(ask.members) < ask.need:
        return Verdict(Reason.QUORUM_MISSING, have=len(ask.members), need=ask.need)
    if not ask.members:
        return Plan(next(iter(pinned), ""), {})
    state = PlanState(snapshot, ask, capacity)
    state.count()
    for search_level in list_search_levels(ask):
        best = choose(state, search_level, generate_placements(state.census, search_level, ask))
        if best is not None:
            return _plan(state, search_level, best)
    return _refuse(state, search_level)


def _plan(state: PlanState, search_level: SearchLevel, best: Candidate) -> Plan:
    domain = best.placement.domain[len(state.ask.within)] if state.ask.topology_key is not None else ""
    nodes = assign(state, search_level, best)
    plan, rules = Plan(domain, nodes, best.slack // len(state.classes)), state.rules
    if rules is None or not rules.couples:
        return plan
    return replace(plan, waves=list_waves(rules, state.classes, nodes), keys=tuple(rules.list_keys()))


def _refuse(state: PlanState, search_level: SearchLevel) -> Verdict:
    ask = state.ask
    best_cases = estimate_each(state, search_level, generate_placements(state.census, search_level, ask))
    # Only the reported domains are packed. With many domains and classes packing all would cost more than the plan.
    candidates = [measure(state, search_level, each.placement) for each in _rank(best_cases)[:_MAX_DOMAINS_REPORTED]]
    if len(search_level.key) == len(ask.within):
        never = _explain_never(state, search_level)
        rules = "" if state.rules is None else state.rules.describe()
        detail = "; ".join(filter(None, (never, rules)))
        return Verdict(Reason.NO_CAPACITY, have=candidates[0].room, need=max(ask.need, 1), detail=detail)
    domains = tuple(
        DomainShortage("/".join(candidate.placement.domain), candidate.room) for candidate in _rank(candidates)
    )
    if ask.topology_key is not None and ask.pinned and len(search_level.key) == len(ask.within) + 1:
        waiting = ask.need or len(ask.members)
        return Verdict(Reason.DOMAIN_FULL, domains[0].slots, waiting, search_level.key[-1], domains, len(best_cases))
    return Verdict(
        Reason.NO_DOMAIN_FITS,
        have=domains[0].slots if domains else 0,
        need=max(ask.need, 1),
        key=search_level.key[-1],
        domains=domains,
        domain_count=len(best_cases),
        detail=_explain(state, search_level, candidates),
    )


def _rank(candidates: Sequence[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda candidate: (-candidate.room, candidate.placement.domain))


def _explain_never(state: PlanState, search_level: SearchLevel) -> str:
    """Return a phrase for users if the gang would fit in no domain even if no pods were running; otherwise ""."""
    counts = state.count_empty(search_level.key)
    if counts is None or (search_level.key and not state.census.domains(search_level.key)):
        return ""
    around = tuple(value for _, value in state.ask.within)
    inside = {domain: count for domain, count in counts.items() if domain[: len(around)] == around}
    best = min(inside, key=lambda domain: (-inside[domain], domain), default=())
    most = inside.get(best, 0)
    if most >= max(state.ask.need, 1):
        return ""
    where = f" (in {'/'.join(best)})" if most and search_level.key else ""
    return f"even if nothing ran, at most {most} members would fit{where}, {NO_USE_TO_WAIT}"


def _explain(state: PlanState, search_level: SearchLevel, candidates: Sequence[Candidate]) -> str:
    """Return the details for users about domains, rules and the whole cluster, when no domain holds the gang."""
    whole = estimate(state, SearchLevel((), ()), CLUSTER)
    if feasible([whole], state.ask.need):
        whole = measure(state, SearchLevel((), ()), CLUSTER)
    taken = state.ask.taken
    parts = [] if candidates or taken else [NO_LABEL]
    if state.rules is not None and (rules := state.rules.describe()):
        parts.append(rules)
    if never := _explain_never(state, search_level):
        parts.append(never)
    if taken:
        parts.append(f"{len(taken)} more domains are used exclusively by other gangs")
    if feasible([whole], state.ask.need):
        parts.append(f"{whole.room} members fit into the whole cluster")
    return "; ".join(parts)
