"""PodDisruptionBudgets (`decode_budget`), and which evictions the API server rejects because of them.

The extender asks `limits_eviction` and `uses_allowance` about a possible victim.
"""

from dataclasses import dataclass

from serried.api.names import (
    Key,
    Malformed,
    Raw,
    decode_or_malformed,
    read_int,
    read_key,
    read_map,
    read_text,
    read_version,
)
from serried.api.pod import Pod
from serried.api.selectors import Labels, Requirement, read_label_selector, selects


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A policy/v1 PodDisruptionBudget."""

    key: Key

    selector: tuple[Requirement, ...] | None
    """The selector of its pods in its namespace: () selects all of them, None selects none."""

    allowed: int
    """The number of evictions that the API server will allow now. 0 while the status is older than the spec."""

    disrupted: frozenset[str] = frozenset()
    """The names of pods whose eviction the API server has allowed already (``disruptedPods``).

    Evicting them again does not count.
    """

    version: str = ""

    frees_unready: bool = False
    """True if the API server evicts a pod that is not Ready without decreasing ``allowed``.

    It does so with unhealthyPodEvictionPolicy AlwaysAllow, and else while enough other pods are Ready.
    """


def decode_budget(obj: object) -> DisruptionBudget | Malformed:
    """Decode a PodDisruptionBudget; the name is required."""
    return decode_or_malformed("PodDisruptionBudget", _decode, obj)


def limits_eviction(budget: DisruptionBudget, pod: Pod) -> bool:
    """Return whether the API server checks this budget when the pod is evicted.

    If it checks two or more budgets for a pod, it never evicts the pod. The rules are those of the API server
    (pkg/registry/core/pod/storage/eviction.go): an empty selector selects every pod of the namespace, although for
    kube-scheduler it selects none. No budget is checked for a pod that has not started, or if the budget's status says
    that its eviction was allowed already.
    """
    return not pod.unstarted and pod.name not in budget.disrupted and selects_pod(budget, pod.namespace, pod.labels)


def uses_allowance(budget: DisruptionBudget, pod: Pod) -> bool:
    """Return whether the eviction of this pod uses up one of the evictions that the budget allows.

    That is so for each pod for which the API server checks the budget (`limits_eviction`), with one exception: a pod
    that is not Ready uses up none if ``budget.frees_unready`` is True, for instance by the policy AlwaysAllow.
    """
    return limits_eviction(budget, pod) and (pod.ready or not budget.frees_unready)


def selects_pod(budget: DisruptionBudget, namespace: str, labels: Labels) -> bool:
    """Return whether a budget is for a pod with this namespace and these labels, by namespace and selector."""
    if namespace != budget.key.namespace or budget.selector is None:
        return False
    return selects(budget.selector, labels)


def _decode(obj: Raw) -> DisruptionBudget:
    spec, status = read_map(obj, "spec"), read_map(obj, "status")
    stale = read_int(status, "observedGeneration") < read_int(read_map(obj, "metadata"), "generation")
    return DisruptionBudget(
        key=read_key(obj),
        selector=read_label_selector(spec, "selector"),
        allowed=0 if stale else max(0, read_int(status, "disruptionsAllowed")),
        disrupted=frozenset(read_map(status, "disruptedPods")),
        version=read_version(obj),
        frees_unready=_frees_unready(spec, status),
    )


def _frees_unready(spec: Raw, status: Raw) -> bool:
    """Return whether the API server evicts a pod that is not Ready without using up an eviction of the budget.

    ``spec`` and ``status`` are those of the budget. The status counts even if it is outdated, as upstream. The result
    becomes `DisruptionBudget.frees_unready`.
    """
    if read_text(spec, "unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    return read_int(status, "currentHealthy") >= read_int(status, "desiredHealthy") > 0
