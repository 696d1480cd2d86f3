"""Which members get which nodes of a placement.

Packed: as few domains of each narrower level as possible, then as few nodes, and the last of them the one with the
least room that still holds the rest. Members go onto the chosen nodes in the order of domain and name, so neighbours in
rank are neighbours on the topology.

- One shape over several domains: as few as possible of each level; of equal ways the one that leaves the largest
  domains whole. One level is exact in one pass. Several take a dynamic program that counts in domains, not in members;
  beyond a budget of steps the largest domains are taken (docs/decisions/0014-placement-measured.md).
- Several shapes, packed one after another: each takes few domains, but not always the same ones. So sets of fewer are
  tried, those with most room first, as far as the budget goes.
- Where that does not do: node by node all ways to fill it are tried, and of the numbers of members left only those are
  kept that are not worse than others in every class. That is exact for a few classes of a few dozen members.
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
from serried.plan.capacity import Census, MemberClass, NodeSlots
from serried.plan.coupled import place_coupled
from serried.plan.limit import Limit
from serried.plan.placement import Budget, Pair, Placement, Step, Trial

Counts = tuple[int, ...]
"""A number for each class, in their order."""

MAX_CLASSES = 4
"""With how many classes of members a mix is tried."""

_COMPARISONS_PER_STEP = 8
"""How many comparisons of two states cost as much as the making of one."""


class Bin(NamedTuple):
    """A node as it is."""

    name: str
    allocatable: Resources
    used: Resources

    slots: Counts
    """How many members of each class it takes at most, each class as if it were alone."""


def mix(
    wanted: Counts, need: int, requests: Sequence[Resources], bins: Sequence[Bin], budget: Budget
) -> dict[str, Counts] | None:
    """How many members of each class each node gets, ``need`` in all.

    None if there is no such way, or if the budget is used up before one is found.
    """
    if len(wanted) > MAX_CLASSES:
        return None
    enough = sum(wanted) - need
    # What is still to be placed, and how it came to that: a chain of (state before, counts on this node).
    frontier: dict[Counts, tuple[Counts, ...]] = {wanted: ()}
    for place, each in enumerate(bins):
        most = tuple(map(min, wanted, each.slots))
        ways: list[Counts] = []
        for way in _fill(most, requests, each.allocatable, each.used, limit=budget.limit):
            ways.append(way)
            if len(frontier) * len(ways) > budget.left:
                break  # what is left would be taken all the same
        reached = len(frontier) * len(ways)
        if not budget.take(reached):
            return None
        frontier = _step(frontier, ways, budget.limit)
        if not budget.take(reached * len(frontier) // _COMPARISONS_PER_STEP):
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
    """All the ways to fill a node up, none of which leaves room for one more wanted member."""
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
"""How many domains of each level are touched, the widest level first."""

Path = tuple[str, ...]
"""The names of a domain and of those it is in, from a level on, the widest first."""

Share = tuple[int, str]
"""How many members a domain gets, and its name."""

Front = Sequence[tuple[Cost, int]]
"""The most members that a domain holds at each cost in the levels inside it, cheapest first."""

MAX_STEPS = 5_000
"""How many steps one search may take: some ten milliseconds."""


class _Domain(NamedTuple):
    name: str
    room: int
    front: Front


def share_out(count: int, rooms: Mapping[Path, int], steps: int = MAX_STEPS) -> list[Share]:
    """How many of ``count`` members each domain of the widest level gets.

    ``rooms`` are the slots of the narrowest domains. Fewer than ``count`` in all if there is less room. Over several
    levels ``steps`` bound the search.
    """
    widest = _sum_by(rooms, 1)
    simple = [(share, path[0]) for share, path in leave_largest(count, widest.items())]
    depth = len(next(iter(rooms), ()))
    if depth <= 1 or not simple or sum(widest.values()) < count:
        return simple
    dense = _take_largest(count, len(simple), rooms, widest)
    budget = Budget(steps)
    domains = _weigh(count, rooms, budget)
    if budget.left < 0:
        return dense
    fronts = {domain.name: domain.front for domain in domains}
    least = tuple(_count_fewest(count, _sum_by(rooms, level).values()) for level in range(2, depth + 1))
    plain = _price(simple, fronts)
    cost = _price(dense, fronts)
    if plain == least:
        return simple
    found = simple if plain <= cost else dense
    return _search(count, domains, len(simple), min(plain, cost), budget) or found


def _take_largest(count: int, fewest: int, rooms: Mapping[Path, int], widest: Mapping[Path, int]) -> list[Share]:
    """The largest domains, this many, and of all that is inside them as few of the next level as will do."""
    chosen = set(sorted(widest, key=lambda path: (-widest[path], path))[:fewest])
    inside = {path: room for path, room in _sum_by(rooms, 2).items() if path[:1] in chosen}
    shares = _sum_by({path: share for share, path in leave_largest(count, inside.items())}, 1)
    return [(share, path[0]) for path, share in shares.items()]


def leave_largest(count: int, rooms: Iterable[tuple[Path, int]]) -> list[tuple[int, Path]]:
    """The fewest domains that hold ``count``, and of all such choices the one that leaves the largest ones whole.

    From the largest on, each is left out if as many of those after it would do. So no choice of as few leaves room for
    a larger gang in one domain: each other one takes all domains that are larger than the largest that is left here.
    Fewer than ``count`` if there is less room.
    """
    # Of equals the last ones are left out, so the first name comes last.
    ordered = sorted(rooms, key=lambda room: (room[1], room[0]), reverse=True)
    sums = list(accumulate((free for _, free in ordered), initial=0))
    fewest = next((place for place, held in enumerate(sums) if held >= count), len(ordered))
    chosen: list[tuple[int, Path]] = []
    for place, (path, free) in enumerate(ordered):
        left = fewest - len(chosen)
        if not left:
            break
        if place + left < len(ordered) and sums[place + 1 + left] - sums[place + 1] >= count:
            continue
        chosen.append((min(free, count), path))
        count -= min(free, count)
    return [share for share in chosen if share[0]]


def _search(count: int, domains: Iterable[_Domain], fewest: int, cost: Cost, budget: Budget) -> list[Share]:
    """The cheapest way over ``fewest`` domains, which costs no more than ``cost`` inside them; [] if it takes too long.

    Table by table one more domain may be used, the larger ones last: so it is known of each, the largest first, whether
    those after it would do.
    """
    ordered = sorted(domains, key=lambda domain: (domain.room, domain.name))
    # What the largest hold together, by how many they are.
    most = list(accumulate((domain.room for domain in reversed(ordered[-fewest:])), initial=0))
    tables: list[dict[Cost, int]] = [{(0,) * (1 + len(cost)): 0}]
    for domain in ordered:
        before = tables[-1]
        # A choice that takes fewer members than this leaves too many for all others.
        ways = [(more, gain) for more, gain in domain.front if gain + most[fewest - 1] >= count]
        if not budget.take(len(before) * (1 + len(ways))):
            return []
        table = dict(before)
        for spent, held in before.items():
            for more, gain in ways if spent[0] < fewest else ():
                key = (spent[0] + 1, *_add(spent[1:], more))
                total = min(count, held + gain)
                if key[1] <= cost[0] and total + most[fewest - key[0]] >= count and total > table.get(key, -1):
                    table[key] = total
        tables.append(table)
    return _trace(count, ordered, tables)


def _trace(count: int, ordered: Sequence[_Domain], tables: Sequence[Mapping[Cost, int]]) -> list[Share]:
    """The cheapest way through the tables that leaves the largest domains out."""
    cheapest = min(spent for spent, held in tables[-1].items() if held >= count)
    # Several ways at once, by what they may spend yet: how many members are left to be placed, and who has been.
    ways: dict[Cost, tuple[int, tuple[Share, ...]]] = {cheapest: (count, ())}
    for domain, table in zip(reversed(ordered), reversed(tables[:-1]), strict=True):
        skipping = {left: way for left, way in ways.items() if table.get(left, -1) >= way[0]}
        ways = skipping or _use(domain, table, ways)
    return list(next(iter(ways.values()))[1])


def _use(
    domain: _Domain, table: Mapping[Cost, int], ways: Mapping[Cost, tuple[int, tuple[Share, ...]]]
) -> dict[Cost, tuple[int, tuple[Share, ...]]]:
    used: dict[Cost, tuple[int, tuple[Share, ...]]] = {}
    for left, (count, shares) in ways.items():
        for more, gain in domain.front:
            rest = _subtract(left, (1, *more))
            share = min(gain, count)
            if rest in table and table[rest] >= count - share and count - share < used.get(rest, (count,))[0]:
                used[rest] = count - share, (*shares, (share, domain.name))
    return used


def _weigh(count: int, rooms: Mapping[Path, int], budget: Budget) -> list[_Domain]:
    """The domains of the widest level; without meaning once the budget is used up."""
    inside: dict[str, dict[Path, int]] = {}
    for path, room in rooms.items():
        inside.setdefault(path[0], {})[path[1:]] = room
    # By name: a budget that ends must end at the same place whatever the order of the nodes.
    return [
        _Domain(name, sum(each.values()), _find_front(count, each, budget)) for name, each in sorted(inside.items())
    ]


def _find_front(count: int, rooms: Mapping[Path, int], budget: Budget) -> Front:
    depth = len(next(iter(rooms)))
    if depth == 0:
        return [((), sum(rooms.values()))]
    domains = _weigh(count, rooms, budget)
    if depth == 1:
        sums = list(accumulate(sorted((domain.room for domain in domains), reverse=True)))
        return [((place + 1,), min(held, count)) for place, held in enumerate(sums[: _place(count, sums) + 1])]
    table: dict[Cost, int] = {(0,) * depth: 0}
    for domain in domains:
        if not budget.take(len(table) * (1 + len(domain.front))):
            return []
        for spent, held in list(table.items()):
            for more, gain in domain.front if held < count else ():
                key = (spent[0] + 1, *_add(spent[1:], more))
                table[key] = max(table.get(key, 0), min(count, held + gain))
    return _drop_worse(table)


def _drop_worse(table: Mapping[Cost, int]) -> Front:
    """Only what holds more than everything that costs no more at any level."""
    kept: list[tuple[Cost, int]] = []
    for cost, held in sorted(table.items()):
        if held and not any(other >= held and all(map(int.__le__, less, cost)) for less, other in kept):
            kept.append((cost, held))
    return kept


def _price(shares: Iterable[Share], fronts: Mapping[str, Front]) -> Cost:
    return _add(*(next(cost for cost, held in fronts[name] if held >= share) for share, name in shares))


def _sum_by(rooms: Mapping[Path, int], depth: int) -> dict[Path, int]:
    sums: dict[Path, int] = {}
    for path, room in rooms.items():
        sums[path[:depth]] = sums.get(path[:depth], 0) + room
    return sums


def _count_fewest(count: int, rooms: Iterable[int]) -> int:
    return _place(count, list(accumulate(sorted(rooms, reverse=True)))) + 1


def _place(count: int, sums: Sequence[int]) -> int:
    """Which of ascending sums is the first that reaches ``count``, the last one if none does."""
    return min(bisect_left(sums, count), len(sums) - 1)


def _add(*costs: Cost) -> Cost:
    return tuple(map(sum, zip(*costs, strict=True)))


def _subtract(cost: Cost, less: Cost) -> Cost:
    return tuple(map(int.__sub__, cost, less))


Nodes = Mapping[str, str]
"""Member uid to node name."""

Attempt = Callable[[Sequence[str]], dict[str, str]]
"""A packing of the same members that uses only these nodes."""


def narrow(trial: Trial, below: Sequence[str], placement: Placement, nodes: Nodes, attempt: Attempt) -> Nodes:
    """As many members on as few domains of the levels ``below`` as are found, the widest level first."""
    if len(trial.classes) > trial.spare_budget.left:
        return nodes
    free = [{name: slots for slots, name in trial.census.node_slots(kind, placement.names)} for kind in trial.classes]
    if not trial.spare_budget.take(sum(map(len, free))):
        return nodes
    names = sorted({name for each in free for name in each})
    for depth in range(1, len(below) + 1):
        paths = {name: tuple([trial.census.label(level, name) for level in below[:depth]]) for name in names}
        inside: dict[Path, list[str]] = {}
        for name in names:
            inside.setdefault(paths[name], []).append(name)
        rooms = {path: _count(free, each) for path, each in inside.items()}
        used = {paths[name] for name in nodes.values()}
        for chosen in _list_sets(_count_members(trial, nodes), len(used), rooms, trial.spare_budget):
            among = [name for path in chosen for name in inside[path]]
            if not trial.spare_budget.take(2 * len(among) * len(free)):
                break
            found = attempt(among)
            if len(found) >= len(nodes):
                nodes, used = found, set(chosen)
                break
        names = [name for name in names if paths[name] in used]
    return nodes


def _count_members(trial: Trial, nodes: Nodes) -> Counts:
    return tuple(sum(member.uid in nodes for member in kind.members) for kind in trial.classes)


def _count(free: Sequence[Mapping[str, int]], names: Sequence[str]) -> Counts:
    return tuple(sum(each.get(name, 0) for name in names) for each in free)


def _list_sets(wanted: Counts, used: int, rooms: Mapping[Path, Counts], budget: Budget) -> Iterator[tuple[Path, ...]]:
    """Sets of fewer domains than ``used`` in which there is room for each class alone, the smallest sets first."""

    def share(path: Path) -> float:
        return sum(min(1.0, room / count) for room, count in zip(rooms[path], wanted, strict=True) if count)

    ordered = sorted(rooms, key=lambda path: (-share(path), path))
    for size in range(1, used):
        if not _would_do(wanted, [sorted(column)[-size:] for column in zip(*rooms.values(), strict=True)]):
            continue
        for chosen in combinations(ordered, size):
            if not budget.take(size):
                return
            if _would_do(wanted, zip(*(rooms[path] for path in chosen), strict=True)):
                yield chosen


def _would_do(wanted: Counts, columns: Iterable[Iterable[int]]) -> bool:
    return all(sum(column) >= count for column, count in zip(columns, wanted, strict=True))


Shut = frozenset[str]
"""Names of nodes that a member must not get."""

Batch = tuple[MemberClass, Sequence[Pod]]

_NONE: Shut = frozenset()


def choose_nodes(count: int, node_slots: Iterable[NodeSlots]) -> list[NodeSlots]:
    """How many members each chosen node gets, in name order; fewer than ``count`` in all if there is less room."""
    node_slots = list(node_slots)
    enough = [room for room in node_slots if room[0] >= count]
    if enough:  # the usual end of what follows, without an order of all
        return [(count, min(enough)[1])] if count else []
    chosen: list[NodeSlots] = []
    largest_first = sorted((-free, name) for free, name in node_slots)
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


def spread_nodes(count: int, node_slots: Iterable[NodeSlots]) -> list[NodeSlots]:
    """The same, with as equal a number of members on each node as there is room for."""
    given: dict[str, int] = {}
    # Fewest members first, then the node that had most room.
    heap = [(0, -free, name) for free, name in node_slots]
    heapq.heapify(heap)
    while heap and count:
        taken, free, name = heapq.heappop(heap)
        count -= 1
        given[name] = taken + 1
        if taken + 1 < -free:
            heapq.heappush(heap, (taken + 1, free, name))
    return sorted(((taken, name) for name, taken in given.items()), key=lambda room: room[1])


def fill(
    count: int, node_slots: Sequence[NodeSlots], levels: Sequence[Callable[[str], str]], style: Style
) -> list[NodeSlots]:
    """How many members each chosen node gets, along the topology.

    ``levels`` give a node's domain ("" without one) at each level below the placement, the widest first: as few domains
    of the widest as possible are chosen, and inside them as few of the next (`subdomains`).
    """
    spread = style is Style.SPREAD
    if not levels:
        return spread_nodes(count, node_slots) if spread else choose_nodes(count, node_slots)
    inside: dict[str, list[NodeSlots]] = {}
    for room in node_slots:
        inside.setdefault(levels[0](room[1]), []).append(room)
    sums = [(sum(free for free, _ in each), domain) for domain, each in inside.items()]
    chosen = spread_nodes(count, sums) if spread else share_out(count, _sum_paths(node_slots, levels))
    return [
        room
        for share, domain in sorted(chosen, key=itemgetter(1))
        for room in fill(share, inside[domain], levels[1:], style)
    ]


def _sum_paths(node_slots: Sequence[NodeSlots], levels: Sequence[Callable[[str], str]]) -> dict[Path, int]:
    sums: dict[Path, int] = {}
    for free, name in node_slots:
        path = tuple([level(name) for level in levels])
        sums[path] = sums.get(path, 0) + free
    return sums


def match_members(members: Sequence[Pod], node_slots: Sequence[NodeSlots], shut: Mapping[str, Shut]) -> dict[str, str]:
    """Member uid to node name where some nodes are shut to some members: as many as possible, earlier ones first.

    Augmenting paths of bipartite matching: a member may push another one to a node that is open to that one. Exact
    for members of one class. Members to which the same nodes are shut are alike, and paths are looked for among kinds
    of members, of which there are few.
    """
    match = _Match(node_slots)
    full: set[Shut] = set()
    for member in members:
        kind = shut[member.uid]
        # Whom no path leads to a free slot, it never does again; nor anybody who is alike.
        if kind not in full and not match.admit(member.uid, kind):
            full.add(kind)
    return {uid: name for name, kinds in match.guests.items() for uids in kinds.values() for uid in uids}


class _Match:
    def __init__(self, node_slots: Sequence[NodeSlots]) -> None:
        self.guests: dict[str, dict[Shut, list[str]]] = {name: {} for _, name in node_slots}
        self._free = {name: slots for slots, name in node_slots}
        self._names = list(self._free)
        self._next: dict[Shut, int] = {}

    def admit(self, uid: str, kind: Shut) -> bool:
        """Give ``uid`` a slot, moving others along the shortest chain if need be; nothing happens without a chain."""
        # Slots are never given back, so it is enough to look on from where the last one was found.
        place = self._next.get(kind, 0)
        while place < len(self._names) and (not self._free[self._names[place]] or self._names[place] in kind):
            place += 1
        self._next[kind] = place
        if place < len(self._names):
            self._free[self._names[place]] -= 1
            self._seat(uid, kind, self._names[place])
            return True
        return self._push(uid, kind)

    def _push(self, uid: str, kind: Shut) -> bool:
        came: dict[str, tuple[Shut, str]] = {}
        closed = self._names
        queue: deque[tuple[Shut, str]] = deque([(kind, "")])
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

    def _shift(self, uid: str, target: str, came: Mapping[str, tuple[Shut, str]]) -> None:
        kind, origin = came[target]
        while origin:
            uids = self.guests[origin][kind]
            self._seat(uids.pop(0), kind, target)
            if not uids:
                del self.guests[origin][kind]
            target = origin
            kind, origin = came[target]
        self._seat(uid, kind, target)

    def _seat(self, uid: str, kind: Shut, name: str) -> None:
        self.guests[name].setdefault(kind, []).append(uid)


class Packing:
    """One attempt at a placement: batches go in one after another, each sees what is left by those before it."""

    def __init__(
        self, census: Census, placement: Placement, below: Sequence[str], style: Style, barred: Collection[Pair]
    ) -> None:
        self.nodes: dict[str, str] = {}
        self._census = census
        self._placement = placement
        self._levels = [partial(census.label, level) for level in below]
        self._style = style
        self._shut: dict[str, set[str]] = {}
        for uid, name in barred:
            self._shut.setdefault(uid, set()).add(name)
        self._taken: dict[str, dict[str, int]] = {}

    def put(self, batch: Batch) -> None:
        """Place as many members of the batch as fit, the first ones first."""
        kind, members = batch
        self._census.limit.spend(len(members))
        node_slots = self._node_slots(kind)
        self._census.limit.spend(len(node_slots))
        shut = self._find_shut(members, node_slots)
        everywhere = frozenset.intersection(*shut.values()) if shut else _NONE
        if everywhere:  # to a class that is refused as one it is as if these nodes were not there
            node_slots = [room for room in node_slots if room[1] not in everywhere]
        chosen = fill(len(members), node_slots, self._levels, self._style)
        self._census.limit.spend(len(chosen))
        if any(each != everywhere for each in shut.values()):
            hosts = {name for _, name in chosen}
            free = {name: slots for slots, name in node_slots}
            others = sorted((slots, name) for slots, name in node_slots if name not in hosts)
            placed = match_members(members, [(free[name], name) for _, name in chosen] + others, shut)
        else:
            order = (name for count, name in chosen for _ in range(count))
            placed = {member.uid: name for member, name in zip(members, order, strict=False)}
        self.nodes.update(placed)
        self._take(kind, placed.values())

    def _find_shut(self, members: Sequence[Pod], node_slots: Sequence[NodeSlots]) -> dict[str, Shut]:
        """The nodes among these that are shut to each member; {} if none is to any."""
        if not self._shut:
            return {}
        names = {name for _, name in node_slots}
        shut = {member.uid: frozenset(self._shut.get(member.uid, _NONE) & names) for member in members}
        return shut if any(shut.values()) else {}

    def _node_slots(self, kind: MemberClass) -> list[NodeSlots]:
        node_slots = self._census.node_slots(kind, self._placement.names)
        taken = self._taken
        if not taken:
            return node_slots
        node_slots = [(self._recount(kind, name) if name in taken else free, name) for free, name in node_slots]
        return [room for room in node_slots if room[0]]

    def _recount(self, kind: MemberClass, name: str) -> int:
        used = add(self._census.used(name), self._taken[name])
        return count_slots(self._census.allocatable(name), used, kind.request)

    def _take(self, kind: MemberClass, hosts: Iterable[str]) -> None:
        for name in hosts:
            self._taken[name] = add(self._taken.get(name, {}), kind.request)


def pack(trial: Trial, step: Step, placement: Placement) -> Mapping[str, str]:
    """Member uid to node name, for as many members as are placed; of one placement always the same."""
    tried = step, placement.domain
    found = trial.packings.get(tried)
    if found is None:
        found = trial.packings[tried] = _pack(trial, step, placement)
    return found


def _pack(trial: Trial, step: Step, placement: Placement) -> Mapping[str, str]:
    if trial.couples:
        return _place_one_by_one(trial, step, placement)
    nodes = _attempt(trial, step.below, placement, trial.budget)
    mixed = len(trial.classes) > 1 and trial.ask.style is Style.PACK and not trial.barred(placement)
    if not (mixed and nodes and step.below):
        return nodes

    def attempt(names: Sequence[str]) -> dict[str, str]:
        return _attempt(trial, step.below, replace(placement, names=names), trial.spare_budget)

    return narrow(trial, step.below, placement, nodes, attempt)


def _place_one_by_one(trial: Trial, step: Step, placement: Placement) -> Mapping[str, str]:
    """Nodes in an order in which kube-scheduler would take each, members of a class in the order of their ranks.

    Of nodes that are alike for the rules, neighbours in rank get nodes that are close to each other.
    """
    assert trial.rules is not None  # noqa: S101 - narrows for the type checker: asked for by who has them
    order, keys = [kind for kind, _ in _by_scarcity(trial.classes, trial.totals(placement))], trial.rules.list_keys()
    moves = place_coupled(trial, placement, order)
    shut: dict[str, set[str]] = {}
    for uid, name in trial.barred(placement):
        shut.setdefault(uid, set()).add(name)
    seats = {
        kind: _sort_alike(trial.census, keys, step.below, [name for each, name in moves if each is kind])
        for kind in order
    }
    waiting: dict[tuple[MemberClass, str], list[str]] = {}
    for kind in order:
        for uid, name in _seat(kind.members, seats[kind], shut).items():
            waiting.setdefault((kind, name), []).append(uid)
    coming = {kind: iter(names) for kind, names in seats.items()}
    taken = [(kind, next(coming[kind])) for kind, _ in moves]
    return {waiting[move].pop(0): move[1] for move in taken if waiting.get(move)}


def _sort_alike(census: Census, keys: Iterable[str], below: Sequence[str], names: Sequence[str]) -> list[str]:
    """These nodes, as often as they are named, with those that are equal in all ``keys`` sorted among themselves.

    So any order that the rules take stays one, and what is close to each other on the levels ``below`` follows.
    """
    levels, cells = tuple(keys), dict[tuple[str, ...], list[str]]()
    for name in names:
        cells.setdefault(tuple([census.label(key, name) for key in levels]), []).append(name)
    ranked = {
        cell: iter(sorted(here, key=lambda name: (*(census.label(level, name) for level in below), name)))
        for cell, here in cells.items()
    }
    return [next(ranked[tuple([census.label(key, name) for key in levels])]) for name in names]


def _seat(members: Sequence[Pod], seats: Sequence[str], shut: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Which member gets which of these seats, the first ones the first ones, but for those that must not have it."""
    if any(member.uid in shut for member in members):
        node_slots = [(count, name) for name, count in Counter(seats).items()]
        return match_members(members, node_slots, {each.uid: frozenset(shut.get(each.uid, ())) for each in members})
    return {member.uid: name for member, name in zip(members, seats, strict=False)}


