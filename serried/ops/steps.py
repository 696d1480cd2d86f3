"""Long work split into steps by generators, so that the loop can serve filter in between. Does not use a clock.

It is for pages and for the order of the queue. Long plans are computed by forked children instead.
"""

import heapq
from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import Any, TypeVar

Result = TypeVar("Result")
Item = TypeVar("Item")

_ITEMS_PER_STEP = 500
"""The number of items sorted in one step."""

Work = Generator[None, None, Result]
"""Work that yields after each step, and returns its result at the end."""


def finish(work: Work[Result]) -> Result:
    """Run all steps at once. Return the result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: Result = done.value
            return result


def sort_in_steps(items: Iterable[Item], key: Callable[[Item], Any]) -> Work[list[Item]]:
    """Return the items sorted by ``key``, in steps."""
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
