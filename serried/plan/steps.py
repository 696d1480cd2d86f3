"""Work that is done in steps, so that its caller may do something else between two of them.

A step is short: a few thousand slots counted, or members of one shape packed. Here is no clock: the caller
decides when to stop.
"""

from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")

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
