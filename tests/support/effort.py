"""What work costs, as a number that is the same on every machine: how many functions are called for it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Effort:
    """How many calls were made; of functions written in Python, and of those in C."""

    calls = 0


@contextmanager
def measured() -> Iterator[Effort]:
    """Count every call that is made here, by whatever task runs meanwhile."""
    effort, before = Effort(), sys.getprofile()

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        effort.calls += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        yield effort
    finally:
        sys.setprofile(before)
