from collections.abc import AsyncIterator

import pytest

from extender.scheduling.backfill import Mode
from tests.support.extender_harness import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.close()


@pytest.fixture
async def world_without_backfill() -> AsyncIterator[World]:
    made = World(backfill=Mode.OFF)
    yield made
    await made.close()
