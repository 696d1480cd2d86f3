"""The files that the pages for newcomers name are there."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
PAGES = ("reading.md", "architecture.md")


@pytest.mark.parametrize("page", PAGES)
def test_a_file_that_is_named_is_there(page: str) -> None:
    text = (REPOSITORY / "docs" / "contributing" / page).read_text()
    paths = re.findall(r"`((?:serried|extender|controller|cli|tests)/[\w./-]+)`", text)
    assert len(paths) > 10
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []
