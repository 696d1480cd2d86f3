"""How the work of a piece of Python grows with what it is given, counted instead of timed."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_lines(body: Callable[[], object]) -> int:
    """How many lines of Python run while the body does."""
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
    """How many times as many lines run for twice the size; ``make`` makes what is to be counted for a size.

    2 is a share for each item. A search among all of them for each makes it 4.
    """
    return count_lines(make(2 * size)) / count_lines(make(size))
