"""Which nodes kube-scheduler finds for random pods with volumes, and which ones the planner would take."""

import time
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
import yaml

from bench.cluster.api import ApiError
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
from tests.e2e.truth.stage import TruthStage
from tests.support.builders import usable
from tests.support.cluster_stage import eventually
from tests.support.truth.ours import Ours, read_pod
from tests.support.truth.rules import Cluster, Raw
from tests.support.truth.worlds import HOSTNAME, RACK, ZONE, Draws

NAMESPACE = "truth-one"
PODS_OF_A_CLUSTER = 15
SHORT = range(3)
LONG = range(100, 130)
MOST_SHOWN = 3

PATHS = {
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "CSIDriver": "/apis/storage.k8s.io/v1/csidrivers",
    "CSINode": "/apis/storage.k8s.io/v1/csinodes",
    "CSIStorageCapacity": f"/apis/storage.k8s.io/v1/namespaces/{NAMESPACE}/csistoragecapacities",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "PersistentVolumeClaim": f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims",
}
"""In the order in which they are created."""

DECODERS: dict[str, Any] = {
    "StorageClass": decode_storage_class,
    "CSIDriver": decode_csi_driver,
    "CSINode": decode_csi_node,
    "CSIStorageCapacity": decode_storage_capacity,
    "PersistentVolume": decode_volume,
    "PersistentVolumeClaim": decode_volume_claim,
}

