"""A stage for stories about trees of groups: CompositePodGroups over PodGroups, as the level can carry them."""

from typing import Any

from serried.api.names import REQUIRED_TOPOLOGY, composite_api_version
from tests.support.cluster_stage import ClusterStage

ZONE = "topology.kubernetes.io/zone"
WHOLE_NODE = "30"


class TreeStage(ClusterStage):
    """A namespace of trees of groups."""

    def close(self) -> None:
        """Clear the stage."""
        self.delete_all(self._composites())
        super().close()

    def create_composite(self, name: str, groups: int | None, key: str | None = None, parent: str = "") -> None:
        """A CompositePodGroup: a gang of so many groups, or policy basic for None."""
        policy = {"basic": {}} if groups is None else {"gang": {"minGroupCount": groups}}
        self._create("CompositePodGroup", self._composites(), name, policy, key, parent)

    def create_branch(self, name: str, min_count: int | None, key: str | None = None, parent: str = "root") -> None:
        """A PodGroup in a tree: a gang of so many members, or policy basic for None."""
        policy = {"basic": {}} if min_count is None else {"gang": {"minCount": min_count}}
        self._create("PodGroup", self._groups(), name, policy, key, parent)

    def _create(self, kind: str, path: str, name: str, policy: dict[str, Any], key: str | None, parent: str) -> None:
        metadata: dict[str, Any] = {"name": name}
        spec: dict[str, Any] = {
            "schedulingPolicy": policy,
            "workloadRef": {"workloadName": "tree", "templateName": "any"},
        }
        if parent:
            spec["parentCompositePodGroupName"] = parent
        if key is not None and self.native:
            metadata["annotations"] = {REQUIRED_TOPOLOGY: key}  # the field is behind one gate more
        elif key is not None:
            spec["schedulingConstraints"] = {"topology": [{"key": key}]}
        version = self.cluster.spec.api_version
        version = composite_api_version(version) if kind == "CompositePodGroup" else version
        self._post(path, {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})

    def delete_composite(self, name: str) -> None:
        """Delete a CompositePodGroup, as a user might."""
        self._delete(f"{self._composites()}/{name}")

    def domains(self, label: str, *prefixes: str) -> set[str]:
        """The values of a node label where the bound pods with these names are."""
        nodes = {n["metadata"]["name"]: n["metadata"]["labels"] for n in self.cluster.api.get("/api/v1/nodes")["items"]}
        return {nodes[node][label] for prefix in prefixes for node in self.bound(prefix).values()}

    def composite_condition(self, name: str) -> tuple[str, str, str]:
        """Status, reason and message of CompositePodGroupInitiallyScheduled; empty texts without it."""
        found = self.cluster.api.get(f"{self._composites()}/{name}")
        for one in found.get("status", {}).get("conditions", []):
            if one["type"] == "CompositePodGroupInitiallyScheduled":
                return one["status"], one["reason"], one.get("message", "")
        return "", "", ""

    def _composites(self) -> str:
        version = composite_api_version(self.cluster.spec.api_version)
        return f"/apis/{version}/namespaces/{self.namespace}/compositepodgroups"
