"""``/debug/profile``: what the event loop spends its time on.

``/debug/tasks``: what the event loop is at work on, or waits for.
"""

import asyncio
from collections.abc import Iterable
from pathlib import PurePath
from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Query, Response

from extender.debug.document import View, exemplify, write_long
from serried.ops.stacks import INTERVAL_SECONDS, find_age, sampled_stacks

_MAX_SECONDS = 60


class StackView(View):
    """One way through the code."""

    stack: str
    """Its frames as flame graphs read them: the outermost first, separated by semicolons."""

    samples: int
    """How often it was seen."""


class ProfileView(View):
    """The event loop's stacks while it works; what it waits for is not seen."""

    samples: int
    """How many there are."""

    everySeconds: float
    """The CPU time of the process between two of them."""

    stacks: list[StackView]
    """The most frequent first."""


_PROFILE_EXAMPLE = ProfileView(
    samples=57,
    everySeconds=INTERVAL_SECONDS,
    stacks=[
        StackView(stack="BaseEventLoop.run_forever (base_events.py:594);Verbs.filter (handlers.py:90)", samples=41)
    ],
)


def profile_routes(profiling: Literal["off", "on"]) -> APIRouter:
    """The route, with its whole path; without ``profiling`` it answers what to do."""
    router = APIRouter(prefix="/debug", tags=["debug"])
    turn = asyncio.Lock()

    @router.get(
        "/profile",
        responses={
            **exemplify(_PROFILE_EXAMPLE),
            403: {"description": "Profiles are off; the answer says how to turn them on."},
            429: {"description": "Another profile is being taken."},
        },
    )
    async def take_profile(seconds: Annotated[float, Query(gt=0, le=_MAX_SECONDS)] = 5.0) -> ProfileView:
        """What the event loop was at work on for so many seconds, one sample for each 5 ms of CPU time."""
        if profiling == "off":
            raise HTTPException(403, "profiles are off; start the extender with --profiling on")
        if turn.locked():
            raise HTTPException(429, "another profile is being taken; ask again", headers={"Retry-After": "5"})
        async with turn:
            return await _take(seconds)

    return router


async def _take(seconds: float) -> ProfileView:
    with sampled_stacks() as seen:
        await asyncio.sleep(seconds)
    return ProfileView(
        samples=seen.total(),
        everySeconds=INTERVAL_SECONDS,
        stacks=[StackView(stack=stack, samples=samples) for stack, samples in seen.most_common()],
    )


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


_TASKS_EXAMPLE = TasksView(
    tasks=[TaskView(name="watch nodes", work="Reflector.run", at="reflector.py:191", seconds=86400.2)], leftOff=0
)


def tasks_routes() -> APIRouter:
    """The route, below ``/debug``."""
    router = APIRouter()

    @router.get("/tasks", response_model=TasksView, responses=exemplify(_TASKS_EXAMPLE))
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
