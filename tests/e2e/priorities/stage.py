"""A stage for stories about the priority of groups."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.cluster.api import ApiError
from tests.e2e.trees.stage import TreeStage
from tests.support.cluster_stage import ClusterStage, Raw, eventually

MOST = 1_000_000_000
FIRST_WITH_TREES = 37
"""The minor in which scheduling.k8s.io has CompositePodGroups first."""


class PriorityStage(TreeStage):
    """A namespace of groups and trees that name PriorityClasses."""

    def close(self) -> None:
        """Clear the stage, of trees where the API has them."""
        if self.native and self.cluster.spec.minor < FIRST_WITH_TREES:
            ClusterStage.close(self)
        else:
            super().close()

    def class_name(self, name: str) -> str:
        """A PriorityClass of this story: they have no namespace."""
        return f"{name}-{self.namespace}"

    @contextmanager
    def priority_class(self, name: str, value: int, **fields: Any) -> Iterator[str]:
        """There is such a PriorityClass for as long as the body runs; its name."""
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        full = self.class_name(name)
        self._post(path, {"metadata": {"name": full}, "value": value, **fields})
        eventually("the API server's own look at the class", lambda: self._admits(full))
        try:
            yield full
        finally:
            self._delete(f"{path}/{full}")

    def _admits(self, priority_class: str) -> bool:
        """Return whether admission, which has a cache, takes pods of this class."""
        spec = {"priorityClassName": priority_class, "containers": [{"name": "c", "image": "none"}]}
        try:
            self._post(f"{self._pods()}?dryRun=All", {"metadata": {"name": "probe"}, "spec": spec})
        except ApiError:
            return False
        return True

    def create_gang(self, name: str, size: int, **fields: Any) -> None:
        """A PodGroup; ``fields`` are more of its spec."""
        self.create_scheduling("PodGroup", name, {"schedulingPolicy": {"gang": {"minCount": size}}, **fields})

    def create_root(self, name: str, **fields: Any) -> None:
        """A CompositePodGroup of policy basic; ``fields`` are more of its spec."""
        reference = {"workloadName": "tree", "templateName": "any"}
        spec = {"schedulingPolicy": {"basic": {}}, "workloadRef": reference, **fields}
        version = "scheduling.k8s.io/v1alpha3" if self.native else self.cluster.spec.api_version
        body = {"apiVersion": version, "kind": "CompositePodGroup", "metadata": {"name": name}, "spec": spec}
        self._post(self._composites(), body)

    def refusal(self, name: str, **fields: Any) -> str:
        """Return the message with which the API server refuses such a PodGroup."""
        try:
            self.create_gang(name, 2, **fields)
        except ApiError as error:
            return str(error)
        raise AssertionError("it was taken")

    def spec_of(self, group: str) -> Raw:
        """The spec of a PodGroup."""
        found: Raw = self.cluster.api.get(f"{self._groups()}/{group}")["spec"]
        return found

    def spec_of_root(self, name: str) -> Raw:
        """The spec of a CompositePodGroup."""
        found: Raw = self.cluster.api.get(f"{self._composites()}/{name}")["spec"]
        return found

    def await_priority(self, group: str, written: int) -> None:
        """Wait until this priority is written into the PodGroup, and the extender uses it."""
        eventually("spec.priority", lambda: self.spec_of(group).get("priority") == written)
        eventually("what counts", lambda: self.debug_page(group).get("priority") == written)

    def mismatches(self, group: str) -> list[str]:
        """The events about priorities that differ in the PodGroup."""
        return self.messages(group, "PriorityMismatch")
