from collections.abc import AsyncIterator

import pytest

from extender.options import BackfillMode
from tests.support.extender_harness import Harness


@pytest.fixture
async def world() -> AsyncIterator[Harness]:
    made = Harness()
    yield made
    await made.close()


@pytest.fixture
async def world_without_backfill() -> AsyncIterator[Harness]:
    made = Harness(backfill=BackfillMode.OFF)
    yield made
    await made.close()
