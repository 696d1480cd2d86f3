"""The part of a pod that decides where it fits. Equal shapes are one object: thousands of pods have the same."""

from collections import Counter
from functools import lru_cache

from serried.decode.conflicts import read_conflicts
from serried.decode.devices import read_device_claims
from serried.decode.fields import (
    Raw,
    read_labels,
    read_map,
    read_name,
    read_objects,
    read_texts,
)
from serried.decode.identity import is_label_value
from serried.decode.requests import pod_requests
from serried.model.level import ResizeRule
from serried.model.pod import Shape
from serried.model.resources import PROVIDED
from serried.model.selectors import NodeSelectorTerm, Requirement, Toleration

Terms = tuple[NodeSelectorTerm, ...]


def decode_shape(pod: Raw, rule: ResizeRule = ResizeRule.LARGEST) -> Shape:
    """The shape of a raw pod; one object for all pods with an equal one, as long as the cache remembers it."""
    spec = read_map(pod, "spec")
    requests = pod_requests(pod, rule)
    others = read_conflicts(pod)
    if claims := read_device_claims(spec):
        others = {**others, **{PROVIDED + claim: count for claim, count in Counter(claims).items()}}
    terms = _read_affinity(spec)
    # What is large is kept for as long as a pod has it, and not in the cache: few pods are alike in that.
    share = _shared_shape if _is_usual(terms) and len(others) <= _MAX_SHARED else Shape
    return share(
        tuple(sorted((*requests, *others.items()))) if others else requests,
        tuple(sorted(read_labels(spec, "nodeSelector").items())),
        terms,
        tuple([_read_toleration(raw) for raw in read_objects(spec, "tolerations")]),
    )


_MAX_SHARED = 64
"""Up to how many of anything a shape may have for the cache to keep it."""


def _is_usual(terms: Terms | None) -> bool:
    wanted = sum(1 + len(each.values) for term in terms or () for each in (*term.labels, *term.fields))
    return wanted + len(terms or ()) <= _MAX_SHARED


@lru_cache(maxsize=8192)
def _shared_shape(
    requests: tuple[tuple[str, int], ...],
    node_selector: tuple[tuple[str, str], ...],
    node_terms: Terms | None,
    tolerations: tuple[Toleration, ...],
) -> Shape:
    return Shape(requests, node_selector, node_terms, tolerations)


@lru_cache(maxsize=4096)
def _shared_toleration(key: str, operator: str, value: str, effect: str) -> Toleration:
    return Toleration(key, operator, value, effect)


def _read_toleration(raw: Raw) -> Toleration:
    return _shared_toleration(
        read_name(raw, "key"), read_name(raw, "operator", "Equal"), read_name(raw, "value"), read_name(raw, "effect")
    )


def _read_affinity(spec: Raw) -> Terms | None:
    affinity = read_map(spec, "affinity")
    if not affinity:
        return None
    return read_terms(read_map(affinity, "nodeAffinity"), "requiredDuringSchedulingIgnoredDuringExecution")


def read_terms(affinity: Raw, name: str) -> Terms | None:
    """The node selector at ``name``, None if absent. A selector without terms matches no node."""
    if affinity.get(name) is None:
        return None
    selector = read_map(affinity, name)
    return tuple(
        NodeSelectorTerm(
            tuple(map(_void_if_invalid, _read_requirements(term, "matchExpressions"))),
            _read_requirements(term, "matchFields"),
        )
        for term in read_objects(selector, "nodeSelectorTerms")
    )


def _read_requirements(term: Raw, name: str) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(read_name(raw, "key"), read_name(raw, "operator"), read_texts(raw, "values"))
        for raw in read_objects(term, name)
    )


def _void_if_invalid(requirement: Requirement) -> Requirement:
    """Without an operator, so that nothing meets it, if one of the values can be no label's.

    The API server takes such a requirement, and kube-scheduler cannot read it, whatever the operator
    (labels.NewRequirement): not even NotIn is met, and Gt has no negative bounds.
    """
    if all(map(is_label_value, requirement.values)):
        return requirement
    return Requirement(requirement.key, "", requirement.values)
