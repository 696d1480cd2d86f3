"""Finds the victims with the lowest cost for a gang that does not fit (`plan_victims`).

Pods are evicted in units (`EvictionUnit`), the pods that are evicted together or not at all. The whole quorum must fit
into one domain. In a simulation, units are removed from the nodes, priority by priority from the lowest, until domains
are found that would hold the quorum (`SimulatedCluster`). In each of the best of these domains, all units up to that
priority are removed. If that exceeds a limit that must be respected, such as that of a PodDisruptionBudget, only units
within the limit are removed (`budget_reprieve`). Then each unit is put back if the quorum still fits with it
(`reprieve`); those that stay removed are the victims. The domain whose victims cost least (`plan.eviction.Cost`) is
chosen.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.verdict import Reason, Trait, Verdict
from serried.plan.budget_reprieve import BudgetReprieve, Exchange, SearchLimit
from serried.plan.capacity import (
    Capacity,
    CapacityFork,
    Census,
    Domain,
    MemberClass,
    ShapeCounts,
    group_classes,
    make_least_class,
)
from serried.plan.eviction import (
    Allowances,
    Alternative,
    Blocker,
    Budget,
    Cost,
    EvictionUnit,
    NoVictims,
    Preemption,
    count_pods,
    describe_limit,
    measure_cost,
)
from serried.plan.limit import Limit
from serried.plan.placement import Placement, generate_placements, list_search_levels
from serried.plan.reprieve import CountedRemoval, PlannedRemoval, Removal, reprieve
from serried.plan.request import Plan, PlanRequest, Snapshot
from serried.plan.rule import has_rules
from serried.plan.tree import plan_group


def reopen_full(snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None) -> PlanRequest:
    """Return the request in which the gang may use full nodes that kube-scheduler's filter call did not list.

    Evictions may free such nodes. A node that was not listed although a member fits is infeasible for a reason that
    Serried does not know, so it stays closed. A node without free resources is assumed to be infeasible for lack of
    them. ``capacity`` has counts of earlier plans, i.e. how many pods of a shape fit on each node; None for none.
    """
    if not ask.unoffered:
        return ask
    origin = capacity if capacity is not None else Capacity(snapshot.nodes, snapshot.used)
    counted = CapacityFork(origin, snapshot.nodes, snapshot.used, snapshot.over)
    full = set(ask.unoffered)
    for kind in group_classes(ask.members):
        table = counted.table(kind.shape, snapshot.limit)
        full.difference_update(table.by_node)
    return ask.reopening(frozenset(full))


_GROWTH = 1.1
"""The factor by which the number of members that fit in a domain must grow after a failed plan, before the next plan.

For instance a domain for which a plan failed when 20 members fitted is planned again when 22 fit, because more pods
were removed. When all units are removed the factor does not apply, so the last plan of a domain is always made. It does
not apply either if rules such as anti-affinity restrict members, because counts say little then.
"""

_MAX_PLANNED = 4
"""The number of candidate domains after which no more are looked for, if each takes a plan instead of a count."""

_MAX_WITHIN_BUDGETS = 16
"""The number of candidate domains of one priority in which victims within `Allowances.limits` are searched."""


class Shortage(NamedTuple):
    """The members of the quorum that fit in a domain only if pods of one priority are evicted.

    From it the cost of the victims is estimated before they are chosen.
    """

    priority: int

    harmful: int
    """The number of members that need evictions that violate a PodDisruptionBudget or take a gang's quorum."""

    members: int
    """The number of members that need any evictions of pods of this priority."""


@dataclass(frozen=True, slots=True)
class CandidateDomain:
    """A domain in which the preemptor's quorum would fit after evictions."""

    placement: Placement

    priority: int
    """The highest priority of the pods that were removed when the quorum fitted.

    Victims have this priority or a lower one.
    """

    shortages: tuple[Shortage, ...]
    """The shortages by priority, the highest first. The smaller they are, the lower the cost of victims probably is."""

    first_victims: tuple[EvictionUnit, ...] | None = None
    """Units whose removal exceeds none of `Allowances.limits`, and after whose removal the quorum fits.

    None if all units up to ``priority`` may be removed.
    """

    @property
    def sort_key(self) -> tuple[int, tuple[Shortage, ...], Domain]:
        """The sort key of a domain; the smallest is the best.

        The lowest victim priority comes first, then the least shortages.
        """
        return self.priority, self.shortages, self.placement.domain


