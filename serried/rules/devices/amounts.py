"""Names and quantities of device amounts: what a node has (`count_node`), and what a pod requests (`count_demand`).

A name stands for a `Group` of sorts that are counted together. Requests for all devices of a node have names of their
own. So has a `Kit`: the claims of a pod that numbers do not describe. A node has as many of a kit as kube-scheduler's
own search would find devices for, pod after pod.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from serried.api.device import Amount, Capacity, Constraint, DeviceId
from serried.api.names import Key
from serried.api.resources import DEVICES, SETS, SHARES, UNLIMITED, Resources
from serried.api.selectors import Terms
from serried.rules.devices.inventory import Group, Inventory, Match, Sort


@dataclass(frozen=True, slots=True)
class Need:
    """A number of devices of any of these sorts."""

    sorts: Group
    count: int


@dataclass(frozen=True, slots=True)
class Every:
    """A request for all devices of a sort on a node."""

    sort: Sort

    tainted: Sort
    """The sort that also has devices with taints that are not tolerated. If there is one, the request cannot be met."""


class Option(NamedTuple):
    """An alternative of a request: a number of devices of a sort."""

    sort: Sort

    tainted: Sort | None
    """For a request for all devices: the sort that also has devices with taints that are not tolerated."""

    number: int
    """The number of devices; 0 for all."""

    admin: bool
    capacity: tuple[Amount, ...]
    """The requested capacity of each device; capacities that are not listed get the device's default."""

    name: str


class Part(NamedTuple):
    """A claim of a pod."""

    requests: tuple[tuple[str, tuple[Option, ...]], ...]
    """The alternatives by request name, in their order."""

    constraints: tuple[Constraint, ...]

    resource: str = ""
    """The extended resource that it stands for. On nodes that list the resource, no devices are used."""


class Kit(NamedTuple):
    """The claims of a pod that have to be met together."""

    parts: tuple[Part, ...]

    within: bool
    """True if devices use shared counters."""

    def is_for(self, match: Match) -> bool:
        """Return whether a device may be used for the kit."""
        return not _list_sorts(self.parts).isdisjoint(match.sorts)


@dataclass(slots=True)
class Demand:
    """The sum of a pod's claims."""

    needs: list[Need] = field(default_factory=list)

    holding: list[Need] = field(default_factory=list)
    """The requests of claims allocated to this pod; once it is bound, the devices themselves are counted."""

    parts: list[Part] = field(default_factory=list)
    kit: Kit | None = None
    """The parts, if amounts of single sorts do not decide where they fit; else None."""

    open: bool = False
    """True if some claims are not allocated."""

    every: list[Every] = field(default_factory=list)
    """The requests for all devices."""

    present: list[Need] = field(default_factory=list)
    """The requests for admin access: the devices must exist, whether in use or not."""

    terms: list[Terms] = field(default_factory=list)
    """The nodes from which its allocated claims are reachable."""

    counted: Counter[str] = field(default_factory=Counter)
    """The amounts of the shape that are replaced by device amounts (`Pod.device_claims`)."""

    shared_claim: Key | None = None
    """The unallocated claim that it shares with other pods; None without one."""

    follows: bool = False
    """True if another pod requests these devices and has to be placed first."""

    obstacle: str = ""
    uncountable: str = ""

    resources: list[tuple[Sort, str]] = field(default_factory=list)
    """The requested extended resources, with the sorts of devices that provide them."""

    sorts: list[Sort] = field(default_factory=list)
    """The sorts in use for it, to be released by `Amounts.register`."""

    def add_uncountable(self, uncountable: str) -> bool:
        """Record a phrase about what cannot be counted, if it is not empty. Return whether it is not."""
        self.uncountable = self.uncountable or uncountable
        return bool(uncountable)


class Holders(NamedTuple):
    """The allocated devices, for one node."""

    counted: Mapping[DeviceId, bool]
    """The allocated devices of the node, with whether a known pod counts them in its amounts."""

    kits: Sequence[tuple[str, Kit, Match]]
    """The devices of the node that a pod with a kit has, also as a share: UID, kit, and sorts of the device."""

    taken: Mapping[DeviceId, object]
    """All allocated devices."""

    shares: Mapping[DeviceId, Mapping[Key, tuple[Amount, ...]]]
    """All allocated shares by device and claim."""


