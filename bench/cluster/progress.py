"""What a person at a terminal sees while a cluster comes up."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[str], None]

EVERY = 15.0


def stderr_report() -> Report:
    """A report that prefixes every line with the seconds since it was made."""
    start = time.monotonic()

    def report(text: str) -> None:
        print(f"[{time.monotonic() - start:6.1f}s] {text}", file=sys.stderr, flush=True)

    return report


def silent(_text: str) -> None:
    """The report of callers who want none."""


@contextmanager
def ticking(report: Report, text: str, every: float = EVERY) -> Iterator[None]:
    """Repeat `text` with the elapsed time while the body runs, so that minutes of work never look dead."""
    start = time.monotonic()
    done = threading.Event()

    def tick() -> None:
        while not done.wait(every):
            report(f"{text}: {time.monotonic() - start:.0f} s so far")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
