"""Builders of JobSets and LeaderWorkerSets, in the shapes of their modules."""

from typing import Any, Self

from serried.api.names import GANG_POLICY, REQUIRED_TOPOLOGY
from serried.api.parent import Parent, decode_parent
from tests.support.builders import RACK, Builder, describe, usable


class JobSetBuilder(Builder):
    """A JobSet that has no replicated Jobs yet, and asks for nothing."""

    def value(self) -> Parent:
        """As Serried sees it."""
        return usable(decode_parent("JobSet", self._raw))

    def asking(self, policy: str = "JobSetAsGang") -> Self:
        """With the annotation that asks for gangs."""
        return self.annotation(GANG_POLICY, policy)

    def replicated(
        self, name: str, replicas: int = 1, pods: int = 1, scheduler: str = "serried", **fields: Any
    ) -> Self:
        """With one more replicated Job, of Indexed Jobs with so many pods each; ``fields`` are beside its template."""
        pod_spec = {"schedulerName": scheduler, "restartPolicy": "Never", "containers": [{"name": "main"}]}
        job_spec = {"parallelism": pods, "completions": pods, "completionMode": "Indexed"}
        template = {"spec": {**job_spec, "template": {"spec": pod_spec}}}
        return self.joining(
            {"name": name, "replicas": replicas, "template": template, **fields}, "spec", "replicatedJobs"
        )

    def topology(self, key: str = RACK) -> Self:
        """With the annotation that confines each of its gangs to one domain of ``key``."""
        return self.annotation(REQUIRED_TOPOLOGY, key)

    def in_order(self) -> Self:
        """Whose replicated Jobs start one after the other."""
        return self.having("InOrder", "spec", "startupPolicy", "startupPolicyOrder")

    def condition(self, kind: str) -> Self:
        """With a condition that is True."""
        return self.joining({"type": kind, "status": "True"}, "status", "conditions")


class LeaderWorkerSetBuilder(Builder):
    """A LeaderWorkerSet that asks for nothing."""

    def value(self) -> Parent:
        """As Serried sees it."""
        return usable(decode_parent("LeaderWorkerSet", self._raw))

    def asking(self, policy: str = "ReplicaAsGang") -> Self:
        """With the annotation that asks for gangs."""
        return self.annotation(GANG_POLICY, policy)

    def size(self, replicas: int, pods: int) -> Self:
        """With so many replicas of so many pods, the leader among them."""
        return self.having(replicas, "spec", "replicas").having(pods, "spec", "leaderWorkerTemplate", "size")

    def topology(self, key: str = RACK) -> Self:
        """With the annotation that confines each replica to one domain of ``key``."""
        return self.annotation(REQUIRED_TOPOLOGY, key)

    def surging(self, more: int | str) -> Self:
        """Whose rolling updates may add so many replicas, or percents."""
        return self.having(more, "spec", "rolloutStrategy", "rollingUpdateConfiguration", "maxSurge")

    def leader_first(self) -> Self:
        """Whose workers start when their leader is ready."""
        return self.having("LeaderReady", "spec", "startupPolicy")


def job_set(name: str) -> JobSetBuilder:
    """A JobSet without replicated Jobs."""
    return JobSetBuilder({**describe("JobSet", name), "spec": {}})


def leader_worker_set(name: str) -> LeaderWorkerSetBuilder:
    """A LeaderWorkerSet of one replica, a leader alone."""
    template = {"workerTemplate": {"spec": {"schedulerName": "serried", "containers": [{"name": "main"}]}}}
    return LeaderWorkerSetBuilder({**describe("LeaderWorkerSet", name), "spec": {"leaderWorkerTemplate": template}})
