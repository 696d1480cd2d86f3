"""Serve the four verbs on a real socket over a small cluster, and check that bad requests change nothing."""

import json
from typing import Any, Self

import httpx

from extender.core.http.server import Listener
from extender.core.http.verbs import Verbs
from serried.ops.metrics import ExtenderMetrics
from tests.support.builders import node, pod
from tests.support.extender_harness import Harness, gang, members

GOOD_POD = pod("p").cpu(1).raw()
GOOD: dict[str, dict[str, Any]] = {
    "filter": {"Pod": GOOD_POD, "Nodes": None, "NodeNames": ["n1", "n2"]},
    "prioritize": {"Pod": GOOD_POD, "Nodes": None, "NodeNames": ["n1", "n2"]},
    "preempt": {
        "Pod": GOOD_POD,
        "NodeNameToVictims": None,
        "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "x"}], "NumPDBViolations": 0}},
    },
    "bind": {"PodName": "p", "PodNamespace": "default", "PodUID": "pod-p", "Node": "n1"},
}
"""Valid requests of kube-scheduler, by verb."""

ANSWERS: dict[str, object] = {
    "filter": {"NodeNames": ["n1", "n2"]},
    "prioritize": [{"Host": "n1", "Score": 0}, {"Host": "n2", "Score": 0}],
    "preempt": {"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "x"}], "NumPDBViolations": 0}}},
    "bind": {"Error": ""},
}


class Switch:
    """The switch by which a test makes the instance active or not."""

    active = True


class Extender:
    """The verbs on a real socket, over a small cluster with one gang that waits for its quorum."""

    def __init__(self) -> None:
        self.world, self.switch = Harness(), Switch()
        self.world.add(node("n1").cpu(4), node("n2").cpu(4), pod("p").cpu(1), gang(2), *members(1))
        verbs = Verbs(self.world.service, lambda: self.switch.active, ExtenderMetrics(), self.world.clock)
        self.listener = Listener(verbs.routes())
        self.port = 0

    async def open(self) -> Self:
        """Listen on any free port."""
        self.port = await self.listener.open("127.0.0.1", 0)
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=20.0, trust_env=False)
        return self

    async def call(self, verb: str, body: bytes | object) -> httpx.Response:
        """POST to a verb."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.http.post(f"/{verb}", content=content, headers={"Content-Type": "application/json"})

    def assert_untouched(self) -> None:
        """Check that nothing is reserved, assumed or bound."""
        assert len(self.world.ledger) == 0
        assert self.world.store.occupancy.used == {}
        assert self.world.api.list_calls("bind") == []

    async def close(self) -> None:
        """Close the listener and the cluster."""
        await self.http.aclose()
        await self.listener.close()
        await self.world.close()
