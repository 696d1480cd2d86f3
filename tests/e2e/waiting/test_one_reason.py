"""One reason, the same everywhere: condition, events of PodGroup and pod, log line, metric and /debug."""

import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.cluster_stage import ClusterStage, eventually, names

pytestmark = pytest.mark.e2e

_TELLING_SECONDS = 1.0

_REST_SECONDS = 6.0
"""Several times as long as anything that is put off."""


def told(stage: ClusterStage, about: str) -> list[str]:
    """What Serried has said in events about an object."""
    return [message for reason, message in stage.events(about) if reason == "NoCapacity"]


def sum_metric(stage: ClusterStage, name: str, **labels: str) -> float:
    families = text_string_to_metric_families(httpx.get(stage.cluster.metrics_url).text)
    samples = (sample for family in families for sample in family.samples if sample.name == name)
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def count_writes(stage: ClusterStage) -> float:
    return sum_metric(stage, "serried_api_writes_total")


def versions(stage: ClusterStage) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["resourceVersion"] for pod in stage.pods("wide")}


def test_a_gang_without_room_says_the_same_everywhere_and_then_is_silent(stage: ClusterStage) -> None:
    stage.create_group("wide", 3)
    stage.create_pods(names("wide", 3), "wide", cpu="1000")
    view = stage.await_reason("wide", "NoCapacity", "0 of 3")
    stood = time.monotonic()
    sentence = view["message"]
    first, *others = sorted(versions(stage))
    eventually("the pod's event", lambda: told(stage, first) == [sentence])
    eventually("the PodGroup's event", lambda: told(stage, "wide") == [sentence])
    eventually("the condition", lambda: stage.condition("wide")[2] == sentence)
    assert time.monotonic() - stood < _TELLING_SECONDS + 1.0, "the second is for this test's own questions"
    assert not any(told(stage, other) for other in others), "no write per pod"

    group = f"{stage.namespace}/wide"
    decisions = httpx.get(f"{stage.cluster.debug_url}/decisions?group={group}").json()
    decision = next(each for each in decisions if each["reason"] == "NoCapacity")
    assert httpx.get(f"{stage.cluster.debug_url}/decisions/{decision['id']}").json() == decision
    assert decision["text"] == sentence
    assert sum_metric(stage, "serried_groups", state="NoCapacity") >= 1

    # What the scheduler itself says of a held pod is constant, so nothing makes it try again.
    eventually("the scheduler's word", lambda: all(pod["status"].get("conditions") for pod in stage.pods("wide")))
    writes = count_writes(stage)
    seen = versions(stage)
    deadline = time.monotonic() + _REST_SECONDS
    while time.monotonic() < deadline:
        assert count_writes(stage) == writes, "a gang that waits costs no writes"
        assert versions(stage) == seen, "nor does anybody touch its pods"
        time.sleep(0.5)


def test_its_page_says_what_would_make_it_fit(stage: ClusterStage) -> None:
    stage.create_group("wide", 3)
    stage.create_pods(names("wide", 3), "wide", cpu="40")
    stage.await_reason("wide", "NoCapacity", "0 of 3")
    page = f"{stage.cluster.debug_url}/groups/{stage.namespace}/wide?diagnosis=advice"
    found = httpx.get(page, timeout=30.0).json()
    assert found["diagnosis"]["dominant"].startswith("cpu ")
    assert [each["milestone"] for each in found["timeline"]][:2] == ["seen", "quorum"]
    assert found["queue"]["position"] >= 1
    advice = [each["text"] for each in found["diagnosis"]["advice"]]
    assert any(each.startswith("ask for ") for each in advice), advice
