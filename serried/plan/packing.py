"""Assigns the nodes of a placement (a domain and its nodes) to members (`pack`). `serried.plan.gang` calls it.

Members use as few domains of each narrower level as possible, then as few nodes. The last node is the one with the
least capacity that still holds the remaining members. Members are assigned in the order of domain and node names, so
members with neighbouring ranks are near each other in the topology.

- One shape, several domains: the fewest domains of each level; among equal ways the one that leaves the largest domains
  whole. With one level one pass is exact. Several levels take a dynamic program that counts in domains, not in members;
  beyond a budget of steps the largest domains are used (docs/decisions/0014-placement-measured.md).
- Several shapes are packed one after another. Each uses few domains, but not always the same ones. So smaller sets of
  domains are tried, those with the most capacity first, within a budget.
- If that fails, `mix` tries all ways to fill each node and keeps the states that are not worse than others in every
  class (members of equal shape). That is exact for a few classes of a few dozen members.
"""

import heapq
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, combinations
from operator import itemgetter
from typing import NamedTuple

from serried.api.pod import Pod
from serried.api.preference import Style
from serried.api.resources import Resources, add, count_slots
from serried.plan.capacity import Census, MemberClass, NodeCount
from serried.plan.coupled import place_one_by_one
from serried.plan.limit import Limit
from serried.plan.placement import ExcludedPair, Placement, PlanState, SearchLevel, StepBudget

Counts = tuple[int, ...]
"""A number of members for each class (members of equal shape), in the order of the plan's classes."""

MAX_CLASSES = 4
"""The maximum number of different shapes among the members for which all ways to fill the nodes are tried (`mix`)."""

_COMPARISONS_PER_STEP = 8
"""The number of comparisons that `mix` counts as one step of its budget.

Each compares two states of the search, i.e. the numbers of members of each class that are still to be placed.
"""


class Bin(NamedTuple):
    """A node as an input of `mix`, before any member is assigned."""

    name: str
    allocatable: Resources
    used: Resources

    slots: Counts
    """The number of members of each class that fit on the node if no other members are there.

    A class has the members of equal shape.
    """


