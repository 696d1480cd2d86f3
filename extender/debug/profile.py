"""``/debug/profile``: what the event loop spends its time on."""

import asyncio
import threading
from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Query

from extender.debug.view import View, exemplify
from serried.observe.stacks import INTERVAL_SECONDS, sample_stacks

_MAX_SECONDS = 60


class StackView(View):
    """One way through the code."""

    stack: str
    """Its frames as flame graphs read them: the outermost first, separated by semicolons."""

    samples: int
    """How often it was seen."""


class ProfileView(View):
    """The event loop's stacks."""

    samples: int
    """How many looks there were."""

    everySeconds: float
    """The time between two of them."""

    stacks: list[StackView]
    """The most frequent first. A stack that ends in `select` waits for work."""


_EXAMPLE = ProfileView(
    samples=500,
    everySeconds=INTERVAL_SECONDS,
    stacks=[StackView(stack="run (runners.py:86);EpollSelector.select (selectors.py:443)", samples=481)],
)


def profile_routes(profiling: Literal["off", "on"]) -> APIRouter:
    """The route, with its whole path; without ``profiling`` it answers what to do."""
    router = APIRouter(prefix="/debug", tags=["debug"])
    turn = asyncio.Lock()

    @router.get(
        "/profile",
        responses={
            **exemplify(_EXAMPLE),
            403: {"description": "Profiles are off; the answer says how to turn them on."},
            429: {"description": "Another profile is being taken."},
        },
    )
    async def take_profile(seconds: Annotated[float, Query(gt=0, le=_MAX_SECONDS)] = 5.0) -> ProfileView:
        """What the event loop was at work on for so many seconds, seen by another thread a hundred times a second."""
        if profiling == "off":
            raise HTTPException(403, "profiles are off; start the extender with --profiling on")
        if turn.locked():
            raise HTTPException(429, "another profile is being taken; ask again", headers={"Retry-After": "5"})
        async with turn:
            return await _take(seconds)

    return router


async def _take(seconds: float) -> ProfileView:
    ended = threading.Event()
    try:
        seen = await asyncio.to_thread(sample_stacks, threading.get_ident(), seconds, ended)
    finally:
        ended.set()  # cancelled, the thread would go on
    return ProfileView(
        samples=seen.total(),
        everySeconds=INTERVAL_SECONDS,
        stacks=[StackView(stack=stack, samples=samples) for stack, samples in seen.most_common()],
    )
