"""The page at /debug/ of a real extender: a person watches a gang wait, and start."""

import re

import pytest
from playwright.async_api import expect

from tests.support.browser import (
    CHROMIUM,
    find_accessibility_defects,
    find_chromium,
    open_browser,
    open_page,
    take_picture,
)
from tests.support.cluster_stage import ClusterStage, names

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        not find_chromium(), reason=f"no Chromium is in PATH, and {CHROMIUM} names none: apt-get install chromium"
    ),
]


async def test_a_gang_that_waits_is_seen_to_start_when_its_last_member_comes(stage: ClusterStage) -> None:
    stage.create_group("watched", 3)
    stage.create_pods(names("watched", 2), "watched")
    url = f"{stage.cluster.debug_url}/#/gangs/{stage.namespace}/watched"
    async with open_browser() as browser, open_page(browser, url) as (page, errors):
        article = page.get_by_role("article", name="One gang")
        await expect(article).to_contain_text("QuorumMissing 2 of 3 members exist", timeout=15_000)
        stage.create_pods(names("watched", 1, start=2), "watched")
        await expect(article.locator(".badge")).to_have_text("Running", timeout=15_000)
        await expect(article.locator(".timeline")).to_contain_text("bound")
        nodes = stage.bound("watched")
        for name, node in nodes.items():
            await expect(article.get_by_role("row", name=re.compile(f"^{name} "))).to_contain_text(node)
        await take_picture(page, "control-plane")
        assert await find_accessibility_defects(page) == ""
        await page.get_by_role("link", name="Decisions").click()
        await page.get_by_role("searchbox").fill(f"{stage.namespace}/watched")
        await expect(page.locator(".decisions > li").last).to_contain_text("QuorumMissing")
        assert errors == []
