"""Report the progress of long operations to a person at a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

Report = Callable[[str], None]
"""Reports one line of progress."""


def stderr_report() -> Report:
    """Return a report to standard error that prefixes every line with the seconds since this call."""
    start = time.monotonic()

    def report(text: str) -> None:
        print(f"[{time.monotonic() - start:6.1f}s] {text}", file=sys.stderr, flush=True)

    return report


def silent(_text: str) -> None:
    """Report nothing."""


@contextmanager
def ticking(report: Report, text: str) -> Iterator[None]:
    """Show a line with ``text`` and the elapsed time while the body runs. Without a terminal, show nothing."""
    console = Console(stderr=True)
    if report is silent or not console.is_terminal:
        yield
        return
    with Progress(TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True) as progress:
        progress.add_task(text, total=None)
        yield
