"""A wall clock that jumps: that of this process is off by as many seconds as a file says.

`tests.support.starting` has a process import this at its start. `time.time` is all that Serried reads of the wall
clock, but for the dates of a certificate of its own. Loops and deadlines go by clocks that nobody sets.
"""

import os
import time
from pathlib import Path

FILE = "SERRIED_TEST_CLOCK"
"""The environment variable that says where the file is."""

_usual = time.time


def tell_time() -> float:
    """The time in seconds since 1970, by a clock that is off."""
    return _usual() + float(Path(os.environ[FILE]).read_text())


def write_offset(file: Path, seconds: float) -> None:
    """The clocks of those who read this file are off by so much from now on."""
    # In one step: they read it at any time.
    part = file.with_suffix(".part")
    part.write_text(str(seconds))
    part.replace(file)


if FILE in os.environ:
    vars(time)["time"] = tell_time
