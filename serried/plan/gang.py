"""Planning one gang: generate placements, feasible, score, choose, assign (the step names of the native scheduler)."""

from collections.abc import Sequence

from serried.model.plan import Plan, PlanRequest, Snapshot
from serried.model.verdict import DomainShortage, Reason, Verdict
from serried.plan.capacity import Capacity
from serried.plan.domains import Candidate, assign, choose, feasible, hope, hope_for, measure
from serried.plan.steps import Work, finish
from serried.plan.topology import CLUSTER, Step, generate_placements, list_steps
from serried.plan.trial import Trial

_MAX_DOMAINS_REPORTED = 10


def plan_gang(snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None = None) -> Plan | Verdict:
    """Nodes for at least ``ask.need`` members in one domain, or the reason why not.

    Members beyond the quorum get a node as far as they fit into the same domain. With ``need`` 0 (members that come
    late, or are surplus) one placed member is enough. Deterministic: the order of nodes does not matter. Exact for
    members of one shape, and for a few dozen of several; else a refusal of several can be wrong, a plan never.

    ``capacity`` are the snapshot's slots as far as they are counted already; without it, every node is looked at.
    """
    return finish(solve_gang(snapshot, ask, capacity))


def solve_gang(snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None = None) -> Work[Plan | Verdict]:
    """As `plan_gang`, in steps, between which neither snapshot nor capacity may change."""
    pinned = ask.pinned if ask.topology_key is not None else frozenset[str]()
    if len(pinned) > 1:
        return Verdict(Reason.DOMAIN_CONFLICT, key=ask.topology_key or "", detail=", ".join(sorted(pinned)))
    if len(ask.members) < ask.need:
        return Verdict(Reason.QUORUM_MISSING, have=len(ask.members), need=ask.need)
    if not ask.members:
        return Plan(next(iter(pinned), ""), {})
    trial = Trial(snapshot, ask, capacity)
    yield from trial.count()
    for step in list_steps(ask):
        best = yield from choose(trial, step, generate_placements(trial.census, step, ask))
        if best is not None:
            return (yield from _plan(trial, step, best))
    return (yield from _refuse(trial, step))


def _plan(trial: Trial, step: Step, best: Candidate) -> Work[Plan]:
    domain = best.placement.domain[len(trial.ask.within)] if trial.ask.topology_key is not None else ""
    return Plan(domain, (yield from assign(trial, step, best)), best.slack // len(trial.classes))


def _refuse(trial: Trial, step: Step) -> Work[Verdict]:
    ask = trial.ask
    hopes = yield from hope_for(trial, step, generate_placements(trial.census, step, ask))
    # Only what is told is measured: with many domains and classes the rest would cost more than the plan.
    candidates = []
    for each in _rank(hopes)[:_MAX_DOMAINS_REPORTED]:
        candidates.append((yield from measure(trial, step, each.placement)))  # noqa: PERF401 - no list can yield
    if len(step.key) == len(ask.within):
        return Verdict(Reason.NO_CAPACITY, have=candidates[0].room, need=max(ask.need, 1))
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
        detail=(yield from _explain(trial, candidates)),
    )


def _rank(candidates: Sequence[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda candidate: (-candidate.room, candidate.placement.domain))


def _explain(trial: Trial, candidates: Sequence[Candidate]) -> Work[str]:
    """What else is worth saying when no domain fits."""
    whole = hope(trial, Step((), ()), CLUSTER)
    if feasible([whole], trial.ask.need):
        whole = yield from measure(trial, Step((), ()), CLUSTER)
    taken = trial.ask.taken
    parts = [] if candidates or taken else ["no node carries that label"]
    if taken:
        parts.append(f"{len(taken)} more are exclusively others'")
    if feasible([whole], trial.ask.need):
        parts.append(f"the whole cluster has room for {whole.room}")
    return ", ".join(parts)
