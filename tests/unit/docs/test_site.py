"""The site has every page of docs once, for users few and short ones, and no link to a file that it does not have."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.site import on_page_markdown
from tests.support.written import read_code_block

REPOSITORY = Path(__file__).resolve().parents[3]
FOR_USERS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
LOOKED_UP = {"cli.md", "api-reference.md", "metrics.md"}
"""Made from the code: their headings are names."""


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


def test_users_need_not_read_much() -> None:
    assert len(FOR_USERS) <= 16
    read = [page for page in FOR_USERS if page.name not in LOOKED_UP]
    assert sum(len(on_page_markdown(page.read_text()).split()) for page in read) <= 20_000


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_gang_with_gpus_is_the_example(page: str) -> None:
    written = read_code_block(page, "## How do I run a gang with GPUs?", "yaml")
    assert yaml.safe_load(written) == yaml.safe_load((REPOSITORY / "examples" / "gpu-job.yaml").read_text())


@pytest.mark.parametrize("page", [page for page in FOR_USERS if page.name not in LOOKED_UP], ids=lambda page: page.name)
def test_a_heading_is_the_question_of_its_reader(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^## (.*)$", prose, re.MULTILINE)
    assert headings
    assert [heading for heading in headings if not heading.endswith("?")] == []


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
