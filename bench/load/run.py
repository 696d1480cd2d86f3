"""Run one load: create its objects, watch until all pods are bound, return the figures; and delete the objects.

The entry is `run_load`.
"""

import asyncio
import itertools
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from bench.cluster import ClusterError
from bench.cluster.cluster import down
from bench.load.figures import Figures, Span, compute_figures
from bench.load.objects import (
    AT_ONCE,
    BINDINGS,
    NAMESPACE,
    POD_GROUPS,
    RUN,
    WORKLOADS,
    Link,
    Load,
    filler_objects,
    gang_objects,
    leading_objects,
    plain_objects,
    pod_objects,
)
from bench.load.watch import Watch
from serried.kube.auth import load_credentials
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, NotFound, Unavailable
from serried.kube.reflector import Reflector
from serried.kube.wire import JOBS, JSON, NODES, PODS, RESERVATIONS, Resource, Selection

IN_FLIGHT = 32
"""Number of requests that are in flight at the same time."""

_BINDINGS_IN_FLIGHT = 12
_DELETE_TIMEOUT = 180.0
_DELETE_ATTEMPTS = 5
_DELETE_POLL = 0.1
_BOUND_POLL = 0.01
_LONGEST_STOP = 9.0


class StuckError(Exception):
    """A run cannot be made, or its objects cannot be deleted. The message says why."""


