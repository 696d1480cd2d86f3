"""Builders of JobSets and LeaderWorkerSets, with the fields of their Go types."""

from typing import Any, Self

from serried.api.names import GANG_POLICY, REQUIRED_TOPOLOGY
from serried.api.parent import Parent, decode_parent
from tests.support.builders import RACK, Builder, describe, require_valid


class JobSetBuilder(Builder):
    """Builds a JobSet, at first without replicated Jobs and without annotations."""

    def value(self) -> Parent:
        """Return the decoded JobSet. Fail if it is malformed."""
        return require_valid(decode_parent("JobSet", self._raw))

    def gang_policy(self, policy: str = "JobSetAsGang") -> Self:
        """With the annotation that asks for gangs."""
        return self.annotation(GANG_POLICY, policy)

    def replicated(
        self, name: str, replicas: int = 1, pods: int = 1, scheduler: str = "serried", **fields: Any
    ) -> Self:
        """With one more replicated Job, of Indexed Jobs with ``pods`` pods each. ``fields`` are more of its fields."""
        pod_spec = {"schedulerName": scheduler, "restartPolicy": "Never", "containers": [{"name": "main"}]}
        job_spec = {"parallelism": pods, "completions": pods, "completionMode": "Indexed"}
        template = {"spec": {**job_spec, "template": {"spec": pod_spec}}}
        return self.with_item(
            {"name": name, "replicas": replicas, "template": template, **fields}, "spec", "replicatedJobs"
        )

    def topology(self, key: str = RACK) -> Self:
        """With the annotation for a required topology key of each gang."""
        return self.annotation(REQUIRED_TOPOLOGY, key)

    def in_order(self) -> Self:
        """With startup policy InOrder."""
        return self.with_field("InOrder", "spec", "startupPolicy", "startupPolicyOrder")

    def suspended(self) -> Self:
        """Set ``suspend``: the parent wants no pods for now."""
        return self.with_field(True, "spec", "suspend")  # noqa: FBT003 - a JSON value

    def condition(self, kind: str) -> Self:
        """With a condition that is True."""
        return self.with_item({"type": kind, "status": "True"}, "status", "conditions")


class LeaderWorkerSetBuilder(Builder):
    """Builds a LeaderWorkerSet, at first without annotations."""

    def value(self) -> Parent:
        """Return the decoded LeaderWorkerSet. Fail if it is malformed."""
        return require_valid(decode_parent("LeaderWorkerSet", self._raw))

    def gang_policy(self, policy: str = "ReplicaAsGang") -> Self:
        """With the annotation that asks for gangs."""
        return self.annotation(GANG_POLICY, policy)

    def size(self, replicas: int, pods: int) -> Self:
        """With a number of replicas, and of pods in each, including the leader."""
        return self.with_field(replicas, "spec", "replicas").with_field(pods, "spec", "leaderWorkerTemplate", "size")

    def topology(self, key: str = RACK) -> Self:
        """With the annotation for a required topology key of each replica."""
        return self.annotation(REQUIRED_TOPOLOGY, key)

    def max_surge(self, more: int | str) -> Self:
        """With maxSurge of rolling updates: a number of replicas, or a percentage."""
        return self.with_field(more, "spec", "rolloutStrategy", "rollingUpdateConfiguration", "maxSurge")

    def startup_leader_ready(self) -> Self:
        """With startup policy LeaderReady."""
        return self.with_field("LeaderReady", "spec", "startupPolicy")


def job_set(name: str) -> JobSetBuilder:
    """Build a JobSet without replicated Jobs."""
    return JobSetBuilder({**describe("JobSet", name), "spec": {}})


def leader_worker_set(name: str) -> LeaderWorkerSetBuilder:
    """Build a LeaderWorkerSet of one replica with a leader only."""
    template = {"workerTemplate": {"spec": {"schedulerName": "serried", "containers": [{"name": "main"}]}}}
    return LeaderWorkerSetBuilder({**describe("LeaderWorkerSet", name), "spec": {"leaderWorkerTemplate": template}})
