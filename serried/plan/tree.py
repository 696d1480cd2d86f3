"""Planning a tree of groups (CompositePodGroups, KEP-6012) as one: every group inside the domain of the one above it.

The search is depth first: a group takes its best domain, the groups below it are placed there one after another, and
where the rest does not fit then, choices are taken back in turn. The native scheduler takes nothing back. Quorums come
first: members beyond them get room only when every group that is placed has its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from serried.api.resources import Resources, add
from serried.api.verdict import Reason, Verdict, render
from serried.plan.capacity import Capacity, Fork, group_classes
from serried.plan.gang import feasible, hope_for, plan_gang, score
from serried.plan.placement import Trial, generate_placements, list_steps
from serried.plan.request import Overlay, Plan, PlanRequest, Snapshot

_MAX_ALTERNATIVES = 16
"""How many other quorums of groups with surplus are tried in all: they must not use up the tries of other domains."""

_MIN_TRIES = 100
"""How often the search for the smallest tree may take a choice back; a try costs about as much as a gang's plan."""

Within = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Seating:
    """The members that have their nodes so far."""

    nodes: Mapping[str, str] = field(default_factory=dict)
    """Node name by member UID."""

    used: Mapping[str, Resources] = field(default_factory=dict)
    """What is used on these nodes with the members."""

    domains: Mapping[str, tuple[Within, str]] = field(default_factory=dict)
    """By the name of each group that is placed or stands: the domains around it, and its own."""

    waves: tuple[tuple[str, ...], ...] = ()
    """When the members may be tried (`Plan.waves`), group after group."""

    couples: bool = False
    """Whether any members decide about each other."""


def plan_group(snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None = None) -> Plan | Verdict:
    """As `plan_gang`; for a tree at least ``ask.wanted`` of the groups below, each whole, or the reason why not.

    Deterministic. A plan keeps all constraints; a refusal can be wrong where the search is given up after some time.
    """
    return plan_gang(snapshot, ask, capacity) if not ask.parts else _Search(snapshot, capacity).plan(ask)


def plan_quorum(snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None = None) -> Plan | Verdict:
    """Plan as `plan_group`, but give nodes only to members that a quorum needs. In a tree that stands, all get one."""
    if ask.parts:
        return _Search(snapshot, capacity).plan(ask, surplus=not ask.need)
    answer = plan_gang(snapshot, ask, capacity)
    return cut_to_quorum(ask, answer) if isinstance(answer, Plan) else answer


