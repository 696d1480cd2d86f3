"""An API server in a process of its own. It lists nodes and pods in pages, and does nothing else.

Its objects are about as large as those of a real cluster: `/debug/cache/diff` is measured with them.
"""

import asyncio
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import orjson
from aiohttp import web

from bench.loop import HOST
from tests.support.builders import RACK

NODES, PODS = 5_000, 50_000
_IMAGES, _CONDITIONS, _VARIABLES = 40, 5, 12

JSON = dict[str, Any]


def make_node(index: int, version: str) -> JSON:
    """A node of 32 CPUs with the images that it has pulled."""
    name = f"n{index}"
    images = [
        {"names": [f"registry.example.com/team/{at}@sha256:{at:064x}"], "sizeBytes": 10**8} for at in range(_IMAGES)
    ]
    conditions = [
        {"type": f"Type{at}", "status": "False", "reason": "Fine", "message": "x" * 60} for at in range(_CONDITIONS)
    ]
    allocatable = {"cpu": "32", "memory": "128Gi", "pods": "110", "ephemeral-storage": "100Gi"}
    labels = {RACK: f"rack-{index // 100}", HOST: name}
    return {
        "metadata": {"name": name, "uid": f"node-{index}", "resourceVersion": version, "labels": labels},
        "spec": {"providerID": f"cloud://{name}"},
        "status": {"allocatable": allocatable, "capacity": allocatable, "conditions": conditions, "images": images},
    }


def make_pod(index: int) -> JSON:
    """A running pod of one container."""
    name = f"p{index}"
    variables = [{"name": f"VARIABLE_{at}", "value": "value" * 4} for at in range(_VARIABLES)]
    container = {
        "name": "main",
        "image": "registry.example.com/team/main:1",
        "env": variables,
        "resources": {"requests": {"cpu": "2", "memory": "1Gi"}},
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
    }
    managed = [{"manager": f"manager-{at}", "fieldsV1": {f"f:field{n}": {} for n in range(30)}} for at in range(2)]
    metadata = {"namespace": "load", "name": name, "uid": f"pod-{index}", "resourceVersion": f"{index + 1}"}
    conditions = [{"type": f"Type{at}", "status": "True", "lastProbeTime": None} for at in range(_CONDITIONS)]
    spec = {"schedulerName": "serried", "nodeName": f"n{index % NODES}", "containers": [container]}
    return {
        "metadata": {**metadata, "labels": {"app": "load"}, "managedFields": managed},
        "spec": spec,
        "status": {"phase": "Running", "conditions": conditions, "podIP": "10.0.0.1"},
    }


_LISTS: Mapping[str, tuple[int, Callable[[int], JSON]]] = {
    # Each node has had a heartbeat since: it is compared field by field.
    "/api/v1/nodes": (NODES, lambda index: make_node(index, "later")),
    "/api/v1/pods": (PODS, make_pod),
}


@contextmanager
def serve_lists() -> Iterator[str]:
    """The server; yields its URL."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()


def _serve(connection: Connection) -> None:
    with asyncio.Runner() as runner:
        runner.run(_listen(connection))


async def _listen(connection: Connection) -> None:
    server = web.ServerRunner(web.Server(_answer, access_log=None))
    await server.setup()
    await web.TCPSite(server, "127.0.0.1", 0).start()
    connection.send(server.addresses[0][1])
    await asyncio.Event().wait()


async def _answer(request: web.BaseRequest) -> web.Response:
    begin = int(request.query.get("continue") or 0)
    page = _make_page(request.path, begin, int(request.query["limit"]))
    return web.Response(body=page, content_type="application/json")


@cache
def _make_page(path: str, begin: int, limit: int) -> bytes:
    """One page of a list. Pages are kept: what is measured is who reads them."""
    count, make = _LISTS[path]
    end = min(count, begin + limit)
    metadata = {"resourceVersion": "1", "continue": str(end) if end < count else ""}
    return orjson.dumps({"metadata": metadata, "items": [make(index) for index in range(begin, end)]})