@dataclass(slots=True)
class _SimulatedDomain:
    """A domain in the simulation, in which running pods are removed priority by priority."""

    placement: Placement

    room: int = 0
    """The number of the preemptor's members that fit in the domain after the removals, as of the last count."""

    tried: int = -1
    """The value of ``room`` at the last plan, which has failed; -1 if no plan was made."""

    planned: bool = False
    """True if a plan for the quorum was found after the removals. PodDisruptionBudgets are not considered."""

    taken: dict[Budget, int] = field(default_factory=dict)
    """The number of removed pods by PodDisruptionBudget, and by gang that must keep its quorum."""

    exceeded: set[str] = field(default_factory=set)
    """The phrases for users why not all removed pods may be evicted; empty if all may be.

    A phrase is added when one of `Allowances.limits` is exceeded.
    """

    shortages: list[Shortage] = field(default_factory=list)
    """The shortages so far, one for each removed priority on which members depend, the lowest priority first."""

    units: list[EvictionUnit] = field(default_factory=list)
    """The units (pods that are evicted together) with pods in this domain that may be evicted."""

    owners: set[EvictionUnit] = field(default_factory=set)
    """The units whose gangs use this domain exclusively."""

    holders: set[EvictionUnit] = field(default_factory=set)
    """The units of ``owners`` that are not removed yet. While there is one, the preemptor must not use the domain."""


