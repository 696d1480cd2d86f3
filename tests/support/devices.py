"""Builders of DeviceClasses, and what kube-scheduler says of pods that it finds no node for."""

from typing import Self

from serried.api.node import DeviceClass, decode_device_class
from serried.api.pod import HELD
from tests.support.builders import Builder, usable


class DeviceClassBuilder(Builder):
    """A DeviceClass that provides the resource of its name alone."""

    def value(self) -> DeviceClass:
        """As Serried sees it."""
        return usable(decode_device_class(self._raw))

    def providing(self, resource: str) -> Self:
        """With an extended resource."""
        return self.having(resource, "spec", "extendedResourceName")


def device_class(name: str) -> DeviceClassBuilder:
    """A DeviceClass that names no resource."""
    return DeviceClassBuilder({"metadata": {"name": name, "uid": f"class-{name}"}, "spec": {}})


def objection(*reasons: str) -> str:
    """The text of a try that no node of twelve passed."""
    return (
        f"0/12 nodes are available: {', '.join(reasons)}. preemption: 0/12 nodes are available: 12 Preemption is not."
    )


def offer(*reasons: str) -> str:
    """The text of a try in which filter was offered a node, and held the pod."""
    return objection(f"1 {HELD}: job/train (PodGroup g) waits: NoCapacity", *reasons)
