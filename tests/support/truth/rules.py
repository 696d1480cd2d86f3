"""kube-scheduler's filters for one pod, written again in simple Python. Shares no code with the planner.

The rules are those of the plugins of the same names in 1.37.1 (pkg/scheduler/framework/plugins), with default feature
gates. 1.38 differs in one rule: `Cluster.empty_counts`. Objects are JSON as the API server stores them: with defaults,
and with matchLabelKeys merged into the selector beside them (pkg/registry/core/pod/strategy.go,
applyLabelKeysToLabelSelector). The entry is `list_feasible`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

Raw = dict[str, Any]
Labels = Mapping[str, str]
Amounts = dict[str, Fraction]

_UNITS = {
    "m": Fraction(1, 1000),
    "k": Fraction(1000),
    "Ki": Fraction(1 << 10),
    "Mi": Fraction(1 << 20),
    "Gi": Fraction(1 << 30),
}
_REPELLING = ("NoSchedule", "NoExecute")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True)
class Cluster:
    """The objects that kube-scheduler sees."""

    nodes: Sequence[Raw]

    pods: Sequence[Raw]
    """The pods with a node, including those that are being deleted."""

    namespaces: Mapping[str, Labels]
    """The labels of each namespace."""

    storage: Sequence[Raw] = ()
    """Objects about volumes and devices. The rules of this module ignore them."""

    empty_counts: bool = False
    """True if a spread constraint with an empty selector counts all pods of its namespace, as from 1.38 on."""

    def joined_by(self, pod: Raw, node: str) -> "Cluster":
        """Return the cluster with one more pod, bound to a node."""
        placed = {**pod, "spec": {**pod["spec"], "nodeName": node}}
        return replace(self, pods=[*self.pods, placed])


def list_feasible(cluster: Cluster, pod: Raw) -> frozenset[str]:
    """Return the names of the nodes that pass all filters for the pod."""
    view = _View(cluster)
    return frozenset(node["metadata"]["name"] for node in cluster.nodes if _passes(view, pod, node))


class _View:
    """A cluster with its pods by node. Pods on nodes that do not exist are ignored (internal/cache/snapshot)."""

    def __init__(self, cluster: Cluster) -> None:
        self.namespaces = cluster.namespaces
        self.nodes = cluster.nodes
        self.empty_counts = cluster.empty_counts
        self.pods: dict[str, list[Raw]] = {node["metadata"]["name"]: [] for node in cluster.nodes}
        for pod in cluster.pods:
            self.pods.get(pod["spec"]["nodeName"], []).append(pod)

    def on(self, node: Raw) -> list[Raw]:
        return self.pods[node["metadata"]["name"]]

    def pairs(self) -> Iterator[tuple[Raw, Raw]]:
        """Return each pod with its node."""
        return ((pod, node) for node in self.nodes for pod in self.on(node))


def _passes(view: _View, pod: Raw, node: Raw) -> bool:
    return (
        _passes_node_unschedulable(pod, node)
        and _passes_taint_toleration(pod, node)
        and _passes_node_affinity(pod, node)
        and _passes_node_ports(view, pod, node)
        and _passes_node_resources_fit(view, pod, node)
        and _passes_topology_spread(view, pod, node)
        and _passes_inter_pod_affinity(view, pod, node)
    )


def _passes_node_unschedulable(pod: Raw, node: Raw) -> bool:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    return not node["spec"].get("unschedulable") or _is_tolerated(pod, taint)


def _passes_taint_toleration(pod: Raw, node: Raw) -> bool:
    taints = node["spec"].get("taints", [])
    return all(_is_tolerated(pod, taint) for taint in taints if taint["effect"] in _REPELLING)


def _is_tolerated(pod: Raw, taint: Raw) -> bool:
    """Return whether one of the pod's tolerations tolerates a taint (api core/v1/toleration.go)."""
    return any(
        each.get("effect", "") in ("", taint["effect"])
        and each.get("key", "") in ("", taint["key"])
        and (
            each.get("operator", "") == "Exists"
            or (each.get("operator", "") in ("", "Equal") and each.get("value", "") == taint.get("value", ""))
        )
        for each in pod["spec"].get("tolerations", [])
    )


def _passes_node_affinity(pod: Raw, node: Raw) -> bool:
    """Return whether the node matches the node selector and a required term (component-helpers, nodeaffinity)."""
    labels = _labels_of(node)
    if any(labels.get(key) != value for key, value in pod["spec"].get("nodeSelector", {}).items()):
        return False
    required = pod["spec"].get("affinity", {}).get("nodeAffinity", {}).get(_REQUIRED)
    return required is None or any(_matches_node_term(term, node) for term in required["nodeSelectorTerms"])


