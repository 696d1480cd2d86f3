"""The page at /debug/ in a real browser, over an extender in memory.

All tests of a process have one browser, so they have one event loop, too. Each has pages of its own.
"""

from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from extender.look.page import Broadcast
from tests.support.browser import CHROMIUM, find_chromium, open_browser, open_page
from tests.support.extender_harness import Harness
from tests.support.page_stage import ExampleCluster, make_broadcast, make_world, serving


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Run them in the browser's loop; say plainly that there was no browser."""
    for item in items:
        if "/browser/" in str(item.path):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            if not find_chromium():
                reason = f"no Chromium is in PATH, and {CHROMIUM} names none: apt-get install chromium"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with open_browser() as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def world() -> AsyncIterator[Harness]:
    """An extender in memory with the gangs of `ExampleCluster`."""
    made = make_world()
    await ExampleCluster(made).create_workloads()
    yield made
    await made.close()


@pytest.fixture
def broadcast(world: Harness) -> Broadcast:
    """The stream that the page reads its data from."""
    return make_broadcast(world)


@pytest_asyncio.fixture(loop_scope="session")
async def url(world: Harness, broadcast: Broadcast) -> AsyncIterator[str]:
    """The page's address."""
    async with serving(world, broadcast) as address:
        yield address


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, url: str) -> AsyncIterator[Page]:
    """The page in a wide window. The test fails if its console has shown an error."""
    async with open_page(browser, url) as (shown, errors):
        yield shown
        assert errors == []
