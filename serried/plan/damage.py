"""What victims cost: evictions that violate budgets, gangs that break, pods, and the time that these have run."""

from collections import Counter
from collections.abc import Iterable, Mapping

from serried.model.group import GroupKey
from serried.model.victim import Allowances, Budget, Cost, Damage, Unit
from serried.plan.steps import Work

_UNITS_PER_STEP = 500


class Losses:
    """What is taken of gangs and budgets by some victims."""

    def __init__(self, allowances: Allowances) -> None:
        self._allowances = allowances
        self._members: Counter[GroupKey] = Counter()
        self._disruptions: Counter[Budget] = Counter()

    def add(self, unit: Unit) -> None:
        """One more victim."""
        if unit.gang is not None:
            self._members[unit.gang] += len(unit.pods)
        self._disruptions.update(unit.budgets)

    def remove(self, unit: Unit) -> None:
        """One victim less."""
        if unit.gang is not None:
            self._members[unit.gang] -= len(unit.pods)
        self._disruptions.subtract(unit.budgets)

    def excess(self, budget: Budget) -> int:
        """How many disruptions are more than a budget allows, if positive."""
        allowed = self._allowances.budgets.get(budget)
        return 0 if allowed is None else self._disruptions[budget] - allowed

    def shortage(self, gang: GroupKey) -> int:
        """How many members, or groups, a gang has lost more than it has to spare, if positive."""
        spare = self._allowances.gangs.get(gang)
        return 0 if spare is None else self._members[gang] - spare.count

    def is_critical(self, gang: GroupKey) -> bool:
        """Whether with this gang the one above it would break, too."""
        spare = self._allowances.gangs.get(gang)
        return spare is not None and spare.above is not None and self.shortage(spare.above) >= 0

    def violates(self, unit: Unit) -> bool:
        """Whether a unit among these victims takes part in the violation of a budget."""
        return any(self.excess(budget) > 0 for budget in unit.budgets)

    def lose(self, unit: Unit) -> tuple[int, int]:
        """As ``add``; how many more violations, and how many more broken gangs that makes."""
        violations = 0
        for budget in unit.budgets:
            self._disruptions[budget] += 1
            violations += self.excess(budget) > 0
        return violations, self._break(unit.gang, len(unit.pods)) if unit.gang is not None else 0

    def _break(self, gang: GroupKey, count: int) -> int:
        """How many gangs break when this one loses so many, itself and those above it."""
        broken = 0
        while True:
            spare = self._allowances.gangs.get(gang)
            stood = self.shortage(gang) <= 0
            self._members[gang] += count
            if spare is None or not stood or self.shortage(gang) <= 0:
                return broken
            broken += 1
            if spare.above is None:
                return broken
            gang = spare.above
            count = 1


def exceeds(victims: Iterable[Unit], limits: Mapping[Budget, int]) -> bool:
    """Whether more of the victims are under a budget than its limit."""
    taken = Counter([budget for unit in victims for budget in unit.budgets if budget in limits])
    return any(count > limits[budget] for budget, count in taken.items())


def measure_cost(victims: Iterable[Unit], allowances: Allowances, newest: int) -> Work[Cost]:
    """The cost of victims; ``newest`` is when the newest of all pods began, in seconds since 1970."""
    by_priority: dict[int, list[Unit]] = {}
    for unit in victims:
        by_priority.setdefault(unit.priority, []).append(unit)
    losses = Losses(allowances)
    damages = []
    lost = 0
    # What a budget or a gang has to spare goes to the highest priority first, so that what counts first depends on
    # nothing that counts later.
    for priority in sorted(by_priority, reverse=True):
        violations = broken = pods = 0
        for place, unit in enumerate(by_priority[priority], 1):
            violated, broke = losses.lose(unit)
            violations += violated
            broken += broke
            if not unit.planned:
                pods += len(unit.pods)
                lost += age(unit, newest)
            if place % _UNITS_PER_STEP == 0:
                yield
        damages.append(Damage(priority, violations, broken, pods))
        yield
    return Cost(tuple(damages), lost)


def age(unit: Unit, newest: int) -> int:
    """For how many seconds the pods of a unit had run, all together, when the newest of all pods began."""
    if len(unit.pods) == 1:
        started = unit.pods[0].started
        return 0 if started is None else newest - started
    return sum(newest - pod.started for pod in unit.pods if pod.started is not None)
