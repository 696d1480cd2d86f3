"""Make one strike: let the leader fail, and measure the time until gangs are bound again."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.cluster import ClusterError
from bench.failover.kubelet import Kubelet
from bench.failover.pairs import Pairs
from bench.failover.ways import Way
from bench.failover.witness import POLL_SECONDS, Witness

_CAUGHT = 40
"""Members of the gang that is created before the strike."""

_LATER = 4
"""Members of the gang that is created right after the strike."""

_BEFORE_SECONDS = 1.5
"""The longest time from the creation of the first gang to the strike. Drawn at random, so that strikes happen before
the plan, between the Bindings, or after them."""

_TIMEOUT_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Strike:
    """The figures of one strike."""

    way: str
    first: float
    """Seconds from the strike to the first Binding of the gang that was created after it."""
    whole: float
    """Seconds from the strike until all members of both gangs are bound."""
    half: float
    """The longest time in seconds for which the first gang was bound in part."""
    leader_changed: bool
    defects: tuple[str, ...] = ()
    refused: int = 0
    """The number of rejected Bindings, of pods that were bound already."""


def strike(pairs: Pairs, name: str, way: Way, namespace: str) -> Strike:
    """Let the leader fail in one way, measure, and repair it. Return the figures.

    Raise ClusterError if gangs are not bound, or pairs not ready, in time.
    """
    leader = await_leader(pairs)
    witness = Witness(pairs.cluster, namespace)
    witness.create("caught", _CAUGHT)
    time.sleep(random.uniform(0.0, _BEFORE_SECONDS))
    begun = time.monotonic()
    way.strike(pairs, leader)
    witness.create("later", _LATER)
    first, whole, half = _observe(witness, begun)
    after = pairs.holder()
    way.heal(pairs, leader)
    await_leader(pairs)
    _await(f"no record after {way.title}", lambda: not _records(pairs, namespace))
    defects, refused = witness.find_defects(), witness.count_refused()
    witness.clear()
    return Strike(name, first, whole, half, after != leader.pod, defects, refused)


def _observe(witness: Witness, begun: float) -> tuple[float, float, float]:
    first = half = 0.0
    since: float | None = None
    while True:
        bound = witness.count_each()
        caught, later = bound.get("caught", 0), bound.get("later", 0)
        now = time.monotonic()
        since = (since or now) if 0 < caught < _CAUGHT else None
        half = max(half, now - since if since is not None else 0.0)
        first = first or (now - begun if later else 0.0)
        if (caught, later) == (_CAUGHT, _LATER):
            return round(first, 2), round(now - begun, 2), round(half, 2)
        if now - begun > _TIMEOUT_SECONDS:
            raise ClusterError(f"{caught} of {_CAUGHT} and {later} of {_LATER} members are bound")
        time.sleep(POLL_SECONDS)


def await_leader(pairs: Pairs) -> Kubelet:
    """Wait until one pair leads and all others are ready. Return the leader. Raise ClusterError after 90 s."""
    found: list[Kubelet] = []

    def is_led() -> bool:
        leader = pairs.leader()
        found[:] = [leader] if leader is not None else []
        return leader is not None and all(pod.is_ready() for pod in pairs.pods.values())

    _await("a leader, and a warm standby", is_led)
    return found[0]


def _records(pairs: Pairs, namespace: str) -> bool:
    path = f"/apis/scheduling.serried.dev/v1beta1/namespaces/{namespace}/reservations"
    return bool(pairs.cluster.api.get(path)["items"])


def _await(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {_TIMEOUT_SECONDS:g} s")
        time.sleep(POLL_SECONDS)
