"""The storage for claims: where PersistentVolumes and drivers can provide a volume (`Supply`), and limits of nodes.

The rules are those of VolumeBinding in kube-scheduler 1.37 (binder.go: checkBoundClaims, findMatchingVolumes,
checkVolumeProvisions).

The limit of a node for volumes of a CSI driver (NodeVolumeLimits) is an amount of the node (`Attachments`). A claim of
one pod requests one volume on any node. A volume that several pods share counts once per node. On nodes where it is
attached already it is subtracted from the limit, so further pods request nothing there. Its users also have an amount
of their own, so plans know where it is attached for the first time. Volumes that are attached without a pod on the node
are learnt from kube-scheduler's rejections.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from serried.api.names import Key
from serried.api.node import Node
from serried.api.resources import ATTACHED, CHOSEN
from serried.api.selectors import MAX_TERMS, NodeSelectorTerm, Requirement, Terms, both, says_something
from serried.api.volume import (
    MIGRATIONS,
    Choice,
    CSIDriver,
    CSINode,
    Pool,
    StorageCapacity,
    StorageClass,
    Volume,
    VolumeClaim,
    Wish,
)
from serried.cluster.index import discard

_NOWHERE: Terms = ()


class Offer(NamedTuple):
    """The nodes where a claim can get a volume. None stands for all nodes."""

    found: Terms | None
    """The nodes with a fitting volume.

    If none can be provisioned it is only None or (): `VolumeChoices` knows the nodes.
    """

    provisioned: Terms | None
    """The nodes for which a volume can be provisioned."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The nodes that a claim leaves a pod."""

    terms: Terms | None = None
    obstacle: str = ""
    """A phrase why there are none; "" if there are some."""

    by_mate: bool = False
    """True if the reason is another member of the gang, which has precedence."""


