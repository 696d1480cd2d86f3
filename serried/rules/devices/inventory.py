"""The devices of nodes, by the sorts that claims request (kube-scheduler's DynamicResources).

Devices are considered as in upstream's allocator (1.37, dynamic-resource-allocation structured/internal/incubating):
those of the newest generation of a pool that is complete and without duplicate names, on the nodes that reach them,
without taints that the claim does not tolerate, and matching all selectors. As long as devices are only numbers, the
allocator's order does not matter: claims fit if there is any allocation.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

from serried.api.cel import Broken, Selector, Unsupported, Value, compile_selector
from serried.api.device import Device, DeviceId, DeviceTaintRule, Place, PoolId, ResourceSlice, Selectors
from serried.api.node import Node
from serried.api.selectors import Toleration
from serried.cluster.due import Due
from serried.cluster.index import discard
from serried.plan.fit import matches_terms, tolerates

_MAX_SUBSETS = 4
"""The maximum number of overlapping sorts of which all subsets are counted."""

_MAX_IDLE = 8
"""The number of unused sorts that are kept, because they may be needed again."""

_MAX_LETTERS = 120

MATCHED_AT_ONCE = 256
"""The number of matches of a device with a sort in one piece of work: about a millisecond."""


class Note(NamedTuple):
    """A reason why devices of a sort are not simply counted one by one."""

    phrase: str
    limits: bool
    """True if the number of devices is still an upper bound for the number of claims."""

    searched: bool
    """True if only kube-scheduler's own search decides how many claims find devices."""


class Wish(NamedTuple):
    """The description of devices in a request: class, selectors and tolerations."""

    device_class: str
    class_selectors: Selectors
    selectors: Selectors
    tolerations: tuple[Toleration, ...]


@dataclass(eq=False, slots=True)
class Sort:
    """Devices that are interchangeable for requests with the same wish. Compared by identity."""

    wish: Wish
    selectors: tuple[Selector, ...]

    name: str
    """The name for messages; unique among existing sorts."""

    users: int = 0

    beyond: str = ""
    """A phrase why Serried cannot evaluate the selectors; "" if it can."""

    notes: frozenset[Note] = frozenset()

    counted: bool = False
    """True once all devices have been matched with it, and all nodes have its amounts."""

    errors: dict[PoolId, dict[Place, str]] = field(default_factory=dict)
    """The errors of selectors, by pool and place of the device."""

    @property
    def limited(self) -> bool:
        """True if the number of devices is an upper bound for the number of claims."""
        return not self.beyond and all(note.limits for note in self.notes)

    @property
    def searched(self) -> bool:
        """True if only a search decides how many claims find devices."""
        return any(note.searched for note in self.notes)

    @property
    def uncertain(self) -> str:
        """A phrase why kube-scheduler may reject a plan that counts these devices; "" if counts are exact."""
        return self.beyond or next((note.phrase for note in sorted(self.notes) if note.phrase), "")


Group = frozenset[Sort]
"""Sorts whose devices are counted together."""


class Match(NamedTuple):
    """The sorts of a device, at least one."""

    sorts: Group
    note: Note


Matches = Mapping[DeviceId, Match]


class _Pool:
    """The slices of a pool, and the devices derived from them."""

    def __init__(self, slices: dict[str, ResourceSlice]) -> None:
        self.slices = slices
        self.devices: dict[DeviceId, tuple[Device, Place]] = {}
        self.matches: Matches = {}
        """The devices that are of some sort."""

        self.sorts: Group = frozenset()
        """The sorts with at least one device."""

        self.usable = False
        self.nodes: set[str] = set()
        """The nodes named in slices of any generation, because devices of old ones have to be removed from nodes."""
        self.wide = False
        """True if slices also select nodes by labels, or are for all nodes."""

        self.counters: dict[tuple[str, ...], int] = {}
        self.partitions: dict[DeviceId, Device] = {}
        """The devices that use counters."""

        self.spread = False
        """True if several nodes share these devices."""

        self.binds = False
        """True if devices have binding conditions: kube-scheduler searches such pools last."""

    def set_matches(self, found: Matches) -> None:
        """Set the matches of the devices."""
        self.matches = found
        self.sorts = frozenset().union(*{match.sorts for match in found.values()})

    def derive(self, key: PoolId, rules: Iterable[DeviceTaintRule]) -> None:
        """Derive devices and counters from the slices; ``rules`` add taints to devices."""
        places = [place for each in self.slices.values() for place in _list_places(each)]
        self.nodes = {place.node for place in places if place.node}
        self.wide = any(place.everywhere or place.terms is not None for place in places)
        newest = max((each.generation for each in self.slices.values()), default=0)
        current = [each for _, each in sorted(self.slices.items()) if each.generation == newest and not each.opaque]
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
        self.binds = any(device.binds for device, _ in devices)
        known = {*self.counters, *((name, "") for name, _ in sets)}
        valid = len({name for name, _ in sets}) == len(sets) and all(
            name in known for device in self.partitions.values() for name, _ in device.consumes
        )
        self.usable = complete and valid and len(self.devices) == len(devices)
        if not self.usable:
            self.devices, self.partitions = {}, {}


