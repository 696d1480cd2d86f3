"""Pick free ports on the loopback interface for the processes of a cluster."""

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
"""The ports to pick from.

They are below the range from which Linux takes ports for outgoing connections. So a restarted process finds its port
free, although clients that reconnect to it use thousands of ports.
"""

SHARE = "SERRIED_PORTS"
"""The environment variable with the part of the range to pick from, as FIRST-LAST.

A picked port is not in use until its process listens. Commands with different state directories do not see each
other's picks, so they need different parts of the range.
"""


def share() -> range:
    """Return the ports to pick from. Raise ValueError if the environment variable is no range."""
    text = os.environ.get(SHARE, "")
    if not text:
        return RANGE
    first, _, last = text.partition("-")
    return range(int(first), int(last) + 1)


def is_free(port: int) -> bool:
    """Return whether a server could listen on this port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def pick(names: Collection[str], taken: Collection[int]) -> dict[str, int]:
    """Pick a port for every name, none of them in ``taken`` or in use. Raise ClusterError if there are too few."""
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
    """Hold a lock while the body picks ports and records them, so that two commands do not pick the same ones."""
    return exclusive(directory / ".ports.lock", silent, "")
