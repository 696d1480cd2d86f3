"""How many members of each class every node gets, where packing one class after another does not do.

Node by node, all ways to fill it are tried (only those to which no member can be added), and of the numbers of members
that are still left only those are kept that are not worse than others in every class. That is exact, and fast for a few
classes of a few dozen members; a budget of steps ends it where it is not.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from serried.model.resources import Resources, add, count_slots
from serried.plan.steps import Work, finish

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


class Budget:
    """Steps that one plan may take, whatever the number of domains that it looks at."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def take(self, steps: int) -> bool:
        """Spend steps; whether the budget had them."""
        self.left -= steps
        return self.left >= 0


def mix(
    wanted: Counts, need: int, requests: Sequence[Resources], bins: Sequence[Bin], budget: Budget
) -> dict[str, Counts] | None:
    """How many members of each class each node gets, ``need`` in all.

    None if there is no such way, or if the budget is used up before one is found.
    """
    return finish(mix_in_steps(wanted, need, requests, bins, budget))


def mix_in_steps(
    wanted: Counts, need: int, requests: Sequence[Resources], bins: Sequence[Bin], budget: Budget
) -> Work[dict[str, Counts] | None]:
    """As `mix`."""
    if len(wanted) > MAX_CLASSES:
        return None
    enough = sum(wanted) - need
    # What is still to be placed, and how it came to that: a chain of (state before, counts on this node).
    frontier: dict[Counts, tuple[Counts, ...]] = {wanted: ()}
    for place, each in enumerate(bins):
        most = tuple(map(min, wanted, each.slots))
        ways: list[Counts] = []
        for way in _fill(most, requests, each.allocatable, each.used):
            if way is not None:
                ways.append(way)
            if len(frontier) * len(ways) > budget.left:
                break  # what is left would be taken all the same
            yield
        reached = len(frontier) * len(ways)
        if not budget.take(reached):
            return None
        frontier = yield from _step(frontier, ways)
        if not budget.take(reached * len(frontier) // _COMPARISONS_PER_STEP):
            return None
        done = min(frontier, key=sum)
        if sum(done) <= enough:
            return {filled.name: given for filled, given in zip(bins[: place + 1], frontier[done], strict=True)}
    return None


def _step(
    frontier: Mapping[Counts, tuple[Counts, ...]], ways: Sequence[Counts]
) -> Work[dict[Counts, tuple[Counts, ...]]]:
    reached: dict[Counts, tuple[Counts, ...]] = {}
    for left, chain in frontier.items():
        for way in ways:
            given = tuple(map(min, left, way))
            rest = tuple(before - now for before, now in zip(left, given, strict=True))
            if rest not in reached:
                reached[rest] = (*chain, given)
        yield
    best: dict[Counts, tuple[Counts, ...]] = {}
    for rest in sorted(reached, key=lambda counts: (sum(counts), counts)):
        if not any(all(map(int.__le__, other, rest)) for other in best):
            best[rest] = reached[rest]
        yield
    return best


def _fill(
    most: Counts, requests: Sequence[Resources], allocatable: Resources, used: Resources
) -> Iterator[Counts | None]:
    """All the ways to fill a node up, none of which leaves room for one more wanted member; None for a step."""
    slots = min(most[0], count_slots(allocatable, used, requests[0]))
    if len(most) == 1:
        yield (slots,)
        return
    found: set[Counts] = set()
    for count in range(slots, -1, -1):
        taken = add(used, {name: amount * count for name, amount in requests[0].items()})
        for rest in _fill(most[1:], requests[1:], allocatable, taken):
            if rest is not None and not any(all(map(int.__ge__, other, rest)) for other in found):
                found.add(rest)
                yield (count, *rest)
            else:
                yield None
