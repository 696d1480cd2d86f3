"""Which of the units that have gone from a clearing need not go.

Priority by priority, the highest first, with everything lower still gone: first those come back whose evictions violate
budgets, then whole gangs, as far as they would break, then the rest. So what is kept of one priority never depends on
what could be kept of a lower one. Inside of each step those come back first that take least of the gang's room.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from serried.model.group import GroupKey
from serried.model.pod import Shape
from serried.model.resources import Resources
from serried.model.victim import Allowances, Unit
from serried.plan.clearing import SlotClearing
from serried.plan.damage import Losses, age
from serried.plan.steps import Work, sort_in_steps

_UNITS_PER_STEP = 250
_NODES_PER_STEP = 8

Bulk = Sequence[Unit]
"""Units that come back together or not at all."""


class _Turn(NamedTuple):
    """When a unit may come back: the smallest turn is the first."""

    price: float
    """How many slots it takes, for each pod of the bunch that comes back with it."""

    below: int
    """Less than 0: so many pods of lower priority have gone from its node, which need not all go if it stays."""

    age: float
    """Less than 0: how long the bunch has run in the mean, as in `model.victim.Cost`."""

    name: str
    """The node's, or the first pod's."""

    place: int
    """In its bunch."""


def reprieve(clearing: SlotClearing, gone: Sequence[Unit], allowances: Allowances, newest: int) -> Work[list[Unit]]:
    """Those of the units that have to stay gone; the others are there again.

    For members of one shape none of them is gone in vain: with it there, the quorum would not fit, or would not have
    the domain for itself. ``newest`` is when the newest of all pods began, in seconds since 1970.
    """
    by_priority: dict[int, list[Unit]] = {}
    below: Counter[str] = Counter()
    for place, unit in enumerate(gone, 1):
        by_priority.setdefault(unit.priority, []).append(unit)
        below.update([pod.node for pod in unit.pods])
        if place % _UNITS_PER_STEP == 0:
            yield
    losses = Losses(allowances)
    victims: list[Unit] = []
    for priority in sorted(by_priority, reverse=True):
        order = yield from _put_in_order(clearing, by_priority[priority], below, newest)
        level = _Level(clearing, losses)
        yield from level.lose(order)
        yield from level.keep_budgets()
        yield from level.keep_gangs(allowances)
        yield from level.keep_rest()
        victims += level.gone
        yield
    return victims


class _Level:
    """The units of one priority that have gone, in the order in which they may come back."""

    def __init__(self, clearing: SlotClearing, losses: Losses) -> None:
        self.gone: dict[Unit, None] = {}
        self._clearing = clearing
        self._losses = losses
        self._doomed: set[Unit] = set()

    def lose(self, order: Iterable[Unit]) -> Work[None]:
        """Begin with all of them."""
        for place, unit in enumerate(order, 1):
            self.gone[unit] = None
            self._losses.add(unit)
            if unit in self._clearing.banned:
                self._doomed.add(unit)  # there is room beside it, and the gang may not have it
            if place % _UNITS_PER_STEP == 0:
                yield

    def keep_budgets(self) -> Work[None]:
        """Let units come back whose evictions violate budgets, and no more of them than do."""
        counted = [unit for unit in self.gone if unit.budgets]
        yield
        while picked := (yield from self._pick_violating(counted)):
            yield from self._put_back([unit] for unit in picked)

    def keep_gangs(self, allowances: Allowances) -> Work[None]:
        """Let gangs come back as far as they need it to stand, those first that take least room."""
        members: dict[GroupKey, list[Unit]] = {}
        for place, unit in enumerate(self.gone, 1):
            if unit.gang is not None and unit.gang in allowances.gangs and unit not in self._doomed:
                members.setdefault(unit.gang, []).append(unit)
            if place % _UNITS_PER_STEP == 0:
                yield
        bulks: list[tuple[tuple[bool, int, int, GroupKey], Bulk]] = []
        for gang, units in members.items():
            bulk = self._pick_missing(gang, units)
            if bulk:
                room = yield from self._clearing.count_lost(bulk)
                pods = sum(len(unit.pods) for unit in bulk)
                bulks.append(((not self._losses.is_critical(gang), room, -pods, gang), bulk))
                yield
        order = yield from sort_in_steps(bulks, lambda entry: entry[0])
        yield from self._put_back(bulk for _, bulk in order)

    def keep_rest(self) -> Work[None]:
        """Let everything else come back that can."""
        yield from self._put_back([unit] for unit in list(self.gone) if unit not in self._doomed)

    def _pick_violating(self, counted: Iterable[Unit]) -> Work[list[Unit]]:
        picked = []
        for place, unit in enumerate(counted, 1):
            if unit in self.gone and unit not in self._doomed and self._losses.violates(unit):
                self._losses.remove(unit)
                picked.append(unit)
            if place % _UNITS_PER_STEP == 0:
                yield
        for place, unit in enumerate(picked, 1):
            self._losses.add(unit)
            if place % _UNITS_PER_STEP == 0:
                yield
        return picked

    def _pick_missing(self, gang: GroupKey, units: Sequence[Unit]) -> Bulk:
        """As many of a gang's units as it needs to stand; none if it stands, or if these are not enough."""
        short = self._losses.shortage(gang)
        bulk = []
        for unit in units:
            if short <= 0:
                break
            bulk.append(unit)
            short -= len(unit.pods)
        return bulk if short <= 0 else []

    def _put_back(self, bulks: Iterable[Bulk]) -> Work[None]:
        rest = iter(bulks)
        while batch := list(islice(rest, _UNITS_PER_STEP)):
            stay = {id(bulk) for bulk in (yield from self._clearing.put_back(batch))}
            for bulk in batch:
                if id(bulk) not in stay:
                    for unit in bulk:
                        del self.gone[unit]
                        self._losses.remove(unit)
                elif len(bulk) == 1:
                    self._doomed.add(bulk[0])
            yield


