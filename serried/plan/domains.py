"""How well each placement would hold the gang, and which one gets it (feasible, score, choose, assign)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from serried.model.plan import Ask, View
from serried.plan.classes import Census, MemberClass, group_classes
from serried.plan.packing import Batch, Packing, Pair
from serried.plan.topology import Placement


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement with its numbers.

    ``placed`` members would get a node; there is ``room`` for so many of their kind (equal to ``placed`` where
    classes are mixed or nodes excluded); ``slack`` slots stay free, summed over the classes.
    """

    placement: Placement
    placed: int
    room: int
    slack: int


class Trial:
    """What a gang's placements are measured against: its classes, what it must not use, and the census."""

    def __init__(self, view: View, ask: Ask) -> None:
        uids = {member.uid for member in ask.members}
        self.classes = group_classes(ask.members)
        self.census = Census(view)
        self.ask = ask
        self._barred = frozenset(pair for pair in ask.excluded if pair[0] in uids and pair[1] in view.nodes)
        self._barred_nodes = frozenset(name for _, name in self._barred)

    def barred(self, placement: Placement) -> frozenset[Pair]:
        """The excluded pairs, empty if none of them is about this placement."""
        if not self._barred_nodes or all(node.name not in self._barred_nodes for node in placement.nodes):
            return frozenset()
        return self._barred


def measure(trial: Trial, placement: Placement) -> Candidate:
    """The numbers of one placement: exact for members of one class, reachable ones (a lower bound) otherwise."""
    totals = _count_totals(trial, placement)
    if len(trial.classes) == 1 and not trial.barred(placement):
        placed = min(totals[0], len(trial.ask.members))
        return Candidate(placement, placed, totals[0], totals[0] - placed)
    placed = len(_pack(trial, placement, totals))
    return Candidate(placement, placed, placed, sum(totals) - placed)


def feasible(candidates: Iterable[Candidate], need: int) -> list[Candidate]:
    """Those that hold the quorum, or at least one member where no quorum is needed any more."""
    return [candidate for candidate in candidates if candidate.placed >= max(need, 1)]


def score(candidate: Candidate) -> tuple[int, int, str]:
    """Smaller is better: most members, then the tightest domain, then its name."""
    return -candidate.placed, candidate.slack, candidate.placement.domain


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """The best of at least one candidate."""
    return min(candidates, key=score)


def assign(trial: Trial, candidate: Candidate) -> dict[str, str]:
    """Member uid to node name, as many as the candidate's ``placed``."""
    placement = candidate.placement
    return _pack(trial, placement, _count_totals(trial, placement))


def _count_totals(trial: Trial, placement: Placement) -> list[int]:
    """Slots of each class, as if it were alone."""
    return [sum(free for free, _ in trial.census.count(kind, placement.nodes)) for kind in trial.classes]


def _pack(trial: Trial, placement: Placement, totals: Sequence[int]) -> dict[str, str]:
    """The attempt that places most members, the earliest of equals.

    Classes go in one after another and are never taken out again. That is exact for one class; several can be
    refused although a cleverer mix would fit, never the other way round.
    """
    best: dict[str, str] = {}
    barred = trial.barred(placement)
    for batches in _orders(trial, totals):
        packing = Packing(trial.census, placement, barred)
        for batch in batches:
            packing.put(batch)
        if len(packing.nodes) > len(best):
            best = packing.nodes
        if len(best) == len(trial.ask.members):
            break
    return best


def _orders(trial: Trial, totals: Sequence[int]) -> list[list[Batch]]:
    """Orders worth an attempt: scarcest class first, that for the quorum and then the rest, easiest class first."""
    whole = _by_scarcity(trial.classes, totals)
    if len(whole) == 1:
        return [whole]
    need = trial.ask.need
    easiest = whole[::-1]
    if sum(min(total, len(kind.members)) for kind, total in zip(trial.classes, totals, strict=True)) < need:
        return [easiest]
    if not 0 < need < len(trial.ask.members):
        return [whole, easiest]
    first = frozenset(member.uid for member in trial.ask.members[:need])
    quorum: list[Batch] = [(kind, [m for m in members if m.uid in first]) for kind, members in whole]
    rest: list[Batch] = [(kind, [m for m in members if m.uid not in first]) for kind, members in whole]
    return [whole, quorum + rest, easiest]


def _by_scarcity(classes: Sequence[MemberClass], totals: Sequence[int]) -> list[Batch]:
    """Fewest slots per member first; of equals the one that asks for more."""
    ranked = [(total / len(kind.members), kind) for kind, total in zip(classes, totals, strict=True)]
    ranked.sort(key=lambda entry: entry[1].shape.requests, reverse=True)
    ranked.sort(key=lambda entry: entry[0])
    return [(kind, kind.members) for _, kind in ranked]
