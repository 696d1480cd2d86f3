"""The devices that nodes reach, and which requests may use them (`Inventory`), as by kube-scheduler's DynamicResources.

`serried.rules.devices.cluster` puts in the ResourceSlices, acquires the set of devices that a request may use
(`Inventory.acquire`), and asks for the devices of each node (`Inventory.find`).

Devices are considered as in upstream's allocator (1.37, dynamic-resource-allocation structured/internal/incubating):
those of the newest generation of a pool that is complete and without duplicate names, on the nodes that reach them,
without taints that the claim does not tolerate, and matching all selectors. Where devices are only counted, the order
in which the allocator tries them does not matter: claims fit if there is any way to allocate them.

The sets of devices that different requests may use can overlap: for instance all GPUs, and all GPUs with 80 GB. So the
devices in a union of such sets are counted as well (`DeviceUnion`).
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

from serried.api.cel import Broken, Selector, Unsupported, Value, compile_selector
from serried.api.device import Device, DeviceId, DeviceTaintRule, NodeScope, PoolId, ResourceSlice, Selectors
from serried.api.node import Node
from serried.api.selectors import Toleration
from serried.cluster.due import Due
from serried.cluster.index import discard
from serried.plan.fit import matches_terms, tolerates

_MAX_SUBSETS = 4
"""The maximum number of overlapping sets of devices of which each combination is counted as a union.

Of more sets, only each one, each pair, and all of them together are counted.
"""

_MAX_IDLE = 8
"""The number of `SelectedDevices` that are kept although no pod requests them, because the next pod may."""

_MAX_LETTERS = 120

MATCHED_AT_ONCE = 256
"""The number of checks that one piece of deferred work makes: may requests of one kind use one device?

This takes about a millisecond.
"""


class Counting(NamedTuple):
    """The properties of devices that decide whether requests for them can be checked by counting devices."""

    phrase: str
    """A phrase why kube-scheduler may reject a plan that counts such devices; "" if it does not."""

    limits: bool
    """True if each device is for one request at most, so that their number is an upper bound for the requests."""

    searched: bool
    """True if a search as in kube-scheduler has to decide, because devices are shared or use counters of their pool."""


class Criteria(NamedTuple):
    """Class, selectors and tolerations of a request, which together decide which devices it may use."""

    device_class: str
    class_selectors: Selectors
    selectors: Selectors
    tolerations: tuple[Toleration, ...]


@dataclass(eq=False, slots=True)
class SelectedDevices:
    """The devices that requests with the same `Criteria` may use, on all nodes. Compared by identity.

    The `Inventory` creates and owns it. The devices themselves are found by `Inventory.find`.
    """

    criteria: Criteria
    selectors: tuple[Selector, ...]

    name: str
    """The name in messages, and in the requests by which these devices are counted; unique among existing instances."""

    users: int = 0
    """The number of times that `Inventory.acquire` has returned it and it was not released.

    With 0 it may be removed.
    """

    beyond: str = ""
    """A phrase why Serried cannot evaluate the selectors; "" if it can."""

    countings: frozenset[Counting] = frozenset()
    """The ways in which its devices are counted: several entries if some can be counted and others cannot."""

    counted: bool = False
    """True once all devices were checked against the criteria, and all nodes have their number in allocatable."""

    errors: dict[PoolId, dict[NodeScope, str]] = field(default_factory=dict)
    """The errors of selectors that could not be evaluated for a device: by pool, then by the nodes that reach it."""

    @property
    def limited(self) -> bool:
        """True if the number of its devices is an upper bound for the number of requests that find a device."""
        return not self.beyond and all(counting.limits for counting in self.countings)

    @property
    def searched(self) -> bool:
        """True if a search has to decide how many requests find devices (`Counting.searched`)."""
        return any(counting.searched for counting in self.countings)

    @property
    def uncertain(self) -> str:
        """A phrase why kube-scheduler may reject a plan that counts these devices; "" if counts are exact."""
        return self.beyond or next((counting.phrase for counting in sorted(self.countings) if counting.phrase), "")


DeviceUnion = frozenset[SelectedDevices]
"""The union of one or several sets of devices: each device that is in at least one of them counts once."""


class Match(NamedTuple):
    """The sets of devices that one device is in, and how the device is counted.

    There is a set for all requests with the same class, selectors and tolerations; it has the devices that they may
    use. ``selections`` are the sets that the device is in, at least one. ``counting`` says whether requests for the
    device can be planned by counting devices.
    """

    selections: DeviceUnion
    counting: Counting


Matches = Mapping[DeviceId, Match]
"""The devices that at least one pod's request may use, each with the sets of devices that it is in."""


