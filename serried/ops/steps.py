"""Long work written as a generator that yields after each step, so that the event loop can serve filter in between.

Debug pages and the sorting of the queue are such work. The caller decides when the next step runs (for instance
`serried.ops.slices.Slices`). Long plans are computed in forked processes instead (`serried.ops.fork`).
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
"""A generator that yields None after each step of its work, and returns the result at the end."""


def finish(work: Work[Result]) -> Result:
    """Run a generator (``work``), which yields after each of its steps, to its end without a pause.

    Return the value that the generator returns.
    """
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: Result = done.value
            return result


def sort_in_steps(items: Iterable[Item], key: Callable[[Item], Any]) -> Work[list[Item]]:
    """Sort the items by ``key``. The generator yields after each 500 of them, and returns the sorted list."""
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
