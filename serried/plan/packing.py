"""Which nodes of a placement the members get.

Packed: as few domains of each narrower level as possible, then as few nodes, and the last of them the one with the
least room that still holds the rest. Members go onto the chosen nodes in the order of domain and name, so neighbours in
rank are neighbours on the topology.
"""

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter

from serried.model.pod import Pod
from serried.model.preference import Style
from serried.model.resources import add, count_slots
from serried.plan.classes import Census, MemberClass, NodeSlots
from serried.plan.steps import Work
from serried.plan.subdomains import Path, share_out
from serried.plan.topology import Placement

Pair = tuple[str, str]
"""Member uid and the name of a node that it must not get."""

Shut = frozenset[str]
"""Names of nodes that a member must not get."""

Batch = tuple[MemberClass, Sequence[Pod]]

_NONE: Shut = frozenset()


def choose_nodes(count: int, node_slots: Iterable[NodeSlots]) -> list[NodeSlots]:
    """How many members each chosen node gets, in name order; fewer than ``count`` in all if there is less room."""
    node_slots = list(node_slots)
    enough = [room for room in node_slots if room[0] >= count]
    if enough:  # the usual end of what follows, without an order of all
        return [(count, min(enough)[1])] if count else []
    chosen: list[NodeSlots] = []
    largest_first = sorted((-free, name) for free, name in node_slots)
    for position, (free, name) in enumerate(largest_first):
        if -free < count:
            chosen.append((-free, name))
            count += free
            continue
        if count:
            _, tightest = min((-room, host) for room, host in largest_first[position:] if -room >= count)
            chosen.append((count, tightest))
        break
    return sorted(chosen, key=lambda room: room[1])


def spread_nodes(count: int, node_slots: Iterable[NodeSlots]) -> list[NodeSlots]:
    """The same, with as equal a number of members on each node as there is room for."""
    given: dict[str, int] = {}
    # Fewest members first, then the node that had most room.
    heap = [(0, -free, name) for free, name in node_slots]
    heapq.heapify(heap)
    while heap and count:
        taken, free, name = heapq.heappop(heap)
        count -= 1
        given[name] = taken + 1
        if taken + 1 < -free:
            heapq.heappush(heap, (taken + 1, free, name))
    return sorted(((taken, name) for name, taken in given.items()), key=lambda room: room[1])


def fill(
    count: int, node_slots: Sequence[NodeSlots], levels: Sequence[Callable[[str], str]], style: Style
) -> list[NodeSlots]:
    """How many members each chosen node gets, along the topology.

    ``levels`` give a node's domain ("" without one) at each level below the placement, the widest first: as few domains
    of the widest as possible are chosen, and inside them as few of the next (`subdomains`).
    """
    spread = style is Style.SPREAD
    if not levels:
        return spread_nodes(count, node_slots) if spread else choose_nodes(count, node_slots)
    inside: dict[str, list[NodeSlots]] = {}
    for room in node_slots:
        inside.setdefault(levels[0](room[1]), []).append(room)
    sums = [(sum(free for free, _ in each), domain) for domain, each in inside.items()]
    chosen = spread_nodes(count, sums) if spread else share_out(count, _sum_paths(node_slots, levels))
    return [
        room
        for share, domain in sorted(chosen, key=itemgetter(1))
        for room in fill(share, inside[domain], levels[1:], style)
    ]


def _sum_paths(node_slots: Sequence[NodeSlots], levels: Sequence[Callable[[str], str]]) -> dict[Path, int]:
    sums: dict[Path, int] = {}
    for free, name in node_slots:
        path = tuple([level(name) for level in levels])
        sums[path] = sums.get(path, 0) + free
    return sums


def match_members(members: Sequence[Pod], node_slots: Sequence[NodeSlots], shut: Mapping[str, Shut]) -> dict[str, str]:
    """Member uid to node name where some nodes are shut to some members: as many as possible, earlier ones first.

    Augmenting paths of bipartite matching: a member may push another one to a node that is open to that one. Exact
    for members of one class. Members to which the same nodes are shut are alike, and paths are looked for among kinds
    of members, of which there are few.
    """
    match = _Match(node_slots)
    full: set[Shut] = set()
    for member in members:
        kind = shut[member.uid]
        # Whom no path leads to a free slot, it never does again; nor anybody who is alike.
        if kind not in full and not match.admit(member.uid, kind):
            full.add(kind)
    return {uid: name for name, kinds in match.guests.items() for uids in kinds.values() for uid in uids}


