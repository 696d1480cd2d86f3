"""A namespace to which the files of `examples/` are applied."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

import yaml

from tests.support.cluster_stage import RACK, ClusterStage, Raw

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


class ExampleStage(ClusterStage):
    """A namespace to which examples are applied as they stand."""

    def apply(self, example: str) -> None:
        """``kubectl apply -f``; at the native level what a comment of the example says is changed first."""
        objects = read(example)
        if self.native:
            objects = [to_native(each) for each in objects]
        with NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump_all(objects, file)
            file.flush()
            self.cluster.kubectl("apply", "-n", self.namespace, "-f", file.name)

    def counts(self, job: str) -> int:
        """minCount of a Job's PodGroup."""
        return int(self.await_group(job)["spec"]["schedulingPolicy"]["gang"]["minCount"])

    def rack_of(self, pod: str) -> str:
        """The rack in which a bound pod runs."""
        node = self.cluster.api.get(f"/api/v1/nodes/{self.bound()[pod]}")
        return str(node["metadata"]["labels"][RACK])

    @contextmanager
    def labelled(self, key: str) -> Iterator[None]:
        """Label each node with the name of its rack under this key, too, while the body runs."""
        for name, rack in self._racks().items():
            self.cluster.kubectl("label", "node", name, f"{key}={rack}", "--overwrite")
        yield
        self.cluster.kubectl("label", "nodes", "--all", f"{key}-")

    @contextmanager
    def gpus(self, rack: str, of_each_node: int) -> Iterator[None]:
        """The nodes of one rack show so many GPUs each, for as long as the body runs."""
        nodes = [name for name, where in self._racks().items() if where == rack]
        for name in nodes:
            self._show_gpus(name, str(of_each_node))
        yield
        for name in nodes:
            self._show_gpus(name, None)

    def _racks(self) -> dict[str, str]:
        nodes = self.cluster.api.get("/api/v1/nodes")["items"]
        return {node["metadata"]["name"]: node["metadata"]["labels"][RACK] for node in nodes}

    def _show_gpus(self, node: str, number: str | None) -> None:
        amounts = {"nvidia.com/gpu": number}
        patch = json.dumps({"status": {"capacity": amounts, "allocatable": amounts}})
        self.cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", patch)


def read(example: str) -> list[Raw]:
    """The objects of an example."""
    return list(yaml.safe_load_all((EXAMPLES / f"{example}.yaml").read_text()))


def to_native(item: Raw) -> Raw:
    """The same object for clusters that serve the upstream API."""
    if item["kind"] == "PodGroup":
        return item | {"apiVersion": "scheduling.k8s.io/v1beta1"}
    if item["kind"] == "Pod":
        group = item["metadata"]["labels"]["scheduling.serried.dev/pod-group"]
        metadata = {"name": item["metadata"]["name"]}
        return item | {"metadata": metadata, "spec": item["spec"] | {"schedulingGroup": {"podGroupName": group}}}
    return item
