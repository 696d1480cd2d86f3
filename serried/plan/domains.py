"""How well each placement would hold the gang, and which one gets it (feasible, score, choose, assign)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from serried.model.preference import Style
from serried.plan.attempts import pack
from serried.plan.capacity import Domain
from serried.plan.steps import Work
from serried.plan.topology import Placement, Step
from serried.plan.trial import Trial


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


def measure(trial: Trial, step: Step, placement: Placement) -> Work[Candidate]:
    """The numbers of one placement: exact for members of one class, reachable ones (a lower bound) otherwise."""
    hopeful = hope(trial, step, placement)
    nodes: Mapping[str, str] = {}
    if len(trial.classes) == 1 and not trial.barred(placement):
        if step.below and hopeful.placed:
            nodes = yield from pack(trial, step, placement)
        return replace(hopeful, parts=_count_parts(trial, step, nodes.values()))
    nodes = yield from pack(trial, step, placement)
    slack = hopeful.slack + hopeful.placed - len(nodes)
    return replace(
        hopeful, placed=len(nodes), room=len(nodes), slack=slack, parts=_count_parts(trial, step, nodes.values())
    )


def hope_for(trial: Trial, step: Step, placements: Iterable[Placement]) -> Work[list[Candidate]]:
    """As `hope`, for each placement."""
    yield from trial.sum_up(step)
    hopes = []
    for placement in placements:
        hopes.append(hope(trial, step, placement))
        yield
    return hopes


def hope(trial: Trial, step: Step, placement: Placement) -> Candidate:
    """The best that the placement's numbers can be, without trying: never worse than `measure`."""
    totals = trial.totals(placement)
    placed = sum(min(total, len(kind.members)) for total, kind in zip(totals, trial.classes, strict=True))
    apart = int(bool(trial.ask.homes) and placement.names is not None and trial.ask.homes.isdisjoint(placement.names))
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


def choose(trial: Trial, step: Step, placements: Iterable[Placement]) -> Work[Candidate | None]:
    """The best placement that holds the quorum, None without one.

    Best hopes are tried first, and no more than needed: what cannot be better than the best found is not tried.
    """
    style = trial.ask.style
    hopes = feasible((yield from hope_for(trial, step, placements)), trial.ask.need)
    best: Candidate | None = None
    vain = False
    for hopeful in sorted(hopes, key=lambda candidate: score(candidate, style)):
        if best is not None and score(best, style) <= score(hopeful, style):
            break
        if vain and not (yield from trial.may_hold(hopeful.placement)):
            continue
        tried = yield from measure(trial, step, hopeful.placement)
        if not feasible([tried], trial.ask.need):
            vain = True
        elif best is None or score(tried, style) < score(best, style):
            best = tried
    return best


def assign(trial: Trial, step: Step, candidate: Candidate) -> Work[Mapping[str, str]]:
    """Member uid to node name, as many as the candidate's ``placed``."""
    return (yield from pack(trial, step, candidate.placement))
