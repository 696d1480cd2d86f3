"""Members with volumes: 12 nodes of 32 CPU, of which some reach a volume."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.promises.test_preemption import create_high_class
from tests.support.cluster_stage import RACK, ClusterStage, eventually, names

pytestmark = pytest.mark.e2e

NODES = "/api/v1/nodes"
VOLUMES, CLASSES = "/api/v1/persistentvolumes", "/apis/storage.k8s.io/v1/storageclasses"
CSI_NODES = "/apis/storage.k8s.io/v1/csinodes"
SIZE = {"storage": "1Gi"}
HOSTNAME = "kubernetes.io/hostname"
MADE = "made.example.com"
"""A CSI driver; what its provisioner does, the story does."""

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

    def create_volume(
        self, name: str, values: list[str], mode: str = "ReadWriteMany", key: str = HOSTNAME, **more: Any
    ) -> None:
        """A volume that the nodes with these values of a label reach; ``more`` is of its spec."""
        here = {"key": key, "operator": "In", "values": values}
        source = {"driver": MADE, "volumeHandle": name}
        spec = {
            "capacity": SIZE, "accessModes": [mode], "storageClassName": self.storage_class,
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            "csi": source,
        }  # fmt: skip
        self.api.post(VOLUMES, {"metadata": {"name": f"{self.stage.namespace}-{name}"}, "spec": spec | more})

    def provision(self, claim: str, values: list[str], mode: str = "ReadWriteMany", key: str = HOSTNAME) -> str:
        """Do what a provisioner does for a claim, once kube-scheduler has chosen a node for it; that node."""
        path, chosen = f"{self.claims}/{claim}", "volume.kubernetes.io/selected-node"

        def find_node() -> str:
            found: str = self.api.get(path)["metadata"].get("annotations", {}).get(chosen, "")
            return found

        node = eventually(f"a node for {claim}", find_node)
        uid = self.api.get(path)["metadata"]["uid"]
        reference = {"kind": "PersistentVolumeClaim", "namespace": self.stage.namespace, "name": claim, "uid": uid}
        self.create_volume(f"made-{claim}", values, mode, key, claimRef=reference)
        return node

    def create_claim(self, name: str, volume: str = "", mode: str = "ReadWriteMany", **more: str) -> None:
        """A claim, bound to a volume if one is named; ``more`` is of its spec."""
        spec = {"accessModes": [mode], "resources": {"requests": SIZE}}
        spec |= {"storageClassName": self.storage_class, **more}
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
    stage.await_reason("three", "NoCapacity", "only 2 of 3 members fit into the cluster")
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


@pytest.fixture
def made(stage: ClusterStage) -> Iterator[Disks]:
    """Volumes that the story makes where kube-scheduler wants them."""
    yield from lend_disks(stage, provisioner=MADE)


@pytest.fixture
def zones(stage: ClusterStage) -> Iterator[dict[str, list[str]]]:
    """The nodes in eight zones, by the story's own label."""
    hosts = sorted(node["metadata"]["name"] for node in stage.cluster.api.get(NODES)["items"])
    key = zone_key(stage)
    found: dict[str, list[str]] = {}
    for at, host in enumerate(hosts):
        found.setdefault(f"z{at % 8}", []).append(host)
        stage.cluster.api.patch(f"{NODES}/{host}", {"metadata": {"labels": {key: f"z{at % 8}"}}})
    yield found
    for host in hosts:
        stage.cluster.api.patch(f"{NODES}/{host}", {"metadata": {"labels": {key: None}}})


def zone_key(stage: ClusterStage) -> str:
    return f"{stage.namespace}.example.com/zone"


def test_each_member_of_eight_has_a_disk_of_its_own_in_zones_of_one_disk_each(
    stage: ClusterStage, disks: Disks, zones: dict[str, list[str]]
) -> None:
    stage.create_group("ring", 8)
    for at, zone in enumerate(zones):
        disks.create_volume(zone, [zone], mode="ReadWriteOnce", key=zone_key(stage))
        disks.create_claim(f"data-{at}", mode="ReadWriteOnce")
    for at, name in enumerate(names("ring", 8)):
        stage.create_pods([name], "ring", volumes=mounting(f"data-{at}"))
    stage.await_bound("ring", 8)
    hosts = set(stage.bound("ring").values())
    assert all(len(hosts.intersection(nodes)) == 1 for nodes in zones.values())