class Inventory:
    """The devices of nodes, by the sorts in use; ``nodes`` is the Store's live map.

    Pools are read and devices matched in small pieces of work (`run_deferred`). Until a piece is done, the previous
    state is valid.
    """

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.slices: dict[str, ResourceSlice] = {}
        self.taint_rules: dict[str, DeviceTaintRule] = {}

        self.changed = Due[str]()
        """The nodes whose devices may have changed since the owner read it."""

        self.rematched: dict[DeviceId, None] = {}
        """The devices whose sorts or nodes may have changed since the owner read it."""

        self.groups: tuple[Group, ...] = ()
        """The groups to be counted: claims fit if each of these counts suffices (Hall's theorem)."""

        self.changed_sorts: set[Sort] = set()
        """The sorts for which pods may have to request other amounts, since the owner read it."""

        self.epoch = 0
        """A number that changes when all pods may have to request other amounts."""

        self._covering: dict[Sort, frozenset[Group]] = {}
        """By sort with devices: the groups that contain all devices of the sort."""

        self._shown: frozenset[Sort] = frozenset()
        self._nodes = nodes
        self._sorts: dict[Wish, Sort] = {}
        self._pools: dict[PoolId, _Pool] = {}
        self._pools_at: dict[str, dict[PoolId, None]] = {}
        self._wide: dict[PoolId, None] = {}
        self._at: dict[str, Matches] = {}
        """The devices that each node reaches, cached."""

        self._kinds: Counter[Match] = Counter()
        self._unions: Counter[Group] = Counter()
        self._unread = Due[PoolId]()
        self._unmatched: deque[tuple[Sort, Group]] = deque()
        """The new sorts, each with the sorts that it replaces."""

        self._matched: deque[tuple[Sort, int]] = deque()
        """The matched new sorts, each with the mark up to which nodes have to be updated."""

        self._work: Iterator[None] = iter(())

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
        self._unread.update(filter(rule.reaches, self._pools))

    def note_node(self, name: str) -> None:
        """Note that a node was added or deleted, or has other labels."""
        before = self._at.pop(name, ())
        if self._wide and self._sorts:
            self.rematched.update(dict.fromkeys((*before, *self.find(name))))
            self.changed.add(name)

    def run_deferred(self) -> bool:
        """Do a piece of deferred work. Return whether there was any."""
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

    def take_counted(self) -> Iterator[Sort]:
        """Yield each new sort once, when all nodes have its amounts."""
        while self._matched and self.changed.has_passed(self._matched[0][1]):
            sort, _ = self._matched.popleft()
            sort.counted = True
            yield sort

    def finish(self) -> None:
        """Do all deferred work now."""
        while self.run_deferred():
            pass

    def nodes_of(self, key: PoolId) -> set[str]:
        """Return the nodes that may reach devices of a pool."""
        pool = self._pools.get(key)
        if pool is None:
            return set()
        return pool.nodes.union(self._nodes) if pool.wide else pool.nodes

    def find(self, node: str) -> Matches:
        """Return the devices that a node reaches and that are of some sort."""
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

    def find_failure(self, sort: Sort, admits: Callable[[Node], bool]) -> tuple[str, str] | None:
        """Return a selector error of the sort, and the first node with it that ``admits`` allows; None without one."""
        for failures in sort.errors.values():
            for place, said in failures.items():
                names = (place.node,) if place.node else (name for name in self._nodes if self._reaches(name, place))
                for name in names:
                    if name in self._nodes and admits(self._nodes[name]):
                        return said, name
        return None

    def touch_all(self) -> None:
        """Note that the amounts of all nodes may have changed."""
        self.changed.update(self._nodes)

    def find_device(self, key: DeviceId) -> Device:
        """Return the device with this ID; it is in a ResourceSlice of at least one node. Raises KeyError otherwise."""
        return self._pools[key.pool].devices[key][0]

    def find_counters(self, key: PoolId) -> Mapping[tuple[str, ...], int]:
        """Return the total counters of a pool."""
        return self._pools[key].counters

    def list_partitions(self, key: PoolId) -> Iterable[tuple[DeviceId, Device]]:
        """Return the devices of a pool that use its counters, on any node."""
        return self._pools[key].partitions.items()

    def find_attribute(self, node: str, domain: str, name: str) -> Value | None:
        """Return the value that all devices of a node with this attribute share; None if there is none."""
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
        """Return whether a node reaches an incomplete pool: then requests for all devices fail there."""
        return any(not self._pools[key].usable for key in self._list_pools(node))

    def _list_pools(self, node: str) -> list[PoolId]:
        """Return the pools that a node may reach, in kube-scheduler's order (1.36 and later)."""
        keys = (*self._pools_at.get(node, ()), *self._wide)
        return sorted(keys, key=lambda key: (self._pools[key].binds, key))

    def _read(self, key: PoolId) -> Iterator[None]:
        """Read the slices of a pool and match its devices, pausing in between; the old state is valid until the end."""
        old, sorts = self._pools[key], list(self._sorts.values())
        new = _Pool(old.slices)
        new.derive(key, self.taint_rules.values())
        before = [(sort.beyond, sort.errors.pop(key, None)) for sort in sorts]
        found: dict[DeviceId, Match] = {}
        done = 0
        for device_id, (device, place) in new.devices.items():
            of = frozenset([sort for sort in sorts if _is_of_sort(sort, key, device, place)])
            if of:
                found[device_id] = _share_match(of, _find_note(device, place, spread=new.spread))
            done += len(sorts)
            if done >= MATCHED_AT_ONCE:
                done = 0
                yield
        new.set_matches(found)
        after = [(sort.beyond, sort.errors.get(key)) for sort in sorts]
        self.changed_sorts.update(sort for sort, was, is_ in zip(sorts, before, after, strict=True) if was != is_)
        self.rematched.update(dict.fromkeys((*old.matches, *found)))
        self._touch(key)
        self._replace(key, old, new)
        self._touch(key)
        kinds = self._kinds.copy()
        kinds.subtract(old.matches.values())
        kinds.update(found.values())
        self._note_kinds(+kinds)

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
        # if the last slice was removed meanwhile, the pool is due again
        if not new.slices and not new.nodes and not new.wide:
            del self._pools[key]

    def _touch(self, key: PoolId) -> None:
        """Note that the nodes of a pool may reach other devices, or by another place."""
        nodes = self.nodes_of(key)
        for name in nodes:
            self._at.pop(name, None)
        self.changed.update(nodes)

    # --- sorts -------------------------------------------------------------------------------------------------

    def acquire(self, wish: Wish) -> Sort:
        """Return the sort for a wish, with one more user. Raises Broken if a selector is invalid."""
        sort = self._sorts.get(wish)
        if sort is None:
            selectors, beyond = _compile(wish)
            dropped = self._drop_idle()
            sort = self._sorts[wish] = Sort(wish, selectors, self._name(wish), beyond=beyond)
            self._unmatched.append((sort, dropped))
            self.epoch += bool(dropped)  # the new sort may reuse a name under which dropped sorts were counted
        sort.users += 1
        return sort

    def note_union(self, sorts: Group, step: int) -> None:
        """Add (``step`` 1) or remove (-1) a request for devices of any of these sorts."""
        before = len(self._unions)
        self._unions[sorts] += step
        if not self._unions[sorts]:
            del self._unions[sorts]
        if len(self._unions) != before:
            self._regroup()

    def note_shown(self, sorts: Group) -> None:
        """Set the sorts of which nodes may list more than they have devices, by extended resources."""
        if self._shown != sorts:
            self._shown = sorts
            self.touch_all()
            self._regroup()

    def find_covering(self, sorts: Group) -> frozenset[Group]:
        """Return the groups that contain all devices of these sorts.

        A request for the sorts uses all of these groups.
        """
        found = [self._covering[sort] for sort in sorts if sort in self._covering]
        return frozenset.intersection(*found) if found else frozenset()

    def overlap(self, one: Sort, other: Sort) -> bool:
        """Return whether there is a device of both sorts."""
        return any(one in match.sorts and other in match.sorts for match in self._kinds)

    def release(self, sort: Sort) -> None:
        """Remove a user of the sort."""
        sort.users -= 1

    def _drop_idle(self) -> Group:
        idle = [wish for wish, sort in self._sorts.items() if not sort.users]
        return frozenset([self._sorts.pop(wish) for wish in idle]) if len(idle) > _MAX_IDLE else frozenset()

    def _name(self, wish: Wish) -> str:
        name = f"devices of {wish.device_class}"
        if wish.selectors:
            name += f" where {_cut(' && '.join(wish.selectors))}"
        taken = {sort.name for sort in self._sorts.values()}
        names = (name, *(f"{name} ({count})" for count in range(2, len(taken) + 3)))
        return next(each for each in names if each not in taken)

    def _match_new(self, sort: Sort, dropped: Group) -> Iterator[None]:
        """Match all devices with a new sort, pausing in between, and remove the ``dropped`` sorts."""
        done, is_wanted = 0, self._sorts.get(sort.wish) is sort
        kinds: Counter[Match] = Counter()
        for key in list(self._pools):
            pool = self._pools[key]
            found: dict[DeviceId, Match] = {}
            # The order is that of the pool's devices, also for newly matched ones, because kube-scheduler uses the
            # first devices that fit.
            for device_id, (device, place) in pool.devices.items():
                before = pool.matches.get(device_id)
                of = before.sorts - dropped if before is not None else frozenset[Sort]()
                if is_wanted and _is_of_sort(sort, key, device, place):
                    of |= {sort}
                    self.rematched[device_id] = None
                if of:
                    found[device_id] = _share_match(of, _find_note(device, place, spread=pool.spread))
            if found != pool.matches:
                pool.set_matches(found)
                self._touch(key)
            kinds.update(found.values())
            done += 1 + len(pool.devices)
            if done >= MATCHED_AT_ONCE:
                done = 0
                yield
        self._note_kinds(kinds)
        self._matched.append((sort, self.changed.mark()))

    def _reaches(self, name: str, place: Place) -> bool:
        if place.node:
            return place.node == name
        node = self._nodes.get(name)
        return node is not None and (place.everywhere or (place.terms is not None and matches_terms(place.terms, node)))

    def _note_kinds(self, kinds: Counter[Match]) -> None:
        before, self._kinds = self._kinds, kinds
        if before.keys() != kinds.keys():
            self._regroup()

    def _regroup(self) -> None:
        """Compute the groups of overlapping sorts, and the notes of all sorts."""
        masks = self._mask_sorts()
        links = self._link_sorts(masks)
        groups: dict[Group, None] = {}
        for component in _join([*(match.sorts for match in self._kinds), *self._unions]):
            every = sorted(component, key=lambda sort: sort.name)
            sizes = range(1, len(every) + 1) if len(every) <= _MAX_SUBSETS else (1, 2, len(every))
            subsets = (some for size in sizes for some in combinations(every, size))
            groups.update((_reduce(some, masks), None) for some in subsets if _is_linked(some, links))
        groups.update(dict.fromkeys(self._unions))
        reach = {group: _unite(group, masks) for group in groups}
        covering = {
            sort: frozenset([each for each in groups if not mask & ~reach[each]])
            for sort, mask in masks.items()
            if mask
        }
        self._note_groups(tuple(groups), covering)
        for sort in self._sorts.values():
            notes = frozenset(each.note for each in self._kinds if sort in each.sorts)
            if sort.notes != notes:
                sort.notes = notes
                self.changed_sorts.add(sort)

    def _mask_sorts(self) -> dict[Sort, int]:
        """Return by sort a bit mask of its kinds of devices, with a bit for those that nodes list as resources."""
        masks = dict.fromkeys((sort for union in self._unions for sort in union), 0)
        for place, match in enumerate(self._kinds):
            for sort in match.sorts:
                masks[sort] = masks.get(sort, 0) | 1 << place
        for place, sort in enumerate(self._shown, len(self._kinds)):
            masks[sort] = masks.get(sort, 0) | 1 << place
        return masks

    def _link_sorts(self, masks: Mapping[Sort, int]) -> dict[Sort, int]:
        """Return the masks with a bit added per union of sorts. Sorts without a common bit are independent."""
        links = dict(masks)
        for place, union in enumerate(self._unions, len(self._kinds) + len(self._shown)):
            for sort in union:
                links[sort] |= 1 << place
        return links

    def _note_groups(self, groups: tuple[Group, ...], covering: dict[Sort, frozenset[Group]]) -> None:
        concerned = frozenset().union(*frozenset(groups).symmetric_difference(self.groups))
        for key, pool in self._pools.items() if concerned else ():
            if not concerned.isdisjoint(pool.sorts):
                self.changed.update(self.nodes_of(key))
        if concerned and self._shown:
            self.touch_all()
        before, none = self._covering, frozenset[Group]()
        self.changed_sorts.update(
            each for each in {**before, **covering} if before.get(each, none) != covering.get(each, none)
        )
        self.groups, self._covering = groups, covering

    def is_within(self, inner: Sort, outer: Sort) -> bool:
        """Return whether all existing devices of one sort are also of another sort."""
        return all(outer in match.sorts for match in self._kinds if inner in match.sorts)


