"""The site has every page of docs, once, and no link that leaves it for a file that it does not have."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.site import on_page_markdown

REPOSITORY = Path(__file__).resolve().parents[3]


def list_pages(nav: Any) -> Iterator[str]:
    """The pages of a navigation, in their order."""
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from list_pages(each)


def test_the_site_has_every_page_once() -> None:
    found = list(list_pages(yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())["nav"]))
    docs = REPOSITORY / "docs"
    assert sorted(found) == sorted(str(path.relative_to(docs)) for path in docs.rglob("*.md"))


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        pytest.param("as [here](../README.md#numbers).", "as here.", id="a page outside of docs has no link"),
        pytest.param("[this](../../tests/e2e)", "this", id="nor has a folder, from a decision"),
        pytest.param("[queue](queue.md)", "[queue](queue.md)", id="a page of the site keeps its own"),
        pytest.param("![map](../images/a.png)", "![map](../images/a.png)", id="so does a picture"),
        pytest.param("3 s\n<!-- measured: loop\n3 = x -->\nmore", "3 s\nmore", id="remarks on figures are left out"),
    ],
)
def test_a_page_is_shown_without_what_only_the_repository_has(written: str, shown: str) -> None:
    assert on_page_markdown(written) == shown
