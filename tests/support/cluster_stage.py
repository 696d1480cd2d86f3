"""A stage for end-to-end tests on a real control plane: changes that users make, and what they can observe."""

import itertools
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import httpx

from bench.cluster import Cluster
from serried.api.job import Job, decode_job
from serried.api.node import PROTECTED_BY

RACK = "topology.serried.dev/rack"
SCHEDULER = "serried"

Raw = dict[str, Any]
SCHEDULER_RENEWS_WITHIN_SECONDS = 8.0
"""The longest time for which the scheduler may be stopped without losing its Lease.

That is its renewDeadline (10 s) less the two seconds since its last renewal.
"""

log = logging.getLogger(__name__)

T = TypeVar("T")

_TOPOLOGY_GATE = "TopologyAwareWorkloadScheduling"
_SERIAL = itertools.count()


def eventually(what: str, probe: Callable[[], T | None], seconds: float = 30.0) -> T:
    """Call ``probe`` until it returns a true value, and return that. Fail after ``seconds`` with the last value."""
    deadline = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s, last seen {value!r}"
        time.sleep(0.05)


class ClusterStage:
    """One namespace of a cluster, with the actions and observations of the tests."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.native = cluster.spec.api == "native"
        self.inline = cluster.spec.api_version.endswith("/v1alpha1")
        self.beside_native = bool(cluster.spec.scheduler_gates)
        """True if kube-scheduler itself schedules gangs, too."""
        self.whole: Any = "PodGroup" if cluster.spec.api_version.endswith("/v1alpha2") else {"all": {}}
        """The disruptionMode of a group that is evicted only as a whole, as the API version has it."""
        self._debug = httpx.Client(base_url=cluster.ops_url, timeout=10.0)
        self._post("/api/v1/namespaces", {"metadata": {"name": namespace}})

    def await_ready(self) -> None:
        """Return once a test may begin. Subclasses wait here."""

    def close(self) -> None:
        """Delete all objects of the namespace, and wait until no pod and no Reservation is left."""
        with closing(self._debug):
            for path in (self._jobs(), self._groups(), self._pods()):
                self.delete_all(path)
            eventually("an empty namespace", lambda: not self.pods())
            eventually("no reservation", lambda: not self.reservations())

    # --- changes -----------------------------------------------------------------------------------------------

    def create_group(self, name: str, min_count: int | None, key: str | None = None) -> None:
        """Create a PodGroup: a gang with ``min_count``, or of policy basic for None.

        ``key`` is its required topology key, in the field or the annotation, as the API level supports it.
        """
        policy = {"basic": {}} if min_count is None else {"gang": {"minCount": min_count}}
        if self.inline:
            self._create_inline(name, policy)
            return
        spec: dict[str, Any] = {"schedulingPolicy": policy}
        metadata: dict[str, Any] = {"name": name}
        if key is not None and not self._keeps_constraints():
            metadata["annotations"] = {"scheduling.serried.dev/required-topology": key}
        elif key is not None:
            spec["schedulingConstraints"] = {"topology": [{"key": key}]}
        body = {"apiVersion": self.cluster.spec.api_version, "kind": "PodGroup", "metadata": metadata, "spec": spec}
        self._post(self._groups(), body)

    def _keeps_constraints(self) -> bool:
        """Return whether the API server keeps the field, which it drops without TopologyAwareWorkloadScheduling."""
        return not self.native or f"{_TOPOLOGY_GATE}=true" in self.cluster.spec.api_server_gates

    def _create_inline(self, name: str, policy: dict[str, Any]) -> None:
        spec = {"podGroups": [{"name": name, "policy": policy}]}
        body = {
            "apiVersion": self.cluster.spec.api_version,
            "kind": "Workload",
            "metadata": {"name": name},
            "spec": spec,
        }
        self._post(self._groups(), body)

    def create_scheduling(self, kind: str, name: str, spec: Raw, annotations: dict[str, str] | None = None) -> None:
        """Create a Workload or a PodGroup with this spec, in the API version of the cluster."""
        metadata = {"name": name, "annotations": annotations or {}}
        body = {"apiVersion": self.cluster.spec.api_version, "kind": kind, "metadata": metadata, "spec": spec}
        self._post(self._workloads() if kind == "Workload" else self._groups(), body)

    def create_pods(
        self,
        names: list[str],
        group: str | None = None,
        cpu: str = "1",
        replica: str = "",
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
        **fields: Any,
    ) -> None:
        """Create pods, by default plain ones: members of ``group`` if given, and of its ``replica`` (1.35 only).

        ``fields`` are more fields of their spec.
        """
        for name in names:
            metadata: dict[str, Any] = {"name": name, "labels": dict(labels or {}), "annotations": annotations or {}}
            spec: dict[str, Any] = pod_spec(cpu) | fields
            if group is not None and self.inline:
                spec["workloadRef"] = {"name": group, "podGroup": group}
                if replica:
                    spec["workloadRef"]["podGroupReplicaKey"] = replica
            elif group is not None and self.native:
                spec["schedulingGroup"] = {"podGroupName": group}
            elif group is not None:
                metadata["labels"]["scheduling.serried.dev/pod-group"] = group
            self._post(self._pods(), {"metadata": metadata, "spec": spec})

    def fill_a_node(self) -> None:
        """Fill one node with a pod, so that a gang spans two racks unless a rule keeps it in one."""
        self.create_group("filler", 1)
        self.create_pods(["filler-0"], "filler", cpu="30")
        self.await_bound("filler", 1)

    def create_job(self, name: str, size: int, cpu: str = "1", key: str | None = None) -> None:
        """Create an Indexed Job without anything about groups, except the topology annotation if ``key`` is given."""
        annotations = {} if key is None else {"scheduling.serried.dev/required-topology": key}
        template = {"spec": pod_spec(cpu) | {"restartPolicy": "Never"}}
        spec = {"parallelism": size, "completions": size, "completionMode": "Indexed", "template": template}
        self._post(self._jobs(), {"metadata": {"name": name, "annotations": annotations}, "spec": spec})

    def submit_job(
        self, name: str, scheduler: str = SCHEDULER, cpu: str = "1", metadata: Raw | None = None, **spec: Any
    ) -> Job:
        """Create an Indexed Job of two pods, with the fields of ``spec`` replaced. Return it as created."""
        body = {"metadata": {"name": name} | (metadata or {}), "spec": indexed_spec(scheduler, cpu) | spec}
        made = decode_job(self.cluster.api.post(self._jobs(), body))
        assert isinstance(made, Job)
        return made

    def change_job(self, name: str, **spec: Any) -> None:
        """Change fields of a Job's spec."""
        patch = json.dumps({"spec": spec})
        self.cluster.kubectl("patch", "job", name, "-n", self.namespace, "--type", "merge", "-p", patch)

    def delete_job(self, name: str) -> None:
        """Delete a Job and its pods."""
        self._delete(f"{self._jobs()}/{name}", "Background")

    def remove_gates(self, name: str, but: str = "") -> None:
        """Remove a pod's scheduling gates, except ``but``."""
        patch = json.dumps({"spec": {"schedulingGates": [{"name": but}] if but else None}})
        self.cluster.kubectl("patch", "pod", name, "-n", self.namespace, "--type", "merge", "-p", patch)

    def delete_group(self, name: str) -> None:
        """Delete a PodGroup."""
        self._delete(f"{self._groups()}/{name}")

    def delete_pods(self, *names: str) -> None:
        """Delete pods without a grace period."""
        for name in names:
            self._delete(f"{self._pods()}/{name}")

    def create_budget(self, name: str, labels: dict[str, str], **fields: Any) -> None:
        """Create a PodDisruptionBudget of the pods with these labels. ``fields`` are more fields of its spec."""
        spec = {"selector": {"matchLabels": labels}, **fields}
        self._post(self._budgets(), {"metadata": {"name": name}, "spec": spec})

    def bind(self, pod: str, node: str) -> None:
        """Bind a pod to a node, as a scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        self._post(f"{self._pods()}/{pod}/binding", {"metadata": {"name": pod}, "target": target})

    def delete_node(self, name: str) -> None:
        """Delete a node. Its pods remain for now."""
        self._delete(f"/api/v1/nodes/{name}")

    def delete_all(self, path: str) -> None:
        """Delete all objects of the list at a path."""
        for item in self.cluster.api.get(path)["items"]:
            self._delete(f"{path}/{item['metadata']['name']}", "Background")

    def delete_all_pods(self) -> None:
        """Delete all pods, and wait until they are gone."""
        self.delete_all(self._pods())
        eventually("no pods", lambda: not self.pods())

    @contextmanager
    def stopped(self, *processes: str) -> Iterator[None]:
        """Stop processes of the cluster by SIGSTOP while the body runs."""
        pids = [self.cluster.pids[name] for name in processes]
        begun = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            woken = datetime.now(UTC)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            if "scheduler" in processes and time.monotonic() - begun > SCHEDULER_RENEWS_WITHIN_SECONDS:
                self._await_scheduler(woken)

    def _await_scheduler(self, woken: datetime) -> None:
        """Wait until the scheduler renews its Lease. If it has lost the Lease and ended, start a new one."""
        eventually("the scheduler renews or ends", lambda: not self._scheduler_runs() or self.lease_renewed() > woken)
        if not self._scheduler_runs():
            self.cluster.start("scheduler")
            self.cluster.await_ready("scheduler")

    def _scheduler_runs(self) -> bool:
        return self.cluster.alive["scheduler"]

    def lease_renewed(self) -> datetime:
        """Return the time of the scheduler's last renewal of its Lease."""
        lease = self.cluster.api.get("/apis/coordination.k8s.io/v1/namespaces/serried-system/leases/serried")
        return datetime.fromisoformat(lease["spec"]["renewTime"])

    # --- observations ------------------------------------------------------------------------------------------

    def pods(self, prefix: str = "") -> list[dict[str, Any]]:
        """Return the pods whose names start with ``prefix``."""
        items: list[dict[str, Any]] = self.cluster.api.get(self._pods())["items"]
        return [pod for pod in items if pod["metadata"]["name"].startswith(prefix)]

    def bound(self, prefix: str = "") -> dict[str, str]:
        """Return the node of each bound pod, by pod name."""
        return {p["metadata"]["name"]: p["spec"]["nodeName"] for p in self.pods(prefix) if p["spec"].get("nodeName")}

    def racks(self, prefix: str = "") -> set[str]:
        """Return the racks of the bound pods."""
        labels = {
            n["metadata"]["name"]: n["metadata"]["labels"] for n in self.cluster.api.get("/api/v1/nodes")["items"]
        }
        return {labels[node][RACK] for node in self.bound(prefix).values()}

    def ranks(self, prefix: str = "") -> dict[str, str | None]:
        """Return the rank annotation of each bound pod, by pod name; None for a pod without it."""
        bound = [pod["metadata"] for pod in self.pods(prefix) if pod["spec"].get("nodeName")]
        return {meta["name"]: meta.get("annotations", {}).get("scheduling.serried.dev/rank") for meta in bound}

    def await_bound(self, prefix: str, count: int, seconds: float = 30.0) -> None:
        """Wait until exactly ``count`` pods are bound. Fail with the extender's explanation."""
        try:
            eventually(f"{count} bound pods of {prefix}", lambda: len(self.bound(prefix)) == count, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._explain(prefix)}") from error

    def _explain(self, name: str) -> str:
        """Return text for a failure: `/debug` about a group, or about a Job's group, and all pods with their events."""
        try:
            group = self._find_group(name) or name
            view, decisions = self.debug_page(group), self.decisions(group)[:10]
        except httpx.TransportError as error:
            view, decisions = {}, [f"the extender does not answer: {error}"]
        parts = {key: view.get(key) for key in ("message", "members", "placed", "waiting", "timeline")}
        pods = [(pod["metadata"]["name"], pod["spec"].get("nodeName"), pod.get("status")) for pod in self.pods()][:10]
        told = [line for pod in pods for line in [str(pod), *map(str, self.events(pod[0]))]]
        return "\n".join([f"bound: {sorted(self.bound(name))}", f"{group}: {parts}", *decisions, *told])

    def group_of_job(self, job: str) -> str:
        """Wait until a Job has a PodGroup, and return its name."""
        return eventually(f"a PodGroup for Job {job}", lambda: self._find_group(job))

    def workloads_of(self, job: str) -> list[Raw]:
        """Return the Workloads that refer to a Job."""
        items: list[Raw] = self.cluster.api.get(self._workloads())["items"]
        return [item for item in items if item["spec"]["controllerRef"]["name"] == job]

    def await_group(self, job: str, workload: str = "") -> Raw:
        """Wait until a Job controls a PodGroup, made from ``workload`` if given, and return it.

        If the controller observes a user's Workload after its Job, there may be a PodGroup of Serried's own Workload
        first.
        """

        def find() -> list[Raw]:
            groups = self.groups_of(job)
            return [each for each in groups if not workload or each["spec"]["workloadRef"]["workloadName"] == workload]

        try:
            return eventually(f"a PodGroup of {job}", find)[0]
        except AssertionError as error:
            workloads = [item["metadata"]["name"] for item in self.workloads_of(job)]
            raise AssertionError(f"{error}\nWorkloads: {workloads}\n{self.events(job)}") from error

    def groups_of(self, job: str) -> list[Raw]:
        """Return the PodGroups that a Job owns."""
        items: list[Raw] = self.cluster.api.get(self._groups())["items"]
        return [item for item in items if any(o["name"] == job for o in item["metadata"].get("ownerReferences", []))]

    def debug_page(self, group: str) -> dict[str, Any]:
        """Return the document of the group's page on ``/debug``; {} if the extender does not know the group."""
        answer = self._debug.get(f"/debug/groups/{self.namespace}/{group}")
        view: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
        return view

    def await_reason(self, group: str, reason: str, *parts: str, seconds: float = 10.0) -> dict[str, Any]:
        """Wait until ``/debug`` shows a reason for the group, with all ``parts`` in its message. Return the page.

        The reason alone is not enough: its numbers change while the members of a gang are observed one by one.
        """

        def find() -> dict[str, Any] | None:
            view = self.debug_page(group)
            told = str(view.get("message", ""))
            return view if view.get("reason") == reason and all(part in told for part in parts) else None

        try:
            return eventually(f"{group} with reason {reason} {parts}", find, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._explain(group)}") from None

    def list_groups(self) -> list[Raw]:
        """Return the PodGroups of the namespace."""
        items: list[Raw] = self.cluster.api.get(self._groups())["items"]
        return items

    def groups(self) -> set[str]:
        """Return the names of the PodGroups, including those that are being deleted."""
        return {item["metadata"]["name"] for item in self.list_groups()}

    def condition(self, group: str) -> tuple[str, str, str]:
        """Return status, reason and message of the scheduling condition; "" for each without it.

        The condition has another name in 1.36.
        """
        found = self.cluster.api.get(f"{self._groups()}/{group}")
        for one in found.get("status", {}).get("conditions", []):
            if one["type"] in {"PodGroupInitiallyScheduled", "PodGroupScheduled"}:
                return one["status"], one["reason"], one.get("message", "")
        return "", "", ""

    def events(self, about: str) -> list[tuple[str, str]]:
        """Return reason and message of the events about an object."""
        items = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [(e["reason"], e["message"]) for e in items if e["involvedObject"]["name"] == about]

    def messages(self, about: str, reason: str) -> list[str]:
        """Return the messages of the events with a reason about an object."""
        return [message for found, message in self.events(about) if found == reason]

    def list_decisions(self, group: str) -> list[dict[str, Any]]:
        """Return the extender's decisions about a group from ``/debug``, the newest first."""
        found: list[dict[str, Any]] = self._debug.get(
            "/debug/decisions", params={"group": f"{self.namespace}/{group}"}
        ).json()
        return found

    def decisions(self, group: str) -> list[str]:
        """Return the texts of the extender's decisions about a group, the newest first."""
        return [each["text"] for each in self.list_decisions(group)]

    def disruptions_allowed(self, budget: str) -> int | None:
        """Return disruptionsAllowed of a PodDisruptionBudget; None until its controller has written the status."""
        status: Raw = self.cluster.api.get(f"{self._budgets()}/{budget}").get("status", {})
        return status.get("disruptionsAllowed")

    # --- nodes -------------------------------------------------------------------------------------------------

    @contextmanager
    def with_autoscaler_configmap(self) -> Iterator[None]:
        """Create the ConfigMap by which Serried detects Cluster Autoscaler, and delete it at the end of the body."""
        path = "/api/v1/namespaces/kube-system/configmaps"
        self._post(path, {"metadata": {"name": "cluster-autoscaler-status"}})
        try:
            yield
        finally:
            self._delete(f"{path}/cluster-autoscaler-status")

    def list_nodes(self) -> list[str]:
        """Return the names of all nodes, sorted."""
        return sorted(node["metadata"]["name"] for node in self.cluster.api.get("/api/v1/nodes")["items"])

    def annotations_of_node(self, name: str) -> dict[str, str]:
        """Return the annotations of a node."""
        return dict(self.cluster.api.get(f"/api/v1/nodes/{name}")["metadata"].get("annotations", {}))

    def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> None:
        """Change annotations of a node, as a user would. The value None removes an annotation."""
        self.cluster.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": dict(annotations)}})

    def list_protected(self) -> list[str]:
        """Return the names of the nodes with Serried's annotation against removal by an autoscaler."""
        return [name for name in self.list_nodes() if PROTECTED_BY in self.annotations_of_node(name)]

    def reservations(self) -> list[dict[str, Any]]:
        """Return the Reservation objects of the namespace."""
        path = f"/apis/scheduling.serried.dev/v1beta1/namespaces/{self.namespace}/reservations"
        items: list[dict[str, Any]] = self.cluster.api.get(path)["items"]
        return items

    def selfcheck(self) -> dict[str, Any]:
        """Return the extender's self-check from ``/debug``."""
        found: dict[str, Any] = self._debug.get("/debug/selfcheck").json()
        return found

    def vacancies(self) -> list[dict[str, Any]]:
        """Return the kept slots of lost members in the namespace, from ``/debug``."""
        return [each for each in self._debug.get("/debug/vacancies").json() if each["namespace"] == self.namespace]

    def held_in_ledger(self) -> list[dict[str, Any]]:
        """Return the ledger's reservations in the namespace, from ``/debug``."""
        return [r for r in self._debug.get("/debug/reservations").json() if r["namespace"] == self.namespace]

    def _find_group(self, job: str) -> str:
        for item in self.cluster.api.get(self._groups())["items"]:
            owners = item["metadata"].get("ownerReferences", [])
            if any(owner["kind"] == "Job" and owner["name"] == job for owner in owners):
                name = str(item["metadata"]["name"])
                return f"{name}/{item['spec']['podGroups'][0]['name']}" if self.inline else name
        return ""

    def _jobs(self) -> str:
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs"

    def _workloads(self) -> str:
        return f"/apis/{self.cluster.spec.api_version}/namespaces/{self.namespace}/workloads"

    def _groups(self) -> str:
        return self._workloads() if self.inline else self._workloads().replace("workloads", "podgroups")

    def _budgets(self) -> str:
        return f"/apis/policy/v1/namespaces/{self.namespace}/poddisruptionbudgets"

    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def _post(self, path: str, body: dict[str, Any]) -> None:
        self.cluster.api.post(path, body)

    def _delete(self, path: str, propagation: str = "Background") -> None:
        self.cluster.api.delete(path, propagation)


