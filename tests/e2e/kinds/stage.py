"""Stories in which people write JobSets and LeaderWorkerSets, and their controllers do the rest."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from serried.api.names import GANG_POLICY, REQUIRED_TOPOLOGY
from tests.support.cluster_stage import RACK, SCHEDULER, ClusterStage, eventually, pod_spec

Raw = dict[str, Any]

SEEN = "example.com/seen"


def unscheduled(spec: Raw) -> Raw:
    """A pod spec that names no scheduler."""
    return {name: value for name, value in spec.items() if name != "schedulerName"}


JOB_SETS, SETS = "jobsets", "leaderworkersets"


def replicated(name: str, replicas: int, pods: int, cpu: str = "10", **fields: Any) -> Raw:
    """A replicated Job of Indexed Jobs; ``policy`` is its Jobs' annotation, the others stand beside its template."""
    annotations = {GANG_POLICY: policy} if (policy := fields.pop("policy", "")) else {}
    pod = {"spec": pod_spec(cpu) | {"restartPolicy": "Never"}}
    spec = {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "template": pod}
    return {
        "name": name,
        "replicas": replicas,
        "template": {"metadata": {"annotations": annotations}, "spec": spec},
    } | (fields)


class KindStage(ClusterStage):
    """A namespace with both kinds."""

    def create_job_set(self, name: str, *jobs: Raw, policy: str = "JobSetAsGang", **spec: Any) -> None:
        """A JobSet; its gangs stay in one rack each."""
        self._create("jobset.x-k8s.io/v1alpha2", "JobSet", name, policy, {"replicatedJobs": list(jobs), **spec})

    def create_set(self, name: str, replicas: int, size: int, cpu: str = "10", **spec: Any) -> None:
        """A LeaderWorkerSet; the gang of each replica stays in one rack."""
        template = {"size": size, "workerTemplate": {"spec": pod_spec(cpu)}}
        wanted = {"replicas": replicas, "leaderWorkerTemplate": template, **spec}
        self._create("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", name, "ReplicaAsGang", wanted)

    def _create(self, api: str, kind: str, name: str, policy: str, spec: Raw) -> None:
        annotations = {REQUIRED_TOPOLOGY: RACK} | ({GANG_POLICY: policy} if policy else {})
        body = {"apiVersion": api, "kind": kind, "metadata": {"name": name, "annotations": annotations}, "spec": spec}
        self.cluster.api.post(f"/apis/{api}/namespaces/{self.namespace}/{kind.lower()}s", body)

    def apply(self, file: Path, kind: str, name: str, spec: Raw) -> str:
        """As people do who have a file of the object; what kubectl says."""
        api = {"JobSet": "jobset.x-k8s.io/v1alpha2", "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1"}[kind]
        policy = {"JobSet": "JobSetAsGang", "LeaderWorkerSet": "ReplicaAsGang"}[kind]
        metadata = {"name": name, "annotations": {REQUIRED_TOPOLOGY: RACK, GANG_POLICY: policy}}
        file.write_text(json.dumps({"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}))
        return self.cluster.kubectl("apply", "-f", str(file), "-n", self.namespace)

    def read(self, kind: str, name: str, path: str) -> str:
        """Fields of a JobSet or LeaderWorkerSet, by a JSONPath."""
        return self.cluster.kubectl("get", kind, name, "-n", self.namespace, "-o", f"jsonpath={path}")

    def label(self) -> None:
        """From now on the pods of the namespace are Serried's."""
        self.cluster.kubectl("label", "namespace", self.namespace, "scheduling.serried.dev/scheduler=enabled")
        eventually("the policy", self._gives_scheduler)

    def _gives_scheduler(self) -> bool:
        """Return whether a pod that names no scheduler would get Serried's."""
        path = f"/api/v1/namespaces/{self.namespace}/pods?dryRun=All"
        made = self.cluster.api.post(path, {"metadata": {"name": "specimen"}, "spec": unscheduled(pod_spec("1"))})
        return bool(made["spec"]["schedulerName"] == SCHEDULER)

    def scale(self, name: str, replicas: int) -> None:
        """Change the replicas of a LeaderWorkerSet, as a user would."""
        self._patch_set(name, {"replicas": replicas})

    def resize(self, name: str, size: int) -> None:
        """Change the size of the replicas of a LeaderWorkerSet, as a user would: a rolling update."""
        self._patch_set(name, {"leaderWorkerTemplate": {"size": size}})

    def _patch_set(self, name: str, spec: Raw) -> None:
        patch = json.dumps({"spec": spec})
        self.cluster.kubectl("patch", SETS, name, "-n", self.namespace, "--type", "merge", "-p", patch)

    def delete_seen(self, name: str, seen: Callable[[], bool]) -> None:
        """Delete a pod, and keep it until its end is ``seen`` by the controller that restarts its group."""
        self._patch_finalizers(name, [SEEN])
        self.delete_pods(name)
        eventually(f"the end of {name} seen", seen)
        self._patch_finalizers(name, None)

    def _patch_finalizers(self, pod: str, finalizers: list[str] | None) -> None:
        patch = json.dumps({"metadata": {"finalizers": finalizers}})
        self.cluster.kubectl("patch", "pods", pod, "-n", self.namespace, "--type", "merge", "-p", patch)

    def is_going(self, name: str) -> bool:
        """Return whether a pod is being deleted, or gone."""
        return all("deletionTimestamp" in pod["metadata"] for pod in self.pods(name) if pod["metadata"]["name"] == name)

    def delete_sets(self) -> None:
        """All of both kinds go, with what their controllers have made."""
        for kind in (JOB_SETS, SETS):
            self.cluster.kubectl("delete", kind, "--all", "-n", self.namespace, "--cascade=foreground")

    def close(self) -> None:
        """As ever, after the owners of the pods have gone."""
        self.delete_sets()
        super().close()

    def gangs(self, owner: str) -> dict[str, int]:
        """minCount by name, of the PodGroups that an owner of this name controls."""
        found = {}
        for group in self.cluster.api.get(self._groups())["items"]:
            owners = group["metadata"].get("ownerReferences", [])
            if any(each["name"] == owner and each.get("controller") for each in owners):
                found[group["metadata"]["name"]] = group["spec"]["schedulingPolicy"]["gang"]["minCount"]
        return found

    def await_gangs(self, owner: str, *counts: int) -> list[str]:
        """The names of the PodGroups of an owner, once they are as many as given, with these minCounts."""
        return eventually(
            f"gangs of {counts} for {owner}, now {self.gangs(owner)}",
            lambda: list(found) if sorted((found := self.gangs(owner)).values()) == sorted(counts) else None,
        )

    def racks_of(self, prefix: str) -> int:
        """In how many racks the bound pods with this prefix are."""
        return len(self.racks(prefix))

    def ranks_of(self, prefix: str) -> list[str]:
        """The ranks of the bound pods with this prefix, sorted."""
        return sorted(rank for rank in self.ranks(prefix).values() if rank is not None)

    def whole_replicas(self, name: str, size: int, replicas: int) -> list[int]:
        """The replicas of which all pods are bound; fails if one is bound in part, or in more than one rack."""
        whole = []
        for replica in range(replicas):
            own = {pod for pod in self.bound(f"{name}-{replica}") if pod.split("-")[1] == str(replica)}
            assert len(own) in {0, size}, own
            if own:
                whole.append(replica)
                assert self.racks_of(f"{name}-{replica}") == 1
        return whole

    def told(self, about: str, reason: str) -> str:
        """The message of the event with this reason about an object."""
        return eventually(
            f"{reason} about {about}",
            lambda: next((message for given, message in self.events(about) if given == reason), ""),
        )

    def await_ready(self) -> None:
        """Both processes know the kinds; for one that comes later they ask every 15 s."""
        eventually("watches", lambda: all(self._watched(kind) for kind in (JOB_SETS, SETS)))

    def _watched(self, kind: str) -> bool:
        return bool(self.selfcheck()["watches"].get(kind, {}).get("listed"))
