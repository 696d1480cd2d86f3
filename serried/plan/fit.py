"""Decides whether a pod may run on a node (`admits`), why not (`find_rejection`), and how many fit (`slots`).

The checks are those of kube-scheduler 1.37: NodeAffinity, TaintToleration, NodeUnschedulable and NodeResourcesFit
(component-helpers scheduling/corev1/nodeaffinity, api core/v1 toleration.go). The operators Lt and Gt of tolerations
are alpha and off upstream; such a toleration tolerates nothing here.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from serried.api.interpod import HOSTNAME
from serried.api.node import Node
from serried.api.pod import Shape
from serried.api.resources import Resources, count_slots
from serried.api.selectors import Labels, NodeSelectorTerm, Requirement, Taint, Toleration


class HurdleKind(StrEnum):
    """The kinds of reasons for which a node is not feasible for a member."""

    RESOURCE = "resource"
    """Too little of a resource is free."""

    TAINT = "taint"
    CORDON = "cordon"
    SELECTOR = "selector"
    """The node selector or the required node affinity does not match."""

    BESIDE = "podAffinity"
    APART = "podAntiAffinity"
    """An anti-affinity term of the member, or of a pod in the node's domain."""

    SPREAD = "topologySpread"

    KEPT = "kept"
    """The node is kept for the head of the queue, or kube-scheduler did not list it."""


@dataclass(frozen=True, slots=True, order=True)
class Hurdle:
    """A reason for which a node is not feasible for a member."""

    kind: HurdleKind

    name: str = ""
    """The resource, the taint's key, the label key or the labels of the other pods; "" if the kind says all."""

    def __str__(self) -> str:
        if self.kind is HurdleKind.RESOURCE:
            return self.name
        return f"{self.kind} {self.name}" if self.name else self.kind.value


UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""The taint that a cordoned node is treated as having, because the real one may be added later."""

_UNREACHABLE = "node.kubernetes.io/unreachable"
"""The taint of a node whose kubelet does not report to the API server (node-lifecycle-controller)."""

_REPELLING = frozenset({"NoSchedule", "NoExecute"})
_MOST = (1 << 63) - 1
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NOTHING: Resources = {}


def admits(shape: Shape, node: Node) -> bool:
    """Return whether labels, fields, taints and cordon allow a pod of ``shape`` on ``node``; resources aside."""
    if node.unschedulable and not _tolerated(UNSCHEDULABLE, shape.tolerations):
        return False
    if node.taints and not tolerates(shape.tolerations, node.taints):
        return False
    return admits_labels(shape, node)


def admits_labels(shape: Shape, node: Node) -> bool:
    """Return whether the node selector and the required node affinity of ``shape`` match the node."""
    if shape.node_selector and not _selects(shape.node_selector, node.labels):
        return False
    return shape.node_terms is None or matches_terms(shape.node_terms, node)


def find_rejection(shape: Shape, node: Node) -> Hurdle | None:
    """Return why `admits` is False for this shape and node; None if it is True."""
    if node.unschedulable and not _tolerated(UNSCHEDULABLE, shape.tolerations):
        return Hurdle(HurdleKind.CORDON)
    for taint in node.taints:
        if taint.effect in _REPELLING and not _tolerated(taint, shape.tolerations):
            cordoned = taint.key == UNSCHEDULABLE.key
            return Hurdle(HurdleKind.CORDON) if cordoned else Hurdle(HurdleKind.TAINT, taint.key)
    for key, value in shape.node_selector:
        if node.labels.get(key) != value:
            return Hurdle(HurdleKind.SELECTOR, key)
    if shape.node_terms is not None and not matches_terms(shape.node_terms, node):
        return Hurdle(HurdleKind.SELECTOR)
    return None


def count_fitting(shape: Shape, node: Node, used: Resources | None) -> int:
    """Return the number of pods of ``shape`` that fit on the node besides ``used`` (None: the node is empty)."""
    if not admits(shape, node):
        return 0
    return count_slots(node.allocatable, used or _NOTHING, dict(shape.requests))


def is_unreachable(node: Node) -> bool:
    """Return whether the node's kubelet is unreachable, so that the state of its pods is unknown."""
    return any(taint.key == _UNREACHABLE for taint in node.taints)


