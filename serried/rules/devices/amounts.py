"""Turns devices into pseudo resources, which plans count like cpu: nodes have them and pods request them (`Amounts`).

`serried.rules.devices.cluster` registers what each pod requests (`Demand`). Then it asks which pseudo resources a node
has (`Amounts.count_node`) and a pod requests (`Amounts.count_demand`).

Most of them stand for a number of devices: those that requests with the same class, selectors and tolerations may use
(`SelectedDevices`), or a union of such devices (`DeviceUnion`). Requests for all devices of a node (allocationMode All)
have pseudo resources of their own. So have the claims of a pod that numbers of devices cannot describe (`ClaimSet`):
for them a node has the number of pods with such claims for which kube-scheduler's own search would find devices, one
pod after another.
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
from serried.rules.devices.inventory import DeviceUnion, Inventory, Match, SelectedDevices


@dataclass(frozen=True, slots=True)
class CountRequest:
    """A request for ``count`` devices, each of which is in at least one of the sets in ``selections``.

    A set has the devices that match the request's class, selectors and tolerations (`SelectedDevices`). There are
    several sets if the request has alternatives (firstAvailable).
    """

    selections: DeviceUnion
    count: int


@dataclass(frozen=True, slots=True)
class AllRequest:
    """A request for all devices of a node that match class and selectors (allocationMode All)."""

    selection: SelectedDevices
    """The devices that match and whose taints the request tolerates."""

    tainted: SelectedDevices
    """The devices that match, whatever taints they have.

    If a node has a device that is in ``tainted`` but not in ``selection``, kube-scheduler finds no devices for the
    request on this node.
    """


class Alternative(NamedTuple):
    """One alternative of a request (firstAvailable); a request without alternatives has one."""

    selection: SelectedDevices

    tainted: SelectedDevices | None
    """The devices that match class and selectors, whatever taints they have (`AllRequest.tainted`).

    Only for allocationMode All; None if the request is for a number of devices.
    """

    number: int
    """The number of devices; 0 for all devices of the node (allocationMode All)."""

    admin: bool
    capacity: tuple[Amount, ...]
    """The capacities that are requested of each device, such as 10 GiB of memory.

    Others are requested by the device's default.
    """

    name: str


class ClaimRequests(NamedTuple):
    """The requests and constraints of one claim of a pod, or its request for one extended resource."""

    requests: tuple[tuple[str, tuple[Alternative, ...]], ...]
    """The requests in their order, each with its name and its alternatives. Names are "" if no constraint uses one."""

    constraints: tuple[Constraint, ...]

    resource: str = ""
    """The extended resource that the pod requests instead of a claim; "" for a claim.

    On nodes that list the resource as allocatable, no devices are used for it.
    """


class ClaimSet(NamedTuple):
    """All claims of a pod, if a search has to find the devices for them, because numbers of devices do not decide.

    For instance a claim for two devices with the same value of an attribute.
    """

    specs: tuple[ClaimRequests, ...]

    uses_counters: bool
    """True if some devices that may be used are partitions, which use counters of their pool."""

    def is_for(self, match: Match) -> bool:
        """Return whether the device that ``match`` describes may be used for at least one of the claims."""
        return not _list_selections(self.specs).isdisjoint(match.selections)


@dataclass(slots=True)
class Demand:
    """The devices that one pod requests, by all its claims and extended resources."""

    count_requests: list[CountRequest] = field(default_factory=list)
    """The requests for numbers of devices, in claims that are not allocated yet."""

    held_requests: list[CountRequest] = field(default_factory=list)
    """The requests for numbers of devices, in claims allocated to this pod.

    They only count until the pod is bound. Then the allocated devices themselves are counted.
    """

    specs: list[ClaimRequests] = field(default_factory=list)
    """The claims and extended resources of the pod."""

    claim_set: ClaimSet | None = None
    """The ``specs`` as one value, if a search has to decide on which nodes they are met; None if numbers decide."""

    unallocated: bool = False
    """True if at least one claim is not allocated yet."""

    all_requests: list[AllRequest] = field(default_factory=list)
    """The requests for all devices of a node (allocationMode All)."""

    admin_requests: list[CountRequest] = field(default_factory=list)
    """The requests with admin access: the node must have the devices, but other pods may use them."""

    terms: list[Terms] = field(default_factory=list)
    """The node selector terms of the pod's allocated claims. A node must match all of them."""

    counted: Counter[str] = field(default_factory=Counter)
    """The number of the pod's claims that Serried counts, by origin: "claim", or "template" and the template's name.

    In the pod's requests a placeholder stands for each claim, so that kube-scheduler decides alone about it
    (`Pod.device_claims`). For the claims in ``counted`` pseudo resources for devices take its place.
    """

    shared_claim: Key | None = None
    """The unallocated ResourceClaim that the pod shares with other pods; None without one."""

    follows: bool = False
    """True if another pod requests the devices of the shared claim for all its pods.

    That pod has to be placed first.
    """

    obstacle: str = ""
    """A phrase why the pod cannot be scheduled, such as a claim that does not exist; "" without such a reason."""

    uncountable: str = ""
    """A phrase why kube-scheduler may reject a node that Serried has planned, as devices are not counted exactly.

    "" if they are counted exactly.
    """

    resources: list[tuple[SelectedDevices, str]] = field(default_factory=list)
    """The requested extended resources by name, each with the devices that provide it (those of a DeviceClass)."""

    selections: list[SelectedDevices] = field(default_factory=list)
    """The sets of devices that the pod's requests may use.

    `Amounts.register` with -1 releases them to the `Inventory`.
    """

    def add_uncountable(self, uncountable: str) -> bool:
        """Record the phrase ``uncountable``, which says why kube-scheduler may reject a planned node.

        Only the first phrase is kept; "" records nothing. Return True for a phrase, False for "".
        """
        self.uncountable = self.uncountable or uncountable
        return bool(uncountable)


