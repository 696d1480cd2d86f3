"""Which nodes of a placement the members get.

Packed: as few domains of each narrower level as possible, then as few nodes, and the last of them the one with the
least room that still holds the rest. Members go onto the chosen nodes in the order of domain and name, so neighbours in
rank are neighbours on the topology.
"""

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from operator import itemgetter

from serried.model.pod import Pod
from serried.model.preference import Style
from serried.model.resources import add, count_slots
from serried.plan.classes import Census, MemberClass, Room
from serried.plan.subdomains import Path, share_out
from serried.plan.topology import Placement

Pair = tuple[str, str]
"""Member uid and the name of a node that it must not get."""

Batch = tuple[MemberClass, Sequence[Pod]]


def choose_nodes(count: int, rooms: Iterable[Room]) -> list[Room]:
    """How many members each chosen node gets, in name order; fewer than ``count`` in all if there is less room."""
    chosen: list[Room] = []
    largest_first = sorted((-free, name) for free, name in rooms)
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


def spread_nodes(count: int, rooms: Iterable[Room]) -> list[Room]:
    """The same, with as equal a number of members on each node as there is room for."""
    given: dict[str, int] = {}
    # Fewest members first, then the node that had most room.
    heap = [(0, -free, name) for free, name in rooms]
    heapq.heapify(heap)
    while heap and count:
        taken, free, name = heapq.heappop(heap)
        count -= 1
        given[name] = taken + 1
        if taken + 1 < -free:
            heapq.heappush(heap, (taken + 1, free, name))
    return sorted(((taken, name) for name, taken in given.items()), key=lambda room: room[1])


def fill(count: int, rooms: Sequence[Room], levels: Sequence[Callable[[str], str]], style: Style) -> list[Room]:
    """How many members each chosen node gets, along the topology.

    ``levels`` give a node's domain ("" without one) at each level below the placement, the widest first: as few domains
    of the widest as possible are chosen, and inside them as few of the next (`subdomains`).
    """
    spread = style is Style.SPREAD
    if not levels:
        return spread_nodes(count, rooms) if spread else choose_nodes(count, rooms)
    inside: dict[str, list[Room]] = {}
    for room in rooms:
        inside.setdefault(levels[0](room[1]), []).append(room)
    sums = [(sum(free for free, _ in each), domain) for domain, each in inside.items()]
    chosen = spread_nodes(count, sums) if spread else share_out(count, _sum_paths(rooms, levels))
    return [
        room
        for share, domain in sorted(chosen, key=itemgetter(1))
        for room in fill(share, inside[domain], levels[1:], style)
    ]


def _sum_paths(rooms: Sequence[Room], levels: Sequence[Callable[[str], str]]) -> dict[Path, int]:
    sums: dict[Path, int] = {}
    for free, name in rooms:
        path = tuple([level(name) for level in levels])
        sums[path] = sums.get(path, 0) + free
    return sums


def match_members(members: Sequence[Pod], rooms: Sequence[Room], barred: Collection[Pair]) -> dict[str, str]:
    """Member uid to node name where some pairs are barred: as many members as possible, earlier ones first.

    Augmenting paths of bipartite matching: a member may push another one to a node that is open to that one. Exact
    for members of one class.
    """
    free = {name: slots for slots, name in rooms}
    guests: dict[str, list[str]] = {name: [] for name in free}
    for member in members:
        if not any(free.values()):
            break
        _admit(member.uid, free, guests, barred)
    return {uid: name for name, uids in guests.items() for uid in uids}


def _admit(uid: str, free: dict[str, int], guests: dict[str, list[str]], barred: Collection[Pair]) -> None:
    """Give ``uid`` a slot, moving others along the shortest chain if need be; nothing happens without a chain."""
    came: dict[str, tuple[str, str]] = {}
    open_nodes = list(free)
    queue: deque[tuple[str, str]] = deque([(uid, "")])
    while queue:
        mover, origin = queue.popleft()
        reached = [name for name in open_nodes if (mover, name) not in barred]
        open_nodes = [name for name in open_nodes if (mover, name) in barred]
        for name in reached:
            came[name] = (mover, origin)
        target = next((name for name in reached if free[name]), None)
        if target is not None:
            _shift(target, came, free, guests)
            return
        queue.extend((guest, name) for name in reached for guest in guests[name])


def _shift(target: str, came: dict[str, tuple[str, str]], free: dict[str, int], guests: dict[str, list[str]]) -> None:
    free[target] -= 1
    while target:
        mover, origin = came[target]
        guests[target].append(mover)
        if origin:
            guests[origin].remove(mover)
        target = origin


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
        self._barred = barred
        self._taken: dict[str, dict[str, int]] = {}

    def put(self, batch: Batch) -> None:
        """Place as many members of the batch as fit, the first ones first."""
        kind, members = batch
        rooms = self._rooms(kind)
        chosen = fill(len(members), rooms, self._levels, self._style)
        if self._barred:
            hosts = {name for _, name in chosen}
            free = {name: slots for slots, name in rooms}
            others = sorted((slots, name) for slots, name in rooms if name not in hosts)
            placed = match_members(members, [(free[name], name) for _, name in chosen] + others, self._barred)
        else:
            order = (name for count, name in chosen for _ in range(count))
            placed = {member.uid: name for member, name in zip(members, order, strict=False)}
        self.nodes.update(placed)
        self._take(kind, placed.values())

    def _rooms(self, kind: MemberClass) -> list[Room]:
        rooms = self._census.rooms(kind, self._placement.names)
        if not self._taken:
            return rooms
        return [room for room in (self._recount(kind, *room) for room in rooms) if room[0]]

    def _recount(self, kind: MemberClass, free: int, name: str) -> Room:
        taken = self._taken.get(name)
        if taken is None:
            return free, name
        return count_slots(self._census.allocatable(name), add(self._census.used(name), taken), kind.request), name

    def _take(self, kind: MemberClass, hosts: Iterable[str]) -> None:
        for name in hosts:
            self._taken[name] = add(self._taken.get(name, {}), kind.request)
