"""The page at /debug/ of a whole extender: it follows the watches, and does not keep the process from its end."""

import asyncio

import orjson

from extender.process import Extender
from serried.kube.wire import NODES
from serried.model.level import FALLBACK
from serried.observe.prometheus import PrometheusExtenderMetrics
from serried.settings import extender_settings
from tests.support.apiserver import FakeApiServer
from tests.support.builders import node

FLAGS = ["--lease", "", *(f"--{name}-listen=127.0.0.1:0" for name in ("filter", "bind", "ops"))]


async def test_an_open_page_sees_what_the_watches_show_and_ends_with_the_process(server: FakeApiServer) -> None:
    server.add(NODES, node("n1").raw())
    async with server.client() as client, asyncio.timeout(20):
        extender = Extender(extender_settings(FLAGS, {}), client, FALLBACK, PrometheusExtenderMetrics())
        task = asyncio.create_task(extender.run())
        await extender.feed.synced.wait()
        events = extender.broadcast.follow()
        names: set[str] = set()
        while "n1" not in names:
            names |= {row[1] for row in orjson.loads((await anext(events))[6:]).get("nodes", ())}
        server.add(NODES, node("n2").raw())
        while "n2" not in names:
            names |= {row[1] for row in orjson.loads((await anext(events))[6:]).get("nodes", ())}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while await anext(events, None) is not None:
            pass
        assert extender.broadcast.readers == 0
