"""Durations as Go programs write them in their configurations, such as ``15m`` and ``1m30s``."""

import re

HOUR = 3600.0
DAY = 24 * HOUR

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": HOUR}


def parse_duration(text: str) -> float:
    """Return the seconds of a duration in Go's form. Raises ValueError for other text."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is no duration such as 15m or 5s")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def format_duration(seconds: float) -> str:
    """Return a number of seconds in the largest unit that needs no fraction, such as ``24h``, ``90m`` or ``45s``."""
    for unit in ("h", "m"):
        if seconds and not seconds % _SECONDS[unit]:
            return f"{seconds / _SECONDS[unit]:g}{unit}"
    return f"{seconds:g}s"
