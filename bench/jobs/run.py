"""Measure phases on one running cluster: batches of Jobs, rest, and a restart of the controller.

The entries are `open_bench`, and with its Bench `measure_steady` or `measure_flood`.
"""

import asyncio
import math
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bench.cluster import Cluster
from bench.cluster.waiting import answers
from bench.jobs.creation import AT_ONCE, Creation, create_jobs
from bench.jobs.figures import Memory, Phase, Rest, Restart, describe_syncs, mark, mark_since, without_leases
from bench.jobs.objects import Batch
from bench.jobs.scrape import Histogram, Scrape, read_metrics
from bench.jobs.sightings import Sightings, follow
from bench.load.objects import POD_GROUPS, WORKLOADS
from bench.load.requests import read_writes
from bench.load.run import StuckError, open_client
from bench.load.usage import Usage, read_usage
from serried.kube.client import ApiClient
from serried.kube.wire import PODS

MANAGER_SYNCS = "job_controller_job_sync_duration_seconds"
CONTROLLER_SYNCS = "serried_job_sync_duration_seconds"
CONTROLLER_WRITES = "serried_api_writes_total"
RSS = "process_resident_memory_bytes"
_PAUSE = 0.02
_COUNT_INTERVAL = 3.0
"""Seconds between two counts of the API server's writes."""

_QUIET = 3.0
"""Seconds without writes after which a phase is over."""

# For suspended gangs: longer than the extender waits before it reports a PodGroup without pods, and the controller
# before it checks a Job for the last time after creating its objects (30 and 31 s).
_QUIET_OF_GROUPS = 35.0


@dataclass(frozen=True, slots=True)
class _Reading:
    """The metrics of all processes at one time."""

    at: float
    manager: Scrape
    """Metrics of kube-controller-manager."""

    controller: Scrape | None
    """Metrics of Serried's controller; None while it is stopped."""

    writes: Counter[str]
    """The API server's count of writes."""


@dataclass(frozen=True, slots=True)
class _Effort:
    """The CPU seconds of all processes until ``at``."""

    at: float
    usage: Usage

    def others_share(self, earlier: "_Effort") -> float:
        """Return the share of all cores that other work took since ``earlier``, from 0 to 1."""
        return self.usage.since(earlier.usage).others / ((self.at - earlier.at) * (os.cpu_count() or 1))


class Bench:
    """Measures on one cluster, whose controller runs. Waits at most ``seconds`` for the last object of a phase."""

    def __init__(self, cluster: Cluster, client: ApiClient, sightings: Sightings, seconds: float) -> None:
        self._cluster, self._client, self._sightings, self._seconds = cluster, client, sightings, seconds
        self._workloads, self._groups = WORKLOADS[cluster.spec.api], POD_GROUPS[cluster.spec.api]
        self._stopped = False
        """True while the controller is stopped."""

    async def measure(self, batch: Batch, rate: float = AT_ONCE) -> Phase:
        """Create a batch, wait until all of its objects exist and no more are written, and return the figures."""
        before, begun = await self._read(), self._read_effort()
        creation = await create_jobs(self._client, batch.make_jobs(), rate)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._await_objects(batch, creation), self._seconds)
        ended = self._read_effort()
        await self._settle(_QUIET_OF_GROUPS if batch.gangs and batch.state == "suspended" else _QUIET)
        phase = self._describe(batch, creation, before, await self._read())
        spent = {name: round(seconds, 2) for name, seconds in ended.usage.since(begun.usage).by_name.items()}
        wanted = None if rate == AT_ONCE else rate
        return replace(phase, wanted_rate=wanted, cpu_seconds=spent, others_share=ended.others_share(begun))

    async def _await_objects(self, batch: Batch, creation: Creation) -> None:
        wanted = ([self._groups] if batch.gangs else []) + ([PODS] if batch.state == "running" else [])
        for resource in wanted:
            await self._sightings.await_all(resource, creation.sent)

    def _describe(self, batch: Batch, creation: Creation, before: _Reading, after: _Reading) -> Phase:
        sent, groups = creation.sent, self._sightings.of(self._groups)
        made = [groups[name] for name in sent if name in groups]
        return Phase(
            name=batch.name,
            kind=batch.kind,
            state=batch.state,
            jobs=batch.count,
            rate=creation.per_second,
            creates=mark(creation.seconds),
            workloads=mark_since(sent, self._sightings.of(self._workloads)),
            pod_groups=mark_since(sent, groups),
            pods=mark_since(sent, self._sightings.of(PODS)),
            last=max(made) - min(sent.values()) if made else None,
            manager_syncs=describe_syncs(_observed(MANAGER_SYNCS, before.manager, after.manager)),
            controller_syncs=describe_syncs(_observed(CONTROLLER_SYNCS, before.controller, after.controller)),
            writes=dict(without_leases(after.writes - before.writes)),
            controller_writes=_written(before.controller, after.controller),
        )

    async def _settle(self, quiet: float) -> None:
        """Wait until only Leases were written for ``quiet`` seconds, but not longer than the bench's ``seconds``."""
        begun = since = time.monotonic()
        before = without_leases(await read_writes(self._client))
        while (now := time.monotonic()) < min(since + quiet, begun + self._seconds):
            await asyncio.sleep(min(_COUNT_INTERVAL, since + quiet - now))
            written = without_leases(await read_writes(self._client))
            if written != before:
                before, since = written, time.monotonic()

    async def rest(self, seconds: float) -> Rest:
        """Wait for some seconds, and return the writes in that time."""
        before = await self._read()
        await asyncio.sleep(seconds)
        after = await self._read()
        return Rest(
            after.at - before.at,
            _written(before.controller, after.controller) or {},
            dict(without_leases(after.writes - before.writes)),
        )

    async def read_memory(self) -> float:
        """Return the controller's resident memory in bytes."""
        return (await self._read_controller()).total(RSS)

    def stop_controller(self) -> None:
        """End the controller, and wait until it has ended."""
        self._cluster.kill("controller", signal.SIGTERM)
        self._stopped = True

    async def start_controller(self) -> float:
        """Start the controller again. Return the seconds until it is ready. Raise StuckError after a timeout."""
        begun = time.monotonic()
        self._cluster.start("controller")
        while not await asyncio.to_thread(answers, f"{self._cluster.controller_url}/readyz"):
            if time.monotonic() - begun > self._seconds:
                raise StuckError(f"the controller was not ready {self._seconds:.0f} s after its start")
            await asyncio.sleep(_PAUSE)
        self._stopped = False
        return time.monotonic() - begun

    async def restart(self, seconds: float) -> Restart:
        """Restart the controller, and count its writes until ``seconds`` after it is ready."""
        self.stop_controller()
        took = await self.start_controller()
        await asyncio.sleep(seconds)
        found = await self._read_controller()
        return Restart(took, dict(found.by_label(CONTROLLER_WRITES, "verb_resource")), found.total(RSS))

    async def _read(self) -> _Reading:
        return _Reading(
            time.monotonic(),
            await asyncio.to_thread(read_metrics, self._cluster.controller_manager_url),
            None if self._stopped else await self._read_controller(),
            await read_writes(self._client),
        )

    def _read_effort(self) -> _Effort:
        return _Effort(time.monotonic(), read_usage(self._cluster.pids | {"load generator": os.getpid()}))

    async def _read_controller(self) -> Scrape:
        return await asyncio.to_thread(read_metrics, self._cluster.controller_url)


