"""Objects of which no pod comes, such as the Services of a chart: a question may leave them out.

Kinds are known with their API group: a Service of Knative makes pods. What is not known here may make some.
"""

from collections.abc import Iterable
from typing import Any

_CORE = (
    "ConfigMap",
    "Endpoints",
    "LimitRange",
    "Namespace",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "ResourceQuota",
    "Secret",
    "Service",
    "ServiceAccount",
)

_KINDS = {
    *(("", kind) for kind in _CORE),
    ("autoscaling", "HorizontalPodAutoscaler"),
    ("cert-manager.io", "Certificate"),
    ("cert-manager.io", "Issuer"),
    ("monitoring.coreos.com", "PodMonitor"),
    ("monitoring.coreos.com", "PrometheusRule"),
    ("monitoring.coreos.com", "ServiceMonitor"),
    ("scheduling.k8s.io", "PriorityClass"),
}

_GROUPS = {
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "gateway.networking.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "storage.k8s.io",
}
"""Groups none of whose kinds makes pods."""


def sift(objects: Iterable[tuple[str, Any]]) -> tuple[list[tuple[str, Any]], list[str]]:
    """The objects of which pods may come, each with where it stands, and the kinds and names of the others."""
    kept: list[tuple[str, Any]] = []
    skipped: list[str] = []
    for place, raw in objects:
        if _makes_no_pods(raw):
            skipped.append(f"{raw['kind']} {_find_name(raw)}".rstrip())
        else:
            kept.append((place, raw))
    return kept, skipped


def _makes_no_pods(raw: Any) -> bool:
    if not isinstance(raw, dict) or not isinstance(raw.get("kind"), str):
        return False
    version = raw.get("apiVersion")
    if not isinstance(version, str) or not version:
        return False
    group = version.rpartition("/")[0]
    return group in _GROUPS or (group, raw["kind"]) in _KINDS


def _find_name(raw: dict[str, Any]) -> str:
    metadata = raw.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    return str(metadata.get("name") or metadata.get("generateName") or "")
