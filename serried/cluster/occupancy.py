"""What is used on each node, with each pod counted exactly once.

Several say where a pod on its way is: our ledger reserves a slot for it, its bind call is seen (assumed), the watch
shows it bound. These overlap, in any order. Each lays a claim of its own kind; only the strongest claim of a pod
counts, so no overlap is ever counted twice, and no gap between two claims ever shows room that is not there.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum

from serried.model.resources import Resources

_MAX_FREED_NODES = 256
"""On how many nodes room may be freed between two looks; more are as good as everywhere."""


class ClaimKind(IntEnum):
    """Who says that a pod uses a node; the highest is believed."""

    VACANT = 0
    """The slot of a member that has ended (`vacancies`), under the vacancy's name or that of the pod in its place."""

    RESERVED = 1
    """The ledger has a slot for the pod."""

    ASSUMED = 2
    """The pod's bind call was seen."""

    BOUND = 3
    """The watch shows the pod on the node."""


Claim = tuple[str, tuple[tuple[str, int], ...]]
"""Node name and the pod's requests."""


Freed = Mapping[str, Resources | None]
"""Node names, each with what was used there before; None where that says nothing (the node itself is another)."""


class FreedNodes:
    """The nodes on which room was freed since the last ``take``."""

    def __init__(self) -> None:
        self._before: dict[str, Resources | None] | None = {}

    def add(self, node: str, before: Resources | None = None) -> None:
        """Room was freed here; ``before`` is what was used until then, and is copied."""
        if self._before is None:
            return
        if before is None:
            self._before[node] = None
        elif node not in self._before:
            self._before[node] = dict(before)
        if len(self._before) > _MAX_FREED_NODES:
            self._before = None

    def add_all(self) -> None:
        """Room was freed on nodes that nobody counts."""
        self._before = None

    def take(self) -> Freed | None:
        """The nodes, and from now on none; None if they were too many to remember."""
        freed = self._before
        self._before = {}
        return freed


class Occupancy:
    """Claims by pod UID and their sum by node. ``note_used`` is told the name of each node whose sum has changed."""

    def __init__(self, note_used: Callable[[str], None] = lambda _: None) -> None:
        self.freed = 0
        """How many times room became free, on whatever node."""

        self.freed_nodes = FreedNodes()
        """Where it did: a gang that did not fit is planned again when one of these nodes could help it."""

        self._note_used = note_used
        self._used: dict[str, Resources] = {}
        self._claims: dict[str, dict[ClaimKind, Claim]] = {}

    @property
    def used(self) -> Mapping[str, Resources]:
        """Used amounts by node name; a node without entry is empty. Live, not a copy."""
        return self._used

    def claim(self, uid: str, kind: ClaimKind, node: str, requests: tuple[tuple[str, int], ...]) -> None:
        """Lay or move a pod's claim of one kind."""
        claims = self._claims.setdefault(uid, {})
        before = _strongest(claims)
        claims[kind] = (node, requests)
        self._settle(before, _strongest(claims))

    def resize(self, uid: str, requests: tuple[tuple[str, int], ...]) -> None:
        """A pod asks for these amounts by now: what is kept for it, and where it is assumed, follows.

        The slot of a member that has ended does not: it is as large as that one was.
        """
        claims = self._claims.get(uid, {})
        before = _strongest(claims)
        for kind in claims.keys() - {ClaimKind.VACANT, ClaimKind.BOUND}:
            claims[kind] = (claims[kind][0], requests)
        self._settle(before, _strongest(claims))

    def release(self, uid: str, kind: ClaimKind) -> None:
        """Drop a pod's claim of one kind; nothing happens if it has none."""
        claims = self._claims.get(uid)
        if claims is None or kind not in claims:
            return
        before = _strongest(claims)
        del claims[kind]
        self._settle(before, _strongest(claims))
        if not claims:
            del self._claims[uid]

    def hand_over(self, uid: str, kind: ClaimKind, claimant: str) -> None:
        """The claim of one kind on ``uid`` becomes the VACANT one of ``claimant``; others on ``uid`` are dropped.

        Nothing happens if there is no such claim. ``freed`` does not change if the claim only gets another name: the
        room was never free.
        """
        claims = self._claims.get(uid, {})
        if kind not in claims:
            return
        del self._claims[uid]
        before = _strongest(claims)
        kept = claims[kind]
        received = self._claims.setdefault(claimant, {})
        already = _strongest(received)
        received[ClaimKind.VACANT] = kept
        if already is None and before == kept:
            return
        self._settle(already, _strongest(received))
        self._settle(before, None)

    def forget(self, uid: str) -> None:
        """Drop every claim on a pod: it is gone or done."""
        claims = self._claims.pop(uid, None)
        if claims:
            self._settle(_strongest(claims), None)

    def node_of(self, uid: str) -> str | None:
        """The node that the pod counts on, None if it counts nowhere."""
        claim = _strongest(self._claims.get(uid, {}))
        return claim[0] if claim else None

    def note_room(self, node: str) -> None:
        """Room appeared by other means: a node came, grew or changed."""
        self.freed += 1
        self.freed_nodes.add(node)

    def note_room_anywhere(self) -> None:
        """What kept some from nodes has gone, and nothing of the nodes has changed."""
        self.freed += 1
        self.freed_nodes.add_all()

    def _settle(self, before: Claim | None, after: Claim | None) -> None:
        if before == after:
            return
        if before:
            self.freed += 1
            self.freed_nodes.add(before[0], self._used.get(before[0], {}))
            self._count(before, -1)
        if after:
            self._count(after, +1)

    def _count(self, claim: Claim, sign: int) -> None:
        node, requests = claim
        used = dict(self._used.get(node, {}))  # another one: who has the old one reads what was
        for name, amount in requests:
            left = used.get(name, 0) + sign * amount
            if left:
                used[name] = left
            else:
                used.pop(name, None)
        if used:
            self._used[node] = used
        else:
            self._used.pop(node, None)
        self._note_used(node)


def _strongest(claims: Mapping[ClaimKind, Claim]) -> Claim | None:
    return claims[max(claims)] if claims else None
