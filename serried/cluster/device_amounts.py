"""Names and numbers of amounts of devices: for a node how many it has, and for a pod how many it asks for.

Each name is about a `Group` of sorts, whose devices are counted together. Constraints, and requests for all devices of
a node, have names of their own.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Any

from serried.api.device import Constraint, DeviceId
from serried.api.names import Key
from serried.api.resources import DEVICES, SHARES, UNLIMITED, Resources
from serried.api.selectors import Terms
from serried.cluster.devices import Group, Inventory, Match, Sort


@dataclass(frozen=True, slots=True)
class Need:
    """So many devices of any of these sorts."""

    sorts: Group
    count: int


@dataclass(frozen=True, slots=True)
class Bundle:
    """Devices of one claim that have something in common, or not."""

    needs: tuple[tuple[str, Need], ...]
    """By request."""

    constraints: tuple[Constraint, ...]


@dataclass(frozen=True, slots=True)
class Every:
    """All devices of a sort that a node has."""

    sort: Sort

    tainted: Sort
    """The same with those whose taints are not tolerated: while there is one, nobody gets all."""


@dataclass(slots=True)
class Demand:
    """What a pod's claims come to."""

    needs: list[Need] = field(default_factory=list)

    holding: list[Need] = field(default_factory=list)
    """What claims ask for that hold their devices for this pod; once it is bound those themselves are counted."""

    bundles: list[Bundle] = field(default_factory=list)
    every: list[Every] = field(default_factory=list)
    """Of what it wants all devices of its node."""

    present: list[Need] = field(default_factory=list)
    """What must be there, in use or not: for administrators."""

    terms: list[Terms] = field(default_factory=list)
    """Where its claims that are allocated can be reached."""

    counted: Counter[str] = field(default_factory=Counter)
    """The amounts of its shape that are counted here (`Pod.device_claims`)."""

    mates: Key | None = None
    """The claim that it shares with others, and that has no devices yet."""

    obstacle: str = ""
    uncountable: str = ""

    resources: list[tuple[Sort, str]] = field(default_factory=list)
    """The extended resources that it asks for, with the devices that may stand for them."""

    sorts: list[Sort] = field(default_factory=list)
    """Those that are taken for it."""

    def note(self, uncountable: str) -> bool:
        """It asks for what cannot be counted, if the phrase is not empty; whether it does."""
        self.uncountable = self.uncountable or uncountable
        return bool(uncountable)


Holders = Mapping[DeviceId, Collection[Bundle] | None]
"""The devices that are held: with the bundles of the pod that counts them itself, or None where nobody does."""


