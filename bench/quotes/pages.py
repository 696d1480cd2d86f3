"""One Markdown page: which of its numbers have a source, and whether they say what the source says.

A source is a comment, which no reader sees, below the paragraph, list or table that it is for:

    Filter answers in 0.14 ms (p50) at 1 node name, in 0.25 ms at 1,000.
    <!-- measured: latency
    plain = rows(pod="plain pod")
    0.14, 0.25 = plain(names=1).p50_ms, plain(names=1000).p50_ms -->

First the result's name, then one statement a line (or between semicolons): names for what is used again, and numbers of
the text with the expression that they are (bench.quotes.expressions). For a table one line of cells is for all rows; in
it `row` is the first cell's text, `label` the list of its numbers, and an empty cell is not looked at:

    <!-- measured: throughput
    | summary(workload=row, contender="native").p99.median | |  -->

Numbers that look measured and are not (settings, limits, facts) are listed once a page:

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
    """What is wrong, and in which line."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Edit:
    """A number that is to be written otherwise; ``quoted`` is false for its copy in the comment."""

    figure: Figure
    text: str
    quoted: bool = True


@dataclass(slots=True)
class Page:
    """What was found on a page. ``edits`` would make every number that has a source say what the source says."""

    document: str
    problems: list[Problem] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    sourced: set[int] = field(default_factory=set)

    def line(self, position: int) -> int:
        """The line of a position, from 1."""
        return self.document.count("\n", 0, position) + 1

    def report(self, position: int, text: str) -> None:
        """Note a problem."""
        self.problems.append(Problem(self.line(position), text))

    def rewrite(self) -> str:
        """The document with all edits made."""
        document = self.document
        for edit in sorted(self.edits, key=lambda edit: edit.figure.start, reverse=True):
            document = document[: edit.figure.start] + edit.text + document[edit.figure.end :]
        return document


@dataclass(frozen=True, slots=True)
class Block:
    """The text that a source is for: from the last blank line, or the last source, to the comment."""

    start: int
    end: int
    text: str


def examine(document: str, results: Results) -> Page:
    """Everything about a page's numbers."""
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
    """One comment: its statements, read one after the other."""

    def __init__(self, page: Page, block: Block, results: Results) -> None:
        self._page, self._block, self._results = page, block, results
        self._values: dict[str, Any] = {}
        self._definitions: list[tuple[str, str]] = []
        self._path = ""

    def read(self, start: int, end: int) -> None:
        """The source between two positions. Raises QuoteError where its result cannot be found."""
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
    """Where the statements are: ended by a line or a semicolon outside of brackets, blanks around them left off."""
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
