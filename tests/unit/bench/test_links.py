"""Links that lead nowhere and rows that are no rows are found."""

from pathlib import Path

import pytest

from bench import links

TABLE = "| a | b |\n|---|---|\n| 1 | 2 |\n"

PAGES = {
    "a page without a fault": (
        f"# Head\n\n[up](#head), [there](other.md#a-b), [out](https://example.org/#x)\n\n{TABLE}",
        [],
    ),
    "a page that is not there": ("[gone](gone.md)\n", [(1, "a link to gone.md, which is not there")]),
    "a heading that is not there": (
        "text\n\n[gone](other.md#c)\n",
        [(3, "a link to #c, but other.md has no such heading")],
    ),
    "a heading of its own that is not there": (
        "[gone](#c)\n",
        [(1, "a link to #c, but page.md has no such heading")],
    ),
    "a picture that is not there": ("![a picture](gone.png)\n", [(1, "a link to gone.png, which is not there")]),
    "a row after an empty line": (f"{TABLE}\n| 3 | 4 |\n", [(5, "a row outside of a table")]),
    "a table without its head": ("text\n| 1 | 2 |\n", [(2, "a row outside of a table")]),
    "a row with a cell too many": (f"{TABLE}| 3 | 4 | 5 |\n", [(4, "a row of 3 cells in a table of 2")]),
    "a row with a cell too few": (f"{TABLE}| 3 |\n", [(4, "a row of 1 cells in a table of 2")]),
    "a row without its last bar": (f"{TABLE}| 3 | 4\n", [(4, "a row without a bar at each end")]),
    "a bar behind a backslash": (f"{TABLE}| `a\\|b` | c |\n", []),
    "a bar in code, which parts cells all the same": (
        f"{TABLE}| `a|b` | c |\n",
        [(4, "a row of 3 cells in a table of 2")],
    ),
    "rows that are shown as they are written": (f"```\n| 1 | 2 |\n```\n\n{TABLE}", []),
}


@pytest.mark.parametrize(("text", "problems"), PAGES.values(), ids=PAGES)
def test_what_is_wrong_with_a_page(tmp_path: Path, text: str, problems: list[tuple[int, str]]) -> None:
    (tmp_path / "other.md").write_text("# A b\n")
    page = tmp_path / "page.md"
    page.write_text(text)
    assert [(problem.line, problem.text) for problem in links.check(page)] == problems


def test_a_heading_that_comes_twice_has_two_anchors(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# `serried check`\n\n## What, then?\n\n## What, then?\n")
    assert links.find_anchors(page) == {"serried-check", "what-then", "what-then-1"}


def test_our_own_pages_are_looked_at() -> None:
    assert {"README.md", "CHANGELOG.md"} <= {path.name for pattern in links.PAGES for path in links.ROOT.glob(pattern)}
