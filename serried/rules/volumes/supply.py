"""The storage of the cluster: on which nodes a volume claim can get a volume (`Supply`), and volume limits of nodes.

The rules are those of VolumeBinding in kube-scheduler 1.37 (binder.go: checkBoundClaims, findMatchingVolumes,
checkVolumeProvisions).

The limit of a node for volumes of a CSI driver (NodeVolumeLimits) is expressed like a resource of the node
(`Attachments`). A claim of one pod requests 1 of it. A volume that several pods share counts once per node: on nodes
where it is attached already it is subtracted from the limit, so further pods request nothing there. The pods that share
it also request a pseudo resource, i.e. a name that Serried adds to requests and that plans count like a resource. It is
named after the claim, so plans know on which nodes the volume is not attached yet. Serried does not see volumes that
are attached without a pod on the node; kube-scheduler's rejections show them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from serried.api.names import Key
from serried.api.node import Node
from serried.api.resources import ATTACHED, CHOSEN
from serried.api.selectors import MAX_TERMS, NodeSelectorTerm, Requirement, Terms, has_requirements, intersect_terms
from serried.api.volume import (
    MIGRATIONS,
    ClaimRequirements,
    CSIDriver,
    CSINode,
    StorageCapacity,
    StorageClass,
    Volume,
    VolumeChoice,
    VolumeClaim,
    VolumePool,
)
from serried.cluster.index import discard

_NOWHERE: Terms = ()


class VolumeNodes(NamedTuple):
    """The nodes on which unbound claims with the same requirements can get a volume, as node selector terms.

    In both fields None means all nodes, () means no node.
    """

    existing: Terms | None
    """The nodes that reach an existing PersistentVolume that fits and is free.

    If the StorageClass cannot provision volumes, the value is only None (some volume fits) or () (none does). Then
    plans choose a volume by `VolumeChoices`, which knows the nodes of each.
    """

    provisioned: Terms | None
    """The nodes for which the driver can provision a volume."""


@dataclass(frozen=True, slots=True)
class AllowedNodes:
    """The nodes on which a pod may be because of one of its volume claims."""

    terms: Terms | None = None
    """The node selector terms of these nodes; None for all nodes. Not valid if there is an ``obstacle``."""

    obstacle: str = ""
    """A phrase why the pod may be on no node; "" if it may be on some."""

    by_member: bool = False
    """True if the obstacle is another member of the gang that mounts the claim, too, and is older."""


class Supply:
    """The storage of the cluster: PersistentVolumes, StorageClasses, CSI drivers and their storage capacity.

    ``seen`` are the kinds of which all objects are known. No node is excluded because an object of another kind is
    missing: it may exist. What a claim requires of its volume (class, size, access modes and the like) is its
    `ClaimRequirements`.
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
        self._volume_nodes: dict[str, dict[ClaimRequirements, VolumeNodes]] = {}
        self._pools: dict[str, dict[ClaimRequirements, VolumePool]] = {}

    def find_allowed_nodes(self, claim: VolumeClaim, *, shared: bool) -> AllowedNodes:
        """Return the nodes on which a pod may be because it mounts this claim.

        ``shared`` is True if several pods mount it. Then the claim's annotation with the selected node is ignored,
        because kube-scheduler wrote it for one of these pods.
        """
        name = claim.key.name
        if claim.lost:
            return AllowedNodes(obstacle=f"volume claim {name} has lost its PersistentVolume {claim.volume}")
        if claim.deleting:
            return AllowedNodes(obstacle=f"volume claim {name} is being deleted")
        if claim.bound:
            return self._find_bound(claim)
        if claim.volume:
            return AllowedNodes(obstacle=f"volume claim {name} is not bound to PersistentVolume {claim.volume} yet")
        one = replace(claim, selected_node=None) if shared else claim
        return self._find_unbound(one) if StorageClass in self.seen else AllowedNodes()

    def _find_bound(self, claim: VolumeClaim) -> AllowedNodes:
        volume = self.volumes.get(claim.volume)
        if volume is not None:
            return AllowedNodes(volume.bound_terms)
        missing = Volume in self.seen
        text = f"volume claim {claim.key.name} is bound to PersistentVolume {claim.volume}, which does not exist"
        return AllowedNodes(obstacle=text if missing else "")

    def _find_unbound(self, claim: VolumeClaim) -> AllowedNodes:
        name, wanted = claim.key.name, claim.wish.storage_class
        found = self.classes.get(wanted)
        if found is None:
            why = f"its StorageClass {wanted} does not exist" if wanted else "the claim names no StorageClass"
            return AllowedNodes(obstacle=f"volume claim {name} is not bound, and {why}")
        if not found.waits_for_consumer:
            return AllowedNodes(
                obstacle=(
                    f"volume claim {name} is not bound yet, and StorageClass {wanted} does not wait for the first "
                    "consumer"
                )
            )
        if Volume not in self.seen:
            return AllowedNodes()
        terms = self._find_delayed(claim)
        if terms == _NOWHERE:
            means = "no driver has storage for the claim" if found.provisions else f"StorageClass {wanted} creates none"
            return AllowedNodes(obstacle=f"no PersistentVolume fits volume claim {name}, and {means}")
        return AllowedNodes(terms)

    def _find_delayed(self, claim: VolumeClaim) -> Terms | None:
        """Return the nodes on which kube-scheduler would bind a volume to the claim, or have one provisioned.

        The claim waits for its first consumer (WaitForFirstConsumer). None for all nodes, () for no node.
        """
        offer = self.find_volume_nodes(claim.wish)
        if claim.selected_node is not None:
            return intersect_terms(offer.provisioned, at_node(claim.selected_node))
        kept = self.find_reserved(claim)
        return unite([kept.terms if kept is not None else offer.existing, offer.provisioned])

    def find_reserved(self, claim: VolumeClaim) -> Volume | None:
        """Return the PersistentVolume that is reserved for an unbound claim (claimRef) and fits it; None without one.

        If there is one, kube-scheduler considers no other existing volume for the claim.
        """
        kept = (self.volumes[name] for name in self._reserved_for.get(claim.key, ()))
        own = (volume for volume in kept if volume.claim_uid in {"", claim.uid} and volume.fulfils(claim.wish))
        return next((volume for volume in own if volume.storage_class == claim.wish.storage_class), None)

    def find_volume_nodes(self, wish: ClaimRequirements) -> VolumeNodes:
        """Return the nodes on which claims with these requirements can get a volume.

        The result is cached until `update_class` is called for the StorageClass.
        """
        offers = self._volume_nodes.setdefault(wish.storage_class, {})
        if wish not in offers:
            provisioned = self._find_provisioned(wish)
            if self._is_provisioned(wish):
                found = unite(volume.terms for volume in self._list_fitting(wish)) if provisioned is not None else None
            else:
                fits = any(True for _ in self._list_fitting(wish))
                found = None if fits else _NOWHERE
            offers[wish] = VolumeNodes(found, provisioned)
        return offers[wish]

    def _is_provisioned(self, wish: ClaimRequirements) -> bool:
        found = self.classes.get(wish.storage_class)
        return found is not None and found.provisions

    def find_choice(self, claim: VolumeClaim, sharing: str) -> VolumeChoice | None:
        """Return the volumes from which a plan has to choose one for a claim.

        Return None if the claim has a volume, if kube-scheduler does not choose one for it, or if only one pod mounts
        it and its volume can be provisioned, so that it takes no volume away from other claims. Also return None if a
        volume is reserved for the claim, or its node is selected, and its volume cannot be provisioned; and until
        StorageClasses and PersistentVolumes are listed. ``sharing`` is the claim as ``namespace/name`` if several pods
        mount it, else "".
        """
        found = self.classes.get(claim.wish.storage_class)
        if (
            claim.volume
            or found is None
            or not found.waits_for_consumer
            or Volume not in self.seen
            or StorageClass not in self.seen
        ):
            return None
        if found.provisions:
            return VolumeChoice(None, sharing) if sharing else None
        if claim.selected_node is not None or self.find_reserved(claim) is not None:
            return None
        pools = self._pools.setdefault(claim.wish.storage_class, {})
        pool = pools.get(claim.wish)
        if pool is None:
            pool = pools[claim.wish] = VolumePool(claim.wish, _name_amount(claim.wish))
            pool.volumes = tuple(sorted(self._list_fitting(claim.wish), key=VolumePool.rank))
        return VolumeChoice(pool, sharing)

    def copy_pools(self) -> tuple[VolumePool, ...]:
        """Return copies of the pools (the volumes that fit claims with equal requirements), to be written to a file.

        The file is a recorded snapshot. Volumes have numbers as names, and only the fields that plans use. A volume in
        several pools has one number.
        """
        pools = [pool for found in self._pools.values() for pool in found.values()]
        known = {each.name: each for pool in pools for each in pool.volumes}
        bare = {
            name: Volume(str(number), each.terms, capacity=each.capacity)
            for number, (name, each) in enumerate(known.items())
        }
        return tuple(replace(pool, volumes=tuple(bare[each.name] for each in pool.volumes)) for pool in pools)

    def _list_fitting(self, wish: ClaimRequirements) -> Iterator[Volume]:
        """Yield the PersistentVolumes that a claim with these requirements could get, and that no claimRef reserves."""
        volumes = (self.volumes[name] for name in self._volumes_of.get(wish.storage_class, ()))
        return (volume for volume in volumes if volume.can_be_bound_to(wish))

    def _find_provisioned(self, wish: ClaimRequirements) -> Terms | None:
        found = self.classes.get(wish.storage_class)
        if found is None or not self._is_provisioned(wish):
            return _NOWHERE
        driver = self.drivers.get(found.provisioner)
        tells = driver is not None and driver.publishes_capacity and StorageCapacity in self.seen and wish.request > 0
        return intersect_terms(found.topologies, self._find_storage(wish) if tells else None)

    def _find_storage(self, wish: ClaimRequirements) -> Terms | None:
        """Return the nodes for which the driver reports enough storage capacity; None for all nodes.

        As in kube-scheduler each volume is checked alone (hasEnoughCapacity), even if a pod needs several.
        """
        keys = self._capacities_of.get(wish.storage_class, ())
        enough = [each for key in keys if (each := self.capacities[key]).limit >= wish.request]
        if any(each.nodes == () for each in enough):
            return None
        return unite((NodeSelectorTerm(each.nodes),) for each in enough if each.nodes is not None)

    def find_driver(self, claim: VolumeClaim) -> str:
        """Return the name of the CSI driver of a claim's volume, or of the volume that its StorageClass will provision.

        "" if the volume has no driver, or the StorageClass is unknown. An in-tree plugin counts as the CSI driver that
        replaces it. Any other provisioner is returned by its own name, even if it is no CSI driver.
        """
        volume = self.volumes.get(claim.volume)
        if volume is not None:
            return volume.driver
        found = self.classes.get(claim.wish.storage_class)
        name = found.provisioner if found is not None else ""
        return MIGRATIONS[name].driver if name in MIGRATIONS else name

    def find_default(self) -> str:
        """Return the name of the default StorageClass; "" without one. Among several it is the first by name."""
        return min((each.name for each in self.classes.values() if each.is_default), default="")

    def update_class(self, name: str, wanted: Collection[ClaimRequirements]) -> set[ClaimRequirements]:
        """Discard the cached results for a StorageClass, because volumes or capacity have changed.

        ``wanted`` are the requirements of all its unbound claims. Return those among them of which the cached result
        (nodes with a volume, or where one can be made) differs now. Requirements without a cached result are not
        returned. Pools of volumes for requirements that are not in ``wanted`` are removed.
        """
        before = self._volume_nodes.pop(name, {})
        pools = self._pools.get(name, {})
        for wish in [wish for wish in pools if wish not in wanted]:
            del pools[wish]
        if not pools:
            self._pools.pop(name, None)
        return {wish for wish, offer in before.items() if wish in wanted and self.find_volume_nodes(wish) != offer}

    def put_volume(self, volume: Volume) -> Volume | None:
        """Add or replace a PersistentVolume. Return the previous one; None if it is new."""
        old = self.drop_volume(volume.name)
        self.volumes[volume.name] = volume
        self._volumes_of.setdefault(volume.storage_class, {})[volume.name] = None
        if volume.claim is not None:
            self._reserved_for.setdefault(volume.claim, {})[volume.name] = None
        for wish, pool in self._pools.get(volume.storage_class, {}).items():
            if volume.can_be_bound_to(wish):
                pool.put(volume)
        return old

    def drop_volume(self, name: str) -> Volume | None:
        """Remove a PersistentVolume. Return it; None if it was unknown."""
        old = self.volumes.pop(name, None)
        if old is not None:
            discard(self._volumes_of, old.storage_class, name)
            for wish, pool in self._pools.get(old.storage_class, {}).items():
                if old.can_be_bound_to(wish):
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
    """The volume limits of nodes, by CSI driver (CSINode).

    ``limited`` is the number of nodes with a limit, by driver; drivers that are not in it have no limit anywhere. The
    drivers in ``required`` are those whose volumes need a node that has the driver: on a node without it the limit is
    0.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, CSINode] = {}
        self.limited: Counter[str] = Counter()
        self.required: dict[str, None] = {}
        self.are_known = False
        """True if all CSINodes are known. Until then no driver counts as missing."""

    def add_limits(self, node: Node, shared: Mapping[str, int]) -> Node:
        """Return the node with its volume limit for each driver as an allocatable amount.

        ``shared`` is the number of attached volumes, by driver, that several pods share. They are subtracted here,
        because no pod requests them.
        """
        found = self.nodes.get(node.name)
        limits = found.limits if found is not None else {}
        if self.required and self.are_known:
            there = found.drivers if found is not None else ()
            limits = {**limits, **{driver: 0 for driver in self.required if driver not in there}}
        amounts = {ATTACHED + driver: limit - shared.get(driver, 0) for driver, limit in limits.items()}
        return replace(node, allocatable={**node.allocatable, **amounts}) if amounts else node

    def put(self, found: CSINode) -> bool:
        """Add or replace a CSINode. Return whether the set of drivers that have a limit on some node has changed."""
        old = self.nodes.get(found.name)
        self.nodes[found.name] = found
        return self._count(old.limits if old is not None else (), found.limits)

    def drop(self, name: str) -> bool:
        """Remove a CSINode. Return whether the set of drivers that have a limit on some node has changed."""
        old = self.nodes.pop(name, None)
        return self._count(old.limits if old is not None else (), ())

    def require(self, driver: str, *, required: bool) -> bool:
        """Set whether pods with volumes of a driver need a node that has the driver (a CSINode lists it).

        Return whether that has changed.
        """
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
    """Return node selector terms that match one node, by its name."""
    return (NodeSelectorTerm(fields=(Requirement("metadata.name", "In", (name,)),)),)


def unite(ways: Iterable[Terms | None]) -> Terms | None:
    """Return node selector terms for the nodes that match at least one of ``ways``.

    None, which means all nodes, if one of them is None, or if the result would have more than MAX_TERMS terms.
    """
    values: dict[str, dict[str, None]] = {}
    others: dict[NodeSelectorTerm, None] = {}
    for terms in ways:
        if terms is None:
            return None
        for term in filter(has_requirements, terms):
            if not term.fields and len(term.labels) == 1 and term.labels[0].operator == "In":
                values.setdefault(term.labels[0].key, {}).update(dict.fromkeys(term.labels[0].values))
            else:
                others[term] = None
    joined = [NodeSelectorTerm((Requirement(key, "In", tuple(sorted(values[key]))),)) for key in sorted(values)]
    united = (*joined, *sorted(others, key=repr))
    return united if len(united) <= MAX_TERMS else None


def _name_amount(wish: ClaimRequirements) -> str:
    asked = (f"{each.key} {each.operator} ({','.join(each.values)})" for each in wish.selector)
    kind = (*sorted(wish.access_modes), wish.volume_mode, wish.attributes_class, *asked)
    return f"{CHOSEN}{wish.storage_class}/{wish.request}/{'/'.join(filter(None, kind))}"