class Supply:
    """The known storage: PersistentVolumes, StorageClasses, drivers and their capacity.

    ``seen`` are the kinds of which all objects are known.
    """

    def __init__(self) -> None:
        self.volumes: dict[str, Volume] = {}
        self.classes: dict[str, StorageClass] = {}
        self.capacities: dict[Key, StorageCapacity] = {}
        self.drivers: dict[str, CSIDriver] = {}
        self.seen: set[type] = set()
        self._volumes_of: dict[str, dict[str, None]] = {}
        self._capacities_of: dict[str, dict[Key, None]] = {}
        self._reserved_for: dict[Key, dict[str, None]] = {}
        self._offers: dict[str, dict[Wish, Offer]] = {}
        self._pools: dict[str, dict[Wish, Pool]] = {}

    def find_reach(self, claim: VolumeClaim, *, shared: bool) -> Reach:
        """Return the nodes that a claim leaves its pod.

        The selected node of a ``shared`` claim is ignored: it is one pod's.
        """
        name = claim.key.name
        if claim.lost:
            return Reach(obstacle=f"volume claim {name} has lost its PersistentVolume {claim.volume}")
        if claim.deleting:
            return Reach(obstacle=f"volume claim {name} is being deleted")
        if claim.bound:
            return self._find_bound(claim)
        if claim.volume:
            return Reach(obstacle=f"volume claim {name} is not bound to PersistentVolume {claim.volume} yet")
        one = replace(claim, selected_node=None) if shared else claim
        return self._find_unbound(one) if StorageClass in self.seen else Reach()

    def _find_bound(self, claim: VolumeClaim) -> Reach:
        volume = self.volumes.get(claim.volume)
        if volume is not None:
            return Reach(volume.bound_terms)
        missing = Volume in self.seen
        text = f"volume claim {claim.key.name} is bound to PersistentVolume {claim.volume}, which does not exist"
        return Reach(obstacle=text if missing else "")

    def _find_unbound(self, claim: VolumeClaim) -> Reach:
        name, wanted = claim.key.name, claim.wish.storage_class
        found = self.classes.get(wanted)
        if found is None:
            why = f"its StorageClass {wanted} does not exist" if wanted else "it names no StorageClass"
            return Reach(obstacle=f"volume claim {name} is not bound, and {why}")
        if not found.waits:
            return Reach(obstacle=f"volume claim {name} is not bound yet, and StorageClass {wanted} waits for no pod")
        if Volume not in self.seen:
            return Reach()
        terms = self._find_delayed(claim)
        if terms == _NOWHERE:
            means = "no driver has storage for it" if found.provisions else f"StorageClass {wanted} makes none"
            return Reach(obstacle=f"no PersistentVolume fits volume claim {name}, and {means}")
        return Reach(terms)

    def _find_delayed(self, claim: VolumeClaim) -> Terms | None:
        """Return the nodes where kube-scheduler would bind the claim, or have a volume provisioned for it."""
        offer = self.find_offer(claim.wish)
        if claim.selected_node is not None:
            return both(offer.provisioned, at_node(claim.selected_node))
        kept = self.find_reserved(claim)
        return unite([kept.terms if kept is not None else offer.found, offer.provisioned])

    def find_reserved(self, claim: VolumeClaim) -> Volume | None:
        """Return the volume that is reserved for an unbound claim and fits it; None without one.

        Others do not count then.
        """
        kept = (self.volumes[name] for name in self._reserved_for.get(claim.key, ()))
        own = (volume for volume in kept if volume.claim_uid in {"", claim.uid} and volume.holds(claim.wish))
        return next((volume for volume in own if volume.storage_class == claim.wish.storage_class), None)

    def find_offer(self, wish: Wish) -> Offer:
        """Return the nodes with volumes for claims like this. The result is cached until `update_class`."""
        offers = self._offers.setdefault(wish.storage_class, {})
        if wish not in offers:
            provisioned = self._find_provisioned(wish)
            if self._is_provisioned(wish):
                found = unite(volume.terms for volume in self._list_fitting(wish)) if provisioned is not None else None
            else:
                fits = any(True for _ in self._list_fitting(wish))
                found = None if fits else _NOWHERE
            offers[wish] = Offer(found, provisioned)
        return offers[wish]

    def _is_provisioned(self, wish: Wish) -> bool:
        found = self.classes.get(wish.storage_class)
        return found is not None and found.provisions

    def find_choice(self, claim: VolumeClaim, sharing: str) -> Choice | None:
        """Return the choice that a plan has to make for a claim; None if there is none, or if it restricts no member.

        ``sharing`` is the name of the claim if several pods use it, else "".
        """
        found = self.classes.get(claim.wish.storage_class)
        if claim.volume or found is None or not found.waits or Volume not in self.seen or StorageClass not in self.seen:
            return None
        if found.provisions:
            return Choice(None, sharing) if sharing else None
        if claim.selected_node is not None or self.find_reserved(claim) is not None:
            return None
        pools = self._pools.setdefault(claim.wish.storage_class, {})
        pool = pools.get(claim.wish)
        if pool is None:
            pool = pools[claim.wish] = Pool(claim.wish, _name_amount(claim.wish))
            pool.volumes = tuple(sorted(self._list_fitting(claim.wish), key=Pool.rank))
        return Choice(pool, sharing)

    def copy_pools(self) -> tuple[Pool, ...]:
        """Return copies of the pools for a recorded snapshot: volumes have numbers as names, and only what plans use.

        A volume in several pools has the same number in each.
        """
        pools = [pool for found in self._pools.values() for pool in found.values()]
        known = {each.name: each for pool in pools for each in pool.volumes}
        bare = {
            name: Volume(str(number), each.terms, capacity=each.capacity)
            for number, (name, each) in enumerate(known.items())
        }
        return tuple(replace(pool, volumes=tuple(bare[each.name] for each in pool.volumes)) for pool in pools)

    def _list_fitting(self, wish: Wish) -> Iterator[Volume]:
        """Return the volumes that any claim like this could get."""
        volumes = (self.volumes[name] for name in self._volumes_of.get(wish.storage_class, ()))
        return (volume for volume in volumes if volume.may_serve(wish))

    def _find_provisioned(self, wish: Wish) -> Terms | None:
        found = self.classes.get(wish.storage_class)
        if found is None or not self._is_provisioned(wish):
            return _NOWHERE
        driver = self.drivers.get(found.provisioner)
        tells = driver is not None and driver.tells_capacity and StorageCapacity in self.seen and wish.request > 0
        return both(found.topologies, self._find_storage(wish) if tells else None)

    def _find_storage(self, wish: Wish) -> Terms | None:
        """Return the nodes with enough capacity.

        Each volume is checked alone, as by kube-scheduler (hasEnoughCapacity).
        """
        keys = self._capacities_of.get(wish.storage_class, ())
        enough = [each for key in keys if (each := self.capacities[key]).limit >= wish.request]
        if any(each.nodes == () for each in enough):
            return None
        return unite((NodeSelectorTerm(each.nodes),) for each in enough if each.nodes is not None)

    def find_driver(self, claim: VolumeClaim) -> str:
        """Return the CSI driver of a claim's volume, present or future; "" if there is none or it is unknown."""
        volume = self.volumes.get(claim.volume)
        if volume is not None:
            return volume.driver
        found = self.classes.get(claim.wish.storage_class)
        name = found.provisioner if found is not None else ""
        return MIGRATIONS[name].driver if name in MIGRATIONS else name

    def find_default(self) -> str:
        """Return the name of the default StorageClass; "" without one. Among several it is the first by name."""
        return min((each.name for each in self.classes.values() if each.is_default), default="")

    def update_class(self, name: str, wanted: Collection[Wish]) -> set[Wish]:
        """Discard the cached results of a class. Return the wishes among ``wanted`` for which the nodes have changed.

        ``wanted`` are the wishes of all unbound claims; what is cached for others is dropped.
        """
        before = self._offers.pop(name, {})
        pools = self._pools.get(name, {})
        for wish in [wish for wish in pools if wish not in wanted]:
            del pools[wish]
        if not pools:
            self._pools.pop(name, None)
        return {wish for wish, offer in before.items() if wish in wanted and self.find_offer(wish) != offer}

    def put_volume(self, volume: Volume) -> Volume | None:
        """Add or replace a PersistentVolume. Return the previous one; None if it is new."""
        old = self.drop_volume(volume.name)
        self.volumes[volume.name] = volume
        self._volumes_of.setdefault(volume.storage_class, {})[volume.name] = None
        if volume.claim is not None:
            self._reserved_for.setdefault(volume.claim, {})[volume.name] = None
        for wish, pool in self._pools.get(volume.storage_class, {}).items():
            if volume.may_serve(wish):
                pool.put(volume)
        return old

    def drop_volume(self, name: str) -> Volume | None:
        """Remove a PersistentVolume. Return it; None if it was unknown."""
        old = self.volumes.pop(name, None)
        if old is not None:
            discard(self._volumes_of, old.storage_class, name)
            for wish, pool in self._pools.get(old.storage_class, {}).items():
                if old.may_serve(wish):
                    pool.drop(name)
            if old.claim is not None:
                discard(self._reserved_for, old.claim, name)
        return old

    def put_capacity(self, capacity: StorageCapacity) -> None:
        """Add or replace a CSIStorageCapacity."""
        self.drop_capacity(capacity.key)
        self.capacities[capacity.key] = capacity
        self._capacities_of.setdefault(capacity.storage_class, {})[capacity.key] = None

    def drop_capacity(self, key: Key) -> None:
        """Remove a CSIStorageCapacity."""
        old = self.capacities.pop(key, None)
        if old is not None:
            discard(self._capacities_of, old.storage_class, key)