class _Match:
    def __init__(self, node_slots: Sequence[NodeSlots]) -> None:
        self.guests: dict[str, dict[Shut, list[str]]] = {name: {} for _, name in node_slots}
        self._free = {name: slots for slots, name in node_slots}
        self._names = list(self._free)
        self._next: dict[Shut, int] = {}

    def admit(self, uid: str, kind: Shut) -> bool:
        """Give ``uid`` a slot, moving others along the shortest chain if need be; nothing happens without a chain."""
        # Slots are never given back, so it is enough to look on from where the last one was found.
        place = self._next.get(kind, 0)
        while place < len(self._names) and (not self._free[self._names[place]] or self._names[place] in kind):
            place += 1
        self._next[kind] = place
        if place < len(self._names):
            self._free[self._names[place]] -= 1
            self._seat(uid, kind, self._names[place])
            return True
        return self._push(uid, kind)

    def _push(self, uid: str, kind: Shut) -> bool:
        came: dict[str, tuple[Shut, str]] = {}
        closed = self._names
        queue: deque[tuple[Shut, str]] = deque([(kind, "")])
        seen = {kind}
        while queue:
            mover, origin = queue.popleft()
            reached = [name for name in closed if name not in mover]
            closed = [name for name in closed if name in mover]
            came.update((name, (mover, origin)) for name in reached)
            target = next((name for name in reached if self._free[name]), None)
            if target is not None:
                self._free[target] -= 1
                self._shift(uid, target, came)
                return True
            for name in reached:
                for other in self.guests[name]:
                    if other not in seen:
                        seen.add(other)
                        queue.append((other, name))
        return False

    def _shift(self, uid: str, target: str, came: Mapping[str, tuple[Shut, str]]) -> None:
        kind, origin = came[target]
        while origin:
            uids = self.guests[origin][kind]
            self._seat(uids.pop(0), kind, target)
            if not uids:
                del self.guests[origin][kind]
            target = origin
            kind, origin = came[target]
        self._seat(uid, kind, target)

    def _seat(self, uid: str, kind: Shut, name: str) -> None:
        self.guests[name].setdefault(kind, []).append(uid)


class Packing:
    """One attempt at a placement: batches go in one after another, each sees what is left by those before it."""

    def __init__(
        self, census: Census, placement: Placement, below: Sequence[str], style: Style, barred: Collection[Pair]
    ) -> None:
        self.nodes: dict[str, str] = {}
        self._census = census
        self._placement = placement
        self._levels = [partial(census.label, level) for level in below]
        self._style = style
        self._shut: dict[str, set[str]] = {}
        for uid, name in barred:
            self._shut.setdefault(uid, set()).add(name)
        self._taken: dict[str, dict[str, int]] = {}

    def put(self, batch: Batch) -> Work[None]:
        """Place as many members of the batch as fit, the first ones first."""
        kind, members = batch
        node_slots = self._node_slots(kind)
        yield
        shut = self._find_shut(members, node_slots)
        everywhere = frozenset.intersection(*shut.values()) if shut else _NONE
        if everywhere:  # to a class that is refused as one it is as if these nodes were not there
            node_slots = [room for room in node_slots if room[1] not in everywhere]
        chosen = fill(len(members), node_slots, self._levels, self._style)
        yield
        if any(each != everywhere for each in shut.values()):
            hosts = {name for _, name in chosen}
            free = {name: slots for slots, name in node_slots}
            others = sorted((slots, name) for slots, name in node_slots if name not in hosts)
            placed = match_members(members, [(free[name], name) for _, name in chosen] + others, shut)
        else:
            order = (name for count, name in chosen for _ in range(count))
            placed = {member.uid: name for member, name in zip(members, order, strict=False)}
        self.nodes.update(placed)
        self._take(kind, placed.values())
        yield

    def _find_shut(self, members: Sequence[Pod], node_slots: Sequence[NodeSlots]) -> dict[str, Shut]:
        """The nodes among these that are shut to each member; {} if none is to any."""
        if not self._shut:
            return {}
        names = {name for _, name in node_slots}
        shut = {member.uid: frozenset(self._shut.get(member.uid, _NONE) & names) for member in members}
        return shut if any(shut.values()) else {}

    def _node_slots(self, kind: MemberClass) -> list[NodeSlots]:
        node_slots = self._census.node_slots(kind, self._placement.names)
        taken = self._taken
        if not taken:
            return node_slots
        node_slots = [(self._recount(kind, name) if name in taken else free, name) for free, name in node_slots]
        return [room for room in node_slots if room[0]]

    def _recount(self, kind: MemberClass, name: str) -> int:
        used = add(self._census.used(name), self._taken[name])
        return count_slots(self._census.allocatable(name), used, kind.request)

    def _take(self, kind: MemberClass, hosts: Iterable[str]) -> None:
        for name in hosts:
            self._taken[name] = add(self._taken.get(name, {}), kind.request)