class SimulatedCluster:
    """The cluster as it would be without some running pods, and the effect on each domain that the preemptor may use.

    Pods are removed in units (`EvictionUnit`) and never put back. Call `count` before anything else.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        ask: PlanRequest,
        allowances: Allowances,
        capacity: Capacity | None,
    ) -> None:
        self._all_nodes = snapshot.nodes
        self._search_level = list_search_levels(ask)[-1]
        self._ask = _reopen_domains(ask) if self._is_required(ask) else ask
        self._allowances = allowances
        self._limit = snapshot.limit
        self._search_limit = SearchLimit()
        self._need = max(ask.need, 1)
        nodes = snapshot.nodes
        if ask.closed:
            nodes = {name: node for name, node in nodes.items() if name not in ask.closed}
        self._snapshot = replace(snapshot, nodes=nodes)
        self._removal = Removal(self._snapshot)
        origin = capacity if capacity is not None else Capacity(snapshot.nodes, snapshot.used)
        self._capacity = CapacityFork(origin, nodes, self._removal.used, {*snapshot.over, *ask.closed})
        self._domains_by_node: Mapping[str, Domain] = (
            self._capacity.domains_by_node(self._search_level.key) if self._search_level.key else {}
        )
        self._kinds = group_classes(ask.members)
        self._has_rules = has_rules(snapshot, self._kinds)
        """True if affinity, spread or similar rules restrict members. Then nodes outside of the domain matter, too."""

        self._least = self._kinds[0] if len(self._kinds) == 1 else make_least_class(self._kinds)
        self._tables: list[tuple[MemberClass, ShapeCounts]] = []
        self._simulated: dict[Domain, _SimulatedDomain] = {}
        self._removed: list[EvictionUnit] = []
        self._excluded = frozenset(name for _, name in ask.excluded)

    # --- the cluster as it is --------------------------------------------------------------------------------------

    def count(self) -> None:
        """Find the domains that the preemptor may use.

        Count how many of its members fit in each before pods are removed.
        """
        self._table = self._capacity.table(self._least.shape, self._limit)
        for kind in self._kinds if len(self._kinds) > 1 else ():
            self._tables.append((kind, self._capacity.table(kind.shape, self._limit)))
        census = Census(self._removal.snapshot(), self._ask, self._capacity)
        for placement in generate_placements(census, self._search_level, self._ask):
            self._simulated[placement.domain] = _SimulatedDomain(placement)
        self._measure(self._simulated)

    @property
    def domains(self) -> Collection[Domain]:
        """The domains that the preemptor may use."""
        return self._simulated.keys()

    def find_domains(self, unit: EvictionUnit) -> Iterable[Domain]:
        """Return the domains that have pods of this unit, without repeats.

        Domains that the preemptor may not use are left out.
        """
        if len(unit.pods) == 1:
            domain = self._domain_of(unit.pods[0].node)
            return () if domain is None else (domain,)
        found = dict.fromkeys(self._domain_of(pod.node) for pod in unit.pods)
        return [domain for domain in found if domain is not None]

    def add_domain_holder(self, unit: EvictionUnit) -> None:
        """Record that the gang of this unit uses the domains of its pods exclusively."""
        for pod in unit.pods:
            simulated = self._find_held(pod)
            if simulated is not None:
                simulated.owners.add(unit)
                simulated.holders.add(unit)

    def _find_held(self, pod: Pod) -> _SimulatedDomain | None:
        node = self._all_nodes.get(pod.node)
        label = node.labels.get(self._search_level.key[-1]) if node is not None and self._search_level.key else None
        return self._simulated.get((label,)) if label is not None else None

    @staticmethod
    def _is_required(ask: PlanRequest) -> bool:
        """Return whether the gang has to run in one domain of ``ask.topology_key``, and no other key restricts it.

        Only then the exclusive domains of other gangs exclude this gang, because they are domains of the same key.
        """
        return ask.topology_key is not None and list_search_levels(ask)[-1].key == (ask.topology_key,)

    def add_evictable(self, unit: EvictionUnit, domains: Iterable[Domain]) -> None:
        """Record for each of ``domains`` that this unit may be evicted there. They are the ones from `find_domains`."""
        for domain in domains:
            self._simulated[domain].units.append(unit)

    def list_units(self, candidate: CandidateDomain) -> list[EvictionUnit]:
        """Return the evictable units of a domain whose priority is at most that of the candidate."""
        return [
            unit for unit in self._simulated[candidate.placement.domain].units if unit.priority <= candidate.priority
        ]

    def _domain_of(self, name: str) -> Domain | None:
        if name not in self._removal.nodes:
            return None
        domain = self._domains_by_node.get(name) if self._search_level.key else ()
        return domain if domain in self._simulated else None

    # --- remove units ----------------------------------------------------------------------------------------------

    def remove(self, priority: int, units: Sequence[EvictionUnit]) -> list[Domain]:
        """Remove all units of one priority. Return the domains with changed nodes, in name order.

        A unit has the pods that are evicted together. Units whose eviction violates no budget and takes no gang's
        quorum are removed first, so that `Shortage.harmful` counts only members that need the other ones.
        """
        harmless, harmful = self._split_by_harm(units)
        changed: dict[Domain, int] = {}
        self._removed += units
        freed = self._free_domains(units)
        self._remove(harmless, changed)
        middle = {domain: self._simulated[domain].room for domain in changed}
        self._remove(harmful, changed)
        for domain, before in changed.items():
            held = freed.get(domain, 0)
            if before < self._need or held:
                after = middle.get(domain, before)
                short = Shortage(priority, max(0, self._need - after), max(self._need - before, held))
                self._simulated[domain].shortages.append(short)
        return sorted(changed)

    def _split_by_harm(self, units: Sequence[EvictionUnit]) -> tuple[list[EvictionUnit], list[EvictionUnit]]:
        """Return the units whose eviction does no harm, and those that exceed a budget or take a gang's quorum."""
        harmless: list[EvictionUnit] = []
        harmful: list[EvictionUnit] = []
        guarded: list[EvictionUnit] = []
        for unit in units:
            kind = guarded if unit.budgets else harmful if self._breaks(unit) else harmless
            kind.append(unit)
        # A budget's disruptions are used node by node: at equal cost, more members fit if victims are on fewer nodes.
        guarded = sorted(guarded, key=lambda unit: (unit.pods[0].node, unit.pods[0].uid))
        for unit in guarded:
            (harmful if self._violates(unit) or self._breaks(unit) else harmless).append(unit)
        return harmless, harmful

    def _free_domains(self, units: Iterable[EvictionUnit]) -> dict[Domain, int]:
        """Record that these units no longer use their domains exclusively.

        Units on nodes that the preemptor must not use keep their domains. Return the number of pods of the other units
        by domain; a domain that further units hold is not free yet.
        """
        freed: dict[Domain, int] = {}
        for unit in units:
            for pod in unit.pods if unit.holds_domain and not self._is_on_closed_node(unit) else ():
                simulated = self._find_held(pod)
                if simulated is not None:
                    simulated.holders.discard(unit)
                    domain = simulated.placement.domain
                    freed[domain] = freed.get(domain, 0) + 1
        return freed

    def _is_on_closed_node(self, unit: EvictionUnit) -> bool:
        """Return whether the preemptor must not use a node of the unit.

        Such a unit is not evicted, so it keeps its domain.
        """
        return any(pod.node in self._ask.closed for pod in unit.pods)

    def _remove(self, units: Iterable[EvictionUnit], changed: dict[Domain, int]) -> None:
        """Remove units.

        For each changed domain that ``changed`` does not have yet, set how many members fitted before.
        """
        touched: dict[Domain, None] = {}
        for name in self._removal.remove(units):
            self._capacity.note_used(name)
            domain = self._domain_of(name)
            if domain is not None:
                touched[domain] = None
        for domain in touched:
            changed.setdefault(domain, self._simulated[domain].room)
        self._measure(touched)

    def _measure(self, domains: Iterable[Domain]) -> None:
        self._capacity.refresh(self._table, self._limit)
        for domain in domains:
            self._simulated[domain].room = self._room(self._table, domain)

    def _room(self, table: ShapeCounts, domain: Domain) -> int:
        if not self._search_level.key:
            return table.total
        return table.sum_by(self._search_level.key, self._domains_by_node).get(domain, 0)

    def _violates(self, unit: EvictionUnit) -> bool:
        """Count the removal of a unit in its PodDisruptionBudgets, separately for each domain that has its pods.

        If its gang must keep its quorum, count it there, too. Record the phrases of exceeded limits. Return whether a
        PodDisruptionBudget is exceeded in one of the domains.
        """
        violated = False
        for domain in self.find_domains(unit):
            simulated = self._simulated[domain]
            for budget in unit.budgets:
                simulated.taken[budget] = count = simulated.taken.get(budget, 0) + 1
                violated = violated or count > self._allowances.budgets.get(budget, count)
                if count > self._allowances.limits.get(budget, count):
                    simulated.exceeded.add(describe_limit(budget))
        return violated

    def _breaks(self, unit: EvictionUnit) -> bool:
        spare = self._allowances.gangs.get(unit.gang) if unit.gang is not None else None
        return spare is not None and len(unit.pods) > spare.count

    # --- candidates ------------------------------------------------------------------------------------------------

    def list_candidates(self, domains: Iterable[Domain], priority: int) -> list[CandidateDomain]:
        """Return those of the given domains that hold the preemptor's quorum after the removals, the best first.

        ``priority`` is that of the pods that were removed last. Domains for which a plan has to be made are tried in
        the order of how many members fit, and only until a few plans have succeeded.
        """
        return self._list(domains, priority, _GROWTH)

    def list_last_candidates(self, domains: Iterable[Domain], priority: int) -> list[CandidateDomain]:
        """Return the domains that hold the preemptor's quorum when all evictable pods are removed, the best first.

        In contrast to `list_candidates`, all domains are planned again for which a plan has failed before.
        """
        return self._list(domains, priority, 1.0)

    def _list(self, domains: Iterable[Domain], priority: int, growth: float) -> list[CandidateDomain]:
        counted: list[CandidateDomain] = []
        planned: list[CandidateDomain] = []
        for simulated in sorted((self._simulated[domain] for domain in domains), key=lambda simulated: -simulated.room):
            if simulated.holders or simulated.room < self._need:
                continue
            candidate = CandidateDomain(simulated.placement, priority, tuple(reversed(simulated.shortages)))
            if self.is_counted(simulated.placement):
                counted.append(candidate)
            elif len(planned) < (1 if self._limit.content else _MAX_PLANNED) and self._plan_fits(simulated, growth):
                planned += self._respect_budgets([candidate])
        counted.sort(key=lambda candidate: candidate.sort_key)
        counted = self._respect_budgets(counted)
        return sorted([*planned, *counted], key=lambda candidate: candidate.sort_key)

    def find_over_budget(self, domains: Iterable[Domain], priority: int) -> Placement | None:
        """Return the best of the given domains that holds the preemptor's quorum after the removals so far.

        Budgets are ignored, even if evicting the removed pods would exceed them. Return None if the quorum fits in none
        of the domains. ``priority`` is that of the pods that were removed last.
        """
        found: list[CandidateDomain] = []
        for simulated in sorted((self._simulated[domain] for domain in domains), key=lambda simulated: -simulated.room):
            if not simulated.holders and simulated.room >= self._need:
                wanted = len(found) < (1 if self._limit.content else _MAX_PLANNED)
                if self.is_counted(simulated.placement) or (wanted and self._plan_fits(simulated, 1.0)):
                    found.append(CandidateDomain(simulated.placement, priority, tuple(reversed(simulated.shortages))))
        return min(found, key=lambda candidate: candidate.sort_key).placement if found else None

    def _respect_budgets(self, candidates: Iterable[CandidateDomain]) -> list[CandidateDomain]:
        """Return the candidates in which the preemptor fits after evictions that exceed none of `Allowances.limits`.

        The limits are the evictions that PodDisruptionBudgets and gangs allow, where these must be respected. If all
        removed pods of a candidate may be evicted, it is returned as it is. Otherwise victims within the limits are
        searched, for some candidates only, and are set as ``first_victims``. A candidate for which none are found is
        left out.
        """
        found: list[CandidateDomain] = []
        worked = 0
        for candidate in candidates:
            if not self.list_exceeded(candidate.placement):
                found.append(candidate)
            elif worked < (1 if self._limit.content else _MAX_WITHIN_BUDGETS):
                removal = self.simulate_domain(
                    candidate.placement, 0
                )  # 0: BudgetReprieve makes no plans to put units back.
                removal.count()
                units = self.list_units(candidate)
                going = BudgetReprieve(removal, units, self._allowances.limits, self._search_limit).select()
                if going is not None:
                    found.append(replace(candidate, first_victims=tuple(going)))
                    worked += 1
        return found

    def list_exceeded(self, placement: Placement) -> Collection[str]:
        """Return the phrases for users why not all pods removed from a domain may be evicted; empty if they may."""
        return self._simulated[placement.domain].exceeded

    @property
    def max_fitting(self) -> int:
        """The most members of the preemptor that fit in one domain after the removals so far; 0 if there is no domain.

        Domains that other gangs use exclusively are left out.
        """
        return max((simulated.room for simulated in self._simulated.values() if not simulated.holders), default=0)

    def is_counted(self, placement: Placement) -> bool:
        """Return whether counting is enough to know that the preemptor's quorum fits, so that no plan has to be made.

        That is so for a gang that is no tree, whose members have one shape and no rules such as anti-affinity. Also,
        kube-scheduler must not have rejected a member on a node of the domain ``placement``.
        """
        if self._ask.parts or len(self._kinds) > 1 or self._has_rules:
            return False
        names = self._removal.nodes if placement.names is None else placement.names
        return not any(name in names for name in self._excluded)

    def _plan_fits(self, simulated: _SimulatedDomain, growth: float) -> bool:
        if simulated.planned:
            return True
        if not self._has_rules and (simulated.room <= simulated.tried or simulated.room < simulated.tried * growth):
            return False
        if not self._is_promising(simulated.placement.domain):
            return False
        simulated.tried = simulated.room
        capacity = self._capacity if simulated.placement.names is None else None
        removal = self._remove_locally(simulated) if capacity is None and self._has_rules else self._removal
        shown = replace(removal.snapshot(), nodes=self.find_nodes(simulated.placement))
        simulated.planned = isinstance(plan_group(shown, self.pin(simulated.placement), capacity), Plan)
        return simulated.planned

    def _remove_locally(self, simulated: _SimulatedDomain) -> Removal:
        """Return a simulation in which those of the removed units are removed that have pods in this domain.

        Units that were removed elsewhere are back in it: they will not be evicted for this domain, but may affect rules
        such as anti-affinity.
        """
        removal = Removal(self._snapshot)
        removal.remove(unit for unit in self._removed if simulated.placement.domain in self.find_domains(unit))
        return removal

    def _is_promising(self, domain: Domain) -> bool:
        """Return whether the preemptor may fit in a domain, by counts of the members of each shape.

        Each shape is counted as if there were no other. If fewer members than the quorum fit even so, return False.
        """
        spare = len(self._ask.members) - self._need
        for kind, table in self._tables:
            self._capacity.refresh(table, self._limit)
            spare -= max(0, len(kind.members) - self._room(table, domain))
            if spare < 0:
                return False
        return True

    def explain(self) -> Verdict:
        """Return the planner's verdict why the preemptor does not fit, even after the removals.

        If it would fit, for instance because only budgets prevent the evictions, return a verdict of no capacity.
        """
        shown = self._removal.snapshot()
        held = {simulated.placement.name for simulated in self._simulated.values() if simulated.holders}
        ask = replace(self._ask, taken=self._ask.taken | held)
        answer = plan_group(shown, ask, self._capacity)
        return answer if isinstance(answer, Verdict) else Verdict(Reason.NO_CAPACITY, need=self._need)

    # --- one domain ------------------------------------------------------------------------------------------------

    def simulate_domain(self, placement: Placement, units: int) -> CountedRemoval:
        """Return a new simulation of one domain from which nothing is removed yet, to choose victims in it.

        If counting members does not decide whether the quorum fits, plans are made in the simulation. All of these
        together may take ``units`` of work: each examined node, pod or class of members is one unit (`Limit.spent`).
        """
        removal = Removal(replace(self._snapshot, nodes=self.find_nodes(placement)))
        banned = self._simulated[placement.domain].owners
        if self.is_counted(placement):
            return CountedRemoval(removal, self._least.shape, self._need, banned=banned)
        ask = self.pin(placement)
        return PlannedRemoval(removal, self._least.shape, ask, units, banned=banned)

    def find_nodes(self, placement: Placement) -> Mapping[str, Node]:
        """Return the nodes of a domain that the preemptor may use.

        If members have rules such as anti-affinity, return the nodes of all domains, because pods there matter, too.
        """
        nodes = self._removal.nodes
        if placement.names is None or self._has_rules:
            return nodes
        return {name: nodes[name] for name in placement.names if name in nodes}

    def pin(self, placement: Placement) -> PlanRequest:
        """Return the preemptor's request in which only the domain ``placement`` may be used."""
        if self._ask.topology_key is None:
            return self._ask
        return replace(self._ask, pinned=frozenset({placement.domain[len(self._ask.within)]}))


