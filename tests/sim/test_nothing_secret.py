"""No answer of the operations listener holds a secret, wherever one is: in flags, credentials, pods, annotations."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from extender.process import Extender
from serried.api.level import FALLBACK
from serried.kube.wire import NODES, PODS, pod_groups
from serried.ops.metrics import ExtenderMetrics
from serried.ops.server import ops_routes
from tests.support.apiserver import FakeApiServer
from tests.support.builders import Builder, node, pod, pod_group
from tests.support.controller_harness import wait_until
from tests.support.extender_process import run_extender

GROUPS = pod_groups(FALLBACK.group, FALLBACK.version)
PLANTED = "open-sesame"
"""The beginning of every secret here."""

FLAGS = [
    f"--traces=http://collector:{PLANTED}-traces@nowhere.example:4318/v1/traces?key={PLANTED}-query",
    f"--scheduler-livez=http://probe:{PLANTED}-probe@127.0.0.1:1/livez",
]
FOLLOWED = "/debug/stream"
"""The stream has no end, so the test reads its messages where they are made."""


def plant(built: Builder) -> dict[str, Any]:
    """An object with a secret in each place where people put them."""
    raw = built.annotation("kubectl.kubernetes.io/last-applied-configuration", f"{PLANTED}-annotation").raw()
    for container in raw.get("spec", {}).get("containers", ()):
        container |= {"env": [{"name": "KEY", "value": f"{PLANTED}-env"}], "args": [f"--key={PLANTED}-argument"]}
    return raw


@pytest.fixture
async def extender() -> AsyncIterator[Extender]:
    """An extender in a cluster with a gang that fits, and one that waits."""
    async with FakeApiServer() as server:
        server.token = f"{PLANTED}-token"
        server.add(NODES, plant(node("n1").cpu(4)))
        for name, cpu in (("g", 1), ("waiting", 100)):
            server.add(GROUPS, plant(pod_group(name).gang(2)))
            for at in range(2):
                server.add(PODS, plant(pod(f"{name}-{at}").cpu(cpu).scheduler("serried").in_group(name)))
        async with run_extender(server, *FLAGS) as made:
            await wait_until(lambda: len(made.core.ledger) == 1 and made.reports.decisions)
            # So that the page of what differs has something to tell.
            server.drop_changes(NODES)
            server.add(NODES, plant(node("unseen").cpu(4)))
            yield made


def address(path: str, said: dict[str, Any], decision: str) -> str:
    """Return a page's address for an existing object, with all its parameters."""
    for name, value in {"namespace": "default", "kind": "pod", "name": "g", "id": decision}.items():
        path = path.replace(f"{{{name}}}", "g-0" if (name, "lookup" in path) == ("name", True) else value)
    asked = {"dryRun": "All", "diagnosis": "advice", "seconds": "0.01"}
    taken = {parameter["name"] for parameter in said.get("parameters", ())}
    return path + "?" + "&".join(f"{name}={value}" for name, value in asked.items() if name in taken)


async def test_what_is_planted_is_in_no_answer(extender: Extender) -> None:
    app = FastAPI()
    app.include_router(ops_routes(dict, ExtenderMetrics().render))
    for router in extender.routes():
        app.include_router(router)
    decision = extender.reports.decisions[0].id
    supposed = plant(pod("supposed").cpu(1).scheduler("serried").in_group("g")) | {"apiVersion": "v1", "kind": "Pod"}
    pages = 0
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug", timeout=30) as http:
        for path, methods in app.openapi()["paths"].items():
            for method in methods.keys() if path != FOLLOWED else ():
                asked = address(path, methods[method], decision)
                answer = await http.request(method, asked, content=json.dumps(supposed))
                assert PLANTED not in answer.text + str(answer.headers), path
                assert "unseen" in answer.text or path != "/debug/cache/diff"
                # A refusal would hide what the page has to tell. The probes find nobody at port 0.
                assert answer.status_code == 200 or path.startswith("/livez/"), answer.text
                pages += 1
    assert pages >= 20


async def test_what_is_planted_is_not_on_the_live_page(extender: Extender) -> None:
    events = extender.broadcast.follow()
    told = b""
    while b'"complete":true' not in told:
        told += await anext(events)
    assert b"n1" in told
    assert PLANTED.encode() not in told
