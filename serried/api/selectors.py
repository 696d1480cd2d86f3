"""Label selectors (meta/v1 LabelSelector), node selectors, taints and tolerations as values, with their matching."""

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
    """A term of a node selector: requirements on a node's labels and on its fields, such as metadata.name.

    A node matches if it fulfils all of them. A term without requirements matches no node.
    """

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node or device. Only the effects NoSchedule and NoExecute repel pods."""

    key: str
    value: str
    effect: str


def read_taint(raw: Raw) -> Taint:
    """Return the taint in a raw object."""
    return Taint(read_name(raw, "key"), read_name(raw, "value"), read_name(raw, "effect"))


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod's toleration. An empty key with operator Exists tolerates every taint, an empty effect every effect."""

    key: str
    operator: str
    value: str
    effect: str


def read_label_selector(obj: Raw, name: str) -> tuple[Requirement, ...] | None:
    """Return the requirements of the label selector at ``name``, in a fixed order; None if the field is absent.

    An empty selector has no requirements (it selects everything). The meaning of an absent one depends on the field.
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
    """Return whether labels meet all requirements of a selector. No label meets an unknown operator."""
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
"""The maximum number of terms that `intersect_terms` builds. Larger combinations are left to kube-scheduler."""


def read_terms(affinity: Raw, name: str) -> Terms | None:
    """Return the terms of the node selector at ``name``; None if it is absent.

    A node matches if it matches one of them, so an empty tuple matches no node.
    """
    if affinity.get(name) is None:
        return None
    selector = read_map(affinity, name)
    return tuple(
        NodeSelectorTerm(
            tuple(map(match_nothing_if_invalid, read_requirements(term, "matchExpressions"))),
            read_requirements(term, "matchFields"),
        )
        for term in read_objects(selector, "nodeSelectorTerms")
    )


def read_requirements(term: Raw, name: str) -> tuple[Requirement, ...]:
    """Return the match expressions at ``name``, in their order."""
    return tuple(
        Requirement(read_name(raw, "key"), read_name(raw, "operator"), read_texts(raw, "values"))
        for raw in read_objects(term, name)
    )


def match_nothing_if_invalid(requirement: Requirement) -> Requirement:
    """Return the requirement, or one that no node fulfils if one of its values is no valid label value.

    The API server accepts a requirement with an invalid value, but kube-scheduler fails to parse it, whatever the
    operator is (labels.NewRequirement), and matches no node. So not even ``NotIn`` matches any. ``Gt -1`` does not
    either, because ``-1`` is no valid label value.
    """
    if all(map(is_label_value, requirement.values)):
        return requirement
    return Requirement(requirement.key, "", requirement.values)


def intersect_terms(one: Terms | None, other: Terms | None) -> Terms | None:
    """Return terms that match exactly the nodes that both ``one`` and ``other`` match. None matches all nodes.

    If more than MAX_TERMS terms would be needed, return ``one``, which may match too many nodes.
    """
    if one is None or other is None:
        return other if one is None else one
    left, right = tuple(filter(has_requirements, one)), tuple(filter(has_requirements, other))
    if len(left) * len(right) > MAX_TERMS:
        return one
    # Empty terms are removed first: alone they match no node, but merged with another term they would match its nodes.
    return tuple([NodeSelectorTerm(a.labels + b.labels, a.fields + b.fields) for a in left for b in right])


def has_requirements(term: NodeSelectorTerm) -> bool:
    """Return whether a term has any requirement. A term without one matches no node."""
    return bool(term.labels or term.fields)
