"""Create the simulated nodes of a cluster: evenly split over racks, racks over blocks, blocks over zones."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.cluster.api import Api, ApiError
from bench.cluster.spec import Spec
from serried.api.names import write_time

ZONE = "topology.kubernetes.io/zone"
BLOCK = "topology.serried.dev/block"
RACK = "topology.serried.dev/rack"
_THREADS = 8
_CONFLICT = 409


def node_name(index: int) -> str:
    """Return the name of a node: `node-00000` and so on."""
    return f"node-{index:05d}"


def node_labels(spec: Spec, index: int) -> dict[str, str]:
    """Return the labels of one node."""
    rack = index * spec.racks // spec.nodes
    block = rack * spec.blocks // spec.racks
    return {
        "kubernetes.io/hostname": node_name(index),
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        ZONE: f"zone-{block * spec.zones // spec.blocks}",
        BLOCK: f"block-{block}",
        RACK: f"rack-{rack}",
        "type": "kwok",
    }


def node_object(spec: Spec, index: int) -> dict[str, Any]:
    """Return one node as its kubelet would register it, with the condition Ready."""
    room = {"cpu": spec.node_cpu, "memory": spec.node_memory, "pods": str(spec.node_pods)}
    now = write_time(time.time())
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node_name(index),
            "labels": node_labels(spec, index),
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "status": {
            "capacity": room,
            "allocatable": room,
            "phase": "Running",
            "addresses": [{"type": "Hostname", "address": node_name(index)}],
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "kubelet is posting ready status",
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }
            ],
            "nodeInfo": {"kubeletVersion": f"v{spec.kubernetes}", "operatingSystem": "linux", "architecture": "amd64"}
            | dict.fromkeys(_UNKNOWN_NODE_INFO, ""),
        },
    }


_UNKNOWN_NODE_INFO = (
    "machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeProxyVersion"
)  # fmt: skip


def create_nodes(api: Api, spec: Spec) -> None:
    """Create all nodes. Existing ones are not changed."""
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda part: _create_part(api, spec, part), _parts(spec.nodes)))


def _parts(count: int) -> list[Sequence[int]]:
    return [range(start, count, _THREADS) for start in range(min(_THREADS, count))]


def _create_part(api: Api, spec: Spec, part: Sequence[int]) -> None:
    for index in part:
        _create(api, node_object(spec, index))


def _create(api: Api, node: dict[str, Any]) -> None:
    try:
        api.post("/api/v1/nodes", node)
    except ApiError as error:
        if error.status != _CONFLICT:
            raise


def ready_nodes(api: Api) -> int:
    """Count the nodes that are ready and have no taints."""
    return sum(1 for node in api.get("/api/v1/nodes")["items"] if _is_ready(node))


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return ready and not node["spec"].get("taints")
