"""Work that is done in steps, so that the loop may serve filter between two of them. Here is no clock.

For pages and for the order of the queue. Plans are no such work: what takes long of them is made in a forked child.
"""

import heapq
from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import Any, TypeVar

Result = TypeVar("Result")
Item = TypeVar("Item")

_ITEMS_PER_STEP = 500
"""How many items are sorted in one step."""

Work = Generator[None, None, Result]
"""Work that says after each step that it is not done, and returns its result."""


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
