"""CRDs of Kueue (Topology) and Grove (ClusterTopologyBinding), from which Serried reads topology keys."""

from bench.cluster import Cluster

_KINDS = (
    ("kueue.x-k8s.io", "v1beta2", "topologies", "Topology"),
    ("grove.io", "v1alpha1", "clustertopologybindings", "ClusterTopologyBinding"),
)

TOPOLOGIES = "/apis/kueue.x-k8s.io/v1beta2/topologies"
BINDINGS = "/apis/grove.io/v1alpha1/clustertopologybindings"
FOLLOWED = ("topologies.kueue.x-k8s.io", "clustertopologybindings.grove.io")
"""The names (plural and API group) by which the extender's pages report the two kinds."""


def install(cluster: Cluster) -> None:
    """Install both CRDs, without any schema, and wait until they are served."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for group, version, plural, kind in _KINDS:
        served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        crd = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {
                "group": group,
                "scope": "Cluster",
                "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
                "versions": [served],
            },
        }
        cluster.api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        cluster.kubectl("wait", "crd", f"{plural}.{group}", "--for=condition=Established", "--timeout=30s")
