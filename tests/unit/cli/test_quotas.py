"""Quotas have room for all pods of a manifest, or for none."""

from typing import Any

import pytest

from cli.admission import PodCount, Quotas

Raw = dict[str, Any]


def pod(requests: Raw | None = None, limits: Raw | None = None, qos: str = "Burstable", **spec: Any) -> Raw:
    resources = {"requests": requests or {}, "limits": limits or {}}
    return {"spec": {"containers": [{"name": "main", "resources": resources}], **spec}, "status": {"qosClass": qos}}


def quota(hard: Raw, used: Raw | None = None, name: str = "team", **spec: Any) -> Raw:
    return {"metadata": {"name": name}, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used or {}}}


def in_class(operator: str, *values: str) -> Raw:
    term = {"scopeName": "PriorityClass", "operator": operator, "values": list(values)}
    return {"scopeSelector": {"matchExpressions": [term]}}


ONE = pod({"cpu": "1", "memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"})
GPU = pod({"example.com/gpu": "2", "hugepages-2Mi": "2Mi"}, {"example.com/gpu": "2", "hugepages-2Mi": "2Mi"})


@pytest.mark.parametrize(
    ("found", "each", "room"),
    [
        pytest.param(quota({"cpu": "3500m"}), ONE, 3, id="cpu is that of requests"),
        pytest.param(quota({"requests.cpu": "5"}, {"requests.cpu": "1500m"}), ONE, 3, id="what is used is gone"),
        pytest.param(quota({"limits.cpu": "5"}), ONE, 2, id="limits"),
        pytest.param(quota({"requests.memory": "3Gi"}), ONE, 3, id="memory"),
        pytest.param(quota({"pods": "4"}, {"pods": "1"}), ONE, 3, id="pods that run"),
        pytest.param(quota({"count/pods": "4"}, {"count/pods": "2"}), ONE, 2, id="pods that exist"),
        pytest.param(quota({"requests.example.com/gpu": "7"}), GPU, 3, id="an extended resource"),
        pytest.param(quota({"hugepages-2Mi": "6Mi"}), GPU, 3, id="huge pages"),
        pytest.param(quota({"requests.cpu": "3", "pods": "2"}), ONE, 2, id="the scarcest counts"),
        pytest.param(
            quota({"requests.cpu": "6"}), pod({"cpu": "1"}, overhead={"cpu": "500m"}), 4, id="overhead counts, too"
        ),
        pytest.param(
            quota({"limits.cpu": "6"}), pod({}, {"cpu": "1"}, overhead={"cpu": "500m"}), 4, id="also beside limits"
        ),
        pytest.param(
            quota({"limits.cpu": "1"}), pod({"cpu": "1"}, overhead={"cpu": "1"}), 9, id="but not without them"
        ),
        pytest.param(quota({"pods": "2"}, scopes=["NotBestEffort"]), ONE, 2, id="of all but best effort"),
        pytest.param(quota({"pods": "2"}, scopes=["BestEffort"]), ONE, 9, id="of best effort only"),
        pytest.param(quota({"pods": "2"}, scopes=["BestEffort"]), pod(qos="BestEffort"), 2, id="which it is"),
        pytest.param(quota({"pods": "2"}, scopes=["Terminating"]), ONE, 9, id="of those with a deadline only"),
        pytest.param(quota({"pods": "2"}, scopes=["Terminating"]), pod(activeDeadlineSeconds=60), 2, id="which it has"),
        pytest.param(quota({"pods": "2"}, scopes=["NotTerminating"]), ONE, 2, id="of those without"),
        pytest.param(quota({"pods": "2"}, **in_class("In", "high")), ONE, 9, id="of a class only"),
        pytest.param(quota({"pods": "2"}, **in_class("In", "high")), pod(priorityClassName="high"), 2, id="its class"),
        pytest.param(quota({"pods": "2"}, **in_class("NotIn", "high")), ONE, 2, id="of all but a class"),
        pytest.param(quota({"pods": "2"}, **in_class("Exists")), ONE, 9, id="of those with any class"),
        pytest.param(quota({"pods": "2"}, **in_class("DoesNotExist")), ONE, 2, id="of those with none"),
        pytest.param(quota({"services": "0"}), ONE, 9, id="of other objects"),
    ],
)
def test_so_many_pods_have_room(found: Raw, each: Raw, room: int) -> None:
    assert Quotas([found]).charge([PodCount(each, room)]) == ""
    if room < 9:
        assert Quotas([found]).charge([PodCount(each, room + 1)])


def test_what_lacks_room_is_told_with_numbers() -> None:
    said = Quotas([quota({"requests.cpu": "5"}, {"requests.cpu": "1500m"})]).charge(
        [PodCount(ONE, 3), PodCount(ONE, 1)]
    )
    assert said == "quota team has 3.5 of 5 requests.cpu left, and its 4 pods need 4"


def test_the_next_ones_find_less_and_those_without_room_take_none() -> None:
    quotas = Quotas([quota({"pods": "5"}), quota({"requests.cpu": "4"}, name="other")])
    assert quotas.charge([PodCount(ONE, 3)]) == ""
    assert quotas.charge([PodCount(ONE, 2)]).startswith("quota other")
    assert quotas.charge([PodCount(ONE, 1)]) == ""
    assert quotas.charge([PodCount(pod(), 2)]).startswith("quota team has 1 of 5 pods left")
