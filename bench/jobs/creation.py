"""Create Jobs at a steady rate, or as fast as the API server accepts them."""

import asyncio
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.load.objects import NAMESPACE
from bench.load.run import IN_FLIGHT
from serried.kube.client import ApiClient
from serried.kube.wire import JOBS, JSON

AT_ONCE = math.inf
"""The rate without pauses between creates."""


@dataclass(slots=True)
class Creation:
    """The times at which the create of each Job was sent and answered, by name (monotonic clock)."""

    sent: dict[str, float] = field(default_factory=dict)
    answered: dict[str, float] = field(default_factory=dict)

    @property
    def per_second(self) -> float:
        """The real rate, from the first create sent to the last one answered."""
        return len(self.answered) / (max(self.answered.values()) - min(self.sent.values()))

    @property
    def seconds(self) -> list[float]:
        """The seconds of each create, sorted."""
        return sorted(end - self.sent[name] for name, end in self.answered.items())


async def create_jobs(client: ApiClient, jobs: Sequence[JSON], rate: float) -> Creation:
    """Create the Jobs at ``rate`` per second. Return the times. Raise ApiError for the first rejected create."""
    creation, start, pending = Creation(), time.monotonic(), iter(enumerate(jobs))
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(_create_due(client, pending, rate, start, creation))
    return creation


async def _create_due(
    client: ApiClient, pending: Iterator[tuple[int, JSON]], rate: float, start: float, creation: Creation
) -> None:
    for index, job in pending:
        await asyncio.sleep(start + index / rate - time.monotonic())
        name = job["metadata"]["name"]
        creation.sent[name] = time.monotonic()
        await client.create(JOBS, NAMESPACE, job)
        creation.answered[name] = time.monotonic()
