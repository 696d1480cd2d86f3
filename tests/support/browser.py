"""Drive the debug page in a real browser: an installed Chromium, never a downloaded one."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, async_playwright

CHROMIUM = "SERRIED_CHROMIUM"
"""The environment variable with the path of a Chromium; without it the first one in PATH is used."""

_NAMES = ("chromium", "chromium-browser", "google-chrome")

PICTURES = Path(__file__).parents[2] / "build" / "page"
"""The directory for screenshots of the page."""

Scheme = Literal["light", "dark"]


def find_chromium() -> str:
    """Return the path of an installed Chromium; "" if none is found."""
    return os.environ.get(CHROMIUM, "") or next((found for name in _NAMES if (found := shutil.which(name))), "")


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """Run a browser without a window while the body runs. Raise RuntimeError if none is installed."""
    path = find_chromium()
    if not path:
        raise RuntimeError(f"no Chromium is in PATH, and {CHROMIUM} names none: apt-get install chromium")
    async with async_playwright() as playwright:
        # Without the sandbox: it cannot be had as root, and the only pages are our own.
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        await browser.close()


@asynccontextmanager
async def open_page(
    browser: Browser, url: str, *, scheme: Scheme = "light", width: int = 1280, height: int = 900, zone: str = "UTC"
) -> AsyncIterator[tuple[Page, list[str]]]:
    """Open the page, wait until it shows the cluster, and yield it with the list of errors in its console."""
    context = await browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": height}, timezone_id=zone
    )
    page = await context.new_page()
    errors: list[str] = []
    page.on("console", lambda said: errors.append(said.text) if said.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    await page.goto(url)
    await page.wait_for_selector("body[data-ready]")
    yield page, errors
    await context.close()


async def find_accessibility_defects(page: Page) -> str:
    """Return the accessibility defects that axe finds, such as in contrast, names or roles; "" for none."""
    found = await Axe().run(page)
    return found.generate_report() if found.violations_count else ""


async def take_picture(page: Page, name: str) -> None:
    """Save a screenshot of the full page."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=PICTURES / f"{name}.png", full_page=True)