class _Search:
    """The options of a choice come from an iterator, which looks for the next one when it is asked for it."""

    def __init__(self, snapshot: Snapshot, capacity: Capacity | None) -> None:
        self._base = snapshot.used
        self._seated: dict[str, Resources] = {}
        # With each choice a few nodes are used otherwise: only they are counted anew.
        self._snapshot = replace(snapshot, used=Overlay(self._seated, snapshot.used), over=())
        origin = capacity if capacity is not None else Capacity(snapshot.nodes, snapshot.used)
        self._capacity = Fork(origin, snapshot.nodes, self._snapshot.used, snapshot.over)
        self._left = 0
        self._alternatives = 0
        """How many more quorums may be tried that a group's members could also form in a domain."""

        self._followed: tuple[tuple[str, str], ...] = ()
        """What those have beside whom members of other groups have to be, with the topology keys."""

        self._obstacle: tuple[PlanRequest, Seating] | None = None

    def plan(self, ask: PlanRequest, *, surplus: bool = True) -> Plan | Verdict:
        if len(ask.pinned) > 1:
            return Verdict(Reason.DOMAIN_CONFLICT, key=ask.topology_key or "", detail=", ".join(sorted(ask.pinned)))
        self._left = _MIN_TRIES + 2 * _count_groups(ask)
        self._alternatives = _MAX_ALTERNATIVES
        self._followed = tuple(_list_followed(ask))
        found = next(self._seat(ask, Seating()), None)
        if found is not None and surplus:
            found = self._add_surplus(ask, found)
        if found is None or not found.nodes:
            return self._refuse(ask)
        couples = found.couples or _depends(_list_leaves(ask))
        return Plan(found.domains[ask.name][1], found.nodes, waves=found.waves if couples else ())

    # --- quorums -----------------------------------------------------------------------------------------------

    def _seat(self, ask: PlanRequest, seating: Seating) -> Iterator[Seating]:
        """The ways to place a group's quorum beside what is seated, the best first."""
        self._left -= 1
        if self._left < 0:
            return
        if ask.need and not ask.parts and len(ask.members) == ask.need:
            yield from self._seat_exactly(ask, seating)
            yield from self._seat_elsewhere(ask, seating)
            return
        for domain in self._rank_domains(ask, seating):
            here = _settle(ask, domain, seating)
            if ask.parts:
                around = _narrow(ask, domain)
                yield from self._seat_parts([replace(part, within=around) for part in _put_in_order(ask)], ask, here)
            elif ask.need == 0:
                yield here
            else:
                yield from self._seat_some(_confine(ask, domain), here)
        if ask.need and not ask.parts:
            yield from self._seat_elsewhere(ask, seating)

    def _seat_some(self, ask: PlanRequest, seating: Seating) -> Iterator[Seating]:
        """The ways to place a quorum of a group's members in its domain: its first ones, then others that fit."""
        first = ask.members[: ask.need]
        placed = self._try(replace(ask, members=first), seating)
        if placed is not None:
            yield placed
        kinds = group_classes(ask.members)
        if len(first) == len(ask.members) or (len(kinds) == 1 and not ask.excluded):
            return
        answer = self._solve(ask, seating)
        if isinstance(answer, Verdict):
            self._note_obstacle(ask, seating)
            return
        plan = cut_to_quorum(ask, answer)
        tried = {frozenset(member.uid for member in first)}
        if placed is None:
            yield self._take(ask, plan, seating)
            tried.add(frozenset(plan.nodes))
        # The members of one shape leave other groups room that those of another shape take.
        for kind in kinds:
            mine = {member.uid for member in kind.members}
            order = sorted(ask.members, key=lambda member: (member.uid not in mine, member.uid not in answer.nodes))
            quorum = frozenset(member.uid for member in order[: ask.need])
            self._alternatives -= 1
            if self._alternatives < 0:
                return
            if quorum not in tried:
                tried.add(quorum)
                chosen = tuple(member for member in ask.members if member.uid in quorum)
                placed = self._try(replace(ask, members=chosen), seating)
                if placed is not None:
                    yield placed

    def _seat_exactly(self, ask: PlanRequest, seating: Seating) -> Iterator[Seating]:
        # The usual case: the planner's own choice is the best, and others are hardly ever asked for.
        best = self._solve(ask, seating)
        if isinstance(best, Verdict):
            self._note_obstacle(ask, seating)
            return
        yield self._take(ask, best, _settle(ask, best.domain, seating))
        domains = self._rank_domains(ask, seating) if ask.topology_key is not None else []
        for domain in domains:
            if domain != best.domain:
                placed = self._try(_confine(ask, domain), _settle(ask, domain, seating))
                if placed is not None:
                    yield placed

    def _seat_elsewhere(self, ask: PlanRequest, seating: Seating) -> Iterator[Seating]:
        """The ways to place a group that is free to go anywhere in each domain where others would be beside it."""
        names = {name for member in ask.members for name, _ in member.shape.requests}
        keys = [key for amount, key in self._followed if amount in names] if ask.topology_key is None else []
        for key in dict.fromkeys(keys):
            keyed = replace(ask, topology_key=key, pinned=frozenset(), taken=frozenset())
            for domain in self._rank_domains(keyed, seating):
                self._left -= 1
                if self._left < 0:
                    return
                yield from self._seat_some(_confine(keyed, domain), _settle(ask, "", seating))

    def _seat_parts(self, parts: Sequence[PlanRequest], above: PlanRequest, seating: Seating) -> Iterator[Seating]:
        """The ways to place as many of these groups as are wanted, and as many more as fit."""
        # A stack and not recursion: there may be hundreds of groups.
        more = [sum(part.need > 0 for part in parts[place + 1 :]) for place in range(len(parts))]
        stack = [self._choose(parts[0], seating, above.wanted, more[0])]
        while stack:
            try:
                option = next(stack[-1])
            except StopIteration:
                stack.pop()
                continue
            if len(stack) < len(parts):
                place = len(stack)
                stack.append(self._choose(parts[place], *option, more[place]))
            else:
                yield option[0]

    def _choose(self, part: PlanRequest, seating: Seating, wanted: int, more: int) -> Iterator[tuple[Seating, int]]:
        """With this group, each way; then without it if ``more`` are left to choose from. And how many to go then."""
        left = max(0, wanted - 1) if part.need else wanted
        if left <= more:
            for placed in self._seat(part, seating):
                yield placed, left
        if wanted <= more:
            yield seating, wanted

    def _rank_domains(self, ask: PlanRequest, seating: Seating) -> list[str]:
        """The domains of a group's key that may hold its quorum, the best first; [""] for a group without one."""
        if ask.need == 0 and (ask.pinned or ask.topology_key is None):
            return sorted(ask.pinned) or [""]
        self._show(seating)
        trial = Trial(self._snapshot, replace(ask, levels=(), spills=True), self._capacity)
        trial.count()
        (step,) = list_steps(trial.ask)
        hopes = hope_for(trial, step, generate_placements(trial.census, step, trial.ask))
        fitting = feasible(hopes, ask.need) if ask.need else hopes
        if not fitting:
            self._note_obstacle(ask, seating)
        if ask.topology_key is None:
            return [""] if fitting else []
        fitting.sort(key=lambda candidate: score(candidate, ask.style))
        return [candidate.placement.domain[len(ask.within)] for candidate in fitting]

    def _try(self, ask: PlanRequest, seating: Seating) -> Seating | None:
        answer = self._solve(ask, seating)
        if isinstance(answer, Verdict):
            self._note_obstacle(ask, seating)
            return None
        return self._take(ask, answer, seating)

    # --- members beyond the quorums ----------------------------------------------------------------------------

    def _add_surplus(self, ask: PlanRequest, seating: Seating) -> Seating:
        if ask.name not in seating.domains:
            return seating
        for part in ask.parts:
            seating = self._add_surplus(part, seating)
        within, domain = seating.domains[ask.name]
        rest = () if ask.parts else tuple(member for member in ask.members if member.uid not in seating.nodes)
        if not rest:
            return seating
        mates = frozenset(seating.nodes[member.uid] for member in ask.members if member.uid in seating.nodes)
        late = replace(ask, members=rest, need=0, within=within, assigned_nodes=ask.assigned_nodes | mates)
        answer = self._solve(_confine(late, domain), seating)
        return seating if isinstance(answer, Verdict) else self._take(ask, answer, seating)

    # --- the cluster with the members that are seated ------------------------------------------------------------

    def _solve(self, ask: PlanRequest, seating: Seating) -> Plan | Verdict:
        """The plan of one group beside the members that are seated."""
        self._show(seating)
        return plan_gang(self._snapshot, ask, self._capacity)

    def _show(self, seating: Seating) -> None:
        for name in self._seated.keys() - seating.used.keys():
            del self._seated[name]
            self._capacity.note_used(name)
        for name, used in seating.used.items():
            if self._seated.get(name) is not used:
                self._seated[name] = used
                self._capacity.note_used(name)

    def _take(self, ask: PlanRequest, plan: Plan, seating: Seating) -> Seating:
        used = dict(seating.used)
        for member in ask.members:
            node = plan.nodes.get(member.uid)
            if node is not None:
                used[node] = add(used.get(node) or self._base.get(node, {}), dict(member.shape.requests))
        waves = (*seating.waves, *(plan.waves or (tuple(plan.nodes),)))
        couples = seating.couples or bool(plan.waves)
        return replace(seating, nodes={**seating.nodes, **plan.nodes}, used=used, waves=waves, couples=couples)

    # --- refusals ----------------------------------------------------------------------------------------------

    def _note_obstacle(self, ask: PlanRequest, seating: Seating) -> None:
        if self._obstacle is None or len(seating.nodes) >= len(self._obstacle[1].nodes):
            self._obstacle = ask, seating

    def _refuse(self, ask: PlanRequest) -> Plan | Verdict:
        """Why a tree does not fit: as one gang, if that is enough to say; else what stopped the best attempt.

        Or a plan after all, if it is no more than one gang.
        """
        flat = self._solve(replace(ask, parts=()), Seating())
        if isinstance(flat, Verdict) or (len(flat.nodes) == len(ask.members) and _is_one_gang(ask)):
            return flat  # group after group, some ways are not tried
        if self._obstacle is None:
            return Verdict(Reason.GROUPS_UNPLACED, need=ask.wanted)
        last, seating = self._obstacle
        have = sum(part.need > 0 and part.name in seating.domains and part.name != last.name for part in ask.parts)
        why = self._solve(replace(last, parts=()), seating)
        said = render(why) if isinstance(why, Verdict) else "its groups find no room together"
        return Verdict(Reason.GROUPS_UNPLACED, min(have, ask.wanted), ask.wanted, detail=f"{last.name}: {said}")


