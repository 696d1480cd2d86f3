"""A page that nobody looks at rests, and comes back to whoever looks again."""

from typing import Literal

import pytest
from playwright.async_api import Page, expect

from extender.debug.broadcast import Broadcast
from tests.support.builders import node
from tests.support.extender_harness import Harness
from tests.support.listening import until

MINUTE = 60_000
HALF_A_MINUTE = 30_000
"""In milliseconds, as the browser's clock counts."""

TURN = """(visibility) => {
  Object.defineProperty(document, "hidden", { configurable: true, value: visibility === "hidden" });
  Object.defineProperty(document, "visibilityState", { configurable: true, value: visibility });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.fixture
async def page(page: Page) -> Page:
    """A page whose clock the test moves."""
    await page.clock.install()
    return page


async def turn(page: Page, visibility: Literal["hidden", "visible"]) -> None:
    """Somebody goes to another tab, or comes back."""
    await page.evaluate(TURN, visibility)


async def test_a_page_that_is_hidden_for_a_minute_lets_its_connection_go_until_somebody_looks(
    page: Page, world: Harness, broadcast: Broadcast
) -> None:
    link = page.locator("#link")
    await expect(link).to_have_text("live")
    await page.evaluate("globalThis.marked = true")
    await turn(page, "hidden")
    await page.clock.fast_forward(MINUTE)
    await expect(link).to_have_text("resting")
    await until(lambda: broadcast.readers == 0)
    world.add(node("node-999"))
    await turn(page, "visible")
    await expect(link).to_have_text("live")
    await expect(page.locator("#sums")).to_contain_text("241")
    assert broadcast.readers == 1
    assert await page.evaluate("globalThis.marked")


async def test_a_page_that_is_hidden_for_half_a_minute_keeps_its_connection(page: Page, broadcast: Broadcast) -> None:
    link = page.locator("#link")
    await expect(link).to_have_text("live")
    await turn(page, "hidden")
    await page.clock.fast_forward(HALF_A_MINUTE)
    await turn(page, "visible")
    await page.clock.fast_forward(MINUTE)
    assert await link.text_content() == "live"
    assert broadcast.readers == 1
