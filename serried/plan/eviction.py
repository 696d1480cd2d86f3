"""Pods that may be evicted together (`EvictionUnit`), limits for evictions (`Allowances`), and their `Cost`.

The extender's preemption feature makes units and allowances of the running pods, and passes them to
`serried.plan.preemption.plan_victims`, which returns a `Preemption` or `NoVictims`.
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

STAYING_OWNERS = {
    "DaemonSet": "the DaemonSet would recreate its pod at once",
    "Node": "the kubelet runs a static pod itself",
}
"""The kinds of pod owners whose pods are never evicted, each with a phrase for users why."""

Budget: TypeAlias = Key | GroupKey
"""A limit for evictions: the key of a PodDisruptionBudget, or of a gang that must keep its quorum."""


@dataclass(frozen=True, slots=True, eq=False)
class EvictionUnit:
    """Pods that are evicted together or not at all. Two units are equal only if they are the same object.

    A unit is one pod, or all bound pods of a PodGroup with disruption mode ``all``. In a tree it has the bound pods of
    the highest group with that mode (getHighestAllAncestor in upstream's pkg/scheduler/framework/preemption/types.go).
    It may also be a gang with reserved nodes whose pods are not bound yet, see ``planned``.
    """

    pods: tuple[Pod, ...]

    priority: int
    """The priority by which victims are chosen: that of the pod, or of its root group if it is in a group.

    Upstream's GetPodPriority is the same.
    """

    gang: GroupKey | None = None
    """The gang whose members the pods are, and that loses them; None if the pods are not in a gang."""

    budgets: tuple[Budget, ...] = ()
    """The PodDisruptionBudgets that select the pods, once per pod. So a budget may be listed several times.

    If gangs must not lose their quorum, the unit's gang is listed as well, once per pod.
    """

    doubly_guarded: bool = False
    """True if two PodDisruptionBudgets select one of its pods. The API server refuses to evict such a pod."""

    holds_domain: bool = False
    """True if the gang of these pods uses their topology domain exclusively, so that no other gang may use it."""

    together: bool = False
    """True if the disruption mode of the gang, or of a group above it, is ``all``."""

    planned: bool = False
    """True if none of the pods is bound, but their gang has a plan: ``node`` of each pod is the planned node.

    To evict such a unit only releases its reservation: no pod ends. So its cost has no violations, run time or pods,
    but the fact that there is a victim of this priority.
    """

    protection: str = ""
    """A phrase for users why these pods must not be evicted, whatever their priority; "" if they may be evicted."""


def count_pods(units: Iterable[EvictionUnit]) -> int:
    """Return the total number of pods in these units."""
    return sum([len(unit.pods) for unit in units])


@dataclass(frozen=True, slots=True)
class SpareMembers:
    """The number of members that a running gang can lose before it has fewer than its quorum."""

    count: int
    """The number of members; for a CompositePodGroup the number of child groups that it can lose."""

    above: GroupKey | None = None
    """The parent group that loses one of its child groups if this gang loses its quorum; None if there is no parent."""


@dataclass(frozen=True, slots=True)
class Allowances:
    """The number of victims that gangs and PodDisruptionBudgets allow."""

    gangs: Mapping[GroupKey, SpareMembers] = field(default_factory=dict)
    """The members that each running gang can lose, by gang. A group that is not listed has no quorum to lose."""

    budgets: Mapping[Budget, int] = field(default_factory=dict)
    """The number of allowed evictions per PodDisruptionBudget (``disruptionsAllowed``).

    To exceed it only raises the cost.

    A budget that is not listed allows any number.
    """

    limits: Mapping[Budget, int] = field(default_factory=dict)
    """The number of allowed evictions per budget or gang that must not be exceeded, whatever the cost of other victims.

    A PodDisruptionBudget is listed if budgets must be respected. A gang is listed if gangs must not lose their quorum.
    """


TOO_MANY = "their PodDisruptionBudgets do not allow it"
"""The phrase for users why pods are not evicted if that would exceed a PodDisruptionBudget."""

BREAKS = "their gangs would have fewer than minCount members, which is not allowed for members beyond minCount"
"""The phrase for users why pods are not evicted if their gang would lose its quorum."""


def describe_limit(budget: Budget) -> str:
    """Return the phrase for users why victims must not exceed this limit, a PodDisruptionBudget or a gang."""
    return BREAKS if isinstance(budget, GroupKey) else TOO_MANY


class Damage(NamedTuple):
    """The damage that the victims of one priority cause.

    Two values are compared by priority, then by violations of PodDisruptionBudgets, then by gangs that lose their
    quorum, then by the number of pods.
    """

    priority: int

    violations: int
    """The number of evictions that exceed a PodDisruptionBudget."""

    broken: int
    """The number of gangs that lose their quorum, and of CompositePodGroups that keep too few child groups."""

    pods: int


@dataclass(frozen=True, slots=True, order=True)
class Cost:
    """The cost of a set of victims, for comparing sets: the smaller cost is better.

    The damage at the highest priority is compared first: whether there are victims of that priority, then violations of
    PodDisruptionBudgets, then gangs that lose their quorum, then pods. If all that is equal, the next lower priority is
    compared, and so on. If all priorities are equal, the lost run time decides.
    """

    damages: tuple[Damage, ...] = ()
    """The damage for each priority that has victims, the highest priority first."""

    lost: int = 0
    """The run time that is lost, in seconds: the sum of `sum_ages` of all victims.

    Ages are measured at the start of the newest pod instead of now, so that no clock is needed. That does not change
    the order of two sets with the same number of pods.
    """


@dataclass(frozen=True, slots=True)
class Alternative:
    """The second cheapest domain for a preemptor: the gang would fit there after evictions of a higher cost."""

    domain: str
    """The name of the domain, as in `verdict.DomainShortage`; "" for the whole cluster."""

    cost: Cost


@dataclass(frozen=True, slots=True)
class Preemption:
    """The answer of `plan_victims` if evictions help.

    It has the nodes for the preemptor's members, and the pods to evict.
    """

    plan: Plan

    victims: tuple[EvictionUnit, ...]
    """The pods to evict, the highest priority first; () if the gang fits without evictions.

    Without any one of them the gang would lack resources, or would not have its domain exclusively.
    """

    cost: Cost

    runner_up: Alternative | None = None
    """The second cheapest domain; None if victims were chosen in one domain only."""

    domains_fitting: int = 1
    """The number of domains that were found in which the quorum would fit after evictions."""

    domains_examined: int = 1
    """The number of these domains in which victims were chosen and their cost compared."""


class Blocker(StrEnum):
    """The kinds of reasons why the planner finds no victims for a gang.

    Pods in the way are protected, or their priority is too high, or the gang would not fit even without any pods.
    """

    PROTECTION = "protection"
    """Protected pods: the gang would only fit if pods of lower priority were evicted that must not be evicted."""

    PRIORITY = "priority"
    """Pods of too high a priority: the gang would only fit if pods were evicted that do not have a lower priority."""

    ROOM = "room"
    """No running pods: the gang would not fit even if all pods were evicted."""


@dataclass(frozen=True, slots=True)
class NoVictims:
    """The answer of `plan_victims` if no evictions help, with the reason."""

    verdict: Verdict
    """The planner's reason why the gang does not fit even after all allowed evictions."""

    blocker: Blocker

    domain: str = ""
    """The domain in which the gang would fit if its blocking pods could be evicted.

    It is "" for the whole cluster, and for ROOM.
    """

    priority: int | None = None
    """The priority up to which pods would have to be evicted, if ``blocker`` is PRIORITY; otherwise None."""

    protections: tuple[str, ...] = ()
    """The phrases why pods in ``domain`` must not be evicted, without repeats, for PROTECTION; otherwise ()."""

    protected: int = 0
    """The number of pods in ``domain`` that have a lower priority but are protected, if ``blocker`` is PROTECTION.

    0 if no single pod is protected, but budgets or gangs limit how many may be evicted.
    """


class Losses:
    """Counts what gangs and PodDisruptionBudgets lose by a set of victims. Victims are added and removed one by one."""

    def __init__(self, allowances: Allowances) -> None:
        self._allowances = allowances
        self._members: Counter[GroupKey] = Counter()
        self._disruptions: Counter[Budget] = Counter()

    def add(self, unit: EvictionUnit) -> None:
        """Count the losses that evicting this unit causes, as a victim."""
        if unit.gang is not None:
            self._members[unit.gang] += len(unit.pods)
        self._disruptions.update(unit.budgets)

    def remove(self, unit: EvictionUnit) -> None:
        """Take a victim out of the counts again: the members that its gang loses, and the evictions by budget."""
        if unit.gang is not None:
            self._members[unit.gang] -= len(unit.pods)
        self._disruptions.subtract(unit.budgets)

    def excess(self, budget: Budget) -> int:
        """Return by how many evictions the counted victims exceed a PodDisruptionBudget, given by its key.

        The result is 0 or negative if they do not exceed it, and 0 if it allows any number.
        """
        allowed = self._allowances.budgets.get(budget)
        return 0 if allowed is None else self._disruptions[budget] - allowed

    def shortage(self, gang: GroupKey) -> int:
        """Return how many members a gang lacks for its quorum after the loss of the counted victims.

        For a CompositePodGroup, return how many child groups it lacks. The result is 0 or negative if nothing is
        lacking.
        """
        spare = self._allowances.gangs.get(gang)
        return 0 if spare is None else self._members[gang] - spare.count

    def is_critical(self, gang: GroupKey) -> bool:
        """Return whether the parent group of this gang would lose its quorum, too, if the gang lost its own."""
        spare = self._allowances.gangs.get(gang)
        return spare is not None and spare.above is not None and self.shortage(spare.above) >= 0

    def violates(self, unit: EvictionUnit) -> bool:
        """Return whether the counted victims exceed a PodDisruptionBudget that selects pods of ``unit``.

        ``unit`` is one of the counted victims.
        """
        return any(self.excess(budget) > 0 for budget in unit.budgets)

    def add_and_count(self, unit: EvictionUnit) -> tuple[int, int]:
        """Count a victim.

        Return how many more evictions violate a PodDisruptionBudget, and how many more gangs lose their quorum.
        """
        violations = 0
        for budget in unit.budgets:
            self._disruptions[budget] += 1
            violations += self.excess(budget) > 0
        return violations, self._count_broken(unit.gang, len(unit.pods)) if unit.gang is not None else 0

    def _count_broken(self, gang: GroupKey, count: int) -> int:
        """Count that a gang loses ``count`` more members. Return how many groups lose their quorum by it.

        These are the gang itself and, if it loses its quorum, groups above it.
        """
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
    """Return whether evicting these victims exceeds any of the limits.

    ``limits`` has the number of allowed evictions by the key of a PodDisruptionBudget, or of a gang that must keep its
    quorum. Budgets and gangs that it does not list are ignored.
    """
    taken = Counter([budget for unit in victims for budget in unit.budgets if budget in limits])
    return any(count > limits[budget] for budget, count in taken.items())


def measure_cost(victims: Iterable[EvictionUnit], allowances: Allowances, newest: int) -> Cost:
    """Return the cost of evicting these victims.

    ``allowances`` says how many evictions budgets and gangs allow. ``newest`` is the start time of the newest running
    pod, in seconds since 1970; run times are measured until then.
    """
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
                lost += sum_ages(unit, newest)
        damages.append(Damage(priority, violations, broken, pods))
    return Cost(tuple(damages), lost)


def sum_ages(unit: EvictionUnit, newest: int) -> int:
    """Return the sum of the ages of the unit's pods in seconds, at the time ``newest`` (in seconds since 1970).

    ``newest`` is the start time of the newest running pod in the cluster. Pods that have not started count as 0.
    """
    if len(unit.pods) == 1:
        started = unit.pods[0].started
        return 0 if started is None else newest - started
    return sum(newest - pod.started for pod in unit.pods if pod.started is not None)