def _unite(sorts: Iterable[Sort], masks: Mapping[Sort, int]) -> int:
    found = 0
    for sort in sorts:
        found |= masks[sort]
    return found


def _is_linked(sorts: tuple[Sort, ...], links: Mapping[Sort, int]) -> bool:
    """Return whether sorts are connected by overlaps. A group of independent parts adds nothing to its parts."""
    reached, rest = links[sorts[0]], list(sorts[1:])
    while rest:
        apart = [sort for sort in rest if not links[sort] & reached]
        if len(apart) == len(rest):
            return False
        reached |= _unite((sort for sort in rest if sort not in apart), links)
        rest = apart
    return True


def _reduce(sorts: tuple[Sort, ...], masks: Mapping[Sort, int]) -> Group:
    """Return the sorts without those whose devices are all contained in the others."""
    for sort in sorts:
        others = tuple([each for each in sorts if each is not sort])
        if others and not masks[sort] & ~_unite(others, masks):
            sorts = others
    return frozenset(sorts)


def _join(sets: Iterable[Group]) -> list[Group]:
    """Return the unions of sets that overlap."""
    joined: list[Group] = []
    for each in sets:
        apart = [other for other in joined if not other & each]
        joined = [*apart, each.union(*(other for other in joined if other & each))]
    return joined


