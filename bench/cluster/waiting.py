"""Wait for a condition of a cluster, and stop waiting as soon as a process that it needs has ended."""

import http.client
import time
import urllib.request
from collections.abc import Callable, Mapping

from bench.cluster.api import ApiError
from bench.cluster.errors import ClusterError
from bench.cluster.processes import Process, reap, tail

_PAUSE = 0.1
_PROBE_TIMEOUT = 2.0

Check = Callable[[], bool]
"""Returns whether the condition holds. Errors of connections and of the API count as False."""


def wait_for(what: str, check: Check, processes: Mapping[str, Process], seconds: float) -> None:
    """Wait until ``check`` holds. Raise ClusterError as soon as one of the processes ends, or after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not _holds(check):
        raise_for_dead(processes, f"while waiting for {what}")
        if time.monotonic() > deadline:
            logs = "\n".join(f" {name} ({process.log}):\n{tail(process.log, 5)}" for name, process in processes.items())
            raise ClusterError(f"{what}: not within {seconds:.0f} s. Last lines of the logs:\n{logs}")
        time.sleep(_PAUSE)


def raise_for_dead(processes: Mapping[str, Process], when: str) -> None:
    """Raise ClusterError with the end of the log, if one of the processes has ended."""
    for name, process in processes.items():
        reap(process.pid)
        if not process.alive:
            raise ClusterError(
                f"{name} (pid {process.pid}) died {when}. Last lines of {process.log}:\n{tail(process.log)}"
            )


def answers(url: str) -> bool:
    """Return whether a URL answers with status 200."""
    try:
        with urllib.request.urlopen(url, timeout=_PROBE_TIMEOUT) as answer:
            return bool(answer.status == http.client.OK)
    except (OSError, http.client.HTTPException):
        return False


def _holds(check: Check) -> bool:
    try:
        return check()
    except (OSError, http.client.HTTPException, ApiError):
        return False
