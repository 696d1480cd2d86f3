"""A stage for stories on a real control plane: what people do to a cluster, and what they see of it."""

import itertools
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import httpx

from bench.cluster import Cluster
from serried.api.job import Job, decode_job

RACK = "topology.serried.dev/rack"
SCHEDULER = "serried"

Raw = dict[str, Any]
SCHEDULER_RENEWS_WITHIN_SECONDS = 8.0
"""Less than its renewDeadline (10 s), by the two seconds that may have passed since it renewed last."""

log = logging.getLogger(__name__)

T = TypeVar("T")

_TOPOLOGY_GATE = "TopologyAwareWorkloadScheduling"
_SERIAL = itertools.count()


def eventually(what: str, probe: Callable[[], T | None], seconds: float = 30.0) -> T:
    """The first value of ``probe`` that is true, asked for until then; fails with what was seen last."""
    deadline = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s, last seen {value!r}"
        time.sleep(0.05)


class ClusterStage:
    """One namespace of a cluster, with the words of the stories."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.native = cluster.spec.api == "native"
        self.inline = cluster.spec.api_version.endswith("/v1alpha1")
        self.beside_native = bool(cluster.spec.scheduler_gates)
        """Whether kube-scheduler schedules gangs itself, too."""
        self.whole: Any = "PodGroup" if cluster.spec.api_version.endswith("/v1alpha2") else {"all": {}}
        """The disruptionMode of a group that goes whole or not at all, as the API has it."""
        self._debug = httpx.Client(base_url=cluster.ops_url, timeout=10.0)
        self._post("/api/v1/namespaces", {"metadata": {"name": namespace}})

    def await_ready(self) -> None:
        """Return when a story may begin; here that is at once."""

    def close(self) -> None:
        """Clear the stage: everything in the namespace goes, at once, and its room is seen to be free."""
        with closing(self._debug):
            for path in (self._jobs(), self._groups(), self._pods()):
                self.delete_all(path)
            eventually("an empty namespace", lambda: not self.pods())
            eventually("no reservation", lambda: not self.reservations())

    # --- what people do ----------------------------------------------------------------------------------------

    def create_group(self, name: str, min_count: int | None, key: str | None = None) -> None:
        """A PodGroup: a gang of ``min_count``, or policy basic for None; ``key`` as the level can carry it."""
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
        """The field is dropped where TopologyAwareWorkloadScheduling is off, as it is by default."""
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
        """A Workload or a PodGroup as the API of the level has it."""
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
        """Bare pods, members of a group if one is named, of one replica of it if that is (1.35).

        ``fields`` are more of their spec.
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

    def take_a_node(self) -> None:
        """A pod that leaves no room on one node, so that packing alone no longer keeps a gang in one rack."""
        self.create_group("filler", 1)
        self.create_pods(["filler-0"], "filler", cpu="30")
        self.await_bound("filler", 1)

    def create_job(self, name: str, size: int, cpu: str = "1", key: str | None = None) -> None:
        """A plain Indexed Job: nothing about groups in it but, maybe, the topology annotation."""
        annotations = {} if key is None else {"scheduling.serried.dev/required-topology": key}
        template = {"spec": pod_spec(cpu) | {"restartPolicy": "Never"}}
        spec = {"parallelism": size, "completions": size, "completionMode": "Indexed", "template": template}
        self._post(self._jobs(), {"metadata": {"name": name, "annotations": annotations}, "spec": spec})

    def submit_job(
        self, name: str, scheduler: str = SCHEDULER, cpu: str = "1", metadata: Raw | None = None, **spec: Any
    ) -> Job:
        """An Indexed Job of two pods, but for what ``spec`` says; as the API server has made it."""
        body = {"metadata": {"name": name} | (metadata or {}), "spec": indexed_spec(scheduler, cpu) | spec}
        made = decode_job(self.cluster.api.post(self._jobs(), body))
        assert isinstance(made, Job)
        return made

    def change_job(self, name: str, **spec: Any) -> None:
        """Somebody changes fields of a Job's spec."""
        patch = json.dumps({"spec": spec})
        self.cluster.kubectl("patch", "job", name, "-n", self.namespace, "--type", "merge", "-p", patch)

    def delete_job(self, name: str) -> None:
        """The Job and its pods go."""
        self._delete(f"{self._jobs()}/{name}", "Background")

    def lift_gates(self, name: str, but: str = "") -> None:
        """The owner of a pod's scheduling gates takes them off, but for one that is another's."""
        patch = json.dumps({"spec": {"schedulingGates": [{"name": but}] if but else None}})
        self.cluster.kubectl("patch", "pod", name, "-n", self.namespace, "--type", "merge", "-p", patch)

    def delete_group(self, name: str) -> None:
        """Somebody deletes a PodGroup."""
        self._delete(f"{self._groups()}/{name}")

    def delete_pods(self, *names: str) -> None:
        """These pods go at once."""
        for name in names:
            self._delete(f"{self._pods()}/{name}")

    def create_budget(self, name: str, labels: dict[str, str], **fields: Any) -> None:
        """A PodDisruptionBudget of the pods with these labels; ``fields`` are more of its spec."""
        spec = {"selector": {"matchLabels": labels}, **fields}
        self._post(self._budgets(), {"metadata": {"name": name}, "spec": spec})

    def bind(self, pod: str, node: str) -> None:
        """Somebody binds a pod to a node, as a scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        self._post(f"{self._pods()}/{pod}/binding", {"metadata": {"name": pod}, "target": target})

    def delete_node(self, name: str) -> None:
        """A node is gone; its pods are not yet."""
        self._delete(f"/api/v1/nodes/{name}")

    def delete_all(self, path: str) -> None:
        """Everything in a list goes."""
        for item in self.cluster.api.get(path)["items"]:
            self._delete(f"{path}/{item['metadata']['name']}", "Background")

    def delete_all_pods(self) -> None:
        """Every pod goes, and is seen to be gone."""
        self.delete_all(self._pods())
        eventually("no pods", lambda: not self.pods())

    @contextmanager
    def asleep(self, *processes: str) -> Iterator[None]:
        """These processes of the cluster stand still for as long as the body runs."""
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
        """One that has slept for too long finds its Lease lost and ends itself; then there is a new one."""
        eventually("the scheduler renews or ends", lambda: not self._scheduler_runs() or self.lease_renewed() > woken)
        if not self._scheduler_runs():
            self.cluster.start("scheduler")
            self.cluster.await_ready("scheduler")

    def _scheduler_runs(self) -> bool:
        return self.cluster.alive["scheduler"]

    def lease_renewed(self) -> datetime:
        """When the scheduler has renewed its Lease last."""
        lease = self.cluster.api.get("/apis/coordination.k8s.io/v1/namespaces/serried-system/leases/serried")
        return datetime.fromisoformat(lease["spec"]["renewTime"])

    # --- what people see ---------------------------------------------------------------------------------------

    def pods(self, prefix: str = "") -> list[dict[str, Any]]:
        """The pods whose names begin so."""
        items: list[dict[str, Any]] = self.cluster.api.get(self._pods())["items"]
        return [pod for pod in items if pod["metadata"]["name"].startswith(prefix)]

    def bound(self, prefix: str = "") -> dict[str, str]:
        """Node names by pod name, of the bound ones."""
        return {p["metadata"]["name"]: p["spec"]["nodeName"] for p in self.pods(prefix) if p["spec"].get("nodeName")}

    def racks(self, prefix: str = "") -> set[str]:
        """The racks in which the bound pods are."""
        labels = {
            n["metadata"]["name"]: n["metadata"]["labels"] for n in self.cluster.api.get("/api/v1/nodes")["items"]
        }
        return {labels[node][RACK] for node in self.bound(prefix).values()}

    def ranks(self, prefix: str = "") -> dict[str, str | None]:
        """What their Bindings have told the bound pods of their ranks, by pod name."""
        bound = [pod["metadata"] for pod in self.pods(prefix) if pod["spec"].get("nodeName")]
        return {meta["name"]: meta.get("annotations", {}).get("scheduling.serried.dev/rank") for meta in bound}

    def await_bound(self, prefix: str, count: int, seconds: float = 30.0) -> None:
        """So many pods are bound, not more, not fewer."""
        try:
            eventually(f"{count} bound pods of {prefix}", lambda: len(self.bound(prefix)) == count, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._explain(prefix)}") from error

    def _explain(self, name: str) -> str:
        """What the extender says of a group, or of that of a Job, that did not become what it should."""
        try:
            group = self._find_group(name) or name
            view, decisions = self.view(group), self.decisions(group)[:10]
        except httpx.TransportError as error:
            view, decisions = {}, [f"the extender does not answer: {error}"]
        parts = {key: view.get(key) for key in ("message", "members", "placed", "waiting", "timeline")}
        pods = [(pod["metadata"]["name"], pod["spec"].get("nodeName"), pod.get("status")) for pod in self.pods()][:10]
        told = [line for pod in pods for line in [str(pod), *map(str, self.events(pod[0]))]]
        return "\n".join([f"bound: {sorted(self.bound(name))}", f"{group}: {parts}", *decisions, *told])

    def group_of_job(self, job: str) -> str:
        """The name of the PodGroup that was made for a Job."""
        return eventually(f"a PodGroup for Job {job}", lambda: self._find_group(job))

    def workloads_of(self, job: str) -> list[Raw]:
        """The Workloads that refer to a Job."""
        items: list[Raw] = self.cluster.api.get(self._workloads())["items"]
        return [item for item in items if item["spec"]["controllerRef"]["name"] == job]

    def await_group(self, job: str, workload: str = "") -> Raw:
        """The first PodGroup that a Job controls, once it is there; one that is made from a Workload, if it is named.

        There may be one from a Workload of ours before, if the controller sees a user's Workload after its Job.
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
        """The PodGroups that a Job controls."""
        items: list[Raw] = self.cluster.api.get(self._groups())["items"]
        return [item for item in items if any(o["name"] == job for o in item["metadata"].get("ownerReferences", []))]

    def view(self, group: str) -> dict[str, Any]:
        """The group on ``/debug``; empty if it is not known."""
        answer = self._debug.get(f"/debug/groups/{self.namespace}/{group}")
        view: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
        return view

    def await_reason(self, group: str, reason: str, *parts: str, seconds: float = 10.0) -> dict[str, Any]:
        """The group as ``/debug`` shows it once it gives this reason, with all of these ``parts`` in its message.

        A reason may stand before its numbers do: the members of a gang are seen one after the other.
        """

        def find() -> dict[str, Any] | None:
            view = self.view(group)
            told = str(view.get("message", ""))
            return view if view.get("reason") == reason and all(part in told for part in parts) else None

        try:
            return eventually(f"{group} with reason {reason} {parts}", find, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._explain(group)}") from None

    def list_groups(self) -> list[Raw]:
        """The PodGroups."""
        items: list[Raw] = self.cluster.api.get(self._groups())["items"]
        return items

    def groups(self) -> set[str]:
        """The names of the PodGroups, those that are being deleted among them."""
        return {item["metadata"]["name"] for item in self.list_groups()}

    def condition(self, group: str) -> tuple[str, str, str]:
        """Status, reason and message of the scheduling condition (1.36 names it otherwise); empty texts without it."""
        found = self.cluster.api.get(f"{self._groups()}/{group}")
        for one in found.get("status", {}).get("conditions", []):
            if one["type"] in {"PodGroupInitiallyScheduled", "PodGroupScheduled"}:
                return one["status"], one["reason"], one.get("message", "")
        return "", "", ""

    def events(self, about: str) -> list[tuple[str, str]]:
        """Reason and message of the events about an object of this name."""
        items = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [(e["reason"], e["message"]) for e in items if e["involvedObject"]["name"] == about]

    def messages(self, about: str, reason: str) -> list[str]:
        """What the events of this reason say about an object of this name."""
        return [message for found, message in self.events(about) if found == reason]

    def list_decisions(self, group: str) -> list[dict[str, Any]]:
        """The extender's decisions about a group as ``/debug`` shows them, the newest first."""
        found: list[dict[str, Any]] = self._debug.get(
            "/debug/decisions", params={"group": f"{self.namespace}/{group}"}
        ).json()
        return found

    def decisions(self, group: str) -> list[str]:
        """What the extender has decided of a group, the newest first."""
        return [each["text"] for each in self.list_decisions(group)]

    def disruptions_allowed(self, budget: str) -> int | None:
        """How many pods a PodDisruptionBudget lets go by now; None before it was looked at."""
        status: Raw = self.cluster.api.get(f"{self._budgets()}/{budget}").get("status", {})
        return status.get("disruptionsAllowed")

    def reservations(self) -> list[dict[str, Any]]:
        """The Reservation objects of the namespace."""
        path = f"/apis/scheduling.serried.dev/v1beta1/namespaces/{self.namespace}/reservations"
        items: list[dict[str, Any]] = self.cluster.api.get(path)["items"]
        return items

    def selfcheck(self) -> dict[str, Any]:
        """What the extender says of itself."""
        found: dict[str, Any] = self._debug.get("/debug/selfcheck").json()
        return found

    def vacancies(self) -> list[dict[str, Any]]:
        """The slots of dead members that are kept in the namespace, as ``/debug`` shows them."""
        return [each for each in self._debug.get("/debug/vacancies").json() if each["namespace"] == self.namespace]

    def held_in_ledger(self) -> list[dict[str, Any]]:
        """The ledger's reservations of the namespace, as ``/debug`` shows them."""
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
    """A stage in a namespace of its own, which is cleared at the end."""
    restart_scheduler(cluster)
    stage = kind(cluster, f"story-{next(_SERIAL)}")
    stage.await_ready()
    try:
        yield stage
    finally:
        stage.close()


def restart_scheduler(cluster: Cluster) -> None:
    """Do what the kubelet does: kube-scheduler ends itself when it could not renew its Lease for 10 s.

    On a machine that stands still for so long that says nothing of Serried. Our own processes have to be there.
    """
    if not cluster.alive.get("scheduler", True):
        log.warning("kube-scheduler has ended by itself, and is started again")
        cluster.start("scheduler")
        cluster.await_ready("scheduler")


def names(prefix: str, count: int, start: int = 0) -> list[str]:
    """``prefix-0``, ``prefix-1`` and so on."""
    return [f"{prefix}-{i}" for i in range(start, start + count)]


def pod_spec(cpu: str) -> dict[str, Any]:
    """One container that asks for so much CPU, scheduled by Serried's scheduler."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    return {"schedulerName": SCHEDULER, "containers": [container], "terminationGracePeriodSeconds": 0}


def indexed_spec(scheduler: str, cpu: str) -> Raw:
    """The spec of an Indexed Job of two pods, which is a gang by its shape."""
    template = {"spec": pod_spec(cpu) | {"schedulerName": scheduler, "restartPolicy": "Never"}}
    return {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template}
