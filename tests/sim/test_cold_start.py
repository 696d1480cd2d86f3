"""An extender that starts in a large cluster: plain pods pass from its first moment, gangs wait until all is known."""

import asyncio
import json
import logging
import time
from typing import Any

import pytest

from extender.process import Extender
from serried.api.level import FALLBACK
from serried.kube.wire import NODES, PODS, pod_groups
from tests.support.apiserver import FakeApiServer
from tests.support.builders import node, pod, pod_group
from tests.support.controller_harness import wait_until
from tests.support.extender_process import run_extender
from tests.support.faults import calls

log = logging.getLogger(__name__)

GROUPS = pod_groups(FALLBACK.group, FALLBACK.version)
OFFERED = ["n0", "n1"]

PATIENCE = 5.0
"""Seconds: kube-scheduler waits longer for an answer, as our configuration has it."""


def fill(server: FakeApiServer, nodes: int, pods: int) -> None:
    """A cluster that is full but for its last nodes, and a gang of two that fits there."""
    for at in range(nodes):
        server.add(NODES, node(f"n{at}").cpu(16).raw())
    for at in range(pods):
        server.add(PODS, pod(f"p{at}").cpu("500m").on(f"n{at % (nodes - 2)}").raw())
    server.add(GROUPS, pod_group("g").gang(2).raw())
    for at in range(2):
        server.add(PODS, member(at))


def member(at: int) -> dict[str, Any]:
    return pod(f"m{at}").cpu(1).scheduler("serried").in_group("g").raw()


def ask(extender: Extender, raw: dict[str, Any]) -> list[str]:
    """The nodes that filter leaves a pod."""
    body = json.dumps({"Pod": raw, "NodeNames": OFFERED}).encode()
    names: list[str] = json.loads(extender.verbs.filter(body).body)["NodeNames"]
    return names


@pytest.mark.parametrize(
    ("nodes", "pods"),
    [
        pytest.param(100, 1_000, id="100 nodes and 1,000 pods"),
        pytest.param(5_000, 50_000, id="5,000 nodes and 50,000 pods", marks=pytest.mark.full),
    ],
)
async def test_plain_pods_pass_while_the_caches_fill_and_members_are_held_until_then(nodes: int, pods: int) -> None:
    plain = pod("new").cpu(1).scheduler("serried").raw()
    async with FakeApiServer() as server:
        fill(server, nodes, pods)
        async with run_extender(server) as extender:
            begun = time.monotonic()
            answered = 0
            longest = 0.0
            await wait_until(lambda: extender.leadership.active)
            while not extender.core.service.synced:
                asked = time.monotonic()
                assert ask(extender, plain) == OFFERED
                assert ask(extender, member(0)) == []
                assert len(extender.core.ledger) == 0
                answered += 1
                await asyncio.sleep(0)
                longest = max(longest, time.monotonic() - asked)
            took = time.monotonic() - begun
            log.info("%d answers in %.1f s until all was known, the longest wait %.3f s", answered, took, longest)
            assert answered > 3
            assert longest < PATIENCE
            assert server.list_requests(calls("POST", "binding")) == []
            assert len(extender.store.pods) == pods + 2
            assert ask(extender, plain) == OFFERED
            await wait_until(lambda: len(extender.core.ledger) == 1)


async def test_a_plain_pod_is_bound_while_nothing_is_listed() -> None:
    plain = pod("new").cpu(1).scheduler("serried").raw()
    async with FakeApiServer() as server:
        fill(server, 4, 10)
        server.add(PODS, plain)
        lists = server.hold(lambda request: request.is_watch or "limit" in request.params)
        async with run_extender(server) as extender:
            await asyncio.wait_for(lists.reached.wait(), PATIENCE)
            await wait_until(lambda: extender.leadership.active)
            assert ask(extender, plain) == OFFERED
            assert await asyncio.wait_for(bind(extender, "new"), PATIENCE) == {"Error": ""}
            assert (len(extender.store.pods), len(extender.store.nodes)) == (0, 0)
            bound = server.get_object(PODS, "default", "new")
            assert bound is not None
            assert bound["spec"]["nodeName"] == OFFERED[0]
            lists.open()
            await wait_until(lambda: len(extender.core.ledger) == 1)


async def bind(extender: Extender, name: str) -> Any:
    """The answer to the bind call of a pod for the first of the nodes."""
    args = {"PodName": name, "PodNamespace": "default", "PodUID": f"pod-{name}", "Node": OFFERED[0]}
    return json.loads((await extender.verbs.bind(json.dumps(args).encode(), stay)).body)


async def stay() -> None:
    """The caller does not hang up."""
    await asyncio.Event().wait()