class _Pool:
    """The ResourceSlices of a resource pool, and the devices derived from them."""

    def __init__(self, slices: dict[str, ResourceSlice]) -> None:
        self.slices = slices
        self.devices: dict[DeviceId, tuple[Device, NodeScope]] = {}
        self.matches: Matches = {}
        """The devices of the pool that at least one pod's request may use."""

        self.selections: DeviceUnion = frozenset()
        """The sets of devices (`SelectedDevices`) of which at least one is in the pool."""

        self.usable = False
        """True if the newest generation is complete and valid. Otherwise kube-scheduler uses no device of the pool."""
        self.nodes: set[str] = set()
        """The nodes named in slices of any generation, because devices of old ones have to be removed from nodes."""
        self.wide = False
        """True if slices also select nodes by labels, or are for all nodes."""

        self.counters: dict[tuple[str, ...], int] = {}
        """The total of each counter of the pool, by counter set and counter."""

        self.partitions: dict[DeviceId, Device] = {}
        """The devices that use counters of the pool."""

        self.spread = False
        """True if devices of several nodes use the same counters."""

        self.binds = False
        """True if devices have binding conditions: kube-scheduler searches such pools last."""

    def set_matches(self, found: Matches) -> None:
        """Set ``matches``, the devices of the pool that requests may use, to ``found``.

        Set also ``selections``, the sets of devices of which at least one device is in the pool.
        """
        self.matches = found
        self.selections = frozenset().union(*{match.selections for match in found.values()})

    def derive(self, key: PoolId, rules: Iterable[DeviceTaintRule]) -> None:
        """Derive devices and counters from the slices.

        ``rules`` are all DeviceTaintRules, which add taints to devices.
        """
        places = [place for each in self.slices.values() for place in _list_places(each)]
        self.nodes = {place.node for place in places if place.node}
        self.wide = any(place.everywhere or place.terms is not None for place in places)
        newest = max((each.generation for each in self.slices.values()), default=0)
        current = [
            each
            for _, each in sorted(self.slices.items())
            if each.generation == newest and not each.has_compatibility_groups
        ]
        devices = [
            (_taint(key, device, rules), device.place if each.per_device else each.place)
            for each in current
            for device in each.devices
        ]
        self.devices = {DeviceId(key, each[0].name): each for each in devices}
        complete = bool(current) and len(current) == current[0].slices
        sets = [each for found in current for each in found.counters]
        self.counters = {name: amount for _, amounts in sets for name, amount in amounts}
        self.partitions = {name: device for name, (device, _) in self.devices.items() if device.consumes}
        takers = {place for device, place in devices if device.consumes}
        self.spread = len(takers) > 1 or any(not place.node for place in takers)
        self.binds = any(device.has_binding_conditions for device, _ in devices)
        known = {*self.counters, *((name, "") for name, _ in sets)}
        valid = len({name for name, _ in sets}) == len(sets) and all(
            name in known for device in self.partitions.values() for name, _ in device.consumes
        )
        self.usable = complete and valid and len(self.devices) == len(devices)
        if not self.usable:
            self.devices, self.partitions = {}, {}


