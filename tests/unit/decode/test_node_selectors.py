"""Node selectors, from their fields to the node: the corners in which a guess would differ from kube-scheduler.

``tests/property/test_upstream.py`` compares them, and thousands of others, with Kubernetes' own libraries.
"""

from typing import Any

import pytest

from serried.api.node import Node
from serried.api.selectors import read_terms
from serried.plan.fit import matches_terms

NODE = Node("n1", {}, {"a": "5", "b": "", "big": "9223372036854775808", "text": "5x"})


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def field(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchFields": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("terms", "matches"),
    [
        pytest.param([expression("a", "In", "4", "5")], True, id="In, one of the values"),
        pytest.param([expression("none", "In", "")], False, id="In, an empty value is not a missing label"),
        pytest.param([expression("b", "In", "")], True, id="In, an empty value"),
        pytest.param([expression("a", "In")], False, id="In without values"),
        pytest.param([expression("none", "NotIn", "x")], True, id="NotIn, no such label"),
        pytest.param([expression("a", "NotIn")], False, id="NotIn without values"),
        pytest.param([expression("a", "NotIn", "+5")], False, id="NotIn, a value that no label can have"),
        pytest.param([expression("a", "NotIn", "x" * 64)], False, id="NotIn, a value too long for a label"),
        pytest.param([expression("b", "Exists")], True, id="Exists, an empty value"),
        pytest.param([expression("a", "Exists", "5")], False, id="Exists with values"),
        pytest.param([expression("none", "DoesNotExist")], True, id="DoesNotExist"),
        pytest.param([expression("none", "DoesNotExist", "5")], False, id="DoesNotExist with values"),
        pytest.param([expression("a", "Gt", "4")], True, id="Gt"),
        pytest.param([expression("a", "Gt", "5")], False, id="Gt, equal"),
        pytest.param([expression("a", "Gt", "04")], True, id="Gt, with a zero before"),
        pytest.param([expression("a", "Gt", "-4")], False, id="Gt, a negative bound can be no label's value"),
        pytest.param([expression("a", "Gt", "4.5")], False, id="Gt, no integer"),
        pytest.param([expression("a", "Gt", "1", "2")], False, id="Gt, two bounds"),
        pytest.param([expression("text", "Gt", "4")], False, id="Gt, a label that is no integer"),
        pytest.param([expression("none", "Lt", "4")], False, id="Lt, no such label"),
        pytest.param([expression("a", "Lt", "9223372036854775807")], True, id="Lt, the largest bound"),
        pytest.param([expression("a", "Lt", "9223372036854775808")], False, id="Lt, a bound of more than 64 bits"),
        pytest.param([expression("big", "Gt", "1")], False, id="Gt, a label of more than 64 bits"),
        pytest.param([expression("a", "in", "5")], False, id="an operator in another case"),
        pytest.param([field("metadata.name", "In", "n1")], True, id="a field"),
        pytest.param([field("metadata.name", "In", "n1", "n2")], False, id="a field with two values"),
        pytest.param([field("metadata.name", "NotIn", "N+1")], True, id="a field's value need be no label's"),
        pytest.param([field("metadata.name", "Exists")], False, id="a field that exists"),
        pytest.param([], False, id="no term"),
        pytest.param([{}], False, id="an empty term"),
        pytest.param([{"matchExpressions": [], "matchFields": None}], False, id="a term of empty lists"),
        pytest.param([{}, expression("a", "Exists")], True, id="an empty term before one that matches"),
        pytest.param([{**expression("a", "Exists"), **field("metadata.name", "In", "n2")}], False, id="one of two"),
    ],
)
def test_a_node_selector_matches_what_it_matches_upstream(terms: list[dict[str, Any]], *, matches: bool) -> None:
    read = read_terms({"required": {"nodeSelectorTerms": terms}}, "required")
    assert read is not None
    assert matches_terms(read, NODE) == matches
