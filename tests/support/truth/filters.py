"""What kube-scheduler's own filters say of the same clusters, without a cluster (bench/oracle)."""

from collections.abc import Iterator, Sequence
from random import Random

from bench.oracle import Finding, Oracle
from tests.support.truth.rules import Cluster, Raw

Placed = Sequence[tuple[Raw, str]]
"""Pods with their nodes, in the order in which they come there."""


class Filters:
    """Asks a running oracle."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def ask(self, cluster: Cluster, pods: Sequence[Raw]) -> list[Finding]:
        """Return what is found for each pod alone."""
        return self._oracle.ask(list_objects(cluster), [(pod, None) for pod in pods])

    def find_refusal(self, cluster: Cluster, placed: Placed) -> tuple[str, Finding] | None:
        """Place the pods one after the other. Return the name of the first that its node is refused, and why."""
        found = self._oracle.ask(list_objects(cluster), placed)
        for (pod, node), finding in zip(placed, found, strict=False):
            if finding.invalid or finding.failed or node in finding.rejected:
                return pod["metadata"]["name"], finding
        return None

    def place_some(self, cluster: Cluster, pods: Sequence[Raw], random: Random) -> Placed:
        """Place as many pods as pass in one random order, each on any node that passes when it is its turn."""
        placed: list[tuple[Raw, str]] = []
        for pod in random.sample(pods, len(pods)):
            *_, found = self._oracle.ask(list_objects(cluster), [*placed, (pod, None)])
            nodes = list_passing(cluster, found)
            if nodes:
                placed.append((pod, random.choice(sorted(nodes))))
        return placed


def list_passing(cluster: Cluster, found: Finding) -> frozenset[str]:
    """The names of the nodes on which kube-scheduler would place the pod of a finding."""
    return frozenset() if found.invalid or found.failed else list_not_rejected(cluster, found)


def list_not_rejected(cluster: Cluster, found: Finding) -> frozenset[str]:
    """The same, as if an error about one node did not end the attempt."""
    return frozenset(node["metadata"]["name"] for node in cluster.nodes) - found.rejected.keys()


def list_objects(cluster: Cluster) -> list[Raw]:
    """All that the API server has. Pods that run have the UIDs that they have in `Ours`."""
    return [*_list_namespaces(cluster), *cluster.nodes, *cluster.storage, *_list_running(cluster)]


def _list_namespaces(cluster: Cluster) -> Iterator[Raw]:
    for name, labels in cluster.namespaces.items():
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels)}}


def _list_running(cluster: Cluster) -> Iterator[Raw]:
    for index, pod in enumerate(cluster.pods):
        yield {**pod, "metadata": {**pod["metadata"], "uid": f"bound-{index}"}}
