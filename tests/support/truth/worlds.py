"""Random small clusters and pods, as common inputs for kube-scheduler, its rules in Python, and the planner.

Each property of a pod or node is behind a `Feature`, so that a test draws only the properties that it supports. Objects
are in the form sent to the API server. Their stored form means the same, except for matchLabelKeys (`as_stored`).
"""

import copy
from collections.abc import Collection, Mapping
from enum import StrEnum
from random import Random
from typing import Any

from tests.support.truth.rules import Cluster, Labels, Raw

ZONE = "topology.kubernetes.io/zone"
RACK = "example.com/rack"
HOSTNAME = "kubernetes.io/hostname"
GPU = "example.com/gpu"
KEYS = (ZONE, RACK, HOSTNAME)

NAMESPACES: Mapping[str, Labels] = {
    name: {"team": team, "kubernetes.io/metadata.name": name}
    for name, team in (("truth-one", "red"), ("truth-two", "blue"))
}

HOLD = "example.com/hold"
"""The finalizer of pods that are being deleted, so that they remain."""


class Feature(StrEnum):
    """A property of pods or nodes that may be drawn."""

    RESOURCES = "requests of cpu, memory and pods"
    PHASES = "init containers, sidecars, amounts of whole pods"
    EXTENDED = "an extended resource that some nodes have, or none"
    PORTS = "host ports"
    SELECTORS = "node selectors and node affinity"
    TAINTS = "taints and tolerations"
    CORDONS = "cordons"
    SELF_APART = "anti-affinity by host name to the own kind"
    ANTI_AFFINITY = "required anti-affinity of any sort"
    AFFINITY = "required affinity"
    SPREAD = "topologySpreadConstraints"
    INCLUSION = "nodeAffinityPolicy and nodeTaintsPolicy"
    NAMESPACES = "pods in two namespaces, terms that choose among these"
    LABEL_KEYS = "matchLabelKeys and mismatchLabelKeys"
    TERMINATING = "pods that end"
    UNLABELLED = "nodes without some labels"
    SAME_HOST = "nodes with the host name of another one"


ALONE = frozenset(
    {
        *(Feature.RESOURCES, Feature.PHASES, Feature.EXTENDED, Feature.PORTS),
        *(Feature.SELECTORS, Feature.TAINTS, Feature.CORDONS, Feature.TERMINATING, Feature.UNLABELLED),
    }
)
"""The features without rules about other pods' labels."""

ALL = frozenset(Feature)

COUNTED = ALL - {Feature.SAME_HOST}
"""The features that the planner counts exactly. It assumes that each node has its own host name label."""

_OWN = 0.4
"""The share of the terms that select pods of the same app."""

_KEPT = 0.4
"""The probability with which a draw keeps a feature that is neither in `_OFTEN` nor in `_NUANCES`."""

_OFTEN = frozenset({Feature.SPREAD, Feature.SELECTORS, Feature.TAINTS})
"""Features that interact: a draw keeps each with a probability of 0.75."""

_NUANCES = frozenset(
    {Feature.INCLUSION, Feature.NAMESPACES, Feature.LABEL_KEYS, Feature.TERMINATING, Feature.UNLABELLED}
)
"""Features that modify others: all draws keep them."""


