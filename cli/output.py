"""The output of commands: tables for people, JSON or YAML for programs, exit codes, and a helper for options."""

import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, StrEnum
from textwrap import wrap
from typing import Any

import typer


class ExitCode(Enum):
    """The exit codes of all commands: the number, and its meaning for the end of ``--help``."""

    DONE = (0, "success")
    NO = (1, "the answer is no: there is a mistake, or a gang does not fit")
    USAGE = (2, "the command line, or a file in it, is invalid")
    UNREACHABLE = (3, "the extender or the API server does not answer")
    NOT_FOUND = (4, "the object does not exist")
    BROKEN = (5, "the command failed because of a defect in Serried")

    def __init__(self, number: int, meaning: str) -> None:
        self.number = number
        self.meaning = meaning


class CommandError(Exception):
    """Ends the command: ``code`` becomes the exit code, and the message is printed to standard error.

    The message is one sentence for the user, and says last what to do.
    """

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class OutputFormat(StrEnum):
    """The values of the option ``--output``."""

    TABLE = "table"

    WIDE = "wide"
    """A table with additional columns."""

    NAME = "name"
    """The names only, one on each line."""

    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Table:
    """A table without borders. Only the cells of the last column may take several lines, because they are sentences."""

    columns: Sequence[str]
    """The headings. A heading that begins with ``#`` marks a column of numbers, and is shown without the ``#``."""

    rows: Sequence[Sequence[str]]
    title: str = ""


Part = str | Table
"""A part of the output for people: a sentence or a table. Parts are printed one below the other."""


def make_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> Table:
    """Return a table with ``str`` of each value as its cell."""
    return Table(columns, [[str(cell) for cell in row] for row in rows], title)


def write(
    document: Any, output: OutputFormat, draw: Callable[[], Iterable[Part]], names: Callable[[], Iterable[str]]
) -> None:
    """Write the result of a command to standard output in the format that the user chose.

    JSON and YAML get ``document``. A table calls ``draw`` for the parts to print, each a text or a `Table`.
    ``-o name`` calls ``names`` for the lines. With other formats, these functions are not called.
    """
    match output:
        case OutputFormat.JSON:
            sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        case OutputFormat.YAML:
            import yaml  # noqa: PLC0415 - most calls need none

            # Through JSON, because the YAML writer does not know enumerations.
            plain = json.loads(json.dumps(document))
            sys.stdout.write(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120))
        case OutputFormat.NAME:
            sys.stdout.writelines(f"{name}\n" for name in names())
        case OutputFormat.TABLE | OutputFormat.WIDE:
            sys.stdout.writelines(f"{line}\n" for line in lay_out(draw(), find_width()))


def print_note(sentence: str) -> None:
    """Write a remark that does not belong to the result to standard error."""
    sys.stderr.write(f"serried: {sentence}\n")


_WIDTH_OF_FILES = 1000
"""Line width in characters if the output is no terminal, so that nothing is wrapped."""

_GAP = 3
"""Number of blanks between two columns, as in the tables of kubectl."""

_LEAST_SENTENCE = 40
"""Least width of the last column in characters. If less is left, its cells are printed below their rows."""

_LEAST_CELL = 12
_INDENT = "    "


def find_width() -> int:
    """Return the line width in characters: the variable COLUMNS, else the width of the terminal, else 1000.

    A smaller COLUMNS than `_LEAST_SENTENCE` counts as `_LEAST_SENTENCE`.
    """
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said):
        return max(int(said), _LEAST_SENTENCE)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH_OF_FILES


def lay_out(parts: Iterable[Part], width: int) -> Iterator[str]:
    """Yield the lines that show the parts, texts and tables, in ``width`` characters.

    A table without rows is left out.
    """
    begun = False
    for part in parts:
        if isinstance(part, str):
            yield from _wrap(part, width)
        elif part.rows:
            if begun:
                yield ""
            if part.title:
                yield from map(_embolden, _wrap(part.title, width))
            for block in lay_out_rows(part, width):
                yield from block
        begun = True


def _wrap(text: str, width: int) -> list[str]:
    return wrap(text, width, break_on_hyphens=False) or [""]


def _embolden(line: str) -> str:
    plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return line if plain else f"\x1b[1m{line}\x1b[0m"


def lay_out_rows(table: Table, width: int) -> list[list[str]]:
    """Return the lines that show a table in ``width`` characters: one list for the header, then one for each row."""
    header = [column.removeprefix("#") for column in table.columns]
    *widths, last = [max(map(len, column)) for column in zip(header, *table.rows, strict=True)]
    room = width - sum(widths) - _GAP * len(widths)
    below = bool(widths) and room < min(last, _LEAST_SENTENCE)
    widths = _narrow(widths, width) if below else [*widths, min(last, max(room, 1))]
    right = [column.startswith("#") for column in table.columns]
    lines = [list(_lay_out_cells(header, widths, right)) if any(header) else []]
    for row in table.rows:
        lines.append(list(_lay_out_cells(row, widths, right)))
        if below and row[-1]:
            lines[-1] += [_INDENT + line for line in _wrap(row[-1], width - len(_INDENT))]
    return lines


