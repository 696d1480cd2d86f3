"""Builders of PersistentVolumes and their claims."""

from typing import Any, Self

from serried.api.node import Volume, VolumeClaim, decode_volume, decode_volume_claim
from tests.support.builders import Builder, describe, usable


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


class VolumeClaimBuilder(Builder):
    """A PersistentVolumeClaim without a volume."""

    def value(self) -> VolumeClaim:
        """As Serried sees it."""
        return usable(decode_volume_claim(self._raw))

    def bound_to(self, volume: str) -> Self:
        """Bound to a PersistentVolume."""
        return self.having(volume, "spec", "volumeName")


def volume(name: str) -> VolumeBuilder:
    """A PersistentVolume that every node reaches."""
    return VolumeBuilder({"metadata": {"name": name, "uid": f"volume-{name}"}, "spec": {}})


def volume_claim(name: str) -> VolumeClaimBuilder:
    """A PersistentVolumeClaim without a volume."""
    return VolumeClaimBuilder({**describe("PersistentVolumeClaim", name), "spec": {}})
