"""The sets of nodes that may hold a whole gang (`generate_placements`), and the state of one plan (`PlanState`).

A `Placement` is a domain with its nodes, as GeneratePlacements of the native TopologyPlacement plugin returns it.
`serried.plan.gang` compares the placements of a gang, and `serried.plan.packing` assigns nodes in one of them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from serried.plan.capacity import Capacity, Census, Domain, LabelKeys, MemberClass, group_classes, make_least_class
from serried.plan.limit import Limit
from serried.plan.request import PlanRequest, Snapshot
from serried.plan.rule import GangRules, read_rules


class StepBudget:
    """A number of search steps that one plan may use in all domains together.

    A step is about one combination that a search looks at, for instance members of several shapes on one node. Steps
    are also reported to ``limit``, which ends the whole plan with an exception when its time is over.
    """

    def __init__(self, steps: int, limit: Limit | None = None) -> None:
        self.left = steps
        self.limit = limit or Limit()

    def spend(self, steps: int) -> bool:
        """Use steps. Return False if the budget is exceeded, so that the caller stops searching.

        Raises TooLong if the time of the whole plan is over (``limit``).
        """
        self.left -= steps
        self.limit.spend(min(steps, max(self.left, 0) + 1))
        return self.left >= 0


ExcludedPair = tuple[str, str]
"""A member's UID, and the name of a node that this member must not use because kube-scheduler has rejected the pair."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A domain that may hold the whole gang, and its nodes."""

    key: LabelKeys
    """The label keys that define the domain, the widest first; () if the domain is the whole cluster."""

    domain: Domain

    names: Collection[str] | None
    """The names of the domain's nodes; None for all nodes of the cluster."""

    @property
    def name(self) -> str:
        """The values of the domain's labels, for messages, such as ``block-1/rack-7``; "" for the whole cluster."""
        return "/".join(self.domain)


CLUSTER = Placement((), (), None)


@dataclass(frozen=True, slots=True)
class SearchLevel:
    """A topology level at which the planner looks for one domain that holds the whole gang.

    The planner tries a gang's levels one after another, see `list_search_levels`.
    """

    key: LabelKeys
    """The label keys whose values a domain shares, the widest first; () to take the whole cluster as one domain."""

    below: tuple[str, ...]
    """The label keys of the gang's narrower preferred levels, the widest first.

    Members use as few of their domains as possible.
    """


def list_search_levels(ask: PlanRequest) -> list[SearchLevel]:
    """Return the levels at which to look for a domain, in the order to try: the narrowest preferred level first.

    The last one is the level that the gang requires, () for the whole cluster. It is left out if the gang has preferred
    levels and may not exceed them yet (``ask.spills`` is False). The label keys of a search level include those of the
    required level and of the CompositePodGroups above, because two racks of one name in two blocks are different
    domains.
    """
    required = (*(key for key, _ in ask.within), *(() if ask.topology_key is None else (ask.topology_key,)))
    levels = tuple(level for level in ask.levels if level != ask.topology_key)
    steps = [SearchLevel((*required, level), levels[:place][::-1]) for place, level in enumerate(levels)]
    return [*steps, SearchLevel(required, levels[::-1])] if ask.spills or not steps else steps


def generate_placements(census: Census, search_level: SearchLevel, ask: PlanRequest) -> list[Placement]:
    """Return one placement for each domain of the search level that the gang may use.

    If the search level has no label key, return one placement: the whole cluster. Nodes without one of the labels are
    in no domain. Domains outside of those in which the CompositePodGroups above are placed are left out, and so are
    domains that other gangs use exclusively. ``census`` knows the domains and their nodes. If running members fix the
    domains of the required level (``ask.pinned``), only these are returned, even if one has no nodes any more. At a
    narrower level, only the domains inside them are returned then. Without ``ask.topology_key``, neither pinned nor
    exclusive domains matter.
    """
    if not search_level.key:
        return [CLUSTER]
    domains = census.domains(search_level.key)
    parents = tuple(value for _, value in ask.within)
    depth = len(parents)
    if ask.topology_key is None and len(search_level.key) == depth:
        return [Placement(search_level.key, parents, domains.get(parents, ()))]
    pinned = ask.pinned if ask.topology_key is not None else frozenset[str]()
    if pinned and len(search_level.key) == depth + 1:
        known = [(*parents, domain) for domain in sorted(pinned)]
        return [Placement(search_level.key, domain, domains.get(domain, ())) for domain in known]
    return [
        Placement(search_level.key, domain, names)
        for domain, names in domains.items()
        if domain[:depth] == parents and _is_allowed(domain, depth, pinned, ask)
    ]


def _is_allowed(domain: Domain, depth: int, pinned: frozenset[str], ask: PlanRequest) -> bool:
    if ask.topology_key is None:
        return True
    return domain[depth] in pinned if pinned else domain[depth] not in ask.taken


_MAX_MIXING_STEPS = 20_000
"""The maximum number of steps of `packing.mix` in one plan: some tens of milliseconds."""

_MAX_NARROWING_STEPS = 5_000
"""The maximum number of search steps in one plan to improve placements that hold the gang, e.g. to use fewer racks."""

_UNITS_OF_A_SUM = 50
"""The work, in units of `Limit.spent`, of adding up by domain how many members of one shape fit."""