def _put_in_order(clearing: SlotClearing, units: Sequence[Unit], below: Counter[str], newest: int) -> Work[list[Unit]]:
    """Units in the order in which they may come back: those first that take fewest slots for each pod.

    ``below`` has the number of pods of this priority and lower ones by node, and then of lower ones only.
    """
    alone: dict[str, list[Unit]] = {}
    joined: list[Unit] = []
    sizes: dict[int, float] = {}
    for place, unit in enumerate(units, 1):
        below.subtract([pod.node for pod in unit.pods])
        shape = unit.pods[0].shape  # shared by many
        if id(shape) not in sizes:
            sizes[id(shape)] = measure(shape, clearing.request)
        if len(unit.pods) == 1:
            alone.setdefault(unit.pods[0].node, []).append(unit)
        else:
            joined.append(unit)
        if place % _UNITS_PER_STEP == 0:
            yield
    turns: dict[Unit, _Turn] = {}
    for unit in joined:
        room = yield from clearing.count_lost([unit])
        lower = -sum(below[pod.node] for pod in unit.pods)
        turns[unit] = _Turn(room / len(unit.pods), lower, -age(unit, newest), unit.pods[0].uid, 0)
        yield
    for place, (node, here) in enumerate(alone.items(), 1):
        here.sort(key=lambda unit: (sizes[id(unit.pods[0].shape)], -age(unit, newest), unit.pods[0].uid))
        lost = yield from clearing.count_each_lost(here)
        turns.update(_take_turns(here, lost, node, below[node], newest))
        if place % _NODES_PER_STEP == 0:
            yield
    return (yield from sort_in_steps(units, turns.__getitem__))


def _take_turns(
    units: Sequence[Unit], lost: Sequence[int], node: str, below: int, newest: int
) -> Iterator[tuple[Unit, _Turn]]:
    """The turns of one node's units, of which each takes so many slots."""
    for room, bunch in _bunch(units, lost):
        old = -sum(age(unit, newest) for unit in bunch) / len(bunch)
        for place, unit in enumerate(bunch):
            yield unit, _Turn(room / len(bunch), -below, old, node, place)


def _bunch(units: Sequence[Unit], lost: Sequence[int]) -> Iterator[tuple[int, list[Unit]]]:
    """Units of one node in bunches, each with the slots that it takes; later ones take more for each unit.

    The units that come back after a slot has been lost, and take no other, come for the price of that one.
    """
    bunches: list[tuple[int, list[Unit]]] = []
    for unit, room in zip(units, lost, strict=True):
        if room or not bunches:
            bunches.append((room, [unit]))
        else:
            bunches[-1][1].append(unit)
        while len(bunches) > 1 and bunches[-1][0] * len(bunches[-2][1]) < bunches[-2][0] * len(bunches[-1][1]):
            price, last = bunches.pop()
            before, first = bunches.pop()
            bunches.append((before + price, first + last))
    yield from bunches


def measure(shape: Shape, request: Resources) -> float:
    """How large a pod is, in members of the gang: by what it has most of that they ask for."""
    amounts = dict(shape.requests)
    return max((amounts.get(name, 0) / amount for name, amount in request.items() if amount > 0), default=0.0)
