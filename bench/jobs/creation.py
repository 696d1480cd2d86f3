"""Creating Jobs at a steady rate, or as fast as the API server takes them."""

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
"""The rate that knows no pause."""


@dataclass(slots=True)
class Creation:
    """When each Job's create was sent and answered, by its name; monotonic seconds."""

    sent: dict[str, float] = field(default_factory=dict)
    answered: dict[str, float] = field(default_factory=dict)

    @property
    def per_second(self) -> float:
        """The rate that was really reached, from the first create sent to the last one answered."""
        return len(self.answered) / (max(self.answered.values()) - min(self.sent.values()))

    @property
    def seconds(self) -> list[float]:
        """How long each create took, sorted."""
        return sorted(end - self.sent[name] for name, end in self.answered.items())


async def create_jobs(client: ApiClient, jobs: Sequence[JSON], rate: float) -> Creation:
    """Create the Jobs, ``rate`` a second; raises ApiError for the first that is refused."""
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
