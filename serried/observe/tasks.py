"""How old the tasks of an event loop are: asyncio itself does not remember when it made them."""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

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