def _reopen_domains(ask: PlanRequest) -> PlanRequest:
    """Return the request in which the gang may also use exclusive domains of other gangs that evictions could free."""
    return replace(ask, taken=ask.taken - ask.freeable)


_MAX_DOMAINS = 16
"""The maximum number of domains in which victims are chosen and compared, if counting tells whether the quorum fits."""

_MAX_DOMAINS_PLANNED = 4
"""The maximum number of domains in which victims are chosen and compared, if plans are needed.

That is so for members of several shapes, for rules such as anti-affinity, and for trees.
"""

_MAX_UNITS = 300_000
"""The maximum work for plans while victims are chosen, in all domains together, in units of `Limit.spent`.

That is a second or two.
"""

_MAX_IMPROVED = 3
"""The number of domains, those with the cheapest victims, in which victims are exchanged for cheaper ones."""


def plan_victims(
    snapshot: Snapshot,
    ask: PlanRequest,
    priority: int,
    units: Iterable[EvictionUnit],
    allowances: Allowances,
    capacity: Capacity | None = None,
) -> Preemption | NoVictims:
    """Return a gang's plan with the cheapest victims that it needs, or why no evictions help.

    ``priority`` is the gang's; only pods with a lower one may be victims. ``units`` are all running pods, grouped by
    what is evicted together, whatever their priority and protection; a pod is in at most one of them. ``allowances``
    says how many pods budgets and gangs can lose. ``capacity`` has counts of earlier plans, i.e. how many pods of a
    shape fit on each node; if it is None, all nodes are counted. The result does not depend on the order of units and
    nodes.

    If all members have one shape, each victim is needed. With several shapes, or with rules such as anti-affinity, that
    holds as far as the planner has checked.

    If the quorum is running (``ask.need`` is 0), the search is for victims that make room for all further members. If
    there are none, it is repeated for fewer and fewer members, down to one. In a tree only two cases are tried: room
    for all further members, or for any number of them.

    Once the time to improve a plan is over (`Limit.content` of the snapshot's limit), the first victims found are
    returned. Other ones might be cheaper, and with several shapes some may not be needed, but plan and victims are
    valid.
    """
    limit = snapshot.limit
    ask = reopen_full(snapshot, ask, capacity)
    # No victims are needed if the gang fits, and none help if it does not lack free resources.
    answer = plan_group(snapshot, ask, capacity)
    if isinstance(answer, Plan):
        return Preemption(answer, (), Cost())
    if Trait.PREEMPTION_USELESS in answer.reason.traits:
        return NoVictims(answer, Blocker.ROOM)
    running = tuple(units)

    def search_with(wish: PlanRequest) -> tuple[_Search, list[CandidateDomain]]:
        search = _Search(SimulatedCluster(snapshot, wish, allowances, capacity), wish, allowances, limit)
        search.classify(running, priority)
        return search, search.find_candidates()

    search, candidates = search_with(ask)
    if not candidates and len(others := _drop_affine_units(running, ask)) < len(running):
        running, first = others, search
        search, candidates = search_with(ask)
        search = search if candidates else first
    if not candidates:
        return search.explain()
    count = 1 if ask.need else len(ask.members)
    while count > 1 and not limit.content:
        larger, found = search_with(_with_quorum(ask, count))
        if found:
            return larger.choose(found)
        count = 1 if ask.parts else larger.choose_next_count(count)
    return search.choose(candidates)