def _matches_node_term(term: Raw, node: Raw) -> bool:
    expressions, fields = term.get("matchExpressions", []), term.get("matchFields", [])
    name = {"metadata.name": node["metadata"]["name"]}
    return (
        bool(expressions or fields)
        and all(_meets(_labels_of(node), each) for each in expressions)
        and all(_meets(name, each) for each in fields)
    )


def _meets(labels: Labels, requirement: Raw) -> bool:
    """Return whether labels match an expression (apimachinery labels.Requirement.Matches)."""
    value, values = labels.get(requirement["key"]), requirement.get("values", [])
    match requirement["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and value.isdigit() and int(value) > int(values[0])
        case "Lt":
            return value is not None and value.isdigit() and int(value) < int(values[0])
    raise AssertionError(f"the API server lets no operator {requirement['operator']} in")


def _passes_node_ports(view: _View, pod: Raw, node: Raw) -> bool:
    taken = [port for other in view.on(node) for port in _ports_of(other)]
    return not any(_is_in_conflict(port, other) for port in _ports_of(pod) for other in taken)


def _ports_of(pod: Raw) -> list[tuple[str, str, int]]:
    """Return address, protocol and number of each host port (pkg/scheduler/util.GetHostPorts)."""
    sidecars = [init for init in pod["spec"].get("initContainers", []) if init.get("restartPolicy") == "Always"]
    return [
        (port.get("hostIP") or "0.0.0.0", port.get("protocol") or "TCP", port["hostPort"])  # noqa: S104  # read, not bound
        for container in [*pod["spec"]["containers"], *sidecars]
        for port in container.get("ports", [])
        if port.get("hostPort", 0) > 0
    ]


def _is_in_conflict(one: tuple[str, str, int], other: tuple[str, str, int]) -> bool:
    return one[1:] == other[1:] and ("0.0.0.0" in (one[0], other[0]) or one[0] == other[0])  # noqa: S104


def _passes_node_resources_fit(view: _View, pod: Raw, node: Raw) -> bool:
    has = {name: parse_quantity(amount) for name, amount in node["status"]["allocatable"].items()}
    used: Amounts = {"pods": Fraction(len(view.on(node)))}
    for other in view.on(node):
        _add(used, _requests_of(other))
    asked = _requests_of(pod) | {"pods": Fraction(1)}
    return all(
        amount <= has.get(name, Fraction(0)) - used.get(name, Fraction(0)) for name, amount in asked.items() if amount
    )


def _requests_of(pod: Raw) -> Amounts:
    """Return a pod's requests (component-helpers resource.PodRequests). Init containers run one after the other."""
    sidecars: Amounts = {}
    most: Amounts = {}
    for init in pod["spec"].get("initContainers", []):
        now = _amounts_of(init)
        _add(now, sidecars)
        if init.get("restartPolicy") == "Always":
            sidecars = now
        _raise_to(most, now)
    total = dict(sidecars)
    for container in pod["spec"]["containers"]:
        _add(total, _amounts_of(container))
    _raise_to(total, most)
    total.update(_amounts_of(pod["spec"]))
    _add(total, {name: parse_quantity(amount) for name, amount in pod["spec"].get("overhead", {}).items()})
    return total


def _amounts_of(container: Raw) -> Amounts:
    requests = container.get("resources", {}).get("requests", {})
    return {name: parse_quantity(amount) for name, amount in requests.items()}


def parse_quantity(text: str) -> Fraction:
    """Parse a quantity with one of the units that the tests use."""
    digits = text.rstrip("kKMGim")
    return Fraction(digits) * _UNITS.get(text[len(digits) :], Fraction(1))


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Fraction(0)) + amount


def _raise_to(total: Amounts, floor: Amounts) -> None:
    for name, amount in floor.items():
        total[name] = max(total.get(name, Fraction(0)), amount)


def _passes_inter_pod_affinity(view: _View, pod: Raw, node: Raw) -> bool:
    """Apply Filter of plugins/interpodaffinity/filtering.go."""
    labels = _labels_of(node)
    for other, place in view.pairs():
        for term in _terms_of(other, "podAntiAffinity"):
            if _share(term, labels, _labels_of(place)) and _means(view, other, term, pod):
                return False
    for term in _terms_of(pod, "podAntiAffinity"):
        for other, place in view.pairs():
            if _share(term, labels, _labels_of(place)) and _means(view, pod, term, other):
                return False
    return _has_its_mates(view, pod, labels)


