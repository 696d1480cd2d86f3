"""What is used on each node, with each pod counted exactly once.

A pod on its way passes through several hands: our ledger reserves a slot for it, its bind call is seen (assumed), the
watch shows it bound. These overlap, in any order. Each hand lays its own claim; only the strongest claim of a pod
counts, so no overlap is ever counted twice and no gap between two hands ever shows room that is not there.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum

from serried.model.resources import Resources


class Hand(IntEnum):
    """Who says that a pod uses a node; the higher one is believed."""

    RESERVED = 1
    ASSUMED = 2
    BOUND = 3


Claim = tuple[str, tuple[tuple[str, int], ...]]
"""Node name and the pod's requests."""


class Occupancy:
    """Claims by pod UID and their sum by node.

    ``freed`` counts the times that room became free anywhere; a gang that did not fit at one value of it need not
    be planned again before the next. ``note_used`` is told the name of each node whose sum has changed.
    """

    def __init__(self, note_used: Callable[[str], None] = lambda _: None) -> None:
        self.freed = 0
        self._note_used = note_used
        self._used: dict[str, dict[str, int]] = {}
        self._claims: dict[str, dict[Hand, Claim]] = {}

    @property
    def used(self) -> Mapping[str, Resources]:
        """Used amounts by node name; a node without entry is empty. Live, not a copy."""
        return self._used

    def claim(self, uid: str, hand: Hand, node: str, requests: tuple[tuple[str, int], ...]) -> None:
        """Lay or move the claim of one hand on a pod."""
        claims = self._claims.setdefault(uid, {})
        before = _strongest(claims)
        claims[hand] = (node, requests)
        self._settle(before, _strongest(claims))

    def release(self, uid: str, hand: Hand) -> None:
        """Drop the claim of one hand; nothing happens if it had none."""
        claims = self._claims.get(uid)
        if claims is None or hand not in claims:
            return
        before = _strongest(claims)
        del claims[hand]
        self._settle(before, _strongest(claims))
        if not claims:
            del self._claims[uid]

    def forget(self, uid: str) -> None:
        """Drop every claim on a pod: it is gone or done."""
        claims = self._claims.pop(uid, None)
        if claims:
            self._settle(_strongest(claims), None)

    def node_of(self, uid: str) -> str | None:
        """The node that the pod counts on, None if it counts nowhere."""
        claim = _strongest(self._claims.get(uid, {}))
        return claim[0] if claim else None

    def note_room(self) -> None:
        """Room appeared by other means: a node came, grew or changed."""
        self.freed += 1

    def _settle(self, before: Claim | None, after: Claim | None) -> None:
        if before == after:
            return
        if before:
            self._count(before, -1)
            self.freed += 1
        if after:
            self._count(after, +1)

    def _count(self, claim: Claim, sign: int) -> None:
        node, requests = claim
        used = self._used.setdefault(node, {})
        for name, amount in requests:
            left = used.get(name, 0) + sign * amount
            if left:
                used[name] = left
            else:
                used.pop(name, None)
        if not used:
            del self._used[node]
        self._note_used(node)


def _strongest(claims: Mapping[Hand, Claim]) -> Claim | None:
    return claims[max(claims)] if claims else None
