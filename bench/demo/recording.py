"""Record the output of the demo with its times: as an asciicast for `asciinema play`, and as an animated SVG.

Source of the format: https://docs.asciinema.org/manual/asciicast/v2/ .
"""

import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from html import escape
from pathlib import Path
from typing import NamedTuple, TextIO

COLUMNS = 132
"""The width of the recording in characters; longer lines are cut."""

_ROW, _LETTER = 17, 7.3
_STYLE = (
    "text{font:12px ui-monospace,monospace;fill:#d8dee9;white-space:pre;animation:come .1s backwards}"
    "@keyframes come{from{opacity:0}}@media(prefers-reduced-motion){text{animation:none}}"
)


class Line(NamedTuple):
    """A line of output."""

    at: float
    """Seconds since the start of the recording."""

    text: str


class Tee(io.TextIOBase):
    """A text stream that writes to ``out``, and keeps each line with its time.

    It never counts as a terminal, so the demo prints lines and no live table.
    """

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.lines: list[Line] = []
        self._out, self._clock = out, clock
        self._begun = clock()
        self._open = ""

    def write(self, text: str) -> int:
        """Write the text to ``out``, and keep the lines that it completes."""
        self._out.write(text)
        *whole, self._open = (self._open + text).split("\n")
        self.lines += [Line(round(self._clock() - self._begun, 2), line) for line in whole]
        return len(text)

    def flush(self) -> None:
        """Flush ``out``."""
        self._out.flush()


@contextmanager
def record(path: Path) -> Iterator[None]:
    """Record standard output while the body runs. Afterwards write the asciicast to ``path``, and the SVG beside it.

    Write nothing if the body raises.
    """
    tee = Tee(sys.stdout)
    with redirect_stdout(tee):
        yield
    path.write_text(write_cast(tee.lines))
    path.with_suffix(".svg").write_text(draw(tee.lines))


def write_cast(lines: Sequence[Line]) -> str:
    """Return the text of the asciicast."""
    head = {"version": 2, "width": COLUMNS, "height": len(lines) + 1, "title": "make demo"}
    events = [[line.at, "o", f"{line.text}\r\n"] for line in lines]
    return "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in (head, *events))


def draw(lines: Sequence[Line]) -> str:
    """Return an SVG in which each line appears at its time. Viewers without animation show all lines."""
    width, height = round(COLUMNS * _LETTER) + 20, len(lines) * _ROW + 20
    rows = "\n".join(
        f'<text x="10" y="{number * _ROW + 22}" style="animation-delay:{line.at}s">{escape(_shorten(line.text))}</text>'
        for number, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        f"<title>make demo</title><style>{_STYLE}</style>"
        f'<rect width="100%" height="100%" rx="6" fill="#20242c"/>\n{rows}\n</svg>\n'
    )


def _shorten(text: str) -> str:
    return text if len(text) <= COLUMNS else f"{text[: COLUMNS - 1]}…"