def _is_one_gang(ask: PlanRequest) -> bool:
    """Whether all members of a tree are one quorum, and its groups have no domains of their own."""
    needed = sum(part.need > 0 for part in ask.parts)
    return ask.wanted == needed == len(ask.parts) and all(
        not part.levels
        and part.topology_key is None
        and (_is_one_gang(part) if part.parts else part.need == len(part.members))
        for part in ask.parts
    )


def _count_groups(ask: PlanRequest) -> int:
    return 1 + sum(map(_count_groups, ask.parts))


def _put_in_order(ask: PlanRequest) -> list[PlanRequest]:
    """The groups below in the order in which they choose: the one that can go to the fewest places first.

    Of equals the largest; if not all are wanted the smallest, so that many find room. Those come later whose members
    have to be beside members of others: as long as these are not there, they fit nowhere.
    """
    most = sum(part.need > 0 for part in ask.parts) > ask.wanted
    order = sorted(ask.parts, key=lambda part: (_freedom(part), part.need if most else -part.need))
    mates = [_list_mates(part) for part in order]
    if not any(mates):
        return order
    counted = [{name for member in part.members for name, _ in member.shape.requests} for part in order]
    left, found = dict.fromkeys(range(len(order))), list[PlanRequest]()
    while left:
        free = (at for at in left if not any(mates[at] & counted[other] for other in left if other != at))
        place = next(free, next(iter(left)))  # of some that wait for each other the first begins
        found.append(order[place])
        del left[place]
    return found


