"""A placer that creates gangs on a real control plane, and reads from the pods where the scheduler placed them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from bench.cluster.nodes import RACK
from bench.cluster.progress import Report
from bench.contenders import Contender
from bench.load.objects import NAMESPACE, POD_GROUPS, RUN, Load, group_name
from bench.load.objects import Gang as LoadedGang
from bench.load.run import IN_FLIGHT, StuckError, run_load
from bench.placement.ground import Ground
from bench.placement.scenario import Filler, Gang
from serried.api.node import Node, decode_node
from serried.kube.client import ApiClient
from serried.kube.errors import NotFound
from serried.kube.wire import JSON, NODES, PODS

_PAUSE = 0.1
_SETTLE_SECONDS = 2.0
"""Pause after pods were created or deleted, until the schedulers have observed it."""

_DELETE_TIMEOUT = 120.0
_POD_GROUPS = POD_GROUPS["native"]

Item = TypeVar("Item")


class Live:
    """The placer for one contender on one cluster.

    A gang that is not bound within ``patience`` seconds counts as not placed, and is deleted.
    """

    def __init__(self, client: ApiClient, contender: Contender, patience: float, report: Report) -> None:
        self.broken: list[str] = []
        """The gangs of which only a part was bound in time."""

        self._client, self._contender, self._patience, self._report = client, contender, patience, report

    async def read_nodes(self) -> list[Node]:
        """Return the cluster's nodes."""
        nodes = [decode_node(raw) for raw in await self._client.list_all(NODES)]
        return [node for node in nodes if isinstance(node, Node)]

    async def fill(self, filler: Iterable[Filler]) -> None:
        """Create the filler pods with their node names, so that no scheduler handles them."""
        await for_each([_filler_object(each) for each in filler], self._create_pod)
        await asyncio.sleep(_SETTLE_SECONDS)

    async def place(self, gang: Gang, ground: Ground) -> Mapping[str, str]:
        """Create the gang and wait until it is bound. Return the node by pod name; empty if it was not placed."""
        del ground
        load = _load(gang, self._contender.scheduler)
        await run_load(self._client, load, {}, self._patience)
        hosts = {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in await self._read(load)}
        if all(hosts.values()) and len(hosts) == gang.size:
            return hosts
        bound = sum(map(bool, hosts.values()))
        self._report(f"  {gang.name}: {bound} of {gang.size} members were bound within {self._patience:.0f} s")
        if bound:
            self.broken.append(gang.name)
        await self.remove(list(hosts))
        await self._client.delete(_POD_GROUPS, NAMESPACE, group_name(load, load.gangs[0]))
        return {}

    async def remove(self, pods: Sequence[str]) -> None:
        """Delete pods, and wait until they are gone and the schedulers have observed it. Raise StuckError."""
        await for_each(pods, self._delete_pod)
        await asyncio.sleep(_SETTLE_SECONDS)

    async def _read(self, load: Load) -> list[JSON]:
        page = await self._client.read(PODS.path(NAMESPACE), {"labelSelector": f"{RUN}={load.run}"})
        pods: list[JSON] = page["items"]
        return pods

    async def _create_pod(self, pod: JSON) -> None:
        await self._client.create(PODS, NAMESPACE, pod)

    async def _delete_pod(self, name: str) -> None:
        deadline = time.monotonic() + _DELETE_TIMEOUT
        while time.monotonic() < deadline:
            try:
                await self._client.delete(PODS, NAMESPACE, name)
            except NotFound:
                return
            await asyncio.sleep(_PAUSE)
        raise StuckError(f"pod {name} is still there {_DELETE_TIMEOUT:.0f} s after its deletion")


async def for_each(items: Iterable[Item], act: Callable[[Item], Awaitable[None]]) -> None:
    """Call ``act`` for each item, for as many at a time as the client has connections."""
    left = iter(items)
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(_act_on_all(left, act))


async def _act_on_all(items: Iterator[Item], act: Callable[[Item], Awaitable[None]]) -> None:
    for item in items:
        await act(item)


def _load(gang: Gang, scheduler: str) -> Load:
    """Return a load with one gang. The run has the gang's name, so its label selects only this gang."""
    return Load(gang.name, scheduler, gangs=(LoadedGang("gang", gang.size, RACK),), cpu=str(gang.cpu))


def _filler_object(filler: Filler) -> JSON:
    return {
        "apiVersion": PODS.api_version,
        "kind": "Pod",
        "metadata": {"name": filler.name, "namespace": NAMESPACE, "labels": {RUN: "filler"}},
        "spec": {
            "nodeName": filler.node,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": str(filler.cpu)}}}],
        },
    }
