"""A whole extender in this event loop, at work on a fake API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from extender.process import Extender
from serried.api.level import FALLBACK, ApiLevel
from serried.kube.client import ApiClient
from serried.ops.metrics import ExtenderMetrics
from serried.settings import ExtenderSettings, extender_settings
from tests.support.apiserver import FakeApiServer

_ALONE = ("--lease=", *(f"--{name}-listen=127.0.0.1:0" for name in ("filter", "bind", "ops")))


def make_settings(*arguments: str) -> ExtenderSettings:
    """Return settings of an always active extender with listeners at free ports. ``arguments`` are further flags.

    Environment variables are ignored.
    """
    return extender_settings([*_ALONE, *arguments], {})


def make_extender(client: ApiClient, *arguments: str, level: ApiLevel = FALLBACK) -> Extender:
    """Return an extender with the settings of `make_settings`. It is not started."""
    return Extender(make_settings(*arguments), client, level, ExtenderMetrics())


@asynccontextmanager
async def run_extender(server: FakeApiServer, *arguments: str, level: ApiLevel = FALLBACK) -> AsyncIterator[Extender]:
    """Start an extender with the settings of `make_settings`, yield it at once, and cancel it at the end."""
    async with server.client() as client:
        extender = make_extender(client, *arguments, level=level)
        running = asyncio.create_task(extender.run())
        try:
            yield extender
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
