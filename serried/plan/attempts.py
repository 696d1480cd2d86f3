"""Which members get which nodes of a placement: what is tried, and what is taken of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from serried.model.preference import Style
from serried.plan.classes import MemberClass
from serried.plan.mixing import MAX_CLASSES, Bin, Budget, mix_in_steps
from serried.plan.narrowing import narrow
from serried.plan.packing import Batch, Packing
from serried.plan.steps import Work
from serried.plan.topology import Placement, Step
from serried.plan.trial import Trial


def pack(trial: Trial, step: Step, placement: Placement) -> Work[Mapping[str, str]]:
    """Member uid to node name, for as many members as are placed; of one placement always the same."""
    tried = step, placement.domain
    found = trial.packings.get(tried)
    if found is None:
        found = trial.packings[tried] = yield from _pack(trial, step, placement)
    return found


def _pack(trial: Trial, step: Step, placement: Placement) -> Work[Mapping[str, str]]:
    nodes = yield from _attempt(trial, step.below, placement, trial.budget)
    mixed = len(trial.classes) > 1 and trial.ask.style is Style.PACK and not trial.barred(placement)
    if not (mixed and nodes and step.below):
        return nodes

    def attempt(names: Sequence[str]) -> Work[dict[str, str]]:
        return _attempt(trial, step.below, replace(placement, names=names), trial.spare_budget)

    return (yield from narrow(trial, step.below, placement, nodes, attempt))


def _attempt(trial: Trial, below: Sequence[str], placement: Placement, budget: Budget) -> Work[dict[str, str]]:
    """The attempt that places most members, the earliest of equals.

    Classes go in one after another and are never taken out again. That is exact for one class. Where several cannot be
    placed like that, a mix is looked for as far as the plan's budget goes: a refusal can be wrong, a plan cannot.
    """
    best: dict[str, str] = {}
    barred = trial.barred(placement)
    for batches in _orders(trial, trial.totals(placement)):
        packing = Packing(trial.census, placement, below, trial.ask.style, barred)
        for batch in batches:
            yield from packing.put(batch)
        if len(packing.nodes) > len(best):
            best = packing.nodes
        if len(best) == len(trial.ask.members):
            return best
    if len(best) >= max(trial.ask.need, 1) or barred or len(trial.classes) == 1:
        return best
    if len(trial.classes) > MAX_CLASSES or not (yield from trial.may_hold(placement)):
        return best
    return (yield from _mix(trial, placement, budget)) or best


def _mix(trial: Trial, placement: Placement, budget: Budget) -> Work[dict[str, str]]:
    """Nodes for the quorum by `mixing.mix`, {} if it finds none."""
    free = [{name: slots for slots, name in trial.census.node_slots(kind, placement.names)} for kind in trial.classes]
    names = sorted(
        {name for each in free for name in each}, key=lambda name: (-max(f.get(name, 0) for f in free), name)
    )
    bins = [
        Bin(name, trial.census.allocatable(name), trial.census.used(name), tuple(each.get(name, 0) for each in free))
        for name in names
    ]
    yield
    wanted = tuple(len(kind.members) for kind in trial.classes)
    requests = [kind.request for kind in trial.classes]
    found = (yield from mix_in_steps(wanted, max(trial.ask.need, 1), requests, bins, budget)) or {}
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
