"""Who has to go so that a gang fits, the whole quorum in one domain, with the least damage.

First the domains are found that would hold the quorum at the lowest priority (`survey`). In the most promising of them,
all units up to that priority go, or as many as budgets allow that bind (`allotment`), and as many as possible come back
(`reprieve`). The domain with the least cost is taken (`model.victim.Cost`). Where nothing helps nobody goes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from serried.model.plan import Plan, PlanRequest, Snapshot
from serried.model.verdict import Reason
from serried.model.victim import (
    Allowances,
    Alternative,
    Blocker,
    Cost,
    NoVictims,
    Preemption,
    Unit,
    count_pods,
)
from serried.plan.capacity import Capacity, Domain
from serried.plan.clearing import SlotClearing
from serried.plan.damage import measure_cost
from serried.plan.exchange import Exchange
from serried.plan.offers import reopen_full
from serried.plan.reprieve import reprieve
from serried.plan.steps import Haste, Work, finish, sort_in_steps
from serried.plan.survey import Prospect, Survey
from serried.plan.topology import Placement
from serried.plan.tree import solve_group

_MAX_DOMAINS = 16
"""In how many domains the victims are chosen."""

_MAX_DOMAINS_PLANNED = 4
"""The same where that takes plans: members of several shapes, or a tree."""

_MAX_STEPS = 100_000
"""How many steps the plans in all these domains may take, so that it is known who can come back: a second or two."""

_MAX_BETTERED = 3
"""In how many of them, the cheapest ones, victims are exchanged."""

_UNITS_PER_STEP = 250

_HOPELESS = frozenset({Reason.DOMAIN_CONFLICT, Reason.QUORUM_MISSING})
"""Why a gang does not fit, whatever goes."""


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
    """
    return finish(solve_victims(snapshot, ask, priority, units, allowances, capacity))


def solve_victims(
    snapshot: Snapshot,
    ask: PlanRequest,
    priority: int,
    units: Iterable[Unit],
    allowances: Allowances,
    capacity: Capacity | None = None,
    haste: Haste | None = None,
) -> Work[Preemption | NoVictims]:
    """As `plan_victims`, in steps, between which neither snapshot nor capacity may change.

    When ``haste`` is made, no more is looked for once there is an answer: then other victims might have cost less, and
    of members of several shapes some may not be needed. Plan and victims are sound all the same.
    """
    haste = haste or Haste()
    ask = yield from reopen_full(snapshot, ask, capacity)
    # What fits by now, or fits nowhere for another reason than room, is not to be had by evictions.
    answer = yield from solve_group(snapshot, ask, capacity)
    if isinstance(answer, Plan):
        return Preemption(answer, (), Cost())
    if answer.reason in _HOPELESS:
        return NoVictims(answer, Blocker.ROOM)
    running = tuple(units)

    def look(wish: PlanRequest) -> Work[tuple[_Search, list[Prospect]]]:
        search = _Search(Survey(snapshot, wish, allowances, capacity, haste), wish, allowances, haste)
        yield from search.sort(running, priority)
        return search, (yield from search.look_around())

    search, prospects = yield from look(ask)
    if not prospects:
        return (yield from search.explain())
    count = 1 if ask.need else len(ask.members)
    while count > 1 and not haste.made:
        larger, found = yield from look(_demand(ask, count))
        if found:
            return (yield from larger.choose(found))
        count = 1 if ask.parts else larger.find_fewer(count)
    return (yield from search.choose(prospects))


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

    prospect: Prospect
    clearing: SlotClearing
    units: Sequence[Unit]
    """What may go there."""

    victims: list[Unit]
    cost: Cost

    @property
    def domain(self) -> str:
        return self.prospect.placement.name