def _has_its_mates(view: _View, pod: Raw, labels: Labels) -> bool:
    """Return whether the node satisfies the pod's affinity (satisfyPodAffinity).

    Only pods that match all of its terms count. For each term, the node's domain must have one; these may be different
    pods. If no domain of any term has one, and the pod matches its own terms, any node with all the labels will do.
    """
    terms = _terms_of(pod, "podAffinity")
    if any(term["topologyKey"] not in labels for term in terms):
        return False
    mates = [place for other, place in view.pairs() if all(_means(view, pod, term, other) for term in terms)]
    if all(any(_share(term, labels, _labels_of(place)) for place in mates) for term in terms):
        return True
    counted = any(term["topologyKey"] in _labels_of(place) for term in terms for place in mates)
    return not counted and all(_means(view, pod, term, pod) for term in terms)


def _terms_of(pod: Raw, kind: str) -> list[Raw]:
    found: list[Raw] = pod["spec"].get("affinity", {}).get(kind, {}).get(_REQUIRED, [])
    return found


def _share(term: Raw, one: Labels, other: Labels) -> bool:
    """Return whether two nodes are in the same domain of a term."""
    key = term["topologyKey"]
    return key in one and one[key] == other.get(key)


def _means(view: _View, owner: Raw, term: Raw, other: Raw) -> bool:
    """Return whether a term of ``owner`` selects the other pod (kube-scheduler/framework.AffinityTerm)."""
    namespaces, chosen = term.get("namespaces", []), term.get("namespaceSelector")
    if not namespaces and chosen is None:
        namespaces = [owner["metadata"]["namespace"]]
    namespace = other["metadata"]["namespace"]
    inside = namespace in namespaces or _selects(chosen, view.namespaces.get(namespace, {}))
    return inside and _selects(term.get("labelSelector"), _labels_of(other))


def _selects(selector: Raw | None, labels: Labels) -> bool:
    """Return whether a label selector selects these labels. None selects nothing, an empty selector everything."""
    return selector is not None and all(_meets(labels, each) for each in _requirements_of(selector))


def _requirements_of(selector: Raw) -> Iterable[Raw]:
    for key, value in selector.get("matchLabels", {}).items():
        yield {"key": key, "operator": "In", "values": [value]}
    yield from selector.get("matchExpressions", [])


def _passes_topology_spread(view: _View, pod: Raw, node: Raw) -> bool:
    """Apply Filter of plugins/podtopologyspread/filtering.go."""
    constraints = [
        each
        for each in pod["spec"].get("topologySpreadConstraints", [])
        if each["whenUnsatisfiable"] == "DoNotSchedule"
    ]
    labels = _labels_of(node)
    return all(
        each["topologyKey"] in labels and _is_even(view, pod, each, constraints, labels[each["topologyKey"]])
        for each in constraints
    )


def _is_even(view: _View, pod: Raw, constraint: Raw, constraints: Sequence[Raw], domain: str) -> bool:
    """Return whether one more such pod in the domain keeps within maxSkew."""
    counts: dict[str, int] = {}
    for node in view.nodes:
        labels = _labels_of(node)
        if all(each["topologyKey"] in labels for each in constraints) and _is_counted(constraint, pod, node):
            value = labels[constraint["topologyKey"]]
            counts[value] = counts.get(value, 0) + sum(_counts(view, pod, constraint, other) for other in view.on(node))
    # A nil minDomains is 1, so without any domain the global minimum is 0.
    least = 0 if len(counts) < constraint.get("minDomains", 1) else min(counts.values())
    own = int(_selects(constraint.get("labelSelector"), _labels_of(pod)))
    return bool(counts.get(domain, 0) + own - least <= constraint["maxSkew"])


def _is_counted(constraint: Raw, pod: Raw, node: Raw) -> bool:
    """Return whether a node counts for the spread (matchNodeInclusionPolicies)."""
    return (constraint.get("nodeAffinityPolicy", "Honor") == "Ignore" or _passes_node_affinity(pod, node)) and (
        constraint.get("nodeTaintsPolicy", "Ignore") == "Ignore" or _passes_taint_toleration(pod, node)
    )


def has_empty_selector(pod: Raw) -> bool:
    """Return whether a topology spread constraint has an empty selector, on which 1.37 and 1.38 differ."""
    return any(each.get("labelSelector") == {} for each in pod["spec"].get("topologySpreadConstraints", []))


def _counts(view: _View, pod: Raw, constraint: Raw, other: Raw) -> bool:
    """Return whether another pod counts for a constraint (countPodsMatchSelector)."""
    selector = constraint.get("labelSelector")
    return (
        selector is not None
        and (view.empty_counts or any(True for _ in _requirements_of(selector)))
        and "deletionTimestamp" not in other["metadata"]
        and other["metadata"]["namespace"] == pod["metadata"]["namespace"]
        and _selects(selector, _labels_of(other))
    )


def _labels_of(obj: Raw) -> Labels:
    labels: Labels = obj["metadata"].get("labels", {})
    return labels
