"""Work that is done in steps, so that its caller may do something else between two of them.

A step is short: a few thousand slots counted, or members of one shape packed. Here is no clock: the caller
decides when to stop.
"""

import heapq
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

Result = TypeVar("Result")
Item = TypeVar("Item")

_ITEMS_PER_STEP = 500
"""How many items are sorted in one step."""

Work = Generator[None, None, Result]
"""Work that says after each step that it is not done, and returns its result."""


@dataclass(slots=True)
class Deadline:
    """Whether it is time to end: the one who does the steps sets it, the work reads it."""

    passed: bool = False
    """Whether the work is to end soon with the best that it has. Set between two steps, and never taken back."""


def finish(work: Work[Result]) -> Result:
    """Do all steps at once."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: Result = done.value
            return result


def sort_in_steps(items: Iterable[Item], key: Callable[[Item], Any]) -> Work[list[Item]]:
    """As ``sorted``, in steps."""
    rest = iter(items)
    runs: list[list[Item]] = []
    while run := list(islice(rest, _ITEMS_PER_STEP)):
        runs.append(sorted(run, key=key))
        yield
    if len(runs) < 2:
        return runs[0] if runs else []
    found: list[Item] = []
    merged = heapq.merge(*runs, key=key)
    while run := list(islice(merged, _ITEMS_PER_STEP)):
        found += run
        yield
    return found
