"""The output of the demo: a live table on a terminal, plain lines anywhere else. `open_stage` chooses."""

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live

from bench.demo.board import Row, render_changes, render_table


class Stage(Protocol):
    """The output of the demo. A context manager, because a terminal has to be restored at the end."""

    def __enter__(self) -> Self:
        """Start the output."""

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the output, and restore the terminal. Exceptions are not suppressed."""

    def announce(self, text: str) -> None:
        """Show a sentence about the next step."""

    def show(self, rows: Sequence[Row], caption: str) -> None:
        """Show the state of all gangs."""


class Terminal:
    """The output on a terminal: a table that is redrawn in place."""

    def __init__(self) -> None:
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def announce(self, text: str) -> None:
        """Print the sentence above the table."""
        self._live.console.print(f"[bold]{text}[/bold]")

    def show(self, rows: Sequence[Row], caption: str) -> None:
        """Redraw the table."""
        self._live.update(render_table(rows, caption), refresh=True)


class Lines:
    """The output without a terminal: a line for each change of a gang."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._rows: Sequence[Row] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def announce(self, text: str) -> None:
        """Print the sentence as a line, with the seconds since the start."""
        print(f"[{time.monotonic() - self._begun:6.1f}s] {text}", flush=True)

    def show(self, rows: Sequence[Row], caption: str) -> None:  # noqa: ARG002 - the caption changes with every pod
        """Print a line for each gang that has changed since the last call."""
        for line in render_changes(self._rows, rows):
            self.announce(f"  {line}")
        self._rows = rows


def open_stage() -> Stage:
    """Return the output for the terminal if standard output is one, else the output in lines."""
    return Terminal() if sys.stdout.isatty() else Lines()
