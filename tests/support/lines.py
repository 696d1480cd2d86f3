"""Measure how the work of Python code grows with its input, by counting executed lines instead of time."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_lines(body: Callable[[], object]) -> int:
    """Run ``body``, and return the number of lines of Python that it executes."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        body()
    finally:
        sys.settrace(before)
    return count


def find_growth(make: Callable[[int], Callable[[], object]], size: int) -> float:
    """Return the factor by which the number of executed lines grows for twice the size.

    ``make`` returns the work for a size.

    2 is a share for each item. A search among all of them for each makes it 4.
    """
    return count_lines(make(2 * size)) / count_lines(make(size))
