"""Random volumes for small clusters, and pods that mount them. No controller runs, so claims stay as drawn."""

from collections.abc import Iterable, Iterator, Sequence
from random import Random

from tests.support.truth.rules import Cluster, Raw
from tests.support.truth.worlds import HOSTNAME, NAMESPACES, ZONE

NAMESPACE = "truth-one"

PLAIN = "csi.example.com"
"""A CSI driver that can provision volumes on every node."""

MEASURED = "measured.example.com"
"""A CSI driver that reports its storage capacity."""

EBS = "ebs.csi.aws.com"
"""The CSI driver to which an in-tree plugin's disks were migrated."""

_EBS_ZONE = "topology.ebs.csi.aws.com/zone"
_MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"

STATIC = "kubernetes.io/no-provisioner"

_SOUND = 0.9
"""The share of claims and pods without a defect."""

_BOUND = {"pv.kubernetes.io/bind-completed": "yes"}
_SELECTED = "volume.kubernetes.io/selected-node"


class StorageDraws:
    """Draws clusters from one random source; equal seeds give equal clusters."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._claims: list[str] = []
        self._usable: list[str] = []

    def cluster(self) -> Cluster:
        """Draw nodes without taints or other constraints, storage objects, and pods that use some of them."""
        nodes = [self._node(f"n{index}") for index in range(self._random.randint(2, 5))]
        storage = [*self._classes(), *self._capacities(), *self._csi_nodes(nodes), *self._volumes_and_claims()]
        pods = [self._bound(f"b{index}", nodes) for index in range(self._random.randint(0, 4))]
        return Cluster(nodes, pods, NAMESPACES, storage)

    def pod(self, name: str) -> Raw:
        """Draw a pod that mounts one or more claims. Some of them may not exist."""
        claims = self._random.sample(self._claims, self._random.choice([1, 1, 1, 2, 3]))
        return make_mounting(name, claims if self._random.random() < _SOUND else ["missing"])

    def _node(self, name: str) -> Raw:
        labels = {HOSTNAME: name}
        if self._random.random() < 0.9:
            labels[ZONE] = labels[_EBS_ZONE] = self._random.choice("aabbc")
        status = {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "20"}}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": {},
            "status": status,
        }

    def _bound(self, name: str, nodes: Sequence[Raw]) -> Raw:
        mounted = self._random.sample(self._usable, min(len(self._usable), self._random.randint(1, 2)))
        pod = make_mounting(name, mounted)
        pod["spec"]["nodeName"] = self._random.choice(nodes)["metadata"]["name"]
        return pod

    # --- what drivers say -------------------------------------------------------------------------------------------

    def _classes(self) -> Iterator[Raw]:
        for name, provisioner in (("static", STATIC), ("plain", PLAIN), ("measured", MEASURED), ("at-once", PLAIN)):
            found = _storage("StorageClass", name) | {"provisioner": provisioner}
            found["volumeBindingMode"] = "Immediate" if name == "at-once" else "WaitForFirstConsumer"
            if name == "plain" and self._random.random() < 0.6:
                zones = {"key": ZONE, "values": self._random.choice([["a"], ["b"], ["a", "b"]])}
                others = [{"key": ZONE, "values": ["c"]}, {"key": HOSTNAME, "values": ["n0", "n1"]}]
                found["allowedTopologies"] = [{"matchLabelExpressions": [zones]}, {"matchLabelExpressions": others}]
            yield found
        yield _storage("CSIDriver", PLAIN) | {"spec": {"attachRequired": True}}
        yield _storage("CSIDriver", MEASURED) | {"spec": {"storageCapacity": True}}

    def _capacities(self) -> Iterator[Raw]:
        for index in range(self._random.randint(0, 3)):
            found = _storage("CSIStorageCapacity", f"c{index}", NAMESPACE) | {"storageClassName": "measured"}
            if self._random.random() < 0.9:
                found["capacity"] = self._random.choice(["1Gi", "4Gi", "9Gi"])
            if self._random.random() < 0.3:
                found["maximumVolumeSize"] = self._random.choice(["1Gi", "4Gi"])
            where = self._random.choice([{}, {"matchLabels": {ZONE: "a"}}, {"matchLabels": {ZONE: "b"}}, None])
            yield found | ({} if where is None else {"nodeTopology": where})

    def _csi_nodes(self, nodes: Sequence[Raw]) -> Iterator[Raw]:
        for node in nodes:
            if self._random.random() < 0.7:
                drivers = []
                for name in (PLAIN, MEASURED, EBS):
                    driver: Raw = {"name": name, "nodeID": node["metadata"]["name"]}
                    if self._random.random() < 0.7:
                        driver["allocatable"] = {"count": self._random.randint(0, 4)}
                    drivers.append(driver)
                found = _storage("CSINode", node["metadata"]["name"]) | {"spec": {"drivers": drivers}}
                found["metadata"]["annotations"] = {_MIGRATED: "kubernetes.io/aws-ebs"}
                yield found

    # --- volumes and claims -----------------------------------------------------------------------------------------

    def _volumes_and_claims(self) -> Iterator[Raw]:
        for index in range(self._random.randint(0, 6)):
            yield self._volume(f"v{index}")
        for index in range(self._random.randint(3, 7)):
            yield from self._claim(f"k{index}")

    def _volume(self, name: str) -> Raw:
        spec: Raw = {
            "capacity": {"storage": self._random.choice(["1Gi", "4Gi"])},
            "accessModes": self._random.choice(
                [["ReadWriteOnce"], ["ReadWriteOnce", "ReadOnlyMany"], ["ReadWriteMany"]]
            ),
            "storageClassName": self._random.choice(["static", "static", "plain"]),
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": self._random.choice([PLAIN, MEASURED]), "volumeHandle": name},
        }
        if self._random.random() < 0.4:
            del spec["csi"]
            disk = {"awsElasticBlockStore": {"volumeID": name}}
            spec |= disk if self._random.random() < 0.5 else {"hostPath": {"path": "/none"}}
        if self._random.random() < 1 - _SOUND:
            spec["volumeMode"] = "Block"
        if self._random.random() < 0.7:
            wanted = self._random.choice(
                [(ZONE, ["a"]), (ZONE, ["a", "b"]), (HOSTNAME, ["n0"]), (HOSTNAME, ["n1", "n2"])]
            )
            term = {"matchExpressions": [{"key": wanted[0], "operator": "In", "values": wanted[1]}]}
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
        volume = _storage("PersistentVolume", name) | {"spec": spec}
        # Of an in-tree disk with a zone kube-scheduler wants the label of the driver, even where nodes have no zones.
        if self._random.random() < 0.3 and "awsElasticBlockStore" not in spec:
            volume["metadata"]["labels"] = {ZONE: self._random.choice(["a", "b", "a__b"])}
        if self._random.random() < 0.3:
            volume["metadata"].setdefault("labels", {})["disk"] = "fast"
        volume["status"] = {"phase": "Available" if self._random.random() < 0.9 else "Released"}
        return volume

    def _claim(self, name: str) -> Iterator[Raw]:
        """Yield a claim, and its volume if the claim is bound."""
        self._claims.append(name)
        spec: Raw = {
            "accessModes": [self._random.choice(["ReadWriteOnce"] * 3 + ["ReadWriteMany", "ReadWriteOncePod"])],
            "resources": {"requests": {"storage": self._random.choice(["1Gi", "1Gi", "2Gi", "5Gi"])}},
            "storageClassName": self._random.choice(["static", "plain", "measured"]),
        }
        if self._random.random() > _SOUND:
            spec["storageClassName"] = self._random.choice(["at-once", "", "nowhere"])
        claim = _storage("PersistentVolumeClaim", name, NAMESPACE) | {"spec": spec, "status": {"phase": "Pending"}}
        how = self._random.choice(["bound"] * 6 + ["waits"] * 6 + ["selected", "kept", "kept"])
        if self._random.random() > _SOUND:
            how = self._random.choice(["lost", "half", "gone"])
        if how in {"bound", "half", "kept"}:
            volume = self._volume(f"of-{name}")
            volume["spec"] |= {"storageClassName": spec["storageClassName"], "accessModes": spec["accessModes"]}
            volume["spec"]["claimRef"] = {"kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": name}
            volume["status"]["phase"] = "Available" if how == "kept" else "Bound"
            yield volume
        if how in {"bound", "lost", "half", "gone"}:
            spec["volumeName"] = f"of-{name}"
            claim["status"]["phase"] = "Lost" if how == "lost" else "Bound"
        if how in {"bound", "lost", "gone"}:
            claim["metadata"]["annotations"] = dict(_BOUND)
        if how == "bound":
            self._usable.append(name)
        if how == "selected":
            claim["metadata"]["annotations"] = {_SELECTED: self._random.choice(["n0", "n9"])}
        if how == "waits" and self._random.random() < 0.2:
            spec["selector"] = {"matchLabels": {"disk": "fast"}}
        yield claim


def _storage(kind: str, name: str, namespace: str = "") -> Raw:
    group = "v1" if kind in {"PersistentVolume", "PersistentVolumeClaim"} else "storage.k8s.io/v1"
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": group, "kind": kind, "metadata": metadata}


def make_probe(serial: str, node: str) -> list[Raw]:
    """Return one object of each storage kind, to be created after all others.

    Only a scheduler that has seen all of them knows which of the claims can be used on the node.
    """
    name, full = f"probe-{serial}", f"full-{serial}"
    driver = {"name": full, "nodeID": node, "allocatable": {"count": 0}}
    return [
        _storage("StorageClass", name) | {"provisioner": MEASURED, "volumeBindingMode": "WaitForFirstConsumer"},
        _storage("CSIStorageCapacity", name, NAMESPACE)
        | {"storageClassName": name, "capacity": "9Gi", "nodeTopology": {}},
        _storage("CSINode", node) | {"spec": {"drivers": [driver]}},
        _make_probe_volume(name) | {"spec": _PROBE_VOLUME | {"hostPath": {"path": "/none"}}},
        _make_probe_volume(full) | {"spec": _PROBE_VOLUME | {"csi": {"driver": full, "volumeHandle": full}}},
        _make_probe_claim(f"{name}-waits", {"storageClassName": name}),
        _make_probe_claim(name, {"storageClassName": "", "volumeName": name}),
        _make_probe_claim(full, {"storageClassName": "", "volumeName": full}),
    ]


_PROBE_VOLUME: Raw = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}


def _make_probe_volume(name: str) -> Raw:
    return _storage("PersistentVolume", name) | {"status": {"phase": "Bound"}}


def _make_probe_claim(name: str, more: Raw) -> Raw:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = _storage("PersistentVolumeClaim", name, NAMESPACE) | {"spec": wanted | more}
    if "volumeName" in more:
        claim["metadata"]["annotations"] = dict(_BOUND)
    return claim | {"status": {"phase": "Bound" if "volumeName" in more else "Pending"}}


def make_mounting(name: str, claims: Iterable[str]) -> Raw:
    """Return a pod that mounts these claims."""
    volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
    spec = {"containers": [{"name": "main", "image": "none"}], "volumes": volumes, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
