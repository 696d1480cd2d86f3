"""PodDisruptionBudgets, as far as evictions need them.

PodDisruptionBudgets of ``policy/v1``.
"""

from dataclasses import dataclass

from serried.api.names import Key, Malformed, Raw, attempt, read_int, read_key, read_map, read_text, read_version
from serried.api.pod import Pod
from serried.api.selectors import Labels, Requirement, read_label_selector, selects


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """A policy/v1 PodDisruptionBudget."""

    key: Key

    selector: tuple[Requirement, ...] | None
    """Which pods of its namespace it counts: () for all of them, None for none."""

    allowed: int
    """How many more evictions the API server lets pass. 0 while the status is older than the spec: it refuses then."""

    disrupted: frozenset[str] = frozenset()
    """The names of pods whose evictions it has let pass, and which it does not count any more."""

    version: str = ""

    frees_unready: bool = False
    """Whether pods that are not Ready may go without it, and are not counted: by its policy, or as enough are Ready."""


def decode_budget(obj: object) -> DisruptionBudget | Malformed:
    """A PodDisruptionBudget from its JSON object; the name is required."""
    return attempt("PodDisruptionBudget", _decode, obj)


def is_asked(budget: DisruptionBudget, pod: Pod) -> bool:
    """Whether the API server looks at a budget when a pod is evicted; for a pod with two of them it refuses.

    By its own rule (pkg/registry/core/pod/storage/eviction.go), for which an empty selector means every pod of the
    namespace. kube-scheduler takes it for none, and evicts past the budget. A pod that has not started goes without
    any budget.
    """
    return not pod.unstarted and pod.name not in budget.disrupted and selects_pod(budget, pod.namespace, pod.labels)


def counts(budget: DisruptionBudget, pod: Pod) -> bool:
    """Whether the eviction of a pod is one of those that a budget has to allow."""
    return is_asked(budget, pod) and (pod.ready or not budget.frees_unready)


def selects_pod(budget: DisruptionBudget, namespace: str, labels: Labels) -> bool:
    """Whether a budget is one of a pod's, whether or not its eviction was let pass already."""
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
    """The API server goes by the status here even where that is older than the spec."""
    if read_text(spec, "unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    return read_int(status, "currentHealthy") >= read_int(status, "desiredHealthy") > 0
