"""Stories of a Job's life: it grows, is suspended, loses pods, and its controller dies or is told otherwise."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from bench.cluster.api import ApiError
from bench.cluster.components import Name
from tests.support.cluster_stage import SCHEDULER, ClusterStage, Raw, eventually, indexed_spec, pod_spec


class JobStage(ClusterStage):
    """A namespace with Jobs."""

    def resize_job(self, name: str, size: int) -> None:
        """An Indexed Job is elastic if both change together."""
        self.change_job(name, parallelism=size, completions=size)

    def template_in(self, group: str, cpu: str = "1") -> Raw:
        """A pod template that names a PodGroup, as the API level has it."""
        spec = pod_spec(cpu) | {"restartPolicy": "Never"}
        if self.native:
            return {"spec": spec | {"schedulingGroup": {"podGroupName": group}}}
        return {"metadata": {"labels": {"scheduling.serried.dev/pod-group": group}}, "spec": spec}

    def create_cron_job(self, name: str, schedule: str = "", metadata: Raw | None = None, **spec: Any) -> Raw:
        """A CronJob of Jobs as ``submit_job`` makes them. Without a schedule it makes none of its own accord."""
        template = {"metadata": metadata or {}, "spec": indexed_spec(SCHEDULER, "1") | spec}
        times = {"schedule": schedule or "0 0 1 1 *", "suspend": not schedule, "concurrencyPolicy": "Forbid"}
        made: Raw = self.cluster.api.post(
            self._cron_jobs(), {"metadata": {"name": name}, "spec": {"jobTemplate": template, **times}}
        )
        return made

    def delete_cron_job(self, name: str) -> None:
        """A CronJob goes, and with it what it owns."""
        self._delete(f"{self._cron_jobs()}/{name}")

    def delete_job_in(self, name: str, order: str) -> None:
        """A Job goes in this order: ``Background`` before what it owns, ``Foreground`` after it."""
        self._delete(f"{self._jobs()}/{name}", order)

    def create_workloads(self, job: str, **templates: Raw) -> None:
        """Create a user's Workloads for a later Job, each with one template, and wait until both processes see them."""
        before = self._workloads_seen()
        for name, template in templates.items():
            reference = {"apiGroup": "batch", "kind": "Job", "name": job}
            spec = {"controllerRef": reference, "podGroupTemplates": [{"name": "workers", **template}]}
            self.create_scheduling("Workload", name, spec)
        wanted = [count + len(templates) for count in before]
        eventually(
            "both watches",
            lambda: all(seen >= want for seen, want in zip(self._workloads_seen(), wanted, strict=True)),
        )

    def apply_group(self, name: str, min_count: int, finalizer: str = "") -> None:
        """Create a user's own gang, unless it is there. With a finalizer it goes only when that is lifted."""
        metadata: Raw = {"name": name, "finalizers": [finalizer] if finalizer else []}
        spec = {"schedulingPolicy": {"gang": {"minCount": min_count}}}
        body = {"apiVersion": self.cluster.spec.api_version, "kind": "PodGroup", "metadata": metadata, "spec": spec}
        try:
            self._post(self._groups(), body)
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise

    def lift_finalizer(self, group: str, finalizer: str) -> None:
        """The owner of this finalizer lets a PodGroup go."""
        found = self.cluster.api.get(f"{self._groups()}/{group}")["metadata"]["finalizers"]
        patch = json.dumps({"metadata": {"finalizers": [each for each in found if each != finalizer]}})
        kind = f"podgroups.{self.cluster.spec.api_version.split('/')[0]}"
        self.cluster.kubectl("patch", kind, group, "-n", self.namespace, "--type", "merge", "-p", patch)

    def submit_job_in(self, group: str, name: str, cpu: str) -> str:
        """A Job of two pods, whose template names the PodGroup as the API of the level has it; returns its UID."""
        spec = pod_spec(cpu) | {"restartPolicy": "Never"}
        template: Raw = {"metadata": {"labels": {"scheduling.serried.dev/pod-group": group}}, "spec": spec}
        if self.native:
            template = {"spec": spec | {"schedulingGroup": {"podGroupName": group}}}
        return self.submit_job(name, template=template).uid

    def pods_of(self, job_uid: str) -> list[str]:
        """The nodes of the live, bound pods of this very Job, by index."""
        live = [pod for pod in self.pods() if pod["status"]["phase"] in {"Pending", "Running"}]
        mine = [pod for pod in live if pod["metadata"]["ownerReferences"][0]["uid"] == job_uid]
        mine.sort(key=lambda pod: pod["metadata"]["name"])
        return [pod["spec"]["nodeName"] for pod in mine if pod["spec"].get("nodeName")]

    def delete_workload(self, name: str) -> None:
        """Delete a Workload, as a user might."""
        self._delete(f"{self._workloads()}/{name}")

    @contextmanager
    def priority_class(self, name: str, value: int, **fields: Any) -> Iterator[None]:
        """There is such a PriorityClass for as long as the body runs."""
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        self._post(path, {"metadata": {"name": name}, "value": value, **fields})
        try:
            yield
        finally:
            self._delete(f"{path}/{name}")

    def end_pod(self, name: str, phase: str, code: int) -> None:
        """The only container of a pod ends with this exit code."""
        ended = {"terminated": {"exitCode": code, "reason": "Ended", "finishedAt": "2026-01-01T00:00:00Z"}}
        container = {"name": "main", "image": "none", "imageID": "", "ready": False, "restartCount": 0, "state": ended}
        patch = json.dumps({"status": {"phase": phase, "containerStatuses": [container]}})
        subject = ("pod", name, "-n", self.namespace, "--subresource", "status", "--type", "merge")
        self.cluster.kubectl("patch", *subject, "-p", patch)

    def fail_index(self, job: str, index: int, code: int = 1) -> str:
        """The running pod of an index fails; returns its name."""
        name = self._running_pod(job, index)
        self.end_pod(name, "Failed", code)
        return name

    def await_replacement(self, job: str, index: int, lost: str) -> None:
        """The index runs again; kube-controller-manager waits for 10 s after a failure."""
        prefix = f"{job}-{index}-"
        eventually(f"a new pod {index}", lambda: any(name != lost for name in self.bound(prefix)), 60)

    def complete_index(self, job: str, index: int) -> str:
        """The running pod of an index succeeds; returns its name."""
        name = self._running_pod(job, index)
        self.end_pod(name, "Succeeded", 0)
        return name

    @contextmanager
    def told(self, option: str, value: str, usual: str, processes: Sequence[Name]) -> Iterator[None]:
        """Run these processes with an option while the body runs, and as usual afterwards."""
        for process in processes:
            self.cluster.restart(process, option, value)
        try:
            yield
        finally:
            for process in processes:
                self.cluster.restart(process, option, usual)

    @contextmanager
    def refused(self, operation: str, resource: str) -> Iterator[None]:
        """The API server refuses this operation (``CREATE`` or ``DELETE``) for as long as the body runs."""
        api, name = self.cluster.api, f"refuse-{self.namespace}"
        policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
        api.post(policies, {"metadata": {"name": name}, "spec": self._refusal(operation, resource)})
        binding = {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}
        api.post(policies.replace("policies", "policybindings"), binding)
        try:
            eventually("the refusal", lambda: self._is_refused(operation))
            yield
        finally:
            self._delete(f"{policies}/{name}")
            self._delete(f"{policies.replace('policies', 'policybindings')}/{name}")

    def job(self, name: str) -> Raw:
        """The Job."""
        found: Raw = self.cluster.api.get(f"{self._jobs()}/{name}")
        return found

    def objects_of(self, job: str) -> list[Raw]:
        """The Workloads and PodGroups of a Job."""
        return [*self.workloads_of(job), *([] if self.inline else self.groups_of(job))]

    def uids_of(self, job: str) -> set[str]:
        """The identities of a Job's Workloads and PodGroups."""
        return {item["metadata"]["uid"] for item in self.objects_of(job)}

    def counts(self, job: str) -> list[int]:
        """minCount, wherever an object of a Job has it."""
        specs = [item["spec"] for item in self.objects_of(job)]
        parts = [part for spec in specs for part in spec.get("podGroupTemplates") or spec.get("podGroups") or [spec]]
        return [(part.get("schedulingPolicy") or part["policy"])["gang"]["minCount"] for part in parts]

    def await_count(self, job: str, count: int) -> None:
        """minCount of a Job's Workload and PodGroup."""
        wanted = [count] if self.inline else [count, count]
        eventually(f"minCount {count} of {job}, not {self.counts(job)}", lambda: self.counts(job) == wanted)

    def revision(self) -> str:
        """Return the API server's current resourceVersion."""
        return str(self.cluster.api.get(self._pods())["metadata"]["resourceVersion"])

    def bindings_since(self, revision: str, prefix: str) -> list[int]:
        """The revisions at which pods that have come since, and whose names begin so, were bound."""
        bound: dict[str, int | None] = {}
        for kind, pod in self._history(self._pods(), revision):
            name = pod["metadata"]["name"]
            if kind == "ADDED" and name.startswith(prefix):
                bound[name] = None
            elif name in bound and bound[name] is None and pod["spec"].get("nodeName"):
                bound[name] = int(pod["metadata"]["resourceVersion"])
        return [at for at in bound.values() if at is not None]

    def workloads_since(self, revision: str) -> list[int]:
        """The revisions at which Workloads came."""
        return self._creations(self._workloads(), revision)

    def groups_since(self, revision: str) -> list[int]:
        """The revisions at which PodGroups came."""
        return self._creations(self._groups(), revision)

    def warnings(self, about: str, reason: str) -> list[int]:
        """Return the count of each warning with this reason about an object."""
        items = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        found = [e for e in items if (e["involvedObject"]["name"], e["reason"]) == (about, reason)]
        return [event["count"] for event in found if event["type"] == "Warning"]

    def jobs_of(self, cron_job: str) -> list[str]:
        """The names of the Jobs that a CronJob has made."""
        items = self.cluster.api.get(self._jobs())["items"]
        owners = {item["metadata"]["name"]: item["metadata"].get("ownerReferences", []) for item in items}
        return [name for name, found in owners.items() if any(owner["name"] == cron_job for owner in found)]

    def _workloads_seen(self) -> list[float]:
        """Return how many changes of Workloads the controller and the extender have seen."""
        return [_count_changes(url, "workloads") for url in (self.cluster.controller_url, self.cluster.ops_url)]

    def _cron_jobs(self) -> str:
        return self._jobs().replace("jobs", "cronjobs")

    def _running_pod(self, job: str, index: int) -> str:
        def find() -> str:
            pods = self.pods(f"{job}-{index}-")
            return next((pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"), "")

        return eventually(f"a running pod {index} of {job}", find)

    def _refusal(self, operation: str, resource: str) -> Raw:
        here = {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}}
        kinds = [(self.cluster.spec.api_version.split("/")[0], resource), ("", "configmaps")]
        rules = [
            {"apiGroups": [group], "apiVersions": ["*"], "operations": [operation], "resources": [plural]}
            for group, plural in kinds
        ]
        constraints = {"namespaceSelector": here, "resourceRules": rules}
        return {"matchConstraints": constraints, "validations": [{"expression": "false", "message": "not now"}]}

    def _is_refused(self, operation: str) -> bool:
        """Return whether ConfigMaps are refused already, as the resource is whose refusal is wanted."""
        path = f"/api/v1/namespaces/{self.namespace}/configmaps"
        try:
            if operation == "CREATE":
                self.cluster.api.post(f"{path}?dryRun=All", {"metadata": {"name": "probe"}})
            else:
                self.cluster.api.request("DELETE", f"{path}/kube-root-ca.crt?dryRun=All")
        except ApiError as error:
            return "not now" in str(error)
        return False

    def _creations(self, path: str, revision: str) -> list[int]:
        events = self._history(path, revision)
        return [int(item["metadata"]["resourceVersion"]) for kind, item in events if kind == "ADDED"]

    def _history(self, path: str, revision: str) -> Iterator[tuple[str, Raw]]:
        watch = f"{path}?watch=1&resourceVersion={revision}&timeoutSeconds=1"
        for line in self.cluster.kubectl("get", "--raw", watch).splitlines():
            event: dict[str, Any] = json.loads(line)
            assert event["type"] != "ERROR", event
            yield event["type"], event["object"]


def _count_changes(url: str, resource: str) -> float:
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
    samples = [sample for family in families if family.name == "serried_watch_events" for sample in family.samples]
    return sum(s.value for s in samples if s.name.endswith("_total") and s.labels["resource"].startswith(resource))


def controlled_by(owner: Raw) -> Raw:
    """The metadata of what another object controls."""
    identity = {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    kind = {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
    return {"ownerReferences": [kind | identity | {"controller": True}]}
