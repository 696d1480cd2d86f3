"""A namespace in which gangs are created, and what is seen of their pods and of their Bindings."""

import time
from collections import Counter
from typing import Any

from bench.cluster import Cluster, ClusterError
from bench.cluster.audit import AuditLog
from bench.failover.bindings import Answer, count_accepted, judge, read_answers

LOOK_SECONDS = 0.1
"""The pause between two looks: no time that is told is more exact."""

_CLEAR_SECONDS = 30.0

_LAG_SECONDS = 5.0
"""The API server writes into its audit log after it has answered."""


class Witness:
    """Creates gangs, and looks. The API server has to note Bindings (`note_bindings`)."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._remade: list[str] = []
        self._log = AuditLog.of(cluster.spec)
        self._mark = self._log.mark()
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
            self._remade.append(f"pod {name} was made anew")
        if node:
            self._nodes[uid] = node

    def find_defects(self) -> tuple[str, ...]:
        """What must never be: a pod that is made anew, bound twice, or planned for two nodes."""
        deadline = time.monotonic() + _LAG_SECONDS
        while self._nodes.keys() - {each.uid for each in self._answers()} and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        return (*self._remade, *judge(self._answers(), self._nodes))

    def count_accepted(self) -> dict[str, int]:
        """How many Bindings of each pod were accepted, by UID."""
        return dict(count_accepted(self._answers()))

    def count_refused(self) -> int:
        """How many Bindings were refused: those of pods that were bound already, in most cases."""
        return sum(each.refused for each in self._answers())

    def _answers(self) -> list[Answer]:
        return list(read_answers(self._log.read(self._mark), self._namespace))

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
