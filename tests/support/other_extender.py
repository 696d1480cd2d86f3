"""A second extender in kube-scheduler's configuration, which rejects the nodes that a test chooses."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bench.cluster import Cluster
from bench.cluster.ports import LOOPBACK
from tests.support.threaded_server import JsonHandler, ThreadedServer

REASON = "licence of the node is taken"
"""The reason for each rejected node in the second extender's answers."""


class FilterCall(NamedTuple):
    """One call about a pod: the nodes that it accepted and the nodes that it rejected."""

    at: float
    """The time of the call, in seconds since 1970."""

    pod: str
    left: tuple[str, ...]
    refused: tuple[str, ...]


class OtherExtender(ThreadingHTTPServer):
    """The HTTP server of the second extender, which records every filter call in ``asked``.

    ``refuses`` takes the names of a pod and a node, and returns whether to reject the node for the pod.
    """

    def __init__(self) -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        self.refuses: Callable[[str, str], bool] = lambda _pod, _node: False
        self.asked: list[FilterCall] = []

    def find_reactions(self) -> list[float]:
        """Return the seconds from the first call about each node to the first call about the next node.

        If the extender rejects one node per call, that is how fast Serried offers another one.
        """
        first: dict[str, float] = {}
        for each in self.asked:
            for name in (*each.left, *each.refused):
                first.setdefault(name, each.at)
        times = sorted(first.values())
        return [after - before for before, after in pairwise(times)]


class _Handler(JsonHandler):
    server: OtherExtender

    def answer(self, asked: Any) -> Any:
        pod = str(asked["Pod"]["metadata"]["name"])
        refused = tuple(name for name in asked["NodeNames"] if self.server.refuses(pod, name))
        left = tuple(name for name in asked["NodeNames"] if name not in refused)
        self.server.asked.append(FilterCall(time.time(), pod, left, refused))
        return {"NodeNames": left, "FailedNodes": dict.fromkeys(refused, REASON)}


@contextmanager
def call_other_extender(cluster: Cluster, place: int, directory: Path) -> Iterator[OtherExtender]:
    """Let Serried's kube-scheduler call another extender while the body runs: before Serried (place 0) or after (1)."""
    shipped = cluster.kubectl_program.parent / "scheduler.yaml"
    config = yaml.safe_load(shipped.read_text())
    changed = directory / "scheduler.yaml"
    other = OtherExtender()
    with ThreadedServer(other) as server:
        entry = {"urlPrefix": server.url, "filterVerb": "filter", "nodeCacheCapable": True}
        config["extenders"].insert(place, entry)
        changed.write_text(yaml.safe_dump(config))
        cluster.restart("scheduler", f"--config={changed}")
        try:
            yield other
        finally:
            cluster.restart("scheduler", f"--config={shipped}")
