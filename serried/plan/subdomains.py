"""How members of one shape are shared out among domains of a level when one of them is too small.

Over as few as possible, then over as few of the next narrower level, and so on; of the ways that are equal in that, the
one that leaves the largest domains whole, so that the largest gang still fits one. One level is exact in one pass. Over
several levels a dynamic program counts in domains, not in members, so it does not grow with the gang. Beyond a budget
of steps the largest domains are taken, and the largest ones inside all of them: still the fewest of the widest level,
and seldom more than the fewest of the narrower ones (docs/decisions/0014-placement-measured.md).
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from serried.plan.mixing import Budget

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
    zero = (0,) * (1 + len(cost))
    tables: list[dict[Cost, int]] = [{zero: 0}]
    for domain in ordered:
        before = tables[-1]
        # A choice that takes fewer members than this leaves too many for all others.
        ways = [(more, gain) for more, gain in domain.front if gain + most[fewest - 1] >= count]
        if not budget.take(len(before) * (1 + len(ways))):
            return []
        table = dict(before)
        for spent, held in before.items():
            if spent[0] == fewest:
                continue
            for more, gain in ways:
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
