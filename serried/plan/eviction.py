"""Pods that may be evicted together (`EvictionUnit`), limits for evictions (`Allowances`), and their `Cost`."""

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
"""The kinds of owners whose pods are never evicted, with a phrase why."""

Budget: TypeAlias = Key | GroupKey
"""A PodDisruptionBudget, or a gang that must keep its quorum: each limits the number of victims."""


@dataclass(frozen=True, slots=True, eq=False)
class EvictionUnit:
    """Pods that are evicted together or not at all. Units are compared by identity.

    It is one pod, or all bound pods of a group with disruption mode ``all``; in a tree those of the highest such group
    (getHighestAllAncestor in upstream's pkg/scheduler/framework/preemption/types.go). It may also be a gang with a
    plan.
    """

    pods: tuple[Pod, ...]

    priority: int
    """The priority of the root group if the pods are in a group, as upstream's GetPodPriority."""

    gang: GroupKey | None = None
    """The gang that loses these members; None if the pods are not in a gang."""

    budgets: tuple[Budget, ...] = ()
    """The budgets of the pods, one entry per pod and budget. Includes the gang if gangs must not break."""

    doubly_guarded: bool = False
    """True if two PodDisruptionBudgets select one of its pods. The API server refuses to evict such a pod."""

    holds_domain: bool = False
    """True if its gang uses the domain of its pods exclusively, so that the preemptor may not use it."""

    together: bool = False
    """True if the disruption mode of the gang, or of a group above it, is ``all``."""

    planned: bool = False
    """True if none of its pods is bound. They have slots, on the node in each pod's ``node``.

    Such a gang releases all its slots, and no pod ends. So its cost is only that there is a victim of its priority.
    """

    protection: str = ""
    """A phrase why it must not be evicted, whatever its priority; "" if it may."""


def count_pods(units: Iterable[EvictionUnit]) -> int:
    """Return the number of pods of these units."""
    return sum([len(unit.pods) for unit in units])


@dataclass(frozen=True, slots=True)
class SpareMembers:
    """The members that a gang can add_and_count without breaking."""

    count: int
    """The number of members; for a CompositePodGroup the number of child groups."""

    above: GroupKey | None = None
    """The CompositePodGroup that loses a child group if this gang breaks; None without one."""


@dataclass(frozen=True, slots=True)
class Allowances:
    """The losses that are allowed."""

    gangs: Mapping[GroupKey, SpareMembers] = field(default_factory=dict)
    """The running gangs. Other groups cannot break."""

    budgets: Mapping[Budget, int] = field(default_factory=dict)
    """``disruptionsAllowed`` of each PodDisruptionBudget. Budgets that are not listed allow everything."""

    limits: Mapping[Budget, int] = field(default_factory=dict)
    """The binding limits: victims that exceed one of them are not chosen, whatever the cost.

    They are budgets that must be kept, and gangs that must not break.
    """


TOO_MANY = "their PodDisruptionBudgets do not allow it"
"""A phrase why units that exceed a budget are not evicted."""

BREAKS = "their gangs would break, and nobody's does for members beyond minCount"
"""A phrase why units whose gang would break are not evicted."""


def describe_limit(budget: Budget) -> str:
    """Return the phrase why victims must not exceed a limit."""
    return BREAKS if isinstance(budget, GroupKey) else TOO_MANY


class Damage(NamedTuple):
    """The damage by victims of one priority. Fields are compared in their order."""

    priority: int

    violations: int
    """The number of evictions that exceed a PodDisruptionBudget."""

    broken: int
    """The number of gangs that add_and_count too many members, or child groups."""

    pods: int