def _attempt(trial: Trial, below: Sequence[str], placement: Placement, budget: Budget) -> dict[str, str]:
    """The attempt that places most members, the earliest of equals.

    Classes go in one after another and are never taken out again. That is exact for one class. Where several cannot be
    placed like that, a mix is looked for as far as the plan's budget goes: a refusal can be wrong, a plan cannot.
    """
    best: dict[str, str] = {}
    barred = trial.barred(placement)
    for batches in _orders(trial, trial.totals(placement)):
        packing = Packing(trial.census, placement, below, trial.ask.style, barred)
        for batch in batches:
            packing.put(batch)
        if len(packing.nodes) > len(best):
            best = packing.nodes
        if len(best) == len(trial.ask.members):
            return best
    if len(best) >= max(trial.ask.need, 1) or barred or len(trial.classes) == 1:
        return best
    if len(trial.classes) > MAX_CLASSES or not trial.may_hold(placement):
        return best
    return _mix(trial, placement, budget) or best


def _mix(trial: Trial, placement: Placement, budget: Budget) -> dict[str, str]:
    """Nodes for the quorum by `mixing.mix`, {} if it finds none."""
    free = [{name: slots for slots, name in trial.census.node_slots(kind, placement.names)} for kind in trial.classes]
    names = sorted(
        {name for each in free for name in each}, key=lambda name: (-max(f.get(name, 0) for f in free), name)
    )
    bins = [
        Bin(name, trial.census.allocatable(name), trial.census.used(name), tuple(each.get(name, 0) for each in free))
        for name in names
    ]
    trial.limit.spend(len(names))
    wanted = tuple(len(kind.members) for kind in trial.classes)
    requests = [kind.request for kind in trial.classes]
    found = mix(wanted, max(trial.ask.need, 1), requests, bins, budget) or {}
    nodes: dict[str, str] = {}
    for place, kind in enumerate(trial.classes):
        order = (name for name in sorted(found) for _ in range(found[name][place]))
        nodes.update({member.uid: name for member, name in zip(kind.members, order, strict=False)})
    return nodes


