"""Make the wall clock of a process jump: it is off by the number of seconds in a file.

`tests.support.preload` has a process import this at its start. `time.time` is all that Serried reads of the wall
clock, but for the dates of a certificate of its own. Loops and deadlines go by clocks that nobody sets.
"""

import os
import time
from pathlib import Path

FILE = "SERRIED_TEST_CLOCK"
"""The environment variable with the path of the file."""

_usual = time.time


def read_time() -> float:
    """Return the time in seconds since 1970, plus the offset in the file."""
    return _usual() + float(Path(os.environ[FILE]).read_text())


def write_offset(file: Path, seconds: float) -> None:
    """Set the clock offset of all processes that read this file."""
    # In one step: they read it at any time.
    part = file.with_suffix(".part")
    part.write_text(str(seconds))
    part.replace(file)


if FILE in os.environ:
    vars(time)["time"] = read_time
