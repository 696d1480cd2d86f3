"""Which units of a domain go so that the quorum fits, where PodDisruptionBudgets do not let all of them go.

One node after the other is emptied as far as the budgets allow it, that one first which takes least of what they allow.
Where that is not enough, all go, and units come back until no budget is exceeded, in every way that the moves reach: in
a small domain that is all ways.

Victims are bettered by exchange: in place of a unit that stays, or of all that is left of a gang, everything of lower
priority goes anew, and comes back as far as it can.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from serried.api.names import GroupKey
from serried.plan.eviction import Allowances, Budget, Cost, Unit, age, count_pods, exceeds, measure_cost
from serried.plan.reprieve import Bulk, SlotRemoval, measure, reprieve

_MAX_MOVES = 1_000
"""How often a unit may come back in one domain to find another way: some 10 ms."""

_MAX_EXCESS = 50
"""How many pods may be too many where other ways are looked for: of more, the first way is all that would be tried."""

_MAX_PLANS = 8
"""How often it is asked in one domain whether the quorum fits: for a tree, or members of several shapes, by a plan."""


@dataclass(slots=True)
class StepLimit:
    """How much work all domains together may be."""

    moves: int = 20_000
    """How often a unit may come back to find another way: some tenths of a second."""

    units: int = 300_000
    """How much work it may be to tell whether the quorum fits (`Limit.spent`): of several shapes, a second or two."""


class BudgetReprieve:
    """What goes of the units of one domain, from whose ``removal`` nothing has gone yet.

    Of each budget no more go than its limit. Which ones go does not depend on the order of the units.
    """

    def __init__(
        self, removal: SlotRemoval, units: Sequence[Unit], limits: Mapping[Budget, int], limit: StepLimit
    ) -> None:
        self._removal = removal
        self._units = units
        self._limits = limits
        self._limit = limit
        self._moves = _MAX_MOVES
        self._plans = _MAX_PLANS

        self._left: dict[Budget, int] = {}
        """What the budgets still allow that do not let all of these units go; less than 0 if too many are gone."""

        self._scarce: list[Unit] = []
        """The units under one of them, in the order in which they go."""

        self._gone: dict[Unit, None] = {}
        """Those of them that are gone."""

        self._by_budget: dict[Budget, list[Unit]] = {}
        """Those of them that may come back under each budget, in this order."""

        self._settled: set[Unit] = set()
        """Those of them that do not come back."""

    def run(self) -> list[Unit] | None:
        """Units after whose end the quorum fits; None if none were found. They are gone from the removal then."""
        free = self._sort()
        self._removal.take(free)
        banned = self._removal.banned
        forced = [unit for unit in self._scarce if unit in banned] if banned else []
        if not all(self._spend(unit) for unit in forced):
            return None
        self._take(forced)
        self._settled.update(forced)
        self._fill()
        if not self._fits() and not self._search():
            return None
        return [*free, *self._gone]

    def _sort(self) -> list[Unit]:
        """The units that may go whatever else goes; the others are noted."""
        wanted: dict[Budget, int] = {}
        for unit in self._units:
            for budget in unit.budgets:
                wanted[budget] = wanted.get(budget, 0) + 1
        limits = self._limits
        self._left = {key: limits[key] for key, count in wanted.items() if key in limits and count > limits[key]}
        free: list[Unit] = []
        scarce: list[Unit] = []
        for unit in self._units:
            (free if self._left.keys().isdisjoint(unit.budgets) else scarce).append(unit)
        self._scarce = sorted(scarce, key=self._rank)
        return free

    def _rank(self, unit: Unit) -> tuple[int, float, str]:
        """The lowest priority first, the largest of these: fewer of them are needed."""
        pod = unit.pods[0]
        return unit.priority, -measure(pod.shape, self._removal.request), pod.uid

    # --- one node after the other ------------------------------------------------------------------------------

    def _fill(self) -> None:
        alone: dict[str, list[Unit]] = {}
        joined: list[Unit] = []
        for unit in self._scarce:
            if unit not in self._gone:
                (alone.setdefault(unit.pods[0].node, []) if len(unit.pods) == 1 else joined).append(unit)
        nodes = self._put_in_order(alone)
        self._empty(nodes)
        if joined:
            # They take no room of one node alone: with them gone, the nodes may have more to give.
            self._take([unit for unit in joined if self._spend(unit)])
            self._empty([[unit for unit in node if unit not in self._gone] for node in nodes])

    def _put_in_order(self, alone: Mapping[str, Sequence[Unit]]) -> list[Sequence[Unit]]:
        """The units of each node, those first of a low priority, of which few pods make much room."""
        prices: dict[str, tuple[int, float, str]] = {}
        for node, here in alone.items():
            before = self._removal.total
            self._removal.take(here)
            more = self._removal.total - before
            self._removal.give_back(here)
            prices[node] = here[-1].priority, len(here) / more if more else math.inf, node
        order = sorted(alone, key=prices.__getitem__)
        return [alone[node] for node in order]

    def _empty(self, nodes: Iterable[Sequence[Unit]]) -> None:
        for here in nodes:
            may_go = [unit for unit in here if self._spend(unit)]
            if may_go:
                self._removal.take(may_go)
                stay = dict.fromkeys(self._removal.trim(may_go))
                self._gone.update(stay)
                for unit in may_go:
                    if unit not in stay:
                        self._refund(unit.budgets)

    # --- other ways --------------------------------------------------------------------------------------------

    def _search(self) -> bool:
        """Let all go, and then come back so many that no budget is exceeded, in every way that there are moves for."""
        rest: list[Unit] = []
        for unit in self._scarce:
            if unit not in self._gone:
                rest.append(unit)
                self._charge(unit.budgets)
        excess = -sum(left for left in self._left.values() if left < 0)
        if excess > _MAX_EXCESS:
            return False
        self._take(rest)
        for unit in reversed(self._gone):
            for budget in dict.fromkeys(unit.budgets):
                self._by_budget.setdefault(budget, []).append(unit)
        return self._look()

    def _look(self) -> bool:
        over = next((budget for budget, left in self._left.items() if left < 0), None)
        if over is None:
            return self._fits()
        settled: list[Unit] = []
        found = False
        for unit in self._by_budget[over]:
            if unit not in self._gone or unit in self._settled:
                continue
            if not self._plans or not self._move():
                break
            del self._gone[unit]
            self._refund(unit.budgets)
            self._removal.give_back([unit])
            found = self._removal.has_slots() and self._look()
            if found:
                break
            self._take([unit])
            self._charge(unit.budgets)
            # All ways in which it comes back have been looked at.
            self._settled.add(unit)
            settled.append(unit)
        self._settled.difference_update(settled)
        return found

    def _move(self) -> bool:
        self._moves -= 1
        self._limit.moves -= 1
        return self._moves >= 0 and self._limit.moves >= 0

    def _fits(self) -> bool:
        self._plans -= 1
        limit = self._removal.limit
        before = limit.spent
        fits = limit.attempt(self._removal.fits, self._limit.units)
        self._limit.units -= limit.spent - before
        return bool(fits)

    # --- units and budgets -------------------------------------------------------------------------------------

    def _take(self, units: Sequence[Unit]) -> None:
        self._gone.update(dict.fromkeys(units))
        self._removal.take(units)

    def _spend(self, unit: Unit) -> bool:
        """Whether the budgets allow one more unit; it is taken off them then."""
        for place, budget in enumerate(unit.budgets):
            left = self._left.get(budget)
            if left is not None and left <= 0:
                self._refund(unit.budgets[:place])
                return False
            if left is not None:
                self._left[budget] = left - 1
        return True

    def _charge(self, budgets: Iterable[Budget]) -> None:
        for budget in budgets:
            if budget in self._left:
                self._left[budget] -= 1

    def _refund(self, budgets: Iterable[Budget]) -> None:
        for budget in budgets:
            if budget in self._left:
                self._left[budget] += 1


_MAX_EXCHANGES = 8_000
"""How many pods may go or come back for one domain: some tens of milliseconds."""

_MAX_UNITS = 2_000
"""Of more units than that, too few could be tried to be worth it."""


@dataclass(slots=True)
class Exchange:
    """The victims of one domain, as good as they are known; ``units`` are all that may go there."""

    removal: SlotRemoval
    units: Sequence[Unit]
    victims: list[Unit]
    cost: Cost
    allowances: Allowances
    newest: int
    """When the newest of all pods began, in seconds since 1970."""

    moves: int = _MAX_EXCHANGES

    def run(self) -> None:
        """Exchange until nothing is found that costs less, or it has taken too long.

        Units are tried in the order of priority, the newest first; then gangs, then every two units.
        """
        if not self.victims or len(self.units) > _MAX_UNITS or _are_alike(self.units, self.allowances.gangs):
            return
        top = max(unit.priority for unit in self.victims)
        units = [unit for unit in self.units if unit.priority <= top]
        order = sorted(units, key=lambda unit: (unit.priority, age(unit, self.newest), unit.pods[0].uid))
        while self._improve(order):
            pass

    def _improve(self, order: Sequence[Unit]) -> bool:
        """Whether an exchange was found."""
        bulks = chain(([unit] for unit in order), _list_gangs(order, self.allowances.gangs), combinations(order, 2))
        gone = set(self.victims)
        for bulk in bulks:
            if self.moves <= 0:
                return False
            staying = [unit for unit in bulk if unit not in gone]
            self.moves -= 1
            self.removal.limit.spend()
            fresh = len(staying) == len(bulk) or len(staying) > 2
            if fresh and self._try(staying, gone, order):
                return True
        return False

    def _try(self, bulk: Bulk, gone: set[Unit], order: Iterable[Unit]) -> bool:
        """Victims with these units, if they cost less; else all is as before."""
        priority = min(unit.priority for unit in bulk)
        lower = [unit for unit in order if unit.priority < priority and unit not in gone]
        again = [*self.victims, *lower]
        self.moves -= 3 * (count_pods(again) + count_pods(bulk))
        before = self.removal.save()
        self.removal.take([*bulk, *lower])
        rest = reprieve(self.removal, again, self.allowances, self.newest)
        stay = self.removal.put_back([[unit] for unit in bulk])
        now = [*rest, *(unit for each in stay for unit in each)]
        cost = measure_cost(now, self.allowances, self.newest)
        if cost < self.cost and not exceeds(now, self.allowances.limits):
            self.cost = cost
            self.victims = now
            return True
        left = set(now)
        self.removal.take([unit for unit in self.victims if unit not in left])
        self.removal.restore([unit for unit in now if unit not in gone], before)
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
