"""The sets of nodes that may hold a whole gang (`generate_placements`), and the state of one plan (`PlanState`).

A placement is what GeneratePlacements of the native TopologyPlacement returns.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from serried.plan.capacity import Capacity, Census, Domain, LevelKey, MemberClass, find_least, group_classes
from serried.plan.limit import Limit
from serried.plan.request import PlanRequest, Snapshot
from serried.plan.rule import GangRules, read_rules


class StepBudget:
    """A number of steps for one plan, whatever the number of domains. Each step is also charged to ``limit``."""

    def __init__(self, steps: int, limit: Limit | None = None) -> None:
        self.left = steps
        self.limit = limit or Limit()

    def spend(self, steps: int) -> bool:
        """Spend steps. Return whether the budget had enough of them."""
        self.left -= steps
        self.limit.spend(min(steps, max(self.left, 0) + 1))
        return self.left >= 0


ExcludedPair = tuple[str, str]
"""A member UID and the name of a node that the member must not use."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A domain and its nodes."""

    key: LevelKey
    """() for the whole cluster."""

    domain: Domain

    names: Collection[str] | None
    """The names of the nodes; None for the whole cluster."""

    @property
    def name(self) -> str:
        """The values of the labels, for messages; "" for the whole cluster."""
        return "/".join(self.domain)


CLUSTER = Placement((), (), None)


@dataclass(frozen=True, slots=True)
class SearchLevel:
    """A level at which the planner looks for one domain."""

    key: LevelKey

    below: tuple[str, ...]
    """The narrower levels, the widest first."""


def list_search_levels(ask: PlanRequest) -> list[SearchLevel]:
    """Return the levels to try, the narrowest first. The last is the required level.

    Domains of preferred levels are searched inside the required domain, and that inside the domains of the parent
    groups: two racks of one name in two blocks are different domains.
    """
    required = (*(key for key, _ in ask.within), *(() if ask.topology_key is None else (ask.topology_key,)))
    levels = tuple(level for level in ask.levels if level != ask.topology_key)
    steps = [SearchLevel((*required, level), levels[:place][::-1]) for place, level in enumerate(levels)]
    return [*steps, SearchLevel(required, levels[::-1])] if ask.spills or not steps else steps


def generate_placements(census: Census, search_level: SearchLevel, ask: PlanRequest) -> list[Placement]:
    """Return one placement per domain, or the whole cluster without a key. Nodes without the label are in none.

    If the gang is pinned, only its pinned domains are returned, even if a domain has no nodes any more.
    """
    if not search_level.key:
        return [CLUSTER]
    domains = census.domains(search_level.key)
    around = tuple(value for _, value in ask.within)
    depth = len(around)
    if ask.topology_key is None and len(search_level.key) == depth:
        return [Placement(search_level.key, around, domains.get(around, ()))]
    pinned = ask.pinned if ask.topology_key is not None else frozenset[str]()
    if pinned and len(search_level.key) == depth + 1:
        known = [(*around, domain) for domain in sorted(pinned)]
        return [Placement(search_level.key, domain, domains.get(domain, ())) for domain in known]
    return [
        Placement(search_level.key, domain, names)
        for domain, names in domains.items()
        if domain[:depth] == around and _is_allowed(domain, depth, pinned, ask)
    ]


def _is_allowed(domain: Domain, depth: int, pinned: frozenset[str], ask: PlanRequest) -> bool:
    if ask.topology_key is None:
        return True
    return domain[depth] in pinned if pinned else domain[depth] not in ask.taken


_MAX_MIXING_STEPS = 20_000
"""The maximum number of steps of `mixing` for a whole plan: some tens of milliseconds."""

_MAX_NARROWING_STEPS = 5_000
"""The maximum number of steps to improve results of a whole plan (`narrowing`)."""

_UNITS_OF_A_SUM = 50
"""The cost in units of summing up the slots of a class by domain."""


