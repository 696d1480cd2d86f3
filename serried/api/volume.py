"""What decides on which nodes a pod's volumes are: claims, PersistentVolumes, and how a driver provisions.

Names and rules are upstream's of 1.37: component-helpers storage/volume (pv_helpers.go, helpers.go) and the plugins
VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits of kube-scheduler. In-tree volumes count for the CSI
drivers that they have moved to (csi-translation-lib); a disk that a pod names without a claim does not.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from serried.api.names import (
    Key,
    Malformed,
    Raw,
    attempt,
    is_deleting,
    read_controller,
    read_flag,
    read_key,
    read_labels,
    read_map,
    read_name,
    read_objects,
    read_text,
    read_texts,
    read_version,
)
from serried.api.resources import CHOSEN, read_amounts
from serried.api.selectors import (
    Labels,
    NodeSelectorTerm,
    Requirement,
    Terms,
    read_label_selector,
    read_terms,
    selects,
    void_if_invalid,
)

BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
"""The annotation that goes before the field."""

_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
_SELECTED_NODE = "volume.kubernetes.io/selected-node"
_STORAGE = "storage"

NO_CLAIMS: frozenset[str] = frozenset()

READ_WRITE_ONCE_POD = "ReadWriteOncePod"

NO_PROVISIONER = "kubernetes.io/no-provisioner"
"""The provisioner of a class whose volumes people make."""

ZONE_LABELS = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""The labels of a volume that must be its node's, too; and what a node may have instead of each (VolumeZone)."""


class Migration(NamedTuple):
    """Where an in-tree plugin has moved to (the plugins of csi-translation-lib)."""

    driver: str

    zone: str = ""
    """The label that nodes have of the driver in the place of their zone; "" if affinity is not translated."""


MIGRATIONS: Mapping[str, Migration] = {
    "kubernetes.io/aws-ebs": Migration("ebs.csi.aws.com", "topology.ebs.csi.aws.com/zone"),
    "kubernetes.io/azure-disk": Migration("disk.csi.azure.com"),
    "kubernetes.io/cinder": Migration("cinder.csi.openstack.org", "topology.cinder.csi.openstack.org/zone"),
    "kubernetes.io/gce-pd": Migration("pd.csi.storage.gke.io", "topology.gke.io/zone"),
    "kubernetes.io/portworx-volume": Migration("pxd.portworx.com"),
}
"""By provisioner: those for which kube-scheduler takes migration for granted (isCSIMigrationOn)."""

_SOURCES = {
    "awsElasticBlockStore": "kubernetes.io/aws-ebs",
    "azureDisk": "kubernetes.io/azure-disk",
    "cinder": "kubernetes.io/cinder",
    "gcePersistentDisk": "kubernetes.io/gce-pd",
    "portworxVolume": "kubernetes.io/portworx-volume",
}
"""The plugins by the field of a PersistentVolume."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a claim asks of the volume that it is to get. Claims with equal wishes are served by the same volumes."""

    storage_class: str = ""
    """"" for none."""

    request: int = 0
    """In bytes."""

    access_modes: frozenset[str] = frozenset()
    volume_mode: str = "Filesystem"
    attributes_class: str = ""

    selector: tuple[Requirement, ...] = ()
    """What the labels of a volume must meet."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume."""

    name: str

    terms: Terms | None = None
    """The nodes that reach it: any one term suffices; None for all nodes."""

    zones: tuple[Requirement, ...] = ()
    """Its labels of ZONE_LABELS, with the values that a node may have."""

    storage_class: str = ""

    capacity: int = 0
    """In bytes."""

    access_modes: frozenset[str] = frozenset()
    volume_mode: str = "Filesystem"
    attributes_class: str = ""
    labels: Labels = field(default_factory=dict, hash=False)

    claim: Key | None = None
    """Whose it is, or is to be."""

    claim_uid: str = ""
    """The UID of that claim, "" for any of that name."""

    available: bool = False
    """Whether its phase is Available."""

    deleting: bool = False

    driver: str = ""
    """The CSI driver that attaches it; "" for a volume of another kind."""

    bound_terms: Terms | None = None
    """As ``terms``, once it is bound: nodes may know the zones of an in-tree volume by its driver's label."""

    version: str = ""

    def may_serve(self, wish: Wish) -> bool:
        """Whether it could become the volume of any claim with this wish, wherever that is (FindMatchingVolume)."""
        return (
            self.claim is None
            and self.available
            and self.storage_class == wish.storage_class
            and self.holds(wish)
            and selects(wish.selector, self.labels)
            and wish.access_modes <= self.access_modes
        )

    def holds(self, wish: Wish) -> bool:
        """Whether it is large enough and of the kind that is asked for: all that counts once it is kept for a claim."""
        return (
            self.capacity >= wish.request
            and self.volume_mode == wish.volume_mode
            and self.attributes_class == wish.attributes_class
            and not self.deleting
        )


