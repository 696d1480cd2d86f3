"""The page at /debug/ of a whole extender: it follows the watches, and does not keep the process from its end."""

import asyncio

import orjson

from serried.kube.wire import NODES
from tests.support.apiserver import FakeApiServer
from tests.support.builders import node
from tests.support.extender_process import run_extender


async def test_an_open_page_sees_what_the_watches_show_and_ends_with_the_process(server: FakeApiServer) -> None:
    server.add(NODES, node("n1").raw())
    async with asyncio.timeout(20):
        async with run_extender(server) as extender:
            await extender.feed.synced.wait()
            events = extender.broadcast.follow()
            names: set[str] = set()
            while "n1" not in names:
                names |= {row[1] for row in orjson.loads((await anext(events))[6:]).get("nodes", ())}
            server.add(NODES, node("n2").raw())
            while "n2" not in names:
                names |= {row[1] for row in orjson.loads((await anext(events))[6:]).get("nodes", ())}
        while await anext(events, None) is not None:
            pass
        assert extender.broadcast.readers == 0
