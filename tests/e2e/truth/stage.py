"""Small clusters put into an API server one after the other, and what kube-scheduler finds for pods there."""

import itertools
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.cluster import Cluster as ControlPlane
from bench.cluster.api import ApiError
from tests.e2e.truth.recording import SCHEDULER, Recorder
from tests.support.cluster_stage import eventually
from tests.support.truth.rules import Cluster, Raw
from tests.support.truth.storage import make_mounting
from tests.support.truth.storage import make_probe as make_storage_probe
from tests.support.truth.worlds import NAMESPACES

PROBE = "probe"
"""The node on which it is seen that kube-scheduler knows all the others."""

EMPTY_COUNTS_SINCE = 38
"""The minor version from which on a spread with an empty selector counts every pod of its namespace."""

_EPOCH = "example.com/epoch"
_ASKED = "example.com/asked"
_INVALID = 422


class TruthStage:
    """An API server with one small cluster in it at a time."""

    def __init__(self, plane: ControlPlane, recorder: Recorder) -> None:
        self.api = plane.api
        self._empty_counts = plane.spec.scheduler_minor >= EMPTY_COUNTS_SINCE
        self._recorder = recorder
        self._serial = itertools.count()
        self._threads = ThreadPoolExecutor(8)

    def open(self) -> None:
        """Take away what the control plane has brought; return when kube-scheduler knows the namespaces."""
        for node in self.api.get("/api/v1/nodes")["items"]:
            self.api.delete(f"/api/v1/nodes/{node['metadata']['name']}")
        for name, labels in NAMESPACES.items():
            self.api.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        self.api.post("/api/v1/nodes", make_probe())
        placed = {"spec": {"nodeName": PROBE}, "metadata": {"labels": {"known": "yes"}}}
        for namespace in NAMESPACES:
            self._create(_make_pod("known", namespace, placed))
        for namespace in NAMESPACES:
            eventually(f"kube-scheduler knows {namespace}", lambda: self._probe(_beside_known(namespace)))  # noqa: B023
            self.api.delete(f"/api/v1/namespaces/{namespace}/pods/known")

    def put(self, drawn: Cluster) -> Cluster:
        """The cluster as the API server has stored it, once kube-scheduler has seen all of it."""
        nodes = [*self._threads.map(lambda node: self.api.post("/api/v1/nodes", node), drawn.nodes)]
        storage = [*self._threads.map(self._create_storage, drawn.storage)]
        pods = [pod for pod in self._threads.map(self._create_bound, drawn.pods) if pod is not None]
        serial = str(next(self._serial))
        probe = self.api.patch(f"/api/v1/nodes/{PROBE}", {"metadata": {"labels": {_EPOCH: serial}}})
        # Watches keep the order of changes: who has seen these last ones has seen all.
        eventually("kube-scheduler sees the cluster", lambda: self._probe({"nodeSelector": {_EPOCH: serial}}))
        if storage:
            self._await_storage(serial)
        return Cluster([*nodes, probe], pods, drawn.namespaces, storage, self._empty_counts)

    def _await_storage(self, serial: str) -> None:
        """Return when kube-scheduler has seen all storage that there is."""
        last = [self._create_storage(found) for found in make_storage_probe(serial, PROBE)]
        ready, full = (
            {"volumes": make_mounting(PROBE, claims)["spec"]["volumes"]}
            for claims in ([f"probe-{serial}", f"probe-{serial}-waits"], [f"full-{serial}"])
        )
        eventually("kube-scheduler sees volumes and capacities", lambda: self._probe(ready))
        eventually("kube-scheduler sees what nodes take", lambda: not self._probe(full))
        self._delete(last)

    def ask(self, pods: Sequence[Raw]) -> list[tuple[Raw, frozenset[str]]]:
        """The pods that the API server takes, each with the nodes that kube-scheduler finds for it alone."""
        created = [pod for pod in self._threads.map(self._create_asked, pods) if pod is not None]
        eventually("an answer for each pod", lambda: self._is_answered(created))
        self._delete(created)
        return [(pod, self._recorder.found.get(pod["metadata"]["uid"], frozenset())) for pod in created]

    def clear(self, cluster: Cluster) -> None:
        """Take a cluster away; the next one may be put at once."""
        ends = [pod for pod in cluster.pods if "deletionTimestamp" in pod["metadata"]]
        [*self._threads.map(lambda pod: self.api.patch(_path(pod), {"metadata": {"finalizers": None}}), ends)]
        self._delete(pod for pod in cluster.pods if "deletionTimestamp" not in pod["metadata"])
        self._delete(cluster.storage)
        self._delete(node for node in cluster.nodes if node["metadata"]["name"] != PROBE)
        self._recorder.found.clear()

    def _create_bound(self, pod: Raw) -> Raw | None:
        metadata = {key: value for key, value in pod["metadata"].items() if key != "deletionTimestamp"}
        created = self._create({**pod, "metadata": metadata})
        if created is None or "deletionTimestamp" not in pod["metadata"]:
            return created
        found: Raw = self.api.request("DELETE", _path(created), {"gracePeriodSeconds": 0})
        return found

    def _create_storage(self, found: Raw) -> Raw:
        created: Raw = self.api.post(_path(found).rpartition("/")[0], found)
        if "status" in found:
            created = self.api.patch(f"{_path(found)}/status", {"status": found["status"]})
        return created

    def _create_asked(self, pod: Raw) -> Raw | None:
        labels = {**pod["metadata"].get("labels", {}), _ASKED: "yes"}
        # Each has a name of its own: the condition of one that went may be written when the next one is there.
        metadata = {**pod["metadata"], "name": f"{pod['metadata']['name']}-{next(self._serial)}", "labels": labels}
        return self._create({**pod, "metadata": metadata, "spec": {**pod["spec"], "schedulerName": SCHEDULER}})

    def _create(self, pod: Raw) -> Raw | None:
        """Create a pod. Return None if the pod is not valid."""
        try:
            created: Raw = self.api.post(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)
        except ApiError as error:
            if error.status == _INVALID:
                return None
            raise
        return created

    def _delete(self, objects: Iterable[Raw]) -> None:
        [*self._threads.map(lambda obj: self.api.delete(_path(obj)), list(objects))]

    def _probe(self, spec: Raw) -> bool:
        """Return whether kube-scheduler finds the probe node for a pod that asks for nothing else."""
        asked = {"spec": {"tolerations": [{"operator": "Exists"}], **spec}}
        return PROBE in self.ask([_make_pod(PROBE, next(iter(NAMESPACES)), asked)])[0][1]

    def _is_answered(self, pods: Sequence[Raw]) -> bool:
        """Return whether each pod has been tried: of those without any node only their condition tells."""
        waiting = {pod["metadata"]["uid"] for pod in pods} - self._recorder.found.keys()
        if not waiting:
            return True
        listed = self.api.get(f"/api/v1/pods?labelSelector={_ASKED}&resourceVersion=0")["items"]
        return waiting <= {pod["metadata"]["uid"] for pod in listed if _is_unschedulable(pod)}


