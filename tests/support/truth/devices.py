"""Random devices, ResourceClaims and pods with claims for small clusters. Only kube-scheduler and planner allocate."""

from collections.abc import Iterator, Sequence
from random import Random

from tests.support.builders import node
from tests.support.devices import (
    DRIVER,
    ResourceClaimBuilder,
    ResourceSliceBuilder,
    claim,
    claiming,
    counters,
    device_class,
    devices,
    taint_rule,
)
from tests.support.truth.rules import Cluster, Raw
from tests.support.truth.worlds import HOSTNAME

NAMESPACE = "default"
RESOURCE = "example.com/card"
"""An extended resource of the DeviceClass ``card``."""

_NUMA = f"{DRIVER}/numa"
_BIG = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0'
_EVEN = f'device.attributes["{DRIVER}"].numa == 0'
_TAINT = {"key": "sick", "effect": "NoSchedule"}
_TOLERATION = {"key": "sick", "operator": "Exists"}
_MEMBERS = 4


class DeviceDraws:
    """Draws clusters, each with its gang, from one random source; equal seeds give equal clusters."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._parted = random.random() < 0.25
        self._shared = not self._parted and random.random() < 0.25
        self._waiting: list[str] = []
        self._gang: list[list[str]] = []
        self._free: dict[str, list[str]] = {}

    def cluster(self) -> Cluster:
        """Draw nodes with devices, DeviceClasses, claims, and pods to which some of the devices are allocated."""
        names = [f"n{index}" for index in range(self._random.randint(2, 4))]
        nodes = [node(name).cpu(8).pods(20).label(HOSTNAME, name).raw() for name in names]
        objects = [each.raw() for name in names for each in self._slices(name)]
        pods = [self._bound(f"b{index}", names) for index in range(self._random.randint(0, 3))]
        held = [claim for index, pod in enumerate(pods) for claim in self._hold(pod, index)]
        found = [*self._classes(), *objects, *held, *self._claims(), *self._rules(names)]
        kinds = [_name_kind(each) for each in found]
        stored = [{"kind": kind, **each} for kind, each in zip(kinds, found, strict=True)]
        return Cluster([{"kind": "Node", **each} for each in nodes], pods, {NAMESPACE: {}}, stored)

    def pod(self, name: str) -> Raw:
        """Draw a pod that uses some of the claims that no running pod uses, or the extended resource."""
        if self._chance(0.15):
            return _make_pod(name, [], {RESOURCE: str(self._random.choice([1, 1, 2]))})
        claims = self._random.sample(self._waiting, self._random.choice([1, 1, 1, 2]))
        return _make_pod(name, claims if self._chance(0.97) else ["missing"])

    def gang(self) -> list[Raw]:
        """Draw the cluster's gang: members of one or two classes, each with its own claims, or one claim for all."""
        return [_make_pod(f"m{index}", claims) for index, claims in enumerate(self._gang)]

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    # --- devices -----------------------------------------------------------------------------------------------------

    def _classes(self) -> list[Raw]:
        own = f'device.driver == "{DRIVER}"'
        classes = [device_class("gpu").cel_selectors(own), device_class("big").cel_selectors(own, _BIG)]
        return [each.raw() for each in (*classes, device_class("card").cel_selectors(own).extended_resource(RESOURCE))]

    def _slices(self, name: str) -> Iterator[ResourceSliceBuilder]:
        count = self._random.randint(0, 5)
        if not count:
            return
        told = 1 + self._parted + self._chance(0.05)
        made = devices(name, count).pool(1, told)
        numa = [{"int": self._random.randint(0, 1)} for _ in range(count)]
        memory = {"memory": {"value": self._random.choice(["16Gi", "40Gi", "80Gi"])}}
        made = made.attribute("numa", *numa).each_device(capacity=memory)
        if self._chance(0.15):
            made = made.each_device(taints=[_TAINT])
        if self._shared and self._chance(0.7):
            made = made.each_device(allowMultipleAllocations=True)
        if self._parted:
            parts = [{"a": {"memory": self._random.choice([1, 2, 4])}} for _ in range(count)]
            made = made.consumed_counters(*parts)
            yield counters(name, {"a": {"memory": self._random.choice([4, 6])}}).pool(1, told)
        # Parts and shares are searched for in what holds them, so only whole devices are held.
        self._free[name] = [] if self._parted or self._shared else [f"gpu-{index}" for index in range(count)]
        yield made

    def _rules(self, names: Sequence[str]) -> list[Raw]:
        if not self._chance(0.1):
            return []
        return [taint_rule("sick", driver=DRIVER, pool=self._random.choice(names)).raw()]

    # --- claims ------------------------------------------------------------------------------------------------------

    def _claims(self) -> Iterator[Raw]:
        for index in range(3):
            self._waiting.append(f"w{index}")
            yield self._claim(f"w{index}").raw()
        kinds = [self._claim(f"k{index}") for index in range(self._random.choice([1, 1, 2]))]
        together = self._chance(0.15)
        if together:
            yield self._claim("together").raw()
        for index in range(self._random.randint(1, _MEMBERS)):
            name = f"g{index}"
            kind = self._random.choice(kinds).raw()
            yield {**kind, "metadata": {**kind["metadata"], "name": name, "uid": f"claim-{name}"}}
            self._gang.append(["together"] if together else [name])

    def _claim(self, name: str) -> ResourceClaimBuilder:
        made = claim(name)
        for index in range(self._random.choice([1, 1, 1, 2])):
            if self._chance(0.15):
                made = made.first_available(f"r{index}", self._ask(), self._ask())
            else:
                made = made.request(f"r{index}", **self._ask())
        return made.constraint(matchAttribute=_NUMA) if self._chance(0.2) else made

    def _ask(self) -> Raw:
        fields: Raw = {"deviceClassName": self._random.choice(["gpu", "gpu", "gpu", "big"])}
        if self._chance(0.2):
            fields["selectors"] = [{"cel": {"expression": self._random.choice([_BIG, _EVEN])}}]
        if self._chance(0.3):
            fields["tolerations"] = [_TOLERATION]
        if self._shared and self._chance(0.5):
            fields["capacity"] = {"requests": {"memory": self._random.choice(["1Gi", "10Gi", "33Gi"])}}
        if self._chance(0.1):
            return fields | {"allocationMode": "All"}
        return fields | {"allocationMode": "ExactCount", "count": self._random.choice([1, 1, 1, 2, 3])}

    # --- pods that run -----------------------------------------------------------------------------------------------

    def _bound(self, name: str, names: Sequence[str]) -> Raw:
        pod = _make_pod(name, [f"of-{name}"])
        pod["spec"]["nodeName"] = self._random.choice(names)
        return pod

    def _hold(self, pod: Raw, index: int) -> Iterator[Raw]:
        """Yield the claim of a running pod, or nothing if its node has no free device."""
        at, (name,) = pod["spec"]["nodeName"], [each["resourceClaimName"] for each in pod["spec"]["resourceClaims"]]
        free = self._free.get(at, [])
        if not free:
            del pod["spec"]["resourceClaims"]
            return
        taken = self._random.sample(free, self._random.randint(1, min(2, len(free))))
        self._free[at] = [each for each in free if each not in taken]
        made = claim(name).request("r", deviceClassName="gpu", allocationMode="ExactCount", count=len(taken))
        held = made.allocated(at, *taken).with_field(
            [{"resource": "pods", "name": pod["metadata"]["name"], "uid": f"bound-{index}"}], "status", "reservedFor"
        )
        yield held.raw()


def _make_pod(name: str, claims: Sequence[str], requests: Raw | None = None) -> Raw:
    container: Raw = {"name": "main", "image": "none"}
    if requests is not None:
        container["resources"] = {"requests": requests, "limits": requests}
    elif claims:
        container["resources"] = {"claims": [{"name": f"c{index}"} for index in range(len(claims))]}
    spec: Raw = {"containers": [container], "terminationGracePeriodSeconds": 0}
    if claims:
        spec["resourceClaims"] = claiming(*claims)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def _name_kind(found: Raw) -> str:
    """Return the kind of a builder's object, which has no field for it, from its UID."""
    prefixes = {"class": "DeviceClass", "slice": "ResourceSlice", "counters": "ResourceSlice", "claim": "ResourceClaim"}
    return {**prefixes, "rule": "DeviceTaintRule"}[found["metadata"]["uid"].partition("-")[0]]
