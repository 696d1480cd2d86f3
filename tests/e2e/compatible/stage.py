"""Stories in which gangs are PodGroups of scheduler-plugins."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.cluster import Cluster
from tests.support.cluster_stage import ClusterStage, eventually, pod_spec
from tests.support.go_modules import locate

Raw = dict[str, Any]

API = "scheduling.x-k8s.io/v1alpha1"
LABEL = "scheduling.x-k8s.io/pod-group"
CRD = "podgroups.scheduling.x-k8s.io"

_SCHEDULER_PLUGINS = ("sigs.k8s.io/scheduler-plugins", "v0.30.6")
"""The version that Kubeflow's trainer is built with."""

_OURS = Path(__file__).resolve().parents[3] / "manifests" / "kustomize" / "compatible"


class Shape(StrEnum):
    """The owner of the installed CRD."""

    THEIRS = "theirs"
    OURS = "ours"


def install(cluster: Cluster, shape: Shape) -> None:
    """The CRD is there and served."""
    if shape is Shape.OURS:
        cluster.kubectl("create", "-k", str(_OURS))
    else:
        cluster.kubectl("create", "-f", str(locate(*_SCHEDULER_PLUGINS) / "manifests" / "coscheduling" / "crd.yaml"))
    cluster.kubectl("wait", "crd", CRD, "--for=condition=Established", "--timeout=30s")


def uninstall(cluster: Cluster) -> None:
    """The CRD is gone, and every object with it."""
    cluster.kubectl("delete", "crd", CRD)


class CompatibleStage(ClusterStage):
    """A namespace in which people, and other projects, write PodGroups of scheduler-plugins."""

    def create_their_group(self, name: str, spec: Raw, **metadata: Any) -> Raw:
        """One of their PodGroups; as the API server has made it."""
        body = {"apiVersion": API, "kind": "PodGroup", "metadata": {"name": name, **metadata}, "spec": spec}
        return self.create(API, "podgroups", body)

    def create_their_pods(self, names: list[str], group: str, cpu: str = "1", **metadata: Any) -> None:
        """Bare pods with their label."""
        labels = metadata.pop("labels", {}) | {LABEL: group}
        for name in names:
            self._post(self._pods(), {"metadata": {"name": name, "labels": labels, **metadata}, "spec": pod_spec(cpu)})

    def create(self, api_version: str, plural: str, body: Raw) -> Raw:
        """Any object of the namespace; as the API server has made it."""
        made: Raw = self.cluster.api.post(f"/apis/{api_version}/namespaces/{self.namespace}/{plural}", body)
        return made

    def create_for_all(self, api_version: str, plural: str, body: Raw) -> None:
        """Any object that belongs to no namespace."""
        self.cluster.api.post(f"/apis/{api_version}/{plural}", body)

    def their_group(self, name: str) -> Raw:
        """One of their PodGroups, as it is now."""
        found: Raw = self.cluster.api.get(f"/apis/{API}/namespaces/{self.namespace}/podgroups/{name}")
        return found

    def their_events(self, name: str) -> list[tuple[str, str]]:
        """Reason and message of the events about one of their PodGroups."""
        about = {"apiVersion": API, "kind": "PodGroup", "name": name}
        items = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [(e["reason"], e["message"]) for e in items if about.items() <= e["involvedObject"].items()]

    def patch_status(self, name: str, status: Raw) -> None:
        """Write the status of a PodGroup, as the controller of scheduler-plugins does."""
        command = ["patch", CRD, name, "-n", self.namespace, "--type", "merge", "--subresource", "status"]
        self.cluster.kubectl(*command, "-p", json.dumps({"status": status}))

    def await_ready(self) -> None:
        """The extender watches their PodGroups."""
        self.await_watch(listed=True)

    def await_watch(self, **said: bool) -> None:
        """The extender says this of its watch of their PodGroups; for an API that comes it asks every 15 s."""
        eventually(f"a watch that is {said}", lambda: said.items() <= self.selfcheck()["watches"][CRD].items())