class _Search:
    def __init__(self, survey: Survey, ask: PlanRequest, allowances: Allowances, haste: Haste) -> None:
        self._survey = survey
        self._ask = ask
        self._allowances = allowances
        self._haste = haste
        self._newest = 0
        # By priority: what may go, and what would have to be allowed to go.
        self._lower: dict[int, list[Unit]] = {}
        self._higher: dict[int, list[Unit]] = {}
        self._protected: list[Unit] = []

    def sort(self, units: Iterable[Unit], priority: int) -> Work[None]:
        """Sort the units that have a pod where the gang may go, by what may become of them."""
        yield from self._survey.count()
        rest = iter(units)
        while batch := list(islice(rest, _UNITS_PER_STEP)):
            for unit in batch:
                self._newest = max(self._newest, *[pod.started or 0 for pod in unit.pods])
                homes = self._survey.find_homes(unit)
                if unit.holds_domain:
                    self._survey.note_holder(unit)
                if not homes:
                    continue
                if unit.priority >= priority:
                    self._higher.setdefault(unit.priority, []).append(unit)
                elif unit.protection:
                    self._protected.append(unit)
                else:
                    self._lower.setdefault(unit.priority, []).append(unit)
                    self._survey.assign(unit, homes)
            yield

    def look_around(self) -> Work[list[Prospect]]:
        """The domains that would hold the quorum, the most promising first: those of the lowest priority, and more.

        If it is one only, the next higher priorities are looked at, too, so that there is something to compare with.
        """
        found: list[Prospect] = []
        known: set[Domain] = set()
        priorities = sorted(self._lower)
        for priority in priorities:
            changed = yield from self._survey.remove(priority, self._lower[priority])
            if priority == priorities[-1]:
                rest = sorted(domain for domain in self._survey.domains if domain not in known)
                more = yield from self._survey.list_last_prospects(rest, priority)
            elif self._haste.made:
                continue  # one plan has to do, so it is made where it is most likely to hold
            else:
                fresh = [domain for domain in changed if domain not in known]
                more = yield from self._survey.list_prospects(fresh, priority)
            known.update(prospect.placement.domain for prospect in more)
            found += more
            if len(found) >= self._count_wanted():
                break
        return found

    def find_fewer(self, count: int) -> int:
        """How many members to try next where so many do not fit when all has gone that may."""
        most = self._survey.most
        return most if 0 < most < count else count // 2

    def _count_wanted(self) -> int:
        return 1 if self._haste.made else min(2, len(self._survey.domains))

    def choose(self, prospects: Sequence[Prospect]) -> Work[Preemption]:
        """The least victims, in the best of the most promising domains."""
        counted = all(self._survey.is_counted(prospect.placement) for prospect in prospects)
        examined = prospects[: _MAX_DOMAINS if counted else _MAX_DOMAINS_PLANNED]
        choices = []
        for prospect in examined:
            choices.append((yield from self._clear(prospect, _MAX_STEPS // len(examined))))
            if self._haste.made:
                break
        choices.sort(key=lambda choice: (choice.cost, choice.domain))
        for place, choice in enumerate(choices[:_MAX_BETTERED]):
            if not self._haste.made:
                choices[place] = yield from self._better(choice)
        choices.sort(key=lambda choice: (choice.cost, choice.domain))
        best = choices[0]
        return Preemption(
            plan=(yield from best.clearing.plan(self._survey.confine(best.prospect.placement))),
            victims=tuple((yield from sort_in_steps(best.victims, _rank))),
            cost=best.cost,
            runner_up=Alternative(choices[1].domain, choices[1].cost) if len(choices) > 1 else None,
            domains_fitting=len(prospects),
            domains_examined=len(choices),
        )

    def _clear(self, prospect: Prospect, steps: int) -> Work[_Choice]:
        units = yield from self._survey.list_units(prospect)
        going = units if prospect.allotted is None else prospect.allotted
        clearing = self._survey.clear(prospect.placement, steps)
        yield from clearing.count()
        yield from clearing.take(going)
        victims = yield from reprieve(clearing, going, self._allowances, self._newest)
        cost = yield from measure_cost(victims, self._allowances, self._newest)
        return _Choice(prospect, clearing, units, victims, cost)

    def _better(self, choice: _Choice) -> Work[_Choice]:
        work = Exchange(
            choice.clearing, choice.units, choice.victims, choice.cost, allowances=self._allowances, newest=self._newest
        )
        yield from work.run()
        return replace(choice, victims=work.victims, cost=work.cost)

    def explain(self) -> Work[NoVictims]:
        """What would have to go as well, or that nothing would help. All that may go has gone."""
        verdict = yield from self._survey.explain()
        if self._allowances.limits:
            found = yield from self._survey.find_exceeding(self._survey.domains, 0)
            if found is not None:
                why = tuple(sorted(self._survey.list_exceeded(found)))
                return NoVictims(verdict, Blocker.PROTECTION, found.name, protections=why)
        found = yield from self._remove_more(0, self._protected)
        if found is not None:
            here = [unit for unit in self._protected if found.domain in self._survey.find_homes(unit)]
            phrases = {unit.protection for unit in here} | set(self._survey.list_exceeded(found))
            count = count_pods(here)
            return NoVictims(
                verdict, Blocker.PROTECTION, found.name, protections=tuple(sorted(phrases)), protected=count
            )
        for priority in sorted(self._higher):
            found = yield from self._remove_more(priority, self._higher[priority])
            if found is not None:
                return NoVictims(verdict, Blocker.PRIORITY, found.name, priority)
        return NoVictims(verdict, Blocker.ROOM)

    def _remove_more(self, priority: int, units: Sequence[Unit]) -> Work[Placement | None]:
        """Take units that may not go, and the first domain that would hold the quorum then."""
        changed = yield from self._survey.remove(priority, units)
        return (yield from self._survey.find_exceeding(changed, priority))


def _rank(unit: Unit) -> tuple[int, str]:
    return -unit.priority, unit.pods[0].uid
