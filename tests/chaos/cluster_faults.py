"""Faults that users, operators and other schedulers cause at the wrong moment. Each is one call, safe to repeat."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import httpx

from bench.cluster import Cluster, ClusterError
from bench.cluster.api import ApiError
from bench.cluster.nodes import node_name, node_object
from serried.api.names import composite_api_version
from tests.chaos.aims import ANYBODY, Aim
from tests.chaos.gangs import Gang
from tests.chaos.load import Load
from tests.chaos.objects import read_milli

_RESTORED_SECONDS = 4.0
_FOREIGN = "another-scheduler"
_TAINT = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
Raw = dict[str, Any]


class ClusterFaults:
    """Does one of them at a time, to anybody or to those whom an aim names, and repairs nodes after a while."""

    def __init__(self, cluster: Cluster, load: Load, source: Random, note: Callable[[str, str], None]) -> None:
        self._cluster = cluster
        self._load = load
        self._source = source
        self._note = note
        self._away: dict[str, float] = {}
        """The nodes that were changed, with the time at which each is repaired."""

        self._leaving: set[str] = set()
        """The namespaces that are to be deleted, and of which nobody has taken the request."""

        self._foreign = 0
        self._lock = threading.RLock()
        self.counted: Counter[str] = Counter()
        """The number of faults by kind, whatever they hit."""

        self.aimed: Counter[str] = Counter()
        """The number of faults by kind that were done at a write of the extender, to the objects of that write."""

    @property
    def kinds(self) -> dict[str, Callable[[Aim], bool]]:
        """Everything that can be done, by its name in the report; False where there was nobody to do it to."""
        return {
            "member deleted": self.delete_member,
            "planned member deleted": self.delete_planned,
            "PodGroup deleted": self.delete_group,
            "Job deleted": self.delete_job,
            "namespace deleted": self.delete_namespace,
            "node deleted": self.delete_node,
            "node drained": self.drain,
            "node cordoned": self.cordon,
            "node not ready": self.unready,
            "planned node taken by another scheduler": self.take_planned,
        }

    def do(self, kind: str, aim: Aim = ANYBODY) -> bool:
        """One of them; what cannot be done now is left out. Whether it was done."""
        with self._lock:
            try:
                done = self.kinds[kind](aim)
            except (ApiError, OSError, ClusterError, ValueError, KeyError, IndexError):
                return False
            if done:
                (self.counted if aim == ANYBODY else self.aimed)[kind] += 1
                self._note("fault", kind)
            return done

    def repair(self) -> bool:
        """Bring nodes back whose time has come; whether none is away any more, and no namespace left to delete."""
        with self._lock:
            with suppress(ApiError, OSError):
                self._end_namespaces()
            for name in [name for name, at in self._away.items() if time.monotonic() >= at]:
                try:
                    self._restore(name)
                    del self._away[name]
                except (ApiError, OSError, ClusterError):
                    self._away[name] = time.monotonic() + 1
            return not self._away and not self._leaving

    def tidy(self) -> None:
        """Remove the other scheduler's pods that have ended."""
        for pod in self._load.pods:
            is_foreign = pod["spec"].get("schedulerName") == _FOREIGN
            if is_foreign and pod.get("status", {}).get("phase") == "Succeeded":
                try:
                    self._delete_pod(pod)
                except (ApiError, OSError):
                    return

    # --- members and groups ------------------------------------------------------------------------------------

    def delete_member(self, aim: Aim) -> bool:
        """Any member, waiting or running."""
        return self._delete_one(self._members(aim))

    def delete_planned(self, aim: Aim) -> bool:
        """A member that has a slot, and is not bound yet."""
        planned = {
            (plan["namespace"], name) for plan in self._plans() for names in plan["slots"].values() for name in names
        }
        waiting = [pod["metadata"] for pod in self._members(aim) if not pod["spec"].get("nodeName")]
        return self._delete_one([{"metadata": pod} for pod in waiting if (pod["namespace"], pod["name"]) in planned])

    def delete_group(self, aim: Aim) -> bool:
        """A PodGroup, or the root of a tree: the owner takes the rest away."""
        gang = self._source.choice([gang for gang in self._gangs(aim) if gang.groups])
        self._load.doom(gang)
        version = self._cluster.spec.api_version
        plural, name = "podgroups", self._source.choice(gang.groups)
        if gang.kind == "tree" and self._source.random() < 0.5:
            plural, name, version = "compositepodgroups", gang.name, composite_api_version(version)
        self._delete(f"/apis/{version}/namespaces/{gang.namespace}/{plural}/{name}")
        return True

    def delete_job(self, aim: Aim) -> bool:
        """A Job with its pods."""
        gang = self._source.choice([gang for gang in self._gangs(aim) if gang.kind == "job"])
        self._load.doom(gang)
        self._delete(f"/apis/batch/v1/namespaces/{gang.namespace}/jobs/{gang.name}")
        return True

    def delete_namespace(self, aim: Aim) -> bool:
        """A namespace with all that is in it; another one is made."""
        space = self._source.choice([space for space in self._load.spare if aim.namespace in {"", space}])
        self._note("ends", space)
        self._load.lose_namespace(space)
        self._leaving.add(space)
        self._end_namespaces()
        return True

    def _end_namespaces(self) -> None:
        for space in list(self._leaving):
            self._delete(f"/api/v1/namespaces/{space}")
            self._leaving.discard(space)

    # --- nodes -------------------------------------------------------------------------------------------------

    def delete_node(self, aim: Aim) -> bool:
        """A node goes, and comes back under its name."""
        self._delete(f"/api/v1/nodes/{self._pick_node(aim)}")
        return True

    def cordon(self, aim: Aim) -> bool:
        """Cordon a node that the aim names, or any."""
        self._patch_node(self._pick_node(aim), {"spec": {"unschedulable": True}})
        return True

    def drain(self, aim: Aim) -> bool:
        """A node is cordoned, and its pods are evicted."""
        name = self._pick_node(aim)
        self._patch_node(name, {"spec": {"unschedulable": True}})
        for pod in self._load.pods:
            if pod["spec"].get("nodeName") == name:
                self._evict(pod)
        return True

    def unready(self, aim: Aim) -> bool:
        """A node is tainted, as the node controller does it with one that is not ready."""
        self._patch_node(self._pick_node(aim), {"spec": {"taints": [_TAINT]}})
        return True

    def take_planned(self, aim: Aim) -> bool:
        """Another scheduler binds a pod to a node that is planned for a gang, as far as it has room."""
        planned = aim.nodes or sorted({node for plan in self._plans() for node in plan["slots"]})
        self._foreign += 1
        name, node = f"foreign-{self._foreign}", self._source.choice(planned)
        if self._count_used(node) + 1000 > read_milli(self._cluster.spec.node_cpu):
            return False
        container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
        spec = {"schedulerName": _FOREIGN, "containers": [container], "terminationGracePeriodSeconds": 0}
        metadata = {"name": name, "annotations": {"bench.serried.dev/succeed-after": "4s"}}
        post = self._cluster.api.post
        post("/api/v1/namespaces/default/pods", {"metadata": metadata, "spec": spec | {"restartPolicy": "Never"}})
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        post(f"/api/v1/namespaces/default/pods/{name}/binding", {"metadata": {"name": name}, "target": target})
        return True

    def _count_used(self, node: str) -> int:
        """The CPU in use in thousandths, as any scheduler sees it."""
        pods = self._cluster.api.get("/api/v1/pods")["items"]
        there = [pod for pod in pods if pod["spec"].get("nodeName") == node]
        alive = [pod for pod in there if pod["status"].get("phase") not in {"Succeeded", "Failed"}]
        requests = (each["resources"]["requests"] for pod in alive for each in pod["spec"]["containers"])
        return sum(read_milli(each["cpu"]) for each in requests)

    # --- requests ----------------------------------------------------------------------------------------------

    def _gangs(self, aim: Aim) -> list[Gang]:
        return aim.pick(self._load.list_gangs())

    def _members(self, aim: Aim) -> list[Raw]:
        alive = [pod for pod in self._load.pods if pod.get("status", {}).get("phase") not in {"Succeeded", "Failed"}]
        members = [pod for pod in alive if pod["metadata"]["namespace"].startswith("chaos-")]
        gangs = self._gangs(aim)
        return members if aim == ANYBODY else [pod for pod in members if any(_is_of(pod, gang) for gang in gangs)]

    def _plans(self) -> list[Raw]:
        """Return the extender's plans. A plan without victims is in no record before its commit."""
        try:
            plans: list[Raw] = httpx.get(f"{self._cluster.debug_url}/reservations").raise_for_status().json()
        except (httpx.HTTPError, ValueError):
            return []
        return plans

    def _pick_node(self, aim: Aim) -> str:
        spec = self._cluster.spec
        free = [name for index in range(spec.nodes) if (name := node_name(index)) not in self._away]
        # So many stay that a rack still holds the largest gang that wants one.
        if spec.nodes - len(free) >= 2:
            raise ValueError("enough nodes are away")
        name = self._source.choice([node for node in free if node in aim.nodes] if aim.nodes else free)
        self._away[name] = time.monotonic() + _RESTORED_SECONDS
        return name

    def _restore(self, name: str) -> None:
        try:
            self._patch_node(name, {"spec": {"unschedulable": None, "taints": None}})
        except ApiError as error:
            if error.status != 404:
                raise
            index = next(index for index in range(self._cluster.spec.nodes) if node_name(index) == name)
            self._cluster.api.post("/api/v1/nodes", node_object(self._cluster.spec, index))

    def _patch_node(self, name: str, patch: Raw) -> None:
        # With kubectl it would take a process each time.
        self._cluster.api.patch(f"/api/v1/nodes/{name}", patch)

    def _evict(self, pod: Raw) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        try:
            self._cluster.api.post(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)
        except ApiError as error:
            if error.status not in {404, 409, 429}:
                raise

    def _delete_one(self, pods: list[Raw]) -> bool:
        if not pods:
            return False
        self._delete_pod(self._source.choice(pods))
        return True

    def _delete_pod(self, pod: Raw) -> None:
        self._delete(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}")

    def _delete(self, path: str) -> None:
        self._cluster.api.delete(path, fine=(404, 409))


def _is_of(pod: Raw, gang: Gang) -> bool:
    """Return whether a pod is a member of the gang. A Job's own pods are named after their Job."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    return bool(namespace == gang.namespace and f"{name}-".startswith(f"{gang.name}-"))
