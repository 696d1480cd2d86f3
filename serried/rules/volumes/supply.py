"""What there is for claims: PersistentVolumes, and what drivers can provision, as places where a pod can be.

The rules are VolumeBinding's of kube-scheduler 1.37 (binder.go: checkBoundClaims, findMatchingVolumes,
checkVolumeProvisions).

How many volumes of a CSI driver a node takes (NodeVolumeLimits) is an amount that nodes have and pods ask for. A claim
that one pod mounts is one volume wherever that goes. A volume that several pods share counts once for a node: where it
is in use already, it is taken off what the node has, so it costs no other pod there anything. Its users have an amount
of it, so plans know where it comes new. Volumes that are attached though no pod there uses them are learnt.
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
    """Where a claim with some wish can get a volume: None for everywhere."""

    found: Terms | None
    """There is a volume that fits. Where none can be made it says only whether there is any: plans know which."""

    provisioned: Terms | None
    """One can be made."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Where a claim leaves a pod that mounts it."""

    terms: Terms | None = None
    obstacle: str = ""
    """Why it is nowhere, a phrase."""

    by_mate: bool = False
    """Whether that is a member of its gang, which comes first."""


class Supply:
    """What there is for claims: PersistentVolumes, and what drivers can provision.

    ``seen`` are the kinds that we are shown all objects of.
    """

    def __init__(self) -> None:
        self.volumes: dict[str, Volume] = {}
        self.classes: dict[str, StorageClass] = {}
        self.capacities: dict[Key, StorageCapacity] = {}
        self.drivers: dict[str, CSIDriver] = {}
        self.seen: set[type] = set()
        self._volumes_of: dict[str, dict[str, None]] = {}
        self._capacities_of: dict[str, dict[Key, None]] = {}
        self._kept_for: dict[Key, dict[str, None]] = {}
        self._offers: dict[str, dict[Wish, Offer]] = {}
        self._pools: dict[str, dict[Wish, Pool]] = {}

    def find_reach(self, claim: VolumeClaim, *, shared: bool) -> Reach:
        """Where a claim leaves its pod. The node for which a ``shared`` one is provisioned is that of one pod only."""
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
        """The nodes where kube-scheduler would bind the claim, or have a volume provisioned for it."""
        offer = self.find_offer(claim.wish)
        if claim.selected_node is not None:
            return both(offer.provisioned, at_node(claim.selected_node))
        kept = self.find_kept(claim)
        return unite([kept.terms if kept is not None else offer.found, offer.provisioned])

    def find_kept(self, claim: VolumeClaim) -> Volume | None:
        """The volume that is kept for a claim which is not bound, if it holds it: then no other counts."""
        kept = (self.volumes[name] for name in self._kept_for.get(claim.key, ()))
        own = (volume for volume in kept if volume.claim_uid in {"", claim.uid} and volume.holds(claim.wish))
        return next((volume for volume in own if volume.storage_class == claim.wish.storage_class), None)

    def find_offer(self, wish: Wish) -> Offer:
        """Where there are volumes for claims with this wish; it is kept until something of the class changes."""
        offers = self._offers.setdefault(wish.storage_class, {})
        if wish not in offers:
            provisioned = self._find_provisioned(wish)
            if self._makes(wish):
                found = unite(volume.terms for volume in self._list_fitting(wish)) if provisioned is not None else None
            else:
                fits = any(True for _ in self._list_fitting(wish))
                found = None if fits else _NOWHERE
            offers[wish] = Offer(found, provisioned)
        return offers[wish]

    def _makes(self, wish: Wish) -> bool:
        found = self.classes.get(wish.storage_class)
        return found is not None and found.provisions

    def find_choice(self, claim: VolumeClaim, sharing: str) -> Choice | None:
        """What is still to be chosen for a claim, ``sharing`` if it is several pods'; None if that decides nothing."""
        found = self.classes.get(claim.wish.storage_class)
        if claim.volume or found is None or not found.waits or Volume not in self.seen or StorageClass not in self.seen:
            return None
        if found.provisions:
            return Choice(None, sharing) if sharing else None
        if claim.selected_node is not None or self.find_kept(claim) is not None:
            return None
        pools = self._pools.setdefault(claim.wish.storage_class, {})
        pool = pools.get(claim.wish)
        if pool is None:
            pool = pools[claim.wish] = Pool(claim.wish, _name_amount(claim.wish))
            pool.volumes = tuple(sorted(self._list_fitting(claim.wish), key=Pool.rank))
        return Choice(pool, sharing)

    def copy_pools(self) -> tuple[Pool, ...]:
        """The volumes that claims choose from, as they are now; with what plans go by, and numbers for their names.

        A volume that several pools have has one number in all.
        """
        pools = [pool for found in self._pools.values() for pool in found.values()]
        known = {each.name: each for pool in pools for each in pool.volumes}
        bare = {
            name: Volume(str(number), each.terms, capacity=each.capacity)
            for number, (name, each) in enumerate(known.items())
        }
        return tuple(replace(pool, volumes=tuple(bare[each.name] for each in pool.volumes)) for pool in pools)

    def _list_fitting(self, wish: Wish) -> Iterator[Volume]:
        """The volumes that any claim with this wish could get."""
        volumes = (self.volumes[name] for name in self._volumes_of.get(wish.storage_class, ()))
        return (volume for volume in volumes if volume.may_serve(wish))

    def _find_provisioned(self, wish: Wish) -> Terms | None:
        found = self.classes.get(wish.storage_class)
        if found is None or not self._makes(wish):
            return _NOWHERE
        driver = self.drivers.get(found.provisioner)
        tells = driver is not None and driver.tells_capacity and StorageCapacity in self.seen and wish.request > 0
        return both(found.topologies, self._find_storage(wish) if tells else None)

    def _find_storage(self, wish: Wish) -> Terms | None:
        """The nodes for which enough is left: each volume alone must fit, as for kube-scheduler (hasEnoughCapacity)."""
        keys = self._capacities_of.get(wish.storage_class, ())
        enough = [each for key in keys if (each := self.capacities[key]).limit >= wish.request]
        if any(each.nodes == () for each in enough):
            return None
        return unite((NodeSelectorTerm(each.nodes),) for each in enough if each.nodes is not None)

    def find_driver(self, claim: VolumeClaim) -> str:
        """The CSI driver that attaches the volume of a claim, or will; "" for none, or if that is not known."""
        volume = self.volumes.get(claim.volume)
        if volume is not None:
            return volume.driver
        found = self.classes.get(claim.wish.storage_class)
        name = found.provisioner if found is not None else ""
        return MIGRATIONS[name].driver if name in MIGRATIONS else name

    def find_default(self) -> str:
        """The name of the class of claims that name none, "" without one (of several the first)."""
        return min((each.name for each in self.classes.values() if each.is_default), default="")

    def turn_class(self, name: str, wanted: Collection[Wish]) -> set[Wish]:
        """Something of a class has changed: the wishes that are met elsewhere now. Others than these nobody has."""
        before = self._offers.pop(name, {})
        pools = self._pools.get(name, {})
        for wish in [wish for wish in pools if wish not in wanted]:
            del pools[wish]
        if not pools:
            self._pools.pop(name, None)
        return {wish for wish, offer in before.items() if wish in wanted and self.find_offer(wish) != offer}

    def put_volume(self, volume: Volume) -> Volume | None:
        """A PersistentVolume came or changed; how it was."""
        old = self.drop_volume(volume.name)
        self.volumes[volume.name] = volume
        self._volumes_of.setdefault(volume.storage_class, {})[volume.name] = None
        if volume.claim is not None:
            self._kept_for.setdefault(volume.claim, {})[volume.name] = None
        for wish, pool in self._pools.get(volume.storage_class, {}).items():
            if volume.may_serve(wish):
                pool.put(volume)
        return old

    def drop_volume(self, name: str) -> Volume | None:
        """A PersistentVolume went; how it was."""
        old = self.volumes.pop(name, None)
        if old is not None:
            discard(self._volumes_of, old.storage_class, name)
            for wish, pool in self._pools.get(old.storage_class, {}).items():
                if old.may_serve(wish):
                    pool.drop(name)
            if old.claim is not None:
                discard(self._kept_for, old.claim, name)
        return old

    def put_capacity(self, capacity: StorageCapacity) -> None:
        """A CSIStorageCapacity came or changed."""
        self.drop_capacity(capacity.key)
        self.capacities[capacity.key] = capacity
        self._capacities_of.setdefault(capacity.storage_class, {})[capacity.key] = None

    def drop_capacity(self, key: Key) -> None:
        """A CSIStorageCapacity went."""
        old = self.capacities.pop(key, None)
        if old is not None:
            discard(self._capacities_of, old.storage_class, key)


