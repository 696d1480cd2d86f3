"""A stock kube-scheduler that finds nodes for pods and never binds one: an extender notes what it found."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from bench.cluster import Cluster, binaries, ports, processes
from bench.cluster.ports import LOOPBACK
from bench.cluster.processes import Process
from bench.cluster.progress import silent
from tests.support.threaded_server import JsonHandler, ThreadedServer

SCHEDULER = "recorded"
"""The schedulerName of the pods that are asked about."""

_START_SECONDS = 30.0

_TRIED_AGAIN_SECONDS = 60
"""The time after which a pod that found no node is tried again: later than any question."""


class Recorder(ThreadingHTTPServer):
    """The extender. It is called once all filters of kube-scheduler are done, unless no node is left by then."""

    def __init__(self) -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        self.found: dict[str, frozenset[str]] = {}
        """By the UID of a pod, the names of the nodes that passed all filters when it was tried first."""


class _Handler(JsonHandler):
    server: Recorder

    def answer(self, asked: Any) -> Any:
        names = asked["NodeNames"]
        self.server.found.setdefault(asked["Pod"]["metadata"]["uid"], frozenset(names))
        # None of them will do, so that nothing is bound, and no eviction helps.
        return {"NodeNames": [], "FailedAndUnresolvableNodes": dict.fromkeys(names, "noted")}


@contextmanager
def recording(cluster: Cluster, directory: Path) -> Iterator[Recorder]:
    """A kube-scheduler of the cluster's version runs and is recorded for as long as the body runs."""
    recorder = Recorder()
    with ThreadedServer(recorder) as server:
        process = _start(cluster, directory, server.url)
        try:
            yield recorder
        finally:
            processes.stop([process])


def _start(cluster: Cluster, directory: Path, extender: str) -> Process:
    port = ports.pick(["scheduler"], ())["scheduler"]
    config = directory / "scheduler.yaml"
    config.write_text(yaml.safe_dump(_configure(cluster, extender)))
    program = binaries.locate(cluster.spec.kubernetes, silent, cluster.spec.scheduler)["kube-scheduler"]
    command = [
        *(str(program), f"--config={config}", f"--bind-address={LOOPBACK}", f"--secure-port={port}"),
        *(f"--authentication-kubeconfig={cluster.kubeconfig}", f"--authorization-kubeconfig={cluster.kubeconfig}"),
    ]
    return processes.spawn(command, directory / "scheduler.log", directory)


def _configure(cluster: Cluster, extender: str) -> dict[str, Any]:
    """As shipped, but that every node is looked at, and that nobody is evicted."""
    quiet = {"postFilter": {"disabled": [{"name": "DefaultPreemption"}]}}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(cluster.kubeconfig), "qps": 1000, "burst": 2000},
        "percentageOfNodesToScore": 100,
        "podInitialBackoffSeconds": _TRIED_AGAIN_SECONDS,
        "podMaxBackoffSeconds": _TRIED_AGAIN_SECONDS,
        "profiles": [{"schedulerName": SCHEDULER, "plugins": quiet}],
        "extenders": [{"urlPrefix": extender, "filterVerb": "filter", "nodeCacheCapable": True}],
    }
