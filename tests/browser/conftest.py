"""The page at /debug/ in a real browser, over an extender in memory."""

from collections.abc import AsyncIterator, Sequence

import pytest
from playwright.async_api import Page

from extender.debug.page import Broadcast
from tests.support.browser import CHROMIUM, find_chromium, open_browser, open_page
from tests.support.extender_harness import Harness
from tests.support.page_stage import Town, make_broadcast, make_world, serving


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Say plainly that there was no browser."""
    if not find_chromium():
        for item in items:
            if "/browser/" in str(item.path):
                reason = f"no Chromium is in PATH, and {CHROMIUM} names none: apt-get install chromium"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
async def world() -> AsyncIterator[Harness]:
    """A town of gangs."""
    made = make_world()
    await Town(made).settle()
    yield made
    await made.close()


@pytest.fixture
def broadcast(world: Harness) -> Broadcast:
    """What the page lives from."""
    return make_broadcast(world)


@pytest.fixture
async def url(world: Harness, broadcast: Broadcast) -> AsyncIterator[str]:
    """The page's address."""
    async with serving(world, broadcast) as address:
        yield address


@pytest.fixture
async def page(url: str) -> AsyncIterator[Page]:
    """The page of somebody with a wide screen; its console has told no error in the end."""
    async with open_browser() as browser, open_page(browser, url) as (shown, errors):
        yield shown
        assert errors == []
