"""Who has to go so that a gang fits, the whole quorum in one domain, with the least damage.

First the domains are found that would hold the quorum at the lowest priority (`survey`): units go in the order of their
priority, as the endings of a forecast in the order of time. In the most promising of them, all units up to that
priority go, or as many as budgets allow that bind (`budget_reprieve`), and as many as possible come back (`reprieve`).
The domain with the least cost is taken (`plan.eviction.Cost`). Where nothing helps nobody goes.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from serried.api.node import Node
from serried.api.pod import Pod
from serried.api.verdict import Mark, Reason, Verdict
from serried.plan.budget_reprieve import BudgetReprieve, Exchange, StepLimit
from serried.plan.capacity import Capacity, Census, Domain, Fork, MemberClass, Table, find_least, group_classes
from serried.plan.eviction import (
    Allowances,
    Alternative,
    Blocker,
    Budget,
    Cost,
    NoVictims,
    Preemption,
    Unit,
    count_pods,
    describe_limit,
    measure_cost,
)
from serried.plan.limit import Limit
from serried.plan.placement import Placement, generate_placements, list_steps
from serried.plan.reprieve import PlanRemoval, Removal, SlotRemoval, reprieve
from serried.plan.request import Plan, PlanRequest, Snapshot
from serried.plan.rule import has_rules
from serried.plan.tree import plan_group


def reopen_full(snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None) -> PlanRequest:
    """The question for whoever looks for room that others leave: full nodes count, whether or not they were offered.

    One that has room for a member and was not offered lacks what we cannot count, and stays closed. One that has none
    was not offered for want of room, as far as can be told.
    """
    if not ask.unoffered:
        return ask
    origin = capacity if capacity is not None else Capacity(snapshot.nodes, snapshot.used)
    counted = Fork(origin, snapshot.nodes, snapshot.used, snapshot.over)
    full = set(ask.unoffered)
    for kind in group_classes(ask.members):
        table = counted.table(kind.shape, snapshot.limit)
        full.difference_update(table.by_node)
    return ask.reopening(frozenset(full))


_GROWTH = 1.1
"""By which factor the slots of a domain must have grown since a vain plan before the next one is tried there.

