"""Plans a tree of groups (CompositePodGroups, KEP-6012): every group inside the domain of its parent (`plan_group`).

The search is depth first: a group gets its best domain, and its child groups are placed there one after another. If one
of them does not fit, the choice for the group before it is undone, and the next one is tried. The native scheduler does
not undo choices. Quorums come first: further members are placed only when every placed group has its quorum.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from serried.api.resources import Resources, add
from serried.api.verdict import Reason, Verdict, render
from serried.plan.capacity import Capacity, CapacityFork, group_classes
from serried.plan.gang import estimate_each, feasible, plan_gang, score
from serried.plan.placement import PlanState, generate_placements, list_search_levels
from serried.plan.request import Overlay, Plan, PlanRequest, Snapshot

_MAX_ALTERNATIVES = 16
"""The number of other sets of quorum members that one plan tries, for PodGroups with more members than they need.

It is limited so that these do not use up all tries (`_MIN_TRIES`).
"""

_MIN_TRIES = 100
"""The number of tries that the search for the smallest tree may make. Larger trees get more.

A try is one attempt to place one group. It takes about as long as planning one gang.
"""

Within = tuple[tuple[str, str], ...]
"""The domains in which the parents of a group are placed, as (label key, domain), the widest first."""


@dataclass(frozen=True, slots=True)
class PartialPlan:
    """The groups and members of a tree that are placed at one point of the search.

    It is never modified: each choice creates a new one.
    """

    nodes: Mapping[str, str] = field(default_factory=dict)
    """The node name by UID of each placed member."""

    used: Mapping[str, Resources] = field(default_factory=dict)
    """The amounts in use on the nodes of ``nodes``, including the placed members."""

    domains: Mapping[str, tuple[Within, str]] = field(default_factory=dict)
    """The domains of the parents and the own domain of each group that is placed or running, by the group's name."""

    waves: tuple[tuple[str, ...], ...] = ()
    """The placed members in waves, group after group.

    The members of one wave may be tried by kube-scheduler in any order (`Plan.waves`).
    """

    couples: bool = False
    """True if rules such as anti-affinity make the order of members matter."""


def plan_group(snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None = None) -> Plan | Verdict:
    """Return a plan for a gang or a tree, or the verdict why it does not fit. It is the planner's main entry.

    A gang is planned by `plan_gang`. For a tree, at least ``ask.wanted`` of its child groups are placed, each with its
    quorum and in one domain. ``capacity`` has counts of earlier plans; if it is None all nodes are counted. The result
    is deterministic. The search is limited, so a verdict may say that a tree does not fit although it would; a plan is
    always valid.
    """
    return plan_gang(snapshot, ask, capacity) if not ask.parts else _Search(snapshot, capacity).plan(ask)


def plan_quorum(snapshot: Snapshot, ask: PlanRequest, capacity: Capacity | None = None) -> Plan | Verdict:
    """Return a plan as `plan_group`, but only for the members that quorums need, or a verdict.

    If the quorum is running already, one further member is placed for a gang. For a tree all further members are
    placed then, as far as they fit.
    """
    if ask.parts:
        return _Search(snapshot, capacity).plan(ask, surplus=not ask.need)
    answer = plan_gang(snapshot, ask, capacity)
    return cut_to_quorum(ask, answer) if isinstance(answer, Plan) else answer