@dataclass(frozen=True, slots=True, order=True)
class Cost:
    """The cost of a set of victims; lower is better.

    Damage at the highest priority is compared first: whether there are victims, then violations of budgets, broken
    gangs, and pods. If it is equal, the next lower priority is compared, and so on. The last criterion is the run time
    lost.
    """

    damages: tuple[Damage, ...] = ()
    """The damage per priority that has victims, the highest first."""

    lost: int = 0
    """The seconds that the victims' pods had run when the newest pod started, summed up; see `age`.

    No clock is needed: for sets of as many pods, it differs by the same amount as their run times.
    """


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another domain that would hold the gang, with its cost."""

    domain: str
    """The name of the domain, as in `verdict.DomainShortage`; "" for the whole cluster."""

    cost: Cost


@dataclass(frozen=True, slots=True)
class Preemption:
    """The plan of a preemptor, and its victims."""

    plan: Plan

    victims: tuple[EvictionUnit, ...]
    """The victims, the highest priority first. Each is needed for room, or for having the domain exclusively."""

    cost: Cost

    runner_up: Alternative | None = None
    """The second cheapest domain; None if no other was found or examined."""

    domains_fitting: int = 1
    """The number of domains found that would hold the quorum after evictions."""

    domains_examined: int = 1
    """The number of domains in which victims were chosen."""


class Blocker(StrEnum):
    """The kinds of reasons why evictions do not help."""

    PROTECTION = "protection"
    """Pods of lower priority that must not be evicted."""

    PRIORITY = "priority"
    """Pods whose priority is not lower."""

    ROOM = "room"
    """No running pods: the gang would not fit if all were evicted."""


@dataclass(frozen=True, slots=True)
class NoVictims:
    """The result if no evictions help."""

    verdict: Verdict
    """The reason why the gang does not fit after all allowed evictions."""

    blocker: Blocker

    domain: str = ""
    """The domain that comes closest to holding the gang; "" for the whole cluster, or if none ever would."""

    priority: int | None = None
    """For PRIORITY: the lowest priority of pods that would have to be evicted as well."""

    protections: tuple[str, ...] = ()
    """For PROTECTION: phrases why pods of that domain must not be evicted, without repeats."""

    protected: int = 0
    """For PROTECTION: the number of protected pods of lower priority there; 0 if a limit on their number applies."""


class Losses:
    """The losses of gangs and budgets by a set of victims, which changes."""

    def __init__(self, allowances: Allowances) -> None:
        self._allowances = allowances
        self._members: Counter[GroupKey] = Counter()
        self._disruptions: Counter[Budget] = Counter()

    def add(self, unit: EvictionUnit) -> None:
        """Add a victim."""
        if unit.gang is not None:
            self._members[unit.gang] += len(unit.pods)
        self._disruptions.update(unit.budgets)

    def remove(self, unit: EvictionUnit) -> None:
        """Remove a victim."""
        if unit.gang is not None:
            self._members[unit.gang] -= len(unit.pods)
        self._disruptions.subtract(unit.budgets)

    def excess(self, budget: Budget) -> int:
        """Return by how many disruptions a budget is exceeded; not positive if it is not."""
        allowed = self._allowances.budgets.get(budget)
        return 0 if allowed is None else self._disruptions[budget] - allowed

    def shortage(self, gang: GroupKey) -> int:
        """Return how many members, or child groups, a gang lacks for its quorum; not positive if it lacks none."""
        spare = self._allowances.gangs.get(gang)
        return 0 if spare is None else self._members[gang] - spare.count

    def is_critical(self, gang: GroupKey) -> bool:
        """Return whether breaking this gang would also break the group above it."""
        spare = self._allowances.gangs.get(gang)
        return spare is not None and spare.above is not None and self.shortage(spare.above) >= 0

    def violates(self, unit: EvictionUnit) -> bool:
        """Return whether a victim contributes to the violation of a budget."""
        return any(self.excess(budget) > 0 for budget in unit.budgets)

    def add_and_count(self, unit: EvictionUnit) -> tuple[int, int]:
        """Add a victim. Return the numbers of additional violations and of additionally broken gangs."""
        violations = 0
        for budget in unit.budgets:
            self._disruptions[budget] += 1
            violations += self.excess(budget) > 0
        return violations, self._count_broken(unit.gang, len(unit.pods)) if unit.gang is not None else 0

    def _count_broken(self, gang: GroupKey, count: int) -> int:
        """Return the number of gangs that break when one loses ``count`` members: itself and its ancestors."""
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


def exceeds(victims: Iterable[EvictionUnit], limits: Mapping[Budget, int]) -> bool:
    """Return whether the victims exceed a limit."""
    taken = Counter([budget for unit in victims for budget in unit.budgets if budget in limits])
    return any(count > limits[budget] for budget, count in taken.items())


def measure_cost(victims: Iterable[EvictionUnit], allowances: Allowances, newest: int) -> Cost:
    """Return the cost of victims; ``newest`` is the start time of the newest pod, in seconds since 1970."""
    by_priority: dict[int, list[EvictionUnit]] = {}
    for unit in victims:
        by_priority.setdefault(unit.priority, []).append(unit)
    losses = Losses(allowances)
    damages = []
    lost = 0
    # Budgets and spare members are used up from the highest priority down, so that damage there, which counts first,
    # does not depend on lower priorities.
    for priority in sorted(by_priority, reverse=True):
        violations = broken = pods = 0
        for unit in by_priority[priority]:
            violated, broke = losses.add_and_count(unit)
            violations += violated
            broken += broke
            if not unit.planned:
                pods += len(unit.pods)
                lost += age(unit, newest)
        damages.append(Damage(priority, violations, broken, pods))
    return Cost(tuple(damages), lost)


def age(unit: EvictionUnit, newest: int) -> int:
    """Return the seconds that the pods of a unit had run when the newest pod started, summed up."""
    if len(unit.pods) == 1:
        started = unit.pods[0].started
        return 0 if started is None else newest - started
    return sum(newest - pod.started for pod in unit.pods if pod.started is not None)
