"""Selects victims within binding PodDisruptionBudgets (`BudgetReprieve`), and improves victims (`Exchange`).

`BudgetReprieve` empties one node after the other as far as the budgets allow, first the nodes that need the fewest
disruptions. If that is not enough, all units are removed and restored in all combinations until no budget is exceeded.
In a small domain that search is complete.

`Exchange` adds a unit, or the rest of a gang, to the victims. All units of lower priority are removed again and
restored as far as possible. The result is kept if it costs less.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from serried.api.names import GroupKey
from serried.plan.eviction import Allowances, Budget, Cost, EvictionUnit, count_pods, exceeds, measure_cost, sum_ages
from serried.plan.reprieve import SlotRemoval, UnitBundle, relative_size, reprieve

_MAX_MOVES = 1_000
"""The maximum number of restored units in one domain's search for combinations: some 10 ms."""

_MAX_EXCESS = 50
"""The maximum number of excess pods for which combinations are searched. With more, only the first would be tried."""

_MAX_PLANS = 8
"""The maximum number of checks in one domain whether the quorum fits. With several shapes each check is a plan."""


@dataclass(slots=True)
class SearchLimit:
    """The work allowed for all domains together."""

    moves: int = 20_000
    """The number of restored units in searches for combinations: some tenths of a second."""

    units: int = 300_000
    """The work for checks whether the quorum fits, in units of `Limit.spent`: with several shapes, a second or two."""


class BudgetReprieve:
    """Selects the units of one domain to remove, so that no budget exceeds its limit.

    Nothing may be removed from ``removal`` before. The selection does not depend on the order of the units.
    """

    def __init__(
        self, removal: SlotRemoval, units: Sequence[EvictionUnit], limits: Mapping[Budget, int], limit: SearchLimit
    ) -> None:
        self._removal = removal
        self._units = units
        self._limits = limits
        self._limit = limit
        self._moves = _MAX_MOVES
        self._plans = _MAX_PLANS

        self._left: dict[Budget, int] = {}
        """The disruptions left of the budgets that forbid to remove all units; negative if too many are removed."""

        self._scarce: list[EvictionUnit] = []
        """The units under these budgets, in the order of removal."""

        self._gone: dict[EvictionUnit, None] = {}
        """The part of ``_scarce`` that is removed."""

        self._by_budget: dict[Budget, list[EvictionUnit]] = {}
        """The units that may be restored for each budget, in this order."""

        self._settled: set[EvictionUnit] = set()
        """The units that are not restored again."""

    def run(self) -> list[EvictionUnit] | None:
        """Remove units so that the quorum fits. Return them; None if there is no selection."""
        free = self._split_by_budget()
        self._removal.remove(free)
        banned = self._removal.banned
        forced = [unit for unit in self._scarce if unit in banned] if banned else []
        if not all(self._spend_disruptions(unit) for unit in forced):
            return None
        self._remove(forced)
        self._settled.update(forced)
        self._fill()
        if not self._fits() and not self._search():
            return None
        return [*free, *self._gone]

    def _split_by_budget(self) -> list[EvictionUnit]:
        """Return the units that may always be removed; the others become ``_scarce``."""
        wanted: dict[Budget, int] = {}
        for unit in self._units:
            for budget in unit.budgets:
                wanted[budget] = wanted.get(budget, 0) + 1
        limits = self._limits
        self._left = {key: limits[key] for key, count in wanted.items() if key in limits and count > limits[key]}
        free: list[EvictionUnit] = []
        scarce: list[EvictionUnit] = []
        for unit in self._units:
            (free if self._left.keys().isdisjoint(unit.budgets) else scarce).append(unit)
        self._scarce = sorted(scarce, key=self._sort_key)
        return free

    def _sort_key(self, unit: EvictionUnit) -> tuple[int, float, str]:
        """Return the sort key: the lowest priority first, then the largest units, because fewer of them are needed."""
        pod = unit.pods[0]
        return unit.priority, -relative_size(pod.shape, self._removal.request), pod.uid

    # --- one node after the other ------------------------------------------------------------------------------

    def _fill(self) -> None:
        alone: dict[str, list[EvictionUnit]] = {}
        joined: list[EvictionUnit] = []
        for unit in self._scarce:
            if unit not in self._gone:
                (alone.setdefault(unit.pods[0].node, []) if len(unit.pods) == 1 else joined).append(unit)
        nodes = self._order_nodes(alone)
        self._empty_nodes(nodes)
        if joined:
            # Units with pods on several nodes. Their removal may free slots on nodes that had none.
            self._remove([unit for unit in joined if self._spend_disruptions(unit)])
            self._empty_nodes([[unit for unit in node if unit not in self._gone] for node in nodes])

    def _order_nodes(self, alone: Mapping[str, Sequence[EvictionUnit]]) -> list[Sequence[EvictionUnit]]:
        """Return the units by node. Nodes with low priorities and few pods per freed slot come first."""
        prices: dict[str, tuple[int, float, str]] = {}
        for node, here in alone.items():
            before = self._removal.total
            self._removal.remove(here)
            more = self._removal.total - before
            self._removal.restore(here)
            prices[node] = here[-1].priority, len(here) / more if more else math.inf, node
        order = sorted(alone, key=prices.__getitem__)
        return [alone[node] for node in order]

    def _empty_nodes(self, nodes: Iterable[Sequence[EvictionUnit]]) -> None:
        for here in nodes:
            may_go = [unit for unit in here if self._spend_disruptions(unit)]
            if may_go:
                self._removal.remove(may_go)
                stay = dict.fromkeys(self._removal.restore_unneeded(may_go))
                self._gone.update(stay)
                for unit in may_go:
                    if unit not in stay:
                        self._refund_disruptions(unit.budgets)

    # --- other ways --------------------------------------------------------------------------------------------

    def _search(self) -> bool:
        """Remove all units, then roll_back units in all combinations until no budget is exceeded."""
        rest: list[EvictionUnit] = []
        for unit in self._scarce:
            if unit not in self._gone:
                rest.append(unit)
                self._charge_disruptions(unit.budgets)
        excess = -sum(left for left in self._left.values() if left < 0)
        if excess > _MAX_EXCESS:
            return False
        self._remove(rest)
        for unit in reversed(self._gone):
            for budget in dict.fromkeys(unit.budgets):
                self._by_budget.setdefault(budget, []).append(unit)
        return self._restore_next()

    def _restore_next(self) -> bool:
        over = next((budget for budget, left in self._left.items() if left < 0), None)
        if over is None:
            return self._fits()
        settled: list[EvictionUnit] = []
        found = False
        for unit in self._by_budget[over]:
            if unit not in self._gone or unit in self._settled:
                continue
            if not self._plans or not self._move():
                break
            del self._gone[unit]
            self._refund_disruptions(unit.budgets)
            self._removal.restore([unit])
            found = self._removal.has_slots() and self._restore_next()
            if found:
                break
            self._remove([unit])
            self._charge_disruptions(unit.budgets)
            # All combinations with this unit restored have been tried.
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

    def _remove(self, units: Sequence[EvictionUnit]) -> None:
        self._gone.update(dict.fromkeys(units))
        self._removal.remove(units)

    def _spend_disruptions(self, unit: EvictionUnit) -> bool:
        """Use one disruption of each budget of the unit. Return False, and use none, if a budget has none left."""
        for place, budget in enumerate(unit.budgets):
            left = self._left.get(budget)
            if left is not None and left <= 0:
                self._refund_disruptions(unit.budgets[:place])
                return False
            if left is not None:
                self._left[budget] = left - 1
        return True

    def _charge_disruptions(self, budgets: Iterable[Budget]) -> None:
        for budget in budgets:
            if budget in self._left:
                self._left[budget] -= 1

    def _refund_disruptions(self, budgets: Iterable[Budget]) -> None:
        for budget in budgets:
            if budget in self._left:
                self._left[budget] += 1


