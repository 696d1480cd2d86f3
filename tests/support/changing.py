"""A small random cluster with a waiting gang, and random changes of it, one after the other.

A World has all objects of the API server, so that a new Store can be filled with them (`World.fill_store`). A theme is
the scheduling rule under test, and determines which objects may change. A change replaces one object by a random one,
or deletes it.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from itertools import count
from random import Random
from typing import Any, NamedTuple

from serried.api.device import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from serried.api.interpod import Namespace, decode_namespace
from serried.api.names import Key
from serried.api.volume import CSIDriver, CSINode, StorageCapacity, StorageClass, Volume, VolumeClaim
from serried.cluster.cache import Store
from serried.cluster.rule import KindState
from tests.support.builders import Builder, NodeBuilder, PodBuilder, node, pod, pod_group, require_valid
from tests.support.devices import DRIVER, claim, claiming, device_class, devices, taint_rule
from tests.support.volumes import csi_driver, csi_node, storage_capacity, storage_class, volume, volume_claim

ZONE = "topology.kubernetes.io/zone"
RACK = "example.com/rack"
HOSTNAME = "kubernetes.io/hostname"
GPU = "example.com/gpu"
OTHER = "other"
RESTARTS = "RestartAllContainersOnContainerExits"
DRIVER_OF_VOLUMES = "disk.example.com"

_KEYS = (ZONE, RACK, HOSTNAME)
_NODES = ("n1", "n2", "n3", "n4")
_RUNNING = tuple(f"p{index}" for index in range(6))
_CLAIMS = ("c0", "c1", "c2", "c3")
_MOST_MEMBERS = 3
_KINDS = (
    *(Namespace, VolumeClaim, Volume, StorageClass, StorageCapacity, CSIDriver, CSINode),
    *(DeviceClass, ResourceSlice, ResourceClaim, DeviceTaintRule),
)


class Theme(StrEnum):
    """The scheduling rule that rejects nodes for the gang, in addition to resources."""

    PLAIN = "room, taints and labels"
    INTERPOD = "affinity, anti-affinity and spread"
    VOLUMES = "volumes"
    DEVICES = "devices"
    EXTENDED = "extended resources"
    FEATURES = "declared features"


class Change(NamedTuple):
    """One change of an object."""

    verb: str
    kind: str
    name: str

    gone: str = ""
    """UID of the pod that was deleted, "" for none. A new pod of the same name may exist."""

    @property
    def sort(self) -> str:
        """The kind of change: ``put node``, ``drop claim`` and so on."""
        return f"{self.verb} {self.kind}"


class NamespaceBuilder(Builder):
    """Builds a Namespace."""

    def value(self) -> Namespace:
        """Return the decoded Namespace. Fail if it is malformed."""
        return require_valid(decode_namespace(self._raw))


class World:
    """All objects by kind and name. The same random source gives the same objects and the same changes."""

    def __init__(self, random: Random, theme: Theme) -> None:
        self.random = random
        self.theme = theme
        self._uids = count()
        self.objects: dict[tuple[str, str], Builder] = {}
        self.members = [self._member(index) for index in range(random.randint(1, _MOST_MEMBERS))]
        group = pod_group("g").gang(random.randint(1, len(self.members)))
        self.group = group.topology(RACK) if random.random() < 0.25 else group
        for kind in self._list_kinds():
            for name in _NAMES[kind]:
                if random.random() < _SHARES.get(kind, 0.7):
                    self.objects[kind, name] = self._draw(kind, name)

    def change(self) -> Change:
        """Replace or delete one random object, and return the change."""
        kind = self.random.choice(self._list_kinds())
        name = self.random.choice(_NAMES[kind])
        found = self.objects.pop((kind, name), None)
        before = _uid_of(found) if isinstance(found, PodBuilder) else ""
        if found is not None and self.random.random() < 0.3:
            return Change("drop", kind, name, before)
        again = self._vary(found) if isinstance(found, PodBuilder) else self._draw(kind, name)
        self.objects[kind, name] = again
        return Change("put", kind, name, before if before != _uid_of(again) else "")

    def apply(self, store: Store, change: Change) -> None:
        """Apply a change to a Store, as the watches do."""
        if change.gone:
            store.drop_pod(change.gone)
        if change.verb == "put":
            add_to_store(store, self.objects[change.kind, change.name])
        elif change.kind == "node":
            store.drop_node(change.name)
        elif change.kind != "pod":
            kind = _TYPES[change.kind]
            store.drop_object(kind, Key("default", change.name) if kind in _NAMESPACED else _full_name(change))

    def fill_store(self, store: Store) -> None:
        """Fill an empty Store with all objects."""
        for kind in _KINDS:
            store.note_state(kind, KindState.KNOWN)
        for found in self.objects.values():
            add_to_store(store, found)
        store.put_group(self.group.value())
        for member in self.members:
            store.put_pod(member.value())

    # --- the gang ---------------------------------------------------------------------------------------------------

    def _chance(self, share: float) -> bool:
        return self.random.random() < share

    def _member(self, index: int) -> PodBuilder:
        made = pod(f"m{index}").in_group("g").scheduler("serried").label("app", self.random.choice("aab"))
        made = made.cpu(self.random.choice([1, 1, 2])).created(f"2026-01-01T00:00:0{index}Z")
        return self._WANTS[self.theme](self, made, index)

    def _want_plain(self, made: PodBuilder, _: int) -> PodBuilder:
        if self._chance(0.3):
            made = made.node_selector(RACK, self.random.choice(["r1", "r2"]))
        if self._chance(0.3):
            made = made.node_affinity({"matchExpressions": [{"key": ZONE, "operator": "NotIn", "values": ["a"]}]})
        if self._chance(0.3):
            made = made.tolerating("dedicated", value="", effect="NoSchedule")
        return made.host_port(self.random.choice([8080, 8081])) if self._chance(0.4) else made

    def _want_interpod(self, made: PodBuilder, _: int) -> PodBuilder:
        for _turn in range(self.random.randint(0, 2)):
            made = self._add_term(made)
        if self._chance(0.5):
            policies = {"nodeTaintsPolicy": "Honor"} if self._chance(0.3) else {}
            least = {"minDomains": self.random.randint(1, 3)} if self._chance(0.3) else {}
            key = self.random.choice(_KEYS)
            made = made.spread({"app": self.random.choice("ab")}, key, **policies, **least)
        return made

    def _add_term(self, made: PodBuilder) -> PodBuilder:
        namespaces: dict[str, Any] = {}
        if self._chance(0.4):
            namespaces = {"namespaceSelector": self.random.choice([{}, {"matchLabels": {"team": "blue"}}])}
        labels, key = {"app": self.random.choice("abc")}, self.random.choice(_KEYS)
        return (made.anti_affinity if self._chance(0.6) else made.affinity)(labels, key, **namespaces)

    def _want_volumes(self, made: PodBuilder, _: int) -> PodBuilder:
        return made.mounting(*self.random.sample(_CLAIMS, self.random.choice([1, 1, 1, 2])))

    def _want_devices(self, made: PodBuilder, index: int) -> PodBuilder:
        if self._chance(0.2):
            return made.request(GPU, 1)
        mine = _CLAIMS[0] if self._chance(0.2) else _CLAIMS[index]
        return made.with_field(claiming(mine), "spec", "resourceClaims")

    def _want_extended(self, made: PodBuilder, _: int) -> PodBuilder:
        return made.request(GPU, self.random.randint(1, 2))

    def _want_features(self, made: PodBuilder, _: int) -> PodBuilder:
        rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}
        (container,) = made.raw()["spec"]["containers"]
        return made.with_field([{**container, "restartPolicyRules": [rule]}], "spec", "containers")

    _WANTS: Mapping[Theme, Callable[["World", PodBuilder, int], PodBuilder]] = {
        Theme.PLAIN: _want_plain,
        Theme.INTERPOD: _want_interpod,
        Theme.VOLUMES: _want_volumes,
        Theme.DEVICES: _want_devices,
        Theme.EXTENDED: _want_extended,
        Theme.FEATURES: _want_features,
    }

    # --- the other objects ------------------------------------------------------------------------------------------

    def _list_kinds(self) -> tuple[str, ...]:
        return ("node", "pod", *_THEMES[self.theme])

    def _draw(self, kind: str, name: str) -> Builder:
        return self._DRAWS[kind](self, name)

    def _node(self, name: str) -> NodeBuilder:
        # For themes about rules, most nodes have enough room, so that the rule decides.
        cpus = [1, 2, 3] if self.theme in {Theme.PLAIN, Theme.INTERPOD} else [1, 8, 8, 8]
        made = node(name).cpu(self.random.choice(cpus)).pods(self.random.choice([2, 4, 8])).label(HOSTNAME, name)
        made = made.rack(self.random.choice(["r1", "r2"])) if self._chance(0.85) else made
        made = made.label(ZONE, self.random.choice("abc")) if self._chance(0.85) else made
        made = made.taint(self.random.choice(["dedicated", "sick"])) if self._chance(0.2) else made
        made = made.cordoned() if self._chance(0.1) else made
        if self.theme in {Theme.EXTENDED, Theme.DEVICES} and self._chance(0.3):
            made = made.allocatable(GPU, self.random.randint(0, 3))
        if self.theme is Theme.FEATURES and self._chance(0.6):
            declared = [*(["Another"] if self._chance(0.7) else []), *([RESTARTS] if self._chance(0.3) else [])]
            made = made.with_field(declared, "status", "declaredFeatures")
        return made

    def _pod(self, name: str) -> PodBuilder:
        """Return a running pod, with a priority too high for an eviction."""
        made = (
            pod(name)
            .uid(f"pod-{name}-{next(self._uids)}")
            .scheduler("other")
            .priority(1000)
            .on(self.random.choice(_NODES))
        )
        made = made.label("app", self.random.choice("abc")).cpu(self.random.choice([0, 0, 1, 2]))
        if self._chance(0.2):
            made = made.namespace(OTHER)
        if self.theme is Theme.PLAIN and self._chance(0.5):
            made = made.host_port(self.random.choice([8080, 8081]))
        if self.theme is Theme.INTERPOD and self._chance(0.5):
            # The pod has the same kinds of rules as the gang's members.
            rule = self.random.choice([made.anti_affinity, made.anti_affinity, made.spread, made.affinity])
            made = rule({"app": self.random.choice("ab")}, self.random.choice(_KEYS))
        if self.theme is Theme.VOLUMES and self._chance(0.5):
            made = made.namespace("default").mounting(self.random.choice(_CLAIMS))
        if self.theme is Theme.EXTENDED and self._chance(0.5):
            made = made.request(GPU, 1)
        if self.theme is Theme.DEVICES and self._chance(0.3):
            made = made.namespace("default").with_field(claiming(self.random.choice(_CLAIMS)), "spec", "resourceClaims")
        return made

    def _vary(self, found: PodBuilder) -> PodBuilder:
        """Return a changed running pod: with another label, ending or ended, or a new pod of the same name."""
        how = self.random.random()
        if how < 0.3:
            return found.label("app", self.random.choice("abc"))
        if how < 0.5:
            return found.deleting()
        if how < 0.7:
            return found.phase(self.random.choice(["Succeeded", "Failed"]))
        return self._pod(found.raw()["metadata"]["name"])

    def _namespace(self, name: str) -> NamespaceBuilder:
        labels = {"team": self.random.choice(["red", "blue"])}
        return NamespaceBuilder({"metadata": {"name": name, "uid": f"namespace-{name}", "labels": labels}})

    def _volume(self, name: str) -> Builder:
        made = volume(name).available(self.random.choice(["static", "plain"]), self.random.choice(["1Gi", "2Gi"]))
        if self._chance(0.3):
            made = made.with_field({"driver": DRIVER_OF_VOLUMES, "volumeHandle": name}, "spec", "csi")
        if self._chance(0.1):
            made = made.label(ZONE, self.random.choice("ab"))
        if self._chance(0.1):
            made = made.claim_ref(self.random.choice(_CLAIMS))
        return made.local_to(*self.random.sample(_NODES, self.random.randint(1, 2))) if self._chance(0.7) else made

    def _volume_claim(self, name: str) -> Builder:
        asked = volume_claim(name).requesting(
            self.random.choice(["static", "static", "plain", "measured"]), self.random.choice(["1Gi", "2Gi"])
        )
        how = self.random.random()
        if how < 0.4:
            asked = asked.bound_to(self.random.choice(_NAMES["volume"]))
        elif how < 0.5:
            asked = asked.selected_node(self.random.choice(_NODES))
        return asked.read_write_once_pod() if self._chance(0.1) else asked

    def _storage_class(self, name: str) -> Builder:
        made = storage_class(name) if name == "static" else storage_class(name, DRIVER_OF_VOLUMES)
        made = made.immediate() if self._chance(0.1) else made
        return made.allowed_topology(ZONE, self.random.choice("ab")) if name == "plain" and self._chance(0.6) else made

    def _storage_capacity(self, name: str) -> Builder:
        made = storage_capacity(name, "measured", self.random.choice(["1Gi", "4Gi"]))
        return made.with_field({ZONE: self.random.choice("abc")}, "nodeTopology", "matchLabels")

    def _csi_driver(self, name: str) -> Builder:
        required = self._chance(0.3)
        made = csi_driver(name).with_field(self._chance(0.6), "spec", "storageCapacity")
        return made.with_field(required, "spec", "preventPodSchedulingIfMissing") if required else made

    def _csi_node(self, name: str) -> Builder:
        if self._chance(0.2):
            return csi_node(name).with_field([], "spec", "drivers")
        return csi_node(name, disk=self.random.choice([0, 1, 3]))

    def _slice(self, name: str) -> Builder:
        made = devices(name, self.random.randint(1, 3)).pool(1, 1 if self._chance(0.85) else 2)
        made = made.attribute("numa", {"int": self.random.randint(0, 1)}, {"int": 1})
        if self._chance(0.2):
            made = made.each_device(taints=[{"key": "sick", "effect": "NoSchedule"}])
        return made.nodes_field(allNodes=True) if self._chance(0.1) else made

    def _device_class(self, name: str) -> Builder:
        made = device_class(name).cel_selectors(f'device.driver == "{DRIVER if self._chance(0.8) else "none"}"')
        return made.extended_resource(GPU) if self._chance(0.5) else made

    def _device_claim(self, name: str) -> Builder:
        if self._chance(0.15):
            made = claim(name).request("r", allocationMode="All")
        else:
            made = claim(name, self.random.randint(1, 2))
        if self._chance(0.2):
            made = made.constraint(matchAttribute=f"{DRIVER}/numa")
        if self._chance(0.3):
            device = f"gpu-{_CLAIMS.index(name)}"
            made = made.allocated(self.random.choice(_NODES), device, consumers=self._list_consumers())
        return made

    def _list_consumers(self) -> tuple[str, ...]:
        """Return no pod, or one running pod."""
        running = [found for found in self.objects.values() if isinstance(found, PodBuilder)]
        return (_uid_of(self.random.choice(running)).removeprefix("pod-"),) if running and self._chance(0.6) else ()

    def _taint_rule(self, name: str) -> Builder:
        return taint_rule(name, **self.random.choice([{"pool": "n1"}, {"driver": DRIVER, "device": "gpu-0"}]))

    _DRAWS: Mapping[str, Callable[["World", str], Builder]] = {
        "node": _node,
        "pod": _pod,
        "namespace": _namespace,
        "volume": _volume,
        "volume claim": _volume_claim,
        "storage class": _storage_class,
        "storage capacity": _storage_capacity,
        "CSI driver": _csi_driver,
        "CSI node": _csi_node,
        "slice": _slice,
        "device class": _device_class,
        "device claim": _device_claim,
        "device taint rule": _taint_rule,
    }


_NAMES: Mapping[str, tuple[str, ...]] = {
    "node": _NODES,
    "pod": _RUNNING,
    "namespace": ("default", OTHER),
    "volume": ("v1", "v2", "v3"),
    "volume claim": _CLAIMS,
    "storage class": ("static", "plain", "measured"),
    "storage capacity": ("s1", "s2"),
    "CSI driver": (DRIVER_OF_VOLUMES,),
    "CSI node": _NODES,
    "slice": _NODES,
    "device class": ("gpu",),
    "device claim": _CLAIMS,
    "device taint rule": ("t1",),
}

_SHARES = {"volume claim": 0.9, "storage class": 0.8, "device claim": 0.9, "device taint rule": 0.2, "CSI driver": 0.4}
"""By kind: the share of the possible objects that exist at the start, if it is not 0.7."""

_THEMES: Mapping[Theme, tuple[str, ...]] = {
    Theme.PLAIN: (),
    Theme.INTERPOD: ("namespace",),
    Theme.VOLUMES: ("volume", "volume claim", "storage class", "storage capacity", "CSI driver", "CSI node"),
    Theme.DEVICES: ("slice", "device class", "device claim", "device taint rule"),
    Theme.EXTENDED: ("device class",),
    Theme.FEATURES: (),
}

_TYPES: Mapping[str, type] = {
    "namespace": Namespace,
    "volume": Volume,
    "volume claim": VolumeClaim,
    "storage class": StorageClass,
    "storage capacity": StorageCapacity,
    "CSI driver": CSIDriver,
    "CSI node": CSINode,
    "slice": ResourceSlice,
    "device class": DeviceClass,
    "device claim": ResourceClaim,
    "device taint rule": DeviceTaintRule,
}

_NAMESPACED = {VolumeClaim, StorageCapacity, ResourceClaim}


def _uid_of(builder: Builder) -> str:
    return str(builder.raw()["metadata"]["uid"])


def _full_name(change: Change) -> str:
    return f"{change.name}-0" if change.kind == "slice" else change.name


def add_to_store(store: Store, builder: Builder) -> None:
    """Decode a builder's object, and put it into a Store as its watch would."""
    match builder:
        case NodeBuilder():
            store.put_node(builder.value())
        case PodBuilder():
            store.put_pod(builder.value())
        case _:
            store.put_object(builder.value())  # type: ignore[attr-defined]