class Inventory:
    """The devices that each node reaches, and which requests may use them. `DeviceClaims` owns it.

    ``nodes`` is the Store's live map. `acquire` returns the set of devices that certain requests may use; it exists
    while pods need it, until `release`. Reading pools, and checking which devices are in which set, is done in small
    pieces of work (`run_deferred`). Until all pieces for a change are done, the state before it is valid.
    """

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.slices: dict[str, ResourceSlice] = {}
        self.taint_rules: dict[str, DeviceTaintRule] = {}

        self.changed = Due[str]()
        """The nodes whose devices may have changed. `DeviceClaims` takes them."""

        self.rematched: dict[DeviceId, None] = {}
        """The devices that other requests or other nodes may use than before. `DeviceClaims` clears it."""

        self.unions: tuple[DeviceUnion, ...] = ()
        """The unions of sets of devices whose devices are counted on each node, each union like a resource of its own.

        Requests for numbers of devices fit if each union has enough devices for them (Hall's theorem).
        """

        self.changed_selections: set[SelectedDevices] = set()
        """The sets of devices that are counted under other names than before, so their pods must request these names.

        `DeviceClaims` clears it.
        """

        self.epoch = 0
        """A number that changes whenever all pods may have to request their devices under other names."""

        self._covering: dict[SelectedDevices, frozenset[DeviceUnion]] = {}
        """By set of devices that is not empty: the unions that contain the whole set."""

        self._listed: frozenset[SelectedDevices] = frozenset()
        """The sets of devices that provide an extended resource, which some nodes may list as allocatable."""
        self._nodes = nodes
        self._selections: dict[Criteria, SelectedDevices] = {}
        self._pools: dict[PoolId, _Pool] = {}
        self._pools_at: dict[str, dict[PoolId, None]] = {}
        self._wide: dict[PoolId, None] = {}
        self._at: dict[str, Matches] = {}
        """The devices that each node reaches, cached."""

        self._kinds: Counter[Match] = Counter()
        """The number of devices with each `Match`."""

        self._alternatives: Counter[DeviceUnion] = Counter()
        """The number of requests with several alternatives, by the sets of devices of these alternatives."""

        self._unread = Due[PoolId]()
        """The pools whose slices have changed, so that they have to be read again."""
        self._unmatched: deque[tuple[SelectedDevices, DeviceUnion]] = deque()
        """The new sets of devices for which no device was checked yet, each with unused sets to be removed."""

        self._matched: deque[tuple[SelectedDevices, int]] = deque()
        """The new sets for which all devices were checked, while not all nodes have the number of devices for them.

        Each has a mark in ``changed``: when all nodes before the mark were taken, all nodes have the number.
        """

        self._work: Iterator[None] = iter(())
        """The work in progress; each step is one piece."""

    # --- slices and nodes --------------------------------------------------------------------------------------

    def put_slice(self, found: ResourceSlice) -> None:
        """Add or replace a ResourceSlice."""
        old = self.slices.get(found.name)
        if old is not None and old.pool != found.pool:
            self.drop_slice(found.name)
        self.slices[found.name] = found
        self._pools.setdefault(found.pool, _Pool({})).slices[found.name] = found
        self._unread.add(found.pool)

    def drop_slice(self, name: str) -> None:
        """Remove a ResourceSlice."""
        old = self.slices.pop(name, None)
        if old is not None:
            del self._pools[old.pool].slices[name]
            self._unread.add(old.pool)

    def put_taint_rule(self, rule: DeviceTaintRule) -> None:
        """Add or replace a DeviceTaintRule."""
        self.drop_taint_rule(rule.name)
        self.taint_rules[rule.name] = rule
        self._retaint(rule)

    def drop_taint_rule(self, name: str) -> None:
        """Remove a DeviceTaintRule."""
        old = self.taint_rules.pop(name, None)
        if old is not None:
            self._retaint(old)

    def _retaint(self, rule: DeviceTaintRule) -> None:
        self._unread.update(filter(rule.may_apply_in, self._pools))

    def note_node(self, name: str) -> None:
        """Update which devices a node reaches, after it was added or deleted, or its labels have changed."""
        before = self._at.pop(name, ())
        if self._wide and self._selections:
            self.rematched.update(dict.fromkeys((*before, *self.find(name))))
            self.changed.add(name)

    def run_deferred(self) -> bool:
        """Do one piece of deferred work: read a part of a changed pool, or check some devices against new criteria.

        Return whether there was any.
        """
        if next(self._work, self) is None:
            return True
        if self._unread:
            (key,) = self._unread.take(1)
            self._work = self._read(key)
        elif self._unmatched:
            self._work = self._match_new(*self._unmatched.popleft())
        else:
            return False
        next(self._work, None)
        return True

    def take_counted(self) -> Iterator[SelectedDevices]:
        """Yield the new sets of devices of which all nodes have the number in their allocatable by now.

        Serried adds this number to a node, so that the devices count there like a resource. Each set is yielded once,
        after its field ``counted`` was set to True.
        """
        while self._matched and self.changed.has_passed(self._matched[0][1]):
            selection, _ = self._matched.popleft()
            selection.counted = True
            yield selection

    def finish(self) -> None:
        """Do the work that earlier changes have deferred, such as counting devices per node, however long it takes."""
        while self.run_deferred():
            pass

    def nodes_of(self, key: PoolId) -> set[str]:
        """Return the nodes that may reach devices of a pool."""
        pool = self._pools.get(key)
        if pool is None:
            return set()
        return pool.nodes.union(self._nodes) if pool.wide else pool.nodes

    def find(self, node: str) -> Matches:
        """Return the devices that a node reaches and that at least one pod's request may use, by their ID.

        The `Match` of each says in which sets of devices it is, i.e. which requests may use it.
        """
        found = self._at.get(node)
        if found is None:
            found = dict(self._list_reached(node))
            if node in self._nodes:
                self._at[node] = found
        return found

    def _list_reached(self, node: str) -> Iterator[tuple[DeviceId, Match]]:
        for key in self._list_pools(node):
            pool = self._pools[key]
            for device, match in pool.matches.items():
                if self._reaches(node, pool.devices[device][1]):
                    yield device, match

    def find_failure(self, selection: SelectedDevices, admits: Callable[[Node], bool]) -> tuple[str, str] | None:
        """Return why kube-scheduler fails to evaluate a selector for a device, and the name of a node that reaches it.

        ``selection`` has the selectors. Only nodes for which ``admits`` is true count, because kube-scheduler evaluates
        selectors only there. None if no evaluation fails.
        """
        for failures in selection.errors.values():
            for place, said in failures.items():
                names = (place.node,) if place.node else (name for name in self._nodes if self._reaches(name, place))
                for name in names:
                    if name in self._nodes and admits(self._nodes[name]):
                        return said, name
        return None

    def mark_all_changed(self) -> None:
        """Add all nodes to ``changed``, so that `DeviceClaims` counts their devices again."""
        self.changed.update(self._nodes)

    def find_device(self, key: DeviceId) -> Device:
        """Return the device with this ID; it is in a ResourceSlice of at least one node. Raises KeyError otherwise."""
        return self._pools[key.pool].devices[key][0]

    def find_counters(self, key: PoolId) -> Mapping[tuple[str, ...], int]:
        """Return the total of each counter of a pool, by counter set and counter."""
        return self._pools[key].counters

    def list_partitions(self, key: PoolId) -> Iterable[tuple[DeviceId, Device]]:
        """Return the devices that use counters of a pool, on any node."""
        return self._pools[key].partitions.items()

    def find_attribute(self, node: str, domain: str, name: str) -> Value | None:
        """Return the value of the attribute ``domain/name`` for the devices of a node.

        Only devices that are for this node alone count, and no pools of which nodes reach devices by labels. Devices
        without the attribute do not matter. None if no device has it, or if two devices have different values.
        """
        found: Value | None = None
        for key in self._pools_at.get(node, ()):
            for device, place in self._pools[key].devices.values():
                value = device.attributes.get(domain, {}).get(name)
                if value is None or place.node != node:
                    continue
                if found is not None and (type(found), found) != (type(value), value):
                    return None
                found = value
        return found

    def lacks_slices(self, node: str) -> bool:
        """Return whether a node may reach a pool that is incomplete or invalid.

        There kube-scheduler rejects requests for all devices of the node.
        """
        return any(not self._pools[key].usable for key in self._list_pools(node))

    def _list_pools(self, node: str) -> list[PoolId]:
        """Return the pools that a node may reach, in the order in which kube-scheduler (1.36 and later) tries them."""
        keys = (*self._pools_at.get(node, ()), *self._wide)
        return sorted(keys, key=lambda key: (self._pools[key].binds, key))

    def _read(self, key: PoolId) -> Iterator[None]:
        """Read the slices of a pool again, and find out which requests may use its devices.

        Each step of the iterator is one piece of work. Until the last step the old state of the pool is valid.
        """
        old, selections = self._pools[key], list(self._selections.values())
        new = _Pool(old.slices)
        new.derive(key, self.taint_rules.values())
        before = [(selection.beyond, selection.errors.pop(key, None)) for selection in selections]
        found: dict[DeviceId, Match] = {}
        done = 0
        for device_id, (device, place) in new.devices.items():
            of = frozenset([selection for selection in selections if _is_in_selection(selection, key, device, place)])
            if of:
                found[device_id] = _share_match(of, _find_counting(device, place, spread=new.spread))
            done += len(selections)
            if done >= MATCHED_AT_ONCE:
                done = 0
                yield
        new.set_matches(found)
        after = [(selection.beyond, selection.errors.get(key)) for selection in selections]
        self.changed_selections.update(
            selection for selection, was, is_ in zip(selections, before, after, strict=True) if was != is_
        )
        self.rematched.update(dict.fromkeys((*old.matches, *found)))
        self._mark_changed(key)
        self._replace(key, old, new)
        self._mark_changed(key)
        kinds = self._kinds.copy()
        kinds.subtract(old.matches.values())
        kinds.update(found.values())
        self._set_kinds(+kinds)

    def _replace(self, key: PoolId, old: _Pool, new: _Pool) -> None:
        for name in old.nodes:
            discard(self._pools_at, name, key)
        self._wide.pop(key, None)
        self._pools[key] = new
        if new.wide:
            self._wide[key] = None
        else:
            for name in new.nodes:
                self._pools_at.setdefault(name, {})[key] = None
        # if the last slice was removed meanwhile, the pool is in `_unread` again
        if not new.slices and not new.nodes and not new.wide:
            del self._pools[key]

    def _mark_changed(self, key: PoolId) -> None:
        """Add the nodes that may reach devices of a pool to ``changed``, so that their devices are counted again."""
        nodes = self.nodes_of(key)
        for name in nodes:
            self._at.pop(name, None)
        self.changed.update(nodes)

    # --- selections -------------------------------------------------------------------------------------------------

    def acquire(self, criteria: Criteria) -> SelectedDevices:
        """Return the set of devices that requests with these criteria may use; create it if it does not exist.

        The caller has to call `release` once for it. Raises Broken if a selector is invalid.
        """
        selection = self._selections.get(criteria)
        if selection is None:
            selectors, beyond = _compile(criteria)
            dropped = self._drop_idle()
            selection = self._selections[criteria] = SelectedDevices(
                criteria, selectors, self._name(criteria), beyond=beyond
            )
            self._unmatched.append((selection, dropped))
            # The new set of devices may get the name of a dropped one, under which devices were counted so far.
            self.epoch += bool(dropped)
        selection.users += 1
        return selection

    def count_union(self, selections: DeviceUnion, step: int) -> None:
        """Register (``step`` 1) or unregister (-1) a request with alternatives, whose devices nodes count as one union.

        ``selections`` are the sets of devices that its alternatives may use.
        """
        before = len(self._alternatives)
        self._alternatives[selections] += step
        if not self._alternatives[selections]:
            del self._alternatives[selections]
        if len(self._alternatives) != before:
            self._find_unions()

    def set_listed(self, selections: DeviceUnion) -> None:
        """Set ``selections`` as the sets of devices that provide an extended resource which some pod requests.

        Nodes may also list such a resource as allocatable, so a node may have more of the resource than devices.
        """
        if self._listed != selections:
            self._listed = selections
            self.mark_all_changed()
            self._find_unions()

    def find_covering(self, selections: DeviceUnion) -> frozenset[DeviceUnion]:
        """Return the counted unions that contain all these sets of devices.

        A request for one device in any of the sets uses one device of each of these unions.
        """
        found = [self._covering[selection] for selection in selections if selection in self._covering]
        return frozenset.intersection(*found) if found else frozenset()

    def overlap(self, one: SelectedDevices, other: SelectedDevices) -> bool:
        """Return whether there is a device that is in both sets of devices, for any node."""
        return any(one in match.selections and other in match.selections for match in self._kinds)

    def release(self, selection: SelectedDevices) -> None:
        """Undo one call of `acquire`.

        The set of devices still exists for some time, because pods may request it again.
        """
        selection.users -= 1

    def _drop_idle(self) -> DeviceUnion:
        idle = [criteria for criteria, selection in self._selections.items() if not selection.users]
        return (
            frozenset([self._selections.pop(criteria) for criteria in idle]) if len(idle) > _MAX_IDLE else frozenset()
        )

    def _name(self, criteria: Criteria) -> str:
        name = f"devices of {criteria.device_class}"
        if criteria.selectors:
            name += f" where {_cut(' && '.join(criteria.selectors))}"
        taken = {selection.name for selection in self._selections.values()}
        names = (name, *(f"{name} ({count})" for count in range(2, len(taken) + 3)))
        return next(each for each in names if each not in taken)

    def _match_new(self, selection: SelectedDevices, dropped: DeviceUnion) -> Iterator[None]:
        """Find the devices of a new set, and remove the unused sets ``dropped``. Each step is one piece of work."""
        done, is_wanted = 0, self._selections.get(selection.criteria) is selection
        kinds: Counter[Match] = Counter()
        for key in list(self._pools):
            pool = self._pools[key]
            found: dict[DeviceId, Match] = {}
            # The order is that of the pool's devices, also for newly matched ones, because kube-scheduler uses the
            # first devices that fit.
            for device_id, (device, place) in pool.devices.items():
                before = pool.matches.get(device_id)
                of = before.selections - dropped if before is not None else frozenset[SelectedDevices]()
                if is_wanted and _is_in_selection(selection, key, device, place):
                    of |= {selection}
                    self.rematched[device_id] = None
                if of:
                    found[device_id] = _share_match(of, _find_counting(device, place, spread=pool.spread))
            if found != pool.matches:
                pool.set_matches(found)
                self._mark_changed(key)
            kinds.update(found.values())
            done += 1 + len(pool.devices)
            if done >= MATCHED_AT_ONCE:
                done = 0
                yield
        self._set_kinds(kinds)
        self._matched.append((selection, self.changed.mark()))

    def _reaches(self, name: str, place: NodeScope) -> bool:
        if place.node:
            return place.node == name
        node = self._nodes.get(name)
        return node is not None and (place.everywhere or (place.terms is not None and matches_terms(place.terms, node)))

    def _set_kinds(self, kinds: Counter[Match]) -> None:
        before, self._kinds = self._kinds, kinds
        if before.keys() != kinds.keys():
            self._find_unions()

    def _find_unions(self) -> None:
        """Compute again for which unions of sets of devices each node gets the number of its devices (``unions``).

        Compute also ``countings`` of each set: in which ways its devices are counted, see `Counting`.
        """
        masks = self._mask_selections()
        links = self._link_selections(masks)
        unions: dict[DeviceUnion, None] = {}
        for component in _join([*(match.selections for match in self._kinds), *self._alternatives]):
            every = sorted(component, key=lambda selection: selection.name)
            sizes = range(1, len(every) + 1) if len(every) <= _MAX_SUBSETS else (1, 2, len(every))
            subsets = (some for size in sizes for some in combinations(every, size))
            unions.update((_reduce(some, masks), None) for some in subsets if _is_linked(some, links))
        unions.update(dict.fromkeys(self._alternatives))
        reach = {union: _unite(union, masks) for union in unions}
        covering = {
            selection: frozenset([each for each in unions if not mask & ~reach[each]])
            for selection, mask in masks.items()
            if mask
        }
        self._set_unions(tuple(unions), covering)
        for selection in self._selections.values():
            countings = frozenset(each.counting for each in self._kinds if selection in each.selections)
            if selection.countings != countings:
                selection.countings = countings
                self.changed_selections.add(selection)

    def _mask_selections(self) -> dict[SelectedDevices, int]:
        """Return for each set of devices a bit mask that stands for its devices.

        There is one bit for all devices with the same `Match`, and one for each set of devices whose extended resource
        nodes may list. So one set contains another if its mask contains the other's.
        """
        masks = dict.fromkeys((selection for union in self._alternatives for selection in union), 0)
        for place, match in enumerate(self._kinds):
            for selection in match.selections:
                masks[selection] = masks.get(selection, 0) | 1 << place
        for place, selection in enumerate(self._listed, len(self._kinds)):
            masks[selection] = masks.get(selection, 0) | 1 << place
        return masks

    def _link_selections(self, masks: Mapping[SelectedDevices, int]) -> dict[SelectedDevices, int]:
        """Return the masks of `_mask_selections` with one more bit for each set of alternatives that some request has.

        Sets of devices without a common bit have no device in common, and no request has both as alternatives.
        """
        links = dict(masks)
        for place, union in enumerate(self._alternatives, len(self._kinds) + len(self._listed)):
            for selection in union:
                links[selection] |= 1 << place
        return links

    def _set_unions(
        self, unions: tuple[DeviceUnion, ...], covering: dict[SelectedDevices, frozenset[DeviceUnion]]
    ) -> None:
        concerned = frozenset().union(*frozenset(unions).symmetric_difference(self.unions))
        for key, pool in self._pools.items() if concerned else ():
            if not concerned.isdisjoint(pool.selections):
                self.changed.update(self.nodes_of(key))
        if concerned and self._listed:
            self.mark_all_changed()
        before, none = self._covering, frozenset[DeviceUnion]()
        self.changed_selections.update(
            each for each in {**before, **covering} if before.get(each, none) != covering.get(each, none)
        )
        self.unions, self._covering = unions, covering

    def is_within(self, inner: SelectedDevices, outer: SelectedDevices) -> bool:
        """Return whether all existing devices of the set ``inner`` are also in the set ``outer``."""
        return all(outer in match.selections for match in self._kinds if inner in match.selections)