def tolerates(tolerations: Iterable[Toleration], taints: Iterable[Taint]) -> bool:
    """Return whether all taints that keep pods away are tolerated."""
    return all(_tolerated(taint, tolerations) for taint in taints if taint.effect in _REPELLING)


def matches_terms(terms: Iterable[NodeSelectorTerm], node: Node) -> bool:
    """Return whether any term matches, with all its labels and fields. No term, or an empty one, matches nothing."""
    return any(_matches_term(term, node) for term in terms)


def matches(requirement: Requirement, labels: Labels) -> bool:
    """Return whether labels match an expression. An expression that is invalid upstream matches nothing."""
    rule = _OPERATORS.get(requirement.operator)
    return rule is not None and rule(labels.get(requirement.key), requirement.values)


_USUAL_COMPARISONS = 64
"""More comparisons than most shapes need for a node."""


def weigh(shape: Shape) -> int:
    """Return the cost of comparing a node with this shape, in multiples of a usual shape, at least 1."""
    terms = shape.node_terms or ()
    wanted = (1 + len(each.values) for term in terms for each in (*term.labels, *term.fields))
    asked = len(shape.requests) + len(shape.node_selector) + len(shape.tolerations)
    return 1 + (asked + len(terms) + sum(wanted)) // _USUAL_COMPARISONS


Named = tuple[str, tuple[str, ...]]
"""A label key and its allowed values; for the key "" the names of nodes."""


def list_named(shape: Shape) -> list[Named] | None:
    """Return entries of which a node must meet one to match the shape; None if the shape does not list values.

    Meeting an entry is not enough: nodes found this way still have to be checked with `admits`.
    """
    host: list[Named] = [(key, (value,)) for key, value in shape.node_selector if key == HOSTNAME]
    if host or shape.node_terms is None:
        return host[:1] or None
    ways = [_name(term) for term in shape.node_terms if term.labels or term.fields]
    named = [way for way in ways if way is not None]
    return named if len(named) == len(ways) else None


def _name(term: NodeSelectorTerm) -> Named | None:
    fields = [("", each.values) for each in term.fields if each.operator == "In"]
    labels = [(each.key, each.values) for each in term.labels if each.operator == "In"]
    found = [each for each in (*fields, *labels) if each[1]]
    return found[0] if found else None


def _matches_term(term: NodeSelectorTerm, node: Node) -> bool:
    if not term.labels and not term.fields:
        return False
    return all(matches(requirement, node.labels) for requirement in term.labels) and all(
        _matches_field(requirement, node) for requirement in term.fields
    )


def _matches_field(requirement: Requirement, node: Node) -> bool:
    """Return whether a matchFields requirement matches. Only metadata.name exists, and In and NotIn take one value."""
    if len(requirement.values) != 1:
        return False
    equal = requirement.values[0] == (node.name if requirement.key == "metadata.name" else "")
    return {"In": equal, "NotIn": not equal}.get(requirement.operator, False)


def _selects(selector: Iterable[tuple[str, str]], labels: Labels) -> bool:
    return all(labels.get(key) == value for key, value in selector)


def _tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(_covers(toleration, taint) for toleration in tolerations)


def _covers(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in {"", "Equal"} and toleration.value == taint.value


def _compare(value: str | None, values: tuple[str, ...]) -> int | None:
    """Return the sign of label minus bound; None if one of them is not a 64-bit integer."""
    if value is None or len(values) != 1:
        return None
    left = _read_integer(value)
    right = _read_integer(values[0])
    return None if left is None or right is None else (left > right) - (left < right)


def _read_integer(text: str) -> int | None:
    found = int(text) if _INTEGER.fullmatch(text) else None
    return found if found is not None and -_MOST - 1 <= found <= _MOST else None


_OPERATORS: Mapping[str, Callable[[str | None, tuple[str, ...]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: bool(values) and value not in values,
    "Exists": lambda value, values: value is not None and not values,
    "DoesNotExist": lambda value, values: value is None and not values,
    "Gt": lambda value, values: _compare(value, values) == 1,
    "Lt": lambda value, values: _compare(value, values) == -1,
}
