"""A burst of Bindings as large as the largest gang meets no 429: FlowSchemas keep a level of their own for them."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import cycle

import pytest

from tests.e2e.manifests.server import Json, Server

pytestmark = [pytest.mark.e2e, pytest.mark.full]

BINDINGS = 2_000
CLIENTS = 100
CONNECTIONS = 8
"""Together far more than the extender ever has in flight, and more than the level of ordinary accounts lets wait. The
work of a client grows with the product of its requests and its connections, so there are many small ones."""

BURSTS = 5
"""The largest number of bursts that are sent until some Bindings are refused."""

PODS = "/api/v1/namespaces/default/pods"
FLOW = "serried-bindings"


def member(index: int) -> Json:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1m"}}}
    spec = {"schedulerName": "nobody", "containers": [container], "terminationGracePeriodSeconds": 0}
    return {"metadata": {"name": f"burst-{index}"}, "spec": spec}


def binding(index: int) -> Json:
    target = {"apiVersion": "v1", "kind": "Node", "name": "burst"}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": f"burst-{index}"}, "target": target}


async def send(server: Server, account: str) -> tuple[Counter[int], set[str]]:
    """The statuses of all answers, and the flows under which they were served."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(each) for each in server.clients(account, CLIENTS, CONNECTIONS)]
        turns = zip(cycle(clients), range(BINDINGS), strict=False)
        calls = (client.post(f"{PODS}/burst-{index}/binding", json=binding(index)) for client, index in turns)
        answers = await asyncio.gather(*calls)
    flows = {answer.headers.get("X-Kubernetes-PF-FlowSchema-UID", "") for answer in answers}
    return Counter(answer.status_code for answer in answers), flows


@pytest.fixture
def members(server: Server) -> Iterator[None]:
    """As many pods as there are Bindings, and their node. No kubelet plays it: what is measured is the API server."""
    api = server.cluster.api
    api.post("/api/v1/nodes", {"metadata": {"name": "burst"}, "spec": {"unschedulable": True}})
    for index in range(BINDINGS):
        api.post(PODS, member(index))
    yield
    for index in range(BINDINGS):
        api.request("DELETE", f"{PODS}/burst-{index}?gracePeriodSeconds=0")
    api.request("DELETE", "/api/v1/nodes/burst")


@pytest.fixture
def ordinary(server: Server) -> Iterator[None]:
    """The extender's account is one among the others."""
    server.run("delete", "flowschema", FLOW)
    yield
    server.apply("policies")


def test_two_thousand_bindings_at_once_are_all_taken(server: Server, members: None) -> None:
    statuses, flows = asyncio.run(send(server, "serried"))
    assert statuses == {201: BINDINGS}
    assert flows == {server.get("flowschema", FLOW)["metadata"]["uid"]}


def test_without_our_flow_schema_some_of_them_are_refused(server: Server, ordinary: None, members: None) -> None:
    # A client that is short of time itself may send a burst no faster than it is served: then all are bound, and the
    # next one gets a 409 for each, by the same flow.
    for served in (201, *[409] * (BURSTS - 1)):
        statuses, _ = asyncio.run(send(server, "serried"))
        assert statuses.keys() - {429} == {served}
        if statuses[429]:
            break
    assert statuses[429]


def test_our_scheduler_has_a_place_in_that_level(server: Server) -> None:
    """In a queue of its own: `tests/unit/manifests/test_kustomize.py`."""

    async def ask() -> str:
        (client,) = server.clients("serried-scheduler", 1, 1)
        async with client:
            return (await client.get(PODS)).headers["X-Kubernetes-PF-PriorityLevel-UID"]

    assert asyncio.run(ask()) == server.get("prioritylevelconfiguration", "serried")["metadata"]["uid"]