def _unite(selections: Iterable[SelectedDevices], masks: Mapping[SelectedDevices, int]) -> int:
    found = 0
    for selection in selections:
        found |= masks[selection]
    return found


def _is_linked(selections: tuple[SelectedDevices, ...], links: Mapping[SelectedDevices, int]) -> bool:
    """Return whether sets of devices are connected by common bits in ``links``, directly or through others of them.

    If they are not, their union need not be counted: it has enough devices if each connected part has.
    """
    reached, rest = links[selections[0]], list(selections[1:])
    while rest:
        apart = [selection for selection in rest if not links[selection] & reached]
        if len(apart) == len(rest):
            return False
        reached |= _unite((selection for selection in rest if selection not in apart), links)
        rest = apart
    return True


def _reduce(selections: tuple[SelectedDevices, ...], masks: Mapping[SelectedDevices, int]) -> DeviceUnion:
    """Return the sets of devices without those that add no device to the union of the remaining ones.

    ``masks`` has one bit mask for each set (`Inventory._mask_selections`).
    """
    for selection in selections:
        others = tuple([each for each in selections if each is not selection])
        if others and not masks[selection] & ~_unite(others, masks):
            selections = others
    return frozenset(selections)


def _join(sets: Iterable[DeviceUnion]) -> list[DeviceUnion]:
    """Return these sets, with those merged into one that have an element in common, directly or through other sets.

    The elements are `SelectedDevices`.
    """
    joined: list[DeviceUnion] = []
    for each in sets:
        apart = [other for other in joined if not other & each]
        joined = [*apart, each.union(*(other for other in joined if other & each))]
    return joined


