"""The best that anybody could do: for one gang now, and for a row of gangs that is known beforehand. Pure."""

from collections.abc import Collection, Mapping, Sequence


def fewest(amounts: Collection[int], wanted: int) -> int | None:
    """How many of these amounts, at least, make up what is wanted; None if all of them do not."""
    for count, amount in enumerate(sorted(amounts, reverse=True), 1):
        wanted -= amount
        if wanted <= 0:
            return count
    return None


def fewest_racks(slots: Mapping[str, Sequence[int]], size: int) -> int | None:
    """In how many racks, at least, ``size`` equal members fit."""
    return fewest([sum(free) for free in slots.values()], size)


def fewest_nodes(slots: Mapping[str, Sequence[int]], size: int) -> int | None:
    """On how many nodes, at least, ``size`` equal members fit, in whichever racks."""
    return fewest([free for rack in slots.values() for free in rack], size)


def fewest_nodes_in_a_rack(slots: Mapping[str, Sequence[int]], size: int) -> int | None:
    """The same in the best one rack."""
    found = [count for free in slots.values() if (count := fewest(free, size)) is not None]
    return min(found, default=None)


def most_members(rooms: Sequence[int], sizes: Sequence[int]) -> int:
    """How many members run at most when every gang is in one room or in none, with all of them known beforehand.

    Exact, by trying everything that is not worse than the best so far: for some ten gangs.
    """
    ordered = sorted(sizes, reverse=True)
    best = 0

    def attempt(position: int, left: tuple[int, ...], placed: int) -> None:
        nonlocal best
        best = max(best, placed)
        rest = ordered[position:]
        if not rest or placed + min(sum(rest), sum(room for room in left if room >= rest[-1])) <= best:
            return
        size = rest[0]
        for room in sorted({room for room in left if room >= size}):
            index = left.index(room)
            attempt(position + 1, tuple(sorted((*left[:index], room - size, *left[index + 1 :]))), placed + size)
        attempt(position + 1, left, placed)

    attempt(0, tuple(sorted(rooms)), 0)
    return best
