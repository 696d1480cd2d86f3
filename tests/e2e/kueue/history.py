"""The history of the pods of a namespace, recorded as it happens: the API server forgets it after a minute or two."""

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.cluster import Cluster
from bench.cluster.processes import Process, spawn, stop
from tests.support.cluster_stage import Raw, eventually


class PodHistory:
    """All changes of the pods of a namespace since it was made; `close` ends the watch."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        begun = cluster.api.get(self._path)["metadata"]["resourceVersion"]
        watch = f"{self._path}?watch=1&resourceVersion={begun}&timeoutSeconds=3600"
        self._file = Path(cluster.logs["controller"]).with_name(f"{namespace}-pods.jsonl")
        argv = [str(cluster.kubectl_program), "--kubeconfig", str(cluster.kubeconfig), "get", "--raw", watch]
        self._watch: Process = spawn(argv, self._file, self._file.parent, os.environ)

    def close(self) -> None:
        """End the watch."""
        stop([self._watch])

    def list_starts(self, sizes: Mapping[str, int]) -> dict[str, list[int]]:
        """Return the number of bound pods of each start of these gangs, in order.

        ``sizes`` are by what the names of a gang's pods begin with. A start begins with a Binding. It is over when as
        many pods are bound as the gang has, or when one of them ends before that.
        """
        starts: dict[str, list[int]] = {gang: [] for gang in sizes}
        open_starts = defaultdict[str, set[str]](set)
        counted: set[str] = set()
        for kind, pod in self._read():
            gang, uid = _find_gang(pod["metadata"]["name"], sizes), pod["metadata"]["uid"]
            ended = kind == "DELETED" or "deletionTimestamp" in pod["metadata"] or _has_ended(pod)
            if gang and pod["spec"].get("nodeName") and not ended and uid not in counted:
                counted.add(uid)
                open_starts[gang].add(uid)
            if gang and (len(open_starts[gang]) == sizes[gang] or (ended and uid in open_starts[gang])):
                starts[gang].append(len(open_starts.pop(gang)))
        for gang, bound in open_starts.items():
            starts[gang] += [len(bound)] if bound else []
        return starts

    def _read(self) -> Iterator[tuple[str, Raw]]:
        """The changes until now, in order: ADDED, MODIFIED or DELETED, and the pod."""
        listed = {_identify(pod) for pod in self._cluster.api.get(self._path)["items"]}
        eventually("the changes until now", lambda: listed <= {_identify(pod) for _, pod in self._parse()})
        yield from self._parse()

    def _parse(self) -> Iterator[tuple[str, Raw]]:
        for line in self._file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                event = json.loads(line)
                assert event["type"] in {"ADDED", "MODIFIED", "DELETED"}, event
                yield event["type"], event["object"]


def _identify(pod: Raw) -> tuple[str, str]:
    return pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]


def _find_gang(pod: str, sizes: Mapping[str, int]) -> str:
    """The longest beginning of the name that ends before a hyphen and has a size; empty if there is none."""
    while "-" in pod:
        pod = pod.rpartition("-")[0]
        if pod in sizes:
            return pod
    return ""


def _has_ended(pod: Raw) -> bool:
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
