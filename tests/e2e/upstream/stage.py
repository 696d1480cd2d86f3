"""Stories in which kube-controller-manager, too, makes Workloads and PodGroups: its gate WorkloadWithJob is on."""

import time

from prometheus_client.parser import text_string_to_metric_families

from tests.support.cluster_stage import ClusterStage, Raw, eventually

_RECONCILED = {"jobs", "workloads", "podgroups"}
_READS = {"GET", "LIST", "WATCH"}
_CALM = 5.0


class UpstreamStage(ClusterStage):
    """A namespace in which two reconcilers make objects for Jobs, or one of them sleeps."""

    def create_workload(self, body: Raw) -> None:
        """Create a Workload, as a user would."""
        self.cluster.api.post(self._workloads(), body)

    def named_groups(self, job: str) -> list[str]:
        """Return the PodGroup that each pod of a Job names, "" where it names none."""
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
