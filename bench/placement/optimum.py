"""The best possible placement: for one gang now, and for a list of gangs that is known in advance. Pure."""

from collections.abc import Collection, Mapping, Sequence


def fewest(amounts: Collection[int], wanted: int) -> int | None:
    """Return how many of the amounts are needed at least for the sum ``wanted``; None if all are not enough."""
    for count, amount in enumerate(sorted(amounts, reverse=True), 1):
        wanted -= amount
        if wanted <= 0:
            return count
    return None


def fewest_racks(slots: Mapping[str, Sequence[int]], size: int) -> int | None:
    """Return the fewest racks in which ``size`` equal members fit; None if they do not fit. ``slots`` is by rack."""
    return fewest([sum(free) for free in slots.values()], size)


def fewest_nodes(slots: Mapping[str, Sequence[int]], size: int) -> int | None:
    """Return the fewest nodes, of any racks, on which ``size`` equal members fit; None if they do not fit."""
    return fewest([free for rack in slots.values() for free in rack], size)


def fewest_nodes_in_a_rack(slots: Mapping[str, Sequence[int]], size: int) -> int | None:
    """Return the fewest nodes of one rack on which ``size`` equal members fit; None if no rack has room for them."""
    found = [count for free in slots.values() if (count := fewest(free, size)) is not None]
    return min(found, default=None)


def most_members(rooms: Sequence[int], sizes: Sequence[int]) -> int:
    """Return the most members that can run if each gang is in one room or does not run.

    ``rooms`` has the slots of each room, ``sizes`` the members of each gang. The search is exact (branch and bound), so
    it is meant for about ten gangs.
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