def test_one_disk_too_few_is_said_and_nobody_is_bound(stage: ClusterStage, disks: Disks) -> None:
    first, second, *_ = sorted(node["metadata"]["name"] for node in stage.cluster.api.get(NODES)["items"])
    for at, host in enumerate((first, second, first)):
        disks.create_claim(f"data-{at}")
        if at < 2:
            disks.create_volume(f"disk-{at}", [host])
    stage.create_group("ring", 3)
    for at, name in enumerate(names("ring", 3)):
        stage.create_pods([name], "ring", volumes=mounting(f"data-{at}"))
    stage.await_reason("ring", "NoCapacity", "only 2 of 3 members fit into the cluster")
    disks.create_volume("disk-2", [second])
    stage.await_bound("ring", 3)


def test_members_that_share_a_claim_are_where_its_volume_is(stage: ClusterStage, disks: Disks) -> None:
    racks = sorted({node["metadata"]["labels"][RACK] for node in stage.cluster.api.get(NODES)["items"]})
    for rack in racks[:2]:
        disks.create_volume(rack, [rack], key=RACK)
    disks.create_claim("data")
    stage.create_group("ring", 3)
    stage.create_pods(names("ring", 3), "ring", cpu="20", volumes=mounting("data"))
    stage.await_bound("ring", 3)
    assert len(stage.racks("ring")) == 1


def test_the_first_member_decides_where_a_shared_volume_is_made(stage: ClusterStage, made: Disks) -> None:
    # Native gang scheduling finds nodes for all before the volume is made: until then it keeps them on one.
    cpu = "10" if stage.beside_native else "20"
    made.create_claim("data")
    stage.create_group("ring", 3)
    stage.create_pods(names("ring", 3), "ring", cpu=cpu, volumes=mounting("data"))
    hosts = sorted(node["metadata"]["name"] for node in stage.cluster.api.get(NODES)["items"])
    first = made.provision("data", hosts)
    stage.await_bound("ring", 3)
    assert first in stage.bound("ring").values()


def test_a_claim_that_one_pod_may_use_is_no_two_members(stage: ClusterStage, disks: Disks) -> None:
    hosts = sorted(node["metadata"]["name"] for node in stage.cluster.api.get(NODES)["items"])
    for claim in ("mine", "yours"):
        disks.create_volume(claim, hosts, mode="ReadWriteOncePod")
        disks.create_claim(claim, mode="ReadWriteOncePod", volume=claim)
    stage.create_group("shared", 2)
    stage.create_pods(names("shared", 2), "shared", volumes=mounting("mine"))
    stage.await_reason(
        "shared", "NoCapacity", "is ReadWriteOncePod, and another member of the gang mounts the claim, too"
    )
    assert not stage.bound()
    stage.delete_pods(*names("shared", 2))

    stage.create_group("own", 2)
    for name, claim in zip(names("own", 2), ("mine", "yours"), strict=True):
        stage.create_pods([name], "own", volumes=mounting(claim))
    stage.await_bound("own", 2)


def test_a_claim_that_does_not_exist_yet_is_the_reason(stage: ClusterStage, disks: Disks) -> None:
    hosts = sorted(node["metadata"]["name"] for node in stage.cluster.api.get(NODES)["items"])
    disks.create_volume("data", hosts)
    stage.create_group("ring", 2)
    stage.create_pods(names("ring", 2), "ring", volumes=mounting("data"))
    stage.await_reason("ring", "NoCapacity", "can run nowhere: volume claim data does not exist")
    disks.create_claim("data", volume="data")
    stage.await_bound("ring", 2)


class Hopeless:
    """Gangs of two of higher priority in a cluster that is full, each of which asks for what there is not."""

    def __init__(self, stage: ClusterStage, full_with: int = 12) -> None:
        self._stage, self._high, self._full_with = stage, create_high_class(stage), full_with
        stage.create_pods(names("low", full_with), cpu="32")
        stage.await_bound("low", full_with)

    def create(self, name: str, words: str, **fields: Any) -> None:
        """A gang whose pods have these fields; it says so why it waits."""
        spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "priorityClassName": self._high}
        self._stage.create_scheduling("PodGroup", name, spec)
        self._stage.create_pods(names(name, 2), name, priorityClassName=self._high, **fields)
        self._stage.await_reason(name, "NoCapacity", words)

    def check_nobody_went(self) -> None:
        """Check that nothing is planned and all pods run. Then delete them, so that there is room."""
        assert not self._stage.reservations()
        assert not self._stage.held_in_ledger()
        assert len(self._stage.bound("low")) == self._full_with
        self._stage.delete_pods(*names("low", self._full_with))
        eventually("room", lambda: not self._stage.bound("low"))

    def await_going(self, name: str) -> None:
        """Wait until the gang goes: within two seconds, and the backoff of pods that were tried before.

        Beside native gang scheduling a plan is all that is sure: kube-scheduler 1.37 fails with such a group (in
        DynamicResources' PodGroupPostFilter), and then takes half a minute and more until it tries that again.
        """
        going = {"Planned", "Binding", "Scheduled"}
        eventually(f"a plan for {name}", lambda: self._stage.debug_page(name)["reason"] in going, seconds=2.0)
        if not self._stage.beside_native:
            self._stage.await_bound(name, 2, seconds=12.0)