@contextmanager
def pin_api_server(pids: Mapping[str, int]) -> Iterator[None]:
    """Reserve one core for the API server while the body runs.

    The other processes of the cluster, this process, and processes that it starts use the other cores. Raise StuckError
    if there is only one core.
    """
    cores = os.sched_getaffinity(0)
    alone, others = {min(cores)}, cores - {min(cores)}
    if not others:
        raise StuckError("the API server cannot have the only core alone")
    for name, pid in pids.items():
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):  # the thread may have ended since it was listed
                os.sched_setaffinity(int(thread.name), alone if name == "kube-apiserver" else others)
    os.sched_setaffinity(0, others)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@asynccontextmanager
async def open_bench(cluster: Cluster, seconds: float) -> AsyncIterator[Bench]:
    """Open a bench on this cluster, with watches of Workloads, PodGroups and pods, while the body runs."""
    async with open_client(cluster.kubeconfig) as client:
        resources = (WORKLOADS[cluster.spec.api], POD_GROUPS[cluster.spec.api], PODS)
        async with follow(client, resources) as sightings:
            yield Bench(cluster, client, sightings, seconds)


async def measure_steady(bench: Bench, rate: float, seconds: float) -> AsyncIterator[Phase]:
    """Measure four phases of suspended Jobs at a steady rate, and yield each.

    The first and the last are plain Jobs while the controller is stopped: they show kube-controller-manager alone,
    twice, because the cluster has more objects at the end. Between them are plain Jobs, and gang Jobs, with the
    controller.
    """
    count = math.ceil(rate * seconds)
    await bench.measure(Batch("warm-up", min(50, count)), rate)
    bench.stop_controller()
    yield await bench.measure(Batch("alone-before", count, "plain"), rate)
    await bench.start_controller()
    yield await bench.measure(Batch("plain", count, "plain"), rate)
    yield await bench.measure(Batch("gang", count), rate)
    bench.stop_controller()
    yield await bench.measure(Batch("alone-after", count, "plain"), rate)


async def measure_flood(bench: Bench, count: int, rest: float) -> tuple[Phase, Memory, Rest, Restart]:
    """Create suspended gang Jobs without pauses, then measure a time of rest, and a restart of the controller."""
    await bench.measure(Batch("warm-up", 50))
    before = await bench.read_memory()
    phase = await bench.measure(Batch("flood", count))
    rested = await bench.rest(rest)
    memory = Memory(before, await bench.read_memory())
    return phase, memory, rested, await bench.restart(rest)


def _observed(name: str, before: Scrape | None, after: Scrape | None) -> Histogram:
    if before is None or after is None:
        return Histogram(0, 0, {})
    return after.histogram(name).since(before.histogram(name))


def _written(before: Scrape | None, after: Scrape | None) -> dict[str, int] | None:
    if before is None or after is None:
        return None
    return dict(
        after.by_label(CONTROLLER_WRITES, "verb_resource") - before.by_label(CONTROLLER_WRITES, "verb_resource")
    )