_MAX_EXCHANGES = 8_000
"""The maximum number of removed or restored pods for one domain: some tens of milliseconds."""

_MAX_UNITS = 2_000
"""The maximum number of units. With more, the moves would not suffice to try enough of them."""


@dataclass(slots=True)
class Exchange:
    """The best known victims of one domain; ``units`` are all units that may be evicted there."""

    removal: SlotRemoval
    units: Sequence[EvictionUnit]
    victims: list[EvictionUnit]
    cost: Cost
    allowances: Allowances
    newest: int
    """The start time of the newest pod, in seconds since 1970."""

    moves: int = _MAX_EXCHANGES

    def run(self) -> None:
        """Exchange victims until none are cheaper, or until the moves are used up.

        Single units are tried in the order of priority, the newest first; then gangs; then pairs.
        """
        if not self.victims or len(self.units) > _MAX_UNITS or _are_alike(self.units, self.allowances.gangs):
            return
        top = max(unit.priority for unit in self.victims)
        units = [unit for unit in self.units if unit.priority <= top]
        order = sorted(units, key=lambda unit: (unit.priority, sum_ages(unit, self.newest), unit.pods[0].uid))
        while self._improve(order):
            pass

    def _improve(self, order: Sequence[EvictionUnit]) -> bool:
        """Make one exchange. Return whether a cheaper one was found."""
        bundles = chain(([unit] for unit in order), _list_gangs(order, self.allowances.gangs), combinations(order, 2))
        gone = set(self.victims)
        for bundle in bundles:
            if self.moves <= 0:
                return False
            staying = [unit for unit in bundle if unit not in gone]
            self.moves -= 1
            self.removal.limit.spend()
            fresh = len(staying) == len(bundle) or len(staying) > 2
            if fresh and self._try(staying, gone, order):
                return True
        return False

    def _try(self, bundle: UnitBundle, gone: set[EvictionUnit], order: Iterable[EvictionUnit]) -> bool:
        """Try victims that include these units. Keep them if they cost less, otherwise roll_back the state."""
        priority = min(unit.priority for unit in bundle)
        lower = [unit for unit in order if unit.priority < priority and unit not in gone]
        again = [*self.victims, *lower]
        self.moves -= 3 * (count_pods(again) + count_pods(bundle))
        before = self.removal.save()
        self.removal.remove([*bundle, *lower])
        rest = reprieve(self.removal, again, self.allowances, self.newest)
        stay = self.removal.restore_fitting([[unit] for unit in bundle])
        now = [*rest, *(unit for each in stay for unit in each)]
        cost = measure_cost(now, self.allowances, self.newest)
        if cost < self.cost and not exceeds(now, self.allowances.limits):
            self.cost = cost
            self.victims = now
            return True
        left = set(now)
        self.removal.remove([unit for unit in self.victims if unit not in left])
        self.removal.roll_back([unit for unit in now if unit not in gone], before)
        return False


def _are_alike(units: Sequence[EvictionUnit], gangs: Mapping[GroupKey, object]) -> bool:
    """Return whether units differ only in node and age. Then the first selection is the best."""
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


def _list_gangs(units: Iterable[EvictionUnit], gangs: Mapping[GroupKey, object]) -> list[list[EvictionUnit]]:
    """Return the units of each gang that has several."""
    members: dict[GroupKey, list[EvictionUnit]] = {}
    for unit in units:
        if unit.gang is not None and unit.gang in gangs:
            members.setdefault(unit.gang, []).append(unit)
    return [members[gang] for gang in sorted(members) if len(members[gang]) > 1]
