"""A hidden page closes its stream, and opens it again when it is shown."""

import asyncio
from typing import Literal
from unittest.mock import Mock

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route, expect

from extender.look import page as live
from extender.look.page import Broadcast
from extender.look.sketch import COLUMNS, Message
from tests.support.browser import open_page
from tests.support.builders import node
from tests.support.extender_harness import Harness
from tests.support.listener import wait_until

MINUTE = 60_000
HALF_A_MINUTE = 30_000
"""Milliseconds of the browser's clock."""

STREAM = "**/debug/stream"

TURN = """(visibility) => {
  Object.defineProperty(document, "hidden", { configurable: true, value: visibility === "hidden" });
  Object.defineProperty(document, "visibilityState", { configurable: true, value: visibility });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest_asyncio.fixture(loop_scope="session")
async def page(page: Page) -> Page:
    """A page whose clock the test moves."""
    await page.clock.install()
    return page


async def turn(page: Page, visibility: Literal["hidden", "visible"]) -> None:
    """Hide the page's tab, or show it again."""
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
    await wait_until(lambda: broadcast.readers == 0)
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


async def test_a_page_that_was_rejected_while_hidden_does_not_pause_when_its_reader_looks_again(
    browser: Browser, url: str
) -> None:
    async with open_page(browser, url) as (page, errors):
        hidden = asyncio.Event()

        async def refuse(route: Route) -> None:
            await hidden.wait()
            await route.fulfill(status=503)

        await page.clock.install()
        await page.route(STREAM, refuse)
        await page.reload()
        await turn(page, "hidden")
        hidden.set()
        link = page.locator("#link")
        await expect(link).to_have_text("refused, trying again")
        await page.unroute(STREAM)
        await turn(page, "visible")
        await expect(link).to_have_text("live")
        await page.clock.fast_forward(MINUTE)
        assert await link.text_content() == "live"
        assert [text for text in errors if "status of 503" not in text] == []


WATCH = """() => {
  const link = document.getElementById("link");
  globalThis.said = [];
  const watch = new MutationObserver(() => said.push(link.textContent));
  watch.observe(link, { childList: true, characterData: true, subtree: true });
}"""
"""Notes all that the page says of its connection from now on."""


async def test_a_page_whose_reader_has_to_show_again_who_it_is_comes_back_without_a_word(
    page: Page, broadcast: Broadcast, world: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "read_seconds", lambda _: 0.5)
    follow = Mock(side_effect=broadcast.follow)
    monkeypatch.setattr(type(broadcast), "follow", follow)
    await page.reload()
    await expect(page.locator("#link")).to_have_text("live")
    await page.evaluate(WATCH)
    await wait_until(lambda: follow.call_count > 2)
    world.add(node("node-999"))
    await expect(page.locator("#sums")).to_contain_text("241")
    assert await page.evaluate("said") == []


async def test_a_page_that_was_opened_in_the_background_rests_too(page: Page, broadcast: Broadcast) -> None:
    await page.add_init_script(f"({TURN})('hidden')")
    await page.reload()
    link = page.locator("#link")
    await expect(link).to_have_text("live")
    await page.clock.fast_forward(MINUTE)
    await expect(link).to_have_text("resting")
    await wait_until(lambda: broadcast.readers == 0)
    await turn(page, "visible")
    await expect(link).to_have_text("live")


SHOW = """async (messages) => {
  const { State } = await import(new URL("page/state.js", document.baseURI));
  const state = new State();
  for (const message of messages) state.apply(message);
  return state.decisions.map((decision) => decision.number);
}"""
"""The decisions that a page knows after some messages of the stream, by their numbers, the newest first."""


def tell_decisions(*numbers: int) -> Message:
    rows = [(number, "2026-01-01T00:00:00Z", "bio/g", "Planned", "", f"a-{number}") for number in numbers]
    return {"decisions": rows}


async def test_decisions_that_were_told_in_the_whole_and_as_news_are_shown_once(page: Page) -> None:
    whole = {"reset": True, "columns": COLUMNS, "complete": True, **tell_decisions(1, 2, 3)}
    assert await page.evaluate(SHOW, [whole, tell_decisions(2, 3), tell_decisions(3, 4)]) == [4, 3, 2, 1]


async def test_decisions_are_numbered_anew_by_an_extender_that_has_started_again(page: Page) -> None:
    whole = {"reset": True, "columns": COLUMNS, "complete": True}
    messages = [whole | tell_decisions(7, 8), whole | tell_decisions(1), tell_decisions(2)]
    assert await page.evaluate(SHOW, messages) == [2, 1]
