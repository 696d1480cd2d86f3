"""Reads from the API server the facts about Kueue and autoscalers that the checks need.

`read_autoscalers` and `read_kueue` find them; in a cluster with neither, both together take three requests. If one is
found, `read_group_demands` reads which topology keys PodGroups and Workloads require.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import yaml

from cli.check.autoscalers import (
    KARPENTER_GROUP,
    STATUS_NAME,
    STATUS_NAMESPACE,
    Autoscalers,
    read_pool_labels,
)
from cli.check.demands import (
    TopologyDemand,
    decode_group_demands,
    decode_job_demands,
    decode_workload_demands,
)
from cli.check.kueue import (
    CONFIG_KEY,
    CONFIG_NAME,
    CONFIG_NAMESPACE,
    GROUP,
    LABELS,
    MANAGER,
    Configuration,
    Kueue,
    Manager,
    Outsider,
    decode_configuration,
    decode_flavors,
    decode_local_queue,
    decode_manager,
    decode_outsider,
    decode_quotas,
    names_topology,
)
from cli.check.observed import Area
from serried.api.level import read_versions
from serried.kube.client import ApiClient
from serried.kube.errors import NotFound
from serried.kube.wire import CONFIG_MAPS, JOBS, JSON, PODS, Resource, Selection, pod_groups, workloads

Recording = Callable[[Area, str], AbstractAsyncContextManager[None]]
"""Returns an async context manager that records a failure in its block as a fact that could not be read.

The arguments are the area and the name of the fact. The block's exception does not leave it, but if the API server does
not answer, CommandError is raised.
"""

_DEPLOYMENTS = Resource("apps", "v1", "deployments")
_BOUND_AND_UNFINISHED = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""The field selector of pods that use resources of a node: bound to it and not finished."""


async def read_autoscalers(client: ApiClient, recording: Recording) -> Autoscalers:
    """Return which autoscalers the cluster has.

    If NodePools cannot be read, ``recording`` records that for a finding, and it is no error here. Raises ApiError if
    another request fails.
    """
    version = await _find_version(client, KARPENTER_GROUP)
    found = Autoscalers(bool(version), await _has_status(client), None if version else frozenset())
    if version:
        async with recording(Area.CLUSTER, "Karpenter's NodePools"):
            pools = await client.list_all(Resource(KARPENTER_GROUP, version, "nodepools", namespaced=False))
            found = replace(found, pool_labels=frozenset().union(*map(read_pool_labels, pools)))
    return found


async def _has_status(client: ApiClient) -> bool:
    try:
        await client.get(CONFIG_MAPS, STATUS_NAMESPACE, STATUS_NAME)
    except NotFound:
        return False
    return True


async def read_kueue(client: ApiClient, recording: Recording) -> Kueue | None:
    """Return the facts about Kueue, None if the API server does not serve its API.

    If a part cannot be read, ``recording`` records that for a finding, and the part stays empty. Raises ApiError if the
    first request fails, which asks for Kueue's API.
    """
    version = await _find_version(client, GROUP)
    if not version:
        return None
    kueue = Kueue()
    async with recording(Area.CLUSTER, "Kueue's configuration"):
        kueue = replace(kueue, configuration=await _read_configuration(client))
    async with recording(Area.CLUSTER, "Kueue's queues and flavors"):
        kueue = await _read_queues(client, version, kueue)
    if kueue.topology_flavors:
        async with recording(Area.CLUSTER, "pods on nodes of Kueue's Topologies"):
            kueue = replace(kueue, outsiders=await _read_outsiders(client))
        async with recording(Area.CLUSTER, "Jobs that Kueue places by a Topology"):
            kueue = replace(kueue, demands=await _read_job_demands(client, kueue))
    return kueue


async def _find_version(client: ApiClient, group: str) -> str:
    """Return the API server's preferred version of an API group, "" if the group is not served."""
    try:
        return next(iter(read_versions(await client.read(f"/apis/{group}"))), "")
    except NotFound:
        return ""


async def _read_configuration(client: ApiClient) -> Configuration:
    """Return the settings in the ConfigMap of Kueue's manager.

    Raises ApiError, and ValueError or YAMLError if there is no valid configuration.
    """
    selection = Selection(labels=LABELS)
    deployments = [each async for each in client.items(_DEPLOYMENTS, selection)]
    managers = [each for each in deployments if each["metadata"]["name"].endswith(MANAGER)]
    manager = decode_manager(managers[0]) if managers else Manager()
    found = await _find_config_map(client)
    metadata = found["metadata"]
    source = f"ConfigMap {metadata['namespace']}/{metadata['name']}"
    return decode_configuration(source, yaml.safe_load(found["data"][CONFIG_KEY]), manager)


async def _find_config_map(client: ApiClient) -> JSON:
    """Return the ConfigMap with Kueue's configuration.

    Try its usual name first, then all ConfigMaps with Kueue's label. Raises ApiError, and ValueError if none has it.
    """
    try:
        found = await client.get(CONFIG_MAPS, CONFIG_NAMESPACE, CONFIG_NAME)
        if CONFIG_KEY in (found.get("data") or {}):
            return found
    except NotFound:
        pass
    async for each in client.items(CONFIG_MAPS, Selection(labels=LABELS)):
        if CONFIG_KEY in (each.get("data") or {}):
            return each
    raise ValueError(f"no ConfigMap {CONFIG_NAMESPACE}/{CONFIG_NAME}, nor one with {LABELS}, has {CONFIG_KEY}")


async def _read_queues(client: ApiClient, version: str, kueue: Kueue) -> Kueue:
    async def list_all(plural: str, *, namespaced: bool = False) -> list[JSON]:
        return await client.list_all(Resource(GROUP, version, plural, namespaced=namespaced))

    flavors = await list_all("resourceflavors")
    topologies = await list_all("topologies") if any(map(names_topology, flavors)) else []
    quotas = tuple(quota for each in await list_all("clusterqueues") for quota in decode_quotas(each))
    kueue = replace(kueue, flavors=decode_flavors(flavors, topologies), quotas=quotas)
    if not kueue.topology_flavors:
        return kueue
    local_queues = await list_all("localqueues", namespaced=True)
    return replace(kueue, local_queues=tuple(map(decode_local_queue, local_queues)))


async def _read_outsiders(client: ApiClient) -> tuple[Outsider, ...]:
    found = [decode_outsider(each) async for each in client.items(PODS, Selection(fields=_BOUND_AND_UNFINISHED))]
    return tuple(each for each in found if each is not None)


async def _read_job_demands(client: ApiClient, kueue: Kueue) -> tuple[TopologyDemand, ...]:
    """Return the topology keys that Jobs require, in the namespaces of LocalQueues for which Kueue chooses nodes."""
    found: list[TopologyDemand] = []
    for namespace in sorted({each.namespace for each in kueue.topology_queues}):
        async for each in client.items(JOBS, Selection(namespace=namespace)):
            found += decode_job_demands(each)
    return tuple(found)


async def read_group_demands(client: ApiClient, group: str, version: str) -> tuple[TopologyDemand, ...]:
    """Return the topology keys that all PodGroups and Workloads of an API group and version require.

    Raises ApiError.
    """
    found: list[TopologyDemand] = []
    async for each in client.items(pod_groups(group, version), Selection()):
        found += decode_group_demands(each)
    async for each in client.items(workloads(group, version), Selection()):
        found += decode_workload_demands(each)
    return tuple(found)