def make_probe() -> Raw:
    """A node that is in no domain, and that pods have to tolerate."""
    taint = {"key": "example.com/probe", "effect": "NoSchedule"}
    allocatable = {"cpu": "8", "memory": "8Gi", "pods": "99"}
    metadata = {"name": PROBE, "labels": {"example.com/probe": "yes"}}
    return {"metadata": metadata, "spec": {"taints": [taint]}, "status": {"allocatable": allocatable}}


def _beside_known(namespace: str) -> Raw:
    """Return fields of a pod that finds a node only if kube-scheduler knows the labels of a namespace."""
    term = {
        "topologyKey": "example.com/probe",
        "labelSelector": {"matchLabels": {"known": "yes"}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
    }
    return {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def _make_pod(name: str, namespace: str, more: Raw) -> Raw:
    metadata = {"name": name, "namespace": namespace, **more.get("metadata", {})}
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "none"}], **more["spec"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


_PLURALS = {
    "PersistentVolume": "persistentvolumes",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "StorageClass": "storageclasses",
    "CSIStorageCapacity": "csistoragecapacities",
    "CSIDriver": "csidrivers",
    "CSINode": "csinodes",
    "Node": "nodes",
    "Pod": "pods",
}


def _path(obj: Raw) -> str:
    metadata, group = obj["metadata"], obj["apiVersion"]
    root = f"/apis/{group}" if "/" in group else f"/api/{group}"
    inside = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    return f"{root}{inside}/{_PLURALS[obj['kind']]}/{metadata['name']}"


def _is_unschedulable(pod: Raw) -> bool:
    """Return whether kube-scheduler has tried the pod and found nothing; fails if it could not try it."""
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            assert condition["reason"] == "Unschedulable", condition
            return True
    return False
