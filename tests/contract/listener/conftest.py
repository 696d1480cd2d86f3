from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import uvloop

from tests.support.listening import Client, House


def pytest_asyncio_loop_factories(config: Any, item: Any) -> Mapping[str, Callable[[], Any]]:
    """The loop of the process: what a closed or paused transport does differs between loops."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = await House().open()
    yield made
    await made.close()


@pytest.fixture
async def client(house: House) -> AsyncIterator[Client]:
    made = await house.connect()
    yield made
    await made.close()
