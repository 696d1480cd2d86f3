"""Stories of a Job's life: it grows, is suspended, loses pods, and its controller dies or is told otherwise."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.cluster.serried import Name
from tests.e2e.promises.stage import Raw, Stage, eventually


class JobStage(Stage):
    """A namespace with Jobs."""

    def resize_job(self, name: str, size: int) -> None:
        """An Indexed Job is elastic if both change together."""
        self.change_job(name, parallelism=size, completions=size)

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

    def complete_index(self, job: str, index: int) -> str:
        """The running pod of an index succeeds; returns its name."""
        name = self._running_pod(job, index)
        self.end_pod(name, "Succeeded", 0)
        return name

    @contextmanager
    def told(self, option: str, value: str, usual: str, processes: Sequence[Name]) -> Iterator[None]:
        """These processes run with an option for as long as the body does."""
        for process in processes:
            self.cluster.restart(process, option, value)
        try:
            yield
        finally:
            for process in processes:
                self.cluster.restart(process, option, usual)

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
        """Where the API server's history is now."""
        return str(self.cluster.api.get(self._pods())["metadata"]["resourceVersion"])

    def bindings_since(self, revision: str, prefix: str) -> dict[str, int]:
        """The revision at which each pod, by its name, was first seen bound."""
        bound: dict[str, int] = {}
        for _, pod in self._history(self._pods(), revision):
            if pod["spec"].get("nodeName") and pod["metadata"]["name"].startswith(prefix):
                bound.setdefault(pod["metadata"]["name"], int(pod["metadata"]["resourceVersion"]))
        return bound

    def gap_since(self, revision: str, job: str) -> tuple[int, int]:
        """The revisions at which the deletion of a Job's PodGroup began and at which its successor came."""
        began = 0
        for kind, group in self._history(self._groups(), revision):
            if group["metadata"]["ownerReferences"][0]["name"] != job:
                continue
            at = int(group["metadata"]["resourceVersion"])
            if began and kind == "ADDED":
                return began, at
            if not began and (kind == "DELETED" or "deletionTimestamp" in group["metadata"]):
                began = at
        raise AssertionError(f"the PodGroup of {job} was not made anew")

    def _running_pod(self, job: str, index: int) -> str:
        def find() -> str:
            pods = self.pods(f"{job}-{index}-")
            return next((pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"), "")

        return eventually(f"a running pod {index} of {job}", find)

    def _history(self, path: str, revision: str) -> Iterator[tuple[str, Raw]]:
        watch = f"{path}?watch=1&resourceVersion={revision}&timeoutSeconds=1"
        for line in self.cluster.kubectl("get", "--raw", watch).splitlines():
            event: dict[str, Any] = json.loads(line)
            assert event["type"] != "ERROR", event
            yield event["type"], event["object"]