class Amounts:
    """What is asked for by now, so that nodes have amounts of it."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._bundles: Counter[Bundle] = Counter()
        self._every: Counter[Every] = Counter()
        self._present: Counter[Need] = Counter()
        self._resources: Counter[tuple[Sort, str]] = Counter()

    def register(self, demand: Demand, step: int) -> None:
        """A pod more or less asks for these amounts."""
        for sort in demand.sorts if step < 0 else ():
            self._inventory.release(sort)
        for need in (*demand.needs, *demand.holding):
            if len(need.sorts) > 1:
                self._inventory.note_union(need.sorts, step)
        counters: tuple[tuple[Counter[Any], Iterable[Any]], ...] = (
            (self._bundles, demand.bundles),
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

    @property
    def any_resources(self) -> bool:
        """Whether somebody asks for an extended resource, which some nodes may show."""
        return bool(self._resources)

    def count_node(
        self, node: str, shown: Resources, holders: Mapping[DeviceId, Collection[Bundle] | None]
    ) -> Resources:
        """How much a node has of each name; ``shown`` is its own allocatable."""
        matches = self._inventory.find(node)
        free = {key: match for key, match in matches.items() if holders.get(key, ()) is not None}
        amounts: Counter[str] = Counter()
        for group in self._inventory.groups:
            amounts[name_group(group)] = sum(_serves(group, match) for match in free.values())
        # What a device plugin shows there is taken before devices.
        for sort, resource in self._resources:
            for group in dict.fromkeys((frozenset([sort]), *self._inventory.groups)):
                if sort in group:
                    amounts[name_group(group)] += shown.get(resource, 0)
        for every in self._every:
            wanted = {key: match for key, match in matches.items() if every.tainted in match.sorts}
            whole = wanted and all(key in free and every.sort in match.sorts for key, match in wanted.items())
            amounts[_name_every(every)] = SHARES if whole and not self._inventory.lacks_slices(node) else 0
        for need in self._present:
            there = [key for key, match in matches.items() if _serves(need.sorts, match)]
            amounts[_name_present(need)] = UNLIMITED if len(there) >= need.count else 0
        for bundle in self._bundles:
            usable = {key: match for key, match in free.items() if bundle in holders.get(key, (bundle,))}  # type: ignore[operator]
            amounts[_name_bundle(bundle)] = self._count_bundles(bundle, usable)
        return {name: amount for name, amount in amounts.items() if amount}

    def _count_bundles(self, bundle: Bundle, usable: Mapping[DeviceId, Match]) -> int:
        """How many such claims find their devices among these."""
        found = [(sum(_serves(need.sorts, match) for match in usable.values()), need) for _, need in bundle.needs]
        most = min(devices // need.count for devices, need in found)
        for constraint in bundle.constraints:
            needs = [need for name, need in bundle.needs if not constraint.requests or name in constraint.requests]
            values: dict[object, Counter[frozenset[Need]]] = {}
            for key, match in usable.items():
                value = self._read_attribute(key, constraint.attribute)
                serves = frozenset([need for need in needs if _serves(need.sorts, match)])
                if value is not None and serves:
                    values.setdefault(value, Counter())[serves] += 1
            most = min(most, _count_sets(values.values(), needs, most, distinct=constraint.distinct))
        return most

    def _read_attribute(self, key: DeviceId, name: str) -> object:
        domain, _, identifier = name.rpartition("/")
        value = self._inventory.find_device(key).attributes.get(domain, {}).get(identifier)
        return None if value is None or isinstance(value, list) else (type(value), value)

    def count_demand(self, demand: Demand, held: Iterable[Match] | None) -> Counter[str]:
        """How much a pod asks for of each name; ``held`` are the devices that it has if it is bound."""
        amounts: Counter[str] = Counter()
        if held is None:  # of a bound pod these are among what it has
            for every in demand.every:
                others = [other for other in demand.every if other is not every]
                amounts[_name_every(every)] += SHARES
                amounts[_name_every(every)] += sum(self._inventory.overlap(every.sort, each.sort) for each in others)
        for need in demand.needs if held is not None else (*demand.needs, *demand.holding):
            for group in dict.fromkeys((need.sorts, *self._inventory.groups)):
                if need.sorts <= group:
                    amounts[name_group(group)] += need.count
            for every in self._every:
                if all(self._inventory.is_within(sort, every.sort) for sort in need.sorts):
                    amounts[_name_every(every)] += need.count
        for match in held or ():
            amounts.update(name_group(group) for group in self._inventory.groups if _serves(group, match))
            amounts.update(_name_every(every) for every in self._every if every.sort in match.sorts)
        amounts.update(map(_name_bundle, demand.bundles))
        amounts.update(map(_name_present, demand.present))
        return amounts | Counter({_name_every(every): SHARES for every in demand.every})


def _serves(sorts: Group, match: Match) -> bool:
    return not sorts.isdisjoint(match.sorts)


@lru_cache(maxsize=1024)
def name_group(group: Group) -> str:
    """The name of the amount of these devices."""
    return DEVICES + " or ".join(sorted(sort.name for sort in group))


def _name_every(every: Every) -> str:
    return f"{DEVICES}all {every.sort.name}"


def _name_present(need: Need) -> str:
    return f"{DEVICES}{need.count} {_tell(need)}, in use or not"


def _tell(need: Need) -> str:
    return " or ".join(sorted(sort.name for sort in need.sorts))


@lru_cache(maxsize=1024)
def _name_bundle(bundle: Bundle) -> str:
    devices = " and ".join(f"{need.count} {_tell(need)}" for _, need in bundle.needs)
    said = [f"{'different' if each.distinct else 'the same'} {each.attribute}" for each in bundle.constraints]
    return f"{DEVICES}sets of {devices} with {' and '.join(said)}"


def _count_sets(values: Iterable[Counter[frozenset[Need]]], needs: list[Need], most: int, *, distinct: bool) -> int:
    """How many sets there are of devices with the same value, or all with different ones.

    ``values`` are the numbers of devices of each value by what they serve.
    """
    wanted: Counter[Need] = Counter()
    for need in needs:
        wanted[need] += need.count
    if not distinct:
        return sum(_count_alike(devices, wanted) for devices in values)
    sizes = [devices.total() for devices in values]
    return max(sets for sets in range(most + 1) if sum(min(size, sets) for size in sizes) >= sets * wanted.total())


def _count_alike(devices: Counter[frozenset[Need]], wanted: Counter[Need]) -> int:
    """How many times devices of one value serve all needs (by Hall's theorem, each way to choose among the needs)."""
    chosen = (some for size in range(1, len(wanted) + 1) for some in combinations(wanted, size))
    return min(
        sum(count for serves, count in devices.items() if not serves.isdisjoint(some)) // sum(wanted[n] for n in some)
        for some in chosen
    )