def measure_all(measure: Callable[[], None], clusters: Iterable[str]) -> int:
    """Call ``measure``, and remove the clusters in any case. Return the exit code, after printing an error if any."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        measure()
    except (ClusterError, ApiError, StuckError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        for cluster in clusters:
            down(cluster)
    return 0


@asynccontextmanager
async def open_client(kubeconfig: Path) -> AsyncIterator[ApiClient]:
    """Open a client with the credentials of the kubeconfig, while the body runs."""
    credentials = load_credentials(str(kubeconfig))
    async with ApiClient(credentials, component="bench", connections=IN_FLIGHT + 4, timeout=60.0) as client:
        yield client


async def read_domains(client: ApiClient, key: str) -> dict[str, str]:
    """Return the value of a node label by node name. Nodes without the label are left out."""
    nodes = (node["metadata"] for node in await client.list_all(NODES))
    return {node["name"]: node["labels"][key] for node in nodes if key in node.get("labels", {})}


async def run_load(
    client: ApiClient,
    load: Load,
    domains: Mapping[str, str],
    seconds: float,
    paused: Sequence[int] = (),
    begin: Callable[[], None] = lambda: None,
) -> Figures:
    """Create the load, wait until all pods are bound, but at most ``seconds``, and return the figures.

    The processes ``paused`` (pids) are stopped by SIGSTOP until all pods exist. Then the time starts when they
    continue, and every pod counts as created at that moment; likewise if the load generator itself sends the Bindings.
    ``begin`` is called at the start of the time. Raise StuckError if creating the pods took so long that a stopped
    scheduler has lost its Lease.
    """
    watch = Watch(load.pods, time.monotonic)
    reflector = Reflector(client, PODS, watch, selection=Selection(NAMESPACE, labels=f"{RUN}={load.run}"))
    following = asyncio.create_task(reflector.run())
    try:
        await reflector.listed.wait()
        start = time.monotonic()
        begin()
        with _stopped(paused), suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _create_all(client, load, watch)
        created = time.monotonic()
        if paused:
            _require_short_stop(created - start)
        if paused or load.scheduler == BINDINGS:
            start = time.monotonic()
            begin()
            watch.restart()
        if load.scheduler == BINDINGS:
            await _bind_all(client, load, sorted(domains))
        with suppress(TimeoutError):
            await asyncio.wait_for(watch.complete.wait(), seconds)
        return compute_figures(watch.lives, load.gangs, domains, Span(start, max(start, created), time.monotonic()))
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@contextmanager
def _stopped(pids: Sequence[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _require_short_stop(seconds: float) -> None:
    # kube-scheduler ends if it could not renew its Lease for 10 s.
    if seconds > _LONGEST_STOP:
        raise StuckError(
            f"creating the pods took {seconds:.0f} s, the schedulers may stand still for {_LONGEST_STOP:g}"
        )


async def _create_all(client: ApiClient, load: Load, watch: Watch) -> None:
    leading = leading_objects(load)
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(_create_leading(client, leading))
    if load.pace == AT_ONCE:
        await _create_at_once(client, pod_objects(load), watch)
        return
    gangs = (gang_objects(load, gang) for gang in load.gangs)
    async with asyncio.TaskGroup() as group:
        group.create_task(_create_steadily(client, ([pod] for pod in plain_objects(load)), watch, load.pace.plain))
        if load.pace.idle:
            group.create_task(_create_in_turn(client, load, watch))
        elif load.pace.gangs:
            group.create_task(_create_steadily(client, gangs, watch, load.pace.gangs))
        else:
            group.create_task(_create_at_once(client, itertools.chain.from_iterable(gangs), watch))


async def _create_at_once(client: ApiClient, pods: Iterator[tuple[str, JSON]], watch: Watch) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(_create_pods(client, pods, watch))


async def _create_steadily(
    client: ApiClient, batches: Iterable[Iterable[tuple[str, JSON]]], watch: Watch, rate: float
) -> None:
    """Create ``rate`` batches per second, the pods of each at the same time, even if earlier creates are pending."""
    start = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number, batch in enumerate(batches):
            await asyncio.sleep(start + number / rate - time.monotonic())
            for pod in batch:
                group.create_task(_create_pods(client, iter([pod]), watch))


async def _create_in_turn(client: ApiClient, load: Load, watch: Watch) -> None:
    for number, gang in enumerate(load.gangs):
        while watch.bound < sum(before.size for before in load.gangs[:number]):  # noqa: ASYNC110 - changes with events
            await asyncio.sleep(_BOUND_POLL)
        await asyncio.sleep(load.pace.idle)
        await _create_at_once(client, gang_objects(load, gang), watch)


async def _bind_all(client: ApiClient, load: Load, nodes: Sequence[str]) -> None:
    """Bind all pods to the nodes in turn, without a scheduler. No scheduler can be faster."""
    pairs = zip((pod["metadata"]["name"] for _, pod in pod_objects(load)), itertools.cycle(nodes), strict=False)
    async with asyncio.TaskGroup() as group:
        for _ in range(_BINDINGS_IN_FLIGHT):
            group.create_task(_bind(client, pairs))


async def _bind(client: ApiClient, pairs: Iterator[tuple[str, str]]) -> None:
    for pod, node in pairs:
        await client.bind(NAMESPACE, pod, "", node)


async def _create_leading(client: ApiClient, objects: Iterator[tuple[Resource, JSON]]) -> None:
    for resource, obj in objects:
        await client.create(resource, NAMESPACE, obj)


async def _create_pods(client: ApiClient, pods: Iterator[tuple[str, JSON]], watch: Watch) -> None:
    for gang, pod in pods:
        watch.created(pod["metadata"]["name"], gang)
        await client.create(PODS, NAMESPACE, pod)


async def fill(client: ApiClient, percent: int) -> int:
    """Create bound pods on all nodes that use ``percent`` of all CPUs, a random part of each node.

    Return the number of nodes. `clear` does not delete these pods.
    """
    rooms = {
        node["metadata"]["name"]: int(node["status"]["allocatable"]["cpu"]) for node in await client.list_all(NODES)
    }
    pods = filler_objects(rooms, percent)
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(_create_leading(client, pods))
    return len(rooms)


async def clear(client: ApiClient, link: Link) -> None:
    """Delete the objects of all runs with this link, and wait until none is left. Raise StuckError after 180 s."""
    groups = [POD_GROUPS[link], WORKLOADS[link]] if link in POD_GROUPS else [*POD_GROUPS.values(), *WORKLOADS.values()]
    deadline = time.monotonic() + _DELETE_TIMEOUT
    for resource in (JOBS, PODS, *groups):
        await _delete_all(client, resource)
    for resource in (PODS, JOBS, *groups, RESERVATIONS):
        while await _is_left(client, resource):
            if time.monotonic() > deadline:
                raise StuckError(f"{resource} are still there {_DELETE_TIMEOUT:.0f} s after their deletion")
            await asyncio.sleep(_DELETE_POLL)


async def _delete_all(client: ApiClient, resource: Resource) -> None:
    params = {"gracePeriodSeconds": "0", "propagationPolicy": "Background", "labelSelector": RUN}
    for _ in range(_DELETE_ATTEMPTS):
        try:
            await client.request("DELETE", resource.path(NAMESPACE), params=params, timeout=_DELETE_TIMEOUT)
        except Unavailable:
            continue  # a busy API server cannot delete a thousand pods within its timeout of 60 s, but some of them
        except NotFound:
            return
        return


async def _is_left(client: ApiClient, resource: Resource) -> bool:
    # Reservations have no label of a run. The pods of `fill` have none either, so they are not counted.
    selector = {} if resource == RESERVATIONS else {"labelSelector": RUN}
    try:
        page = await client.read(resource.path(), {"limit": "1", **selector})
    except NotFound:
        return False
    return bool(page["items"])