When all has gone that may go, the last plan of a domain waits for nothing.
"""

_MAX_PLANNED = 4
"""How many candidates are looked for where each of them takes a plan."""

_MAX_ALLOTTED = 16
"""How many candidates of one priority are looked for where budgets do not let go all that may."""


class Shortage(NamedTuple):
    """How much a domain depends on evictions of one priority."""

    priority: int

    harmful: int
    """For how many members of the quorum gangs have to break, or more go of this domain than budgets allow."""

    members: int
    """For how many members of the quorum pods of this priority have to go."""


@dataclass(frozen=True, slots=True)
class CandidateDomain:
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
        self,
        snapshot: Snapshot,
        ask: PlanRequest,
        allowances: Allowances,
        capacity: Capacity | None,
    ) -> None:
        self._all_nodes = snapshot.nodes
        self._step = list_steps(ask)[-1]
        self._ask = _open(ask) if self._is_required(ask) else ask
        self._allowances = allowances
        self._limit = snapshot.limit
        self._step_limit = StepLimit()
        self._need = max(ask.need, 1)
        nodes = snapshot.nodes
        if ask.closed:
            nodes = {name: node for name, node in nodes.items() if name not in ask.closed}
        self._snapshot = replace(snapshot, nodes=nodes)
        self._removal = Removal(self._snapshot)
        origin = capacity if capacity is not None else Capacity(snapshot.nodes, snapshot.used)
        self._capacity = Fork(origin, nodes, self._removal.used, {*snapshot.over, *ask.closed})
        self._domains_by_node: Mapping[str, Domain] = (
            self._capacity.domains_by_node(self._step.key) if self._step.key else {}
        )
        self._kinds = group_classes(ask.members)
        self._has_rules = has_rules(snapshot, self._kinds)
        """Whether who else is where decides about members: then all nodes matter, and slots say little."""

        self._least = self._kinds[0] if len(self._kinds) == 1 else find_least(self._kinds)
        self._tables: list[tuple[MemberClass, Table]] = []
        self._plots: dict[Domain, _Plot] = {}
        self._gone: list[Unit] = []
        self._excluded = frozenset(name for _, name in ask.excluded)

    # --- the cluster as it is --------------------------------------------------------------------------------------

    def count(self) -> None:
        """Count the slots of each domain as they are now."""
        self._table = self._capacity.table(self._least.shape, self._limit)
        for kind in self._kinds if len(self._kinds) > 1 else ():
            self._tables.append((kind, self._capacity.table(kind.shape, self._limit)))
        census = Census(self._removal.snapshot(), self._ask, self._capacity)
        for placement in generate_placements(census, self._step, self._ask):
            self._plots[placement.domain] = _Plot(placement)
        self._measure(self._plots)

    @property
    def domains(self) -> Collection[Domain]:
        """The domains that the gang may use."""
        return self._plots.keys()

    def find_domains(self, unit: Unit) -> Iterable[Domain]:
        """The domains of the gang in which a unit has pods, each once."""
        if len(unit.pods) == 1:
            domain = self._domain_of(unit.pods[0].node)
            return () if domain is None else (domain,)
        found = dict.fromkeys(self._domain_of(pod.node) for pod in unit.pods)
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

    def assign(self, unit: Unit, domains_by_node: Iterable[Domain]) -> None:
        """Note where a unit is that may be evicted."""
        for domain in domains_by_node:
            self._plots[domain].units.append(unit)

    def list_units(self, candidate: CandidateDomain) -> list[Unit]:
        """What goes from a candidate at first."""
        return [unit for unit in self._plots[candidate.placement.domain].units if unit.priority <= candidate.priority]

    def _domain_of(self, name: str) -> Domain | None:
        if name not in self._removal.nodes:
            return None
        domain = self._domains_by_node.get(name) if self._step.key else ()
        return domain if domain in self._plots else None

    # --- units that go ---------------------------------------------------------------------------------------------

    def remove(self, priority: int, units: Sequence[Unit]) -> list[Domain]:
        """Take all units of one priority, harmless ones first; the domains that they were in, in name order."""
        harmless, harmful = self._sort_harm(units)
        changed: dict[Domain, int] = {}
        self._gone += units
        freed = self._free(units)
        self._take(harmless, changed)
        middle = {domain: self._plots[domain].room for domain in changed}
        self._take(harmful, changed)
        for domain, before in changed.items():
            held = freed.get(domain, 0)
            if before < self._need or held:
                after = middle.get(domain, before)
                short = Shortage(priority, max(0, self._need - after), max(self._need - before, held))
                self._plots[domain].shortages.append(short)
        return sorted(changed)

    def _sort_harm(self, units: Sequence[Unit]) -> tuple[list[Unit], list[Unit]]:
        """The units whose end does no harm, and those whose end breaks a gang or a budget."""
        harmless: list[Unit] = []
        harmful: list[Unit] = []
        guarded: list[Unit] = []
        for unit in units:
            kind = guarded if unit.budgets else harmful if self._breaks(unit) else harmless
            kind.append(unit)
        # What budgets allow goes to some nodes: of two sets that cost the same, that on fewer nodes helps more.
        guarded = sorted(guarded, key=lambda unit: (unit.pods[0].node, unit.pods[0].uid))
        for unit in guarded:
            (harmful if self._violates(unit) or self._breaks(unit) else harmless).append(unit)
        return harmless, harmful

    def _free(self, units: Iterable[Unit]) -> dict[Domain, int]:
        """Units hold their domains no more; how many pods of theirs were in each."""
        freed: dict[Domain, int] = {}
        for unit in units:
            for pod in unit.pods if unit.holds_domain and not self._is_kept(unit) else ():
                plot = self._find_held(pod)
                if plot is not None:
                    plot.holders.discard(unit)
                    domain = plot.placement.domain
                    freed[domain] = freed.get(domain, 0) + 1
        return freed

    def _is_kept(self, unit: Unit) -> bool:
        """Whether a pod of a unit is on a node that is closed to the gang: nobody goes from there."""
        return any(pod.node in self._ask.closed for pod in unit.pods)

    def _take(self, units: Iterable[Unit], changed: dict[Domain, int]) -> None:
        """Take units; ``changed`` gets the domains, with their slots before the first of them went."""
        touched: dict[Domain, None] = {}
        for name in self._removal.take(units):
            self._capacity.note_used(name)
            domain = self._domain_of(name)
            if domain is not None:
                touched[domain] = None
        for domain in touched:
            changed.setdefault(domain, self._plots[domain].room)
        self._measure(touched)

    def _measure(self, domains: Iterable[Domain]) -> None:
        self._capacity.refresh(self._table, self._limit)
        for domain in domains:
            self._plots[domain].room = self._room(self._table, domain)

    def _room(self, table: Table, domain: Domain) -> int:
        if not self._step.key:
            return table.total
        return table.sum_by(self._step.key, self._domains_by_node).get(domain, 0)

    def _violates(self, unit: Unit) -> bool:
        """Whether more go with a unit from one of its domains than a budget allows."""
        violated = False
        for domain in self.find_domains(unit):
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

    # --- candidates -------------------------------------------------------------------------------------------------

    def list_candidates(self, domains: Iterable[Domain], priority: int) -> list[CandidateDomain]:
        """Those of these domains that hold the quorum now, the most promising first.

        Where it takes plans to know, a few are enough, and those with most slots are asked first.
        """
        return self._list(domains, priority, _GROWTH)

    def list_last_candidates(self, domains: Iterable[Domain], priority: int) -> list[CandidateDomain]:
        """As ``list_candidates`` when nothing more will go."""
        return self._list(domains, priority, 1.0)

    def _list(self, domains: Iterable[Domain], priority: int, growth: float) -> list[CandidateDomain]:
        counted: list[CandidateDomain] = []
        planned: list[CandidateDomain] = []
        for plot in sorted((self._plots[domain] for domain in domains), key=lambda plot: -plot.room):
            if plot.holders or plot.room < self._need:
                continue
            candidate = CandidateDomain(plot.placement, priority, tuple(reversed(plot.shortages)))
            if self.is_counted(plot.placement):
                counted.append(candidate)
            elif len(planned) < (1 if self._limit.content else _MAX_PLANNED) and self._try(plot, growth):
                planned += self._allot([candidate])
        counted.sort(key=lambda candidate: candidate.promise)
        counted = self._allot(counted)
        return sorted([*planned, *counted], key=lambda candidate: candidate.promise)

    def find_exceeding(self, domains: Iterable[Domain], priority: int) -> Placement | None:
        """The most promising of these domains that would hold the quorum if all that has gone might go at once."""
        found: list[CandidateDomain] = []
        for plot in sorted((self._plots[domain] for domain in domains), key=lambda plot: -plot.room):
            if not plot.holders and plot.room >= self._need:
                wanted = len(found) < (1 if self._limit.content else _MAX_PLANNED)
                if self.is_counted(plot.placement) or (wanted and self._try(plot, 1.0)):
                    found.append(CandidateDomain(plot.placement, priority, tuple(reversed(plot.shortages))))
        return min(found, key=lambda candidate: candidate.promise).placement if found else None

    def _allot(self, candidates: Iterable[CandidateDomain]) -> list[CandidateDomain]:
        """Those of these domains in which budgets let go as much as it takes; the first of them, where that is work."""
        found: list[CandidateDomain] = []
        worked = 0
        for candidate in candidates:
            if not self.list_exceeded(candidate.placement):
                found.append(candidate)
            elif worked < (1 if self._limit.content else _MAX_ALLOTTED):
                removal = self.clear(candidate.placement, 0)  # nobody comes back there for a plan's sake
                removal.count()
                units = self.list_units(candidate)
                going = BudgetReprieve(removal, units, self._allowances.limits, self._step_limit).run()
                if going is not None:
                    found.append(replace(candidate, allotted=tuple(going)))
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
        if self._ask.parts or len(self._kinds) > 1 or self._has_rules:
            return False
        names = self._removal.nodes if placement.names is None else placement.names
        return not any(name in names for name in self._excluded)

    def _try(self, plot: _Plot, growth: float) -> bool:
        if plot.planned:
            return True
        if not self._has_rules and (plot.room <= plot.tried or plot.room < plot.tried * growth):
            return False
        if not self._is_promising(plot.placement.domain):
            return False
        plot.tried = plot.room
        capacity = self._capacity if plot.placement.names is None else None
        removal = self._clear_alone(plot) if capacity is None and self._has_rules else self._removal
        shown = replace(removal.snapshot(), nodes=self.find_nodes(plot.placement))
        plot.planned = isinstance(plan_group(shown, self.confine(plot.placement), capacity), Plan)
        return plot.planned

    def _clear_alone(self, plot: _Plot) -> Removal:
        """The cluster when only those have gone that have a pod in one domain: who is elsewhere decides, and stays."""
        removal = Removal(self._snapshot)
        removal.take(unit for unit in self._gone if plot.placement.domain in self.find_domains(unit))
        return removal

    def _is_promising(self, domain: Domain) -> bool:
        """Whether each class as if it were alone would do."""
        spare = len(self._ask.members) - self._need
        for kind, table in self._tables:
            self._capacity.refresh(table, self._limit)
            spare -= max(0, len(kind.members) - self._room(table, domain))
            if spare < 0:
                return False
        return True

    def explain(self) -> Verdict:
        """Why the gang does not fit now."""
        shown = self._removal.snapshot()
        held = {plot.placement.name for plot in self._plots.values() if plot.holders}
        ask = replace(self._ask, taken=self._ask.taken | held)
        answer = plan_group(shown, ask, self._capacity)
        return answer if isinstance(answer, Verdict) else Verdict(Reason.NO_CAPACITY, need=self._need)

    # --- one domain ------------------------------------------------------------------------------------------------

    def clear(self, placement: Placement, units: int) -> SlotRemoval:
        """A domain as it is before anything has gone; plans there may be so much work (`Limit.spent`)."""
        removal = Removal(replace(self._snapshot, nodes=self.find_nodes(placement)))
        banned = self._plots[placement.domain].owners
        if self.is_counted(placement):
            return SlotRemoval(removal, self._least.shape, self._need, banned=banned)
        ask = self.confine(placement)
        return PlanRemoval(removal, self._least.shape, ask, units, banned=banned)

    def find_nodes(self, placement: Placement) -> Mapping[str, Node]:
        """The nodes of a domain that are open to the gang; all where who is elsewhere matters, too."""
        nodes = self._removal.nodes
        if placement.names is None or self._has_rules:
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


_MAX_DOMAINS = 16
"""In how many domains the victims are chosen."""

_MAX_DOMAINS_PLANNED = 4
"""The same where that takes plans: members of several shapes, or a tree."""

_MAX_UNITS = 300_000
"""How much work the plans in all these domains may be, so that it is known who can come back: a second or two."""

_MAX_BETTERED = 3
"""In how many of them, the cheapest ones, victims are exchanged."""


def plan_victims(
    snapshot: Snapshot,
    ask: PlanRequest,
    priority: int,
    units: Iterable[Unit],
    allowances: Allowances,
    capacity: Capacity | None = None,
) -> Preemption | NoVictims:
    """The plan of a gang that does not fit, and the cheapest units after whose end it does; or why nothing helps.

    ``priority`` is the gang's: only what has a lower one is a victim. ``units`` are all that run, whatever their
    priority and protection; each pod is in one of them at the most. Deterministic: the order of units and nodes does
    not matter. ``capacity`` are the snapshot's slots as far as they are counted already.

    For members of one shape each victim is needed. For others that holds as far as the planner has been asked. Where
    the quorum stands (``ask.need`` is 0), as many members get room as can be had so, or nearly: of a tree all, or some.

    When the snapshot's limit is ``content``, no more is looked for once there is an answer: then other victims might
    have cost less, and of members of several shapes some may not be needed. Plan and victims are sound all the same.
    """
    limit = snapshot.limit
    ask = reopen_full(snapshot, ask, capacity)
    # What fits by now, or fits nowhere for another reason than room, is not to be had by evictions.
    answer = plan_group(snapshot, ask, capacity)
    if isinstance(answer, Plan):
        return Preemption(answer, (), Cost())
    if Mark.IN_VAIN in answer.reason.marks:
        return NoVictims(answer, Blocker.ROOM)
    running = tuple(units)

    def look(wish: PlanRequest) -> tuple[_Search, list[CandidateDomain]]:
        search = _Search(Survey(snapshot, wish, allowances, capacity), wish, allowances, limit)
        search.sort(running, priority)
        return search, search.look_around()

    search, candidates = look(ask)
    if not candidates and len(others := _leave_mates(running, ask)) < len(running):
        running, first = others, search
        search, candidates = look(ask)
        search = search if candidates else first
    if not candidates:
        return search.explain()
    count = 1 if ask.need else len(ask.members)
    while count > 1 and not limit.content:
        larger, found = look(_demand(ask, count))
        if found:
            return larger.choose(found)
        count = 1 if ask.parts else larger.find_fewer(count)
    return search.choose(candidates)


def _leave_mates(units: Sequence[Unit], ask: PlanRequest) -> tuple[Unit, ...]:
    """Those of the units beside which no member has to be: where all go at first, nobody is left to be beside."""
    rules = {member.shape.neighbours for member in ask.members}
    mates = {each.beside.matching.amount for each in rules if each is not None and each.beside is not None}
    if not mates:
        return tuple(units)
    asked = ((unit, (name for pod in unit.pods for name, _ in pod.shape.requests)) for unit in units)
    return tuple([unit for unit, names in asked if mates.isdisjoint(names)])


def _demand(ask: PlanRequest, count: int) -> PlanRequest:
    """The same as if so many members were the quorum; of a tree all of them."""
    if not ask.parts:
        return replace(ask, need=min(count, len(ask.members)))
    parts = tuple(_demand(part, count) for part in ask.parts)
    needs = [part.need for part in parts if part.need]
    return replace(ask, parts=parts, need=sum(needs), wanted=len(needs))


@dataclass(frozen=True, slots=True)
class _Choice:
    """The victims of one domain."""

    candidate: CandidateDomain
    removal: SlotRemoval
    units: Sequence[Unit]
    """What may go there."""

    victims: list[Unit]
    cost: Cost

    @property
    def domain(self) -> str:
        return self.candidate.placement.name


class _Search:
    def __init__(self, survey: Survey, ask: PlanRequest, allowances: Allowances, limit: Limit) -> None:
        self._survey = survey
        self._ask = ask
        self._allowances = allowances
        self._limit = limit
        self._newest = 0
        # By priority: what may go, and what would have to be allowed to go.
        self._lower: dict[int, list[Unit]] = {}
        self._higher: dict[int, list[Unit]] = {}
        self._protected: list[Unit] = []

    def sort(self, units: Iterable[Unit], priority: int) -> None:
        """Sort the units that have a pod where the gang may go, by what may become of them."""
        self._survey.count()
        for unit in units:
            self._limit.spend(len(unit.pods))
            self._newest = max(self._newest, *[pod.started or 0 for pod in unit.pods])
            domains_by_node = self._survey.find_domains(unit)
            if unit.holds_domain:
                self._survey.note_holder(unit)
            if not domains_by_node:
                continue
            if unit.priority >= priority:
                self._higher.setdefault(unit.priority, []).append(unit)
            elif unit.protection:
                self._protected.append(unit)
            else:
                self._lower.setdefault(unit.priority, []).append(unit)
                self._survey.assign(unit, domains_by_node)

    def look_around(self) -> list[CandidateDomain]:
        """The domains that would hold the quorum, the most promising first: those of the lowest priority, and more.

        If it is one only, the next higher priorities are looked at, too, so that there is something to compare with.
        """
        found: list[CandidateDomain] = []
        known: set[Domain] = set()
        priorities = sorted(self._lower)
        for priority in priorities:
            changed = self._survey.remove(priority, self._lower[priority])
            if priority == priorities[-1]:
                rest = sorted(domain for domain in self._survey.domains if domain not in known)
                more = self._survey.list_last_candidates(rest, priority)
            elif self._limit.content:
                continue  # one plan has to do, so it is made where it is most likely to hold
            else:
                fresh = [domain for domain in changed if domain not in known]
                more = self._survey.list_candidates(fresh, priority)
            known.update(candidate.placement.domain for candidate in more)
            found += more
            if len(found) >= self._count_wanted():
                break
        return found

    def find_fewer(self, count: int) -> int:
        """How many members to try next where so many do not fit when all has gone that may."""
        most = self._survey.most
        return most if 0 < most < count else count // 2

    def _count_wanted(self) -> int:
        return 1 if self._limit.content else min(2, len(self._survey.domains))

    def choose(self, candidates: Sequence[CandidateDomain]) -> Preemption:
        """The least victims, in the best of the most promising domains."""
        counted = all(self._survey.is_counted(candidate.placement) for candidate in candidates)
        examined = candidates[: _MAX_DOMAINS if counted else _MAX_DOMAINS_PLANNED]
        choices = []
        for candidate in examined:
            choices.append(self._clear(candidate, _MAX_UNITS // len(examined)))
            if self._limit.content:
                break
        choices.sort(key=lambda choice: (choice.cost, choice.domain))
        for place, choice in enumerate(choices[:_MAX_BETTERED]):
            if not self._limit.content:
                choices[place] = self._better(choice)
        choices.sort(key=lambda choice: (choice.cost, choice.domain))
        best = choices[0]
        return Preemption(
            plan=best.removal.plan(self._survey.confine(best.candidate.placement)),
            victims=tuple(sorted(best.victims, key=_rank)),
            cost=best.cost,
            runner_up=Alternative(choices[1].domain, choices[1].cost) if len(choices) > 1 else None,
            domains_fitting=len(candidates),
            domains_examined=len(choices),
        )

    def _clear(self, candidate: CandidateDomain, work: int) -> _Choice:
        units = self._survey.list_units(candidate)
        going = units if candidate.allotted is None else candidate.allotted
        removal = self._survey.clear(candidate.placement, work)
        removal.count()
        removal.take(going)
        victims = reprieve(removal, going, self._allowances, self._newest)
        cost = measure_cost(victims, self._allowances, self._newest)
        return _Choice(candidate, removal, units, victims, cost)

    def _better(self, choice: _Choice) -> _Choice:
        work = Exchange(
            choice.removal, choice.units, choice.victims, choice.cost, allowances=self._allowances, newest=self._newest
        )
        work.run()
        return replace(choice, victims=work.victims, cost=work.cost)

    def explain(self) -> NoVictims:
        """What would have to go as well, or that nothing would help. All that may go has gone."""
        verdict = self._survey.explain()
        if self._allowances.limits:
            found = self._survey.find_exceeding(self._survey.domains, 0)
            if found is not None:
                why = tuple(sorted(self._survey.list_exceeded(found)))
                return NoVictims(verdict, Blocker.PROTECTION, found.name, protections=why)
        found = self._remove_more(0, self._protected)
        if found is not None:
            here = [unit for unit in self._protected if found.domain in self._survey.find_domains(unit)]
            phrases = {unit.protection for unit in here} | set(self._survey.list_exceeded(found))
            count = count_pods(here)
            return NoVictims(
                verdict, Blocker.PROTECTION, found.name, protections=tuple(sorted(phrases)), protected=count
            )
        for priority in sorted(self._higher):
            found = self._remove_more(priority, self._higher[priority])
            if found is not None:
                return NoVictims(verdict, Blocker.PRIORITY, found.name, priority)
        return NoVictims(verdict, Blocker.ROOM)

    def _remove_more(self, priority: int, units: Sequence[Unit]) -> Placement | None:
        """Take units that may not go, and the first domain that would hold the quorum then."""
        changed = self._survey.remove(priority, units)
        return self._survey.find_exceeding(changed, priority)


def _rank(unit: Unit) -> tuple[int, str]:
    return -unit.priority, unit.pods[0].uid