class Amounts:
    """The amounts that known pods request, which nodes therefore need."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._kits: Counter[Kit] = Counter()
        self.endless: set[Kit] = set()
        """The kits for which the search takes too long."""

        self._every: Counter[Every] = Counter()
        self._present: Counter[Need] = Counter()
        self._resources: Counter[tuple[Sort, str]] = Counter()

    def register(self, demand: Demand, step: int) -> None:
        """Add (``step`` 1) or remove (-1) the amounts that a pod requests."""
        for sort in demand.sorts if step < 0 else ():
            self._inventory.release(sort)
        for need in (*demand.needs, *demand.holding):
            if len(need.sorts) > 1:
                self._inventory.note_union(need.sorts, step)
        counters: tuple[tuple[Counter[Any], Iterable[Any]], ...] = (
            (self._kits, filter(None, [demand.kit])),
            (self._every, demand.every),
            (self._present, demand.present),
            (self._resources, demand.resources),
        )
        for counter, items in counters:
            known = len(counter)
            for item in items:
                counter[item] += step
                if not counter[item]:
                    del counter[item]
            if len(counter) != known:
                self._inventory.touch_all()
                self._inventory.epoch += counter is self._every
                self._inventory.note_shown(frozenset(sort for sort, _ in self._resources))

    @property
    def any_every(self) -> bool:
        """True if a pod requests all devices of a sort on its node."""
        return bool(self._every)

    @property
    def any_resources(self) -> bool:
        """True if a pod requests an extended resource, which some nodes may list."""
        return bool(self._resources)

    def count_node(self, node: str, shown: Resources, holders: Holders) -> Resources:
        """Return the amounts of a node by name; ``shown`` is its own allocatable."""
        matches = self._inventory.find(node)
        free = {key: match for key, match in matches.items() if holders.counted.get(key, True)}
        amounts: Counter[str] = Counter()
        alike = Counter(free.values())
        for group in self._inventory.groups:
            amounts[name_group(group)] = sum(count for match, count in alike.items() if _serves(group, match))
        # A resource that a device plugin provides on the node is used before devices.
        for sort, resource in self._resources:
            own = frozenset([sort])
            for group in {own, *self._inventory.find_covering(own)}:
                amounts[name_group(group)] += shown.get(resource, 0)
        for every in self._every:
            wanted = {key: match for key, match in matches.items() if every.tainted in match.sorts}
            whole = wanted and all(key in free and every.sort in match.sorts for key, match in wanted.items())
            amounts[_name_every(every)] = SHARES if whole and not self._inventory.lacks_slices(node) else 0
        for need in self._present:
            there = [key for key, match in matches.items() if _serves(need.sorts, match)]
            amounts[_name_present(need)] = UNLIMITED if len(there) >= need.count else 0
        for kit in self._kits:
            amounts[_name_kit(kit)] = self._count_kits(kit, node, shown, holders)
        return {name: amount for name, amount in amounts.items() if amount}

    def _count_kits(self, kit: Kit, node: str, shown: Resources, holders: Holders) -> int:
        """Return for how many pods with this kit the node has devices, including pods that have theirs already."""
        parts = tuple(part for part in kit.parts if not shown.get(part.resource))
        if self._inventory.lacks_slices(node) and any(not option.number for option in _list_options(parts)):
            return 0
        pieces, counters = self._list_pieces(parts, node, holders)
        found = _count_sets(parts, pieces, counters)
        if found is None:
            self._inventory.epoch += kit not in self.endless
            self.endless.add(kit)
            return UNLIMITED
        own = {uid for uid, other, match in holders.kits if other == kit and kit.is_for(match)}
        return min(UNLIMITED, found + len(own))

    def _list_pieces(
        self, parts: tuple[Part, ...], node: str, holders: Holders
    ) -> tuple[tuple["_Candidate", ...], tuple[Amount, ...]]:
        """Return the devices of a node that a kit may use, in kube-scheduler's order, and the free counters."""
        sorts = _list_sorts(parts)
        attributes = [each.attribute for part in parts for each in part.constraints]
        measured = any(option.capacity for option in _list_options(parts))
        pools: dict[object, str] = {}
        left: Counter[tuple[str, ...]] = Counter()
        pieces = []
        for key, match in self._inventory.find(node).items():
            if sorts.isdisjoint(match.sorts):
                continue
            device = self._inventory.find_device(key)
            pool = pools.get(key.pool)
            if device.consumes and pool is None:
                pool = pools[key.pool] = str(len(pools))
                left.update({(pool, *name): amount for name, amount in self._count_left(key, holders).items()})
            shares = holders.shares.get(key)
            pieces.append(
                _Candidate(
                    match.sorts,
                    tuple([self._read_attribute(key, name) for name in attributes]),
                    tuple([Amount((pool or "", *name), amount) for name, amount in device.consumes]),
                    device.capacities if measured or device.shareable else (),
                    device.shareable,
                    key in holders.taken,
                    None if shares is None else _sum_amounts(shares.values()),
                )
            )
        return tuple(pieces), tuple(Amount(name, amount) for name, amount in sorted(left.items()))

    def _count_left(self, key: DeviceId, holders: Holders) -> Mapping[tuple[str, ...], int]:
        """Return the free counters of a device's pool; all negative if one is overdrawn."""
        left = Counter(self._inventory.find_counters(key.pool))
        for other, device in self._inventory.list_partitions(key.pool):
            if other in holders.taken or other in holders.shares:
                left.subtract(dict(device.consumes))
        return left if all(amount >= 0 for amount in left.values()) else dict.fromkeys(left, -1)

    def _read_attribute(self, key: DeviceId, name: str) -> object:
        domain, _, identifier = name.rpartition("/")
        value = self._inventory.find_device(key).attributes.get(domain, {}).get(identifier)
        return None if value is None or isinstance(value, list) else (type(value), value)

    def count_demand(self, demand: Demand, held: Sequence[tuple[Match, bool]] | None) -> Counter[str]:
        """Return what a pod requests, by name; ``held`` are the devices or shares that a bound pod has."""
        amounts: Counter[str] = Counter()
        if held is None:  # for a bound pod these are in ``held``
            for every in demand.every:
                others = [other for other in demand.every if other is not every]
                amounts[_name_every(every)] += SHARES
                amounts[_name_every(every)] += sum(self._inventory.overlap(every.sort, each.sort) for each in others)
        for need in demand.needs if held is not None else (*demand.needs, *demand.holding):
            for group in {need.sorts, *self._inventory.find_covering(need.sorts)}:
                amounts[name_group(group)] += need.count
            for every in self._every:
                if all(self._inventory.is_within(sort, every.sort) for sort in need.sorts):
                    amounts[_name_every(every)] += need.count
        for match in [match for match, shared in held or () if not shared]:
            amounts.update(name_group(group) for group in self._inventory.groups if _serves(group, match))
            amounts.update(_name_every(every) for every in self._every if every.sort in match.sorts)
        if demand.kit is not None and (held is None or demand.open or _has_one(demand.kit, held)):
            amounts[_name_kit(demand.kit)] += 1
        amounts.update(map(_name_present, demand.present))
        return amounts | Counter({_name_every(every): SHARES for every in demand.every})


