"""Splits of a gang over sub-domains, compared with a search through all sets of sub-domains."""

from collections.abc import Iterable, Mapping
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from serried.plan.packing import DomainPath, choose_leaving_largest, distribute

PLENTY = 1_000_000


@st.composite
def trees(draw: st.DrawFn, depth: int) -> dict[DomainPath, int]:
    """Up to nine narrowest domains with their slots, ``depth`` levels deep."""
    names = st.tuples(*(st.sampled_from("abc") for _ in range(depth)))
    return {path: draw(st.integers(1, 9)) for path in draw(st.lists(names, min_size=1, max_size=9, unique=True))}


def cost_of(paths: Iterable[DomainPath]) -> tuple[int, ...]:
    """Return how many domains of each level contain these, the widest level first."""
    columns = zip(*(tuple(path[: level + 1] for level in range(len(path))) for path in paths), strict=True)
    return tuple(len(set(column)) for column in columns)


def list_cheapest(count: int, capacities: Mapping[DomainPath, int]) -> list[tuple[DomainPath, ...]]:
    """Return all sets of narrowest domains that hold ``count`` members at the least cost."""
    sets = [each for size in range(1, len(capacities) + 1) for each in combinations(capacities, size)]
    enough = [each for each in sets if sum(capacities[path] for path in each) >= count]
    least = min(map(cost_of, enough))
    return [each for each in enough if cost_of(each) == least]


def split(count: int, capacities: Mapping[DomainPath, int], steps: int) -> dict[DomainPath, int]:
    """Shares of the narrowest domains, level by level as the planner does it."""
    given_out: dict[DomainPath, int] = {}
    for share, name in distribute(count, capacities, steps):
        inside = {path[1:]: room for path, room in capacities.items() if path[0] == name}
        deeper = split(share, inside, steps) if len(next(iter(inside))) else {(): share}
        given_out.update({(name, *path): part for path, part in deeper.items()})
    return given_out


def largest_left_whole(capacities: Mapping[DomainPath, int], used: Iterable[DomainPath]) -> int:
    dirty = {path[0] for path in used}
    left: dict[str, int] = {}
    for path, room in capacities.items():
        if path[0] not in dirty:
            left[path[0]] = left.get(path[0], 0) + room
    return max(left.values(), default=0)


@given(capacities=st.integers(1, 3).flatmap(trees), data=st.data())
def test_a_split_takes_the_fewest_domains_of_each_level_from_the_widest_down(
    capacities: dict[DomainPath, int], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, sum(capacities.values())))
    shares = split(count, capacities, PLENTY)
    assert sum(shares.values()) == count
    assert all(0 < share <= capacities[path] for path, share in shares.items())
    cheapest = list_cheapest(count, capacities)
    assert cost_of(shares) == cost_of(cheapest[0])
    assert largest_left_whole(capacities, shares) == max(largest_left_whole(capacities, each) for each in cheapest)


@given(capacities=st.integers(1, 3).flatmap(trees), steps=st.integers(0, 60), data=st.data())
def test_without_time_for_a_search_all_are_placed_on_the_fewest_domains_of_the_widest_level(
    capacities: dict[DomainPath, int], steps: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, sum(capacities.values())))
    shares = split(count, capacities, steps)
    assert sum(shares.values()) == count
    assert all(0 < share <= capacities[path] for path, share in shares.items())
    assert cost_of(shares)[0] == cost_of(list_cheapest(count, capacities)[0])[0]


@given(capacities=trees(1), data=st.data())
def test_of_as_few_domains_those_are_taken_that_leave_room_for_the_largest_gang(
    capacities: dict[DomainPath, int], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, sum(capacities.values())))
    shares = {path: share for share, path in choose_leaving_largest(count, capacities.items())}

    def largest(used: Mapping[DomainPath, int]) -> int:
        return max(room - used.get(path, 0) for path, room in capacities.items())

    def fill(paths: tuple[DomainPath, ...], last: DomainPath) -> dict[DomainPath, int]:
        others = {path: capacities[path] for path in paths if path != last}
        return {**others, last: count - sum(others.values())}

    every = [fill(paths, last) for paths in list_cheapest(count, capacities) for last in paths]
    assert largest(shares) == max(map(largest, every))


@given(capacities=st.integers(1, 3).flatmap(trees), more=st.integers(0, 3))
def test_too_little_room_is_given_out_whole(capacities: dict[DomainPath, int], more: int) -> None:
    assert split(sum(capacities.values()) + more, capacities, PLENTY) == capacities


@given(capacities=st.integers(1, 3).flatmap(trees), steps=st.integers(0, 60), data=st.data())
def test_the_order_of_the_domains_changes_nothing(
    capacities: dict[DomainPath, int], steps: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, sum(capacities.values())))
    shuffled = {path: capacities[path] for path in data.draw(st.permutations(list(capacities)))}
    assert split(count, shuffled, steps) == split(count, capacities, steps)