class Draws:
    """Draws objects from one random source; the same source gives the same objects.

    Each new instance keeps a random part of the features: with all of them, most pods would fit nowhere.
    """

    def __init__(self, random: Random, features: Collection[Feature]) -> None:
        self._random = random
        share = dict.fromkeys(_OFTEN, 0.75) | dict.fromkeys(_NUANCES, 1.0)
        self._features = frozenset(each for each in sorted(features) if random.random() < share.get(each, _KEPT))

    def cluster(self, most_nodes: int = 6, most_pods: int = 10) -> Cluster:
        """Return random nodes, with running pods and pods that are being deleted."""
        nodes = [
            self._node(f"n{index}", index) for index in range(self._random.randint(min(3, most_nodes), most_nodes))
        ]
        pods = [self._bound(f"b{index}", nodes) for index in range(self._random.randint(0, most_pods))]
        return Cluster(nodes, pods, NAMESPACES)

    def pod(self, name: str) -> Raw:
        """Return a random pod without a node."""
        pod: Raw = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self._namespace(), "labels": self._labels()},
            "spec": {"containers": [self._container("main")], "terminationGracePeriodSeconds": 0},
        }
        self._add_alone(pod["spec"])
        self._add_terms(pod)
        self._add_spread(pod)
        return pod

    def gang(self, most_members: int = 5, most_classes: int = 2) -> list[Raw]:
        """Return the members of a random gang, all in one namespace."""
        kinds = [self.pod("kind") for _ in range(self._random.randint(1, most_classes))]
        members = []
        for index in range(self._random.randint(1, most_members)):
            member = copy.deepcopy(self._random.choice(kinds))
            member["metadata"] |= {"name": f"m{index}", "namespace": kinds[0]["metadata"]["namespace"]}
            members.append(member)
        return members

    def _has(self, feature: Feature, share: float) -> bool:
        """Return True with the probability ``share``, if the feature is kept."""
        return feature in self._features and self._random.random() < share

    def _node(self, name: str, index: int) -> Raw:
        labels = {
            ZONE: self._random.choice("abc"),
            RACK: self._random.choice(["r1", "r2"]),
            HOSTNAME: name,
            "number": self._random.choice([str(index)] * 3 + ["007", "x"]),
        }
        if self._has(Feature.UNLABELLED, 0.4):
            del labels[self._random.choice([ZONE, RACK])]
        if self._has(Feature.SAME_HOST, 0.05):
            labels[HOSTNAME] = "n0"
            if self._random.random() < 0.5:
                del labels[HOSTNAME]
        spec: Raw = {}
        if self._has(Feature.CORDONS, 0.15):
            spec["unschedulable"] = True
        if self._has(Feature.TAINTS, 0.4):
            effect = self._random.choice(["NoSchedule", "NoSchedule", "NoExecute", "PreferNoSchedule"])
            value = self._random.choice(["x", "y", ""])
            spec["taints"] = [{"key": "dedicated", "effect": effect} | ({"value": value} if value else {})]
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
            "status": {"allocatable": self._allocatable()},
        }

    def _allocatable(self) -> dict[str, str]:
        have = {"cpu": "8", "memory": "8Gi", "pods": "20"}
        if Feature.RESOURCES in self._features:
            have["cpu"] = self._random.choice(["2", "3500m", "4", "8"])
            have["memory"] = self._random.choice(["2Gi", "4Gi", "8Gi"])
            have["pods"] = str(self._random.choice([1, 3, 5, 8, 8]))
        if self._has(Feature.EXTENDED, 0.5):
            have[GPU] = str(self._random.randint(0, 4))
        return have

    def _bound(self, name: str, nodes: list[Raw]) -> Raw:
        pod = self.pod(name)
        pod["spec"]["nodeName"] = self._random.choice(nodes)["metadata"]["name"]
        # Not evicted by taints, and without rules that its node might not satisfy.
        pod["spec"]["tolerations"] = [{"operator": "Exists"}]
        for placed in ("nodeSelector", "topologySpreadConstraints"):
            pod["spec"].pop(placed, None)
        if self._has(Feature.TERMINATING, 0.2):
            pod["metadata"] |= {"finalizers": [HOLD], "deletionTimestamp": "2026-01-01T00:00:00Z"}
        return pod

    def _namespace(self) -> str:
        return "truth-two" if self._has(Feature.NAMESPACES, 0.3) else "truth-one"

    def _labels(self) -> dict[str, str]:
        labels = {"app": self._random.choice("aabc")}
        if self._random.random() < 0.5:
            labels["tier"] = self._random.choice("xy")
        if Feature.LABEL_KEYS in self._features and self._random.random() < 0.8:
            labels["version"] = self._random.choice("12")
        return labels

    def _container(self, name: str) -> Raw:
        container: Raw = {"name": name, "image": "none"}
        if requests := self._requests():
            container["resources"] = {"requests": requests}
        if self._has(Feature.EXTENDED, 0.15):
            amount = {GPU: str(self._random.randint(0, 3))}
            resources = container.setdefault("resources", {})
            resources["requests"] = resources.get("requests", {}) | amount
            resources["limits"] = amount
        if self._has(Feature.PORTS, 0.3):
            container["ports"] = [self._port()]
        return container

    def _requests(self) -> dict[str, str]:
        asked = {}
        if self._has(Feature.RESOURCES, 0.6):
            asked["cpu"] = self._random.choice(["0", "250m", "500m", "1", "2"])
        if self._has(Feature.RESOURCES, 0.4):
            asked["memory"] = self._random.choice(["512Mi", "1Gi", "2Gi"])
        return asked

    def _port(self) -> Raw:
        port: Raw = {"containerPort": 80, "hostPort": self._random.choice([8080, 8081])}
        if self._random.random() < 0.4:
            port["hostIP"] = self._random.choice(["0.0.0.0", "10.0.0.1", "10.0.0.2"])  # noqa: S104  # asked for only
        if self._random.random() < 0.3:
            port["protocol"] = "UDP"
        return port

    def _add_alone(self, spec: Raw) -> None:
        if self._has(Feature.PHASES, 0.3):
            spec["initContainers"] = [self._container("init"), self._container("next")]
            for init in spec["initContainers"]:
                if self._random.random() < 0.5:
                    init["restartPolicy"] = "Always"
                else:
                    init.pop("ports", None)
        if self._has(Feature.PHASES, 0.1):
            spec["resources"] = {"requests": {"cpu": "7", "memory": "7Gi"}}
            if self._random.random() < 0.7:
                spec["resources"] = {"requests": {"cpu": "4"}}
        if self._has(Feature.SELECTORS, 0.25):
            spec["nodeSelector"] = {RACK: self._random.choice(["r1", "r2", "r3"])}
        if self._has(Feature.SELECTORS, 0.3):
            terms = [self._node_term() for _ in range(self._random.randint(1, 2))]
            required = {"nodeSelectorTerms": terms}
            _affinity(spec)["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": required}
        if self._has(Feature.TAINTS, 0.5):
            spec["tolerations"] = [self._toleration()]

    def _node_term(self) -> Raw:
        expressions = [
            {"key": ZONE, "operator": "In", "values": ["a", "b"]},
            {"key": ZONE, "operator": "NotIn", "values": ["a"]},
            {"key": RACK, "operator": "Exists"},
            {"key": RACK, "operator": "DoesNotExist"},
            {"key": "number", "operator": "Gt", "values": ["1"]},
            {"key": "number", "operator": "Lt", "values": ["3"]},
        ]
        term: Raw = {"matchExpressions": self._random.sample(expressions, self._random.randint(1, 2))}
        if self._random.random() < 0.2:
            operator = self._random.choice(["In", "NotIn"])
            fields = [{"key": "metadata.name", "operator": operator, "values": ["n0"]}]
            term = {"matchFields": fields} | (term if self._random.random() < 0.5 else {})
        return term

    def _toleration(self) -> Raw:
        return self._random.choice(
            [
                {"key": "dedicated", "operator": "Equal", "value": "x", "effect": "NoSchedule"},
                {"key": "dedicated", "operator": "Exists"},
                {"key": "dedicated", "operator": "Exists", "effect": "NoExecute"},
                {"key": "dedicated", "value": "y"},
                {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
                {"operator": "Exists"},
            ]
        )

    def _add_terms(self, pod: Raw) -> None:
        for feature, kind in ((Feature.ANTI_AFFINITY, "podAntiAffinity"), (Feature.AFFINITY, "podAffinity")):
            if self._has(feature, 0.4):
                terms = [self._term(pod) for _ in range(self._random.choice([1, 2]))]
                if self._random.random() < _OWN:
                    terms[-1] = terms[0] | {"topologyKey": terms[-1]["topologyKey"]}
                _affinity(pod["spec"])[kind] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        if Feature.ANTI_AFFINITY not in self._features and self._has(Feature.SELF_APART, 0.4):
            own = {"labelSelector": {"matchLabels": {"app": pod["metadata"]["labels"]["app"]}}, "topologyKey": HOSTNAME}
            _affinity(pod["spec"])["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [own]}

    def _term(self, pod: Raw) -> Raw:
        term: Raw = {"topologyKey": self._random.choice(KEYS)}
        selector = self._selector_for(pod)
        if selector is not None:
            term["labelSelector"] = selector
        if self._has(Feature.NAMESPACES, 0.3):
            term["namespaces"] = [self._random.choice([*NAMESPACES, "nowhere"])]
        if self._has(Feature.NAMESPACES, 0.3):
            chosen: list[Raw] = [{}, {"matchLabels": {"team": "blue"}}, {"matchLabels": {"team": "none"}}]
            term["namespaceSelector"] = self._random.choice(chosen)
        if selector is not None and self._has(Feature.LABEL_KEYS, 0.3):
            term[self._random.choice(["matchLabelKeys", "mismatchLabelKeys"])] = ["version"]
        return term

    def _selector_for(self, pod: Raw) -> Raw | None:
        if self._random.random() < _OWN:
            return {"matchLabels": {"app": pod["metadata"]["labels"]["app"]}}
        return copy.deepcopy(
            self._random.choice(
                [
                    *[{"matchLabels": {"app": "a"}}, {"matchLabels": {"app": "b"}}] * 2,
                    {"matchLabels": {"app": "a", "tier": "x"}},
                    {"matchExpressions": [{"key": "tier", "operator": "Exists"}]},
                    {"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]},
                    {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["x"]}]},
                    {"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "b"]}]},
                    {},
                    None,
                ]
            )
        )

    def _add_spread(self, pod: Raw) -> None:
        if not self._has(Feature.SPREAD, 0.7):
            return
        keys = self._random.sample(KEYS, self._random.choice([1, 1, 2]))
        pod["spec"]["topologySpreadConstraints"] = [self._constraint(pod, key) for key in keys]

    def _constraint(self, pod: Raw, key: str) -> Raw:
        action = "ScheduleAnyway" if self._random.random() < 0.1 else "DoNotSchedule"
        skew = self._random.choice([1, 1, 2])
        found: Raw = {"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": action}
        selector = self._selector_for(pod)
        if selector is not None:
            found["labelSelector"] = selector
        if action == "DoNotSchedule" and self._random.random() < 0.5:
            found["minDomains"] = self._random.randint(1, 4)
        if selector is not None and self._has(Feature.LABEL_KEYS, 0.3):
            found["matchLabelKeys"] = ["version"]
        for policy, unusual in (("nodeAffinityPolicy", "Ignore"), ("nodeTaintsPolicy", "Honor")):
            if self._has(Feature.INCLUSION, 0.6):
                found[policy] = self._random.choice([unusual, unusual, "Honor", "Ignore"])
        return found


def as_stored(pod: Raw) -> Raw:
    """Return the pod with matchLabelKeys merged into the selectors (pkg/registry/core/pod/strategy.go)."""
    stored = copy.deepcopy(pod)
    affinity = stored["spec"].get("affinity", {})
    terms: list[Any] = list(stored["spec"].get("topologySpreadConstraints", []))
    for kind in ("podAffinity", "podAntiAffinity"):
        terms += affinity.get(kind, {}).get("requiredDuringSchedulingIgnoredDuringExecution", [])
    for term in terms:
        for keys, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
            for key in term.get(keys, []):
                value = stored["metadata"]["labels"].get(key)
                if value is not None:
                    more = {"key": key, "operator": operator, "values": [value]}
                    term["labelSelector"].setdefault("matchExpressions", []).append(more)
    return stored


def _affinity(spec: Raw) -> Raw:
    found: Raw = spec.setdefault("affinity", {})
    return found
