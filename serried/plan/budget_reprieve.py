"""Selects victims within PodDisruptionBudgets (`BudgetReprieve`), and looks for cheaper victims (`Exchange`).

`serried.plan.preemption` uses both for the domains that it compares. Victims are chosen in a simulation
(`serried.plan.reprieve.CountedRemoval`): running pods are removed from the nodes of one domain, and put back where the
gang's quorum fits nevertheless. Pods are removed and put back in units (`serried.plan.eviction.EvictionUnit`), i.e.
with the pods that are evicted together.

`BudgetReprieve` is used if budgets do not allow to evict all units that may be victims. It removes the units of one
node after the other as far as the budgets allow, first on the nodes where the fewest evictions are needed. If the
quorum does not fit then, it removes all units, and tries all combinations of putting units back until no budget is
exceeded. In a small domain that search is complete.

`Exchange` improves a set of victims. It adds a unit, two units or all units of a gang to the victims, also removes all
units of lower priority, and puts as many units back as possible. The new victims are kept if they cost less.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from serried.api.names import GroupKey
from serried.plan.eviction import Allowances, Budget, Cost, EvictionUnit, count_pods, exceeds, measure_cost, sum_ages
from serried.plan.reprieve import CountedRemoval, UnitBundle, relative_size, reprieve

_MAX_MOVES = 1_000
"""The maximum number of units (pods that are evicted together) that the search in one domain puts back: some 10 ms."""

_MAX_EXCESS = 50
"""The maximum excess, summed over all budgets, for which combinations are tried.

The excess of a budget is by how many evictions it would be exceeded if all units were evicted. If the sum is larger,
the search would only get through the first few of the combinations.
"""

_MAX_PLANS = 8
"""The maximum number of checks in one domain whether the quorum fits.

With members of several shapes each makes a plan.
"""


@dataclass(slots=True)
class SearchLimit:
    """The work that `BudgetReprieve` may do in all domains together, for one preemptor. The fields count down to 0."""

    moves: int = 20_000
    """The number of units (pods that are evicted together) that searches may still put back in their simulation.

    At first that takes some tenths of a second.
    """

    units: int = 300_000
    """The work that may still be done to check whether the quorum fits, measured as `serried.plan.limit.Limit.spent`.

    At first that is a second or two of plans for members of several shapes.
    """


class BudgetReprieve:
    """Selects victims in one domain such that the quorum fits and no limit for evictions is exceeded.

    ``removal`` is the simulated domain; nothing may be removed from it yet. ``units`` are the candidates: a unit has
    the pods that are evicted together. ``limits`` has the number of allowed evictions per PodDisruptionBudget or gang.
    The selection does not depend on the order of units.
    """

    def __init__(
        self, removal: CountedRemoval, units: Sequence[EvictionUnit], limits: Mapping[Budget, int], limit: SearchLimit
    ) -> None:
        self._removal = removal
        self._units = units
        self._limits = limits
        self._limit = limit
        self._moves = _MAX_MOVES
        self._plans = _MAX_PLANS

        self._left: dict[Budget, int] = {}
        """The number of evictions that each budget still allows; negative if more units are removed than it allows.

        Only budgets are listed that do not allow to evict all units.
        """

        self._scarce: list[EvictionUnit] = []
        """The units that are under a budget of ``_left``, in the order in which they are removed."""

        self._gone: dict[EvictionUnit, None] = {}
        """The units of ``_scarce`` that are removed at the moment."""

        self._by_budget: dict[Budget, list[EvictionUnit]] = {}
        """The units that the search may restore when a budget is exceeded, by budget and in this order."""

        self._settled: set[EvictionUnit] = set()
        """The units that the search does not restore: they must be evicted, or all combinations were tried."""

    def select(self) -> list[EvictionUnit] | None:
        """Select victims and remove them from the simulation.

        Return them, or None if none are found with which the quorum fits within the limits.
        """
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
        """Split the candidates. Return the units of which all may be evicted, whichever other units are evicted.

        They are under no budget, or only under budgets that allow to evict all candidates under them. The other units
        become ``_scarce``: only some of them may be evicted.
        """
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
        """Return the sort key for removing a unit.

        Units of low priority come first, then large pods, as fewer of them suffice.
        """
        pod = unit.pods[0]
        return unit.priority, -relative_size(pod.shape, self._removal.request), pod.uid

    # --- one node after the other ----------------------------------------------------------------------------------

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
        """Return lists of units, one per node, in the order in which nodes are emptied.

        ``alone`` has the units of a single pod by the pod's node, low priorities first. Nodes on which the highest
        priority of these pods is low come first. Among equals, first those that need the fewest evictions per gang
        member that fits there.
        """
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

    # --- other ways ------------------------------------------------------------------------------------------------

    def _search(self) -> bool:
        """Remove all evictable units, then try combinations of which to put back. Return whether one is found.

        In that combination no budget is exceeded, and the quorum fits. The number of attempts is limited. If the units
        exceed their budgets by more than `_MAX_EXCESS` evictions, remove none and return False.
        """
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
            found = self._removal.has_capacity() and self._restore_next()
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

    # --- units and budgets -----------------------------------------------------------------------------------------

    def _remove(self, units: Sequence[EvictionUnit]) -> None:
        self._gone.update(dict.fromkeys(units))
        self._removal.remove(units)

    def _spend_disruptions(self, unit: EvictionUnit) -> bool:
        """Use one allowed eviction of each budget of the unit.

        If a budget has none left, use none at all and return False.
        """
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
"""The maximum number of pods that `Exchange` removes or restores in one domain: some tens of milliseconds."""

_MAX_UNITS = 2_000
"""The maximum number of units (pods that are evicted together) in a domain for which `Exchange` is tried.

