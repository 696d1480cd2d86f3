"""A stub API server that only lists nodes and pods in pages. It runs in a process of its own.

Its objects are about as large as those of a real cluster. `bench.questions` measures `/debug/cache/diff` with them.
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
    """Return a node of 32 CPUs with a list of pulled images and the given resourceVersion."""
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
    """Return a running pod with one container."""
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
    # The version differs from the cached one, as after a heartbeat, so nodes are compared field by field.
    "/api/v1/nodes": (NODES, lambda index: make_node(index, "later")),
    "/api/v1/pods": (PODS, make_pod),
}


@contextmanager
def serve_lists() -> Iterator[str]:
    """Run the server while the body runs; yield its URL."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=_serve, args=(sender,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{receiver.recv()}"
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
    """Return one page of a list. Pages are cached, because the client is measured and not the server."""
    count, make = _LISTS[path]
    end = min(count, begin + limit)
    metadata = {"resourceVersion": "1", "continue": str(end) if end < count else ""}
    return orjson.dumps({"metadata": metadata, "items": [make(index) for index in range(begin, end)]})
