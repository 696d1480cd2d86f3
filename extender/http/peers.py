"""The connections of one listener, all together: how many there are, and what they hold of requests.

Whoever opens many and says little on them takes nothing from others: the connection that was of use longest ago gives
way to the newest one, and what has arrived of requests that are not whole has one bound for all.
"""

import resource
from collections.abc import Iterator
from typing import Protocol

_MOST = 32_768
"""How many connections there may be: three open bind calls for each member of a gang of 10,000."""

_FILES_SHARE = 0.75
"""The part of the files that this process may open which connections may take."""

_MOST_BYTES = 1 << 27
"""How much of bodies may wait until they are whole, or until the call before them has ended."""


class Peer(Protocol):
    """A connection."""

    def give_way(self) -> None:
        """End at once, for others."""


class Peers:
    """The connections of one listener; iteration is over all of them."""

    def __init__(self, most: int | None = None, most_bytes: int = _MOST_BYTES) -> None:
        self._most = most or count_allowed(_MOST, _FILES_SHARE)
        self._most_bytes = most_bytes
        self._all: set[Peer] = set()

        self._resting: dict[Peer, None] = {}
        """Those without an open call; first the one that was of use longest ago."""

        self._held_bytes = 0

    def __iter__(self) -> Iterator[Peer]:
        return iter(tuple(self._all))

    def __len__(self) -> int:
        return len(self._all)

    def add(self, peer: Peer) -> None:
        """A connection is made; of too many the one that was of use longest ago ends, which may be this one."""
        self._all.add(peer)
        self._resting[peer] = None
        if len(self._all) > self._most:
            oldest = next(iter(self._resting))
            self.remove(oldest)  # it ends later in this turn of the loop, in which more may come
            oldest.give_way()

    def remove(self, peer: Peer) -> None:
        """A connection has ended."""
        self._all.discard(peer)
        self._resting.pop(peer, None)

    def note_use(self, peer: Peer) -> None:
        """A request begins."""
        if self._resting.pop(peer, self) is None:
            self._resting[peer] = None

    def note_call(self, peer: Peer) -> None:
        """A call is open: until its answer the connection does not give way."""
        self._resting.pop(peer, None)

    def note_answer(self, peer: Peer) -> None:
        """The open call is answered."""
        if peer in self._all:
            self._resting[peer] = None

    def hold(self, size: int) -> bool:
        """So many bytes of a body have arrived; whether there is room for them."""
        self._held_bytes += size
        return self._held_bytes <= self._most_bytes

    def let_go(self, size: int) -> None:
        """So many bytes are handed on, or dropped."""
        self._held_bytes -= size


def count_allowed(most: int, share: float) -> int:
    """So many connections, or fewer where they took more than this share of the files that the process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if files == resource.RLIM_INFINITY else max(1, min(most, int(files * share)))