def test_hopeless_claims_are_told_nobody_is_evicted_and_the_gangs_go_once_they_are_mended(
    stage: ClusterStage, disks: Disks
) -> None:
    hosts = sorted(node["metadata"]["name"] for node in stage.cluster.api.get(NODES)["items"])
    hopeless = Hopeless(stage)
    hopeless.create("missing", "volume claim missing does not exist", volumes=mounting("missing"))
    disks.create_volume("lost", hosts)
    disks.create_claim("lost", volume="lost")
    volume, claim = f"{VOLUMES}/{stage.namespace}-lost", f"{disks.claims}/lost"
    stage.cluster.api.delete(volume)
    stage.cluster.api.patch(volume, {"metadata": {"finalizers": None}})
    eventually("a lost claim", lambda: stage.cluster.api.get(claim)["status"]["phase"] == "Lost")
    hopeless.create("lost", "volume claim lost has lost its PersistentVolume", volumes=mounting("lost"))
    disks.create_claim("classless", storageClassName="absent")
    told = "volume claim classless is not bound, and its StorageClass absent does not exist"
    hopeless.create("classless", told, volumes=mounting("classless"))
    hopeless.check_nobody_went()

    disks.create_volume("missing", hosts)
    disks.create_claim("missing", volume="missing")
    hopeless.await_going("missing")
    disks.create_volume("lost", hosts)
    eventually("a claim that is found", lambda: stage.cluster.api.get(claim)["status"]["phase"] == "Bound")
    hopeless.await_going("lost")
    disks.create_volume("classless", hosts, storageClassName="absent")
    disks.bind("classless", "classless")
    hopeless.await_going("classless")


def test_a_pod_of_lower_priority_leaves_the_claim_that_only_one_may_use(stage: ClusterStage, disks: Disks) -> None:
    high = create_high_class(stage)
    hosts = sorted(node["metadata"]["name"] for node in stage.cluster.api.get(NODES)["items"])
    disks.create_volume("mine", hosts, mode="ReadWriteOncePod")
    disks.create_claim("mine", mode="ReadWriteOncePod", volume="mine")
    stage.create_pods(["low-0"], volumes=mounting("mine"))
    stage.await_bound("low", 1)
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}, "priorityClassName": high}
    stage.create_scheduling("PodGroup", "ring", spec)
    stage.create_pods(["ring-0"], "ring", volumes=mounting("mine"), priorityClassName=high)
    stage.create_pods(["ring-1"], "ring", priorityClassName=high)
    stage.await_bound("ring", 2)
    assert not stage.bound("low")


def test_members_go_to_nodes_that_take_one_more_volume(stage: ClusterStage, made: Disks) -> None:
    hosts = sorted(node["metadata"]["name"] for node in stage.cluster.api.get(NODES)["items"])
    for host in hosts:
        limit = {"name": MADE, "nodeID": host, "topologyKeys": None, "allocatable": {"count": 1}}
        stage.cluster.api.post(CSI_NODES, {"metadata": {"name": host}, "spec": {"drivers": [limit]}})
    try:
        stage.create_group("ring", 13)
        for at, name in enumerate(names("ring", 13)):
            made.create_claim(f"data-{at}")
            stage.create_pods([name], "ring", volumes=mounting(f"data-{at}"))
        stage.await_reason("ring", "NoCapacity", "only 12 of 13 members fit into the cluster")
        stage.delete_pods(*names("ring", 13))

        stage.create_group("pair", 2)
        for at, name in enumerate(names("pair", 2)):
            stage.create_pods([name], "pair", volumes=mounting(f"data-{at}"))
        chosen = {made.provision(f"data-{at}", hosts) for at in range(2)}
        stage.await_bound("pair", 2)
        assert set(stage.bound("pair").values()) == chosen
        assert len(chosen) == 2
    finally:
        stage.delete_all(CSI_NODES)
