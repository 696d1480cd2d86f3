"""Stories in which Kueue decides when a gang may start, and Serried where and that it starts whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from serried.api.names import GANG_POLICY
from tests.e2e.kinds.stage import JOB_SETS, replicated
from tests.e2e.kueue.history import PodHistory
from tests.support.cluster_stage import ClusterStage, Raw, eventually, names

QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
HOSTNAME = "kubernetes.io/hostname"
_API = "kueue.x-k8s.io/v1beta2"
_KUEUE = f"/apis/{_API}"
_PLURALS = {
    "ClusterQueue": "clusterqueues",
    "ResourceFlavor": "resourceflavors",
    "Topology": "topologies",
    "WorkloadPriorityClass": "workloadpriorityclasses",
}
_WHOLE_CLUSTER = "384"
"""CPU of 12 nodes of 32."""


class KueueStage(ClusterStage):
    """A namespace with LocalQueues, each with a ClusterQueue of its own."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._made: list[str] = []
        self._history = PodHistory(self.cluster, self.namespace)

    def create_queue(self, name: str, cpu: str = _WHOLE_CLUSTER, flavor: Raw | None = None, **spec: Any) -> None:
        """A queue with this quota; the others are fields of the specs of its ResourceFlavor and its ClusterQueue."""
        full = self._full(name)
        self._make("ResourceFlavor", name, spec=flavor or {})
        resource = {"name": "cpu", "nominalQuota": cpu}
        group = {"coveredResources": ["cpu"], "flavors": [{"name": full, "resources": [resource]}]}
        self._make("ClusterQueue", name, spec={"namespaceSelector": {}, "resourceGroups": [group], **spec})
        body = {"metadata": {"name": name}, "spec": {"clusterQueue": full}}
        self._post(f"{self._home()}/localqueues", {"apiVersion": _API, "kind": "LocalQueue", **body})
        eventually(f"queue {name}", lambda: self._is_active(name))

    def create_topology(self, name: str, *levels: str) -> str:
        """A Topology of Kueue of these labels; returns its name in the cluster."""
        return self._make("Topology", name, spec={"levels": [{"nodeLabel": level} for level in levels]})

    def create_priority(self, name: str, value: int) -> str:
        """A WorkloadPriorityClass; returns its name in the cluster."""
        return self._make("WorkloadPriorityClass", name, value=value)

    def _make(self, kind: str, name: str, **fields: Any) -> str:
        path = f"{_KUEUE}/{_PLURALS[kind]}"
        self._post(path, {"apiVersion": _API, "kind": kind, "metadata": {"name": self._full(name)}, **fields})
        self._made.append(f"{path}/{self._full(name)}")
        return self._full(name)

    def _full(self, name: str) -> str:
        return f"{self.namespace}-{name}"

    def _home(self) -> str:
        return f"{_KUEUE}/namespaces/{self.namespace}"

    def _is_active(self, queue: str) -> bool:
        status = self.cluster.api.get(f"{self._home()}/localqueues/{queue}").get("status", {})
        return any((each["type"], each["status"]) == ("Active", "True") for each in status.get("conditions", ()))

    def hold_queue(self, name: str) -> None:
        """Stop the admission of a queue; workloads that are admitted stay."""
        self.cluster.api.patch(f"{_KUEUE}/clusterqueues/{self._full(name)}", {"spec": {"stopPolicy": "Hold"}})

    def release_queue(self, name: str) -> None:
        """Admit workloads of a queue again."""
        self.cluster.api.patch(f"{_KUEUE}/clusterqueues/{self._full(name)}", {"spec": {"stopPolicy": "None"}})

    def set_quota(self, name: str, cpu: str) -> None:
        """Change the quota of a queue."""
        path = f"{_KUEUE}/clusterqueues/{self._full(name)}"
        groups = self.cluster.api.get(path)["spec"]["resourceGroups"]
        groups[0]["flavors"][0]["resources"][0]["nominalQuota"] = cpu
        self.cluster.api.patch(path, {"spec": {"resourceGroups": groups}})

    def queue_job(
        self,
        queue: str,
        name: str,
        size: int,
        cpu: str,
        *,
        priority: str = "",
        annotations: dict[str, str] | None = None,
        **spec: Any,
    ) -> None:
        """An Indexed Job of so many pods in a queue; ``spec`` are more fields of its own."""
        labels = {QUEUE: queue} | ({PRIORITY: priority} if priority else {})
        metadata = {"labels": labels, "annotations": annotations or {}}
        self.submit_job(name, cpu=cpu, metadata=metadata, **{"parallelism": size, "completions": size, **spec})

    def queue_job_set(self, queue: str, name: str, replicas: int, pods: int, cpu: str) -> None:
        """A JobSet in a queue, which is one gang."""
        metadata = {"name": name, "labels": {QUEUE: queue}, "annotations": {GANG_POLICY: "JobSetAsGang"}}
        spec = {"replicatedJobs": [replicated("workers", replicas, pods, cpu)]}
        body = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}
        self._post(self._job_sets(), body)

    def delete_job_set(self, name: str) -> None:
        """A JobSet goes, and what it owns before it."""
        self._delete(f"{self._job_sets()}/{name}", "Foreground")

    def queue_pods(self, queue: str, name: str, size: int, cpu: str, *, member: bool) -> str:
        """Plain pods that are a group of Kueue's; with ``member`` members of a PodGroup, too.

        Returns the name by which Serried calls their group.
        """
        if member:
            self.create_group(name, size)
        self.add_pods(queue, name, size, cpu, name, member=member)
        return name if member else f"kueue:{name}:{size}"

    def add_pods(self, queue: str, group: str, size: int, cpu: str, prefix: str, *, member: bool) -> None:
        """All the pods of such a group, with names that begin with ``prefix``."""
        labels = {QUEUE: queue, "kueue.x-k8s.io/pod-group-name": group}
        annotations = {"kueue.x-k8s.io/pod-group-total-count": str(size)}
        self.create_pods(
            names(prefix, size), group if member else None, cpu=cpu, labels=labels, annotations=annotations
        )

    def _job_sets(self) -> str:
        return f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{self.namespace}/jobsets"

    def member_template(self, group: str, template: Raw) -> Raw:
        """The pod template, of members of a PodGroup, as the API level has it."""
        if self.native:
            return template | {"spec": template["spec"] | {"schedulingGroup": {"podGroupName": group}}}
        labels = {"scheduling.serried.dev/pod-group": group}
        return template | {"metadata": template.get("metadata", {}) | {"labels": labels}}

    @contextmanager
    def cordoned(self, node: str) -> Iterator[None]:
        """A node takes no new pods for as long as the body runs."""
        self.cluster.kubectl("cordon", node)
        try:
            yield
        finally:
            self.cluster.kubectl("uncordon", node)

    @contextmanager
    def tainted(self, node: str) -> Iterator[None]:
        """A node has a taint that nobody tolerates for as long as the body runs."""
        path = f"/api/v1/nodes/{node}"
        self.cluster.api.patch(path, {"spec": {"taints": [{"key": "example.com/broken", "effect": "NoSchedule"}]}})
        try:
            yield
        finally:
            self.cluster.api.patch(path, {"spec": {"taints": None}})

    def lift_gate(self, pod: str, gate: str) -> None:
        """The owner of a scheduling gate takes it off; those of others stay."""
        path = f"{self._pods()}/{pod}"
        gates = [each for each in self.cluster.api.get(path)["spec"]["schedulingGates"] if each["name"] != gate]
        self.cluster.api.patch(path, {"spec": {"schedulingGates": gates or None}})

    def close(self) -> None:
        """As ever, after the JobSets and what Kueue keeps, and before the queues."""
        self._history.close()
        # A pod of a group of Kueue's stays until it is replaced, or the group's Workload is gone.
        for path in (self._jobs(), self._pods(), f"{self._home()}/workloads"):
            self.delete_all(path)
        self.cluster.kubectl("delete", JOB_SETS, "--all", "-n", self.namespace, "--cascade=foreground")
        super().close()
        self.delete_all(f"{self._home()}/localqueues")
        for path in reversed(self._made):
            self._delete(path)

    # --- what people see of it ------------------------------------------------------------------------------------

    def is_suspended(self, job: str) -> bool:
        """Return whether a Job is suspended."""
        return bool(self.cluster.api.get(f"{self._jobs()}/{job}")["spec"].get("suspend"))

    def entry(self, owner: str) -> Raw:
        """The Workload that Kueue has made for a Job, a JobSet or a group of pods; empty if there is none."""
        items: list[Raw] = self.cluster.api.get(f"{self._home()}/workloads")["items"]
        for item in items:
            owners = {each["name"] for each in item["metadata"].get("ownerReferences", [])}
            if owner in owners | {item["metadata"]["name"]}:
                return item
        return {}

    def evictions(self, owner: str) -> dict[str, int]:
        """Return the number of times that Kueue has evicted a Job, a JobSet or a group of pods, by reason."""
        return self.evicted().get(self.entry(owner).get("metadata", {}).get("name", ""), {})

    def evicted(self) -> dict[str, dict[str, int]]:
        """Return that number for each of Kueue's Workloads that was ever evicted."""
        items: list[Raw] = self.cluster.api.get(f"{self._home()}/workloads")["items"]
        found = {each["metadata"]["name"]: each.get("status", {}).get("schedulingStats", {}) for each in items}
        return {
            name: {each["reason"]: each["count"] for each in stats["evictions"]}
            for name, stats in found.items()
            if stats.get("evictions")
        }

    def await_admitted(self, owner: str) -> None:
        """Wait until Kueue has admitted a Job, a JobSet or a group of pods."""
        eventually(f"{owner} admitted", lambda: self._holds(owner, "Admitted"))

    def await_evicted(self, owner: str, reason: str) -> None:
        """Wait until Kueue has evicted it for this reason."""
        eventually(f"{owner} evicted, by {reason}", lambda: reason in self.evictions(owner), 60)

    def await_new_pods(self, prefix: str, before: set[str]) -> None:
        """Wait for as many pods as there are UIDs in ``before``, all of them new."""

        def are_new(now: set[str]) -> bool:
            return len(now) == len(before) and not now & before

        eventually(f"new pods of {prefix}", lambda: are_new(self.pod_uids(prefix)))

    def pod_uids(self, prefix: str) -> set[str]:
        """The identities of the pods whose names begin so."""
        return {pod["metadata"]["uid"] for pod in self.pods(prefix)}

    def has_succeeded(self, job: str) -> bool:
        """Return whether a Job is complete."""
        conditions = self.cluster.api.get(f"{self._jobs()}/{job}").get("status", {}).get("conditions", [])
        return any((each["type"], each["status"]) == ("Complete", "True") for each in conditions)

    def await_ready_in_kueue(self, owner: str) -> None:
        """Wait until Kueue has seen that all pods of it are ready."""
        eventually(f"{owner} ready", lambda: self._holds(owner, "PodsReady"))

    def position(self, group: str) -> int:
        """The place of a group in the queue of Serried, 1 for the first; 0 if it is in none."""
        return int((self.debug_page(group).get("queue") or {}).get("position", 0))

    def min_count(self, job: str) -> int:
        """minCount of the PodGroup of a Job."""
        (group,) = self.groups_of(job)
        return int(group["spec"]["schedulingPolicy"]["gang"]["minCount"])

    def chosen_hosts(self, prefix: str) -> dict[str, str]:
        """The hosts that Kueue has written into the pods that go on, by the names of the pods."""
        alive = [pod for pod in self.pods(prefix) if pod["status"]["phase"] in {"Pending", "Running"}]
        selectors = {pod["metadata"]["name"]: pod["spec"].get("nodeSelector", {}) for pod in alive}
        return {name: found[HOSTNAME] for name, found in selectors.items() if HOSTNAME in found}

    def _holds(self, owner: str, condition: str) -> bool:
        conditions = self.entry(owner).get("status", {}).get("conditions", [])
        return any((each["type"], each["status"]) == (condition, "True") for each in conditions)

    def starts(self, **sizes: int) -> dict[str, list[int]]:
        """Return the number of bound pods of each start of these gangs, as `PodHistory.list_starts` counts them."""
        return self._history.list_starts(sizes)
