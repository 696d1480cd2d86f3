"""Builders of DeviceClasses, ResourceSlices, ResourceClaims and DeviceTaintRules, and messages of kube-scheduler."""

from typing import Any, Self

from serried.api.device import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
    decode_device_class,
    decode_device_taint_rule,
    decode_resource_claim,
    decode_resource_slice,
)
from serried.api.pod import HELD
from serried.cluster.cache import Store
from serried.cluster.rule import KindState
from tests.support.builders import Builder, require_valid

DRIVER = "gpu.example.com"


def mark_devices_listed(store: Store, state: KindState = KindState.KNOWN) -> None:
    """Mark all kinds of device objects in the Store as listed: DeviceClasses as known, the others as ``state``."""
    store.note_state(DeviceClass, KindState.KNOWN)
    for kind in (ResourceSlice, ResourceClaim, DeviceTaintRule):
        store.note_state(kind, state)


class DeviceClassBuilder(Builder):
    """Builds a DeviceClass, at first without an extendedResourceName."""

    def value(self) -> DeviceClass:
        """Return the decoded DeviceClass. Fail if it is malformed."""
        return require_valid(decode_device_class(self._raw))

    def extended_resource(self, resource: str) -> Self:
        """With an extendedResourceName."""
        return self.with_field(resource, "spec", "extendedResourceName")

    def cel_selectors(self, *expressions: str) -> Self:
        """With selectors by CEL expressions."""
        return self.with_field([{"cel": {"expression": text}} for text in expressions], "spec", "selectors")


class ResourceSliceBuilder(Builder):
    """Builds a ResourceSlice: at first devices of one node, in a pool of one slice."""

    def value(self) -> ResourceSlice:
        """Return the decoded slice. Fail if it is malformed."""
        return require_valid(decode_resource_slice(self._raw))

    def nodes_field(self, **place: Any) -> Self:
        """With devices of several nodes: ``allNodes`` or a ``nodeSelector``."""
        spec = {name: value for name, value in self._raw["spec"].items() if name != "nodeName"}
        return self.with_field(spec | place, "spec")

    def each_device(self, **fields: Any) -> Self:
        """With more fields in each device."""
        return self.with_field([{**device, **fields} for device in self._raw["spec"]["devices"]], "spec", "devices")

    def attribute(self, name: str, *values: dict[str, Any]) -> Self:
        """With an attribute in each device. Devices have the values in turn."""
        devices = [
            {**device, "attributes": {**device.get("attributes", {}), name: values[index % len(values)]}}
            for index, device in enumerate(self._raw["spec"]["devices"])
        ]
        return self.with_field(devices, "spec", "devices")

    def consumed_counters(self, *parts: dict[str, dict[str, Any]]) -> Self:
        """With consumed counters in each device: by counter set, then by counter. Devices have the parts in turn."""
        devices = [
            {**device, "consumesCounters": _count(parts[index % len(parts)], "counterSet")}
            for index, device in enumerate(self._raw["spec"]["devices"])
        ]
        return self.with_field(devices, "spec", "devices")

    def pool(self, generation: int, slices: int) -> Self:
        """With a generation of the pool, and the number of the pool's slices."""
        return self.with_field(generation, "spec", "pool", "generation").with_field(
            slices, "spec", "pool", "resourceSliceCount"
        )


def devices(node: str, count: int, first: int = 0) -> ResourceSliceBuilder:
    """Build a slice with ``count`` devices of a node: gpu-0, gpu-1 and so on, counted from ``first``."""
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{first + index}"} for index in range(count)],
    }
    return ResourceSliceBuilder({"metadata": {"name": f"{node}-{first}", "uid": f"slice-{node}"}, "spec": spec})


def counters(node: str, sets: dict[str, dict[str, Any]]) -> ResourceSliceBuilder:
    """Build a slice with the shared counters of a node's pool, by counter set. The devices are in a second slice."""
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 2},
        "sharedCounters": _count(sets, "name"),
    }
    return ResourceSliceBuilder({"metadata": {"name": f"{node}-counters", "uid": f"counters-{node}"}, "spec": spec})


