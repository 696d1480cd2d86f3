"""Victims that are bettered by exchanging units that stay for some that go.

What is kept of a high priority decides what has to go of the lower ones, and that is not looked at when it is kept. So
in place of a unit that stays, or of all that is left of a gang, everything lower goes anew, and comes back as far as it
can.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from serried.model.group import GroupKey
from serried.model.victim import Allowances, Cost, Unit, count_pods
from serried.plan.clearing import SlotClearing
from serried.plan.damage import age, exceeds, measure_cost
from serried.plan.reprieve import Bulk, reprieve
from serried.plan.steps import Work, sort_in_steps

_MAX_MOVES = 8_000
"""How many pods may go or come back for one domain: some tens of milliseconds."""

_MAX_UNITS = 2_000
"""Of more units than that, too few could be tried to be worth it."""


@dataclass(slots=True)
class Exchange:
    """The victims of one domain, as good as they are known; ``units`` are all that may go there."""

    clearing: SlotClearing
    units: Sequence[Unit]
    victims: list[Unit]
    cost: Cost
    allowances: Allowances
    newest: int
    """When the newest of all pods began, in seconds since 1970."""

    moves: int = _MAX_MOVES

    def run(self) -> Work[None]:
        """Exchange until nothing is found that costs less, or it has taken too long.

        Units are tried in the order of priority, the newest first; then gangs, then every two units.
        """
        if not self.victims or len(self.units) > _MAX_UNITS or _are_alike(self.units, self.allowances.gangs):
            return
        top = max(unit.priority for unit in self.victims)
        units = [unit for unit in self.units if unit.priority <= top]
        order = yield from sort_in_steps(units, lambda unit: (unit.priority, age(unit, self.newest), unit.pods[0].uid))
        while (yield from self._improve(order)):
            yield

    def _improve(self, order: Sequence[Unit]) -> Work[bool]:
        """Whether an exchange was found."""
        bulks = chain(([unit] for unit in order), _list_gangs(order, self.allowances.gangs), combinations(order, 2))
        gone = set(self.victims)
        for bulk in bulks:
            if self.moves <= 0:
                return False
            staying = [unit for unit in bulk if unit not in gone]
            self.moves -= 1
            fresh = len(staying) == len(bulk) or len(staying) > 2
            if fresh and (yield from self._try(staying, gone, order)):
                return True
            yield
        return False

    def _try(self, bulk: Bulk, gone: set[Unit], order: Iterable[Unit]) -> Work[bool]:
        """Victims with these units, if they cost less; else all is as before."""
        priority = min(unit.priority for unit in bulk)
        lower = [unit for unit in order if unit.priority < priority and unit not in gone]
        again = [*self.victims, *lower]
        self.moves -= 3 * (count_pods(again) + count_pods(bulk))
        before = self.clearing.save()
        yield from self.clearing.take([*bulk, *lower])
        rest = yield from reprieve(self.clearing, again, self.allowances, self.newest)
        stay = yield from self.clearing.put_back([[unit] for unit in bulk])
        now = [*rest, *(unit for each in stay for unit in each)]
        cost = yield from measure_cost(now, self.allowances, self.newest)
        if cost < self.cost and not exceeds(now, self.allowances.limits):
            self.cost = cost
            self.victims = now
            return True
        left = set(now)
        yield from self.clearing.take([unit for unit in self.victims if unit not in left])
        yield from self.clearing.restore([unit for unit in now if unit not in gone], before)
        return False


def _are_alike(units: Sequence[Unit], gangs: Mapping[GroupKey, object]) -> bool:
    """Whether the units differ in nothing but their nodes and ages: then those that came back first were the best."""
    first = units[0]
    return all(
        len(unit.pods) == 1
        and unit.priority == first.priority
        and unit.pods[0].shape == first.pods[0].shape
        and unit.holds_domain is first.holds_domain
        and not unit.budgets
        and unit.gang not in gangs
        for unit in units
    )


def _list_gangs(units: Iterable[Unit], gangs: Mapping[GroupKey, object]) -> list[list[Unit]]:
    """The units of each gang that has several."""
    members: dict[GroupKey, list[Unit]] = {}
    for unit in units:
        if unit.gang is not None and unit.gang in gangs:
            members.setdefault(unit.gang, []).append(unit)
    return [members[gang] for gang in sorted(members) if len(members[gang]) > 1]
