"""Which nodes of a placement the members get.

Packed: as few nodes as possible, and the last of them the one with the least room that still holds the rest. Members
go onto the chosen nodes in name order, so neighbours in rank are neighbours on nodes.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from serried.model.pod import Pod
from serried.model.resources import add, count_slots
from serried.plan.classes import Census, MemberClass
from serried.plan.topology import Placement

Room = tuple[int, str]
"""Slots, and the name of the node that has them."""

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

    def __init__(self, census: Census, placement: Placement, barred: Collection[Pair]) -> None:
        self.nodes: dict[str, str] = {}
        self._census = census
        self._placement = placement
        self._allocatable = {node.name: node.allocatable for node in placement.nodes}
        self._barred = barred
        self._taken: dict[str, dict[str, int]] = {}

    def put(self, batch: Batch) -> None:
        """Place as many members of the batch as fit, the first ones first."""
        kind, members = batch
        rooms = self._rooms(kind)
        chosen = choose_nodes(len(members), rooms)
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
        rooms = self._census.count(kind, self._placement.nodes)
        if not self._taken:
            return rooms
        return [room for room in (self._recount(kind, *room) for room in rooms) if room[0]]

    def _recount(self, kind: MemberClass, free: int, name: str) -> Room:
        taken = self._taken.get(name)
        if taken is None:
            return free, name
        return count_slots(self._allocatable[name], add(self._census.used(name), taken), kind.request), name

    def _take(self, kind: MemberClass, hosts: Iterable[str]) -> None:
        for name in hosts:
            self._taken[name] = add(self._taken.get(name, {}), kind.request)
