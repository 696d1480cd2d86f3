from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import uvloop

from tests.support.listener import Client, ListenerHarness


def pytest_asyncio_loop_factories(config: Any, item: Any) -> Mapping[str, Callable[[], Any]]:
    """The loop of the process: what a closed or paused transport does differs between loops."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def harness() -> AsyncIterator[ListenerHarness]:
    made = await ListenerHarness().open()
    yield made
    await made.close()


@pytest.fixture
async def client(harness: ListenerHarness) -> AsyncIterator[Client]:
    made = await harness.connect()
    yield made
    await made.close()
