"""Classes of devices (resource.k8s.io), as far as they give nodes a resource that these do not show."""

from dataclasses import dataclass

from serried.model.resources import DEVICE_CLASS_PREFIX


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass."""

    name: str

    resource: str = ""
    """spec.extendedResourceName, "" if it names none."""

    version: str = ""

    @property
    def provides(self) -> frozenset[str]:
        """The extended resources that pods can ask for to get its devices."""
        return frozenset({DEVICE_CLASS_PREFIX + self.name, self.resource}) - {""}
