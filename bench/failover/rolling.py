"""A rolling update under load: both pairs are replaced, one after the other, while gangs keep coming."""

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
from bench.failover.witness import LOOK_SECONDS, Witness

_SIZE = 4
_EVERY_SECONDS = 0.5
_LONGEST_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Rolled:
    """What was seen of one update."""

    gangs: int
    slowest: float
    """The longest time in seconds from the creation of a gang until all of it was bound."""

    pause: float
    """The longest time in seconds between two gangs that became whole, one after the other."""

    half: float
    """The longest time in seconds for which a gang was seen bound in part."""

    defects: tuple[str, ...] = ()
    refused: int = 0
    """Bindings of pods that were bound already."""


class Load:
    """A gang of four every half second, until it is told to end."""

    def __init__(self, witness: Witness) -> None:
        self.created: dict[str, float] = {}
        """When each gang was there, by name."""

        self._witness = witness
        self._over = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._running: Future[None]

    def begin(self) -> None:
        """Let them come."""
        self._running = self._thread.submit(self._run)

    def end(self) -> None:
        """No more of them. Raises what has kept them from coming: an update without load shows nothing."""
        self._over.set()
        self._thread.shutdown()
        self._running.result()

    def _run(self) -> None:
        number = 0
        while not self._over.wait(_EVERY_SECONDS):
            name = f"load{number}"
            self._witness.create(name, _SIZE)
            self.created[name] = time.monotonic()
            number += 1


class Seen:
    """Follows how many members of each gang are bound. Pure."""

    def __init__(self) -> None:
        self.whole: dict[str, float] = {}
        """When each gang was seen whole."""

        self.half = 0.0
        self._half_since: dict[str, float] = {}

    def take(self, bound: dict[str, int], now: float) -> None:
        """So many members of each gang are bound now."""
        for gang, count in bound.items():
            if 0 < count < _SIZE:
                since = self._half_since.setdefault(gang, now)
                self.half = max(self.half, now - since)
            elif count == _SIZE:
                self._half_since.pop(gang, None)
                self.whole.setdefault(gang, now)

    def summarize(self, created: dict[str, float], defects: Sequence[str], refused: int = 0) -> Rolled:
        """All gangs are whole: how long it took them."""
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
    """Replace every pair as a Deployment with a surge of one does. Raises ClusterError if something takes too long."""
    await_leader(pairs)
    witness = Witness(pairs.cluster, namespace)
    load, seen = Load(witness), Seen()
    load.begin()
    try:
        with ThreadPoolExecutor(1) as thread:
            replaced = thread.submit(_replace_all, pairs)
            while not replaced.done():
                seen.take(witness.count_each(), time.monotonic())
                time.sleep(LOOK_SECONDS)
            replaced.result()
    finally:
        load.end()
    deadline = time.monotonic() + _LONGEST_SECONDS
    while missing := load.created.keys() - seen.whole.keys():
        if time.monotonic() > deadline:
            raise ClusterError(f"gangs that are not bound after a rolling update: {', '.join(sorted(missing))}")
        seen.take(witness.count_each(), time.monotonic())
        time.sleep(LOOK_SECONDS)
    await_leader(pairs)
    rolled = seen.summarize(load.created, witness.find_defects(), witness.count_refused())
    witness.clear()
    return rolled


def _replace_all(pairs: Pairs) -> None:
    for old in list(pairs.pods.values()):
        pairs.run_another()
        await_leader(pairs)  # and all pairs are ready
        WAYS["update"].strike(pairs, old)
    await_leader(pairs)