def _serves(sorts: Group, match: Match) -> bool:
    return not sorts.isdisjoint(match.sorts)


@lru_cache(maxsize=1024)
def name_group(group: Group) -> str:
    """Return the name of the amount for a group."""
    return DEVICES + " or ".join(sorted(sort.name for sort in group))


def _name_every(every: Every) -> str:
    return f"{DEVICES}all {every.sort.name}"


def _name_present(need: Need) -> str:
    return f"{DEVICES}{need.count} {_name_sorts(need)}, in use or not"


def _name_sorts(need: Need) -> str:
    return " or ".join(sorted(sort.name for sort in need.sorts))


def _has_one(kit: Kit, held: Sequence[tuple[Match, bool]]) -> bool:
    return any(kit.is_for(match) for match, _ in held)


def _list_options(parts: Iterable[Part]) -> Iterable[Option]:
    return (option for part in parts for _, options in part.requests for option in options)


@lru_cache(maxsize=1024)
def _list_sorts(parts: tuple[Part, ...]) -> Group:
    return frozenset(option.tainted or option.sort for option in _list_options(parts))


@lru_cache(maxsize=1024)
def _name_kit(kit: Kit) -> str:
    said = "; ".join(_name_part(part) for part in kit.parts)
    return f"{SETS}{said}{' within shared counters' if kit.within else ''}"


def _name_part(part: Part) -> str:
    said = " and ".join(" or ".join(map(_name_option, options)) for _, options in part.requests)
    alike = [
        f"{'different' if each.distinct else 'the same'} {' of '.join([each.attribute, *each.requests])}"
        for each in part.constraints
    ]
    if part.resource:
        said += f" as {part.resource}"
    return f"{said} with {' and '.join(alike)}" if alike else said