def _count(sets: dict[str, dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [
        {key: name, "counters": {counter: {"value": str(value)} for counter, value in values.items()}}
        for name, values in sets.items()
    ]


class DeviceTaintRuleBuilder(Builder):
    """Builds a DeviceTaintRule."""

    def value(self) -> DeviceTaintRule:
        """Return the decoded rule. Fail if it is malformed."""
        return require_valid(decode_device_taint_rule(self._raw))


def taint_rule(name: str, **selector: str) -> DeviceTaintRuleBuilder:
    """Build a DeviceTaintRule with the taint NoSchedule, for the devices of a selector."""
    spec = {"deviceSelector": selector, "taint": {"key": "sick", "value": "", "effect": "NoSchedule"}}
    return DeviceTaintRuleBuilder({"metadata": {"name": name, "uid": f"rule-{name}"}, "spec": spec})


class ResourceClaimBuilder(Builder):
    """Builds a ResourceClaim, at first without an allocation."""

    def value(self) -> ResourceClaim:
        """Return the decoded claim. Fail if it is malformed."""
        return require_valid(decode_resource_claim(self._raw))

    def request(self, name: str, **fields: Any) -> Self:
        """With a request, by default of the DeviceClass ``gpu``."""
        exactly = {"deviceClassName": "gpu", **fields}
        return self.with_item({"name": name, "exactly": exactly}, "spec", "devices", "requests")

    def first_available(self, name: str, *alternatives: dict[str, Any]) -> Self:
        """With a request of firstAvailable alternatives."""
        listed = [
            {"name": f"{name}-{index}", "deviceClassName": "gpu", **each} for index, each in enumerate(alternatives)
        ]
        return self.with_item({"name": name, "firstAvailable": listed}, "spec", "devices", "requests")

    def constraint(self, **constraint: Any) -> Self:
        """With a constraint."""
        return self.with_item(constraint, "spec", "devices", "constraints")

    def allocated(self, node: str, *names: str, consumers: tuple[str, ...] = ()) -> Self:
        """With allocated devices of a node, reserved for these pods."""
        results = [{"request": "r", "driver": DRIVER, "pool": node, "device": name} for name in names]
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}}
        reserved = [{"resource": "pods", "name": name, "uid": f"pod-{name}"} for name in consumers]
        return self.with_field(allocation, "status", "allocation").with_field(reserved, "status", "reservedFor")

    def allocated_share(self, node: str, name: str, consumers: tuple[str, ...] = (), **consumed: str) -> Self:
        """With an allocated share of a device, reserved for these pods. ``consumed`` is its capacity."""
        made = self.allocated(node, name, consumers=consumers)
        (result,) = made.raw()["status"]["allocation"]["devices"]["results"]
        share = {"shareID": f"share-{self._raw['metadata']['name']}", "consumedCapacity": consumed}
        return made.with_field([result | share], "status", "allocation", "devices", "results")


def claim(name: str, count: int | None = None) -> ResourceClaimBuilder:
    """Build a claim in the namespace "default", with a request of ``count`` devices of the class ``gpu`` if given."""
    made = ResourceClaimBuilder({"metadata": {"namespace": "default", "name": name, "uid": f"claim-{name}"}})
    return made.request("r", count=count) if count is not None else made


def claiming(*names: str) -> list[dict[str, Any]]:
    """Return the field resourceClaims of a pod with these claims."""
    return [{"name": f"c{index}", "resourceClaimName": name} for index, name in enumerate(names)]


def device_class(name: str) -> DeviceClassBuilder:
    """Build a DeviceClass without selectors and extendedResourceName."""
    return DeviceClassBuilder({"metadata": {"name": name, "uid": f"class-{name}"}, "spec": {}})


def rejection_message(*reasons: str) -> str:
    """Return kube-scheduler's message after an attempt in which none of twelve nodes passed."""
    return (
        f"0/12 nodes are available: {', '.join(reasons)}. preemption: 0/12 nodes are available: 12 Preemption is not."
    )


def held_message(*reasons: str) -> str:
    """Return kube-scheduler's message after an attempt in which the extender held the pod on one node."""
    return rejection_message(f"1 {HELD}: job/train (PodGroup g) waits: NoCapacity", *reasons)
