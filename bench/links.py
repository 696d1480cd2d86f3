"""Check the links and the tables of all Markdown pages (part of `make lint`).

    python -m bench.links      the exit code is 1 if a page has a problem

A link must name a file of this repository. The part behind a `#` must be the anchor that GitHub makes for a heading of
that page. Links to other sites are not checked. A table row must start and end with a bar, and must have as many cells
as the head of its table. A row outside of a table is a problem, too: browsers show it as text with bars.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parent.parent
PAGES = ("*.md", "docs/**/*.md", "bench/**/*.md", "examples/**/*.md")

_ELSEWHERE = re.compile(r"[a-z]+:")
_ROW = re.compile(r"^\s*\|.*\|\s*$")
_CELL_BORDER = re.compile(r"(?<!\\)\|")
_NO_ANCHOR = re.compile(r"[^\w\- ]")


@dataclass(frozen=True, slots=True)
class Problem:
    """A wrong link or table row on a page."""

    line: int
    """Number of the line, from 1."""

    text: str


def main() -> int:
    """Print the problems of all pages. Return 1 if there are any, else 0."""
    paths = sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})
    problems = [(path, problem) for path in paths for problem in check(path)]
    for path, problem in problems:
        print(f"{path.relative_to(ROOT)}:{problem.line}: {problem.text}", file=sys.stderr)
    return 1 if problems else 0


def check(path: Path) -> list[Problem]:
    """Return the problems of one page."""
    return [*check_links(path), *check_tables(path)]


def check_links(path: Path) -> Iterator[Problem]:
    """Yield a problem for each link whose file or heading does not exist."""
    for token in _parse(path):
        for part in token.children or ():
            target = part.attrs.get("href") or part.attrs.get("src")
            wrong = _check_link(path, str(target)) if target else ""
            if wrong:
                yield Problem((token.map or [0])[0] + 1, wrong)


def check_tables(path: Path) -> Iterator[Problem]:
    """Yield a problem for each table row that browsers do not show as one."""
    tokens = _parse(path)
    drawn = dict(_find_rows(tokens))
    elsewhere = set(_find_lines_of_no_table(tokens))
    for number, line in enumerate(path.read_text().splitlines()):
        if number in drawn and not _ROW.match(line):
            yield Problem(number + 1, "a row without a bar at each end")
        if number in elsewhere or not _ROW.match(line):
            continue
        width = drawn.get(number)
        cells = len(_CELL_BORDER.findall(line)) - 1
        if width is None:
            yield Problem(number + 1, "a row outside of a table")
        elif cells != width:
            yield Problem(number + 1, f"a row of {cells} cells in a table of {width}")


def _find_rows(tokens: list[Token]) -> Iterator[tuple[int, int]]:
    """Yield the number of each line, from 0, that is a row of a table, with the number of cells of the table's head."""
    width = 0
    for place, token in enumerate(tokens):
        if token.type == "table_open":
            end = next(i for i in range(place, len(tokens)) if tokens[i].type == "thead_close")
            width = sum(each.type == "th_open" for each in tokens[place:end])
        elif token.type == "tr_open" and token.map:
            yield token.map[0], width


def _find_lines_of_no_table(tokens: list[Token]) -> Iterator[int]:
    """Yield the lines, from 0, that look like rows and are none: delimiters below table heads, code and HTML."""
    for token in tokens:
        if token.map and token.type in {"fence", "code_block", "html_block"}:
            yield from range(*token.map)
        elif token.map and token.type == "table_open":
            yield token.map[0] + 1


def find_anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them: `-1` is appended to a repeated one."""
    found: set[str] = set()
    tokens = _parse(path)
    for place, token in enumerate(tokens):
        if token.type != "heading_open":
            continue
        text = "".join(
            part.content for part in tokens[place + 1].children or () if part.type in {"text", "code_inline"}
        )
        anchor = _NO_ANCHOR.sub("", text.lower()).replace(" ", "-")
        again = sum(each == anchor or re.fullmatch(rf"{re.escape(anchor)}-\d+", each) is not None for each in found)
        found.add(f"{anchor}-{again}" if again else anchor)
    return found


def _check_link(path: Path, target: str) -> str:
    """Return the problem of a link on the page ``path``, "" if there is none."""
    if _ELSEWHERE.match(target):
        return ""
    name, _, anchor = target.partition("#")
    page = (path.parent / name).resolve() if name else path
    if not page.exists():
        return f"a link to {name}, which is not there"
    if anchor and page.suffix == ".md" and anchor not in find_anchors(page):
        return f"a link to #{anchor}, but {page.name} has no such heading"
    return ""


@cache
def _parse(path: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(path.read_text())


if __name__ == "__main__":
    sys.exit(main())