class Allocations(NamedTuple):
    """The allocated devices of the cluster, to find out how many devices of one node are free."""

    counted: Mapping[DeviceId, bool]
    """The allocated devices that the node reaches.

    The value is True if the device is allocated to a pod known to Serried. Such a device still counts as one of the
    node's, because the pod's own requests are subtracted later. If it is False, the device is left out.
    """

    claim_sets: Sequence[tuple[str, ClaimSet, Match]]
    """The devices of the node that pods with a `ClaimSet` use, wholly or as a share.

    Each is given as the UID of the pod, its ClaimSet, and the `Match` that says which requests may use the device.
    """

    taken: Mapping[DeviceId, object]
    """All wholly allocated devices of the cluster; the values do not matter."""

    shares: Mapping[DeviceId, Mapping[Key, tuple[Amount, ...]]]
    """The capacities that are allocated of shared devices, by device and claim."""


class Amounts:
    """Computes pseudo resources for devices: how much of each a node has, and a pod requests. `DeviceClaims` owns it.

    For instance a node with 4 free GPUs has 4 of the resource named "devices:..." for the requests that may use them.
    Nodes only have those resources that some pod requests, so each pod is registered here.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._claim_sets: Counter[ClaimSet] = Counter()
        self.too_complex: set[ClaimSet] = set()
        """The claims of pods for which the search was given up, because there are too many ways to choose devices."""

        self._all_requests: Counter[AllRequest] = Counter()
        self._admin_requests: Counter[CountRequest] = Counter()
        self._resources: Counter[tuple[SelectedDevices, str]] = Counter()

    def register(self, demand: Demand, step: int) -> None:
        """Register (``step`` 1) or unregister (-1) what a pod requests, so that `count_node` counts the devices for it.

        With -1 ``demand.selections``, the sets of devices that the pod's requests may use, are also released: the
        `Inventory`, which owns these sets, may drop one that no pod needs any more.
        """
        for selection in demand.selections if step < 0 else ():
            self._inventory.release(selection)
        for need in (*demand.count_requests, *demand.held_requests):
            if len(need.selections) > 1:
                self._inventory.count_union(need.selections, step)
        counters: tuple[tuple[Counter[Any], Iterable[Any]], ...] = (
            (self._claim_sets, filter(None, [demand.claim_set])),
            (self._all_requests, demand.all_requests),
            (self._admin_requests, demand.admin_requests),
            (self._resources, demand.resources),
        )
        for counter, items in counters:
            known = len(counter)
            for item in items:
                counter[item] += step
                if not counter[item]:
                    del counter[item]
            if len(counter) != known:
                self._inventory.mark_all_changed()
                self._inventory.epoch += counter is self._all_requests
                self._inventory.set_listed(frozenset(selection for selection, _ in self._resources))

    @property
    def any_all_requests(self) -> bool:
        """True if a registered pod requests all devices of a node."""
        return bool(self._all_requests)

    @property
    def any_resources(self) -> bool:
        """True if a registered pod requests an extended resource that devices provide.

        Then nodes without devices have to be counted as well, because they may list the resource as allocatable.
        """
        return bool(self._resources)

    def count_node(self, node: str, shown: Resources, allocations: Allocations) -> Resources:
        """Return the pseudo resources for devices that a node has, as amounts by name, without those that are 0.

        ``shown`` is the allocatable from the node's status, ``allocations`` are the devices in use. Devices that
        registered pods use are included, as in allocatable: the requests of these pods are subtracted when free
        resources are computed.
        """
        matches = self._inventory.find(node)
        free = {key: match for key, match in matches.items() if allocations.counted.get(key, True)}
        amounts: Counter[str] = Counter()
        alike = Counter(free.values())
        for union in self._inventory.unions:
            amounts[name_union(union)] = sum(count for match, count in alike.items() if _serves(union, match))
        # A resource that a device plugin provides on the node is used before devices.
        for selection, resource in self._resources:
            own = frozenset([selection])
            for union in {own, *self._inventory.find_covering(own)}:
                amounts[name_union(union)] += shown.get(resource, 0)
        for every in self._all_requests:
            wanted = {key: match for key, match in matches.items() if every.tainted in match.selections}
            whole = wanted and all(key in free and every.selection in match.selections for key, match in wanted.items())
            amounts[_name_all(every)] = SHARES if whole and not self._inventory.lacks_slices(node) else 0
        for need in self._admin_requests:
            there = [key for key, match in matches.items() if _serves(need.selections, match)]
            amounts[_name_admin(need)] = UNLIMITED if len(there) >= need.count else 0
        for claim_set in self._claim_sets:
            amounts[_name_claim_set(claim_set)] = self._count_claim_sets(claim_set, node, shown, allocations)
        return {name: amount for name, amount in amounts.items() if amount}

    def _count_claim_sets(self, claim_set: ClaimSet, node: str, shown: Resources, allocations: Allocations) -> int:
        """Return the number of pods with exactly these claims for which the node has devices.

        Pods with the same claims that use devices of the node already are included. Return UNLIMITED if the search
        takes too long.
        """
        specs = tuple(spec for spec in claim_set.specs if not shown.get(spec.resource))
        if self._inventory.lacks_slices(node) and any(not option.number for option in _list_options(specs)):
            return 0
        pieces, counters = self._list_candidates(specs, node, allocations)
        found = _count_sets(specs, pieces, counters)
        if found is None:
            self._inventory.epoch += claim_set not in self.too_complex
            self.too_complex.add(claim_set)
            return UNLIMITED
        own = {uid for uid, other, match in allocations.claim_sets if other == claim_set and claim_set.is_for(match)}
        return min(UNLIMITED, found + len(own))

    def _list_candidates(
        self, specs: tuple[ClaimRequests, ...], node: str, allocations: Allocations
    ) -> tuple[tuple["_Candidate", ...], tuple[Amount, ...]]:
        """Return the devices of a node that these claims may use, in the order in which kube-scheduler tries them.

        Return also the free counters of the pools of these devices.
        """
        selections = _list_selections(specs)
        attributes = [each.attribute for spec in specs for each in spec.constraints]
        measured = any(option.capacity for option in _list_options(specs))
        pools: dict[object, str] = {}
        left: Counter[tuple[str, ...]] = Counter()
        pieces = []
        for key, match in self._inventory.find(node).items():
            if selections.isdisjoint(match.selections):
                continue
            device = self._inventory.find_device(key)
            pool = pools.get(key.pool)
            if device.consumes and pool is None:
                pool = pools[key.pool] = str(len(pools))
                left.update({(pool, *name): amount for name, amount in self._count_left(key, allocations).items()})
            shares = allocations.shares.get(key)
            pieces.append(
                _Candidate(
                    match.selections,
                    tuple([self._read_attribute(key, name) for name in attributes]),
                    tuple([Amount((pool or "", *name), amount) for name, amount in device.consumes]),
                    device.capacities if measured or device.shareable else (),
                    device.shareable,
                    key in allocations.taken,
                    None if shares is None else _sum_amounts(shares.values()),
                )
            )
        return tuple(pieces), tuple(Amount(name, amount) for name, amount in sorted(left.items()))

    def _count_left(self, key: DeviceId, allocations: Allocations) -> Mapping[tuple[str, ...], int]:
        """Return the free counters of a device's pool, by counter set and counter.

        If the allocated devices use more than a counter has, all are -1: kube-scheduler then uses no device of the
        pool.
        """
        left = Counter(self._inventory.find_counters(key.pool))
        for other, device in self._inventory.list_partitions(key.pool):
            if other in allocations.taken or other in allocations.shares:
                left.subtract(dict(device.consumes))
        return left if all(amount >= 0 for amount in left.values()) else dict.fromkeys(left, -1)

    def _read_attribute(self, key: DeviceId, name: str) -> object:
        domain, _, identifier = name.rpartition("/")
        value = self._inventory.find_device(key).attributes.get(domain, {}).get(identifier)
        return None if value is None or isinstance(value, list) else (type(value), value)

    def count_demand(self, demand: Demand, held: Sequence[tuple[Match, bool]] | None) -> Counter[str]:
        """Return the pseudo resources for devices that a pod requests, as amounts by name.

        For a bound pod ``held`` are the devices that are allocated to it: for each a `Match` (which requests may use
        the device), and True if the pod has only a share of it. They count instead of the numbers of devices that the
        pod requests in allocated claims. None for a pod that is not bound.
        """
        amounts: Counter[str] = Counter()
        if held is None:  # for a bound pod these are in ``held``
            for every in demand.all_requests:
                others = [other for other in demand.all_requests if other is not every]
                amounts[_name_all(every)] += SHARES
                amounts[_name_all(every)] += sum(
                    self._inventory.overlap(every.selection, each.selection) for each in others
                )
        for need in demand.count_requests if held is not None else (*demand.count_requests, *demand.held_requests):
            for union in {need.selections, *self._inventory.find_covering(need.selections)}:
                amounts[name_union(union)] += need.count
            for every in self._all_requests:
                if all(self._inventory.is_within(selection, every.selection) for selection in need.selections):
                    amounts[_name_all(every)] += need.count
        for match in [match for match, shared in held or () if not shared]:
            amounts.update(name_union(union) for union in self._inventory.unions if _serves(union, match))
            amounts.update(_name_all(every) for every in self._all_requests if every.selection in match.selections)
        if demand.claim_set is not None and (
            held is None or demand.unallocated or _has_device_for(demand.claim_set, held)
        ):
            amounts[_name_claim_set(demand.claim_set)] += 1
        amounts.update(map(_name_admin, demand.admin_requests))
        return amounts | Counter({_name_all(every): SHARES for every in demand.all_requests})


def _serves(selections: DeviceUnion, match: Match) -> bool:
    return not selections.isdisjoint(match.selections)


@lru_cache(maxsize=1024)
def name_union(union: DeviceUnion) -> str:
    """Return the name of the pseudo resource for devices that are in at least one of the sets in ``union``.

    A pseudo resource is one that Serried adds to its copies of nodes and of pods' requests, to count devices like cpu.
    """
    return DEVICES + " or ".join(sorted(selection.name for selection in union))


def _name_all(every: AllRequest) -> str:
    return f"{DEVICES}all {every.selection.name}"


def _name_admin(need: CountRequest) -> str:
    return f"{DEVICES}{need.count} {_name_selections(need)}, in use or not"


def _name_selections(need: CountRequest) -> str:
    return " or ".join(sorted(selection.name for selection in need.selections))


def _has_device_for(claim_set: ClaimSet, held: Sequence[tuple[Match, bool]]) -> bool:
    return any(claim_set.is_for(match) for match, _ in held)


def _list_options(specs: Iterable[ClaimRequests]) -> Iterable[Alternative]:
    return (option for spec in specs for _, options in spec.requests for option in options)


@lru_cache(maxsize=1024)
def _list_selections(specs: tuple[ClaimRequests, ...]) -> DeviceUnion:
    return frozenset(option.tainted or option.selection for option in _list_options(specs))


@lru_cache(maxsize=1024)
def _name_claim_set(claim_set: ClaimSet) -> str:
    said = "; ".join(_name_spec(spec) for spec in claim_set.specs)
    return f"{SETS}{said}{' within shared counters' if claim_set.uses_counters else ''}"


def _name_spec(spec: ClaimRequests) -> str:
    said = " and ".join(" or ".join(map(_name_option, options)) for _, options in spec.requests)
    alike = [
        f"{'different' if each.distinct else 'the same'} {' of '.join([each.attribute, *each.requests])}"
        for each in spec.constraints
    ]
    if spec.resource:
        said += f" as {spec.resource}"
    return f"{said} with {' and '.join(alike)}" if alike else said


def _name_option(option: Alternative) -> str:
    asked = [f"{amount // 10**9} of {name[0]}" for name, amount in option.capacity]
    words = f"{option.number or 'all'} {option.selection.name}"
    return f"{words} with {' and '.join(asked)}" if asked else words


def _sum_amounts(specs: Iterable[tuple[Amount, ...]]) -> tuple[Amount, ...]:
    total: Counter[tuple[str, ...]] = Counter()
    for amounts in specs:
        total.update(dict(amounts))
    return tuple(Amount(name, amount) for name, amount in sorted(total.items()))


# --- the search ----------------------------------------------------------------------------------------------------


class _Candidate(NamedTuple):
    """A device as the search for devices of claims (`_Search`) sees it: only by the properties that matter there.

    Interchangeable devices have equal values.
    """

    selections: DeviceUnion
    values: tuple[object, ...]
    """The values of the attributes that constraints name, in the order of the constraints; None for a missing one."""

    consumes: tuple[Amount, ...]
    capacities: tuple[Capacity, ...]
    shareable: bool
    held: bool
    shared: tuple[Amount, ...] | None
    """The capacities of which shares are allocated already; None if no share of the device is allocated."""


class _Choice(NamedTuple):
    """A device that is chosen for a claim."""

    place: int
    request: str
    option: Alternative
    takes: tuple[Amount, ...]
    """The capacities that the claim uses of the device; () if the device cannot be shared."""

    counts: bool
    """True if this choice uses counters of the pool. If a device is shared, only its first share does."""


_MAX_DEVICES = 32
"""The maximum number of devices of a claim (resource/v1 AllocationResultsMaxSize)."""

_MAX_PODS = 1024
"""The maximum number of pods for which devices are searched on one node."""

_MAX_TRIES = 20_000
"""The maximum number of times that a device is tried in the search for one node, for all pods together."""


class _TooManyTries(Exception):
    """Raised when the search for the devices of claims has tried devices too often."""


class _SearchFailed(Exception):
    """Raised when a constraint excludes a device that a request for all devices needs: kube-scheduler gives up then."""


@lru_cache(maxsize=512)
def _count_sets(
    specs: tuple[ClaimRequests, ...], pieces: tuple[_Candidate, ...], counters: tuple[Amount, ...]
) -> int | None:
    """Return the number of pods with these claims for which there are devices; None if the search takes too long.

    ``pieces`` are the devices in kube-scheduler's order, ``counters`` the free counters of their pools.
    """
    try:
        return _Search(specs, pieces, counters).count()
    except _TooManyTries:
        return None


class _Search:
    """The search of upstream's allocator (1.37, dynamic-resource-allocation structured/internal/incubating).

    As upstream it chooses the first fitting devices for one request after another, and backtracks if a later request
    finds none. One instance is for one node and one call of `count`.
    """

    def __init__(
        self, specs: tuple[ClaimRequests, ...], pieces: tuple[_Candidate, ...], counters: tuple[Amount, ...]
    ) -> None:
        self._specs = specs
        self._pieces = pieces
        kinds: dict[_Candidate, int] = {}
        self._kinds = [kinds.setdefault(piece, place) for place, piece in enumerate(pieces)]
        self._left = dict(counters)
        self._held = [piece.held for piece in pieces]
        self._shared = [Counter(dict(piece.shared or ())) for piece in pieces]
        self._sharers = [int(piece.shared is not None) for piece in pieces]
        self._users: list[list[int]] = [[] for _ in pieces]
        """By device: the claims (their numbers) for which it is chosen in the current state of the search."""

        self._chosen: list[list[_Choice]] = [[] for _ in specs]
        self._tries = 0

    def count(self) -> int:
        """Return the number of pods for which there are devices, one after another.

        UNLIMITED if a pod leaves as many devices as before, for instance with admin access, or if there are devices for
        `_MAX_PODS` pods. Raises _TooManyTries.
        """
        for pods in range(_MAX_PODS):
            try:
                if not self._search_from(0, 0):
                    return pods
            except _SearchFailed:
                return pods
            if not self._use_chosen():
                break
        return UNLIMITED

    def _use_chosen(self) -> bool:
        """Mark the chosen devices as used by a pod, and choose none yet for the next pod.

        Return whether fewer devices, counters or capacities are left for the next pod.
        """
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
        """Choose devices for a request and for all requests after it. Return whether that succeeded.

        ``claim`` and ``request`` are positions in the list of claims and in the claim's list of requests.
        """
        if claim == len(self._specs):
            return True
        if request == len(self._specs[claim].requests):
            return self._search_from(claim + 1, 0)
        return any(
            self._choose_next(claim, request, option, 0, 0) for option in self._specs[claim].requests[request][1]
        )

    def _choose_next(self, claim: int, request: int, option: Alternative, done: int, start: int) -> bool:
        """Choose the next device for a request, then all further devices of the search. Return whether all were found.

        ``option`` is the alternative of the request that is tried, for which ``done`` devices are chosen already.
        ``claim`` and ``request`` are positions in their lists, ``start`` is the position of the first device to try.
        """
        every = self._list_all(option) if not option.number else ()
        wanted = option.number or len(every)
        if not wanted or len(self._chosen[claim]) + wanted - done > _MAX_DEVICES:
            return False
        if done == wanted:
            return self._search_from(claim, request + 1)
        tried: set[object] = set()
        for place in every[done : done + 1] if every else range(start, len(self._pieces)):
            alike = self._kinds[place], self._held[place], bool(self._users[place])
            if alike in tried or option.selection not in self._pieces[place].selections:
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

    def _list_all(self, option: Alternative) -> list[int]:
        return [
            place
            for place, piece in enumerate(self._pieces)
            if option.tainted in piece.selections and _measure(piece, option.capacity, {}) is not None
        ]

    def _choose(self, claim: int, request: int, option: Alternative, place: int) -> _Choice | None:
        """Choose the device at position ``place`` for the alternative ``option`` of a request; None if it is unusable.

        ``claim`` and ``request`` are positions in the list of claims and in the claim's list of requests. Raises
        _TooManyTries, and _SearchFailed if kube-scheduler would give up.
        """
        self._tries += 1
        if self._tries > _MAX_TRIES:
            raise _TooManyTries
        piece = self._pieces[place]
        if claim in self._users[place] if option.admin else (self._held[place] or self._users[place]):
            return None
        counts = bool(piece.consumes) and not (piece.shareable and self._sharers[place])
        if counts and any(self._left.get(name, 0) < amount for name, amount in piece.consumes):
            return None
        name = self._specs[claim].requests[request][0]
        takes = _measure(piece, option.capacity, self._shared[place])
        if takes is None:
            return None
        if not self._meets_constraints(claim, name, option, piece):
            if not option.number:
                raise _SearchFailed
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

    def _meets_constraints(self, claim: int, request: str, option: Alternative, piece: _Candidate) -> bool:
        first = sum(len(spec.constraints) for spec in self._specs[:claim])
        for place, constraint in enumerate(self._specs[claim].constraints, first):
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


def _is_about(constraint: Constraint, request: str, option: Alternative) -> bool:
    wanted = constraint.requests
    return not wanted or request in wanted or bool(option.name and f"{request}/{option.name}" in wanted)


def _measure(
    piece: _Candidate, asked: tuple[Amount, ...], shared: Mapping[tuple[str, ...], int]
) -> tuple[Amount, ...] | None:
    """Return the capacities that a request uses of a device; None if too little is left (consumable_capacity.go).

    ``asked`` are the requested capacities, ``shared`` is what is allocated of each capacity already.
    """
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
    """Return the amount of a capacity that is allocated for a request; None if the policy of the device forbids it.

    ``asked`` is the requested amount; None for the default of the device, or all of the capacity without a default.
    """
    if asked is None:
        return capacity.amount if capacity.default is None else capacity.default
    if capacity.values:
        return asked if asked == capacity.default else next((each for each in capacity.values if asked <= each), None)
    if capacity.least is not None:
        asked = max(asked, capacity.least)
        if capacity.step:
            asked += (capacity.least - asked) % capacity.step
    return None if capacity.most is not None and asked > capacity.most and asked != capacity.default else asked
