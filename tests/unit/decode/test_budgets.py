"""PodDisruptionBudgets: which pods they count, and how many evictions they allow."""

from typing import Any

import pytest

from serried.api.budget import DisruptionBudget, decode_budget, limits_eviction, uses_allowance
from serried.api.names import Key, Malformed
from serried.api.selectors import Requirement
from tests.support.builders import PodBuilder, pod, require_valid


def raw_budget(selector: Any, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": "b", "generation": 2, "resourceVersion": "9"},
        "spec": {"selector": selector},
        "status": {"observedGeneration": 2, **status},
    }


def budget(selector: Any, **status: Any) -> DisruptionBudget:
    return require_valid(decode_budget(raw_budget(selector, **status)))


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
    assert uses_allowance(budget(selector), pod("p").label("app", "x").value()) is counted


def test_a_budget_counts_no_pods_of_other_namespaces_and_none_that_it_has_let_go() -> None:
    assert not uses_allowance(budget({}), pod("p").namespace("other").value())
    assert not uses_allowance(budget({}, disruptedPods={"p": "2026-01-01T00:00:00Z"}), pod("p").value())


def running(name: str = "p") -> PodBuilder:
    return pod(name).on("n1").phase("Running")


ENOUGH = {"currentHealthy": 2, "desiredHealthy": 2}


@pytest.mark.parametrize(
    ("builder", "policy", "status", "counted"),
    [
        pytest.param(pod("p").on("n1").phase("Pending"), "", {}, False, id="never one that has not started"),
        pytest.param(running(), "", {}, True, id="one that is not Ready, by default"),
        pytest.param(running().ready(), "AlwaysAllow", ENOUGH, True, id="one that is Ready"),
        pytest.param(running().ready("False"), "AlwaysAllow", {}, False, id="not one that may always go unready"),
        pytest.param(running(), "IfHealthyBudget", ENOUGH, False, id="not an unready one beside enough that are Ready"),
        pytest.param(running(), "", ENOUGH, False, id="nor is that so only where the policy is written"),
        pytest.param(running(), "", {"currentHealthy": 1, "desiredHealthy": 2}, True, id="one beside too few"),
        pytest.param(running(), "", {"currentHealthy": 3}, True, id="one where nothing is desired"),
        pytest.param(running(), "", {**ENOUGH, "observedGeneration": 1}, False, id="by an old status, too"),
        pytest.param(running().phase("Unknown"), "", {}, True, id="one whose node is silent"),
    ],
)
def test_a_budget_counts_as_the_api_server_asks_it(
    builder: PodBuilder,
    policy: str,
    status: dict[str, Any],
    counted: bool,  # noqa: FBT001
) -> None:
    raw = raw_budget({}, **status)
    raw["spec"]["unhealthyPodEvictionPolicy"] = policy
    assert uses_allowance(require_valid(decode_budget(raw)), builder.value()) is counted


def test_two_budgets_that_let_an_unready_pod_go_are_two_that_are_asked() -> None:
    free = require_valid(decode_budget(raw_budget({}, **ENOUGH)))
    assert limits_eviction(free, running().value())
    assert not limits_eviction(free, running().phase("Pending").value())


def test_a_budget_with_a_bad_selector_is_malformed() -> None:
    assert decode_budget(raw_budget([])) == Malformed("PodDisruptionBudget", "default/b", "selector is not an object")
