"""Find the numbers on a Markdown page, and those that look measured. Pure.

A number looks measured if a unit of time, rate, memory, share or ratio follows it (`0.14 ms`, `4 or 17 s`, `94 Jobs/s`,
`92 %`, `1.7 to 2.1 times`), or if it is in a table, after the first column, in a cell with numbers only. Numbers in
code, link targets and comments are ignored.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

_GAP = "\0"
_CODE = r"^(?P<fence>```|~~~).*?^(?P=fence)[ ]*$|`[^`\n]+(?:\n[^`\n]+)?`"
_BLOCKS = re.compile(_CODE, re.DOTALL | re.MULTILINE)
_HIDDEN = re.compile(rf"{_CODE}|<!--.*?-->|(?<=\])\([^)\s]*\)|<[a-z/][^>\n]*>", re.DOTALL | re.MULTILINE)
_NUMBER = (
    r"(?<![\w.,/:=#@\-\0])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
    r"(?=(?:ms|µs|ns|s|x|[kMG]i?B)?(?!\w))(?![.,:/-]\d)"
)
_WORDS = r"(?:[A-Za-z]+\s+)"
_UNIT = (
    rf"(?:%|(?:CPU\s+)?(?:milli|micro)?seconds?|ms|µs|ns|s|minutes?|hours?|days?|weeks?|[kMG]i?B|bytes|times|x"
    rf"|{_WORDS}{{0,2}}[A-Za-z]+/s|/s|{_WORDS}{{0,2}}a\s+(?:second|minute))"
)
_PHRASE = re.compile(rf"{_NUMBER}(?:\s+(?:to|or|and|of\s+the)\s+{_NUMBER})*[\s-]?{_UNIT}(?!\w)")
_FIGURE = re.compile(_NUMBER)
_BESIDE_FIGURES = re.compile(r"(?:\s|[()*,;%/-]|to\b|then\b|or\b|and\b)*")
_RULE = re.compile(r"[\s|:-]+")


@dataclass(frozen=True, slots=True)
class Figure:
    """A number on a page."""

    text: str
    """The number as it is written."""

    start: int
    """The offset of the first character in the document."""

    @property
    def end(self) -> int:
        """The position after the number."""
        return self.start + len(self.text)

    @property
    def decimals(self) -> int:
        """The number of digits after the decimal point."""
        return len(self.text.partition(".")[2])

    @property
    def value(self) -> float:
        """The number as a float."""
        return float(self.text.replace(",", ""))

    def shows(self, value: float) -> bool:
        """Return whether the number equals ``value``, rounded to the written digits."""
        rounding: float = 0.5 / 10**self.decimals
        return abs(value - self.value) <= rounding * (1 + 1e-9)

    def rewrite(self, value: float) -> str:
        """Return ``value`` as text, with as many decimals and with the same use of commas."""
        comma = "" if len(self.text.partition(".")[0]) > 3 and "," not in self.text else ","
        return f"{value:{comma}.{self.decimals}f}"


@dataclass(frozen=True, slots=True)
class Phrase:
    """A part of a text that looks measured: one or more numbers with their unit."""

    text: str
    """The text in one line, with single spaces."""

    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table's body."""

    label: str
    """The text of the first cell, without Markdown."""

    label_figures: tuple[Figure, ...]
    """The numbers in the first cell."""

    cells: tuple[tuple[Figure, ...], ...]
    """The numbers in each further cell."""


def hide(document: str) -> str:
    """Return the document with code, link targets and comments blanked out. All positions remain the same."""
    return _HIDDEN.sub(_blank, document)


def hide_code(document: str) -> str:
    """Return the document with code blanked out. All positions remain the same."""
    return _BLOCKS.sub(_blank, document)


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", _GAP, found.group())


def find_figures(text: str, start: int = 0, end: int | None = None) -> list[Figure]:
    """Return all numbers between two positions. Versions, dates and parts of words do not count."""
    bound = len(text) if end is None else end
    return [Figure(found.group(), found.start()) for found in _FIGURE.finditer(text, start, bound)]


def find_phrases(text: str) -> Iterator[Phrase]:
    """Yield each phrase that looks measured, in sentences and in cells of tables. ``text`` comes from `hide`."""
    seen: set[int] = set()
    for found in _PHRASE.finditer(text):
        yield (phrase := _make_phrase(text, found.start(), found.end()))
        seen.update(figure.start for figure in phrase.figures)
    for _, cells in _find_cells(text, 0, len(text)):
        for start, end in cells[1:]:
            phrase = _make_phrase(text, start, end)
            if seen.issuperset(figure.start for figure in phrase.figures) or not _is_all_figures(phrase.text):
                continue
            yield phrase


def _make_phrase(text: str, start: int, end: int) -> Phrase:
    return Phrase(" ".join(text[start:end].split()), tuple(find_figures(text, start, end)))


def find_rows(document: str, text: str, start: int, end: int) -> list[Row]:
    """Return the rows of the tables between two positions, without heads. ``text`` is the document after `hide`."""
    rows = []
    for heading, cells in _find_cells(text, start, end):
        if not heading:
            label = re.sub(r"[*`]|\]\([^)]*\)|\[", "", document[slice(*cells[0])]).strip()
            others = tuple(tuple(find_figures(text, *cell)) for cell in cells[1:])
            rows.append(Row(label, tuple(find_figures(text, *cells[0])), others))
    return rows


def _find_cells(text: str, start: int, end: int) -> Iterator[tuple[bool, list[tuple[int, int]]]]:
    """Yield for each row of each table whether it is the head, and start and end of its cells."""
    lines = [(found.start(), found.group()) for found in re.finditer(r"^[ ]*\|.*\|[ ]*$", text[:end], re.MULTILINE)]
    for index, (begin, line) in enumerate(lines):
        if begin < start or _RULE.fullmatch(line):
            continue
        heading = index + 1 < len(lines) and bool(_RULE.fullmatch(lines[index + 1][1]))
        bars = [begin + found.start() for found in re.finditer(r"(?<!\\)\|", line)]
        yield heading, [(left + 1, right) for left, right in itertools.pairwise(bars)]


def _is_all_figures(cell: str) -> bool:
    return _BESIDE_FIGURES.fullmatch(_FIGURE.sub("", cell)) is not None