@dataclass(frozen=True, slots=True)
class VolumeClaim:
    """A PersistentVolumeClaim."""

    key: Key
    uid: str = ""

    volume: str = ""
    """The name of the volume that it is bound to, or is to be, "" while there is none."""

    completed: bool = False
    """Whether kube-controller-manager has bound it."""

    wish: Wish = Wish()

    selected_node: str | None = None
    """The node for which its volume is being provisioned; None before kube-scheduler has chosen one."""

    lost: bool = False
    """Whether its volume is gone."""

    deleting: bool = False

    owner: str = ""
    """The UID of its controller: of the pod, if it is the claim of an ephemeral volume."""

    version: str = ""

    @property
    def bound(self) -> bool:
        """Whether kube-scheduler takes it for bound (isPVCFullyBound)."""
        return bool(self.volume) and self.completed

    @property
    def once(self) -> bool:
        """Whether only one pod at a time may use it."""
        return READ_WRITE_ONCE_POD in self.wish.access_modes


@dataclass(eq=False, slots=True)
class Pool:
    """The volumes that claims with one wish may get. It is one object for as long as there are such claims."""

    wish: Wish
    amount: str
    """The name of the amount of them that a pod takes."""

    volumes: tuple[Volume, ...] = ()
    """As they are now, in the order of `Pool.rank`."""

    @staticmethod
    def rank(volume: Volume) -> tuple[int, float, str]:
        """The smallest goes first; of equals one that fewer nodes reach, as far as its labels tell."""
        terms = volume.terms
        values = inf if terms is None else sum(len(each.values) for term in terms for each in term.labels)
        return volume.capacity, values, volume.name

    def put(self, volume: Volume) -> None:
        """A volume came that could serve the wish."""
        at = bisect_left(self.volumes, self.rank(volume), key=self.rank)
        self.volumes = (*self.volumes[:at], volume, *self.volumes[at:])

    def drop(self, name: str) -> None:
        """It went."""
        self.volumes = tuple([each for each in self.volumes if each.name != name])


@dataclass(frozen=True, slots=True)
class Choice:
    """A claim whose volume is still to be chosen, of a pod that has no node yet."""

    pool: Pool | None
    """None if a volume is made for it."""

    claim: str = ""
    """The claim, ``namespace/name``, if several pods mount it: they get one volume. "" for a claim of one pod."""

    @property
    def amount(self) -> str:
        """The name of the amount that stands for it."""
        amount = self.pool.amount if self.pool is not None else CHOSEN
        return f"{amount}{SHARED}{self.claim}" if self.claim else amount


SHARED = "|"
"""Between the amount of a pool and the claim that several pods mount; no label has it."""


@dataclass(frozen=True, slots=True)
class StorageClass:
    """A StorageClass."""

    name: str
    provisioner: str = ""

    waits: bool = False
    """Whether a claim waits for its first consumer; else it is bound at once."""

    topologies: Terms | None = None
    """The nodes for which volumes may be provisioned; None for all."""

    is_default: bool = False
    """Whether it is that of claims that name none."""

    version: str = ""

    @property
    def provisions(self) -> bool:
        """Whether volumes are made for claims."""
        return self.provisioner not in {"", NO_PROVISIONER}


@dataclass(frozen=True, slots=True)
class StorageCapacity:
    """A CSIStorageCapacity: how large a volume may be that is provisioned for some nodes."""

    key: Key
    storage_class: str = ""

    limit: int = -1
    """In bytes; -1 if nothing is known."""

    nodes: tuple[Requirement, ...] | None = None
    """What the labels of a node must meet; None for no node."""

    version: str = ""


@dataclass(frozen=True, slots=True)
class CSINode:
    """How many volumes of each driver a node takes; no entry for a driver without limit."""

    name: str
    limits: Mapping[str, int] = field(default_factory=dict, hash=False)

    drivers: tuple[str, ...] = ()
    """The drivers that are installed there, with a limit or without."""

    version: str = ""


