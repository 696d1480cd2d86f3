"""Members with volumes: 12 nodes of 32 CPU, of which some reach a volume."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cluster_stage import ClusterStage, eventually, names

pytestmark = pytest.mark.e2e

VOLUMES, CLASSES = "/api/v1/persistentvolumes", "/apis/storage.k8s.io/v1/storageclasses"
SIZE = {"storage": "1Gi"}
NOBODY = "example.com/nobody"
"""A provisioner that makes no volume: kube-scheduler has nodes for such a pod, and waits for the volume in PreBind."""


class Disks:
    """Volumes and claims of one story."""

    def __init__(self, stage: ClusterStage, provisioner: str = "kubernetes.io/no-provisioner") -> None:
        self.stage, self.api = stage, stage.cluster.api
        self.storage_class = f"{stage.namespace}-local"
        self.claims = f"/api/v1/namespaces/{stage.namespace}/persistentvolumeclaims"
        late = {"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
        self.api.post(CLASSES, {"metadata": {"name": self.storage_class}} | late)

    def create_volume(self, name: str, nodes: list[str], mode: str = "ReadWriteMany") -> None:
        """A volume that these nodes reach."""
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}
        spec = {
            "capacity": SIZE, "accessModes": [mode], "storageClassName": self.storage_class,
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            "local": {"path": f"/mnt/{name}"},
        }  # fmt: skip
        self.api.post(VOLUMES, {"metadata": {"name": f"{self.stage.namespace}-{name}"}, "spec": spec})

    def create_claim(self, name: str, volume: str = "", mode: str = "ReadWriteMany") -> None:
        """A claim, bound to a volume if one is named."""
        spec = {"accessModes": [mode], "resources": {"requests": SIZE}}
        spec |= {"storageClassName": self.storage_class}
        self.api.post(self.claims, {"metadata": {"name": name}, "spec": spec})
        if volume:
            self.bind(name, volume)

    def bind(self, claim: str, volume: str) -> None:
        """The claim gets the volume, whether its pod has a node yet or not."""
        path = f"{self.claims}/{claim}"
        self.api.patch(path, {"spec": {"volumeName": f"{self.stage.namespace}-{volume}"}})
        eventually("a bound claim", lambda: self.api.get(path).get("status", {}).get("phase") == "Bound")

    def clear(self) -> None:
        """All of it goes."""
        self.stage.delete_all(self.claims)
        eventually("no claims", lambda: not self.api.get(self.claims)["items"])
        self.stage.delete_all(VOLUMES)
        self.stage.delete_all(CLASSES)


def lend_disks(stage: ClusterStage, **made: str) -> Iterator[Disks]:
    """Volumes for one story; all of them, and the pods that mount them, go with its end. ``made`` is as for `Disks`."""
    disks = Disks(stage, **made)
    yield disks
    stage.delete_all_pods()
    disks.clear()


@pytest.fixture
def disks(stage: ClusterStage) -> Iterator[Disks]:
    yield from lend_disks(stage)


def mounting(claim: str) -> list[dict[str, Any]]:
    return [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]


def await_a_volume(stage: ClusterStage) -> list[dict[str, Any]]:
    """A volume that is never made: the scheduler takes the pod to a node, and it never comes to its bind call."""
    Disks(stage, NOBODY).create_claim("later")
    return mounting("later")


def test_members_go_where_their_volume_is_or_wait_whole(stage: ClusterStage, disks: Disks) -> None:
    first, second, *_ = sorted(node["metadata"]["name"] for node in stage.cluster.api.get("/api/v1/nodes")["items"])
    disks.create_volume("data", [first, second])
    disks.create_claim("data", volume="data")

    stage.create_group("three", 3)
    stage.create_pods(names("three", 3), "three", cpu="20", volumes=mounting("data"))
    stage.await_reason("three", "NoCapacity", "the cluster has room for 2 of 3 members")
    assert not stage.bound()
    stage.delete_pods(*names("three", 3))

    stage.create_group("two", 2)
    stage.create_pods(names("two", 2), "two", cpu="20", volumes=mounting("data"))
    stage.await_bound("two", 2)
    assert set(stage.bound("two").values()) == {first, second}


def test_claims_without_a_volume_are_said_with_the_plan(stage: ClusterStage) -> None:
    stage.create_group("ring", 2)
    stage.create_pods(names("ring", 2), "ring", volumes=await_a_volume(stage))
    stage.await_reason("ring", "Planned", "; 2 members mount volume claims that are not bound yet")
    assert not stage.bound()
