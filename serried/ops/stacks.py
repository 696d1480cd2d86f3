"""Samples of what the main thread is at work on: cheap enough to be taken while it serves.

A timer of CPU time interrupts it. A look from another thread would come when the main thread gives up the interpreter,
which it does where it waits, and would see hardly any work.

How old the tasks of an event loop are: asyncio itself does not remember when it made them.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any, TypeVar

INTERVAL_SECONDS = 0.005
"""CPU time of the process between two samples."""

_MAX_DEPTH = 100


@contextmanager
def sampled_stacks() -> Iterator[Counter[str]]:
    """How often each stack was seen while the body runs; to be used in the main thread, by one user at a time.

    A stack is written as flame graphs read it: frames from the outermost to the innermost, separated by semicolons. At
    most the innermost 100 count.
    """
    seen: Counter[str] = Counter()

    def look(_: int, frame: FrameType | None) -> None:
        if frame is not None:
            seen[_fold(frame)] += 1

    former = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_SECONDS, INTERVAL_SECONDS)
    try:
        yield seen
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        # The default would end the process if a last signal is still on its way.
        signal.signal(signal.SIGPROF, signal.SIG_IGN if former is signal.SIG_DFL else former)


def _fold(innermost: FrameType) -> str:
    names: list[str] = []
    frame: FrameType | None = innermost
    while frame is not None and len(names) < _MAX_DEPTH:
        names.append(_name(frame.f_code))
        frame = frame.f_back
    return ";".join(reversed(names))


def _name(code: CodeType) -> str:
    return f"{code.co_qualname} ({PurePath(code.co_filename).name}:{code.co_firstlineno})"


T = TypeVar("T")


class _DatedTask(asyncio.Task[T]):
    """A task that knows when it was made, in loop seconds."""

    born: float


def date_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Have the tasks that ``loop`` makes from now on remember when they were made."""
    loop.set_task_factory(_make_task)


def find_age(task: asyncio.Task[Any]) -> float | None:
    """The age of a task of the running loop in seconds; None for one that was made before ages were remembered."""
    return asyncio.get_running_loop().time() - task.born if isinstance(task, _DatedTask) else None


def _make_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T] | Generator[Any, None, T], **how: Any
) -> asyncio.Task[T]:
    task: _DatedTask[T] = _DatedTask(work, loop=loop, **how)
    task.born = loop.time()
    return task
