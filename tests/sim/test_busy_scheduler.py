"""An extender to which no plain pod comes sees by its watch that the scheduler is at work."""

import asyncio

from serried.kube.wire import NODES, PODS
from tests.support.apiserver import FakeApiServer
from tests.support.builders import node, pod
from tests.support.extender_process import run_extender


async def test_a_pod_that_the_scheduler_binds_is_a_sign_of_work(server: FakeApiServer) -> None:
    server.add(NODES, node("n1").raw())
    server.add(PODS, pod("plain").scheduler("serried").raw())
    async with run_extender(server) as extender, asyncio.timeout(10):
        await extender.feed.synced.wait()
        assert extender.core.groups.activity.last_sign == 0.0
        server.patch(PODS, "default", "plain", {"spec": {"nodeName": "n1"}})
        while not extender.core.groups.activity.last_sign:  # noqa: ASYNC110 - the state under test has no event
            await asyncio.sleep(0.005)
