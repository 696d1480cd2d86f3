"""The debug pages of an extender with a small cluster, also those that read the API server or stream without end."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import uvloop
from fastapi import FastAPI

from extender.look.page import Broadcast, live_routes
from extender.look.routes import debug_routes, process_routes
from extender.look.sketch import Sketch
from extender.process import make_reports
from serried.api.level import FALLBACK
from serried.cluster.cache import Store
from serried.drift import Comparison
from serried.feed import ALL_KINDS, Feed
from serried.kube.events import EventWriter
from serried.kube.wire import NODES
from serried.rules.all import RULES
from serried.settings import extender_settings
from tests.support.apiserver import FakeApiServer
from tests.support.builders import node
from tests.support.verbs_stage import Extender


class DebugStage:
    """An extender and the application of its pages, for all examples of one test."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._left = AsyncExitStack()
        self.app = FastAPI()
        self.run(self._open())

    async def _open(self) -> None:
        self.extender = Extender()
        world = self.extender.world
        events = EventWriter(world.api.client(), "serried")
        reports = make_reports(world.api.client(), world.store, events, FALLBACK, world.clock)
        await world.run_until_idle()
        reports.report_verdict(*world.heard.verdicts[-1])
        broadcast = Broadcast(lambda: Sketch(world.core, reports.decisions), {"version": "x"})
        self._left.push_async_callback(broadcast.close)
        self.app.include_router(debug_routes(world.core, reports, FALLBACK, lambda: {"version": "x"}))
        self.app.include_router(process_routes(extender_settings([], {}), await self._compare()))
        self.app.include_router(live_routes(broadcast))
        await self.extender.open()
        self._left.push_async_callback(self.extender.close)

    async def _compare(self) -> Comparison:
        """Make the Store differ from the API server in one node."""
        server = await self._left.enter_async_context(FakeApiServer())
        client = await self._left.enter_async_context(server.client())
        feed = Feed(client, FALLBACK, Store({"serried"}, rules=RULES), ALL_KINDS)
        following = asyncio.create_task(feed.run())
        self._left.callback(following.cancel)
        await feed.synced.wait()
        server.drop_changes(NODES)
        server.add(NODES, node("unseen").raw())
        return Comparison(client, feed, lambda _: asyncio.sleep(0))

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until it ends."""
        self._runner.run(story)

    def close(self) -> None:
        """Close the application and the extender."""
        self.run(self._left.aclose())
        self._runner.close()
