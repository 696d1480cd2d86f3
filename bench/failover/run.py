"""One strike at whoever leads, and how long it takes until gangs are bound again."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.cluster import ClusterError
from bench.failover.kubelet import Kubelet
from bench.failover.pairs import Pairs
from bench.failover.ways import Way
from bench.failover.witness import LOOK_SECONDS, Witness

_CAUGHT = 40
"""Members of the gang that is under way at the strike."""

_LATER = 4
"""Members of the gang that is created right after it."""

_UNDER_WAY_SECONDS = 1.5
"""The strike falls within so long after the creation of the first: before its plan, in its burst, or after it."""

_LONGEST_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Strike:
    """What was seen of one."""

    way: str
    first: float
    """Seconds until the first Binding of a gang that was created after it."""
    whole: float
    """Seconds until both gangs are whole."""
    half: float
    """The longest time in seconds for which the gang that was under way was seen bound in part."""
    leader_changed: bool
    defects: tuple[str, ...] = ()
    refused: int = 0
    """Bindings of pods that were bound already."""


def strike(pairs: Pairs, name: str, way: Way, namespace: str) -> Strike:
    """Strike, look, and make everything whole again. Raises ClusterError if gangs are not bound in time."""
    leader = await_leader(pairs)
    witness = Witness(pairs.cluster, namespace)
    witness.create("caught", _CAUGHT)
    time.sleep(random.uniform(0.0, _UNDER_WAY_SECONDS))
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
        if now - begun > _LONGEST_SECONDS:
            raise ClusterError(f"{caught} of {_CAUGHT} and {later} of {_LATER} members are bound")
        time.sleep(LOOK_SECONDS)


def await_leader(pairs: Pairs) -> Kubelet:
    """The pair that leads, once it does and the others are warm."""
    found: list[Kubelet] = []

    def look() -> bool:
        leader = pairs.leader()
        found[:] = [leader] if leader is not None else []
        return leader is not None and all(pod.is_ready() for pod in pairs.pods.values())

    _await("a leader, and a warm standby", look)
    return found[0]


def _records(pairs: Pairs, namespace: str) -> bool:
    path = f"/apis/scheduling.serried.dev/v1beta1/namespaces/{namespace}/reservations"
    return bool(pairs.cluster.api.get(path)["items"])


def _await(what: str, look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LONGEST_SECONDS
    while not look():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {_LONGEST_SECONDS:g} s")
        time.sleep(LOOK_SECONDS)
