"""What a person at a terminal sees while a cluster comes up."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

Report = Callable[[str], None]


def stderr_report() -> Report:
    """A report that prefixes every line with the seconds since it was made."""
    start = time.monotonic()

    def report(text: str) -> None:
        print(f"[{time.monotonic() - start:6.1f}s] {text}", file=sys.stderr, flush=True)

    return report


def silent(_text: str) -> None:
    """The report of callers who want none."""


@contextmanager
def ticking(report: Report, text: str) -> Iterator[None]:
    """Show `text` with the elapsed time while the body runs, in one line that is rewritten: at a terminal only."""
    console = Console(stderr=True)
    if report is silent or not console.is_terminal:
        yield
        return
    with Progress(TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True) as progress:
        progress.add_task(text, total=None)
        yield
