"""Check the numbers of one Markdown page: each that looks measured needs a source, and must equal the source's value.

A source is a comment below the paragraph, list or table to which it belongs. Browsers do not show it:

    Filter answers in 0.14 ms (p50) at 1 node name, in 0.25 ms at 1,000.
    <!-- measured: latency
    plain = rows(pod="plain pod")
    0.14, 0.25 = plain(names=1).p50_ms, plain(names=1000).p50_ms -->

The comment has the name of the result, and then one statement in each line (or between semicolons). A statement defines
a name, or gives numbers of the text and the expression that computes them (bench.quotes.expressions). For a table, one
line of cells applies to all rows; in it `row` is the text of the first cell, `label` the list of its numbers, and a
column with an empty cell is not checked:

    <!-- measured: throughput
    | summary(workload=row, contender="native").p99.median | |  -->

Numbers that look measured but are not (settings, limits, facts) are listed once on each page:

    <!-- not measured: 30 s, 5 minutes, 64 -->
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.quotes.expressions import Names, QuoteError, evaluate_numbers
from bench.quotes.numbers import Figure, find_figures, find_phrases, find_rows, hide, hide_code
from bench.quotes.results import Results

_MEASURED = re.compile(r"<!--\s*measured:(.*?)-->", re.DOTALL)
_GIVEN = re.compile(r"<!--\s*not measured:(.*?)-->", re.DOTALL)
_DEFINITION = re.compile(r"([A-Za-z_]\w*)\s*=(?!=)(.*)", re.DOTALL)
_QUOTE = re.compile(r"([\d., to]*\d)\s*=(?!=)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Problem:
    """A wrong number or source on a page."""

    line: int
    """Number of the line, from 1."""

    text: str


@dataclass(frozen=True, slots=True)
class Edit:
    """A number to replace."""

    figure: Figure
    text: str
    """The new number as text."""

    quoted: bool = True
    """True for a number in the text, False for its copy in the comment."""


@dataclass(slots=True)
class Page:
    """A page while it is checked, with the findings so far."""

    document: str
    problems: list[Problem] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    """The replacements with which every number equals its source."""

    sourced: set[int] = field(default_factory=set)
    """Start positions of the numbers that have a source."""

    def line(self, position: int) -> int:
        """Return the number of a position's line, from 1."""
        return self.document.count("\n", 0, position) + 1

    def report(self, position: int, text: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(self.line(position), text))

    def rewrite(self) -> str:
        """Return the document with all edits applied."""
        document = self.document
        for edit in sorted(self.edits, key=lambda edit: edit.figure.start, reverse=True):
            document = document[: edit.figure.start] + edit.text + document[edit.figure.end :]
        return document


@dataclass(frozen=True, slots=True)
class Block:
    """The text to which a source belongs: from the last blank line, or from the last source, to the comment."""

    start: int
    end: int
    text: str


def examine(document: str, results: Results) -> Page:
    """Check all numbers of a page. Return the page with its problems and edits."""
    page, text, comments = Page(document), hide(document), hide_code(document)
    last = 0
    for comment in _MEASURED.finditer(comments):
        blank = document.rfind("\n\n", last, comment.start())
        block = Block(max(last, blank), comment.start(), text)
        last = comment.end()
        try:
            _Source(page, block, results).read(comment.start(1), comment.end(1))
        except QuoteError as error:
            page.report(comment.start(), str(error))
    _find_unsourced(page, text, comments)
    page.problems.sort(key=lambda problem: problem.line)
    return page


def _find_unsourced(page: Page, text: str, comments: str) -> None:
    given = {
        " ".join(entry.split()): comment.start()
        for comment in _GIVEN.finditer(comments)
        for entry in re.split(r",\s+", comment.group(1).strip())
    }
    unused = dict(given)
    for phrase in find_phrases(text):
        if all(figure.start in page.sourced for figure in phrase.figures):
            continue
        unused.pop(phrase.text, None)
        if phrase.text not in given:
            page.report(phrase.figures[0].start, f"{phrase.text!r} looks measured and has no source")
    for entry, position in unused.items():
        page.report(position, f"{entry!r} is listed as not measured, but does not stand on this page")


