"""Cluster Autoscaler as it is *played*: none of its code runs. What it reads and writes of the API server is as there.

It is stepped: each call of `ClusterAutoscaler.loop` is one of the loops that the real one makes every ten seconds.

Sources, of kubernetes/autoscaler, in cluster-autoscaler/:
core/static_autoscaler.go (RunOnce), utils/kubernetes/listers.go (which pods are unschedulable),
core/podlistprocessor/filter_out_schedulable.go, processors/provreq/pods_filter.go,
provisioningrequest/besteffortatomic/provisioning_class.go and provisioningrequest/conditions.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.cluster.api import Api, ApiError
from bench.cluster.nodes import ZONE
from serried.api.names import write_time
from serried.api.resources import parse_cpu

Raw = dict[str, Any]

CONSUMES = "autoscaling.x-k8s.io/consume-provisioning-request"
_REQUESTS = "/apis/autoscaling.x-k8s.io/v1"


@dataclass(slots=True)
class NodeGroup:
    """The nodes that may be added to one zone, all of one size."""

    zone: str
    cpu: str

    left: int
    """The number of nodes that may still be added."""


@dataclass(slots=True)
class _NodeCapacity:
    """The free resources of a node that exists or is to be added. Each pod that is added reduces them."""

    labels: dict[str, str]
    cpu: int

    def add_pod(self, spec: Raw) -> bool:
        """Add a pod if it fits, and return whether it did."""
        cpu = _count_cpu(spec)
        if cpu > self.cpu or not spec.get("nodeSelector", {}).items() <= self.labels.items():
            return False
        self.cpu -= cpu
        return True


@dataclass(slots=True)
class ClusterAutoscaler:
    """Adds nodes of these node groups to a cluster in which kwok makes them Ready. Each test has its own instance."""

    api: Api
    groups: Sequence[NodeGroup]

    added: list[str] = field(default_factory=list)
    """The names of the nodes that it has added."""

    def loop(self) -> None:
        """Carry out the first open ProvisioningRequest, then add nodes for the pods that are candidates."""
        rooms = self._list_capacity()
        for request in self._list_open_requests()[:1]:
            self._carry_out(request, rooms)
        self._scale_up(self.list_candidates(), rooms)

    def list_candidates(self) -> list[Raw]:
        """Return the pods for which nodes are added if they fit on none that exists."""
        return [pod for pod in self.api.get("/api/v1/pods")["items"] if _is_candidate(pod)]

    def _list_capacity(self) -> list[_NodeCapacity]:
        """Return the free resources of each node. A nominated pod counts as allocated on its node."""
        pods = self.api.get("/api/v1/pods")["items"]
        rooms = {
            node["metadata"]["name"]: _NodeCapacity(node["metadata"]["labels"], parse_cpu(_find_allocatable(node)))
            for node in self.api.get("/api/v1/nodes")["items"]
        }
        for pod in pods:
            name = pod["spec"].get("nodeName") or pod["status"].get("nominatedNodeName")
            if name in rooms and pod["status"].get("phase") not in {"Succeeded", "Failed"}:
                rooms[name].cpu -= _count_cpu(pod["spec"])
        return list(rooms.values())

    # --- ProvisioningRequests ----------------------------------------------------------------------------------

    def _list_open_requests(self) -> list[Raw]:
        """Return the ProvisioningRequests that are not ended, the oldest first; none where they are not served."""
        try:
            found: list[Raw] = self.api.get(f"{_REQUESTS}/provisioningrequests")["items"]
        except ApiError as error:
            if error.status != 404:
                raise
            return []
        ended = {("Provisioned", "True"), ("Failed", "True")}
        return sorted(
            (each for each in found if not ended & _read_conditions(each).keys()),
            key=lambda each: (each["metadata"]["creationTimestamp"], each["metadata"]["name"]),
        )

    def _carry_out(self, request: Raw, rooms: Iterable[_NodeCapacity]) -> None:
        """Add all nodes that a request lacks, or none if they are too many. Write the result to its conditions."""
        try:
            specs = [spec for each in request["spec"]["podSets"] for spec in self._list_pods(request, each)]
        except ApiError as error:
            if error.status != 404:
                raise
            return  # its PodTemplates are not all there yet
        self._set_condition(
            request, "Accepted", "True", "Accepted", "ProvisioningRequest is accepted by ClusterAutoscaler."
        )
        lacking = [spec for spec in specs if not _fits(spec, rooms)]
        wanted = self._find_nodes(lacking)
        if not lacking:
            self._set_condition(request, "Provisioned", "True", "CapacityIsFound", "Capacity is found in the cluster.")
        elif wanted is None:
            message = "Capacity is not found, CA will try to find it later."
            self._set_condition(request, "Provisioned", "False", "CapacityIsNotFound", message)
        else:
            self._add(wanted)
            self._set_condition(request, "Provisioned", "True", "CapacityIsProvisioned", "Capacity is provisioned.")

    def _list_pods(self, request: Raw, pod_set: Raw) -> list[Raw]:
        """Return the spec of each pod of a pod set. Raise ApiError if its PodTemplate does not exist."""
        namespace, name = request["metadata"]["namespace"], pod_set["podTemplateRef"]["name"]
        found = self.api.get(f"/api/v1/namespaces/{namespace}/podtemplates/{name}")
        return [found["template"]["spec"]] * int(pod_set["count"])

    def _set_condition(self, request: Raw, kind: str, status: str, reason: str, message: str) -> None:
        """Set a condition of a request, unless the request has been deleted."""
        metadata = request["metadata"]
        conditions = _read_conditions(request)
        kept = [each for (found, _), each in conditions.items() if found != kind]
        new = {"type": kind, "status": status, "reason": reason, "message": message}
        request["status"] = {"conditions": [*kept, new | {"lastTransitionTime": write_time(time.time())}]}
        path = f"{_REQUESTS}/namespaces/{metadata['namespace']}/provisioningrequests/{metadata['name']}/status"
        try:
            self.api.patch(path, {"status": request["status"]})
        except ApiError as error:
            if error.status != 404:
                raise

    # --- pods --------------------------------------------------------------------------------------------------

    def _scale_up(self, pods: Iterable[Raw], rooms: Sequence[_NodeCapacity]) -> None:
        """Add nodes for the pods one by one, up to the limits of the groups.

        A pod for which no node may be added gets the event NotTriggerScaleUp.
        """
        for pod in pods:
            if _fits(pod["spec"], rooms):
                continue
            wanted = self._find_nodes([pod["spec"]])
            if wanted is None:
                self._say_of_pod(pod)
            else:
                self._add(wanted)

    def _say_of_pod(self, pod: Raw) -> None:
        metadata = pod["metadata"]
        event = {
            "metadata": {"name": f"{metadata['name']}.not-triggered"},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": metadata["namespace"]}
            | {"name": metadata["name"], "uid": metadata["uid"]},
            "source": {"component": "cluster-autoscaler"},
            "type": "Normal",
            "reason": "NotTriggerScaleUp",
            "message": "pod didn't trigger scale-up: 1 max node group size reached",
            "lastTimestamp": metadata["creationTimestamp"],
        }
        try:
            self.api.post(f"/api/v1/namespaces/{metadata['namespace']}/events", event)
        except ApiError as error:
            if error.status != 409:
                raise

    # --- nodes -------------------------------------------------------------------------------------------------

    def _find_nodes(self, specs: Iterable[Raw]) -> list[NodeGroup] | None:
        """Return the group of each node that these pods need; None if that exceeds the limits of the groups."""
        added: list[tuple[NodeGroup, _NodeCapacity]] = []
        for spec in specs:
            if _fits(spec, [room for _, room in added]):
                continue
            for group in self.groups:
                room = _NodeCapacity({ZONE: group.zone}, parse_cpu(group.cpu))
                if group.left > sum(each is group for each, _ in added) and room.add_pod(spec):
                    added.append((group, room))
                    break
            else:
                return None
        return [group for group, _ in added]

    def _add(self, groups: Iterable[NodeGroup]) -> None:
        for group in groups:
            group.left -= 1
            name = f"added-{group.zone}-{len(self.added)}"
            room = {"cpu": group.cpu, "memory": "256Gi", "pods": "110"}
            labels = {"kubernetes.io/hostname": name, ZONE: group.zone, "type": "kwok"}
            metadata = {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}}
            status = {"capacity": room, "allocatable": room}
            self.api.post("/api/v1/nodes", {"metadata": metadata, "status": status})
            self.added.append(name)

    def remove_all(self) -> None:
        """Remove the nodes that it has added."""
        while self.added:
            self.api.delete(f"/api/v1/nodes/{self.added.pop()}")


def _is_candidate(pod: Raw) -> bool:
    spec, status = pod["spec"], pod["status"]
    unschedulable = any(
        (each["type"], each["status"], each.get("reason")) == ("PodScheduled", "False", "Unschedulable")
        for each in status.get("conditions", ())
    )
    return (
        unschedulable
        and not spec.get("nodeName")
        and not status.get("nominatedNodeName")
        and "deletionTimestamp" not in pod["metadata"]
        and CONSUMES not in pod["metadata"].get("annotations", {})
    )


def _fits(spec: Raw, rooms: Iterable[_NodeCapacity]) -> bool:
    """Add a pod to the first node on which it fits, and return whether there was one."""
    return any(room.add_pod(spec) for room in rooms)


def _count_cpu(spec: Raw) -> int:
    return sum(parse_cpu(each.get("resources", {}).get("requests", {}).get("cpu", "0")) for each in spec["containers"])


def _find_allocatable(node: Raw) -> str:
    return str(node["status"]["allocatable"]["cpu"])


def _read_conditions(request: Raw) -> dict[tuple[str, str], Raw]:
    """Return the conditions of a request by type and status."""
    return {(each["type"], each["status"]): each for each in request.get("status", {}).get("conditions", ())}