def _drop_affine_units(units: Sequence[EvictionUnit], ask: PlanRequest) -> tuple[EvictionUnit, ...]:
    """Return the units that have no pods to which the members' required pod affinity may refer.

    If only these may be evicted, the pods that members want to be near stay.
    """
    rules = {member.shape.neighbours for member in ask.members}
    mates = {each.beside.matching.amount for each in rules if each is not None and each.beside is not None}
    if not mates:
        return tuple(units)
    asked = ((unit, (name for pod in unit.pods for name, _ in pod.shape.requests)) for unit in units)
    return tuple([unit for unit, names in asked if mates.isdisjoint(names)])


def _with_quorum(ask: PlanRequest, count: int) -> PlanRequest:
    """Return the request in which ``count`` members have to be placed; fewer if the gang has fewer.

    In a tree, ``count`` applies to each of its PodGroups, and all of these have to be placed.
    """
    if not ask.parts:
        return replace(ask, need=min(count, len(ask.members)))
    parts = tuple(_with_quorum(part, count) for part in ask.parts)
    needs = [part.need for part in parts if part.need]
    return replace(ask, parts=parts, need=sum(needs), wanted=len(needs))


@dataclass(frozen=True, slots=True)
class _Choice:
    """One candidate domain with the victims chosen in it and their cost.

    ``removal`` is its simulation without the victims.
    """

    candidate: CandidateDomain
    removal: CountedRemoval
    units: Sequence[EvictionUnit]
    """The units that may be evicted in this domain."""

    victims: list[EvictionUnit]
    cost: Cost

    @property
    def domain(self) -> str:
        return self.candidate.placement.name


