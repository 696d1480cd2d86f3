"""Describe the machine of a measurement, and measure its speed and the load by other work."""

import os
import platform
import time
from pathlib import Path
from typing import Any

from bench.load.usage import read_usage

QUIET = 0.15
"""The share of all cores that other work may take; above it a measurement is called disturbed."""

_SPEED_STEPS = 1_000_000


def describe_machine() -> dict[str, Any]:
    """Return the JSON object about the machine in a result: cores, memory, processor, kernel and Python."""
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "processor": _processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def measure_noise(seconds: float = 1.0) -> float:
    """Sleep for some seconds, and return the share of all cores that other processes used meanwhile, from 0 to 1."""
    before, begun = read_usage({}), time.monotonic()
    time.sleep(seconds)
    return (read_usage({}).busy - before.busy) / (time.monotonic() - begun) / (os.cpu_count() or 1)


def measure_speed() -> float:
    """Return the CPU milliseconds of a fixed computation.

    Two rows of a result can only be compared if the machine was about as fast in both.
    """
    begun = time.process_time()
    sum(number * number for number in range(_SPEED_STEPS))
    return (time.process_time() - begun) * 1000


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
