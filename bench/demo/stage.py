"""The two ways of showing the demo: a live table on a terminal, plain lines anywhere else."""

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live

from bench.demo.board import Row, render_changes, render_table


class Stage(Protocol):
    """Shows what happens; a context manager, so that a terminal is left as it was found."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; never suppresses."""

    def say(self, text: str) -> None:
        """A sentence about what comes next."""

    def show(self, rows: Sequence[Row], caption: str) -> None:
        """How the gangs stand."""


class Terminal:
    """A table that is redrawn in place."""

    def __init__(self) -> None:
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False)
        self._said = ""

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Above the table, where it stays."""
        self._live.console.print(f"[bold]{text}[/bold]")

    def show(self, rows: Sequence[Row], caption: str) -> None:
        """Redraw."""
        self._live.update(render_table(rows, caption), refresh=True)


class Lines:
    """A line for each change."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._rows: Sequence[Row] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def say(self, text: str) -> None:
        """One line."""
        print(f"[{time.monotonic() - self._begun:6.1f}s] {text}", flush=True)

    def show(self, rows: Sequence[Row], caption: str) -> None:  # noqa: ARG002 - it changes with every pod
        """What has changed since the last time."""
        for line in render_changes(self._rows, rows):
            self.say(f"  {line}")
        self._rows = rows


def open_stage() -> Stage:
    """A table if a person watches, else lines."""
    return Terminal() if sys.stdout.isatty() else Lines()
