from collections.abc import AsyncIterator

import pytest

from tests.unit.extender.world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.close()
