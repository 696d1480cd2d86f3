"""Which domains would hold a gang if pods were evicted, and up to which priority.

The units go in the order of their priority, as the endings of a forecast in the order of time. From the priority on at
which a domain holds the quorum it is a prospect: with units of lower priorities alone it never is.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from serried.model.node import Node
from serried.model.plan import Plan, PlanRequest, Snapshot
from serried.model.pod import Pod
from serried.model.verdict import Reason, Verdict
from serried.model.victim import Allowances, Budget, Unit, describe_limit
from serried.plan.allotment import Allotment, Patience
from serried.plan.capacity import Capacity, Domain, Fork, Table
from serried.plan.classes import Census, MemberClass, find_least, group_classes
from serried.plan.clearing import Clearing, PlanClearing, SlotClearing
from serried.plan.steps import Haste, Work, sort_in_steps
from serried.plan.topology import Placement, generate_placements, list_steps
from serried.plan.tree import solve_group

_GROWTH = 1.1
"""By which factor the slots of a domain must have grown since a vain plan before the next one is tried there.

When all has gone that may go, the last plan of a domain waits for nothing.
"""

_MAX_PLANNED = 4
"""How many prospects are looked for where each of them takes a plan."""

_MAX_ALLOTTED = 16
"""How many prospects of one priority are looked for where budgets do not let go all that may."""

_UNITS_PER_STEP = 250


class Shortage(NamedTuple):
    """How much a domain depends on evictions of one priority."""

    priority: int

    harmful: int
    """For how many members of the quorum gangs have to break, or more go of this domain than budgets allow."""

    members: int
    """For how many members of the quorum pods of this priority have to go."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """A domain that would hold the quorum."""

    placement: Placement

    priority: int
    """Up to which priority units have to go; never lower than that."""

    shortages: tuple[Shortage, ...]
    """The highest priority first. An estimate of what the domain costs: the smaller, the more promising."""

    allotted: tuple[Unit, ...] | None = None
    """What goes at first where budgets do not let go all that may; None where they do."""

    @property
    def promise(self) -> tuple[int, tuple[Shortage, ...], Domain]:
        """The smallest is the most promising."""
        return self.priority, self.shortages, self.placement.domain


@dataclass(slots=True)
class _Plot:
    """A domain while units go."""

    placement: Placement

    room: int = 0
    """Its slots for the quorum as they were counted last."""

    tried: int = -1
    """Its slots at the last plan in vain."""

    planned: bool = False
    """Whether a plan would hold if budgets did not bind."""

    taken: dict[Budget, int] = field(default_factory=dict)
    """How many pods have gone of each budget."""

    exceeded: set[str] = field(default_factory=set)
    """Why not all of it can be a set of victims, phrases: more have gone than budgets allow that bind."""

    shortages: list[Shortage] = field(default_factory=list)
    """The lowest priority first."""

    units: list[Unit] = field(default_factory=list)
    """What may be evicted there."""

    owners: set[Unit] = field(default_factory=set)
    """The units that have it for themselves."""

    holders: set[Unit] = field(default_factory=set)
    """Those of them that have not gone: as long as there is any, the gang may not go there."""


class Survey:
    """The cluster while units go, and what that does for a gang in each domain that it may use."""

    def __init__(
        self, snapshot: Snapshot, ask: PlanRequest, allowances: Allowances, capacity: Capacity | None, haste: Haste
    ) -> None:
        self._all_nodes = snapshot.nodes
        self._step = list_steps(ask)[-1]
        self._ask = _open(ask) if self._is_required(ask) else ask
        self._allowances = allowances
        self._haste = haste
        self._patience = Patience()
        self._need = max(ask.need, 1)
        nodes = snapshot.nodes
        if ask.closed:
            nodes = {name: node for name, node in nodes.items() if name not in ask.closed}
        self._base = snapshot.used
        self._clearing = Clearing(nodes, snapshot.used)
        origin = capacity if capacity is not None else Capacity(snapshot.nodes, snapshot.used)
        self._capacity = Fork(origin, nodes, self._clearing.used, {*snapshot.over, *ask.closed})
        self._homes: Mapping[str, Domain] = self._capacity.homes(self._step.key) if self._step.key else {}
        self._kinds = group_classes(ask.members)
        self._least = self._kinds[0] if len(self._kinds) == 1 else find_least(self._kinds)
        self._tables: list[tuple[MemberClass, Table]] = []
        self._plots: dict[Domain, _Plot] = {}
        self._excluded = frozenset(name for _, name in ask.excluded)

    # --- the cluster as it is --------------------------------------------------------------------------------------

    def count(self) -> Work[None]:
        """Count the slots of each domain as they are now."""
        self._table = yield from self._capacity.count(self._least.shape)
        for kind in self._kinds if len(self._kinds) > 1 else ():
            self._tables.append((kind, (yield from self._capacity.count(kind.shape))))
        census = Census(Snapshot(self._clearing.nodes, self._clearing.used), self._ask, self._capacity)
        for placement in generate_placements(census, self._step, self._ask):
            self._plots[placement.domain] = _Plot(placement)
        yield from self._measure(self._plots)

    @property
    def domains(self) -> Collection[Domain]:
        """The domains that the gang may use."""
        return self._plots.keys()

    def find_homes(self, unit: Unit) -> Iterable[Domain]:
        """The domains of the gang in which a unit has pods, each once."""
        if len(unit.pods) == 1:
            domain = self._home(unit.pods[0].node)
            return () if domain is None else (domain,)
        found = dict.fromkeys(self._home(pod.node) for pod in unit.pods)
        return [domain for domain in found if domain is not None]

    def note_holder(self, unit: Unit) -> None:
        """Note what a unit has for itself."""
        for pod in unit.pods:
            plot = self._find_held(pod)
            if plot is not None:
                plot.owners.add(unit)
                plot.holders.add(unit)

    def _find_held(self, pod: Pod) -> _Plot | None:
        node = self._all_nodes.get(pod.node)
        label = node.labels.get(self._step.key[-1]) if node is not None and self._step.key else None
        return self._plots.get((label,)) if label is not None else None

    @staticmethod
    def _is_required(ask: PlanRequest) -> bool:
        """Whether domains are looked for by the required key alone, by which others have some for themselves."""
        return ask.topology_key is not None and list_steps(ask)[-1].key == (ask.topology_key,)

    def assign(self, unit: Unit, homes: Iterable[Domain]) -> None:
        """Note where a unit is that may be evicted."""
        for domain in homes:
            self._plots[domain].units.append(unit)

    def list_units(self, prospect: Prospect) -> Work[list[Unit]]:
        """What goes from a prospect at first."""
        found: list[Unit] = []
        rest = iter(self._plots[prospect.placement.domain].units)
        while batch := list(islice(rest, _UNITS_PER_STEP)):
            found += [unit for unit in batch if unit.priority <= prospect.priority]
            yield
        return found

    def _home(self, name: str) -> Domain | None:
        if name not in self._clearing.nodes:
            return None
        domain = self._homes.get(name) if self._step.key else ()
        return domain if domain in self._plots else None

    # --- units that go ---------------------------------------------------------------------------------------------

    def remove(self, priority: int, units: Sequence[Unit]) -> Work[list[Domain]]:
        """Take all units of one priority, harmless ones first; the domains that they were in, in name order."""
        harmless: list[Unit] = []
        harmful: list[Unit] = []
        guarded: list[Unit] = []
        for place, unit in enumerate(units, 1):
            kind = guarded if unit.budgets else harmful if self._breaks(unit) else harmless
            kind.append(unit)
            if place % _UNITS_PER_STEP == 0:
                yield
        # What budgets allow goes to some nodes: of two sets that cost the same, that on fewer nodes helps more.
        guarded = yield from sort_in_steps(guarded, lambda unit: (unit.pods[0].node, unit.pods[0].uid))
        for place, unit in enumerate(guarded, 1):
            (harmful if self._violates(unit) or self._breaks(unit) else harmless).append(unit)
            if place % _UNITS_PER_STEP == 0:
                yield
        changed: dict[Domain, int] = {}
        freed = yield from self._free(units)
        yield from self._take(harmless, changed)
        middle = {domain: self._plots[domain].room for domain in changed}
        yield from self._take(harmful, changed)
        for domain, before in changed.items():
            held = freed.get(domain, 0)
            if before < self._need or held:
                after = middle.get(domain, before)
                short = Shortage(priority, max(0, self._need - after), max(self._need - before, held))
                self._plots[domain].shortages.append(short)
        return sorted(changed)

    def _free(self, units: Iterable[Unit]) -> Work[dict[Domain, int]]:
        """Units hold their domains no more; how many pods of theirs were in each."""
        freed: dict[Domain, int] = {}
        for place, unit in enumerate(units, 1):
            for pod in unit.pods if unit.holds_domain and not self._is_kept(unit) else ():
                plot = self._find_held(pod)
                if plot is not None:
                    plot.holders.discard(unit)
                    domain = plot.placement.domain
                    freed[domain] = freed.get(domain, 0) + 1
            if place % _UNITS_PER_STEP == 0:
                yield
        return freed

    def _is_kept(self, unit: Unit) -> bool:
        """Whether a pod of a unit is on a node that is closed to the gang: nobody goes from there."""
        return any(pod.node in self._ask.closed for pod in unit.pods)

    def _take(self, units: Iterable[Unit], changed: dict[Domain, int]) -> Work[None]:
        """Take units; ``changed`` gets the domains, with their slots before the first of them went."""
        touched: dict[Domain, None] = {}
        rest = iter(units)
        while batch := list(islice(rest, _UNITS_PER_STEP)):
            for name in self._clearing.take(batch):
                self._capacity.note_used(name)
                domain = self._home(name)
                if domain is not None:
                    touched[domain] = None
            yield
        for domain in touched:
            changed.setdefault(domain, self._plots[domain].room)
        yield from self._measure(touched)

    def _measure(self, domains: Iterable[Domain]) -> Work[None]:
        yield from self._capacity.refresh(self._table)
        for domain in domains:
            self._plots[domain].room = self._room(self._table, domain)
        yield

    def _room(self, table: Table, domain: Domain) -> int:
        if not self._step.key:
            return table.total
        return table.sum_by(self._step.key, self._homes).get(domain, 0)

    def _violates(self, unit: Unit) -> bool:
        """Whether more go with a unit from one of its domains than a budget allows."""
        violated = False
        for domain in self.find_homes(unit):
            plot = self._plots[domain]
            for budget in unit.budgets:
                plot.taken[budget] = count = plot.taken.get(budget, 0) + 1
                violated = violated or count > self._allowances.budgets.get(budget, count)
                if count > self._allowances.limits.get(budget, count):
                    plot.exceeded.add(describe_limit(budget))
        return violated

    def _breaks(self, unit: Unit) -> bool:
        spare = self._allowances.gangs.get(unit.gang) if unit.gang is not None else None
        return spare is not None and len(unit.pods) > spare.count

    # --- prospects -------------------------------------------------------------------------------------------------

    def list_prospects(self, domains: Iterable[Domain], priority: int) -> Work[list[Prospect]]:
        """Those of these domains that hold the quorum now, the most promising first.

        Where it takes plans to know, a few are enough, and those with most slots are asked first.
        """
        return (yield from self._list(domains, priority, _GROWTH))

    def list_last_prospects(self, domains: Iterable[Domain], priority: int) -> Work[list[Prospect]]:
        """As ``list_prospects`` when nothing more will go."""
        return (yield from self._list(domains, priority, 1.0))

    def _list(self, domains: Iterable[Domain], priority: int, growth: float) -> Work[list[Prospect]]:
        counted: list[Prospect] = []
        planned: list[Prospect] = []
        for plot in sorted((self._plots[domain] for domain in domains), key=lambda plot: -plot.room):
            if plot.holders or plot.room < self._need:
                continue
            prospect = Prospect(plot.placement, priority, tuple(reversed(plot.shortages)))
            if self.is_counted(plot.placement):
                counted.append(prospect)
            elif len(planned) < (1 if self._haste.made else _MAX_PLANNED) and (yield from self._try(plot, growth)):
                planned += yield from self._allot([prospect])
        counted.sort(key=lambda prospect: prospect.promise)
        counted = yield from self._allot(counted)
        return sorted([*planned, *counted], key=lambda prospect: prospect.promise)

    def find_exceeding(self, domains: Iterable[Domain], priority: int) -> Work[Placement | None]:
        """The most promising of these domains that would hold the quorum if all that has gone might go at once."""
        found: list[Prospect] = []
        for plot in sorted((self._plots[domain] for domain in domains), key=lambda plot: -plot.room):
            if not plot.holders and plot.room >= self._need:
                wanted = len(found) < (1 if self._haste.made else _MAX_PLANNED)
                if self.is_counted(plot.placement) or (wanted and (yield from self._try(plot, 1.0))):
                    found.append(Prospect(plot.placement, priority, tuple(reversed(plot.shortages))))
        return min(found, key=lambda prospect: prospect.promise).placement if found else None

    def _allot(self, prospects: Iterable[Prospect]) -> Work[list[Prospect]]:
        """Those of these domains in which budgets let go as much as it takes; the first of them, where that is work."""
        found: list[Prospect] = []
        worked = 0
        for prospect in prospects:
            if not self.list_exceeded(prospect.placement):
                found.append(prospect)
            elif worked < (1 if self._haste.made else _MAX_ALLOTTED):
                clearing = self.clear(prospect.placement, 0)  # nobody comes back there for a plan's sake
                yield from clearing.count()
                units = yield from self.list_units(prospect)
                going = yield from Allotment(clearing, units, self._allowances.limits, self._patience).run()
                if going is not None:
                    found.append(replace(prospect, allotted=tuple(going)))
                    worked += 1
        return found

    def list_exceeded(self, placement: Placement) -> Collection[str]:
        """Why not all may go that has gone from a domain, phrases: that is more than budgets allow that bind."""
        return self._plots[placement.domain].exceeded

    @property
    def most(self) -> int:
        """For how many members there is room by now in one domain, at the most."""
        return max((plot.room for plot in self._plots.values() if not plot.holders), default=0)

    def is_counted(self, placement: Placement) -> bool:
        """Whether counting slots is enough to know if the quorum fits: members of one shape, no node excluded."""
        if self._ask.parts or len(self._kinds) > 1:
            return False
        names = self._clearing.nodes if placement.names is None else placement.names
        return not any(name in names for name in self._excluded)

    def _try(self, plot: _Plot, growth: float) -> Work[bool]:
        if plot.planned:
            return True
        if plot.room <= plot.tried or plot.room < plot.tried * growth:
            return False
        if not (yield from self._is_promising(plot.placement.domain)):
            return False
        plot.tried = plot.room
        capacity = self._capacity if plot.placement.names is None else None
        shown = Snapshot(self.find_nodes(plot.placement), self._clearing.used)
        plot.planned = isinstance((yield from solve_group(shown, self.confine(plot.placement), capacity)), Plan)
        return plot.planned

    def _is_promising(self, domain: Domain) -> Work[bool]:
        """Whether each class as if it were alone would do."""
        spare = len(self._ask.members) - self._need
        for kind, table in self._tables:
            yield from self._capacity.refresh(table)
            yield
            spare -= max(0, len(kind.members) - self._room(table, domain))
            if spare < 0:
                return False
        return True

    def explain(self) -> Work[Verdict]:
        """Why the gang does not fit now."""
        shown = Snapshot(self._clearing.nodes, self._clearing.used)
        held = {plot.placement.name for plot in self._plots.values() if plot.holders}
        ask = replace(self._ask, taken=self._ask.taken | held)
        answer = yield from solve_group(shown, ask, self._capacity)
        return answer if isinstance(answer, Verdict) else Verdict(Reason.NO_CAPACITY, need=self._need)

    # --- one domain ------------------------------------------------------------------------------------------------

    def clear(self, placement: Placement, steps: int) -> SlotClearing:
        """A domain as it is before anything has gone; plans there may take so many steps."""
        clearing = Clearing(self.find_nodes(placement), self._base)
        banned = self._plots[placement.domain].owners
        if self.is_counted(placement):
            return SlotClearing(clearing, self._least.shape, self._need, banned=banned)
        ask = self.confine(placement)
        return PlanClearing(clearing, self._least.shape, ask, steps, haste=self._haste, banned=banned)

    def find_nodes(self, placement: Placement) -> Mapping[str, Node]:
        """The nodes of a domain that are open to the gang."""
        nodes = self._clearing.nodes
        if placement.names is None:
            return nodes
        return {name: nodes[name] for name in placement.names if name in nodes}

    def confine(self, placement: Placement) -> PlanRequest:
        """The gang's request, to be met in one domain."""
        if self._ask.topology_key is None:
            return self._ask
        return replace(self._ask, pinned=frozenset({placement.domain[len(self._ask.within)]}))


def _open(ask: PlanRequest) -> PlanRequest:
    """The same where no domain is others' that evictions would open."""
    return replace(ask, taken=ask.taken - ask.openable)
