"""Clocks that are set for a while: what the processes read, and that the checker hears of it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.cluster.installation import REPOSITORY
from tests.chaos.clock_faults import ClockFaults
from tests.support import clock_offset

HOUR = 3600.0


@pytest.fixture
def noted() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def clocks(tmp_path: Path, noted: list[tuple[str, str]]) -> ClockFaults:
    return ClockFaults(tmp_path, lambda what, about: noted.append((what, about)))


def ask_a_process() -> float:
    """Return by how many seconds the wall clock of a process that starts now is off."""
    command = (sys.executable, "-c", "import time; print(time.time())")
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY).stdout
    return float(said) - time.time()


@pytest.mark.parametrize("seconds", [-HOUR, HOUR], ids=["back", "ahead"])
def test_a_process_believes_it_until_they_are_right_again(
    clocks: ClockFaults, noted: list[tuple[str, str]], seconds: float
) -> None:
    with clocks.prepared():
        assert abs(ask_a_process()) < 60.0
        clocks.jump(seconds, HOUR)
        clocks.jump(-seconds, HOUR)  # one at a time
        assert abs(ask_a_process() - seconds) < 60.0
        clocks.set_right()
        clocks.set_right()
        assert abs(ask_a_process()) < 60.0
    assert clocks.jumps == 1
    assert noted == [("fall", "clock"), ("rise", "clock")]


def test_nobody_else_has_such_a_clock(clocks: ClockFaults) -> None:
    before = os.environ.get("PYTHONPATH")
    with clocks.prepared():
        assert clock_offset.FILE in os.environ
    assert clock_offset.FILE not in os.environ
    assert os.environ.get("PYTHONPATH") == before
