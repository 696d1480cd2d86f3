"""What devices nodes have, by the sorts that claims ask for (kube-scheduler's plugin DynamicResources).

A device counts where upstream's allocator looks at it (1.37, dynamic-resource-allocation structured/internal/
incubating): in the newest generation of a pool that is complete and names no device twice, on the nodes that reach it,
if it has no taint that the claim does not tolerate, and if all selectors take it. Where devices are only numbers, the
order in which the allocator takes them does not count: claims fit if devices can be given out at all.
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
"""Up to how many sorts that overlap are counted in all ways."""

_MAX_IDLE = 8
"""How many sorts are kept that nobody asks for any more: somebody may again."""

_MAX_LETTERS = 120

MATCHED_AT_ONCE = 256
"""How many times a device is matched with a sort in one piece of work: about a millisecond."""


class Note(NamedTuple):
    """What keeps devices from being counted one by one."""

    phrase: str
    limits: bool
    """Whether there are at most as many claims as devices all the same."""

    searched: bool
    """Whether only kube-scheduler's own search tells how many claims find devices."""


class Wish(NamedTuple):
    """What a claim says of one sort of devices."""

    device_class: str
    class_selectors: Selectors
    selectors: Selectors
    tolerations: tuple[Toleration, ...]


@dataclass(eq=False, slots=True)
class Sort:
    """Devices that are one to those who ask for them."""

    wish: Wish
    selectors: tuple[Selector, ...]

    name: str
    """For people. No two sorts have the same at a time."""

    users: int = 0

    beyond: str = ""
    """Why only kube-scheduler knows which devices these are, a phrase; "" if it is known here."""

    notes: frozenset[Note] = frozenset()

    counted: bool = False
    """Whether all devices have been matched with it, and nodes have amounts of it by now."""

    errors: dict[PoolId, dict[Place, str]] = field(default_factory=dict)
    """How a selector fails for a device, by where that is."""

    @property
    def limited(self) -> bool:
        """Whether nobody can have more of them than there are."""
        return not self.beyond and all(note.limits for note in self.notes)

    @property
    def searched(self) -> bool:
        """Whether claims have to be searched devices for, one after the other."""
        return any(note.searched for note in self.notes)

    @property
    def uncertain(self) -> str:
        """Why a plan that counts them may be refused, a phrase; "" if it is exact."""
        return self.beyond or next((note.phrase for note in sorted(self.notes) if note.phrase), "")


Group = frozenset[Sort]
"""Sorts whose devices are counted together."""


class Match(NamedTuple):
    """What a device is, if it is of some sort."""

    sorts: Group
    note: Note


Matches = Mapping[DeviceId, Match]


