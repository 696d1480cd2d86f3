"""Autoscalers as the extender sees them in a world of tests."""

from typing import Any

from serried.api.names import Key
from tests.support.extender_harness import Harness

ZONE = "topology.kubernetes.io/zone"


async def add_karpenter(world: Harness, *pools: dict[str, Any]) -> None:
    """Let the fake API server serve Karpenter's API, with these NodePools, and let the extender detect it.

    Without ``pools`` there is one NodePool that allows the zones a and b.
    """
    world.api.api_groups.add("karpenter.sh")
    set_pools(world, *(pools or (node_pool(),)))
    await world.core.autoscalers.refresh()


def set_pools(world: Harness, *pools: dict[str, Any]) -> None:
    """Replace all NodePools of the fake API server."""
    world.api.owners["nodepools"] = {Key("", pool["metadata"]["name"]): pool for pool in pools}


def node_pool(name: str = "default", zones: tuple[str, ...] = ("a", "b"), **spec: Any) -> dict[str, Any]:
    """Return a NodePool that allows nodes in these zones. ``spec`` are more fields of its spec."""
    requirements = [{"key": ZONE, "operator": "In", "values": list(zones)}]
    return {"metadata": {"name": name}, "spec": {"template": {"spec": {"requirements": requirements}}, **spec}}


async def add_cluster_autoscaler(world: Harness) -> None:
    """Create Cluster Autoscaler's status ConfigMap, serve ProvisioningRequests, and let the extender detect both."""
    world.api.api_groups.add("autoscaling.x-k8s.io")
    world.api.owners["configmaps"][Key("kube-system", "cluster-autoscaler-status")] = {}
    await world.core.autoscalers.refresh()


async def remove_autoscalers(world: Harness) -> None:
    """Remove all autoscalers from the fake API server, and let the extender notice that."""
    world.api.api_groups.clear()
    world.api.owners["configmaps"].clear()
    await world.core.autoscalers.refresh()