class _Search:
    """One depth-first search for nodes for a tree. Call `plan`; an instance is used for one tree only.

    Each choice is an iterator over its options, which computes the next option only when the search comes back to it.
    Parameters named ``partial`` have the groups and members that the search has placed before this choice.
    """

    def __init__(self, snapshot: Snapshot, capacity: Capacity | None) -> None:
        self._base = snapshot.used
        self._placed: dict[str, Resources] = {}
        # Each choice changes the usage of a few nodes, and only these are counted again.
        self._snapshot = replace(snapshot, used=Overlay(self._placed, snapshot.used), over=())
        origin = capacity if capacity is not None else Capacity(snapshot.nodes, snapshot.used)
        self._capacity = CapacityFork(origin, snapshot.nodes, self._snapshot.used, snapshot.over)
        self._left = 0
        self._alternatives = 0
        """The remaining number of other choices of quorum members to try."""

        self._nearby: tuple[tuple[str, str], ...] = ()
        """The pods that rules of members want nearby: the name by which such pods are counted, and the topology key.

        Serried adds the name to the requests of these pods.
        """

        self._furthest_failure: tuple[PlanRequest, PartialPlan] | None = None

    def plan(self, ask: PlanRequest, *, surplus: bool = True) -> Plan | Verdict:
        """Return the plan for a tree, or the verdict why it does not fit.

        With ``surplus``, members beyond the quorums are placed as well, as far as they fit.
        """
        if len(ask.pinned) > 1:
            return Verdict(Reason.DOMAIN_CONFLICT, key=ask.topology_key or "", detail=", ".join(sorted(ask.pinned)))
        self._left = _MIN_TRIES + 2 * _count_groups(ask)
        self._alternatives = _MAX_ALTERNATIVES
        self._nearby = tuple(_list_nearby(ask))
        found = next(self._place_group(ask, PartialPlan()), None)
        if found is not None and surplus:
            found = self._add_surplus(ask, found)
        if found is None or not found.nodes:
            return self._explain(ask)
        couples = found.couples or _affect_each_other(_list_leaves(ask))
        return Plan(found.domains[ask.name][1], found.nodes, waves=found.waves if couples else ())

    # --- quorums ---------------------------------------------------------------------------------------------------

    def _place_group(self, ask: PlanRequest, partial: PartialPlan) -> Iterator[PartialPlan]:
        """Yield the ways to place a group's quorum in addition to what ``partial`` has placed, the best first."""
        self._left -= 1
        if self._left < 0:
            return
        if ask.need and not ask.parts and len(ask.members) == ask.need:
            yield from self._place_exactly(ask, partial)
            yield from self._place_elsewhere(ask, partial)
            return
        for domain in self._rank_domains(ask, partial):
            here = _record_domain(ask, domain, partial)
            if ask.parts:
                around = _extend_within(ask, domain)
                yield from self._place_parts([replace(part, within=around) for part in _order_parts(ask)], ask, here)
            elif ask.need == 0:
                yield here
            else:
                yield from self._place_some(_pin(ask, domain), here)
        if ask.need and not ask.parts:
            yield from self._place_elsewhere(ask, partial)

    def _place_some(self, ask: PlanRequest, partial: PartialPlan) -> Iterator[PartialPlan]:
        """Yield the ways to place as many members of a group as its quorum needs, in its domain.

        First the members with the lowest ranks are tried, as many as the quorum needs, then other choices of members.
        """
        first = ask.members[: ask.need]
        placed = self._try(replace(ask, members=first), partial)
        if placed is not None:
            yield placed
        kinds = group_classes(ask.members)
        if len(first) == len(ask.members) or (len(kinds) == 1 and not ask.excluded):
            return
        answer = self._solve(ask, partial)
        if isinstance(answer, Verdict):
            self._record_failure(ask, partial)
            return
        plan = cut_to_quorum(ask, answer)
        tried = {frozenset(member.uid for member in first)}
        if placed is None:
            yield self._add(ask, plan, partial)
            tried.add(frozenset(plan.nodes))
        # A quorum of members of one shape may leave the resources free that other groups need.
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
                placed = self._try(replace(ask, members=chosen), partial)
                if placed is not None:
                    yield placed

    def _place_exactly(self, ask: PlanRequest, partial: PartialPlan) -> Iterator[PartialPlan]:
        # The usual case: the plan of plan_gang is tried first, because other choices are rarely needed.
        best = self._solve(ask, partial)
        if isinstance(best, Verdict):
            self._record_failure(ask, partial)
            return
        yield self._add(ask, best, _record_domain(ask, best.domain, partial))
        domains = self._rank_domains(ask, partial) if ask.topology_key is not None else []
        for domain in domains:
            if domain != best.domain:
                placed = self._try(_pin(ask, domain), _record_domain(ask, domain, partial))
                if placed is not None:
                    yield placed

    def _place_elsewhere(self, ask: PlanRequest, partial: PartialPlan) -> Iterator[PartialPlan]:
        """Yield more ways to place a group without a topology key, if rules of the tree want its members nearby.

        For example, pods of another group have affinity to pods of this one in the same zone. Then this group is placed
        as a whole in one zone after another, so that one is found in which the other group fits, too.
        """
        names = {name for member in ask.members for name, _ in member.shape.requests}
        keys = [key for amount, key in self._nearby if amount in names] if ask.topology_key is None else []
        for key in dict.fromkeys(keys):
            keyed = replace(ask, topology_key=key, pinned=frozenset(), taken=frozenset())
            for domain in self._rank_domains(keyed, partial):
                self._left -= 1
                if self._left < 0:
                    return
                yield from self._place_some(_pin(keyed, domain), _record_domain(ask, "", partial))

    def _place_parts(
        self, parts: Sequence[PlanRequest], above: PlanRequest, partial: PartialPlan
    ) -> Iterator[PartialPlan]:
        """Yield the ways to place as many of the child groups ``parts`` as their parent ``above`` wants, or more."""
        # A stack instead of recursion, because there may be hundreds of groups.
        more = [sum(part.need > 0 for part in parts[place + 1 :]) for place in range(len(parts))]
        stack = [self._choose_group(parts[0], partial, above.wanted, more[0])]
        while stack:
            try:
                option = next(stack[-1])
            except StopIteration:
                stack.pop()
                continue
            if len(stack) < len(parts):
                place = len(stack)
                stack.append(self._choose_group(parts[place], *option, more[place]))
            else:
                yield option[0]

    def _choose_group(
        self, part: PlanRequest, partial: PartialPlan, wanted: int, more: int
    ) -> Iterator[tuple[PartialPlan, int]]:
        """Yield the ways to place a child group, then the way to leave it out if enough other groups are left.

        ``wanted`` groups, maybe with this one, have still to be placed. ``more`` groups come after this one in the
        order of the search. Each way is yielded with the number of groups that have to be placed after it.
        """
        left = max(0, wanted - 1) if part.need else wanted
        if left <= more:
            for placed in self._place_group(part, partial):
                yield placed, left
        if wanted <= more:
            yield partial, wanted

    def _rank_domains(self, ask: PlanRequest, partial: PartialPlan) -> list[str]:
        """Return the domains of a group's topology key that may hold its quorum, the best first.

        Without a key return [""] if the quorum may fit, otherwise [].
        """
        if ask.need == 0 and (ask.pinned or ask.topology_key is None):
            return sorted(ask.pinned) or [""]
        self._apply(partial)
        state = PlanState(self._snapshot, replace(ask, levels=(), spills=True), self._capacity)
        state.count()
        (search_level,) = list_search_levels(state.ask)
        best_cases = estimate_each(state, search_level, generate_placements(state.census, search_level, state.ask))
        fitting = feasible(best_cases, ask.need) if ask.need else best_cases
        if not fitting:
            self._record_failure(ask, partial)
        if ask.topology_key is None:
            return [""] if fitting else []
        fitting.sort(key=lambda candidate: score(candidate, ask.style))
        return [candidate.placement.domain[len(ask.within)] for candidate in fitting]

    def _try(self, ask: PlanRequest, partial: PartialPlan) -> PartialPlan | None:
        answer = self._solve(ask, partial)
        if isinstance(answer, Verdict):
            self._record_failure(ask, partial)
            return None
        return self._add(ask, answer, partial)

    # --- members beyond the quorums --------------------------------------------------------------------------------

    def _add_surplus(self, ask: PlanRequest, partial: PartialPlan) -> PartialPlan:
        if ask.name not in partial.domains:
            return partial
        for part in ask.parts:
            partial = self._add_surplus(part, partial)
        within, domain = partial.domains[ask.name]
        rest = () if ask.parts else tuple(member for member in ask.members if member.uid not in partial.nodes)
        if not rest:
            return partial
        mates = frozenset(partial.nodes[member.uid] for member in ask.members if member.uid in partial.nodes)
        late = replace(ask, members=rest, need=0, within=within, assigned_nodes=ask.assigned_nodes | mates)
        answer = self._solve(_pin(late, domain), partial)
        return partial if isinstance(answer, Verdict) else self._add(ask, answer, partial)

    # --- the cluster with the members that are placed --------------------------------------------------------------

    def _solve(self, ask: PlanRequest, partial: PartialPlan) -> Plan | Verdict:
        """Return a plan for one group's members that still have to be placed, or the verdict why they do not fit.

        ``partial`` has the members of other groups that are placed before.
        """
        self._apply(partial)
        return plan_gang(self._snapshot, ask, self._capacity)

    def _apply(self, partial: PartialPlan) -> None:
        for name in self._placed.keys() - partial.used.keys():
            del self._placed[name]
            self._capacity.note_used(name)
        for name, used in partial.used.items():
            if self._placed.get(name) is not used:
                self._placed[name] = used
                self._capacity.note_used(name)

    def _add(self, ask: PlanRequest, plan: Plan, partial: PartialPlan) -> PartialPlan:
        used = dict(partial.used)
        for member in ask.members:
            node = plan.nodes.get(member.uid)
            if node is not None:
                used[node] = add(used.get(node) or self._base.get(node, {}), dict(member.shape.requests))
        waves = (*partial.waves, *(plan.waves or (tuple(plan.nodes),)))
        couples = partial.couples or bool(plan.waves)
        return replace(partial, nodes={**partial.nodes, **plan.nodes}, used=used, waves=waves, couples=couples)

    # --- verdicts --------------------------------------------------------------------------------------------------

    def _record_failure(self, ask: PlanRequest, partial: PartialPlan) -> None:
        if self._furthest_failure is None or len(partial.nodes) >= len(self._furthest_failure[1].nodes):
            self._furthest_failure = ask, partial

    def _explain(self, ask: PlanRequest) -> Plan | Verdict:
        """Return the verdict why a tree does not fit, after the search for a plan has failed.

        First the tree is planned as one gang, without regard to its groups. If that fails, return its verdict. If it
        places all members, and the groups constrain nothing (`_is_one_gang`), return its plan. Otherwise return a
        verdict that names the group that could not be placed when the search had placed the most members, if there is
        one.
        """
        flat = self._solve(replace(ask, parts=()), PartialPlan())
        if isinstance(flat, Verdict) or (len(flat.nodes) == len(ask.members) and _is_one_gang(ask)):
            return flat  # the search by groups does not try all ways
        if self._furthest_failure is None:
            return Verdict(Reason.GROUPS_UNPLACED, need=ask.wanted)
        last, partial = self._furthest_failure
        have = sum(part.need > 0 and part.name in partial.domains and part.name != last.name for part in ask.parts)
        why = self._solve(replace(last, parts=()), partial)
        said = render(why) if isinstance(why, Verdict) else "its groups do not fit together"
        return Verdict(Reason.GROUPS_UNPLACED, min(have, ask.wanted), ask.wanted, detail=f"{last.name}: {said}")