class Attachments:
    """The limits of nodes. ``limited`` are the drivers that have one on some node: others are not counted.

    Where a driver is not installed that has to be, its limit is none at all.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, CSINode] = {}
        self.limited: Counter[str] = Counter()
        self.required: dict[str, None] = {}
        self.are_known = False
        """Whether all CSINodes are known; else no driver is missing."""

    def equip(self, node: Node, shared: Mapping[str, int]) -> Node:
        """The node with what it takes of each driver; ``shared`` are the volumes there that several pods mount."""
        found = self.nodes.get(node.name)
        limits = found.limits if found is not None else {}
        if self.required and self.are_known:
            there = found.drivers if found is not None else ()
            limits = {**limits, **{driver: 0 for driver in self.required if driver not in there}}
        amounts = {ATTACHED + driver: limit - shared.get(driver, 0) for driver, limit in limits.items()}
        return replace(node, allocatable={**node.allocatable, **amounts}) if amounts else node

    def put(self, found: CSINode) -> bool:
        """A CSINode came or changed; whether a driver has a limit now that had none, or the other way round."""
        old = self.nodes.get(found.name)
        self.nodes[found.name] = found
        return self._count(old.limits if old is not None else (), found.limits)

    def drop(self, name: str) -> bool:
        """A CSINode went; the same."""
        old = self.nodes.pop(name, None)
        return self._count(old.limits if old is not None else (), ())

    def require(self, driver: str, *, required: bool) -> bool:
        """Note whether a driver has to be where its volumes go; return whether that is new."""
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
        # Their names alone: a limit of none is one, too.
        self.limited.update(iter(more))
        self.limited.subtract(iter(less))
        self.limited = +self.limited
        return before != set(self.limited)


def at_node(name: str) -> Terms:
    """The terms of one node."""
    return (NodeSelectorTerm(fields=(Requirement("metadata.name", "In", (name,)),)),)


def unite(ways: Iterable[Terms | None]) -> Terms | None:
    """The nodes of any of these, the values of one label joined. None for all nodes, or where it is too much to say."""
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
