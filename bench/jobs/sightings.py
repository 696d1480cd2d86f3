"""Record when a watch first showed the Workload, the PodGroup and a pod of each Job."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager

from bench.load.objects import NAMESPACE
from serried.kube.client import ApiClient
from serried.kube.reflector import Event, Reflector, Sink, Upserted
from serried.kube.wire import JSON, Resource, Selection


class Sightings:
    """The time at which the first object of each resource was seen, for each Job. Times are those of ``clock``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[str, dict[str, float]] = {}
        self._changed = asyncio.Event()

    def sink(self, resource: Resource) -> Sink:
        """Return the sink for a Reflector of this resource."""
        first = self._seen.setdefault(resource.plural, {})

        def handle(event: Event) -> None:
            job = _owning_job(event.obj) if isinstance(event, Upserted) else ""
            if job and job not in first:
                first[job] = self._clock()
                self._changed.set()

        return handle

    def of(self, resource: Resource) -> Mapping[str, float]:
        """Return the times for this resource by name of the Job. The mapping grows as events arrive."""
        return self._seen[resource.plural]

    async def await_all(self, resource: Resource, jobs: Collection[str]) -> None:
        """Wait until an object of the resource was seen for each of these Jobs."""
        while not self.of(resource).keys() >= set(jobs):
            self._changed.clear()
            await self._changed.wait()


@asynccontextmanager
async def follow(client: ApiClient, resources: Collection[Resource]) -> AsyncIterator[Sightings]:
    """Watch these resources while the body runs; yield the times. Objects that exist already count as seen now."""
    sightings = Sightings(time.monotonic)
    reflectors = [
        Reflector(client, resource, sightings.sink(resource), selection=Selection(NAMESPACE)) for resource in resources
    ]
    following = [asyncio.create_task(reflector.run()) for reflector in reflectors]
    try:
        for reflector in reflectors:
            await reflector.listed.wait()
        yield sightings
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)


def _owning_job(obj: JSON) -> str:
    owners = obj["metadata"].get("ownerReferences", ())
    return next((owner["name"] for owner in owners if owner["kind"] == "Job"), "")
