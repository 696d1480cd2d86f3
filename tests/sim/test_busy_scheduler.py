"""An extender to which no plain pod comes sees by its watch that the scheduler is at work."""

import asyncio

from extender.process import Extender
from serried.kube.wire import NODES, PODS
from serried.model.level import FALLBACK
from serried.observe.prometheus import PrometheusExtenderMetrics
from serried.settings import extender_settings
from tests.support.apiserver import FakeApiServer
from tests.support.builders import node, pod

FLAGS = ["--lease", "", *(f"--{name}-listen=127.0.0.1:0" for name in ("filter", "bind", "ops"))]


async def test_a_pod_that_the_scheduler_binds_is_a_sign_of_work(server: FakeApiServer) -> None:
    server.add(NODES, node("n1").raw())
    server.add(PODS, pod("plain").scheduler("serried").raw())
    async with server.client() as client:
        extender = Extender(extender_settings(FLAGS, {}), client, FALLBACK, PrometheusExtenderMetrics())
        task = asyncio.create_task(extender.run())
        async with asyncio.timeout(10):
            await extender.feed.synced.wait()
            assert extender.core.activity.last_sign == 0.0
            server.change(PODS, "default", "plain", {"spec": {"nodeName": "n1"}})
            while not extender.core.activity.last_sign:  # noqa: ASYNC110 - the state under test has no event
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