@dataclass(frozen=True, slots=True)
class CSIDriver:
    """A CSIDriver."""

    name: str

    tells_capacity: bool = False
    """Whether CSIStorageCapacities say what it can provision where; else it can everywhere."""

    is_required: bool = False
    """Whether no pod with its volumes goes where it is not installed (``preventPodSchedulingIfMissing``)."""

    version: str = ""


def decode_volume(obj: object) -> Volume | Malformed:
    """A PersistentVolume; the name is required."""
    return attempt("PersistentVolume", _decode_volume, obj)


def _decode_volume(obj: Raw) -> Volume:
    metadata, spec = read_map(obj, "metadata"), read_map(obj, "spec")
    labels, claim = read_labels(metadata, "labels"), read_map(spec, "claimRef")
    terms, migration = _read_reach(spec), _find_migration(spec)
    return Volume(
        read_key(obj).name,
        terms,
        zones=tuple(Requirement(key, "In", tuple(labels[key].split("__"))) for key in ZONE_LABELS if key in labels),
        storage_class=_read_class(metadata, spec),
        capacity=read_amounts(spec, "capacity").get(_STORAGE, 0),
        access_modes=frozenset(read_texts(spec, "accessModes")),
        volume_mode=read_text(spec, "volumeMode") or "Filesystem",
        attributes_class=read_text(spec, "volumeAttributesClassName"),
        labels=labels,
        claim=Key(read_text(claim, "namespace"), read_text(claim, "name")) if claim else None,
        claim_uid=read_text(claim, "uid"),
        available=read_text(read_map(obj, "status"), "phase") == "Available",
        deleting=is_deleting(obj),
        driver=migration.driver if migration is not None else read_text(read_map(spec, "csi"), "driver"),
        bound_terms=_translate(terms, migration.zone) if terms and migration is not None else terms,
        version=read_version(obj),
    )


def _find_migration(spec: Raw) -> Migration | None:
    plugin = next((plugin for source, plugin in _SOURCES.items() if spec.get(source) is not None), "")
    # An Azure disk of a kind that is no driver's is not translated.
    if (
        plugin == "kubernetes.io/azure-disk"
        and read_text(read_map(spec, "azureDisk"), "kind", "Managed").lower() != "managed"
    ):
        return None
    return MIGRATIONS.get(plugin)


def _translate(terms: Terms, zone: str) -> Terms:
    """The terms, and the same with the label that a driver has for zones (translateTopologyFromInTreeToCSI).

    Which of the two counts for a node its CSINode says (tryTranslatePVToCSI); here either will do.
    """
    keys = {key: zone if now.endswith("/zone") else now for key, now in ZONE_LABELS.items()} if zone else {}
    more = (
        replace(term, labels=tuple(replace(each, key=keys.get(each.key, each.key)) for each in term.labels))
        for term in terms
    )
    return tuple(dict.fromkeys((*terms, *more)))


def _read_reach(spec: Raw) -> Terms | None:
    """Its node affinity, for which a node has labels and no name (CheckNodeAffinity)."""
    terms = read_terms(read_map(spec, "nodeAffinity"), "required")
    if terms is None or not any(term.fields for term in terms):
        return terms
    return tuple(replace(term, fields=tuple(replace(each, key="") for each in term.fields)) for term in terms)


def decode_volume_claim(obj: object) -> VolumeClaim | Malformed:
    """A PersistentVolumeClaim; the name is required."""
    return attempt("PersistentVolumeClaim", _decode_claim, obj)


def _decode_claim(obj: Raw) -> VolumeClaim:
    metadata, spec = read_map(obj, "metadata"), read_map(obj, "spec")
    annotations, owner = read_map(metadata, "annotations"), read_controller(obj)
    wish = Wish(
        storage_class=_read_class(metadata, spec),
        request=read_amounts(read_map(spec, "resources"), "requests").get(_STORAGE, 0),
        access_modes=frozenset(read_texts(spec, "accessModes")),
        volume_mode=read_text(spec, "volumeMode") or "Filesystem",
        attributes_class=read_text(spec, "volumeAttributesClassName"),
        selector=read_label_selector(spec, "selector") or (),
    )
    return VolumeClaim(
        read_key(obj),
        uid=read_text(metadata, "uid"),
        volume=read_text(spec, "volumeName"),
        completed=_BIND_COMPLETED in annotations,
        wish=wish,
        selected_node=read_text(annotations, _SELECTED_NODE) if _SELECTED_NODE in annotations else None,
        lost=read_text(read_map(obj, "status"), "phase") == "Lost",
        deleting=is_deleting(obj),
        owner=owner.uid if owner is not None else "",
        version=read_version(obj),
    )


