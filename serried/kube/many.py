"""Writes about many objects at a time, of which a few are on their way at once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_WRITERS = 64
"""For how many pods something is written at the same time: as many as Bindings, for which the API server keeps room.

With fewer at a time the victims take longer to end, and all the while kube-scheduler tries their preemptor's members
over and over (decision 27).
"""


async def do_each(pods: Iterable[Item], do: Callable[[Item], Awaitable[Answer]]) -> list[Answer]:
    """The answers for all pods, in their order. What one raises ends the others."""
    few = asyncio.Semaphore(_WRITERS)

    async def do_one(pod: Item) -> Answer:
        async with few:
            return await do(pod)

    tasks = [asyncio.ensure_future(do_one(pod)) for pod in pods]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:  # `gather` leaves the others at work when one has failed
            task.cancel()