def _taint(key: PoolId, device: Device, rules: Iterable[DeviceTaintRule]) -> Device:
    taints = tuple(rule.taint for rule in rules if rule.applies_to(key, device.name))
    return replace(device, taints=(*device.taints, *taints)) if taints else device


def _list_places(found: ResourceSlice) -> list[NodeScope]:
    return [device.place for device in found.devices] if found.per_device else [found.place]


def _find_counting(device: Device, place: NodeScope, *, spread: bool) -> Counting:
    phrase = "several nodes reach a device" if not place.node else ""
    if spread and device.consumes:
        phrase = "several nodes share counters of devices"
    return _share_counting(phrase, not device.shareable, device.shareable or bool(device.consumes))


@lru_cache(maxsize=16)
def _share_counting(phrase: str, limits: bool, searched: bool) -> Counting:  # noqa: FBT001  # its fields
    return Counting(phrase, limits, searched)


def _compile(criteria: Criteria) -> tuple[tuple[Selector, ...], str]:
    """Return the compiled selectors of the criteria and "", or () and a phrase why Serried cannot evaluate one.

    Raises Broken if one is invalid.
    """
    selectors = []
    for text in (*criteria.class_selectors, *criteria.selectors):
        try:
            selectors.append(compile_selector(text))
        except Unsupported as error:
            return (), f"Serried does not know what {_cut(text)} means ({error})"
        except Broken as error:
            raise Broken(f"{_cut(text)} is no selector: {error}") from error
    return tuple(selectors), ""


