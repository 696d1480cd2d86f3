"""Create the APIs and the ConfigMap of Karpenter and Cluster Autoscaler without running either."""

from typing import Any

from bench.cluster import Cluster
from bench.cluster.api import ApiError
from tests.support.cluster_stage import eventually

_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps"


def _crd(group: str, plural: str, kind: str, scope: str) -> dict[str, Any]:
    """Return a CRD that accepts any fields."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": scope, "names": names, "versions": [version]},
    }


def _install(cluster: Cluster, crd: dict[str, Any]) -> str:
    name = crd["metadata"]["name"]
    cluster.api.post(_CRDS, crd)
    cluster.kubectl("wait", "crd", name, "--for=condition=Established", "--timeout=30s")
    eventually(f"objects of {name}", lambda: is_served(cluster, crd["spec"]["group"], crd["spec"]["names"]["plural"]))
    return f"{_CRDS}/{name}"


def is_served(cluster: Cluster, group: str, plural: str) -> bool:
    """Return whether objects of a CRD can be listed. The API server refuses that in the CRD's first seconds."""
    try:
        cluster.api.get(f"/apis/{group}/v1/{plural}")
    except ApiError:
        return False
    return True


def create_karpenter_objects(cluster: Cluster) -> list[str]:
    """Create a NodePool without limits. Returns the paths of the objects to delete at the end."""
    path = _install(cluster, _crd("karpenter.sh", "nodepools", "NodePool", "Cluster"))
    pool = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "general"}, "spec": {}}
    cluster.api.post("/apis/karpenter.sh/v1/nodepools", pool)
    return [path]


def create_cluster_autoscaler_objects(cluster: Cluster) -> list[str]:
    """Create Cluster Autoscaler's status and serve ProvisioningRequests. Returns paths as above."""
    crd = _crd("autoscaling.x-k8s.io", "provisioningrequests", "ProvisioningRequest", "Namespaced")
    path = _install(cluster, crd)
    name = "cluster-autoscaler-status"
    cluster.api.post(_CONFIG_MAPS, {"metadata": {"name": name}, "data": {"status": "autoscalerStatus: Running"}})
    return [path, f"{_CONFIG_MAPS}/{name}"]