With more, its moves are used up before enough of the units have been tried.
"""


@dataclass(slots=True)
class Exchange:
    """Improves the victims that were chosen in one domain. The caller reads the result from ``victims`` and ``cost``.

    ``removal`` is the simulated domain without these victims. ``units`` are all units that may be evicted in it; a unit
    has the pods that are evicted together. ``moves`` is the number of pods that may still be removed or put back.
    """

    removal: CountedRemoval
    units: Sequence[EvictionUnit]
    victims: list[EvictionUnit]
    cost: Cost
    allowances: Allowances
    newest: int
    """The start time of the newest running pod, in seconds since 1970. Ages are measured at that time."""

    moves: int = _MAX_EXCHANGES

    def improve(self) -> None:
        """Replace ``victims`` by cheaper ones until none are found, or until ``moves`` are used up.

        First single units are tried as additional victims, in the order of priority and the newest first. Then all
        units of a gang are tried together, then pairs of units.
        """
        if not self.victims or len(self.units) > _MAX_UNITS or _are_alike(self.units, self.allowances.gangs):
            return
        top = max(unit.priority for unit in self.victims)
        units = [unit for unit in self.units if unit.priority <= top]
        order = sorted(units, key=lambda unit: (unit.priority, sum_ages(unit, self.newest), unit.pods[0].uid))
        while self._exchange_once(order):
            pass

    def _exchange_once(self, order: Sequence[EvictionUnit]) -> bool:
        """Try other victims until some cost less, and keep these. Return False if none do, or if ``moves`` are used up.

        ``order`` are the units to try as additional victims, the cheapest first.
        """
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
        """Try to evict the units of ``bundle`` in place of some present victims.

        Return whether the new victims cost less. If so, they become ``victims``. Otherwise the simulation is put back
        into its state before the call. ``gone`` are the present victims, ``order`` are all evictable units, the
        cheapest first.
        """
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
    """Return whether the units differ at most in node and age, so that an exchange of victims need not be tried.

    The first choice of victims has already compared the nodes and ages of such units.
    ``gangs`` has the running gangs that have a quorum now, so that evictions could take it from them. Units of these
    gangs are never alike.
    """
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
    """Return the units of each gang that has at least two of them, one list per gang.

    Only the gangs that are keys of ``gangs`` count: running gangs that have a quorum now, which evictions could take
    from them.
    """
    members: dict[GroupKey, list[EvictionUnit]] = {}
    for unit in units:
        if unit.gang is not None and unit.gang in gangs:
            members.setdefault(unit.gang, []).append(unit)
    return [members[gang] for gang in sorted(members) if len(members[gang]) > 1]
