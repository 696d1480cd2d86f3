"""Builders of PersistentVolumes, their claims, and what says where more of them can be."""

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
from tests.support.builders import Builder, describe, usable

STORAGE_API = "storage.k8s.io/v1"


class VolumeBuilder(Builder):
    """A PersistentVolume that every node reaches."""

    def value(self) -> Volume:
        """As Serried sees it."""
        return usable(decode_volume(self._raw))

    def reached_from(self, *terms: dict[str, Any]) -> Self:
        """With node affinity: raw node selector terms, of which one must match."""
        return self.having(list(terms), "spec", "nodeAffinity", "required", "nodeSelectorTerms")

    def local_to(self, *nodes: str) -> Self:
        """Reached from these nodes only, by their host names."""
        term = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
        return self.reached_from({"matchExpressions": [term]})

    def free(self, storage_class: str, size: str = "1Gi", mode: str = "ReadWriteOnce") -> Self:
        """Available to claims of a class."""
        spec = {"storageClassName": storage_class, "capacity": {"storage": size}, "accessModes": [mode]}
        built = self.having("Available", "status", "phase")
        for name, value in spec.items():
            built = built.having(value, "spec", name)
        return built

    def kept_for(self, claim: str) -> Self:
        """Kept for a claim of the usual namespace."""
        return self.having({"namespace": "default", "name": claim}, "spec", "claimRef")


class VolumeClaimBuilder(Builder):
    """A PersistentVolumeClaim without a volume."""

    def value(self) -> VolumeClaim:
        """As Serried sees it."""
        return usable(decode_volume_claim(self._raw))

    def bound_to(self, volume: str) -> Self:
        """Bound to a PersistentVolume."""
        done = {"pv.kubernetes.io/bind-completed": "yes"}
        return self.having(volume, "spec", "volumeName").having(done, "metadata", "annotations")

    def asking(self, storage_class: str, size: str = "1Gi", mode: str = "ReadWriteOnce") -> Self:
        """Of a class."""
        asked = self.having({"requests": {"storage": size}}, "spec", "resources").having([mode], "spec", "accessModes")
        return asked.having(storage_class, "spec", "storageClassName")

    def once(self) -> Self:
        """For one pod at a time."""
        return self.having(["ReadWriteOncePod"], "spec", "accessModes")

    def for_node(self, node: str) -> Self:
        """With a volume that is being provisioned for a node."""
        return self.having({"volume.kubernetes.io/selected-node": node}, "metadata", "annotations")


class StorageClassBuilder(Builder):
    """A StorageClass whose claims wait for their first consumer."""

    def value(self) -> StorageClass:
        """As Serried sees it."""
        return usable(decode_storage_class(self._raw))

    def at_once(self) -> Self:
        """Whose claims wait for no pod."""
        return self.having("Immediate", "volumeBindingMode")

    def allowing(self, key: str, *values: str) -> Self:
        """Only where nodes have a label."""
        return self.having([{"matchLabelExpressions": [{"key": key, "values": list(values)}]}], "allowedTopologies")


class StorageCapacityBuilder(Builder):
    """A CSIStorageCapacity."""

    def value(self) -> StorageCapacity:
        """As Serried sees it."""
        return usable(decode_storage_capacity(self._raw))


class CSINodeBuilder(Builder):
    """A CSINode."""

    def value(self) -> CSINode:
        """As Serried sees it."""
        return usable(decode_csi_node(self._raw))


class CSIDriverBuilder(Builder):
    """A CSIDriver."""

    def value(self) -> CSIDriver:
        """As Serried sees it."""
        return usable(decode_csi_driver(self._raw))


def volume(name: str) -> VolumeBuilder:
    """A PersistentVolume that every node reaches."""
    return VolumeBuilder({"metadata": {"name": name, "uid": f"volume-{name}"}, "spec": {}})


def volume_claim(name: str) -> VolumeClaimBuilder:
    """A PersistentVolumeClaim without a volume."""
    return VolumeClaimBuilder({**describe("PersistentVolumeClaim", name), "spec": {}})


def storage_class(name: str, provisioner: str = "kubernetes.io/no-provisioner") -> StorageClassBuilder:
    """A StorageClass whose claims wait for their first consumer; nobody makes volumes unless a provisioner is named."""
    mode = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
    return StorageClassBuilder({"metadata": {"name": name, "uid": f"class-{name}"}, **mode})


def storage_capacity(name: str, storage_class: str, size: str, **labels: str) -> StorageCapacityBuilder:
    """What a driver can provision for the nodes with these labels."""
    where = {"nodeTopology": {"matchLabels": labels}, "storageClassName": storage_class, "capacity": size}
    return StorageCapacityBuilder({**describe("CSIStorageCapacity", name), **where})


def csi_driver(name: str) -> CSIDriverBuilder:
    """A CSIDriver that tells its capacity."""
    return CSIDriverBuilder({"metadata": {"name": name, "uid": f"driver-{name}"}, "spec": {"storageCapacity": True}})


def csi_node(name: str, **limits: int) -> CSINodeBuilder:
    """How many volumes of each driver a node takes; the drivers are of example.com."""
    drivers = [{"name": f"{driver}.example.com", "allocatable": {"count": count}} for driver, count in limits.items()]
    return CSINodeBuilder({"metadata": {"name": name, "uid": f"csi-{name}"}, "spec": {"drivers": drivers}})