class PlanState:
    """The state of the planner while it plans one gang. It lives as long as the call of `plan_gang`.

    Members of equal shape form a class (`MemberClass`, the elements of ``classes``). ``census`` knows how many members
    of a class fit on each node. ``budget`` limits the search steps for a plan, ``improving_budget`` those for a better
    one. Call `count` before anything else.
    """

    def __init__(self, snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None = None) -> None:
        uids = {member.uid for member in ask.members}
        self.classes = group_classes(ask.members)
        self.census = Census(snapshot, ask, capacity)
        self.ask = ask
        self.limit = snapshot.limit
        self.budget = StepBudget(_MAX_MIXING_STEPS, self.limit)
        self.improving_budget = StepBudget(_MAX_NARROWING_STEPS, self.limit)
        self.packings: dict[tuple[SearchLevel, Domain], Mapping[str, str]] = {}
        """The node name by member UID for each placement (search level and domain) for which `packing.pack` was called.

        They are kept because a second call would find less if the budget is used up in the meantime.
        """

        self._barred = frozenset(pair for pair in ask.excluded if pair[0] in uids and pair[1] in snapshot.nodes)
        self._barred_nodes = frozenset(name for _, name in self._barred)
        self._totals: dict[LabelKeys, list[Mapping[Domain, int]]] = {}
        self.rules: GangRules | None = None
        """The rules between pods that concern the members, such as anti-affinity.

        None if there are none, or before `count`.
        """

        self._snapshot = snapshot
        self._least: MemberClass | None = None
        self._most: dict[LabelKeys, Mapping[Domain, int]] = {}

    def find_excluded(self, placement: Placement) -> frozenset[ExcludedPair]:
        """Return the (member, node) pairs that kube-scheduler has rejected.

        If ``placement`` has none of these nodes, return an empty set. If it has any, all pairs are returned, also those
        with nodes of other domains.
        """
        names = placement.names
        if not self._barred_nodes or not (names is None or any(name in names for name in self._barred_nodes)):
            return frozenset()
        return self._barred

    def count(self) -> None:
        """Create the members' rules, and count how many members of each shape fit on each node."""
        self.rules = rules = read_rules(self._snapshot, self.classes)
        if rules is not None:
            for kind in self.classes:
                self.census.close(kind, rules.list_closed(kind))
        for kind in self.classes:
            self.census.count(kind)

    @property
    def couples(self) -> bool:
        """True if where one member runs affects where others may run, e.g. by anti-affinity.

        Then counts are upper bounds only.
        """
        return self.rules is not None and self.rules.couples

    def sum_by_domain(self, search_level: SearchLevel) -> None:
        """Prepare `totals` and `count_around`: add up how many members fit in each domain of a search level.

        The same is done for the wider domains around them. If this was not called, `totals` and `count_around` do it
        themselves, one level at a time.
        """
        for key in {search_level.key, *self._list_wider_keys(search_level)}:
            if key and key not in self._totals:
                self._totals[key] = [self._sum(kind, key) for kind in self.classes]

    def _sum(self, kind: MemberClass, key: LabelKeys) -> Mapping[Domain, int]:
        self.limit.spend(_UNITS_OF_A_SUM)
        return self.census.totals(kind, key)

    def totals(self, placement: Placement) -> list[int]:
        """Return for each class of equal members how many fit in the placement if no others were placed there."""
        if not placement.key:
            return [self.census.total(kind) for kind in self.classes]
        found = self._totals.get(placement.key)
        if found is None:
            found = self._totals[placement.key] = [self.census.totals(kind, placement.key) for kind in self.classes]
        return [sums.get(placement.domain, 0) for sums in found]

    def may_hold(self, placement: Placement) -> bool:
        """Return False if the quorum cannot fit into the placement. True does not mean that it fits.

        For members of several shapes it is checked whether a quorum of fictitious members would fit that each request
        only the least that any real member requests of each resource. For members of one shape it is always True.
        """
        if len(self.classes) == 1:
            return True
        if self._least is None:
            least = make_least_class(self.classes)
            self.census.count(least)
            self._least = least
        if not placement.key:
            return self.census.total(self._least) >= max(self.ask.need, 1)
        if placement.key not in self._most:
            self._most[placement.key] = self.census.totals(self._least, placement.key)
        return self._most[placement.key].get(placement.domain, 0) >= max(self.ask.need, 1)

    def count_empty(self, key: LabelKeys) -> Mapping[Domain, int] | None:
        """Return how many members at most would fit in each domain of ``key`` if no pods ran in the cluster.

        Return None if that is unknown. If members have several shapes, the smallest request of each resource is used.
        """
        kind = self.classes[0] if len(self.classes) == 1 else make_least_class(self.classes)
        return self.census.count_empty(kind, key)

    def count_around(self, placement: Placement, search_level: SearchLevel) -> tuple[int, ...]:
        """Return how many members fit in each wider domain that contains the placement, the narrowest domain first.

        The wider domains are those of the wider levels that the gang or a CompositePodGroup above it names. Return ()
        if there are none, for the whole cluster, and for a placement without nodes.
        """
        if placement.names is None:
            return ()
        node = next(iter(placement.names), None)
        around = (
            [(key, self.census.domain_of(key, node)) for key in self._list_wider_keys(search_level)]
            if node is not None
            else []
        )
        return tuple(sum(self.totals(Placement(key, domain, ()))) for key, domain in around if domain is not None)

    def _list_wider_keys(self, search_level: SearchLevel) -> list[LabelKeys]:
        """Return the label keys of the gang's levels that are wider than this one, the narrowest first."""
        narrower = {*search_level.below, *search_level.key[-1:]}
        wider = [level for level in self.ask.levels if level not in narrower and level != self.ask.topology_key]
        keys = (
            [(*search_level.key[:-1], level) for level in wider]
            if len(search_level.key) > 1
            else [(level,) for level in wider]
        )
        return keys + ([search_level.key[:-1]] if len(search_level.key) > 1 else [])