def _orders(trial: Trial, totals: Sequence[int]) -> list[list[Batch]]:
    """Orders worth an attempt: scarcest class first, that for the quorum and then the rest, easiest class first."""
    whole = _by_scarcity(trial.classes, totals)
    if len(whole) == 1:
        return [whole]
    need = trial.ask.need
    easiest = whole[::-1]
    if sum(min(total, len(kind.members)) for kind, total in zip(trial.classes, totals, strict=True)) < need:
        return [easiest]
    if not 0 < need < len(trial.ask.members):
        return [whole, easiest]
    first = frozenset(member.uid for member in trial.ask.members[:need])
    quorum: list[Batch] = [(kind, [m for m in members if m.uid in first]) for kind, members in whole]
    rest: list[Batch] = [(kind, [m for m in members if m.uid not in first]) for kind, members in whole]
    return [whole, quorum + rest, easiest]


def _by_scarcity(classes: Sequence[MemberClass], totals: Sequence[int]) -> list[Batch]:
    """Fewest slots per member first; of equals the one that asks for more."""
    ranked = [(total / len(kind.members), kind) for kind, total in zip(classes, totals, strict=True)]
    ranked.sort(key=lambda entry: entry[1].shape.requests, reverse=True)
    ranked.sort(key=lambda entry: entry[0])
    return [(kind, kind.members) for _, kind in ranked]
