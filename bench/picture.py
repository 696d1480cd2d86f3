"""Make the picture of the live page in README: a screenshot by Chromium of an example cluster.

python -m bench.picture                 writes docs/images/page.png
"""

import asyncio
import sys
from pathlib import Path

from tests.support.browser import open_browser, open_page
from tests.support.page_stage import ExampleCluster, make_broadcast, make_world, serving

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "page.png"
_WIDTH, _HEIGHT = 1280, 830


async def write_screenshot() -> None:
    """Write the picture. Raise RuntimeError if no browser is installed."""
    world = make_world()
    await ExampleCluster(world).create_workloads()
    async with (
        serving(world, make_broadcast(world)) as url,
        open_browser() as browser,
        open_page(browser, url, width=_WIDTH, height=_HEIGHT) as (page, _),
    ):
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        await page.screenshot(path=PICTURE)
    await world.close()


def main() -> int:
    """Write the picture. Return 1 if no browser is installed, else 0."""
    try:
        asyncio.run(write_screenshot())
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{PICTURE}: {PICTURE.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
