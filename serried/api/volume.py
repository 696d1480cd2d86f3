"""The storage objects that decide on which nodes a pod with volumes can run: claims, volumes, classes, CSI objects.

Each kind has a decoder, such as `decode_volume`, which makes a value from JSON. The rule for volumes
(`serried.rules.volumes`) computes with the values.

Source: Kubernetes 1.37, component-helpers storage/volume (pv_helpers.go, helpers.go), and kube-scheduler's plugins
VolumeBinding, VolumeZone, VolumeRestrictions and NodeVolumeLimits. In-tree volumes count for the CSI drivers to which
they have been migrated (csi-translation-lib). A disk that a pod names without a claim is ignored.
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
    decode_or_malformed,
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
    match_nothing_if_invalid,
    read_label_selector,
    read_terms,
    selects,
)

BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
"""The annotation for the storage class, which takes precedence over the field."""

_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
_SELECTED_NODE = "volume.kubernetes.io/selected-node"
_STORAGE = "storage"

NO_CLAIMS: frozenset[str] = frozenset()

READ_WRITE_ONCE_POD = "ReadWriteOncePod"

NO_PROVISIONER = "kubernetes.io/no-provisioner"
"""The provisioner of a StorageClass without dynamic provisioning."""

ZONE_LABELS = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""The labels of a PersistentVolume that a node must have as well, with a value in common (VolumeZone).

The value is the newer name of the label, which a node may have instead.
"""


class Migration(NamedTuple):
    """The CSI driver to which an in-tree plugin has been migrated (csi-translation-lib)."""

    driver: str

    zone: str = ""
    """The node label by which the CSI driver names the zone; "" if upstream translates no zones for the driver."""


MIGRATIONS: Mapping[str, Migration] = {
    "kubernetes.io/aws-ebs": Migration("ebs.csi.aws.com", "topology.ebs.csi.aws.com/zone"),
    "kubernetes.io/azure-disk": Migration("disk.csi.azure.com"),
    "kubernetes.io/cinder": Migration("cinder.csi.openstack.org", "topology.cinder.csi.openstack.org/zone"),
    "kubernetes.io/gce-pd": Migration("pd.csi.storage.gke.io", "topology.gke.io/zone"),
    "kubernetes.io/portworx-volume": Migration("pxd.portworx.com"),
}
"""The CSI migrations that kube-scheduler assumes to be enabled (isCSIMigrationOn), by the in-tree plugin's name."""

_PLUGIN_BY_FIELD = {
    "awsElasticBlockStore": "kubernetes.io/aws-ebs",
    "azureDisk": "kubernetes.io/azure-disk",
    "cinder": "kubernetes.io/cinder",
    "gcePersistentDisk": "kubernetes.io/gce-pd",
    "portworxVolume": "kubernetes.io/portworx-volume",
}
"""The name of the in-tree plugin, by the field of a PersistentVolume's spec in which its volumes are described."""


