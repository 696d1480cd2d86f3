"""A namespace in which gangs are created, and what is seen of their Bindings, at every look."""

import time
from collections import Counter
from typing import Any

from bench.cluster import Cluster, ClusterError

LOOK_SECONDS = 0.1
"""The pause between two looks: no time that is told is more exact."""

_CLEAR_SECONDS = 30.0


class Witness:
    """Creates gangs, and looks. Times are of the monotonic clock."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.defects: list[str] = []
        """What must never be: a pod that is bound twice, or once more in vain."""
        self._api = cluster.api
        self._version = cluster.spec.api_version
        self._native = cluster.spec.api == "native"
        self._namespace = namespace
        self._nodes: dict[str, str] = {}
        """Where each pod was seen bound, by UID."""
        self._names: dict[str, str] = {}
        """The UID of each pod, by name."""
        self._api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})

    def create(self, gang: str, size: int) -> None:
        """A gang whose members all have to run together."""
        spec = {"schedulingPolicy": {"gang": {"minCount": size}}}
        path = f"/apis/{self._version}/namespaces/{self._namespace}/podgroups"
        self._api.post(
            path, {"apiVersion": self._version, "kind": "PodGroup", "metadata": {"name": gang}, "spec": spec}
        )
        for number in range(size):
            self._api.post(self._pods, self._pod(f"{gang}-{number}", gang))

    def _pod(self, name: str, gang: str) -> dict[str, Any]:
        container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "100m"}}}
        spec = {"schedulerName": "serried", "terminationGracePeriodSeconds": 0, "containers": [container]}
        metadata: dict[str, Any] = {"name": name}
        if self._native:
            spec["schedulingGroup"] = {"podGroupName": gang}
        else:
            metadata["labels"] = {"scheduling.serried.dev/pod-group": gang}
        return {"metadata": metadata, "spec": spec}

    def count_bound(self, gang: str) -> int:
        """How many members of a gang are bound now."""
        return self.count_each().get(gang, 0)

    def count_each(self) -> dict[str, int]:
        """How many members of each gang are bound now, by its name."""
        found: Counter[str] = Counter()
        for pod in self._api.get(self._pods)["items"]:
            self._note(pod)
            found[pod["metadata"]["name"].rpartition("-")[0]] += bool(pod["spec"].get("nodeName"))
        return dict(found)

    def _note(self, pod: dict[str, Any]) -> None:
        name, uid, node = pod["metadata"]["name"], pod["metadata"]["uid"], pod["spec"].get("nodeName", "")
        if self._names.setdefault(name, uid) != uid:
            self.defects.append(f"pod {name} was made anew")
        if uid in self._nodes and self._nodes[uid] != node:
            self.defects.append(f"pod {name} was on {self._nodes[uid]}, then on {node or 'none'}")
        if node:
            self._nodes[uid] = node

    def clear(self) -> None:
        """Everything that was created goes."""
        for pod in self._api.get(self._pods)["items"]:
            self._delete(f"{self._pods}/{pod['metadata']['name']}")
        groups = f"/apis/{self._version}/namespaces/{self._namespace}/podgroups"
        for group in self._api.get(groups)["items"]:
            self._delete(f"{groups}/{group['metadata']['name']}")
        deadline = time.monotonic() + _CLEAR_SECONDS
        while left := len(self._api.get(self._pods)["items"]):
            if time.monotonic() > deadline:
                raise ClusterError(f"{left} deleted pods are still there after {_CLEAR_SECONDS:g} s")
            time.sleep(LOOK_SECONDS)

    def _delete(self, path: str) -> None:
        self._api.delete(path)

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods"