def _list_mates(ask: PlanRequest) -> set[str]:
    """What those have beside whom members of a group have to be, of whom it has none itself."""
    wanted = {amount for amount, _ in _list_followed(ask)}
    return wanted.difference(name for member in ask.members for name, _ in member.shape.requests) if wanted else wanted


def _list_followed(ask: PlanRequest) -> Iterator[tuple[str, str]]:
    rules = dict.fromkeys(member.shape.neighbours for member in ask.members)
    for rule in filter(None, rules):
        if rule.beside is not None:
            yield from ((rule.beside.matching.amount, key) for key in rule.beside.keys)
        yield from ((spread.matching.amount, spread.key) for spread in rule.spread)


def _list_leaves(ask: PlanRequest) -> list[PlanRequest]:
    return [leaf for part in ask.parts for leaf in _list_leaves(part)] if ask.parts else [ask]


def _depends(leaves: Sequence[PlanRequest]) -> bool:
    """Whether where members of one of these may be depends on where others' are by now: who comes first matters."""
    homes: dict[str, set[int]] = {}
    wanted: dict[str, set[int]] = {}
    for place, leaf in enumerate(leaves):
        for shape in {id(member.shape): member.shape for member in leaf.members}.values():
            for name, _ in shape.requests:
                homes.setdefault(name, set()).add(place)
            rules = shape.neighbours
            beside = [rules.beside.matching] if rules is not None and rules.beside is not None else []
            for matching in (*beside, *(each.matching for each in (rules.spread if rules is not None else ()))):
                wanted.setdefault(matching.amount, set()).add(place)
    return any(len(homes.get(amount, set()) | places) > 1 for amount, places in wanted.items() if amount in homes)


def _freedom(ask: PlanRequest) -> int:
    if not ask.need or ask.pinned:
        return 0 if not ask.need else 1
    return 2 if ask.topology_key is not None or ask.parts else 3


def _settle(ask: PlanRequest, domain: str, seating: Seating) -> Seating:
    return replace(seating, domains={**seating.domains, ask.name: (ask.within, domain)})


def _narrow(ask: PlanRequest, domain: str) -> Within:
    return ask.within if ask.topology_key is None else (*ask.within, (ask.topology_key, domain))


def _confine(ask: PlanRequest, domain: str) -> PlanRequest:
    return ask if ask.topology_key is None else replace(ask, pinned=frozenset({domain}))


def cut_to_quorum(ask: PlanRequest, plan: Plan) -> Plan:
    """Return a group's plan for as many members as its quorum lacks, or for one member if the quorum stands.

    Where members decide about each other, the first ones of the plan can be placed without those after them.
    """
    order = [*plan.nodes] if plan.waves else [member.uid for member in ask.members if member.uid in plan.nodes]
    nodes = {uid: plan.nodes[uid] for uid in order[: max(ask.need, 1)]}
    waves = [tuple([uid for uid in wave if uid in nodes]) for wave in plan.waves]
    return replace(plan, nodes=nodes, waves=tuple(filter(None, waves)))
