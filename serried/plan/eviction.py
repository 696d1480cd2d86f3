"""Who may have to go for a gang of higher priority, what that costs, and what is chosen.

What victims cost: evictions that violate budgets, gangs that break, pods, and the time that these have run.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from serried.api.names import GroupKey, Key
from serried.api.pod import Pod
from serried.api.verdict import Verdict
from serried.plan.request import Plan

STAYING_OWNERS = {"DaemonSet": "a DaemonSet's pod comes back at once", "Node": "a static pod is the node's own"}
"""Whose pods are never evicted, by the kind of their owner, and why, a phrase."""

Budget: TypeAlias = Key | GroupKey
"""A PodDisruptionBudget, or a gang that must not lose more than it has to spare: of each only so many pods go."""


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """What is evicted together or not at all; two units are never equal.

    A pod, or all bound pods of a group of disruption mode ``all``: of a tree those of the highest such group
    (getHighestAllAncestor in upstream's pkg/scheduler/framework/preemption/types.go). Or a gang that is planned.
    """

    pods: tuple[Pod, ...]

    priority: int
    """That of the group at the root of the tree if its pods have a group, as upstream's GetPodPriority."""

    gang: GroupKey | None = None
    """The gang that has these members fewer without the unit; None for pods that are no members of a gang."""

    budgets: tuple[Budget, ...] = ()
    """What counts these pods, one entry for each pod and budget; its gang is one where that must not break."""

    doubly_guarded: bool = False
    """Whether two PodDisruptionBudgets are asked of one of its pods: the API server evicts none such."""

    holds_domain: bool = False
    """Whether its gang has the domain for itself in which the pods are, against the gang that is planned."""

    together: bool = False
    """Whether the gang, or the group above it, is evicted as such: its disruption mode is ``all``."""

    planned: bool = False
    """Whether none of its pods is bound: they have slots, on the nodes that the pods say here.

    The gang gives its slots back, all of them, and nobody ends: so it costs nothing but that there is such a victim.
    """

    protection: str = ""
    """Why it may not be evicted whatever its priority, a phrase; "" if it may."""


def count_pods(units: Iterable[Unit]) -> int:
    """How many pods these units have."""
    return sum([len(unit.pods) for unit in units])


@dataclass(frozen=True, slots=True)
class Spare:
    """How many a gang can lose and still stand."""

    count: int
    """How many members; of a CompositePodGroup, how many of the groups below it."""

    above: GroupKey | None = None
    """The CompositePodGroup that has one group fewer when this gang is broken; None without one."""


@dataclass(frozen=True, slots=True)
class Allowances:
    """How much may be lost before it counts as damage."""

    gangs: Mapping[GroupKey, Spare] = field(default_factory=dict)
    """The gangs that run. A group that is not among them cannot be broken."""

    budgets: Mapping[Budget, int] = field(default_factory=dict)
    """``disruptionsAllowed`` of each PodDisruptionBudget. One that is not among them allows everything."""

    limits: Mapping[Budget, int] = field(default_factory=dict)
    """The same where it binds: victims of which more are under a budget are no choice, whatever they cost.

    And what gangs have to spare, where none may break.
    """


TOO_MANY = "their PodDisruptionBudgets do not allow it"
"""Why units may not go that are more than a budget allows, a phrase."""

BREAKS = "their gangs would break, and nobody's does for members beyond minCount"
"""Why units may not go that a gang cannot spare, a phrase."""


def describe_limit(budget: Budget) -> str:
    """Why no more units may go than this allows, a phrase."""
    return BREAKS if isinstance(budget, GroupKey) else TOO_MANY


class Damage(NamedTuple):
    """What the victims of one priority cost. The fields count in their order."""

    priority: int

    violations: int
    """How many of their evictions are more than a PodDisruptionBudget allows."""

    broken: int
    """How many gangs have too few members, or groups, without them."""

    pods: int


@dataclass(frozen=True, slots=True, order=True)
class Cost:
    """What a set of victims costs; of two, the smaller one is the better set.

    The highest priority decides: whether there are victims of it, then how many evictions violate a budget, how many
    gangs break, how many pods go. What is equal there is decided by the next lower priority in the same way. What is
    equal in all of that is decided by the time for which the victims have run.
    """

    damages: tuple[Damage, ...] = ()
    """One for each priority that has victims, the highest first."""

    lost: int = 0
    """For how many seconds the victims have run, all together, less what each had if it began with the newest pod.

    Without a clock that is as good: two sets of as many pods differ in it as they do in the time that they have run.
    """


@dataclass(frozen=True, slots=True)
class Alternative:
    """A domain that would do as well, and what it would cost."""

    domain: str
    """The domain's name, as in `verdict.DomainShortage`; "" for the whole cluster."""

    cost: Cost


@dataclass(frozen=True, slots=True)
class Preemption:
    """A gang's plan and the victims after whose end it holds."""

    plan: Plan

    victims: tuple[Unit, ...]
    """The highest priority first. Without any of them the quorum would not fit, or not have its domain for itself."""

    cost: Cost

    runner_up: Alternative | None = None
    """The next best domain; None if there is no other, or none was looked at."""

    domains_fitting: int = 1
    """How many domains would hold the quorum after some evictions, as far as they were looked for."""

    domains_examined: int = 1
    """For how many of these the victims were chosen, the most promising first."""


class Blocker(StrEnum):
    """What keeps a gang from room that evictions could make."""

    PROTECTION = "protection"
    """Pods of lower priority that may not be evicted."""

    PRIORITY = "priority"
    """Pods whose priority is not lower."""

    ROOM = "room"
    """Nothing that runs: the gang would not fit if all of it went."""


@dataclass(frozen=True, slots=True)
class NoVictims:
    """Why no evictions help."""

    verdict: Verdict
    """Why the gang does not fit when everything is gone that may be evicted."""

    blocker: Blocker

    domain: str = ""
    """The domain that is nearest to hold the gang; "" for the whole cluster, or if it never would."""

    priority: int | None = None
    """For PRIORITY: the least priority of which pods would have to go as well."""

    protections: tuple[str, ...] = ()
    """For PROTECTION: why pods of that domain may not be evicted, without repeats."""

    protected: int = 0
    """For PROTECTION: how many pods of lower priority may not be evicted there; 0 if it is the number that counts."""


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


def measure_cost(victims: Iterable[Unit], allowances: Allowances, newest: int) -> Cost:
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
        for unit in by_priority[priority]:
            violated, broke = losses.lose(unit)
            violations += violated
            broken += broke
            if not unit.planned:
                pods += len(unit.pods)
                lost += age(unit, newest)
        damages.append(Damage(priority, violations, broken, pods))
    return Cost(tuple(damages), lost)


def age(unit: Unit, newest: int) -> int:
    """For how many seconds the pods of a unit had run, all together, when the newest of all pods began."""
    if len(unit.pods) == 1:
        started = unit.pods[0].started
        return 0 if started is None else newest - started
    return sum(newest - pod.started for pod in unit.pods if pod.started is not None)
