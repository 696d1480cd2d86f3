"""A rolling update under load: both pairs are replaced, one after the other, while gangs are created."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

from bench.cluster import ClusterError
from bench.failover.pairs import Pairs
from bench.failover.run import await_leader
from bench.failover.ways import WAYS
from bench.failover.witness import POLL_SECONDS, Witness

_SIZE = 4
_INTERVAL_SECONDS = 0.5
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Rolled:
    """The figures of one rolling update."""

    gangs: int
    """The number of gangs that were created."""

    slowest: float
    """The longest time in seconds from the creation of a gang until all of it was bound."""

    pause: float
    """The longest time in seconds in which no gang became whole."""

    half: float
    """The longest time in seconds for which a gang was bound in part."""

    defects: tuple[str, ...] = ()
    refused: int = 0
    """The number of rejected Bindings, of pods that were bound already."""


class Load:
    """Creates a gang of four every half second, from `begin` to `end`, in a thread of its own."""

    def __init__(self, witness: Witness) -> None:
        self.created: dict[str, float] = {}
        """By name of the gang: the time when all of its pods were created (monotonic clock)."""

        self._witness = witness
        self._over = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._running: Future[None]

    def begin(self) -> None:
        """Start to create gangs."""
        self._running = self._thread.submit(self._run)

    def end(self) -> None:
        """Stop. Raise the error that ended the creation early, if any: an update without load would show nothing."""
        self._over.set()
        self._thread.shutdown()
        self._running.result()

    def _run(self) -> None:
        number = 0
        while not self._over.wait(_INTERVAL_SECONDS):
            name = f"load{number}"
            self._witness.create(name, _SIZE)
            self.created[name] = time.monotonic()
            number += 1


class BoundHistory:
    """Derives from counts of bound members when each gang was whole, and for how long one was bound in part. Pure."""

    def __init__(self) -> None:
        self.whole: dict[str, float] = {}
        """By name of the gang: the time when all members were first seen bound."""

        self.half = 0.0
        """The longest time in seconds for which a gang was bound in part."""

        self._half_since: dict[str, float] = {}

    def record(self, bound: dict[str, int], now: float) -> None:
        """Record the number of bound members of each gang at the time ``now``."""
        for gang, count in bound.items():
            if 0 < count < _SIZE:
                since = self._half_since.setdefault(gang, now)
                self.half = max(self.half, now - since)
            elif count == _SIZE:
                self._half_since.pop(gang, None)
                self.whole.setdefault(gang, now)

    def summarize(self, created: dict[str, float], defects: Sequence[str], refused: int = 0) -> Rolled:
        """Return the figures of the update. All gangs must be whole."""
        ends = sorted(self.whole.values())
        return Rolled(
            len(created),
            round(max(self.whole[gang] - begun for gang, begun in created.items()), 2),
            round(max((later - earlier for earlier, later in pairwise(ends)), default=0.0), 2),
            round(self.half, 2),
            tuple(defects),
            refused,
        )


def roll(pairs: Pairs, namespace: str) -> Rolled:
    """Replace every pair under load, as a Deployment with maxSurge 1 does. Return the figures.

    Raise ClusterError if a pair is not ready, or a gang not bound, in time.
    """
    await_leader(pairs)
    witness = Witness(pairs.cluster, namespace)
    load, history = Load(witness), BoundHistory()
    load.begin()
    try:
        with ThreadPoolExecutor(1) as thread:
            replaced = thread.submit(_replace_all, pairs)
            while not replaced.done():
                history.record(witness.count_each(), time.monotonic())
                time.sleep(POLL_SECONDS)
            replaced.result()
    finally:
        load.end()
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while missing := load.created.keys() - history.whole.keys():
        if time.monotonic() > deadline:
            raise ClusterError(f"gangs that are not bound after a rolling update: {', '.join(sorted(missing))}")
        history.record(witness.count_each(), time.monotonic())
        time.sleep(POLL_SECONDS)
    await_leader(pairs)
    rolled = history.summarize(load.created, witness.find_defects(), witness.count_refused())
    witness.clear()
    return rolled


def _replace_all(pairs: Pairs) -> None:
    for old in list(pairs.pods.values()):
        pairs.run_another()
        await_leader(pairs)  # which also waits until all pairs are ready
        WAYS["update"].strike(pairs, old)
    await_leader(pairs)