def _is_one_gang(ask: PlanRequest) -> bool:
    """Return whether a tree has the constraints of one gang: it needs all members, and no group has a topology key."""
    needed = sum(part.need > 0 for part in ask.parts)
    return ask.wanted == needed == len(ask.parts) and all(
        not part.levels
        and part.topology_key is None
        and (_is_one_gang(part) if part.parts else part.need == len(part.members))
        for part in ask.parts
    )


def _count_groups(ask: PlanRequest) -> int:
    return 1 + sum(map(_count_groups, ask.parts))


def _order_parts(ask: PlanRequest) -> list[PlanRequest]:
    """Return the child groups in the order in which to place them: first those with the fewest possible places.

    Among equals the largest comes first, so that it finds enough free capacity. If not all groups are wanted, the
    smallest comes first, so that many fit. If members of a group must be near members of another group, the other group
    comes first, because there is no place near it before it is placed.
    """
    most = sum(part.need > 0 for part in ask.parts) > ask.wanted
    order = sorted(ask.parts, key=lambda part: (_freedom(part), part.need if most else -part.need))
    mates = [_list_needed_from_other_groups(part) for part in order]
    if not any(mates):
        return order
    counted = [{name for member in part.members for name, _ in member.shape.requests} for part in order]
    left, found = dict.fromkeys(range(len(order))), list[PlanRequest]()
    while left:
        free = (at for at in left if not any(mates[at] & counted[other] for other in left if other != at))
        place = next(free, next(iter(left)))  # groups that need each other nearby: the first one begins
        found.append(order[place])
        del left[place]
    return found


