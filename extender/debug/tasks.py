"""``/debug/tasks``: what the event loop is at work on, or waits for."""

import asyncio
from collections.abc import Iterable
from pathlib import PurePath

from fastapi import APIRouter, Response

from extender.debug.view import View, exemplify, write_long
from serried.observe.tasks import find_age


class TaskView(View):
    """One asyncio task."""

    name: str

    work: str
    """The coroutine that it runs."""

    at: str
    """File and line where that waits; "" for the task that answers this."""

    seconds: float | None
    """Its age; null for one that is older than the record of ages."""


class TasksView(View):
    """The tasks of the process."""

    tasks: list[TaskView]
    """The oldest first."""

    leftOff: int
    """How many more there are."""


_EXAMPLE = TasksView(
    tasks=[TaskView(name="watch nodes", work="Reflector.run", at="reflector.py:191", seconds=86400.2)], leftOff=0
)


def tasks_routes() -> APIRouter:
    """The route, below ``/debug``."""
    router = APIRouter()

    @router.get("/tasks", response_model=TasksView, responses=exemplify(_EXAMPLE))
    async def list_tasks(limit: int = 500) -> Response:
        """Every task of the event loop, with its age and where it waits, the oldest first.

        `limit` chooses the first ones. One binding cycle is one task, and so is one open bind call.
        """
        tasks = sorted(asyncio.all_tasks(), key=lambda task: (-_rank(task), task.get_name()))
        shown = tasks[: max(0, limit)]
        return await write_long(TasksView(tasks=[], leftOff=len(tasks) - len(shown)), "tasks", _view(shown))

    return router


def _rank(task: asyncio.Task[object]) -> float:
    age = find_age(task)
    return float("inf") if age is None else age


def _view(tasks: Iterable[asyncio.Task[object]]) -> Iterable[TaskView]:
    for task in tasks:
        age = find_age(task)
        coroutine = task.get_coro()
        yield TaskView(
            name=task.get_name(),
            work=getattr(coroutine, "__qualname__", type(coroutine).__name__),
            at=_find_place(coroutine),
            seconds=None if age is None else round(age, 1),
        )


def _find_place(coroutine: object) -> str:
    """Where the innermost coroutine of ours or others is suspended."""
    place = ""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        if frame is None:
            break
        place = f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}"
        coroutine = getattr(coroutine, "cr_await", None)
    return place
