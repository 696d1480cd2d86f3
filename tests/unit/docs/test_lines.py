"""Prose in Markdown has lines of at most 120 characters, so that a diff shows what changed."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
FOLDERS = ("", ".github", "docs", "docs/contributing", "docs/decisions", "examples", "bench/cluster", "bench/oracle")
GENERATED = {"cli.md", "api-reference.md"}
PAGES = [path for folder in FOLDERS for path in sorted((REPOSITORY / folder).glob("*.md"))]
WIDTH = 120

NO_PROSE = re.compile(r"^```.*?^```|<!--.*?-->", re.MULTILINE | re.DOTALL)
UNBREAKABLE = re.compile(r"\s*(\|.*|#.*|!?\[[^\]]*\]\([^)]*\)|`[^`]*`\.?)")


def find_long_lines(text: str) -> Iterator[str]:
    """Yield the lines of prose that are too long: no commands, tables, headings, or lines of one link or code span."""
    for line in NO_PROSE.sub("", text).splitlines():
        if len(line) > WIDTH and not UNBREAKABLE.fullmatch(line):
            yield line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_a_line_of_prose_is_short(page: Path) -> None:
    if page.name not in GENERATED:
        assert list(find_long_lines(page.read_text())) == []


LONG = "word " * 30


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param(LONG, True, id="prose"),
        pytest.param(f"- {LONG}", True, id="an item of a list"),
        pytest.param(f"```sh\n{LONG}\n```", False, id="a command"),
        pytest.param(f"| {LONG} |", False, id="a row of a table"),
        pytest.param(f"`{LONG}`", False, id="a message, in one code span"),
        pytest.param(f"<!-- measured: x\n{LONG} -->", False, id="a source of numbers"),
    ],
)
def test_what_counts_as_prose(text: str, *, found: bool) -> None:
    assert bool(list(find_long_lines(text))) is found