class Attachments:
    """The volume limits of nodes by driver. ``limited`` counts the nodes with a limit per driver; others are unlimited.

    On a node that lacks a required driver the limit is 0.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, CSINode] = {}
        self.limited: Counter[str] = Counter()
        self.required: dict[str, None] = {}
        self.are_known = False
        """True if all CSINodes are known. Until then no driver counts as missing."""

    def add_limits(self, node: Node, shared: Mapping[str, int]) -> Node:
        """Return the node with its free volumes per driver; ``shared`` counts the attached volumes of several pods."""
        found = self.nodes.get(node.name)
        limits = found.limits if found is not None else {}
        if self.required and self.are_known:
            there = found.drivers if found is not None else ()
            limits = {**limits, **{driver: 0 for driver in self.required if driver not in there}}
        amounts = {ATTACHED + driver: limit - shared.get(driver, 0) for driver, limit in limits.items()}
        return replace(node, allocatable={**node.allocatable, **amounts}) if amounts else node

    def put(self, found: CSINode) -> bool:
        """Add or replace a CSINode. Return whether the set of limited drivers has changed."""
        old = self.nodes.get(found.name)
        self.nodes[found.name] = found
        return self._count(old.limits if old is not None else (), found.limits)

    def drop(self, name: str) -> bool:
        """Remove a CSINode. Return whether the set of limited drivers has changed."""
        old = self.nodes.pop(name, None)
        return self._count(old.limits if old is not None else (), ())

    def require(self, driver: str, *, required: bool) -> bool:
        """Note whether a driver must be installed where its volumes are used. Return whether that has changed."""
        if required is (driver in self.required):
            return False
        if required:
            self.required[driver] = None
        else:
            del self.required[driver]
        self._count((), (driver,)) if required else self._count((driver,), ())
        return True

    def _count(self, less: Iterable[str], more: Iterable[str]) -> bool:
        before = set(self.limited)
        # Only the names are counted, because a limit of 0 is a limit, too.
        self.limited.update(iter(more))
        self.limited.subtract(iter(less))
        self.limited = +self.limited
        return before != set(self.limited)


def at_node(name: str) -> Terms:
    """Return the terms that match one node."""
    return (NodeSelectorTerm(fields=(Requirement("metadata.name", "In", (name,)),)),)


def unite(ways: Iterable[Terms | None]) -> Terms | None:
    """Return terms for the nodes that any of these match. None for all nodes, or if there are too many terms."""
    values: dict[str, dict[str, None]] = {}
    others: dict[NodeSelectorTerm, None] = {}
    for terms in ways:
        if terms is None:
            return None
        for term in filter(says_something, terms):
            if not term.fields and len(term.labels) == 1 and term.labels[0].operator == "In":
                values.setdefault(term.labels[0].key, {}).update(dict.fromkeys(term.labels[0].values))
            else:
                others[term] = None
    joined = [NodeSelectorTerm((Requirement(key, "In", tuple(sorted(values[key]))),)) for key in sorted(values)]
    united = (*joined, *sorted(others, key=repr))
    return united if len(united) <= MAX_TERMS else None


def _name_amount(wish: Wish) -> str:
    asked = (f"{each.key} {each.operator} ({','.join(each.values)})" for each in wish.selector)
    kind = (*sorted(wish.access_modes), wish.volume_mode, wish.attributes_class, *asked)
    return f"{CHOSEN}{wish.storage_class}/{wish.request}/{'/'.join(filter(None, kind))}"
