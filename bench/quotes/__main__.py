"""Check that every measured number in README and docs equals its source in `bench/results/` (part of `make lint`).

    python -m bench.quotes            the exit code is 1 if a number has no source, or another value than its source
    python -m bench.quotes --write    writes the values of the sources into the pages (`make numbers`)

A page names its sources in comments: see bench.quotes.pages. Tables between markers, and the plot, are drawn from the
newest results of bench.throughput (bench.headline) and bench.replay.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import comparison, headline, replay
from bench.quotes.expressions import QuoteError
from bench.quotes.pages import Page, Problem, examine
from bench.quotes.results import Results

ROOT = Path(__file__).parent.parent.parent
PAGES = ("README.md", "docs/*.md", "docs/*/*.md")
PLOT = Path("docs", "images", "throughput.svg")


def check(path: Path, results: Results) -> Page:
    """Check the numbers and the generated tables of a page. Return the page with its problems and edits."""
    document = path.read_text()
    page = examine(hide_tables(document), results)
    page.document = document
    page.problems = [*check_tables(document, results), *page.problems]
    return page


def hide_tables(document: str) -> str:
    """Return the document with the generated tables blanked out. All positions remain the same."""
    for begin, end in TABLES:
        first, last = document.find(begin), document.find(end)
        if 0 <= first <= last:
            blank = "".join(sign if sign == "\n" else " " for sign in document[first:last])
            document = document[:first] + blank + document[last:]
    return document


def check_tables(document: str, results: Results) -> list[Problem]:
    """Return a problem for each generated table that differs from the newest results."""
    problems = []
    for (begin, end), draw in TABLES.items():
        if begin in document:
            line = document.count("\n", 0, document.find(begin)) + 1
            try:
                if comparison.replace_table(document, draw(results), begin, end) != document:
                    problems.append(Problem(line, "the table is not that of the newest results"))
            except (QuoteError, ValueError) as error:
                problems.append(Problem(line, str(error)))
    return problems


def draw_tables(document: str, results: Results) -> str:
    """Return the document with tables of the newest results.

    Raise QuoteError if there is no result, and ValueError if the end of a table is missing.
    """
    for (begin, end), draw in TABLES.items():
        if begin in document:
            document = comparison.replace_table(document, draw(results), begin, end)
    return document


def draw_runs(results: Results) -> str:
    """Return all rows of the newest results, a table for each cluster. Raise QuoteError if there is no result."""
    found = results.read_all(headline.RESULTS)
    return "\n\n".join(
        f"**{headline.name_cluster(each)}**\n\n{comparison.render_table(each['summary'])}" for each in found
    )


def draw_ratios(results: Results) -> str:
    """Return the table of ratios of the newest results. Raise QuoteError if there is no result."""
    return headline.render_ratios(results.read_all(headline.RESULTS))


def draw_targets(results: Results) -> str:
    """Return the table of targets with the newest results. Raise QuoteError if there is no result."""
    return headline.render_targets(results.read_all(headline.RESULTS))


def draw_replay(results: Results) -> str:
    """Return the table of upstream's cases from the newest result of bench.replay; "" if there is no result."""
    try:
        return replay.render_table(results.read("replay"))
    except QuoteError:
        return ""


TABLES: dict[tuple[str, str], Callable[[Results], str]] = {
    (comparison.BEGIN, comparison.END): draw_runs,
    ("<!-- ratios:begin -->", "<!-- ratios:end -->"): draw_ratios,
    ("<!-- targets:begin -->", "<!-- targets:end -->"): draw_targets,
    ("<!-- replay:begin -->", "<!-- replay:end -->"): draw_replay,
}
"""By the markers around a table: the function that draws it."""


def check_plot(results: Results) -> list[Problem]:
    """Return a problem if the plot differs from the newest results."""
    path = ROOT / PLOT
    if path.is_file() and path.read_text() == headline.draw_plot(results.read_all(headline.RESULTS)):
        return []
    return [Problem(1, "the plot is not that of the newest results")]


def write(path: Path, results: Results) -> None:
    """Update a page's numbers and tables. Print the changed numbers, because their sentences have to be read again."""
    page = check(path, results)
    for edit in page.edits:
        if edit.quoted:
            name = path.relative_to(ROOT)
            print(f"{name}:{page.line(edit.figure.start)}: {edit.figure.text} is now {edit.text}")
    path.write_text(draw_tables(page.rewrite(), results))


def main(arguments: Sequence[str] | None = None) -> int:
    """Check all pages, with ``--write`` after updating them. Return 1 if a problem is left, else 0."""
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
        (ROOT / PLOT).write_text(headline.draw_plot(results.read_all(headline.RESULTS)))
    found = [(path.relative_to(ROOT), problem) for path in paths for problem in check(path, results).problems]
    found += [(PLOT, problem) for problem in check_plot(results)]
    for path, problem in found:
        print(f"{path}:{problem.line}: {problem.text}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
