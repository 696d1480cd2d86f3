"""Ports that nobody else has."""

import os
import random
import socket
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from bench.cluster.errors import ClusterError
from bench.cluster.locks import exclusive
from bench.cluster.progress import silent

LOOPBACK = "127.0.0.1"
RANGE = range(20000, 32000)
"""Below the range from which Linux takes the local ends of outgoing connections.

So a restarted process finds its port free although clients that still retry on it have taken thousands of others.
"""

SHARE = "SERRIED_PORTS"
"""The variable of the environment with the part of the range to pick from, as FIRST-LAST.

A port that was picked is free for a moment longer: whoever starts clusters beside others, with a state of their own,
needs a share of their own.
"""


def share() -> range:
    """The ports to pick from. Raises ValueError if the variable is no range."""
    text = os.environ.get(SHARE, "")
    if not text:
        return RANGE
    first, _, last = text.partition("-")
    return range(int(first), int(last) + 1)


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def pick(names: Collection[str], taken: Collection[int]) -> dict[str, int]:
    """A port for every name, none of them in `taken` or in use."""
    found: dict[str, int] = {}
    ports = share()
    candidates = (port for port in _shuffled(ports) if port not in taken and is_free(port))
    for name in names:
        port = next(candidates, None)
        if port is None:
            raise ClusterError(f"no free port between {ports.start} and {ports.stop}: take some clusters down")
        found[name] = port
    return found


def _shuffled(ports: range) -> Iterator[int]:
    return iter(random.sample(ports, len(ports)))


def reservation(directory: Path) -> AbstractContextManager[None]:
    """Only one command at a time picks ports and records them."""
    return exclusive(directory / ".ports.lock", silent, "")
