"""Stories in which kube-controller-manager, too, makes Workloads and PodGroups: its gate WorkloadWithJob is on."""

import json
import time
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from serried.decode.jobs import decode_job
from serried.model.group import Job
from tests.e2e.promises.stage import SCHEDULER, Stage, eventually, pod_spec

Raw = dict[str, Any]

_RECONCILED = {"jobs", "workloads", "podgroups"}
_READS = {"GET", "LIST", "WATCH"}
_CALM = 5.0


class UpstreamStage(Stage):
    """A namespace in which two reconcilers make objects for Jobs, or one of them sleeps."""

    def submit_job(self, name: str, scheduler: str = SCHEDULER, cpu: str = "1", **spec: Any) -> Job:
        """An Indexed Job of two pods, but for what ``spec`` says; as the API server has made it."""
        template = {"spec": pod_spec(cpu) | {"schedulerName": scheduler, "restartPolicy": "Never"}}
        shape = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template}
        made = decode_job(self.cluster.api.post(self._jobs(), {"metadata": {"name": name}, "spec": shape | spec}))
        assert isinstance(made, Job)
        return made

    def change_job(self, name: str, **spec: Any) -> None:
        """Somebody changes fields of a Job's spec."""
        patch = json.dumps({"spec": spec})
        self.cluster.kubectl("patch", "job", name, "-n", self.namespace, "--type", "merge", "-p", patch)

    def create_workload(self, body: Raw) -> None:
        """Somebody creates a Workload."""
        self.cluster.api.post(self._workloads(), body)

    def workloads_of(self, job: str) -> list[Raw]:
        """The Workloads that refer to a Job."""
        items: list[Raw] = self.cluster.api.get(self._workloads())["items"]
        return [item for item in items if item["spec"]["controllerRef"]["name"] == job]

    def await_group(self, job: str) -> Raw:
        """The first PodGroup that a Job controls, once it is there."""
        return eventually(f"a PodGroup of {job}", lambda: self.groups_of(job))[0]

    def groups_of(self, job: str) -> list[Raw]:
        """The PodGroups that a Job controls."""
        items: list[Raw] = self.cluster.api.get(self._groups())["items"]
        return [item for item in items if item["metadata"]["ownerReferences"][0]["name"] == job]

    def named_groups(self, job: str) -> list[str]:
        """What each pod of a Job names as its PodGroup, the empty text where it names none."""
        pods = [pod for pod in self.pods() if pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] == job]
        return [pod["spec"].get("schedulingGroup", {}).get("podGroupName", "") for pod in pods]

    def await_calm(self) -> None:
        """For some seconds nobody writes, or tries to write, a Job, a Workload or a PodGroup."""
        eventually("no writes", self._is_calm, 60)

    def _is_calm(self) -> bool:
        before = self._count_writes()
        time.sleep(_CALM)
        return self._count_writes() == before

    def _count_writes(self) -> float:
        families = text_string_to_metric_families(self.cluster.api.get("/metrics"))
        samples = next(family for family in families if family.name == "apiserver_request").samples
        writes = [s for s in samples if s.labels["resource"] in _RECONCILED and s.labels["verb"] not in _READS]
        return sum(sample.value for sample in writes)

    def _jobs(self) -> str:
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs"

    def _workloads(self) -> str:
        return f"/apis/{self.cluster.spec.api_version}/namespaces/{self.namespace}/workloads"