@dataclass(frozen=True, slots=True)
class ClaimRequirements:
    """The properties that a volume must have for a PersistentVolumeClaim.

    Claims with equal requirements can use the same volumes.
    """

    storage_class: str = ""
    """The name of the StorageClass; "" for none."""

    request: int = 0
    """The requested size, in bytes."""

    access_modes: frozenset[str] = frozenset()
    volume_mode: str = "Filesystem"
    attributes_class: str = ""

    selector: tuple[Requirement, ...] = ()
    """The requirements on the labels of the volume."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume."""

    name: str

    terms: Terms | None = None
    """The terms of its node affinity, of which a node must match one; None for all nodes."""

    zones: tuple[Requirement, ...] = ()
    """The volume's labels for zone and region (ZONE_LABELS), with the values of which a node must have one."""

    storage_class: str = ""

    capacity: int = 0
    """The size, in bytes."""

    access_modes: frozenset[str] = frozenset()
    volume_mode: str = "Filesystem"
    attributes_class: str = ""
    labels: Labels = field(default_factory=dict, hash=False)

    claim: Key | None = None
    """The claim to which it is bound or pre-bound (claimRef); None if it is free."""

    claim_uid: str = ""
    """The UID of the claim to which it is bound or pre-bound; "" if any claim with that name may use it."""

    available: bool = False
    """True while the volume's phase is Available."""

    deleting: bool = False

    driver: str = ""
    """The CSI driver that attaches the volume; "" if none does, as for NFS."""

    bound_terms: Terms | None = None
    """The node affinity that kube-scheduler checks once the volume is bound; None for all nodes.

    It is ``terms``. For a migrated in-tree volume, terms with the zone label of the CSI driver are added.
    """

    version: str = ""

    def can_be_bound_to(self, wish: ClaimRequirements) -> bool:
        """Return whether the volume is free and can be bound to a claim that requires ``wish``, on some node.

        Upstream: FindMatchingVolume, without its check of the node.
        """
        return (
            self.claim is None
            and self.available
            and self.storage_class == wish.storage_class
            and self.fulfils(wish)
            and selects(wish.selector, self.labels)
            and wish.access_modes <= self.access_modes
        )

    def fulfils(self, wish: ClaimRequirements) -> bool:
        """Return whether the volume's size, mode and attributes class fulfil ``wish``, and it is not being deleted.

        That is all that upstream checks for a volume which is pre-bound to the claim.
        """
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
    """The name of the volume to which it is bound or will be bound; "" if there is none yet."""

    completed: bool = False
    """True if kube-controller-manager has completed the binding."""

    wish: ClaimRequirements = ClaimRequirements()

    selected_node: str | None = None
    """The node for which its volume is being provisioned; None until kube-scheduler has selected one."""

    lost: bool = False
    """True if the claim's volume does not exist any more (phase Lost)."""

    deleting: bool = False

    owner: str = ""
    """The UID of the object in its controlling owner reference; "" if it has none.

    For the claim of an ephemeral volume that is the pod.
    """

    version: str = ""

    @property
    def bound(self) -> bool:
        """Return whether the claim is bound, as kube-scheduler decides it (isPVCFullyBound)."""
        return bool(self.volume) and self.completed

    @property
    def is_single_pod(self) -> bool:
        """Return whether only one pod at a time may use the claim (access mode ReadWriteOncePod)."""
        return READ_WRITE_ONCE_POD in self.wish.access_modes


@dataclass(eq=False, slots=True)
class VolumePool:
    """The free PersistentVolumes that can be bound to claims with the requirements ``wish``.

    The rule for volumes (`serried.rules.volumes`) owns it and updates it when volumes change. It has one pool for each
    set of requirements, as long as there are claims with them.
    """

    wish: ClaimRequirements
    amount: str
    """The name under which Serried counts these claims: it adds 1 of it to a pod's requests for each claim of the pod.

    The name begins with CHOSEN. It is a pseudo resource, which Kubernetes does not know.
    """

    volumes: tuple[Volume, ...] = ()
    """The volumes that are free now, in the order of `VolumePool.rank`."""

    @staticmethod
    def rank(volume: Volume) -> tuple[int, float, str]:
        """Return the sort key of a volume: smaller volumes come first, then those that fewer nodes can use."""
        terms = volume.terms
        values = inf if terms is None else sum(len(each.values) for term in terms for each in term.labels)
        return volume.capacity, values, volume.name

    def put(self, volume: Volume) -> None:
        """Add a free volume that can be bound to claims with the requirements ``wish``."""
        at = bisect_left(self.volumes, self.rank(volume), key=self.rank)
        self.volumes = (*self.volumes[:at], volume, *self.volumes[at:])

    def drop(self, name: str) -> None:
        """Remove the volume with this name, if it is there."""
        self.volumes = tuple([each for each in self.volumes if each.name != name])


@dataclass(frozen=True, slots=True)
class VolumeChoice:
    """An unbound claim of an unscheduled pod: its volume is chosen together with the pod's node.

    It stands in `serried.api.pod.Shape.volumes`.
    """

    pool: VolumePool | None
    """The free volumes of which one is chosen; None if a new volume is provisioned instead."""

    claim: str = ""
    """The claim as ``namespace/name`` if several pods mount it, so that they need one volume together; else ""."""

    @property
    def amount(self) -> str:
        """The name of a pseudo resource: Serried adds 1 of it to the pod's requests, to count the claim.

        Claims with equal requirements have the same name, that of the pool of free volumes (`VolumePool.amount`). If a
        new volume is provisioned instead, the name is CHOSEN. If several pods mount the claim, ``|`` (SHARED) and the
        claim are appended, because these pods need only one volume together.
        """
        amount = self.pool.amount if self.pool is not None else CHOSEN
        return f"{amount}{SHARED}{self.claim}" if self.claim else amount