def _name_option(option: Option) -> str:
    asked = [f"{amount // 10**9} of {name[0]}" for name, amount in option.capacity]
    words = f"{option.number or 'all'} {option.sort.name}"
    return f"{words} with {' and '.join(asked)}" if asked else words


def _sum_amounts(parts: Iterable[tuple[Amount, ...]]) -> tuple[Amount, ...]:
    total: Counter[tuple[str, ...]] = Counter()
    for amounts in parts:
        total.update(dict(amounts))
    return tuple(Amount(name, amount) for name, amount in sorted(total.items()))


# --- the search ----------------------------------------------------------------------------------------------------


class _Candidate(NamedTuple):
    """The properties of a device that matter to a kit. Interchangeable devices are equal."""

    sorts: Group
    values: tuple[object, ...]
    """The values of the attributes in constraints, None if the device lacks one."""

    consumes: tuple[Amount, ...]
    capacities: tuple[Capacity, ...]
    shareable: bool
    held: bool
    shared: tuple[Amount, ...] | None
    """The capacities used by shares; None if it is not shared yet."""


class _Choice(NamedTuple):
    """A device that is chosen for a claim."""

    place: int
    request: str
    option: Option
    takes: tuple[Amount, ...]
    """The capacities that are used of it."""

    counts: bool
    """True if it uses counters: only the first share of a device does."""


_MAX_DEVICES = 32
"""The maximum number of devices of a claim (resource/v1 AllocationResultsMaxSize)."""

_MAX_PODS = 1024
_MAX_TRIES = 20_000
"""The maximum number of devices to try for all pods of a node."""


class _Endless(Exception):
    """Raised when the search takes too long."""


class _Failed(Exception):
    """Raised when a constraint excludes a device of a request for all: kube-scheduler's search ends there."""


@lru_cache(maxsize=512)
def _count_sets(parts: tuple[Part, ...], pieces: tuple[_Candidate, ...], counters: tuple[Amount, ...]) -> int | None:
    """Return for how many pods there are devices; None if the search takes too long."""
    try:
        return _Search(parts, pieces, counters).count()
    except _Endless:
        return None