def _narrow(widths: list[int], width: int) -> list[int]:
    """Return the column widths, the widest ones reduced until the columns fit into ``width`` characters.

    No column is made narrower than `_LEAST_CELL`, even if they do not fit then.
    """
    while sum(widths) + _GAP * (len(widths) - 1) > width and max(widths) > _LEAST_CELL:
        widths[widths.index(max(widths))] -= 1
    return widths


def _lay_out_cells(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> Iterator[str]:
    wrapped = [_wrap(cell, width) for cell, width in zip(cells, widths, strict=False)]
    for number in range(max(map(len, wrapped))):
        pieces = (each[number] if number < len(each) else "" for each in wrapped)
        placed = zip(pieces, widths, right, strict=False)
        texts = (piece.rjust(width) if is_right else piece.ljust(width) for piece, width, is_right in placed)
        yield (" " * _GAP).join(texts).rstrip()


def find_similar(word: str, words: Iterable[str]) -> str:
    """Return the one of ``words`` that is most similar to the mistyped ``word``, "" if none is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 - few calls need it

    return next(iter(get_close_matches(word, list(words), 1, 0.6)), "")


_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
_SAID_TIME = re.compile(rf"(?:\bat )?({_TIME.pattern})")
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def now() -> float:
    """Return the seconds since 1970. Tests replace this function."""
    return time.time()


def format_time(text: str) -> str:
    """Return an RFC 3339 time as people write it: ``3 min ago (14:05:10)``, in the local time zone.

    Return any other text unchanged.
    """
    if not _TIME.fullmatch(text):
        return text
    then = datetime.fromisoformat(text).astimezone()
    seconds = round(then.timestamp() - now())
    today = datetime.fromtimestamp(now()).astimezone().date() == then.date()
    clock = f"{then:%H:%M:%S}" if today else f"{then:%b} {then.day} {then:%H:%M}"
    return f"in {format_duration(seconds)} ({clock})" if seconds > 0 else f"{format_duration(-seconds)} ago ({clock})"


def format_duration(seconds: int) -> str:
    """Return a number of seconds with at most two units, such as 40 s, 15 min, 3 h 12 min or 2 d 4 h."""
    if seconds < 2 * _MINUTE:
        return f"{seconds} s"
    if seconds < 2 * _HOUR:
        return f"{seconds // _MINUTE} min"
    large, small = (_DAY, _HOUR) if seconds >= _DAY else (_HOUR, _MINUTE)
    names = {_DAY: "d", _HOUR: "h", _MINUTE: "min"}
    rest = seconds % large // small
    return f"{seconds // large} {names[large]}" + (f" {rest} {names[small]}" if rest else "")


def format_age(text: str) -> str:
    """Return how long ago an RFC 3339 time was, such as 15 min. Return any other text unchanged."""
    if not _TIME.fullmatch(text):
        return text
    return format_duration(max(0, round(now() - datetime.fromisoformat(text).timestamp())))


def format_times(sentence: str) -> str:
    """Return a sentence of the extender with each RFC 3339 time in it written by `format_time`."""
    return _SAID_TIME.sub(lambda found: format_time(found[1]), sentence)


def format_amount(name: str, amount: int) -> str:
    """Return an amount of the resource ``name``, rounded down, in a unit for people, such as 12Gi, or 1.5 for CPUs.

    ``amount`` is in millicores for cpu, in bytes or pieces for others.
    """
    if name == "cpu":
        return _shorten(amount / 1_000)
    if name not in {"memory", "ephemeral-storage"} and not name.startswith("hugepages-"):
        return str(amount)
    power = min(max(amount.bit_length() - 1, 0) // 10, len(_BINARY) - 1)
    return _shorten(amount / 2 ** (10 * power)) + _BINARY[power]


def _shorten(number: float) -> str:
    digits = 2 if number < 10 else 1 if number < 100 else 0
    return f"{math.floor(number * 10**digits) / 10**digits:g}" if digits else str(math.floor(number))


def option(metavar: str, about: str, *names: str, **more: Any) -> Any:
    """Return a typer option: ``metavar`` names its value in the help, ``about`` is its help. The default is not shown.

    Without ``names``, such as ``--group``, it is named like its parameter. ``more`` is passed to typer.
    """
    return typer.Option(*names, metavar=metavar, show_default=False, help=about, **more)
