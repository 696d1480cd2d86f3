"""Clusters in use as inputs of the search for victims, and the best victims found by a full search (the oracle)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from serried.api.names import GroupKey, Key
from serried.api.node import Node
from serried.plan.eviction import Allowances, Budget, EvictionUnit, NoVictims, Preemption, SpareMembers
from serried.plan.preemption import plan_victims
from serried.plan.request import PlanRequest, Snapshot
from tests.support.builders import NodeBuilder, PodBuilder
from tests.support.oracle import count_most, find_domains
from tests.support.rules import PLAN_RULES

HIGH = 100
"""The preemptor's priority."""


@dataclass(frozen=True)
class Occupied:
    """A cluster in use, built step by step. Every method for a step returns a new one."""

    nodes: Mapping[str, Node]
    units: tuple[EvictionUnit, ...] = ()
    """The running pods, as units: the pods of a unit are evicted together or not at all."""

    gangs: Mapping[GroupKey, SpareMembers] = field(default_factory=dict)
    """By gang: the number of members beyond its quorum."""

    budgets: Mapping[Budget, int] = field(default_factory=dict)
    """By PodDisruptionBudget: the allowed disruptions."""

    binding: bool = False
    """True if victims must not exceed the budgets, False if that only makes them worse."""

    def running(self, *pods: PodBuilder, priority: int = 0, **said: object) -> "Occupied":
        """With running pods that can be evicted one by one.

        ``gang``, ``budget``, ``protection`` and ``holds_domain`` apply to each of them.
        """
        found = self
        for each in pods:
            found = found.running_together(each, priority=priority, **said)
        return found

    def running_together(self, *pods: PodBuilder, priority: int = 0, **said: object) -> "Occupied":
        """With running pods that are evicted together or not at all."""
        values = tuple(each.value() for each in pods)
        gang, budget = said.get("gang"), said.get("budget")
        unit = EvictionUnit(
            values,
            priority,
            gang=GroupKey("default", str(gang)) if gang else None,
            budgets=(Key("default", str(budget)),) * len(values) if budget else (),
            protection=str(said.get("protection", "")),
            holds_domain=bool(said.get("holds_domain")),
        )
        return replace(self, units=(*self.units, unit))

    def with_gang(self, name: str, spare: int = 0, above: str = "") -> "Occupied":
        """With a gang that can lose ``spare`` members. If it loses more, its parent ``above`` loses one group."""
        key = GroupKey("default", name)
        found = SpareMembers(spare, GroupKey("default", above) if above else None)
        return replace(self, gangs={**self.gangs, key: found})

    def with_budget(self, name: str, allowed: int = 0) -> "Occupied":
        """With a PodDisruptionBudget that allows this number of disruptions."""
        return replace(self, budgets={**self.budgets, Key("default", name): allowed})

    def with_binding_budgets(self) -> "Occupied":
        """With budgets that victims must not exceed, as with evictions by the API."""
        return replace(self, binding=True)

    @property
    def allowances(self) -> Allowances:
        """The allowances of gangs and budgets, as the search takes them."""
        return Allowances(self.gangs, self.budgets, self.budgets if self.binding else {})

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot with all running pods."""
        return self.without(())

    def without(self, gone: Iterable[EvictionUnit]) -> Snapshot:
        """Return the snapshot after the eviction of some units."""
        left = set(self.units) - set(gone)
        used: dict[str, dict[str, int]] = {}
        for pod in (pod for unit in self.units if unit in left for pod in unit.pods):
            amounts = used.setdefault(pod.node, {})
            for name, amount in pod.shape.requests:
                amounts[name] = amounts.get(name, 0) + amount
        return Snapshot(self.nodes, used, rules=PLAN_RULES)

    def request_after(self, ask: PlanRequest, gone: Iterable[EvictionUnit] = ()) -> PlanRequest:
        """Return the gang's request as it is after the eviction of the units ``gone``.

        Only domains that the remaining gangs hold exclusively are still taken.
        """
        left = set(self.units) - set(gone)
        homes = [self.nodes[pod.node] for unit in left if unit.holds_domain for pod in unit.pods]
        key = ask.topology_key
        held = frozenset(home.labels[key] for home in homes if key is not None and key in home.labels)
        return replace(ask, taken=held, freeable=held)

    def plan(self, ask: PlanRequest, priority: int = HIGH) -> Preemption | NoVictims:
        """Return the victims that the planner finds for a gang."""
        return plan_victims(self.snapshot, ask, priority, self.units, self.allowances)


def occupied(*nodes: NodeBuilder) -> Occupied:
    """Build a cluster without running pods."""
    values = [each.value() for each in nodes]
    return Occupied({value.name: value for value in values})


def names(units: Iterable[EvictionUnit]) -> list[str]:
    """Return the names of the pods of units, sorted."""
    return sorted(pod.name for unit in units for pod in unit.pods)


# --- the oracle ------------------------------------------------------------------------------------------------------

Price = tuple[tuple[int, ...], ...]
"""For each priority of victims, the highest first: the priority, violated budgets, broken gangs, and pods."""


def price(field_: Occupied, victims: Sequence[EvictionUnit]) -> Price:
    """Return the cost of victims, computed by the definition of `plan.eviction.Cost`, but without their age."""
    found = []
    for priority in sorted({unit.priority for unit in victims}, reverse=True):
        here = [unit for unit in victims if unit.priority >= priority]
        above = [unit for unit in victims if unit.priority > priority]
        violations = count_violations(field_, here) - count_violations(field_, above)
        broken = len(find_gangs_below_quorum(field_, here)) - len(find_gangs_below_quorum(field_, above))
        pods = sum(len(unit.pods) for unit in victims if unit.priority == priority)
        found.append((priority, violations, broken, pods))
    return tuple(found)


def count_violations(field_: Occupied, victims: Iterable[EvictionUnit]) -> int:
    """Count the evictions beyond what the budgets allow."""
    taken = [budget for unit in victims for budget in unit.budgets]
    return sum(max(0, taken.count(budget) - allowed) for budget, allowed in field_.budgets.items())


def find_gangs_below_quorum(field_: Occupied, victims: Iterable[EvictionUnit]) -> set[GroupKey]:
    """Return the gangs that lose their quorum."""
    lost = [unit.gang for unit in victims for _ in unit.pods]
    broken: set[GroupKey] = set()
    while True:
        fallen = [field_.gangs[gang].above for gang in broken]
        more = {gang for gang, spare in field_.gangs.items() if (lost + fallen).count(gang) > spare.count}
        if more == broken:
            return broken
        broken = more


def find_cheapest_victims(field_: Occupied, ask: PlanRequest, priority: int = HIGH) -> Price | None:
    """Return the price of the best victims; None if no victims help.

    The search takes exponential time, so it is meant for about eight units.
    """
    may_go = [unit for unit in field_.units if unit.priority < priority and not unit.protection]
    if not fits_without(field_, may_go, ask):
        return None
    for found, victims in sorted(_list_sets(field_, may_go), key=lambda entry: entry[0]):
        if is_legal(field_, victims) and fits_without(field_, victims, ask):
            return found
    assert field_.binding, "all of them were enough"
    return None


def is_legal(field_: Occupied, victims: Iterable[EvictionUnit]) -> bool:
    """Return whether all victims may be evicted: binding budgets are not exceeded."""
    return not field_.binding or not count_violations(field_, victims)


def _list_sets(field_: Occupied, units: Sequence[EvictionUnit]) -> Iterator[tuple[Price, tuple[EvictionUnit, ...]]]:
    for size in range(len(units) + 1):
        for victims in combinations(units, size):
            yield price(field_, victims), victims


def fits_without(field_: Occupied, gone: Iterable[EvictionUnit], ask: PlanRequest) -> bool:
    """Return whether one domain holds the quorum after the eviction of some units.

    Domains that a remaining gang holds exclusively do not count.
    """
    away = list(gone)
    return fits(field_.without(away), field_.request_after(ask, away))


def fits(snapshot: Snapshot, ask: PlanRequest) -> bool:
    """Return whether one domain holds the quorum."""
    open_ = Snapshot(
        {name: node for name, node in snapshot.nodes.items() if name not in ask.closed}, snapshot.used, rules=PLAN_RULES
    )
    domains = find_domains(open_, ask).values()
    return any(count_most(open_, ask, inside) >= max(ask.need, 1) for inside in domains)
