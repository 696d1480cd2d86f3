"""kube-scheduler's own filters on the clusters of `truth.worlds`, run by the oracle (bench/oracle)."""

from collections.abc import Iterator, Sequence
from random import Random

from bench.oracle import Finding, Oracle
from tests.support.truth.rules import Cluster, Raw

Placed = Sequence[tuple[Raw, str]]
"""Pods with their nodes, in the order of placing."""


class Filters:
    """Calls a running oracle with clusters and pods."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def ask(self, cluster: Cluster, pods: Sequence[Raw]) -> list[Finding]:
        """Return the finding for each pod alone."""
        return self._oracle.ask(list_objects(cluster), [(pod, None) for pod in pods])

    def find_refusal(self, cluster: Cluster, placed: Placed) -> tuple[str, Finding] | None:
        """Place the pods one by one. Return name and finding of the first pod whose node is rejected; None without."""
        found = self._oracle.ask(list_objects(cluster), placed)
        for (pod, node), finding in zip(placed, found, strict=False):
            if finding.invalid or finding.failed or node in finding.rejected:
                return pod["metadata"]["name"], finding
        return None

    def place_some(self, cluster: Cluster, pods: Sequence[Raw], random: Random) -> Placed:
        """Place pods one by one in a random order, each on a random node that passes. Skip pods that fit nowhere."""
        placed: list[tuple[Raw, str]] = []
        for pod in random.sample(pods, len(pods)):
            *_, found = self._oracle.ask(list_objects(cluster), [*placed, (pod, None)])
            nodes = list_passing(cluster, found)
            if nodes:
                placed.append((pod, random.choice(sorted(nodes))))
        return placed


def list_passing(cluster: Cluster, found: Finding) -> frozenset[str]:
    """Return the names of the nodes on which kube-scheduler would place the pod of a finding."""
    return frozenset() if found.invalid or found.failed else list_not_rejected(cluster, found)


def list_not_rejected(cluster: Cluster, found: Finding) -> frozenset[str]:
    """Return the names of the nodes that are not rejected, even if an error ended the attempt."""
    return frozenset(node["metadata"]["name"] for node in cluster.nodes) - found.rejected.keys()


def list_objects(cluster: Cluster) -> list[Raw]:
    """Return all objects of the cluster. Running pods have the same UIDs as in `SerriedPlanner`."""
    return [*_list_namespaces(cluster), *cluster.nodes, *cluster.storage, *_list_running(cluster)]


def _list_namespaces(cluster: Cluster) -> Iterator[Raw]:
    for name, labels in cluster.namespaces.items():
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels)}}


def _list_running(cluster: Cluster) -> Iterator[Raw]:
    for index, pod in enumerate(cluster.pods):
        yield {**pod, "metadata": {**pod["metadata"], "uid": f"bound-{index}"}}