MADE, TOLD = "made.example.com", "told.example.com"
_LATE = "WaitForFirstConsumer"
CLASSES: Sequence[Raw] = [
    {"metadata": {"name": "chosen"}, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": _LATE},
    {"metadata": {"name": "made"}, "provisioner": MADE, "volumeBindingMode": _LATE},
    {"metadata": {"name": "told"}, "provisioner": TOLD, "volumeBindingMode": _LATE},
    {
        "metadata": {"name": "zoned"}, "provisioner": MADE, "volumeBindingMode": _LATE,
        "allowedTopologies": [{"matchLabelExpressions": [{"key": ZONE, "values": ["a", "b"]}]},
                              {"matchLabelExpressions": [{"key": RACK, "values": ["r1"]},
                                                         {"key": ZONE, "values": ["c"]}]}],
    },
    {"metadata": {"name": "now"}, "provisioner": MADE, "volumeBindingMode": "Immediate"},
]  # fmt: skip
MODES = ("ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod")


class Storage:
    """Draws what there is of storage in one cluster."""

    def __init__(self, random: Random, nodes: Sequence[Raw]) -> None:
        self.random = random
        self.hosts = [node["metadata"]["name"] for node in nodes]
        self.claims = [f"c{index}" for index in range(10)]
        self.bound: dict[str, str] = {}
        self.shared: set[str] = set()
        """The claims that pods use which are there, but for those that only one may use."""

    def draw(self) -> list[tuple[str, Raw]]:
        """Objects with their kinds."""
        drivers = [{"metadata": {"name": TOLD}, "spec": {"storageCapacity": True, "attachRequired": True}}]
        found = [("StorageClass", each) for each in CLASSES] + [("CSIDriver", each) for each in drivers]
        found += [("CSINode", self._limit(host)) for host in self.hosts if self._is(0.5)]
        found += [("CSIStorageCapacity", self._capacity(f"s{index}")) for index in range(self.random.randint(0, 3))]
        found += [("PersistentVolume", self._volume(f"v{index}")) for index in range(self.random.randint(0, 6))]
        for name in self.claims:
            found += self._claim(name)
        return found

    def pod(self, name: str) -> Raw:
        """A pod that mounts some claims, and maybe one that does not exist."""
        mounted = self.random.sample([*self.claims, *self.claims, "nowhere"], self.random.choice([1, 1, 2]))
        return _mounting(name, mounted)

    def users(self) -> list[Raw]:
        """Pods that run with bound claims."""
        found = []
        for index, host in enumerate(self.hosts):
            if self.bound and self._is(0.6):
                claim = self.random.choice(list(self.bound))
                pod = _mounting(f"u{index}", [claim])
                self.shared |= {claim} if self.bound[claim] != "ReadWriteOncePod" else set()
                found.append({**pod, "spec": {**pod["spec"], "nodeName": host}})
        return found

    def _is(self, share: float) -> bool:
        return self.random.random() < share

    def _limit(self, host: str) -> Raw:
        count = {"allocatable": {"count": self.random.randint(0, 2)}} if self._is(0.8) else {}
        driver = {"name": MADE, "nodeID": host, "topologyKeys": None, **count}
        return {"metadata": {"name": host}, "spec": {"drivers": [driver]}}

    def _capacity(self, name: str) -> Raw:
        elsewhere = {"matchExpressions": [{"key": ZONE, "operator": "NotIn", "values": ["a"]}]}
        where = self.random.choice([{"matchLabels": {ZONE: "a"}}, {"matchLabels": {RACK: "r1"}}, elsewhere, {}, None])
        size = self.random.choice(["1Gi", "3Gi"])
        found: Raw = {"metadata": {"name": name}, "storageClassName": "told", "capacity": size}
        found |= {"nodeTopology": where} if where is not None else {}
        return found | ({"maximumVolumeSize": "1Gi"} if self._is(0.3) else {})

    def _volume(self, name: str) -> Raw:
        labels = {"kind": self.random.choice(["ssd", "disk"])}
        spec: Raw = {
            "capacity": {"storage": self.random.choice(["1Gi", "2Gi"])},
            "accessModes": self.random.choice(
                [["ReadWriteOnce"], ["ReadWriteOnce", "ReadWriteMany"], ["ReadWriteOncePod"]]
            ),
            "storageClassName": self.random.choice(["chosen", "chosen", "made"]),
            "csi": {"driver": MADE, "volumeHandle": name},
            "persistentVolumeReclaimPolicy": "Retain",
        }
        if self._is(0.2):
            spec["volumeMode"] = "Block"
        if self._is(0.8):
            key, values = self.random.choice(
                [(ZONE, ["a"]), (ZONE, ["b", "c"]), (RACK, ["r1"]), (HOSTNAME, [self.random.choice(self.hosts)])]
            )
            term = {"matchExpressions": [{"key": key, "operator": "In", "values": values}]}
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
        if self._is(0.15):
            spec["claimRef"] = {"namespace": NAMESPACE, "name": self.random.choice(self.claims)}
        return {"metadata": {"name": name, "labels": labels}, "spec": spec}

    def _claim(self, name: str) -> list[tuple[str, Raw]]:
        spec: Raw = {
            "accessModes": [self.random.choice(MODES)],
            "resources": {"requests": {"storage": self.random.choice(["1Gi", "2Gi"])}},
            "storageClassName": self.random.choice([each["metadata"]["name"] for each in CLASSES] + ["", "unknown"]),
        }
        metadata: Raw = {"name": name, "annotations": {}}
        if self._is(0.4):
            return self._bind(name, metadata, spec)
        if self._is(0.2):
            spec["selector"] = {"matchLabels": {"kind": "ssd"}}
        if self._is(0.1) and spec["storageClassName"] in {"made", "told", "zoned"}:
            metadata["annotations"]["volume.kubernetes.io/selected-node"] = self.random.choice(self.hosts)
        return [("PersistentVolumeClaim", {"metadata": metadata, "spec": spec})]

    def _bind(self, name: str, metadata: Raw, spec: Raw) -> list[tuple[str, Raw]]:
        """A claim with its volume, which may be gone."""
        volume = self._volume(f"of-{name}")
        same = {"storageClassName": spec["storageClassName"], "accessModes": spec["accessModes"]}
        volume["spec"] |= same | {"capacity": {"storage": "2Gi"}, "claimRef": {"namespace": NAMESPACE, "name": name}}
        volume["spec"].pop("volumeMode", None)
        if self._is(0.4):
            volume["metadata"]["labels"][ZONE] = self.random.choice(["a", "a__b", "c"])
        spec["volumeName"] = f"of-{name}"
        if self._is(0.15):
            return [("PersistentVolumeClaim", {"metadata": metadata, "spec": spec})]
        self.bound[name] = spec["accessModes"][0]
        return [("PersistentVolume", volume), ("PersistentVolumeClaim", {"metadata": metadata, "spec": spec})]


def _mounting(name: str, claims: Sequence[str]) -> Raw:
    volumes = [{"name": f"v{at}", "persistentVolumeClaim": {"claimName": claim}} for at, claim in enumerate(claims)]
    tolerations = [{"operator": "Exists"}]
    spec = {"containers": [{"name": "main", "image": "none"}], "volumes": volumes, "tolerations": tolerations}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


class Stored:
    """The objects of storage in the API server, for one cluster."""

    def __init__(self, api: Any) -> None:
        self._api = api

    def put(self, objects: Sequence[tuple[str, Raw]]) -> None:
        """Create them; return when kube-controller-manager has said what it says of them."""
        for kind, obj in objects:
            try:
                self._api.post(PATHS[kind], obj)
            except ApiError as error:
                assert error.status == 422, error  # noqa: PT017 - others are not expected
        before: list[Any] = []

        def is_settled() -> bool:
            nonlocal before
            time.sleep(1.0)
            now = [self._api.get(path)["items"] for path in PATHS.values()]
            settled = now == before
            before = now
            return settled

        eventually("storage that does not change", is_settled)

    def read(self) -> list[tuple[str, Raw]]:
        return [(kind, obj) for kind, path in PATHS.items() for obj in self._api.get(path)["items"]]

    def clear(self) -> None:
        for path in reversed(PATHS.values()):
            for obj in self._api.get(path)["items"]:
                name = f"{path}/{obj['metadata']['name']}"
                if obj["metadata"].get("finalizers"):
                    self._api.patch(name, {"metadata": {"finalizers": None}})
                self._api.delete(name)
        eventually("no storage", lambda: not self._list_left())

    def _list_left(self) -> list[Raw]:
        left = [(path, obj) for path in PATHS.values() for obj in self._api.get(path)["items"]]
        for path, obj in left:
            if obj["metadata"].get("finalizers"):
                self._api.patch(f"{path}/{obj['metadata']['name']}", {"metadata": {"finalizers": None}})
        return [obj for _, obj in left]


class OursWithStorage(Ours):
    """A Store that is shown all storage, too."""

    def __init__(self, cluster: Cluster, storage: Sequence[tuple[str, Raw]]) -> None:
        super().__init__(cluster)
        for kind, obj in storage:
            self.store.put_storage(usable(DECODERS[kind](obj)))
        for each in (VolumeClaim, Volume, StorageClass, StorageCapacity, CSIDriver, CSINode):
            self.store.note_storage(each, seen=True)

    def list_feasible(self, pod: Raw) -> frozenset[str]:
        """As before, and none for a pod that can run nowhere."""
        self.store.put_pod(read_pod(pod, "asked"))
        obstacle = self.store.pods["asked"].obstacle
        self.store.drop_pod("asked")
        return frozenset() if obstacle else super().list_feasible(pod)


@pytest.mark.parametrize("seeds", [SHORT, pytest.param(LONG, marks=pytest.mark.full)], ids=["short", "long"])
def test_the_planner_takes_the_nodes_that_kube_scheduler_finds_for_volumes(
    truth: TruthStage, seeds: Sequence[int]
) -> None:
    differences = [difference for seed in seeds for difference in compare(truth, seed)]
    shown = "\n".join(differences[:MOST_SHOWN])
    assert not differences, f"{len(differences)} differences, of which the first ones:\n{shown}"


def compare(truth: TruthStage, seed: int) -> Iterator[str]:
    random = Random(seed)  # noqa: S311 - not for secrets
    drawn = Draws(random, ()).cluster(most_pods=0)
    storage, stored = Storage(random, drawn.nodes), Stored(truth.api)
    objects = storage.draw()
    stored.put(objects)
    cluster = truth.put(Cluster(drawn.nodes, storage.users(), drawn.namespaces))
    there = stored.read()
    ours = OursWithStorage(cluster, there)
    for pod, found in truth.ask([storage.pod(f"p{index}") for index in range(PODS_OF_A_CLUSTER)]):
        mounted = {each["persistentVolumeClaim"]["claimName"] for each in pod["spec"]["volumes"]}
        if mounted & storage.shared:
            continue  # what several pods mount counts once for a node, and is learnt where it comes new
        nodes = ours.list_feasible(pod) - {"probe"}
        if nodes != found - {"probe"}:
            said = f"# seed {seed}: ours {sorted(nodes)}, kube-scheduler {sorted(found)}, mounts {sorted(mounted)}\n"
            yield said + yaml.safe_dump_all([obj for _, obj in there] + [*cluster.nodes, *cluster.pods, pod])
    truth.clear(cluster)
    stored.clear()
