"""Decides whether a node is feasible for a pod (`admits`), why not (`find_rejection`), and how many pods fit.

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
    """The kinds of reasons for which a node is not feasible for a member. The values are words for users.

    Such a reason is a lack of free resources, a taint, a cordon, a node selector or node affinity, pod affinity or
    anti-affinity, or a spread constraint. It may also be that Serried keeps the node for the head of the queue, or that
    kube-scheduler did not offer the node (KEPT).
    """

    RESOURCE = "resource"
    """Too little of a resource is free."""

    TAINT = "taint"
    """The node has a taint that the member does not tolerate."""
    CORDON = "cordon"
    """The node is cordoned (``spec.unschedulable``)."""
    SELECTOR = "selector"
    """The node selector or the required node affinity does not match."""

    BESIDE = "podAffinity"
    """A required pod affinity term of the member has no matching pod in the node's domain."""
    APART = "podAntiAffinity"
    """A required anti-affinity term, of the member or of a pod in the node's domain, forbids the node."""

    SPREAD = "topologySpread"
    """A topology spread constraint of the member would exceed its maxSkew."""

    KEPT = "kept"
    """Serried keeps the node for the head of the queue, or the last filter call of kube-scheduler did not list it."""


@dataclass(frozen=True, slots=True, order=True)
class Hurdle:
    """One reason for which a node is not feasible for a member, such as ``taint gpu``."""

    kind: HurdleKind

    name: str = ""
    """The resource, the taint's key, the label key, or the labels of the other pods; "" if ``kind`` says all."""

    def __str__(self) -> str:
        if self.kind is HurdleKind.RESOURCE:
            return self.name
        return f"{self.kind} {self.name}" if self.name else self.kind.value


UNSCHEDULABLE = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""The taint that every cordoned node is treated as having. The node controller adds the real one a little later."""

_UNREACHABLE = "node.kubernetes.io/unreachable"
"""The key of the taint that the node controller adds while the node's kubelet does not report to the API server."""

_REPELLING = frozenset({"NoSchedule", "NoExecute"})
_MOST = (1 << 63) - 1
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NOTHING: Resources = {}


def admits(shape: Shape, node: Node) -> bool:
    """Return whether node selector, required node affinity, taints and cordon allow a pod of ``shape`` on the node.

    Free resources are not checked.
    """
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
    """Return the first reason why `admits` is False for this shape and node; None if it is True."""
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
    """Return how many more pods of ``shape`` fit on the node besides the amounts ``used``. With None the node is empty.

    The result is 0 if `admits` is False.
    """
    if not admits(shape, node):
        return 0
    return count_slots(node.allocatable, used or _NOTHING, dict(shape.requests))


def is_unreachable(node: Node) -> bool:
    """Return whether the node has the taint of an unreachable kubelet, so that nothing is known about its pods."""
    return any(taint.key == _UNREACHABLE for taint in node.taints)


def tolerates(tolerations: Iterable[Toleration], taints: Iterable[Taint]) -> bool:
    """Return whether the tolerations cover all taints with the effect NoSchedule or NoExecute."""
    return all(_tolerated(taint, tolerations) for taint in taints if taint.effect in _REPELLING)


def matches_terms(terms: Iterable[NodeSelectorTerm], node: Node) -> bool:
    """Return whether the node matches any of the terms, with all label and field requirements of the term.

    As upstream, no terms match nothing, and neither does a term without requirements.
    """
    return any(_matches_term(term, node) for term in terms)


def matches(requirement: Requirement, labels: Labels) -> bool:
    """Return whether labels match a requirement such as ``zone In (a, b)``.

    One that is invalid upstream matches nothing.
    """
    rule = _OPERATORS.get(requirement.operator)
    return rule is not None and rule(labels.get(requirement.key), requirement.values)


_USUAL_COMPARISONS = 64
"""A number of comparisons with a node's labels and taints that is enough for most shapes, see `weigh`."""


def weigh(shape: Shape) -> int:
    """Return how expensive it is to check whether a node is feasible for this shape. The usual result is 1.

    For instance it is 3 for a shape whose node affinity lists some 150 values.
    """
    terms = shape.node_terms or ()
    wanted = (1 + len(each.values) for term in terms for each in (*term.labels, *term.fields))
    asked = len(shape.requests) + len(shape.node_selector) + len(shape.tolerations)
    return 1 + (asked + len(terms) + sum(wanted)) // _USUAL_COMPARISONS


LabelValues = tuple[str, tuple[str, ...]]
"""A label key, and values of which a node must have one. For the key "" the values are names of nodes."""


def list_required_values(shape: Shape) -> list[LabelValues] | None:
    """Return pairs (label key, values) such that each node that matches the shape matches at least one pair.

    A node matches a pair if its label has one of the values; for the key "" the values are node names. With these pairs
    the few nodes of a shape that is limited to some hosts are found without checking all nodes. Return None if the
    shape does not limit its nodes like that. The nodes found still have to be checked with `admits`.
    """
    host: list[LabelValues] = [(key, (value,)) for key, value in shape.node_selector if key == HOSTNAME]
    if host or shape.node_terms is None:
        return host[:1] or None
    ways = [_find_values(term) for term in shape.node_terms if term.labels or term.fields]
    named = [way for way in ways if way is not None]
    return named if len(named) == len(ways) else None


def _find_values(term: NodeSelectorTerm) -> LabelValues | None:
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
    """Return whether the node matches a matchFields requirement.

    Upstream only knows metadata.name with exactly one value.
    """
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
    """Compare a label's value with the bound of a Gt or Lt requirement as integers, like `cmp`: -1, 0 or 1.

    Return None, so that the requirement does not match, if one of them is not a 64-bit integer.
    """
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
