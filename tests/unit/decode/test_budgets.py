"""PodDisruptionBudgets: which pods they count, and how many evictions they allow."""

from typing import Any

import pytest

from serried.decode.budgets import counts, decode_budget
from serried.decode.malformed import Malformed
from serried.model.budget import DisruptionBudget
from serried.model.group import Key
from serried.model.selectors import Requirement
from tests.support.builders import usable


def raw_budget(selector: Any, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": "b", "generation": 2, "resourceVersion": "9"},
        "spec": {"selector": selector},
        "status": {"observedGeneration": 2, **status},
    }


def budget(selector: Any, **status: Any) -> DisruptionBudget:
    return usable(decode_budget(raw_budget(selector, **status)))


def test_a_budget_has_a_selector_and_what_it_allows() -> None:
    expression = {"key": "tier", "operator": "NotIn", "values": ["b", "a"]}
    selector = {"matchLabels": {"app": "x"}, "matchExpressions": [expression]}
    found = budget(selector, disruptionsAllowed=3, disruptedPods={"p": "2026-01-01T00:00:00Z"})
    requirements = (Requirement("app", "In", ("x",)), Requirement("tier", "NotIn", ("a", "b")))
    assert found == DisruptionBudget(Key("default", "b"), requirements, 3, frozenset({"p"}), "9")


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({}, id="nothing is known yet"),
        pytest.param({"disruptionsAllowed": 3, "observedGeneration": 1}, id="the status is older than the spec"),
        pytest.param({"disruptionsAllowed": -1}, id="less than nothing is allowed"),
    ],
)
def test_a_budget_allows_nothing_when(status: dict[str, Any]) -> None:
    assert budget({}, **status).allowed == 0


@pytest.mark.parametrize(
    ("selector", "counted"),
    [
        pytest.param({"matchLabels": {"app": "x"}}, True, id="its label"),
        pytest.param({"matchLabels": {"app": "y"}}, False, id="another value"),
        pytest.param({"matchLabels": {"app": "x", "more": "z"}}, False, id="one label of two"),
        pytest.param({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True, id="a label that is there"),
        pytest.param({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False, id="one that must not"),
        pytest.param({"matchExpressions": [{"key": "app", "operator": "Like", "values": ["x"]}]}, False, id="unknown"),
        pytest.param({}, True, id="an empty selector means all"),
        pytest.param(None, False, id="no selector means none"),
    ],
)
def test_a_budget_counts_the_pods_that_it_selects(selector: Any, counted: bool) -> None:  # noqa: FBT001
    assert counts(budget(selector), "default", "p", {"app": "x"}) is counted


def test_a_budget_counts_no_pods_of_other_namespaces_and_none_that_it_has_let_go() -> None:
    assert not counts(budget({}), "other", "p", {})
    assert not counts(budget({}, disruptedPods={"p": "2026-01-01T00:00:00Z"}), "default", "p", {})


def test_a_budget_with_a_bad_selector_is_malformed() -> None:
    assert decode_budget(raw_budget([])) == Malformed("PodDisruptionBudget", "default/b", "selector is not an object")
