"""``/debug/profile``: what the event loop spends its time on."""

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Query

from extender.debug.view import View, exemplify
from serried.observe.stacks import INTERVAL_SECONDS, sampled_stacks

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


_EXAMPLE = ProfileView(
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
            **exemplify(_EXAMPLE),
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
