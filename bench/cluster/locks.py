"""File locks between processes of one user."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.cluster.progress import Report


@contextmanager
def exclusive(path: Path, report: Report, waiting: str) -> Iterator[None]:
    """Hold the lock file at ``path`` while the body runs. Report ``waiting`` once if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(waiting)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