class _Source:
    """Reads one source comment, and adds its findings to the page."""

    def __init__(self, page: Page, block: Block, results: Results) -> None:
        self._page, self._block, self._results = page, block, results
        self._values: dict[str, Any] = {}
        self._definitions: list[tuple[str, str]] = []
        self._path = ""

    def read(self, start: int, end: int) -> None:
        """Read the source between two positions of the document. Raise QuoteError if its result cannot be found."""
        statements = list(_split(self._page.document, start, end))
        if not statements:
            raise QuoteError("a source names the result that it comes from")
        name = self._page.document[slice(*statements[0])].strip()
        self._values = {**self._results.read(name), "of": self._results.read}
        self._path = self._results.find(name).name
        for begin, stop in statements[1:]:
            try:
                self._read_statement(begin, stop)
            except QuoteError as error:
                self._page.report(begin, f"{self._path}: {error}")

    def _read_statement(self, start: int, end: int) -> None:
        statement = self._page.document[start:end]
        if statement.startswith("|"):
            self._read_cells(statement)
        elif quote := _QUOTE.fullmatch(statement):
            self._read_quote(find_figures(self._page.document, start, start + quote.end(1)), quote[2])
        elif definition := _DEFINITION.fullmatch(statement):
            self._definitions.append((definition[1], definition[2]))
        else:
            raise QuoteError(f"{statement!r} is no statement of a source")

    def _read_quote(self, copies: list[Figure], source: str) -> None:
        shown = [self._find(copy) for copy in copies]
        self._compare(shown, source, {})
        for copy, figure in zip(copies, shown, strict=True):
            self._page.edits += [
                Edit(copy, edit.text, quoted=False) for edit in self._page.edits if edit.figure == figure
            ]

    def _find(self, copy: Figure) -> Figure:
        for figure in find_figures(self._block.text, self._block.start, self._block.end):
            if figure.text == copy.text and figure.start not in self._page.sourced:
                self._page.sourced.add(figure.start)
                return figure
        raise QuoteError(f"{copy.text} does not stand in the text above (so often)")

    def _read_cells(self, template: str) -> None:
        sources = [cell.strip() for cell in template.strip().strip("|").split("|")]
        rows = find_rows(self._page.document, self._block.text, self._block.start, self._block.end)
        if not rows:
            raise QuoteError("there is no table above")
        for row in rows:
            if len(row.cells) != len(sources):
                raise QuoteError(
                    f"{row.label!r} has {len(row.cells)} cells behind the first, the source {len(sources)}"
                )
            more = {"row": row.label, "label": [figure.value for figure in row.label_figures]}
            for figures, source in zip(row.cells, sources, strict=True):
                if source and figures:
                    self._page.sourced.update(figure.start for figure in figures)
                    self._compare(list(figures), source, more)

    def _compare(self, shown: list[Figure], source: str, more: Mapping[str, Any]) -> None:
        try:
            values = evaluate_numbers(source, Names({**self._values, **more}, self._definitions))
        except QuoteError as error:
            self._page.report(shown[0].start, f"{self._path}: {error}")
            return
        if len(values) != len(shown):
            counts = f"gives {len(values)} numbers for {len(shown)} in the text"
            self._page.report(shown[0].start, f"{self._path}: {source.strip()!r} {counts}")
            return
        for figure, value in zip(shown, values, strict=True):
            if not figure.shows(value):
                self._page.report(figure.start, f"{figure.text} is {value:.10g} in {self._path}")
                self._page.edits.append(Edit(figure, figure.rewrite(value)))


def _split(document: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each statement, without blanks around it.

    A statement ends at a line break or semicolon outside of brackets.
    """
    depth, begin = 0, start
    for position in range(start, end + 1):
        sign = document[position] if position < end else "\n"
        depth += (sign in "([") - (sign in ")]")
        if position == end or (sign in "\n;" and depth <= 0):
            statement = document[begin:position]
            if statement.strip():
                left = begin + len(statement) - len(statement.lstrip())
                yield left, left + len(statement.strip())
            begin = position + 1