def mix(
    wanted: Counts, need: int, requests: Sequence[Resources], bins: Sequence[Bin], budget: StepBudget
) -> dict[str, Counts] | None:
    """Find a way to place at least ``need`` of the ``wanted`` members on the nodes ``bins``, by trying all ways.

    That is for members of several classes, which compete for the nodes. A class has members of equal shape. ``wanted``
    has the number of members per class, ``requests`` what a member of each class requests.

    Return how many members of each class each node gets, by node name. Return None if there is no way, if there are
    more than `MAX_CLASSES` classes, or if the budget of search steps is used up before a way is found.
    """
    if len(wanted) > MAX_CLASSES:
        return None
    enough = sum(wanted) - need
    # The members left to place, each with the chain of counts on the nodes so far that led to it.
    frontier: dict[Counts, tuple[Counts, ...]] = {wanted: ()}
    for place, each in enumerate(bins):
        most = tuple(map(min, wanted, each.slots))
        ways: list[Counts] = []
        for way in _fill(most, requests, each.allocatable, each.used, limit=budget.limit):
            ways.append(way)
            if len(frontier) * len(ways) > budget.left:
                break  # the budget does not cover more
        reached = len(frontier) * len(ways)
        if not budget.spend(reached):
            return None
        frontier = _step(frontier, ways, budget.limit)
        if not budget.spend(reached * len(frontier) // _COMPARISONS_PER_STEP):
            return None
        done = min(frontier, key=sum)
        if sum(done) <= enough:
            return {filled.name: given for filled, given in zip(bins[: place + 1], frontier[done], strict=True)}
    return None


def _step(
    frontier: Mapping[Counts, tuple[Counts, ...]], ways: Sequence[Counts], limit: Limit
) -> dict[Counts, tuple[Counts, ...]]:
    reached: dict[Counts, tuple[Counts, ...]] = {}
    for left, chain in frontier.items():
        limit.spend(len(ways))
        for way in ways:
            given = tuple(map(min, left, way))
            rest = tuple(before - now for before, now in zip(left, given, strict=True))
            if rest not in reached:
                reached[rest] = (*chain, given)
    best: dict[Counts, tuple[Counts, ...]] = {}
    for rest in sorted(reached, key=lambda counts: (sum(counts), counts)):
        limit.spend(1 + len(best) // _COMPARISONS_PER_STEP)
        if not any(all(map(int.__le__, other, rest)) for other in best):
            best[rest] = reached[rest]
    return best


def _fill(
    most: Counts, requests: Sequence[Resources], allocatable: Resources, used: Resources, *, limit: Limit
) -> Iterator[Counts]:
    """Yield the ways to fill a node with members so that no further member fits, as the number of members per class.

    ``most`` has the maximum number per class, ``requests`` what a member of each class requests, ``used`` the amounts
    in use on the node. The work is reported to ``limit``, which raises TooLong if the plan takes too much time.
    """
    slots = min(most[0], count_slots(allocatable, used, requests[0]))
    if len(most) == 1:
        yield (slots,)
        return
    found: set[Counts] = set()
    for count in range(slots, -1, -1):
        taken = add(used, {name: amount * count for name, amount in requests[0].items()})
        for rest in _fill(most[1:], requests[1:], allocatable, taken, limit=limit):
            limit.spend(1 + len(found) // _COMPARISONS_PER_STEP)
            if not any(all(map(int.__ge__, other, rest)) for other in found):
                found.add(rest)
                yield (count, *rest)


Cost = tuple[int, ...]
"""The number of domains that members use at each level, the widest level first."""

DomainPath = tuple[str, ...]
"""The names of a domain's parents and of the domain itself, the widest first, such as ``("block-1", "rack-7")``."""

DomainCount = tuple[int, str]
"""The number of members that a domain gets, and its name."""

BestCounts = Sequence[tuple[Cost, int]]
"""The most members that a domain holds, by the number of domains inside it that they use, the fewest domains first.

For instance a block holds 8 members in 1 rack and 12 in 2 racks: ``[((1,), 8), ((2,), 12)]``.
"""

MAX_STEPS = 5_000
"""The maximum number of search steps of `distribute`, some ten milliseconds."""


class _Domain(NamedTuple):
    name: str
    room: int
    best_counts: BestCounts


def distribute(count: int, counts_by_path: Mapping[DomainPath, int], steps: int = MAX_STEPS) -> list[DomainCount]:
    """Distribute ``count`` members over domains of the widest level, so that few domains of each level are used.

    ``counts_by_path`` has for each domain of the narrowest level how many members fit. A path has the domain names of
    all levels, the widest first, such as ``("block-1", "rack-7")``. Return the number of members for each used domain
    of the widest level; they sum to less than ``count`` if fewer fit. With several levels the search takes at most
    ``steps``; if these are not enough, more domains of narrower levels than needed may be used.
    """
    widest = _sum_by(counts_by_path, 1)
    simple = [(share, path[0]) for share, path in choose_leaving_largest(count, widest.items())]
    depth = len(next(iter(counts_by_path), ()))
    if depth <= 1 or not simple or sum(widest.values()) < count:
        return simple
    dense = _fill_largest(count, len(simple), counts_by_path, widest)
    budget = StepBudget(steps)
    domains = _measure_domains(count, counts_by_path, budget)
    if budget.left < 0:
        return dense
    best_counts_by_name = {domain.name: domain.best_counts for domain in domains}
    least = tuple(_count_fewest(count, _sum_by(counts_by_path, level).values()) for level in range(2, depth + 1))
    plain = _price(simple, best_counts_by_name)
    cost = _price(dense, best_counts_by_name)
    if plain == least:
        return simple
    found = simple if plain <= cost else dense
    return _search(count, domains, len(simple), min(plain, cost), budget) or found


def _fill_largest(
    count: int, fewest: int, counts_by_path: Mapping[DomainPath, int], widest: Mapping[DomainPath, int]
) -> list[DomainCount]:
    """Distribute ``count`` members over the largest domains of the widest level, ``fewest`` in number.

    In them as few domains of the next level as possible are used. ``counts_by_path`` has for each domain of the
    narrowest level how many members fit, ``widest`` the same for the widest level. Return the number of members for
    each used domain of the widest level.
    """
    chosen = set(sorted(widest, key=lambda path: (-widest[path], path))[:fewest])
    inside = {path: room for path, room in _sum_by(counts_by_path, 2).items() if path[:1] in chosen}
    shares = _sum_by({path: share for share, path in choose_leaving_largest(count, inside.items())}, 1)
    return [(share, path[0]) for path, share in shares.items()]


def choose_leaving_largest(
    count: int, counts_by_path: Iterable[tuple[DomainPath, int]]
) -> list[tuple[int, DomainPath]]:
    """Distribute ``count`` members over as few domains as possible, such that the largest domains are left free.

    From the largest on, each domain is left out if as many of the smaller ones are enough. So no other choice of as few
    domains leaves more free capacity in one domain for a later gang. Return (members, path) of the used domains; the
    members sum to less than ``count`` if fewer fit. A path has the names of the wider domains and of the domain itself.
    """
    # Among equals the last ones are left out, so the first name sorts last.
    ordered = sorted(counts_by_path, key=lambda room: (room[1], room[0]), reverse=True)
    sums = list(accumulate((free for _, free in ordered), initial=0))
    fewest = next((place for place, held in enumerate(sums) if held >= count), len(ordered))
    chosen: list[tuple[int, DomainPath]] = []
    for place, (path, free) in enumerate(ordered):
        left = fewest - len(chosen)
        if not left:
            break
        if place + left < len(ordered) and sums[place + 1 + left] - sums[place + 1] >= count:
            continue
        chosen.append((min(free, count), path))
        count -= min(free, count)
    return [share for share in chosen if share[0]]


def _search(count: int, domains: Iterable[_Domain], fewest: int, cost: Cost, budget: StepBudget) -> list[DomainCount]:
    """Return a distribution of ``count`` members over ``fewest`` domains that uses the fewest domains inside them.

    ``domains`` are those of the widest level. ``cost`` is the number of domains that a known distribution uses at each
    narrower level; only ways that may be better are searched. Return [] if the budget is used up.

    It fills one table per domain, the largest domain last: how many members fit in this and the domains before it, by
    the number of domains used at each level.
    """
    ordered = sorted(domains, key=lambda domain: (domain.room, domain.name))
    # How many members fit in the 0, 1, 2, ... largest domains together.
    most = list(accumulate((domain.room for domain in reversed(ordered[-fewest:])), initial=0))
    tables: list[dict[Cost, int]] = [{(0,) * (1 + len(cost)): 0}]
    for domain in ordered:
        before = tables[-1]
        # A choice with fewer members than this leaves too many for the other domains.
        ways = [(more, gain) for more, gain in domain.best_counts if gain + most[fewest - 1] >= count]
        if not budget.spend(len(before) * (1 + len(ways))):
            return []
        table = dict(before)
        for spent, held in before.items():
            for more, gain in ways if spent[0] < fewest else ():
                key = (spent[0] + 1, *_add(spent[1:], more))
                total = min(count, held + gain)
                if key[1] <= cost[0] and total + most[fewest - key[0]] >= count and total > table.get(key, -1):
                    table[key] = total
        tables.append(table)
    return _trace_back(count, ordered, tables)


def _trace_back(count: int, ordered: Sequence[_Domain], tables: Sequence[Mapping[Cost, int]]) -> list[DomainCount]:
    """Return the distribution of ``count`` members that uses the fewest domains, from the tables of `_search`.

    ``ordered`` are the domains, and ``tables`` has one more element: each has how many members the domains before it
    hold, by the number of domains used at each level. Among equal ways, the largest domains are left out.
    """
    cheapest = min(spent for spent, held in tables[-1].items() if held >= count)
    # All ways of equal cost, by the cost that is left: the number of members left, and the shares so far.
    ways: dict[Cost, tuple[int, tuple[DomainCount, ...]]] = {cheapest: (count, ())}
    for domain, table in zip(reversed(ordered), reversed(tables[:-1]), strict=True):
        skipping = {left: way for left, way in ways.items() if table.get(left, -1) >= way[0]}
        ways = skipping or _use(domain, table, ways)
    return list(next(iter(ways.values()))[1])


def _use(
    domain: _Domain, table: Mapping[Cost, int], ways: Mapping[Cost, tuple[int, tuple[DomainCount, ...]]]
) -> dict[Cost, tuple[int, tuple[DomainCount, ...]]]:
    used: dict[Cost, tuple[int, tuple[DomainCount, ...]]] = {}
    for left, (count, shares) in ways.items():
        for more, gain in domain.best_counts:
            rest = _subtract(left, (1, *more))
            share = min(gain, count)
            if rest in table and table[rest] >= count - share and count - share < used.get(rest, (count,))[0]:
                used[rest] = count - share, (*shares, (share, domain.name))
    return used


def _measure_domains(count: int, counts_by_path: Mapping[DomainPath, int], budget: StepBudget) -> list[_Domain]:
    """Return each domain of the widest level, with how many members it holds if only some domains inside it are used.

    For instance a block with 3 racks: 8 members in one rack, 15 in two, 20 in three. Numbers end at ``count``, the
    members to place. The result is incomplete if the budget of search steps is used up.
    """
    inside: dict[str, dict[DomainPath, int]] = {}
    for path, room in counts_by_path.items():
        inside.setdefault(path[0], {})[path[1:]] = room
    # Sorted by name, so that the budget ends at the same domain for any order of the nodes.
    return [
        _Domain(name, sum(each.values()), _find_best_counts(count, each, budget))
        for name, each in sorted(inside.items())
    ]


def _find_best_counts(count: int, counts_by_path: Mapping[DomainPath, int], budget: StepBudget) -> BestCounts:
    depth = len(next(iter(counts_by_path)))
    if depth == 0:
        return [((), sum(counts_by_path.values()))]
    domains = _measure_domains(count, counts_by_path, budget)
    if depth == 1:
        sums = list(accumulate(sorted((domain.room for domain in domains), reverse=True)))
        return [((place + 1,), min(held, count)) for place, held in enumerate(sums[: _find_reaching(count, sums) + 1])]
    table: dict[Cost, int] = {(0,) * depth: 0}
    for domain in domains:
        if not budget.spend(len(table) * (1 + len(domain.best_counts))):
            return []
        for spent, held in list(table.items()):
            for more, gain in domain.best_counts if held < count else ():
                key = (spent[0] + 1, *_add(spent[1:], more))
                table[key] = max(table.get(key, 0), min(count, held + gain))
    return _drop_dominated(table)


def _drop_dominated(table: Mapping[Cost, int]) -> BestCounts:
    """Return the useful entries of a table, the fewest domains first.

    ``table`` has the number of members by the number of domains used at each level. An entry is dropped if another one
    holds as many members with no more domains at any level.
    """
    kept: list[tuple[Cost, int]] = []
    for cost, held in sorted(table.items()):
        if held and not any(other >= held and all(map(int.__le__, less, cost)) for less, other in kept):
            kept.append((cost, held))
    return kept


def _price(shares: Iterable[DomainCount], best_counts_by_name: Mapping[str, BestCounts]) -> Cost:
    return _add(*(next(cost for cost, held in best_counts_by_name[name] if held >= share) for share, name in shares))


def _sum_by(counts_by_path: Mapping[DomainPath, int], depth: int) -> dict[DomainPath, int]:
    sums: dict[DomainPath, int] = {}
    for path, room in counts_by_path.items():
        sums[path[:depth]] = sums.get(path[:depth], 0) + room
    return sums


def _count_fewest(count: int, counts_by_path: Iterable[int]) -> int:
    return _find_reaching(count, list(accumulate(sorted(counts_by_path, reverse=True)))) + 1


def _find_reaching(count: int, sums: Sequence[int]) -> int:
    """Return the index of the first of the ascending ``sums`` that is at least ``count``; the last index if none is."""
    return min(bisect_left(sums, count), len(sums) - 1)


def _add(*costs: Cost) -> Cost:
    return tuple(map(sum, zip(*costs, strict=True)))


def _subtract(cost: Cost, less: Cost) -> Cost:
    return tuple(map(int.__sub__, cost, less))


NodesByMember = Mapping[str, str]
"""The node name by member UID."""

Attempt = Callable[[Sequence[str]], dict[str, str]]
"""A function that packs the same members again, using only the nodes with these names."""


def use_fewer_domains(
    state: PlanState, below: Sequence[str], placement: Placement, nodes: NodesByMember, attempt: Attempt
) -> NodesByMember:
    """Return nodes for at least as many members in fewer domains than ``nodes``; ``nodes`` itself if none are found.

    ``below`` are the label keys of the levels below the placement, the widest first. Fewer domains are tried at one
    level after another. ``attempt`` places the same members again on the nodes with the given names only, and returns
    the node name by member UID; it is called with smaller sets of nodes.
    """
    if len(state.classes) > state.improving_budget.left:
        return nodes
    free = [{name: slots for slots, name in state.census.node_counts(kind, placement.names)} for kind in state.classes]
    if not state.improving_budget.spend(sum(map(len, free))):
        return nodes
    names = sorted({name for each in free for name in each})
    for depth in range(1, len(below) + 1):
        paths = {name: tuple([state.census.label(level, name) for level in below[:depth]]) for name in names}
        inside: dict[DomainPath, list[str]] = {}
        for name in names:
            inside.setdefault(paths[name], []).append(name)
        counts_by_path = {path: _count(free, each) for path, each in inside.items()}
        used = {paths[name] for name in nodes.values()}
        for chosen in _list_sets(_count_members(state, nodes), len(used), counts_by_path, state.improving_budget):
            among = [name for path in chosen for name in inside[path]]
            if not state.improving_budget.spend(2 * len(among) * len(free)):
                break
            found = attempt(among)
            if len(found) >= len(nodes):
                nodes, used = found, set(chosen)
                break
        names = [name for name in names if paths[name] in used]
    return nodes


def _count_members(state: PlanState, nodes: NodesByMember) -> Counts:
    return tuple(sum(member.uid in nodes for member in kind.members) for kind in state.classes)


def _count(free: Sequence[Mapping[str, int]], names: Sequence[str]) -> Counts:
    return tuple(sum(each.get(name, 0) for name in names) for each in free)


def _list_sets(
    wanted: Counts, used: int, counts_by_path: Mapping[DomainPath, Counts], budget: StepBudget
) -> Iterator[tuple[DomainPath, ...]]:
    """Yield sets of fewer than ``used`` domains that may hold the ``wanted`` members, the smallest sets first.

    ``counts_by_path`` has how many members of each class fit in each domain. A set is yielded if each class would fit
    there if there were no other class. It ends when the budget of search steps is used up.
    """

    def share(path: DomainPath) -> float:
        return sum(min(1.0, room / count) for room, count in zip(counts_by_path[path], wanted, strict=True) if count)

    ordered = sorted(counts_by_path, key=lambda path: (-share(path), path))
    for size in range(1, used):
        if not _is_enough(wanted, [sorted(column)[-size:] for column in zip(*counts_by_path.values(), strict=True)]):
            continue
        for chosen in combinations(ordered, size):
            if not budget.spend(size):
                return
            if _is_enough(wanted, zip(*(counts_by_path[path] for path in chosen), strict=True)):
                yield chosen


def _is_enough(wanted: Counts, columns: Iterable[Iterable[int]]) -> bool:
    return all(sum(column) >= count for column, count in zip(columns, wanted, strict=True))


ExcludedNodes = frozenset[str]
"""The names of the nodes that kube-scheduler has rejected for a member, so that the member must not use them."""

Batch = tuple[MemberClass, Sequence[Pod]]
"""A class (members of equal shape), and those of its members that are placed together."""


_NONE: ExcludedNodes = frozenset()


def choose_nodes(count: int, node_counts: Iterable[NodeCount]) -> list[NodeCount]:
    """Return how many of ``count`` members each chosen node gets, in name order, so that few nodes are used.

    ``node_counts`` has how many members fit on each node. The result sums to less than ``count`` if fewer fit.
    """
    node_counts = list(node_counts)
    enough = [room for room in node_counts if room[0] >= count]
    if enough:  # the same result as below, without sorting
        return [(count, min(enough)[1])] if count else []
    chosen: list[NodeCount] = []
    largest_first = sorted((-free, name) for free, name in node_counts)
    for position, (free, name) in enumerate(largest_first):
        if -free < count:
            chosen.append((-free, name))
            count += free
            continue
        if count:
            _, tightest = min((-room, host) for room, host in largest_first[position:] if -room >= count)
            chosen.append((count, tightest))
        break
    return sorted(chosen, key=lambda room: room[1])


def spread_nodes(count: int, node_counts: Iterable[NodeCount]) -> list[NodeCount]:
    """Return how many of ``count`` members each chosen node gets, in name order, as evenly as possible.

    ``node_counts`` has how many members fit on each node. The result sums to less than ``count`` if fewer fit.
    """
    given: dict[str, int] = {}
    # Sorted by fewest members, then by the most that fit at the start.
    heap = [(0, -free, name) for free, name in node_counts]
    heapq.heapify(heap)
    while heap and count:
        taken, free, name = heapq.heappop(heap)
        count -= 1
        given[name] = taken + 1
        if taken + 1 < -free:
            heapq.heappush(heap, (taken + 1, free, name))
    return sorted(((taken, name) for name, taken in given.items()), key=lambda room: room[1])


def fill(
    count: int, node_counts: Sequence[NodeCount], levels: Sequence[Callable[[str], str]], style: Style
) -> list[NodeCount]:
    """Return how many of ``count`` members each chosen node gets, following the topology.

    ``node_counts`` has how many members fit on each node. ``levels`` return a node's domain ("" without one) at each
    level below the placement, the widest first. As few domains of the widest level as possible are used, and in each as
    few of the next one. With Style.SPREAD members are spread evenly over domains and nodes instead.
    """
    spread = style is Style.SPREAD
    if not levels:
        return spread_nodes(count, node_counts) if spread else choose_nodes(count, node_counts)
    inside: dict[str, list[NodeCount]] = {}
    for room in node_counts:
        inside.setdefault(levels[0](room[1]), []).append(room)
    sums = [(sum(free for free, _ in each), domain) for domain, each in inside.items()]
    chosen = spread_nodes(count, sums) if spread else distribute(count, _sum_paths(node_counts, levels))
    return [
        room
        for share, domain in sorted(chosen, key=itemgetter(1))
        for room in fill(share, inside[domain], levels[1:], style)
    ]


def _sum_paths(node_counts: Sequence[NodeCount], levels: Sequence[Callable[[str], str]]) -> dict[DomainPath, int]:
    sums: dict[DomainPath, int] = {}
    for free, name in node_counts:
        path = tuple([level(name) for level in levels])
        sums[path] = sums.get(path, 0) + free
    return sums


def match_members(
    members: Sequence[Pod], node_counts: Sequence[NodeCount], excluded: Mapping[str, ExcludedNodes]
) -> dict[str, str]:
    """Return the node name by member UID for as many members as possible. Members need not fit everywhere.

    ``node_counts`` has how many members each node may get, ``excluded`` the nodes that each member (by UID) must not
    use. Earlier members have precedence. It is a bipartite matching by augmenting paths: a member may move another one
    to another node that is allowed for that one. It is exact for members of equal shape. Paths are searched for
    all members with equal excluded nodes at once.
    """
    match = _Match(node_counts)
    full: set[ExcludedNodes] = set()
    for member in members:
        kind = excluded[member.uid]
        # If members with these excluded nodes find no place now, they will not find one later.
        if kind not in full and not match.admit(member.uid, kind):
            full.add(kind)
    return {uid: name for name, kinds in match.guests.items() for uids in kinds.values() for uid in uids}


class _Match:
    def __init__(self, node_counts: Sequence[NodeCount]) -> None:
        self.guests: dict[str, dict[ExcludedNodes, list[str]]] = {name: {} for _, name in node_counts}
        self._free = {name: slots for slots, name in node_counts}
        self._names = list(self._free)
        self._next: dict[ExcludedNodes, int] = {}

    def admit(self, uid: str, kind: ExcludedNodes) -> bool:
        """Assign a node to the member ``uid``, whose excluded nodes are ``kind``.

        Other members are moved to other nodes if needed.

        Return False, and change nothing, if there is no way.
        """
        # Places are never freed, so the search continues at the node where the last one was found.
        place = self._next.get(kind, 0)
        while place < len(self._names) and (not self._free[self._names[place]] or self._names[place] in kind):
            place += 1
        self._next[kind] = place
        if place < len(self._names):
            self._free[self._names[place]] -= 1
            self._assign(uid, kind, self._names[place])
            return True
        return self._push(uid, kind)

    def _push(self, uid: str, kind: ExcludedNodes) -> bool:
        came: dict[str, tuple[ExcludedNodes, str]] = {}
        closed = self._names
        queue: deque[tuple[ExcludedNodes, str]] = deque([(kind, "")])
        seen = {kind}
        while queue:
            mover, origin = queue.popleft()
            reached = [name for name in closed if name not in mover]
            closed = [name for name in closed if name in mover]
            came.update((name, (mover, origin)) for name in reached)
            target = next((name for name in reached if self._free[name]), None)
            if target is not None:
                self._free[target] -= 1
                self._shift(uid, target, came)
                return True
            for name in reached:
                for other in self.guests[name]:
                    if other not in seen:
                        seen.add(other)
                        queue.append((other, name))
        return False

    def _shift(self, uid: str, target: str, came: Mapping[str, tuple[ExcludedNodes, str]]) -> None:
        kind, origin = came[target]
        while origin:
            uids = self.guests[origin][kind]
            self._assign(uids.pop(0), kind, target)
            if not uids:
                del self.guests[origin][kind]
            target = origin
            kind, origin = came[target]
        self._assign(uid, kind, target)

    def _assign(self, uid: str, kind: ExcludedNodes, name: str) -> None:
        self.guests[name].setdefault(kind, []).append(uid)


class Packing:
    """One attempt to place the members of a gang on the nodes of one domain.

    `_attempt` makes one for each order of classes (a class has the members of equal shape). The caller calls
    `add_batch` for one batch after another; members of earlier batches are never moved. ``nodes`` is the result so
    far: node name by member UID.
    """

    def __init__(
        self, census: Census, placement: Placement, below: Sequence[str], style: Style, barred: Collection[ExcludedPair]
    ) -> None:
        self.nodes: dict[str, str] = {}
        self._census = census
        self._placement = placement
        self._levels = [partial(census.label, level) for level in below]
        self._style = style
        self._excluded_nodes: dict[str, set[str]] = {}
        for uid, name in barred:
            self._excluded_nodes.setdefault(uid, set()).add(name)
        self._taken: dict[str, dict[str, int]] = {}

    def add_batch(self, batch: Batch) -> None:
        """Place as many members of the batch as fit besides those placed before.

        A batch has members of equal shape. The first of them have precedence.
        """
        kind, members = batch
        self._census.limit.spend(len(members))
        node_counts = self._list_node_counts(kind)
        self._census.limit.spend(len(node_counts))
        excluded = self._find_excluded_nodes(members, node_counts)
        everywhere = frozenset.intersection(*excluded.values()) if excluded else _NONE
        if everywhere:  # excluded for the whole class, so no matching is needed for them
            node_counts = [room for room in node_counts if room[1] not in everywhere]
        chosen = fill(len(members), node_counts, self._levels, self._style)
        self._census.limit.spend(len(chosen))
        if any(each != everywhere for each in excluded.values()):
            hosts = {name for _, name in chosen}
            free = {name: slots for slots, name in node_counts}
            others = sorted((slots, name) for slots, name in node_counts if name not in hosts)
            placed = match_members(members, [(free[name], name) for _, name in chosen] + others, excluded)
        else:
            order = (name for count, name in chosen for _ in range(count))
            placed = {member.uid: name for member, name in zip(members, order, strict=False)}
        self.nodes.update(placed)
        self._take(kind, placed.values())

    def _find_excluded_nodes(
        self, members: Sequence[Pod], node_counts: Sequence[NodeCount]
    ) -> dict[str, ExcludedNodes]:
        """Return for each member by UID which of these nodes it must not use; {} if each may use all of them."""
        if not self._excluded_nodes:
            return {}
        names = {name for _, name in node_counts}
        excluded = {member.uid: frozenset(self._excluded_nodes.get(member.uid, _NONE) & names) for member in members}
        return excluded if any(excluded.values()) else {}

    def _list_node_counts(self, kind: MemberClass) -> list[NodeCount]:
        node_counts = self._census.node_counts(kind, self._placement.names)
        taken = self._taken
        if not taken:
            return node_counts
        node_counts = [(self._recount(kind, name) if name in taken else free, name) for free, name in node_counts]
        return [room for room in node_counts if room[0]]

    def _recount(self, kind: MemberClass, name: str) -> int:
        used = add(self._census.used(name), self._taken[name])
        return count_slots(self._census.allocatable(name), used, kind.request)

    def _take(self, kind: MemberClass, hosts: Iterable[str]) -> None:
        for name in hosts:
            self._taken[name] = add(self._taken.get(name, {}), kind.request)


def pack(state: PlanState, search_level: SearchLevel, placement: Placement) -> Mapping[str, str]:
    """Return the node name by member UID, for as many of the gang's members as could be placed in one domain.

    ``placement`` is the domain, which is one of ``search_level``. In it, members use as few domains of the levels
    ``search_level.below`` as possible. The result is kept in ``state``, so repeated calls return the same.
    """
    tried = search_level, placement.domain
    found = state.packings.get(tried)
    if found is None:
        found = state.packings[tried] = _pack(state, search_level, placement)
    return found


def _pack(state: PlanState, search_level: SearchLevel, placement: Placement) -> Mapping[str, str]:
    if state.couples:
        return _place_one_by_one(state, search_level, placement)
    nodes = _attempt(state, search_level.below, placement, state.budget)
    mixed = len(state.classes) > 1 and state.ask.style is Style.PACK and not state.find_excluded(placement)
    if not (mixed and nodes and search_level.below):
        return nodes

    def attempt(names: Sequence[str]) -> dict[str, str]:
        return _attempt(state, search_level.below, replace(placement, names=names), state.improving_budget)

    return use_fewer_domains(state, search_level.below, placement, nodes, attempt)


def _place_one_by_one(state: PlanState, search_level: SearchLevel, placement: Placement) -> Mapping[str, str]:
    """Return the node name by member UID for members with rules about each other.

    The order is one that kube-scheduler can follow: each node is feasible once the members before are assumed. Members
    of a class come in the order of rank. Among nodes that are interchangeable for the rules, neighbours in rank get
    nodes that are near each other in the topology.
    """
    assert state.rules is not None  # noqa: S101 - for the type checker: the callers have checked it
    order, keys = (
        [kind for kind, _ in _sort_by_scarcity(state.classes, state.totals(placement))],
        state.rules.list_keys(),
    )
    moves = place_one_by_one(state, placement, order)
    excluded: dict[str, set[str]] = {}
    for uid, name in state.find_excluded(placement):
        excluded.setdefault(uid, set()).add(name)
    node_names = {
        kind: _sort_alike(state.census, keys, search_level.below, [name for each, name in moves if each is kind])
        for kind in order
    }
    waiting: dict[tuple[MemberClass, str], list[str]] = {}
    for kind in order:
        for uid, name in _assign(kind.members, node_names[kind], excluded).items():
            waiting.setdefault((kind, name), []).append(uid)
    coming = {kind: iter(names) for kind, names in node_names.items()}
    taken = [(kind, next(coming[kind])) for kind, _ in moves]
    return {waiting[move].pop(0): move[1] for move in taken if waiting.get(move)}


def _sort_alike(census: Census, keys: Iterable[str], below: Sequence[str], names: Sequence[str]) -> list[str]:
    """Sort node names, but only exchange nodes that have equal values for all ``keys``.

    Nodes are sorted by their domains in the levels ``below``, then by name. The ``keys`` are the labels that matter to
    the rules, so an order of nodes that is valid for the rules stays valid.
    """
    levels, cells = tuple(keys), dict[tuple[str, ...], list[str]]()
    for name in names:
        cells.setdefault(tuple([census.label(key, name) for key in levels]), []).append(name)
    ranked = {
        cell: iter(sorted(here, key=lambda name: (*(census.label(level, name) for level in below), name)))
        for cell, here in cells.items()
    }
    return [next(ranked[tuple([census.label(key, name) for key in levels])]) for name in names]


def _assign(
    members: Sequence[Pod], node_names: Sequence[str], excluded: Mapping[str, Collection[str]]
) -> dict[str, str]:
    """Return the node name by member UID: the first member gets the first of ``node_names``, and so on.

    ``excluded`` has the nodes that a member must not get, by its UID. If it names a member, members exchange nodes
    until none has an excluded one. Members for which that is impossible are left out of the result.
    """
    if any(member.uid in excluded for member in members):
        node_counts = [(count, name) for name, count in Counter(node_names).items()]
        return match_members(
            members, node_counts, {each.uid: frozenset(excluded.get(each.uid, ())) for each in members}
        )
    return {member.uid: name for member, name in zip(members, node_names, strict=False)}


def _attempt(state: PlanState, below: Sequence[str], placement: Placement, budget: StepBudget) -> dict[str, str]:
    """Try some orders of the classes. Return the node name by member UID of the order that places the most members.

    A class has the members of equal shape. Classes are placed one after another and never moved. That is exact for one
    class. If several do not fit like that, `mix` is tried within the budget of search steps. So members may seem not to
    fit although they do, but a returned plan is always valid.

    ``below`` are the label keys of the levels below the placement, of which few domains are used, the widest first.
    """
    best: dict[str, str] = {}
    barred = state.find_excluded(placement)
    for batches in _list_orders(state, state.totals(placement)):
        packing = Packing(state.census, placement, below, state.ask.style, barred)
        for batch in batches:
            packing.add_batch(batch)
        if len(packing.nodes) > len(best):
            best = packing.nodes
        if len(best) == len(state.ask.members):
            return best
    if len(best) >= max(state.ask.need, 1) or barred or len(state.classes) == 1:
        return best
    if len(state.classes) > MAX_CLASSES or not state.may_hold(placement):
        return best
    return _mix(state, placement, budget) or best


def _mix(state: PlanState, placement: Placement, budget: StepBudget) -> dict[str, str]:
    """Return the node name by member UID for the quorum, as found by `mix`; {} if it finds no way."""
    free = [{name: slots for slots, name in state.census.node_counts(kind, placement.names)} for kind in state.classes]
    names = sorted(
        {name for each in free for name in each}, key=lambda name: (-max(f.get(name, 0) for f in free), name)
    )
    bins = [
        Bin(name, state.census.allocatable(name), state.census.used(name), tuple(each.get(name, 0) for each in free))
        for name in names
    ]
    state.limit.spend(len(names))
    wanted = tuple(len(kind.members) for kind in state.classes)
    requests = [kind.request for kind in state.classes]
    found = mix(wanted, max(state.ask.need, 1), requests, bins, budget) or {}
    nodes: dict[str, str] = {}
    for place, kind in enumerate(state.classes):
        order = (name for name in sorted(found) for _ in range(found[name][place]))
        nodes.update({member.uid: name for member, name in zip(kind.members, order, strict=False)})
    return nodes


def _list_orders(state: PlanState, totals: Sequence[int]) -> list[list[Batch]]:
    """Return the orders in which to try to place the members, each order as a list of batches of equal members.

    A class has the members of equal shape; ``totals`` has how many of each class fit. The first order begins with the
    class that has the fewest places for each of its members. In the second one the members of the quorum come before
    the other members; it is left out if there are no others, or if no member is needed. The third one is the first
    one reversed. If the quorum does not fit even by ``totals``, only the third order is returned. For one class, only
    the first order is returned.
    """
    whole = _sort_by_scarcity(state.classes, totals)
    if len(whole) == 1:
        return [whole]
    need = state.ask.need
    easiest = whole[::-1]
    if sum(min(total, len(kind.members)) for kind, total in zip(state.classes, totals, strict=True)) < need:
        return [easiest]
    if not 0 < need < len(state.ask.members):
        return [whole, easiest]
    first = frozenset(member.uid for member in state.ask.members[:need])
    quorum: list[Batch] = [(kind, [m for m in members if m.uid in first]) for kind, members in whole]
    rest: list[Batch] = [(kind, [m for m in members if m.uid not in first]) for kind, members in whole]
    return [whole, quorum + rest, easiest]


def _sort_by_scarcity(classes: Sequence[MemberClass], totals: Sequence[int]) -> list[Batch]:
    """Return the classes of equal members, those with the fewest places for each of their members first.

    ``totals`` has how many members of each class fit. Among equals the class that requests more comes first.
    """
    ranked = [(total / len(kind.members), kind) for kind, total in zip(classes, totals, strict=True)]
    ranked.sort(key=lambda entry: entry[1].shape.requests, reverse=True)
    ranked.sort(key=lambda entry: entry[0])
    return [(kind, kind.members) for _, kind in ranked]
