"""Builders of PersistentVolumes, PersistentVolumeClaims, StorageClasses, CSIStorageCapacities and CSI objects."""

from typing import Any, Self

from serried.api.volume import (
    CSIDriver,
    CSINode,
    StorageCapacity,
    StorageClass,
    Volume,
    VolumeClaim,
    decode_csi_driver,
    decode_csi_node,
    decode_storage_capacity,
    decode_storage_class,
    decode_volume,
    decode_volume_claim,
)
from tests.support.builders import Builder, describe, require_valid

STORAGE_API = "storage.k8s.io/v1"


class VolumeBuilder(Builder):
    """Builds a PersistentVolume, at first without node affinity."""

    def value(self) -> Volume:
        """Return the decoded volume. Fail if it is malformed."""
        return require_valid(decode_volume(self._raw))

    def node_affinity(self, *terms: dict[str, Any]) -> Self:
        """With node affinity by raw node selector terms, of which one must match."""
        return self.with_field(list(terms), "spec", "nodeAffinity", "required", "nodeSelectorTerms")

    def local_to(self, *nodes: str) -> Self:
        """With node affinity to these nodes, by their host names."""
        term = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
        return self.node_affinity({"matchExpressions": [term]})

    def available(self, storage_class: str, size: str = "1Gi", mode: str = "ReadWriteOnce") -> Self:
        """Available for claims of a StorageClass."""
        spec = {"storageClassName": storage_class, "capacity": {"storage": size}, "accessModes": [mode]}
        built = self.with_field("Available", "status", "phase")
        for name, value in spec.items():
            built = built.with_field(value, "spec", name)
        return built

    def claim_ref(self, claim: str) -> Self:
        """With a claimRef to a claim in the namespace "default"."""
        return self.with_field({"namespace": "default", "name": claim}, "spec", "claimRef")


class VolumeClaimBuilder(Builder):
    """Builds a PersistentVolumeClaim, at first unbound."""

    def value(self) -> VolumeClaim:
        """Return the decoded claim. Fail if it is malformed."""
        return require_valid(decode_volume_claim(self._raw))

    def bound_to(self, volume: str) -> Self:
        """Bound to a PersistentVolume."""
        done = {"pv.kubernetes.io/bind-completed": "yes"}
        return self.with_field(volume, "spec", "volumeName").with_field(done, "metadata", "annotations")

    def requesting(self, storage_class: str, size: str = "1Gi", mode: str = "ReadWriteOnce") -> Self:
        """With a StorageClass, a size and an access mode."""
        asked = self.with_field({"requests": {"storage": size}}, "spec", "resources").with_field(
            [mode], "spec", "accessModes"
        )
        return asked.with_field(storage_class, "spec", "storageClassName")

    def read_write_once_pod(self) -> Self:
        """With access mode ReadWriteOncePod."""
        return self.with_field(["ReadWriteOncePod"], "spec", "accessModes")

    def selected_node(self, node: str) -> Self:
        """With the annotation selected-node: a volume is being provisioned for this node."""
        return self.with_field({"volume.kubernetes.io/selected-node": node}, "metadata", "annotations")


class StorageClassBuilder(Builder):
    """Builds a StorageClass with volumeBindingMode WaitForFirstConsumer."""

    def value(self) -> StorageClass:
        """Return the decoded StorageClass. Fail if it is malformed."""
        return require_valid(decode_storage_class(self._raw))

    def immediate(self) -> Self:
        """With volumeBindingMode Immediate."""
        return self.with_field("Immediate", "volumeBindingMode")

    def allowed_topology(self, key: str, *values: str) -> Self:
        """With allowedTopologies: nodes with one of these label values."""
        return self.with_field([{"matchLabelExpressions": [{"key": key, "values": list(values)}]}], "allowedTopologies")


class StorageCapacityBuilder(Builder):
    """Builds a CSIStorageCapacity."""

    def value(self) -> StorageCapacity:
        """Return the decoded capacity. Fail if it is malformed."""
        return require_valid(decode_storage_capacity(self._raw))


class CSINodeBuilder(Builder):
    """Builds a CSINode."""

    def value(self) -> CSINode:
        """Return the decoded CSINode. Fail if it is malformed."""
        return require_valid(decode_csi_node(self._raw))


class CSIDriverBuilder(Builder):
    """Builds a CSIDriver."""

    def value(self) -> CSIDriver:
        """Return the decoded CSIDriver. Fail if it is malformed."""
        return require_valid(decode_csi_driver(self._raw))


def volume(name: str) -> VolumeBuilder:
    """Build a PersistentVolume without node affinity."""
    return VolumeBuilder({"metadata": {"name": name, "uid": f"volume-{name}"}, "spec": {}})


def volume_claim(name: str) -> VolumeClaimBuilder:
    """Build an unbound PersistentVolumeClaim."""
    return VolumeClaimBuilder({**describe("PersistentVolumeClaim", name), "spec": {}})


def storage_class(name: str, provisioner: str = "kubernetes.io/no-provisioner") -> StorageClassBuilder:
    """Build a StorageClass with volumeBindingMode WaitForFirstConsumer, by default without a provisioner."""
    mode = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
    return StorageClassBuilder({"metadata": {"name": name, "uid": f"class-{name}"}, **mode})


def storage_capacity(name: str, storage_class: str, size: str, **labels: str) -> StorageCapacityBuilder:
    """Build the capacity that a driver can provision for the nodes with these labels."""
    where = {"nodeTopology": {"matchLabels": labels}, "storageClassName": storage_class, "capacity": size}
    return StorageCapacityBuilder({**describe("CSIStorageCapacity", name), **where})


def csi_driver(name: str) -> CSIDriverBuilder:
    """Build a CSIDriver with storageCapacity, which publishes CSIStorageCapacities."""
    return CSIDriverBuilder({"metadata": {"name": name, "uid": f"driver-{name}"}, "spec": {"storageCapacity": True}})


def csi_node(name: str, **limits: int) -> CSINodeBuilder:
    """Build the CSINode of a node, with the volume limit of each driver. Drivers get the suffix .example.com."""
    drivers = [{"name": f"{driver}.example.com", "allocatable": {"count": count}} for driver, count in limits.items()]
    return CSINodeBuilder({"metadata": {"name": name, "uid": f"csi-{name}"}, "spec": {"drivers": drivers}})