def _taint(key: PoolId, device: Device, rules: Iterable[DeviceTaintRule]) -> Device:
    taints = tuple(rule.taint for rule in rules if rule.means(key, device.name))
    return replace(device, taints=(*device.taints, *taints)) if taints else device


def _list_places(found: ResourceSlice) -> list[Place]:
    return [device.place for device in found.devices] if found.per_device else [found.place]


def _find_note(device: Device, place: Place, *, spread: bool) -> Note:
    phrase = "several nodes reach a device" if not place.node else ""
    if spread and device.consumes:
        phrase = "several nodes share counters of devices"
    return _share_note(phrase, not device.shareable, device.shareable or bool(device.consumes))


@lru_cache(maxsize=16)
def _share_note(phrase: str, limits: bool, searched: bool) -> Note:  # noqa: FBT001  # its fields
    return Note(phrase, limits, searched)


def _compile(wish: Wish) -> tuple[tuple[Selector, ...], str]:
    """Return the compiled selectors, and a phrase if they are not supported. Raises Broken if one is invalid."""
    selectors = []
    for text in (*wish.class_selectors, *wish.selectors):
        try:
            selectors.append(compile_selector(text))
        except Unsupported as error:
            return (), f"Serried does not know what {_cut(text)} means ({error})"
        except Broken as error:
            raise Broken(f"{_cut(text)} is no selector: {error}") from error
    return tuple(selectors), ""


@lru_cache(maxsize=1024)
def _share_match(sorts: Group, note: Note) -> Match:
    """Return one shared object for equal values."""
    return Match(sorts, note)


def _is_of_sort(sort: Sort, key: PoolId, device: Device, place: Place) -> bool:
    """Return whether a device is of a sort. If a selector fails, the device is not, and the error is recorded."""
    if sort.beyond or (device.taints and not tolerates(sort.wish.tolerations, device.taints)):
        return False
    for selector in sort.selectors:
        try:
            if not selector.matches(key.driver, device.attributes, device.capacity, shareable=device.shareable):
                return False
        except Broken as error:
            why = f"{_cut(selector.expression)} fails for device {device.name} of {key.driver}: {error}"
            sort.errors.setdefault(key, {}).setdefault(place, why)
            return False
        except Unsupported as error:
            sort.beyond = f"Serried does not know what {_cut(selector.expression)} means ({error})"
            return False
    return True


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_LETTERS else text[:_MAX_LETTERS] + "..."