class _Pool:
    """The slices of a pool, and what they come to."""

    def __init__(self, slices: dict[str, ResourceSlice]) -> None:
        self.slices = slices
        self.devices: dict[DeviceId, tuple[Device, Place]] = {}
        self.matches: Matches = {}
        """The devices that are of some sort."""

        self.sorts: Group = frozenset()
        """The sorts of which there is a device."""

        self.usable = False
        self.nodes: set[str] = set()
        """The nodes that are named: in all generations, as a device of an old one has gone."""
        self.wide = False
        """Whether nodes are chosen otherwise, too."""

        self.counters: dict[tuple[str, ...], int] = {}
        self.partitions: dict[DeviceId, Device] = {}
        """The devices that take from the counters."""

        self.spread = False
        """Whether several nodes share these."""

        self.binds = False
        """Whether devices are bound after a while only: then kube-scheduler looks into it last."""

    def take(self, found: Matches) -> None:
        """Note what the devices are by now."""
        self.matches = found
        self.sorts = frozenset().union(*{match.sorts for match in found.values()})

    def settle(self, key: PoolId, rules: Iterable[DeviceTaintRule]) -> None:
        """Read the slices; the rules say of what taints devices have besides."""
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
    """The devices of nodes, by the sorts that somebody asks for. ``nodes`` is the Store's map.

    Pools are read, and devices matched with sorts, a few at a time (`go_on`): until then all is as it was before.
    """

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.slices: dict[str, ResourceSlice] = {}
        self.taint_rules: dict[str, DeviceTaintRule] = {}

        self.changed = Due[str]()
        """The nodes of which the devices may be others since somebody took note of it."""

        self.rematched: dict[DeviceId, None] = {}
        """The devices that may be of other sorts, or reached otherwise, since somebody took note of it."""

        self.groups: tuple[Group, ...] = ()
        """Sorts that are to be counted together: claims fit that fit by each of these counts (Hall's theorem)."""

        self.turned: set[Sort] = set()
        """The sorts of which pods may have to ask in other words since somebody took note of it."""

        self.epoch = 0
        """Another one where all pods may have to."""

        self._covering: dict[Sort, frozenset[Group]] = {}
        """The groups that all devices of a sort are among, if it has any."""

        self._shown: frozenset[Sort] = frozenset()
        self._nodes = nodes
        self._sorts: dict[Wish, Sort] = {}
        self._pools: dict[PoolId, _Pool] = {}
        self._pools_at: dict[str, dict[PoolId, None]] = {}
        self._wide: dict[PoolId, None] = {}
        self._at: dict[str, Matches] = {}
        """The devices that each node reaches, as far as somebody has asked."""

        self._kinds: Counter[Match] = Counter()
        self._unions: Counter[Group] = Counter()
        self._unread = Due[PoolId]()
        self._unmatched: deque[tuple[Sort, Group]] = deque()
        """The sorts that are new, and those that were dropped for each."""

        self._matched: deque[tuple[Sort, int]] = deque()
        """The new sorts that are matched, and up to where nodes have to show them."""

        self._work: Iterator[None] = iter(())

    # --- slices and nodes --------------------------------------------------------------------------------------

    def put_slice(self, found: ResourceSlice) -> None:
        """A ResourceSlice came or changed."""
        old = self.slices.get(found.name)
        if old is not None and old.pool != found.pool:
            self.drop_slice(found.name)
        self.slices[found.name] = found
        self._pools.setdefault(found.pool, _Pool({})).slices[found.name] = found
        self._unread.add(found.pool)

    def drop_slice(self, name: str) -> None:
        """A ResourceSlice went."""
        old = self.slices.pop(name, None)
        if old is not None:
            del self._pools[old.pool].slices[name]
            self._unread.add(old.pool)

    def put_taint_rule(self, rule: DeviceTaintRule) -> None:
        """A DeviceTaintRule came or changed."""
        self.drop_taint_rule(rule.name)
        self.taint_rules[rule.name] = rule
        self._taint_anew(rule)

    def drop_taint_rule(self, name: str) -> None:
        """A DeviceTaintRule went."""
        old = self.taint_rules.pop(name, None)
        if old is not None:
            self._taint_anew(old)

    def _taint_anew(self, rule: DeviceTaintRule) -> None:
        self._unread.update(filter(rule.reaches, self._pools))

    def note_node(self, name: str) -> None:
        """A node came, has other labels, or went."""
        before = self._at.pop(name, ())
        if self._wide and self._sorts:
            self.rematched.update(dict.fromkeys((*before, *self.find(name))))
            self.changed.add(name)

    def go_on(self) -> bool:
        """Do a piece of what is put off; return whether there was anything to do."""
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
        """Return the new sorts that all nodes have amounts of by now, each once."""
        while self._matched and self.changed.has_passed(self._matched[0][1]):
            sort, _ = self._matched.popleft()
            sort.counted = True
            yield sort

    def finish(self) -> None:
        """Do all that is put off at once."""
        while self.go_on():
            pass

    def nodes_of(self, key: PoolId) -> set[str]:
        """The nodes that may reach devices of a pool."""
        pool = self._pools.get(key)
        if pool is None:
            return set()
        return pool.nodes.union(self._nodes) if pool.wide else pool.nodes

    def find(self, node: str) -> Matches:
        """The devices that a node reaches, but for those of no sort."""
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
        """How a selector of a sort fails for a device, and the node: the first one that admits; None without."""
        for failures in sort.errors.values():
            for place, said in failures.items():
                names = (place.node,) if place.node else (name for name in self._nodes if self._reaches(name, place))
                for name in names:
                    if name in self._nodes and admits(self._nodes[name]):
                        return said, name
        return None

    def touch_all(self) -> None:
        """The amounts of all nodes may be others."""
        self.changed.update(self._nodes)

    def find_device(self, key: DeviceId) -> Device:
        """A device that some node reaches."""
        return self._pools[key.pool].devices[key][0]

    def find_counters(self, key: PoolId) -> Mapping[tuple[str, ...], int]:
        """What there is of the counters of a pool, in all."""
        return self._pools[key].counters

    def list_partitions(self, key: PoolId) -> Iterable[tuple[DeviceId, Device]]:
        """The devices of a pool that take from its counters, whoever reaches them."""
        return self._pools[key].partitions.items()

    def find_attribute(self, node: str, domain: str, name: str) -> Value | None:
        """The value that all devices of a node have in common that have the attribute at all; None without."""
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
        """Whether a node reaches a pool that is not complete: then nobody gets all devices there."""
        return any(not self._pools[key].usable for key in self._list_pools(node))

    def _list_pools(self, node: str) -> list[PoolId]:
        """The pools that a node may reach devices of, as kube-scheduler goes through them (1.36 and later)."""
        keys = (*self._pools_at.get(node, ()), *self._wide)
        return sorted(keys, key=lambda key: (self._pools[key].binds, key))

    def _read(self, key: PoolId) -> Iterator[None]:
        """Read the slices of a pool and match its devices, with a pause after some; until then all is as it was."""
        old, sorts = self._pools[key], list(self._sorts.values())
        new = _Pool(old.slices)
        new.settle(key, self.taint_rules.values())
        before = [(sort.beyond, sort.errors.pop(key, None)) for sort in sorts]
        found: dict[DeviceId, Match] = {}
        done = 0
        for device_id, (device, place) in new.devices.items():
            of = frozenset([sort for sort in sorts if _takes(sort, key, device, place)])
            if of:
                found[device_id] = _share_match(of, _find_note(device, place, spread=new.spread))
            done += len(sorts)
            if done >= MATCHED_AT_ONCE:
                done = 0
                yield
        new.take(found)
        after = [(sort.beyond, sort.errors.get(key)) for sort in sorts]
        self.turned.update(sort for sort, was, is_ in zip(sorts, before, after, strict=True) if was != is_)
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
        if not new.slices and not new.nodes and not new.wide:  # else the last slice has gone meanwhile: it is due again
            del self._pools[key]

    def _touch(self, key: PoolId) -> None:
        """Note that the nodes of a pool reach other devices, or the same ones otherwise."""
        nodes = self.nodes_of(key)
        for name in nodes:
            self._at.pop(name, None)
        self.changed.update(nodes)

    # --- sorts -------------------------------------------------------------------------------------------------

    def take(self, wish: Wish) -> Sort:
        """The sort of devices that is wished for; it has one user more. Raises Broken if a selector is none."""
        sort = self._sorts.get(wish)
        if sort is None:
            selectors, beyond = _compile(wish)
            dropped = self._drop_idle()
            sort = self._sorts[wish] = Sort(wish, selectors, self._name(wish), beyond=beyond)
            self._unmatched.append((sort, dropped))
            self.epoch += bool(dropped)  # what was counted of them may have the new one's name
        sort.users += 1
        return sort

    def note_union(self, sorts: Group, step: int) -> None:
        """So many more ask for devices of any of these sorts."""
        before = len(self._unions)
        self._unions[sorts] += step
        if not self._unions[sorts]:
            del self._unions[sorts]
        if len(self._unions) != before:
            self._regroup()

    def note_shown(self, sorts: Group) -> None:
        """Nodes may show more of these sorts than there are devices: who asks for them may ask for a resource, too."""
        if self._shown != sorts:
            self._shown = sorts
            self.touch_all()
            self._regroup()

    def find_covering(self, sorts: Group) -> frozenset[Group]:
        """The groups that all devices of these sorts are among: who asks for some of them takes from all of these."""
        found = [self._covering[sort] for sort in sorts if sort in self._covering]
        return frozenset.intersection(*found) if found else frozenset()

    def overlap(self, one: Sort, other: Sort) -> bool:
        """Whether there is a device of both sorts now."""
        return any(one in match.sorts and other in match.sorts for match in self._kinds)

    def release(self, sort: Sort) -> None:
        """One user less."""
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
        """Match all devices with a new sort, with a pause after some; ``dropped`` are of no use any more."""
        done, is_wanted = 0, self._sorts.get(sort.wish) is sort
        kinds: Counter[Match] = Counter()
        for key in list(self._pools):
            pool = self._pools[key]
            found: dict[DeviceId, Match] = {}
            # In the order of the pool's devices, also where a device is of a sort only now: kube-scheduler takes the
            # first devices that do.
            for device_id, (device, place) in pool.devices.items():
                before = pool.matches.get(device_id)
                of = before.sorts - dropped if before is not None else frozenset[Sort]()
                if is_wanted and _takes(sort, key, device, place):
                    of |= {sort}
                    self.rematched[device_id] = None
                if of:
                    found[device_id] = _share_match(of, _find_note(device, place, spread=pool.spread))
            if found != pool.matches:
                pool.take(found)
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
        """Find anew which sorts overlap, and what is known of their devices."""
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
                self.turned.add(sort)

    def _mask_sorts(self) -> dict[Sort, int]:
        """The devices of each sort: a bit for each kind of them, and one for what nodes may show beside them."""
        masks = dict.fromkeys((sort for union in self._unions for sort in union), 0)
        for place, match in enumerate(self._kinds):
            for sort in match.sorts:
                masks[sort] = masks.get(sort, 0) | 1 << place
        for place, sort in enumerate(self._shown, len(self._kinds)):
            masks[sort] = masks.get(sort, 0) | 1 << place
        return masks

    def _link_sorts(self, masks: Mapping[Sort, int]) -> dict[Sort, int]:
        """As the masks, and a bit for each union that a sort is in: sorts that share none have nothing in common."""
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
        self.turned.update(
            each for each in {**before, **covering} if before.get(each, none) != covering.get(each, none)
        )
        self.groups, self._covering = groups, covering

    def is_within(self, inner: Sort, outer: Sort) -> bool:
        """Whether all devices of one sort are of another one, too, as far as there are any now."""
        return all(outer in match.sorts for match in self._kinds if inner in match.sorts)