@lru_cache(maxsize=1024)
def _share_match(selections: DeviceUnion, counting: Counting) -> Match:
    """Return a `Match` with these values; equal ones are one object, to save memory for thousands of devices."""
    return Match(selections, counting)


def _is_in_selection(selection: SelectedDevices, key: PoolId, device: Device, place: NodeScope) -> bool:
    """Return whether requests with the criteria of ``selection`` may use a device. ``place`` says which nodes reach it.

    If a selector fails for the device, they may not, and the error is recorded in ``selection.errors``. If Serried does
    not know what a selector means, they may use no further device, and a phrase is recorded in ``selection.beyond``.
    """
    if selection.beyond or (device.taints and not tolerates(selection.criteria.tolerations, device.taints)):
        return False
    for selector in selection.selectors:
        try:
            if not selector.matches(key.driver, device.attributes, device.capacity, shareable=device.shareable):
                return False
        except Broken as error:
            why = f"{_cut(selector.expression)} fails for device {device.name} of {key.driver}: {error}"
            selection.errors.setdefault(key, {}).setdefault(place, why)
            return False
        except Unsupported as error:
            selection.beyond = f"Serried does not know what {_cut(selector.expression)} means ({error})"
            return False
    return True


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_LETTERS else text[:_MAX_LETTERS] + "..."