SHARED = "|"
"""Separates pool and claim in the `VolumeChoice.amount` of a claim that pods share; it cannot occur in a label."""


@dataclass(frozen=True, slots=True)
class StorageClass:
    """A StorageClass of storage.k8s.io/v1."""

    name: str
    provisioner: str = ""

    waits_for_consumer: bool = False
    """True for volumeBindingMode WaitForFirstConsumer: a claim is bound when its pod is scheduled.

    False for Immediate: a claim is bound as soon as it is created.
    """

    topologies: Terms | None = None
    """The nodes for which volumes may be provisioned (allowedTopologies); None for all."""

    is_default: bool = False
    """True if it is the default class: claims that name no class get it."""

    version: str = ""

    @property
    def provisions(self) -> bool:
        """Return whether a new volume is provisioned for a claim of the class if no free volume matches."""
        return self.provisioner not in {"", NO_PROVISIONER}


@dataclass(frozen=True, slots=True)
class StorageCapacity:
    """A CSIStorageCapacity: the size of the largest volume that can be provisioned for certain nodes."""

    key: Key
    storage_class: str = ""

    limit: int = -1
    """The size of the largest volume that can be provisioned, in bytes; -1 if the driver does not say."""

    nodes: tuple[Requirement, ...] | None = None
    """The requirements on the labels of the nodes to which ``limit`` applies; None for no node, () for all."""

    version: str = ""


@dataclass(frozen=True, slots=True)
class CSINode:
    """A CSINode: the CSI drivers on one node."""

    name: str
    limits: Mapping[str, int] = field(default_factory=dict, hash=False)
    """The number of volumes that can be attached to the node, by driver. A driver without a limit has no entry."""

    drivers: tuple[str, ...] = ()
    """The names of the installed drivers, with or without limit."""

    version: str = ""


@dataclass(frozen=True, slots=True)
class CSIDriver:
    """A CSIDriver of storage.k8s.io/v1."""

    name: str

    publishes_capacity: bool = False
    """True if the driver can provision volumes only where a CSIStorageCapacity of it is large enough (storageCapacity).

    If False, Serried assumes that the driver can provision them on all nodes.
    """

    is_required: bool = False
    """True if pods with volumes of the driver need a node where it is installed (``preventPodSchedulingIfMissing``)."""

    version: str = ""


def decode_volume(obj: object) -> Volume | Malformed:
    """Decode a PersistentVolume; the name is required."""
    return decode_or_malformed("PersistentVolume", _decode_volume, obj)


def _decode_volume(obj: Raw) -> Volume:
    metadata, spec = read_map(obj, "metadata"), read_map(obj, "spec")
    labels, claim = read_labels(metadata, "labels"), read_map(spec, "claimRef")
    terms, migration = _read_node_affinity(spec), _find_migration(spec)
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
        bound_terms=_add_csi_zones(terms, migration.zone) if terms and migration is not None else terms,
        version=read_version(obj),
    )


def _find_migration(spec: Raw) -> Migration | None:
    plugin = next((plugin for source, plugin in _PLUGIN_BY_FIELD.items() if spec.get(source) is not None), "")
    # Only managed Azure disks have a CSI driver.
    if (
        plugin == "kubernetes.io/azure-disk"
        and read_text(read_map(spec, "azureDisk"), "kind", "Managed").lower() != "managed"
    ):
        return None
    return MIGRATIONS.get(plugin)


def _add_csi_zones(terms: Terms, zone: str) -> Terms:
    """Return ``terms``, and a copy of each in which the zone label is replaced by ``zone``, the CSI driver's label.

    Upstream does the replacement (translateTopologyFromInTreeToCSI) depending on the node's CSINode
    (tryTranslatePVToCSI). Here a node may match either form.
    """
    keys = {key: zone if now.endswith("/zone") else now for key, now in ZONE_LABELS.items()} if zone else {}
    more = (
        replace(term, labels=tuple(replace(each, key=keys.get(each.key, each.key)) for each in term.labels))
        for term in terms
    )
    return tuple(dict.fromkeys((*terms, *more)))


def _read_node_affinity(spec: Raw) -> Terms | None:
    """Return the terms of a volume's node affinity. Terms on fields match no node, as upstream (CheckNodeAffinity)."""
    terms = read_terms(read_map(spec, "nodeAffinity"), "required")
    if terms is None or not any(term.fields for term in terms):
        return terms
    return tuple(replace(term, fields=tuple(replace(each, key="") for each in term.fields)) for term in terms)