def _list_needed_from_other_groups(ask: PlanRequest) -> set[str]:
    """Return a name for each kind of pods that members of a group need nearby, and that only other groups have.

    A kind of pods are those that an affinity term or spread constraint of a member matches. Serried adds the name of
    the kind to the requests of each such pod, so that these pods can be counted like a resource. Names that members of
    the group itself have in their requests are left out.
    """
    wanted = {amount for amount, _ in _list_nearby(ask)}
    return wanted.difference(name for member in ask.members for name, _ in member.shape.requests) if wanted else wanted


def _list_nearby(ask: PlanRequest) -> Iterator[tuple[str, str]]:
    rules = dict.fromkeys(member.shape.neighbours for member in ask.members)
    for rule in filter(None, rules):
        if rule.beside is not None:
            yield from ((rule.beside.matching.amount, key) for key in rule.beside.keys)
        yield from ((spread.matching.amount, spread.key) for spread in rule.spread)


def _list_leaves(ask: PlanRequest) -> list[PlanRequest]:
    return [leaf for part in ask.parts for leaf in _list_leaves(part)] if ask.parts else [ask]


def _affect_each_other(leaves: Sequence[PlanRequest]) -> bool:
    """Return whether affinity or spread rules of members of one group are about members of another group.

    Then the order in which kube-scheduler tries the members matters.
    """
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


def _record_domain(ask: PlanRequest, domain: str, partial: PartialPlan) -> PartialPlan:
    return replace(partial, domains={**partial.domains, ask.name: (ask.within, domain)})


def _extend_within(ask: PlanRequest, domain: str) -> Within:
    return ask.within if ask.topology_key is None else (*ask.within, (ask.topology_key, domain))


def _pin(ask: PlanRequest, domain: str) -> PlanRequest:
    return ask if ask.topology_key is None else replace(ask, pinned=frozenset({domain}))


def cut_to_quorum(ask: PlanRequest, plan: Plan) -> Plan:
    """Return a group's plan for only as many members as its quorum needs, or for one member if the quorum is running.

    If members have rules about each other, the members that come first in the plan are kept.
    """
    order = [*plan.nodes] if plan.waves else [member.uid for member in ask.members if member.uid in plan.nodes]
    nodes = {uid: plan.nodes[uid] for uid in order[: max(ask.need, 1)]}
    waves = [tuple([uid for uid in wave if uid in nodes]) for wave in plan.waves]
    return replace(plan, nodes=nodes, waves=tuple(filter(None, waves)))
