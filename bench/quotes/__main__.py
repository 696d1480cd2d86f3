"""Whether every measured number in README and docs is that of a file in `bench/results/` (part of `make lint`).

    python -m bench.quotes            the exit code is 1 if a number has no source, or another value there
    python -m bench.quotes --write    writes the values of the sources into the pages (`make numbers`)

How a page names its sources: bench.quotes.pages. The table between its markers is that of the newest throughput result.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.comparison import BEGIN, END, render_table, replace_table
from bench.quotes.expressions import QuoteError
from bench.quotes.pages import Page, Problem, examine
from bench.quotes.results import Results

ROOT = Path(__file__).parent.parent.parent
PAGES = ("README.md", "docs/*.md", "docs/*/*.md")


def check(path: Path, results: Results) -> Page:
    """What is to be said of a page, its generated table included."""
    document = path.read_text()
    page = examine(hide_table(document), results)
    page.document = document
    if BEGIN in document:
        page.problems = [*check_table(document, results), *page.problems]
    return page


def hide_table(document: str) -> str:
    """The document with the generated table blanked out, every position still the same."""
    start, end = document.find(BEGIN), document.find(END)
    if start < 0 or end < start:
        return document
    blank = "".join(sign if sign == "\n" else " " for sign in document[start:end])
    return document[:start] + blank + document[end:]


def check_table(document: str, results: Results) -> list[Problem]:
    """Whether the generated table is the one of the newest throughput result."""
    line = document.count("\n", 0, document.find(BEGIN)) + 1
    try:
        if draw_table(document, results) != document:
            return [Problem(line, f"the table is not that of {results.find('throughput').name}")]
    except (QuoteError, ValueError) as error:
        return [Problem(line, str(error))]
    return []


def draw_table(document: str, results: Results) -> str:
    """The document with the table of the newest throughput result. Raises QuoteError, and ValueError without END."""
    return replace_table(document, render_table(results.read("throughput")["summary"]))


def write(path: Path, results: Results) -> None:
    """Bring a page's numbers up to date, and say which have changed: their sentences have to be read again."""
    page = check(path, results)
    for edit in page.edits:
        if edit.quoted:
            name = path.relative_to(ROOT)
            print(f"{name}:{page.line(edit.figure.start)}: {edit.figure.text} is now {edit.text}")
    document = page.rewrite()
    path.write_text(draw_table(document, results) if BEGIN in document else document)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check all pages, or write them first; the exit code is 1 if a problem is left."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.quotes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write what the sources say into the pages first")
    options = parser.parse_args(arguments)
    results = Results(ROOT / "bench" / "results")
    paths = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    if options.write:
        for path in paths:
            write(path, results)
    found = [(path.relative_to(ROOT), problem) for path in paths for problem in check(path, results).problems]
    for path, problem in found:
        print(f"{path}:{problem.line}: {problem.text}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
