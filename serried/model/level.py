"""Where Workloads and PodGroups live."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ApiLevel:
    """An API group and version that serves Workloads and PodGroups; ``name`` is ``native`` or ``fallback``."""

    name: str
    group: str
    version: str


NATIVE = ApiLevel("native", "scheduling.k8s.io", "v1beta1")
"""The cluster's own API (feature gate GenericWorkload)."""

FALLBACK = ApiLevel("fallback", "scheduling.serried.dev", "v1beta1")
"""Serried's CRDs of the same shape. Reservations live here at either level."""
