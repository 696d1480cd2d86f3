"""Create gangs in a namespace, and observe their pods (by the API) and their Bindings (by the audit log)."""

import time
from collections import Counter
from typing import Any

from bench.cluster import Cluster, ClusterError
from bench.cluster.audit import AuditLog
from bench.failover.bindings import Answer, count_accepted, find_binding_defects, read_answers

POLL_SECONDS = 0.1
"""Seconds between two reads of all pods. Measured times are not more exact than that."""

_CLEAR_SECONDS = 30.0

_LAG_SECONDS = 5.0
"""The longest time in seconds from the API server's answer until its audit log has the event."""


class Witness:
    """Creates and observes gangs in one new namespace. The API server needs the flags of `make_binding_log_flags`."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._remade: list[str] = []
        self._log = AuditLog.of(cluster.spec)
        self._mark = self._log.mark()
        self._api = cluster.api
        self._version = cluster.spec.api_version
        self._native = cluster.spec.api == "native"
        self._namespace = namespace
        self._nodes: dict[str, str] = {}
        """By UID of a pod: the node to which it was seen bound."""
        self._names: dict[str, str] = {}
        """By name of a pod: its UID."""
        self._api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})

    def create(self, gang: str, size: int) -> None:
        """Create a gang whose minCount is its size, with all of its pods."""
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
        """Count the bound members of a gang."""
        return self.count_each().get(gang, 0)

    def count_each(self) -> dict[str, int]:
        """Count the bound members of each gang, by name of the gang."""
        found: Counter[str] = Counter()
        for pod in self._api.get(self._pods)["items"]:
            self._record(pod)
            found[pod["metadata"]["name"].rpartition("-")[0]] += bool(pod["spec"].get("nodeName"))
        return dict(found)

    def _record(self, pod: dict[str, Any]) -> None:
        name, uid, node = pod["metadata"]["name"], pod["metadata"]["uid"], pod["spec"].get("nodeName", "")
        if self._names.setdefault(name, uid) != uid:
            self._remade.append(f"pod {name} was made anew")
        if node:
            self._nodes[uid] = node

    def find_defects(self) -> tuple[str, ...]:
        """Return a sentence for each pod that was created again, bound twice, or planned for two nodes.

        Waits a few seconds until the audit log has the Bindings of all bound pods.
        """
        deadline = time.monotonic() + _LAG_SECONDS
        while self._nodes.keys() - {each.uid for each in self._answers()} and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return (*self._remade, *find_binding_defects(self._answers(), self._nodes))

    def count_accepted(self) -> dict[str, int]:
        """Count the accepted Bindings of each pod, by UID."""
        return dict(count_accepted(self._answers()))

    def count_refused(self) -> int:
        """Count the rejected Bindings. Most are of pods that were bound already."""
        return sum(each.refused for each in self._answers())

    def _answers(self) -> list[Answer]:
        return list(read_answers(self._log.read(self._mark), self._namespace))

    def clear(self) -> None:
        """Delete all pods and PodGroups. Raise ClusterError if the pods still exist after 30 s."""
        for pod in self._api.get(self._pods)["items"]:
            self._delete(f"{self._pods}/{pod['metadata']['name']}")
        groups = f"/apis/{self._version}/namespaces/{self._namespace}/podgroups"
        for group in self._api.get(groups)["items"]:
            self._delete(f"{groups}/{group['metadata']['name']}")
        deadline = time.monotonic() + _CLEAR_SECONDS
        while left := len(self._api.get(self._pods)["items"]):
            if time.monotonic() > deadline:
                raise ClusterError(f"{left} deleted pods are still there after {_CLEAR_SECONDS:g} s")
            time.sleep(POLL_SECONDS)

    def _delete(self, path: str) -> None:
        self._api.delete(path)

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods"
