"""How well each placement would hold the gang, and which one gets it (feasible, score, choose, assign)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from serried.model.plan import Ask, View
from serried.model.preference import Style
from serried.plan.capacity import Capacity, Domain, LevelKey
from serried.plan.classes import Census, MemberClass, group_classes
from serried.plan.mixing import Budget, Room, mix
from serried.plan.packing import Batch, Packing, Pair
from serried.plan.topology import Placement, Step

_STEPS = 20_000
"""Of `mixing`, for a whole plan: some tens of milliseconds."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement with its numbers.

    ``placed`` members would get a node; there is ``room`` for so many of their kind (equal to ``placed`` where
    classes are mixed or nodes excluded); ``slack`` slots stay free, summed over the classes. ``parts`` is how many
    domains of each narrower level they would take, ``around`` how many slots the wider domains have around it.
    ``apart`` is 1 if no existing member is there, though elsewhere.
    """

    placement: Placement
    placed: int
    room: int
    slack: int
    parts: tuple[int, ...] = ()
    around: tuple[int, ...] = ()
    apart: int = 0


class Trial:
    """What a gang's placements are measured against: its classes, what it must not use, and the census."""

    def __init__(self, view: View, ask: Ask, capacity: Capacity | None = None) -> None:
        uids = {member.uid for member in ask.members}
        self.classes = group_classes(ask.members)
        self.census = Census(view, ask, capacity)
        self.ask = ask
        self.budget = Budget(_STEPS)
        self._barred = frozenset(pair for pair in ask.excluded if pair[0] in uids and pair[1] in view.nodes)
        self._barred_nodes = frozenset(name for _, name in self._barred)
        self._totals: dict[LevelKey, list[Mapping[Domain, int]]] = {}

    def barred(self, placement: Placement) -> frozenset[Pair]:
        """The excluded pairs, empty if none of them is about this placement."""
        if not self._barred_nodes or not (placement.names is None or self._barred_nodes & set(placement.names)):
            return frozenset()
        return self._barred

    def totals(self, placement: Placement) -> list[int]:
        """Slots of each class, as if it were alone."""
        if not placement.key:
            return [self.census.total(kind) for kind in self.classes]
        found = self._totals.get(placement.key)
        if found is None:
            found = self._totals[placement.key] = [self.census.totals(kind, placement.key) for kind in self.classes]
        return [sums.get(placement.domain, 0) for sums in found]

    def around(self, placement: Placement, step: Step) -> tuple[int, ...]:
        """Slots in the wider domains of the gang's levels, the narrowest first."""
        if placement.names is None:
            return ()
        node = next(iter(placement.names), None)
        narrower = {*step.below, *step.key[-1:]}
        wider = [level for level in self.ask.levels if level not in narrower and level != self.ask.topology_key]
        keys = [(*step.key[:-1], level) for level in wider] if len(step.key) > 1 else [(level,) for level in wider]
        keys += [step.key[:-1]] if len(step.key) > 1 else []
        homes = [(key, self.census.home(key, node)) for key in keys] if node is not None else []
        return tuple(sum(self.totals(Placement(key, home, ()))) for key, home in homes if home is not None)


def measure(trial: Trial, step: Step, placement: Placement) -> Candidate:
    """The numbers of one placement: exact for members of one class, reachable ones (a lower bound) otherwise."""
    hopeful = hope(trial, step, placement)
    if len(trial.classes) == 1 and not trial.barred(placement):
        nodes = _pack(trial, step, placement) if step.below and hopeful.placed else {}
        return replace(hopeful, parts=_count_parts(trial, step, nodes.values()))
    nodes = _pack(trial, step, placement)
    slack = hopeful.slack + hopeful.placed - len(nodes)
    return replace(
        hopeful, placed=len(nodes), room=len(nodes), slack=slack, parts=_count_parts(trial, step, nodes.values())
    )


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
    """Those that hold the quorum, or at least one member where no quorum is needed any more."""
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
    hopes = feasible((hope(trial, step, placement) for placement in placements), trial.ask.need)
    best: Candidate | None = None
    for hopeful in sorted(hopes, key=lambda candidate: score(candidate, style)):
        if best is not None and score(best, style) <= score(hopeful, style):
            break
        tried = measure(trial, step, hopeful.placement)
        if feasible([tried], trial.ask.need) and (best is None or score(tried, style) < score(best, style)):
            best = tried
    return best


def assign(trial: Trial, step: Step, candidate: Candidate) -> dict[str, str]:
    """Member uid to node name, as many as the candidate's ``placed``."""
    return _pack(trial, step, candidate.placement)


def _pack(trial: Trial, step: Step, placement: Placement) -> dict[str, str]:
    """The attempt that places most members, the earliest of equals.

    Classes go in one after another and are never taken out again. That is exact for one class. Where several cannot be
    placed like that, a mix is looked for as far as the plan's budget goes: a refusal can be wrong, a plan cannot.
    """
    best: dict[str, str] = {}
    barred = trial.barred(placement)
    for batches in _orders(trial, trial.totals(placement)):
        packing = Packing(trial.census, placement, step.below, trial.ask.style, barred)
        for batch in batches:
            packing.put(batch)
        if len(packing.nodes) > len(best):
            best = packing.nodes
        if len(best) == len(trial.ask.members):
            return best
    if len(best) >= max(trial.ask.need, 1) or barred or len(trial.classes) == 1:
        return best
    return _mix(trial, placement) or best


def _mix(trial: Trial, placement: Placement) -> dict[str, str]:
    """Nodes for the quorum by `mixing.mix`, {} if it finds none."""
    free = [{name: slots for slots, name in trial.census.rooms(kind, placement.names)} for kind in trial.classes]
    names = sorted(
        {name for each in free for name in each}, key=lambda name: (-max(f.get(name, 0) for f in free), name)
    )
    rooms = [
        Room(name, trial.census.allocatable(name), trial.census.used(name), tuple(each.get(name, 0) for each in free))
        for name in names
    ]
    wanted = tuple(len(kind.members) for kind in trial.classes)
    found = mix(wanted, max(trial.ask.need, 1), [kind.request for kind in trial.classes], rooms, trial.budget) or {}
    nodes: dict[str, str] = {}
    for place, kind in enumerate(trial.classes):
        order = (name for name in sorted(found) for _ in range(found[name][place]))
        nodes.update({member.uid: name for member, name in zip(kind.members, order, strict=False)})
    return nodes


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