def _read_class(metadata: Raw, spec: Raw) -> str:
    annotations = read_map(metadata, "annotations")
    return read_text(annotations, BETA_CLASS) if BETA_CLASS in annotations else read_text(spec, "storageClassName")


def decode_storage_class(obj: object) -> StorageClass | Malformed:
    """A StorageClass; the name is required."""
    return attempt("StorageClass", _decode_storage_class, obj)


def _decode_storage_class(obj: Raw) -> StorageClass:
    topologies = read_objects(obj, "allowedTopologies")
    return StorageClass(
        read_key(obj).name,
        read_text(obj, "provisioner"),
        waits=read_text(obj, "volumeBindingMode") == "WaitForFirstConsumer",
        topologies=tuple(map(_read_topology, topologies)) if topologies else None,
        is_default=read_text(read_map(read_map(obj, "metadata"), "annotations"), _DEFAULT_CLASS) == "true",
        version=read_version(obj),
    )


def _read_topology(term: Raw) -> NodeSelectorTerm:
    """A TopologySelectorTerm: one that says nothing matches nothing (MatchTopologySelectorTerms)."""
    wanted = read_objects(term, "matchLabelExpressions")
    return NodeSelectorTerm(
        tuple(void_if_invalid(Requirement(read_name(e, "key"), "In", read_texts(e, "values"))) for e in wanted)
    )


def decode_storage_capacity(obj: object) -> StorageCapacity | Malformed:
    """A CSIStorageCapacity; the name is required."""
    return attempt("CSIStorageCapacity", _decode_storage_capacity, obj)


def _decode_storage_capacity(obj: Raw) -> StorageCapacity:
    # The larger size of one volume is the more precise one, where it is known.
    amounts = read_amounts({"said": {name: obj[name] for name in _LIMITS if obj.get(name) is not None}}, "said")
    return StorageCapacity(
        read_key(obj),
        read_text(obj, "storageClassName"),
        limit=next((amounts[name] for name in _LIMITS if name in amounts), -1),
        nodes=read_label_selector(obj, "nodeTopology"),
        version=read_version(obj),
    )


_LIMITS = ("maximumVolumeSize", "capacity")


def decode_csi_node(obj: object) -> CSINode | Malformed:
    """A CSINode; the name is required."""
    return attempt("CSINode", _decode_csi_node, obj)


def _decode_csi_node(obj: Raw) -> CSINode:
    limits: dict[str, int] = {}
    drivers = read_objects(read_map(obj, "spec"), "drivers")
    for driver in drivers:
        count = read_map(driver, "allocatable").get("count")
        if isinstance(count, int):
            limits[read_text(driver, "name")] = count
    names = tuple([read_text(driver, "name") for driver in drivers])
    return CSINode(read_key(obj).name, limits, names, read_version(obj))


def decode_csi_driver(obj: object) -> CSIDriver | Malformed:
    """A CSIDriver; the name is required."""
    return attempt("CSIDriver", _decode_csi_driver, obj)


def _decode_csi_driver(obj: Raw) -> CSIDriver:
    spec = read_map(obj, "spec")
    required = read_flag(spec, "preventPodSchedulingIfMissing")
    return CSIDriver(read_key(obj).name, read_flag(spec, "storageCapacity"), required, read_version(obj))


def read_claims(pod: str, spec: Raw) -> tuple[str, ...]:
    """The names of the claims that a pod mounts; for ephemeral volumes they are made from the name of the ``pod``."""
    claims = []
    for volume in read_objects(spec, "volumes"):
        if volume.get("persistentVolumeClaim") is not None:
            claims.append(read_name(read_map(volume, "persistentVolumeClaim"), "claimName"))
        elif volume.get("ephemeral") is not None:
            claims.append(f"{pod}-{read_text(volume, 'name')}")
    return tuple(claims)


def read_own_claims(pod: str, spec: Raw) -> frozenset[str]:
    """Those of its claims that are made for the pod, from its ephemeral volumes."""
    volumes = read_objects(spec, "volumes")
    found = [v for v in volumes if v.get("ephemeral") is not None and v.get("persistentVolumeClaim") is None]
    return frozenset(f"{pod}-{read_text(volume, 'name')}" for volume in found) if found else NO_CLAIMS