class PlanState:
    """The state of one plan: the classes of its members, the census, the rules, and the budgets for searching."""

    def __init__(self, snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None = None) -> None:
        uids = {member.uid for member in ask.members}
        self.classes = group_classes(ask.members)
        self.census = Census(snapshot, ask, capacity)
        self.ask = ask
        self.limit = snapshot.limit
        self.budget = StepBudget(_MAX_MIXING_STEPS, self.limit)
        self.spare_budget = StepBudget(_MAX_NARROWING_STEPS, self.limit)
        self.packings: dict[tuple[SearchLevel, Domain], Mapping[str, str]] = {}
        """The node name by member UID, for each placement that was packed.

        So `assign` uses what was measured, even if a used-up budget would not find it again.
        """

        self._barred = frozenset(pair for pair in ask.excluded if pair[0] in uids and pair[1] in snapshot.nodes)
        self._barred_nodes = frozenset(name for _, name in self._barred)
        self._totals: dict[LevelKey, list[Mapping[Domain, int]]] = {}
        self.rules: GangRules | None = None
        """The rules that concern the members; None if there are none."""

        self._snapshot = snapshot
        self._least: MemberClass | None = None
        self._most: dict[LevelKey, Mapping[Domain, int]] = {}

    def find_excluded(self, placement: Placement) -> frozenset[ExcludedPair]:
        """Return the excluded pairs, or an empty set if none of them concerns this placement."""
        names = placement.names
        if not self._barred_nodes or not (names is None or any(name in names for name in self._barred_nodes)):
            return frozenset()
        return self._barred

    def count(self) -> None:
        """Create the rules and count the slots of all classes."""
        self.rules = rules = read_rules(self._snapshot, self.classes)
        if rules is not None:
            for kind in self.classes:
                self.census.close(kind, rules.list_closed(kind))
        for kind in self.classes:
            self.census.count(kind)

    @property
    def couples(self) -> bool:
        """True if members affect each other (`GangRules.couples`), so that slots are only an upper bound."""
        return self.rules is not None and self.rules.couples

    def sum_by_domain(self, search_level: SearchLevel) -> None:
        """Compute the slots of a step's placements and of the wider domains around them."""
        for key in {search_level.key, *self._wider(search_level)}:
            if key and key not in self._totals:
                self._totals[key] = [self._sum(kind, key) for kind in self.classes]

    def _sum(self, kind: MemberClass, key: LevelKey) -> Mapping[Domain, int]:
        self.limit.spend(_UNITS_OF_A_SUM)
        return self.census.totals(kind, key)

    def totals(self, placement: Placement) -> list[int]:
        """Return the slots of each class as if the other classes had no members."""
        if not placement.key:
            return [self.census.total(kind) for kind in self.classes]
        found = self._totals.get(placement.key)
        if found is None:
            found = self._totals[placement.key] = [self.census.totals(kind, placement.key) for kind in self.classes]
        return [sums.get(placement.domain, 0) for sums in found]

    def may_hold(self, placement: Placement) -> bool:
        """Return False if the quorum cannot fit, as even the least demanding class would not. True proves nothing."""
        if len(self.classes) == 1:
            return True
        if self._least is None:
            least = find_least(self.classes)
            self.census.count(least)
            self._least = least
        if not placement.key:
            return self.census.total(self._least) >= max(self.ask.need, 1)
        if placement.key not in self._most:
            self._most[placement.key] = self.census.totals(self._least, placement.key)
        return self._most[placement.key].get(placement.domain, 0) >= max(self.ask.need, 1)

    def count_empty(self, key: LevelKey) -> Mapping[Domain, int] | None:
        """Return an upper bound of the members in each domain of an empty cluster; None if it is unknown.

        With several shapes it is counted for the minimum of their requests.
        """
        kind = self.classes[0] if len(self.classes) == 1 else find_least(self.classes)
        return self.census.count_empty(kind, key)

    def around(self, placement: Placement, search_level: SearchLevel) -> tuple[int, ...]:
        """Return the slots in the wider domains of the gang's levels, the narrowest first."""
        if placement.names is None:
            return ()
        node = next(iter(placement.names), None)
        around = (
            [(key, self.census.domain_of(key, node)) for key in self._wider(search_level)] if node is not None else []
        )
        return tuple(sum(self.totals(Placement(key, domain, ()))) for key, domain in around if domain is not None)

    def _wider(self, search_level: SearchLevel) -> list[LevelKey]:
        """Return the keys of the wider domains of the gang's levels, the narrowest first."""
        narrower = {*search_level.below, *search_level.key[-1:]}
        wider = [level for level in self.ask.levels if level not in narrower and level != self.ask.topology_key]
        keys = (
            [(*search_level.key[:-1], level) for level in wider]
            if len(search_level.key) > 1
            else [(level,) for level in wider]
        )
        return keys + ([search_level.key[:-1]] if len(search_level.key) > 1 else [])
