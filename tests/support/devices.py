"""Builders of DeviceClasses, slices and claims, and what kube-scheduler says of pods that it finds no node for."""

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
from tests.support.builders import Builder, usable

DRIVER = "gpu.example.com"


def note_devices(store: Store, state: KindState = KindState.KNOWN) -> None:
    """All DeviceClasses are known, and so much of the other kinds that devices are counted by."""
    store.note_state(DeviceClass, KindState.KNOWN)
    for kind in (ResourceSlice, ResourceClaim, DeviceTaintRule):
        store.note_state(kind, state)


class DeviceClassBuilder(Builder):
    """A DeviceClass that provides the resource of its name alone."""

    def value(self) -> DeviceClass:
        """As Serried sees it."""
        return usable(decode_device_class(self._raw))

    def providing(self, resource: str) -> Self:
        """With an extended resource."""
        return self.having(resource, "spec", "extendedResourceName")

    def selecting(self, *expressions: str) -> Self:
        """With selectors."""
        return self.having([{"cel": {"expression": text}} for text in expressions], "spec", "selectors")


class ResourceSliceBuilder(Builder):
    """Devices of one node, in a pool of one slice."""

    def value(self) -> ResourceSlice:
        """As Serried sees it."""
        return usable(decode_resource_slice(self._raw))

    def of_many(self, **place: Any) -> Self:
        """Reached from other nodes: ``allNodes`` or a ``nodeSelector``."""
        spec = {name: value for name, value in self._raw["spec"].items() if name != "nodeName"}
        return self.having(spec | place, "spec")

    def each(self, **fields: Any) -> Self:
        """All devices with these fields more."""
        return self.having([{**device, **fields} for device in self._raw["spec"]["devices"]], "spec", "devices")

    def attribute(self, name: str, *values: dict[str, Any]) -> Self:
        """With an attribute; the values go round."""
        devices = [
            {**device, "attributes": {**device.get("attributes", {}), name: values[index % len(values)]}}
            for index, device in enumerate(self._raw["spec"]["devices"])
        ]
        return self.having(devices, "spec", "devices")

    def consuming(self, *parts: dict[str, dict[str, Any]]) -> Self:
        """Each device takes so much of the counters of some sets; the parts go round."""
        devices = [
            {**device, "consumesCounters": _count(parts[index % len(parts)], "counterSet")}
            for index, device in enumerate(self._raw["spec"]["devices"])
        ]
        return self.having(devices, "spec", "devices")

    def pool(self, generation: int, slices: int) -> Self:
        """In a generation of its pool, which has so many slices."""
        return self.having(generation, "spec", "pool", "generation").having(
            slices, "spec", "pool", "resourceSliceCount"
        )


def devices(node: str, count: int, first: int = 0) -> ResourceSliceBuilder:
    """The devices gpu-0, gpu-1 and so on of a node."""
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{first + index}"} for index in range(count)],
    }
    return ResourceSliceBuilder({"metadata": {"name": f"{node}-{first}", "uid": f"slice-{node}"}, "spec": spec})


def counters(node: str, sets: dict[str, dict[str, Any]]) -> ResourceSliceBuilder:
    """A slice of a node's pool that says what there is of counters, by set; the pool is to have one slice more."""
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
    """A DeviceTaintRule with a taint that keeps claims off."""

    def value(self) -> DeviceTaintRule:
        """As Serried sees it."""
        return usable(decode_device_taint_rule(self._raw))


def taint_rule(name: str, **selector: str) -> DeviceTaintRuleBuilder:
    """A rule for the devices of a selector."""
    spec = {"deviceSelector": selector, "taint": {"key": "sick", "value": "", "effect": "NoSchedule"}}
    return DeviceTaintRuleBuilder({"metadata": {"name": name, "uid": f"rule-{name}"}, "spec": spec})


class ResourceClaimBuilder(Builder):
    """A claim that holds nothing yet."""

    def value(self) -> ResourceClaim:
        """As Serried sees it."""
        return usable(decode_resource_claim(self._raw))

    def request(self, name: str, **fields: Any) -> Self:
        """With a request, of the class ``gpu`` if it does not say otherwise."""
        exactly = {"deviceClassName": "gpu", **fields}
        return self.joining({"name": name, "exactly": exactly}, "spec", "devices", "requests")

    def first_of(self, name: str, *alternatives: dict[str, Any]) -> Self:
        """With a request for the first of some alternatives that there is."""
        listed = [
            {"name": f"{name}-{index}", "deviceClassName": "gpu", **each} for index, each in enumerate(alternatives)
        ]
        return self.joining({"name": name, "firstAvailable": listed}, "spec", "devices", "requests")

    def constrained(self, **constraint: Any) -> Self:
        """With a constraint."""
        return self.joining(constraint, "spec", "devices", "constraints")

    def holding(self, node: str, *names: str, consumers: tuple[str, ...] = ()) -> Self:
        """With devices of a node, for these pods."""
        results = [{"request": "r", "driver": DRIVER, "pool": node, "device": name} for name in names]
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}}
        reserved = [{"resource": "pods", "name": name, "uid": f"pod-{name}"} for name in consumers]
        return self.having(allocation, "status", "allocation").having(reserved, "status", "reservedFor")

    def sharing(self, node: str, name: str, consumers: tuple[str, ...] = (), **consumed: str) -> Self:
        """With a share of a device."""
        made = self.holding(node, name, consumers=consumers)
        (result,) = made.raw()["status"]["allocation"]["devices"]["results"]
        share = {"shareID": f"share-{self._raw['metadata']['name']}", "consumedCapacity": consumed}
        return made.having([result | share], "status", "allocation", "devices", "results")


def claim(name: str, count: int | None = None) -> ResourceClaimBuilder:
    """A claim of the usual namespace, for so many devices of the class ``gpu`` if there is a number."""
    made = ResourceClaimBuilder({"metadata": {"namespace": "default", "name": name, "uid": f"claim-{name}"}})
    return made.request("r", count=count) if count is not None else made


def claiming(*names: str) -> list[dict[str, Any]]:
    """The field resourceClaims of a pod with these claims."""
    return [{"name": f"c{index}", "resourceClaimName": name} for index, name in enumerate(names)]


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
