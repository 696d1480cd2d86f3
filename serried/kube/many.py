"""Writes to many pods at the API server, with a limit on how many are in flight (`do_each`)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_WRITERS = 64
"""The maximum number of writes in flight. It equals the limit for Bindings, which the API server can take.

A lower limit would prolong evictions. Until all victims have ended, kube-scheduler retries the members of the preemptor
in vain (decision 27).
"""


async def do_each(pods: Iterable[Item], do: Callable[[Item], Awaitable[Answer]]) -> list[Answer]:
    """Call ``do`` for each pod, at most 64 at a time. Return the results in the order of the pods.

    If a call raises an exception, the other calls are cancelled, and the exception is raised.
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
