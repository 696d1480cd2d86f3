"""One write for each of many pods, with a limit on how many are in flight."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_WRITERS = 64
"""The limit on writes in flight, equal to that of Bindings, which the API server has capacity for.

A lower limit prolongs evictions, and until all victims have ended kube-scheduler keeps retrying the preemptor's members
(decision 27).
"""


async def do_each(pods: Iterable[Item], do: Callable[[Item], Awaitable[Answer]]) -> list[Answer]:
    """Call ``do`` for every pod, _WRITERS at a time. Return the answers in the order of the pods.

    The first exception cancels the other calls and is raised.
    """
    slots = asyncio.Semaphore(_WRITERS)

    async def do_one(pod: Item) -> Answer:
        async with slots:
            return await do(pod)

    tasks = [asyncio.ensure_future(do_one(pod)) for pod in pods]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:  # `gather` leaves the others running when one has failed
            task.cancel()