class _Search:
    """The search of upstream's allocator (1.37, dynamic-resource-allocation structured/internal/incubating).

    It chooses the first fitting devices for one request after another, and backtracks if that leads nowhere.
    """

    def __init__(self, parts: tuple[Part, ...], pieces: tuple[_Candidate, ...], counters: tuple[Amount, ...]) -> None:
        self._parts = parts
        self._pieces = pieces
        kinds: dict[_Candidate, int] = {}
        self._kinds = [kinds.setdefault(piece, place) for place, piece in enumerate(pieces)]
        self._left = dict(counters)
        self._held = [piece.held for piece in pieces]
        self._shared = [Counter(dict(piece.shared or ())) for piece in pieces]
        self._sharers = [int(piece.shared is not None) for piece in pieces]
        self._users: list[list[int]] = [[] for _ in pieces]
        """The claims for which each device is chosen at the moment."""

        self._chosen: list[list[_Choice]] = [[] for _ in parts]
        self._tries = 0

    def count(self) -> int:
        """Return for how many pods there are devices; UNLIMITED if they use up nothing."""
        for pods in range(_MAX_PODS):
            try:
                if not self._search_from(0, 0):
                    return pods
            except _Failed:
                return pods
            if not self._keep():
                break
        return UNLIMITED

    def _keep(self) -> bool:
        """Keep the devices of a pod. Return whether they are missing for the next one."""
        less = False
        for claim, chosen in enumerate(self._chosen):
            for choice in reversed(chosen):
                if choice.option.admin:
                    self._undo(claim, choice)
                    continue
                if not self._pieces[choice.place].shareable:
                    self._users[choice.place].remove(claim)
                    self._held[choice.place] = less = True
                less = less or choice.counts or any(each.amount for each in choice.takes)
            chosen.clear()
        return less

    def _search_from(self, claim: int, request: int) -> bool:
        """Choose devices for a request and for all after it. Return whether that succeeded."""
        if claim == len(self._parts):
            return True
        if request == len(self._parts[claim].requests):
            return self._search_from(claim + 1, 0)
        return any(
            self._choose_next(claim, request, option, 0, 0) for option in self._parts[claim].requests[request][1]
        )

    def _choose_next(self, claim: int, request: int, option: Option, done: int, start: int) -> bool:
        """Choose the next device for a request that has ``done`` ones, then go on with the rest."""
        every = self._list_every(option) if not option.number else ()
        wanted = option.number or len(every)
        if not wanted or len(self._chosen[claim]) + wanted - done > _MAX_DEVICES:
            return False
        if done == wanted:
            return self._search_from(claim, request + 1)
        tried: set[object] = set()
        for place in every[done : done + 1] if every else range(start, len(self._pieces)):
            alike = self._kinds[place], self._held[place], bool(self._users[place])
            if alike in tried or option.sort not in self._pieces[place].sorts:
                continue
            choice = self._choose(claim, request, option, place)
            if choice is None:
                continue
            if self._choose_next(claim, request, option, done + 1, place + 1):
                return True
            self._chosen[claim].pop()
            self._undo(claim, choice)
            if not self._pieces[place].shareable:
                tried.add(alike)  # an identical device would fail as well
        return False

    def _list_every(self, option: Option) -> list[int]:
        return [
            place
            for place, piece in enumerate(self._pieces)
            if option.tainted in piece.sorts and _measure(piece, option.capacity, {}) is not None
        ]

    def _choose(self, claim: int, request: int, option: Option, place: int) -> _Choice | None:
        """Choose a device. Return None if that is not possible."""
        self._tries += 1
        if self._tries > _MAX_TRIES:
            raise _Endless
        piece = self._pieces[place]
        if claim in self._users[place] if option.admin else (self._held[place] or self._users[place]):
            return None
        counts = bool(piece.consumes) and not (piece.shareable and self._sharers[place])
        if counts and any(self._left.get(name, 0) < amount for name, amount in piece.consumes):
            return None
        name = self._parts[claim].requests[request][0]
        takes = _measure(piece, option.capacity, self._shared[place])
        if takes is None:
            return None
        if not self._meets_constraints(claim, name, option, piece):
            if not option.number:
                raise _Failed
            return None
        for counter, amount in piece.consumes if counts else ():
            self._left[counter] = self._left.get(counter, 0) - amount
        if piece.shareable:
            self._shared[place].update(dict(takes))
            self._sharers[place] += 1
        else:
            self._users[place].append(claim)
        choice = _Choice(place, name, option, takes if piece.shareable else (), counts)
        self._chosen[claim].append(choice)
        return choice

    def _undo(self, claim: int, choice: _Choice) -> None:
        piece = self._pieces[choice.place]
        for counter, amount in piece.consumes if choice.counts else ():
            self._left[counter] += amount
        if piece.shareable:
            self._shared[choice.place].subtract(dict(choice.takes))
            self._sharers[choice.place] -= 1
        else:
            self._users[choice.place].remove(claim)

    def _meets_constraints(self, claim: int, request: str, option: Option, piece: _Candidate) -> bool:
        first = sum(len(part.constraints) for part in self._parts[:claim])
        for place, constraint in enumerate(self._parts[claim].constraints, first):
            if not _is_about(constraint, request, option):
                continue
            value = piece.values[place]
            others = [
                self._pieces[choice.place].values[place]
                for choice in self._chosen[claim]
                if _is_about(constraint, choice.request, choice.option)
            ]
            if value is None or any((value == other) == constraint.distinct for other in others):
                return False
        return True


def _is_about(constraint: Constraint, request: str, option: Option) -> bool:
    wanted = constraint.requests
    return not wanted or request in wanted or bool(option.name and f"{request}/{option.name}" in wanted)


def _measure(
    piece: _Candidate, asked: tuple[Amount, ...], shared: Mapping[tuple[str, ...], int]
) -> tuple[Amount, ...] | None:
    """Return the capacities that a request uses of a device; None if they do not suffice (consumable_capacity.go)."""
    wanted = dict(asked)
    if not wanted.keys() <= {each.name for each in piece.capacities}:
        return None
    takes = []
    for each in piece.capacities:
        amount = _round_up(each, wanted.get(each.name))
        if amount is None or shared.get(each.name, 0) + amount > each.amount:
            return None
        takes.append(Amount(each.name, amount))
    return tuple(takes)


def _round_up(capacity: Capacity, asked: int | None) -> int | None:
    """Return the amount used by a request for part of a capacity; None if the device's policy forbids it."""
    if asked is None:
        return capacity.amount if capacity.default is None else capacity.default
    if capacity.values:
        return asked if asked == capacity.default else next((each for each in capacity.values if asked <= each), None)
    if capacity.least is not None:
        asked = max(asked, capacity.least)
        if capacity.step:
            asked += (capacity.least - asked) % capacity.step
    return None if capacity.most is not None and asked > capacity.most and asked != capacity.default else asked