def decode_volume_claim(obj: object) -> VolumeClaim | Malformed:
    """Decode a PersistentVolumeClaim; the name is required."""
    return decode_or_malformed("PersistentVolumeClaim", _decode_claim, obj)


def _decode_claim(obj: Raw) -> VolumeClaim:
    metadata, spec = read_map(obj, "metadata"), read_map(obj, "spec")
    annotations, owner = read_map(metadata, "annotations"), read_controller(obj)
    wish = ClaimRequirements(
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
    """Decode a StorageClass; the name is required."""
    return decode_or_malformed("StorageClass", _decode_storage_class, obj)


def _decode_storage_class(obj: Raw) -> StorageClass:
    topologies = read_objects(obj, "allowedTopologies")
    return StorageClass(
        read_key(obj).name,
        read_text(obj, "provisioner"),
        waits_for_consumer=read_text(obj, "volumeBindingMode") == "WaitForFirstConsumer",
        topologies=tuple(map(_read_topology, topologies)) if topologies else None,
        is_default=read_text(read_map(read_map(obj, "metadata"), "annotations"), _DEFAULT_CLASS) == "true",
        version=read_version(obj),
    )


def _read_topology(term: Raw) -> NodeSelectorTerm:
    """Return a TopologySelectorTerm as a node selector term. An empty one matches none (MatchTopologySelectorTerms)."""
    wanted = read_objects(term, "matchLabelExpressions")
    return NodeSelectorTerm(
        tuple(match_nothing_if_invalid(Requirement(read_name(e, "key"), "In", read_texts(e, "values"))) for e in wanted)
    )


def decode_storage_capacity(obj: object) -> StorageCapacity | Malformed:
    """Decode a CSIStorageCapacity; the name is required."""
    return decode_or_malformed("CSIStorageCapacity", _decode_storage_capacity, obj)


def _decode_storage_capacity(obj: Raw) -> StorageCapacity:
    # maximumVolumeSize is preferred, because it is the limit for a single volume.
    amounts = read_amounts({"said": {name: obj[name] for name in _SIZE_FIELDS if obj.get(name) is not None}}, "said")
    return StorageCapacity(
        read_key(obj),
        read_text(obj, "storageClassName"),
        limit=next((amounts[name] for name in _SIZE_FIELDS if name in amounts), -1),
        nodes=read_label_selector(obj, "nodeTopology"),
        version=read_version(obj),
    )


_SIZE_FIELDS = ("maximumVolumeSize", "capacity")


def decode_csi_node(obj: object) -> CSINode | Malformed:
    """Decode a CSINode; the name is required."""
    return decode_or_malformed("CSINode", _decode_csi_node, obj)


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
    """Decode a CSIDriver; the name is required."""
    return decode_or_malformed("CSIDriver", _decode_csi_driver, obj)


def _decode_csi_driver(obj: Raw) -> CSIDriver:
    spec = read_map(obj, "spec")
    required = read_flag(spec, "preventPodSchedulingIfMissing")
    return CSIDriver(read_key(obj).name, read_flag(spec, "storageCapacity"), required, read_version(obj))


def read_claims(pod: str, spec: Raw) -> tuple[str, ...]:
    """Return the names of the PersistentVolumeClaims that a pod mounts, including those of its ephemeral volumes.

    ``pod`` is the pod's name, ``spec`` its spec.
    """
    claims = []
    for volume in read_objects(spec, "volumes"):
        if volume.get("persistentVolumeClaim") is not None:
            claims.append(read_name(read_map(volume, "persistentVolumeClaim"), "claimName"))
        elif volume.get("ephemeral") is not None:
            claims.append(f"{pod}-{read_text(volume, 'name')}")
    return tuple(claims)


def read_own_claims(pod: str, spec: Raw) -> frozenset[str]:
    """Return the names of the claims that are created for the pod's ephemeral volumes: ``POD-VOLUME`` for each.

    ``pod`` is the pod's name, ``spec`` its spec.
    """
    volumes = read_objects(spec, "volumes")
    found = [v for v in volumes if v.get("ephemeral") is not None and v.get("persistentVolumeClaim") is None]
    return frozenset(f"{pod}-{read_text(volume, 'name')}" for volume in found) if found else NO_CLAIMS