def _unite(sorts: Iterable[Sort], masks: Mapping[Sort, int]) -> int:
    found = 0
    for sort in sorts:
        found |= masks[sort]
    return found


def _is_linked(sorts: tuple[Sort, ...], links: Mapping[Sort, int]) -> bool:
    """Whether sorts hang together: what falls into parts says no more than the parts."""
    reached, rest = links[sorts[0]], list(sorts[1:])
    while rest:
        apart = [sort for sort in rest if not links[sort] & reached]
        if len(apart) == len(rest):
            return False
        reached |= _unite((sort for sort in rest if sort not in apart), links)
        rest = apart
    return True


def _reduce(sorts: tuple[Sort, ...], masks: Mapping[Sort, int]) -> Group:
    """Those of some sorts that have all their devices: what is among those of the others says nothing new."""
    for sort in sorts:
        others = tuple([each for each in sorts if each is not sort])
        if others and not masks[sort] & ~_unite(others, masks):
            sorts = others
    return frozenset(sorts)


def _join(sets: Iterable[Group]) -> list[Group]:
    """Sets that have something in common, as one."""
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
    """The selectors of a sort, and why they are beyond us if they are. Raises Broken if one is none."""
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
    """One object for all devices that are alike."""
    return Match(sorts, note)


def _takes(sort: Sort, key: PoolId, device: Device, place: Place) -> bool:
    """Whether a device is of a sort. One for which a selector fails is not, and is noted."""
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