S = TypeVar("S", bound=ClusterStage)


@contextmanager
def staged(kind: type[S], cluster: Cluster) -> Iterator[S]:
    """Yield a stage in a new namespace, whose objects are deleted at the end."""
    restart_scheduler(cluster)
    stage = kind(cluster, f"story-{next(_SERIAL)}")
    stage.await_ready()
    try:
        yield stage
    finally:
        stage.close()


def restart_scheduler(cluster: Cluster) -> None:
    """Start kube-scheduler again if it has ended, as a kubelet would.

    kube-scheduler ends if it cannot renew its Lease for 10 s, which on a busy machine is no fault of Serried's.
    Serried's own processes must not end, so they are not restarted.
    """
    if not cluster.alive.get("scheduler", True):
        log.warning("kube-scheduler has ended by itself, and is started again")
        cluster.start("scheduler")
        cluster.await_ready("scheduler")


def names(prefix: str, count: int, start: int = 0) -> list[str]:
    """Return the names ``prefix-0``, ``prefix-1`` and so on."""
    return [f"{prefix}-{i}" for i in range(start, start + count)]


def pod_spec(cpu: str) -> dict[str, Any]:
    """Return the spec of a pod with one container, for Serried's scheduler."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    return {"schedulerName": SCHEDULER, "containers": [container], "terminationGracePeriodSeconds": 0}


def indexed_spec(scheduler: str, cpu: str) -> Raw:
    """Return the spec of an Indexed Job of two pods, which Serried treats as a gang."""
    template = {"spec": pod_spec(cpu) | {"schedulerName": scheduler, "restartPolicy": "Never"}}
    return {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template}