class _Search:
    """The search for the victims of one gang.

    Call `classify`, then `find_candidates`, then `choose` with the candidates. Without any, call `explain`.
    """

    def __init__(self, cluster: SimulatedCluster, ask: PlanRequest, allowances: Allowances, limit: Limit) -> None:
        self._cluster = cluster
        self._ask = ask
        self._allowances = allowances
        self._limit = limit
        self._newest = 0
        # Units by priority: those that may be evicted, and those whose priority is too high.
        self._lower: dict[int, list[EvictionUnit]] = {}
        self._higher: dict[int, list[EvictionUnit]] = {}
        self._protected: list[EvictionUnit] = []

    def classify(self, units: Iterable[EvictionUnit], priority: int) -> None:
        """Split the units with pods in usable domains: evictable ones, protected ones, and ones of too high a priority.

        ``priority`` is that of the gang; only units of a lower one are evictable. The result is kept for the methods
        that search and explain.
        """
        self._cluster.count()
        for unit in units:
            self._limit.spend(len(unit.pods))
            self._newest = max(self._newest, *[pod.started or 0 for pod in unit.pods])
            domains = self._cluster.find_domains(unit)
            if unit.holds_domain:
                self._cluster.add_domain_holder(unit)
            if not domains:
                continue
            if unit.priority >= priority:
                self._higher.setdefault(unit.priority, []).append(unit)
            elif unit.protection:
                self._protected.append(unit)
            else:
                self._lower.setdefault(unit.priority, []).append(unit)
                self._cluster.add_evictable(unit, domains)

    def find_candidates(self) -> list[CandidateDomain]:
        """Return the domains that would hold the quorum after evictions, the best first; [] if there is none.

        Units are removed priority by priority from the lowest. Until two domains are found (one if only one is usable),
        the next priority is removed as well, so that costs can be compared. Once the search shall be content
        (`Limit.content`), one domain is enough, and all remaining priorities are removed first.
        """
        found: list[CandidateDomain] = []
        known: set[Domain] = set()
        priorities = sorted(self._lower)
        for priority in priorities:
            changed = self._cluster.remove(priority, self._lower[priority])
            if priority == priorities[-1]:
                rest = sorted(domain for domain in self._cluster.domains if domain not in known)
                more = self._cluster.list_last_candidates(rest, priority)
            elif self._limit.content:
                continue  # one plan is made, after all removals, when it is most likely to succeed
            else:
                fresh = [domain for domain in changed if domain not in known]
                more = self._cluster.list_candidates(fresh, priority)
            known.update(candidate.placement.domain for candidate in more)
            found += more
            if len(found) >= self._count_wanted():
                break
        return found

    def choose_next_count(self, count: int) -> int:
        """Return how many members to try to place next, after ``count`` did not fit even without all evictable pods.

        It is the number that fits in the best domain by free resources, or else half of ``count``. Used if the quorum
        is running, so that any number of further members is welcome.
        """
        max_fitting = self._cluster.max_fitting
        return max_fitting if 0 < max_fitting < count else count // 2

    def _count_wanted(self) -> int:
        return 1 if self._limit.content else min(2, len(self._cluster.domains))

    def choose(self, candidates: Sequence[CandidateDomain]) -> Preemption:
        """Choose victims in the best of these domains.

        Return the plan and victims of the domain with the lowest cost.
        """
        counted = all(self._cluster.is_counted(candidate.placement) for candidate in candidates)
        examined = candidates[: _MAX_DOMAINS if counted else _MAX_DOMAINS_PLANNED]
        choices = []
        for candidate in examined:
            choices.append(self._choose_victims(candidate, _MAX_UNITS // len(examined)))
            if self._limit.content:
                break
        choices.sort(key=lambda choice: (choice.cost, choice.domain))
        for place, choice in enumerate(choices[:_MAX_IMPROVED]):
            if not self._limit.content:
                choices[place] = self._improve(choice)
        choices.sort(key=lambda choice: (choice.cost, choice.domain))
        best = choices[0]
        return Preemption(
            plan=best.removal.plan(self._cluster.pin(best.candidate.placement)),
            victims=tuple(sorted(best.victims, key=_rank)),
            cost=best.cost,
            runner_up=Alternative(choices[1].domain, choices[1].cost) if len(choices) > 1 else None,
            domains_fitting=len(candidates),
            domains_examined=len(choices),
        )

    def _choose_victims(self, candidate: CandidateDomain, work: int) -> _Choice:
        units = self._cluster.list_units(candidate)
        going = units if candidate.first_victims is None else candidate.first_victims
        removal = self._cluster.simulate_domain(candidate.placement, work)
        removal.count()
        removal.remove(going)
        victims = reprieve(removal, going, self._allowances, self._newest)
        cost = measure_cost(victims, self._allowances, self._newest)
        return _Choice(candidate, removal, units, victims, cost)

    def _improve(self, choice: _Choice) -> _Choice:
        work = Exchange(
            choice.removal, choice.units, choice.victims, choice.cost, allowances=self._allowances, newest=self._newest
        )
        work.improve()
        return replace(choice, victims=work.victims, cost=work.cost)

    def explain(self) -> NoVictims:
        """Return why there are no victims: which other pods would have to be evicted, or that nothing helps.

        Must be called after `find_candidates`. It removes more and more pods from the simulation.
        """
        verdict = self._cluster.explain()
        if self._allowances.limits:
            found = self._cluster.find_over_budget(self._cluster.domains, 0)
            if found is not None:
                why = tuple(sorted(self._cluster.list_exceeded(found)))
                return NoVictims(verdict, Blocker.PROTECTION, found.name, protections=why)
        found = self._remove_more(0, self._protected)
        if found is not None:
            here = [unit for unit in self._protected if found.domain in self._cluster.find_domains(unit)]
            phrases = {unit.protection for unit in here} | set(self._cluster.list_exceeded(found))
            count = count_pods(here)
            return NoVictims(
                verdict, Blocker.PROTECTION, found.name, protections=tuple(sorted(phrases)), protected=count
            )
        for priority in sorted(self._higher):
            found = self._remove_more(priority, self._higher[priority])
            if found is not None:
                return NoVictims(verdict, Blocker.PRIORITY, found.name, priority)
        return NoVictims(verdict, Blocker.ROOM)

    def _remove_more(self, priority: int, units: Sequence[EvictionUnit]) -> Placement | None:
        """Remove pods from the simulation that may not be evicted in fact, and return the domain where the quorum fits.

        That shows whether these pods are why the preemptor finds no victims. ``priority`` is that of the units. If the
        quorum then fits in several domains, return the best of them; None if it fits in none.
        """
        changed = self._cluster.remove(priority, units)
        return self._cluster.find_over_budget(changed, priority)


def _rank(unit: EvictionUnit) -> tuple[int, str]:
    return -unit.priority, unit.pods[0].uid
