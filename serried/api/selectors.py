"""Label requirements, node selectors, taints and tolerations as values.

Label selectors (meta/v1 LabelSelector), and which labels they mean.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from serried.api.names import Raw, is_label_value, read_labels, read_map, read_name, read_objects, read_text, read_texts

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Requirement:
    """One match expression (core/v1 NodeSelectorRequirement): ``key operator values``.

    Operators: In, NotIn, Exists, DoesNotExist, Gt, Lt. An operator that is not known matches nothing.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """All of ``labels`` and all of ``fields`` hold. A term with neither matches nothing (upstream rule)."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint; only the effects NoSchedule and NoExecute keep pods away."""

    key: str
    value: str
    effect: str


def read_taint(raw: Raw) -> Taint:
    """A taint of a node, or of a device."""
    return Taint(read_name(raw, "key"), read_name(raw, "value"), read_name(raw, "effect"))


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod's toleration: an empty key with Exists tolerates all, an empty effect every effect."""

    key: str
    operator: str
    value: str
    effect: str


def read_label_selector(obj: Raw, name: str) -> tuple[Requirement, ...] | None:
    """The requirements of the selector at ``name``, in a fixed order; None without one.

    What no selector means depends on the field. An empty one has no requirement, so that it means everything.
    """
    if obj.get(name) is None:
        return None
    selector = read_map(obj, name)
    found = {Requirement(key, "In", (value,)) for key, value in read_labels(selector, "matchLabels").items()}
    for raw in read_objects(selector, "matchExpressions"):
        values = tuple(sorted(set(read_texts(raw, "values"))))
        found.add(Requirement(read_text(raw, "key"), read_text(raw, "operator"), values))
    return tuple(sorted(found, key=lambda each: (each.key, each.operator, each.values)))


def selects(requirements: Iterable[Requirement], labels: Labels) -> bool:
    """Whether labels meet all requirements of a selector; an unknown operator is met by nothing."""
    return all(_meets(labels.get(each.key), each) for each in requirements)


def _meets(value: str | None, requirement: Requirement) -> bool:
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False


Terms = tuple[NodeSelectorTerm, ...]

MAX_TERMS = 64
"""Into how many alternatives volumes may divide a pod's nodes; what makes more is left to the scheduler."""


def read_terms(affinity: Raw, name: str) -> Terms | None:
    """The node selector at ``name``, None if absent. A selector without terms matches no node."""
    if affinity.get(name) is None:
        return None
    selector = read_map(affinity, name)
    return tuple(
        NodeSelectorTerm(
            tuple(map(void_if_invalid, _read_requirements(term, "matchExpressions"))),
            _read_requirements(term, "matchFields"),
        )
        for term in read_objects(selector, "nodeSelectorTerms")
    )


def _read_requirements(term: Raw, name: str) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(read_name(raw, "key"), read_name(raw, "operator"), read_texts(raw, "values"))
        for raw in read_objects(term, name)
    )


def void_if_invalid(requirement: Requirement) -> Requirement:
    """Without an operator, so that nothing meets it, if one of the values can be no label's.

    The API server takes such a requirement, and kube-scheduler cannot read it, whatever the operator
    (labels.NewRequirement): not even NotIn is met, and Gt has no negative bounds.
    """
    if all(map(is_label_value, requirement.values)):
        return requirement
    return Requirement(requirement.key, "", requirement.values)


def both(one: Terms | None, other: Terms | None) -> Terms | None:
    """Return terms that match where both do; ``one`` if there would be more than MAX_TERMS. None matches all nodes."""
    if one is None or other is None:
        return other if one is None else one
    left, right = tuple(filter(says_something, one)), tuple(filter(says_something, other))
    if len(left) * len(right) > MAX_TERMS:
        return one
    # A term that says nothing matches nothing; together with another one it would say what that one does.
    return tuple([NodeSelectorTerm(a.labels + b.labels, a.fields + b.fields) for a in left for b in right])


def says_something(term: NodeSelectorTerm) -> bool:
    """Return whether a term has any requirement; one without matches nothing."""
    return bool(term.labels or term.fields)
