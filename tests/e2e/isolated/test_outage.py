"""A pod of no group never meets the extender: not while it works, and not while it is down."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.e2e.promises.test_volumes import await_a_volume
from tests.support.cluster_stage import ClusterStage, eventually, names

pytestmark = pytest.mark.e2e

HIGH = "isolated-high"


@contextmanager
def outage(stage: ClusterStage) -> Iterator[None]:
    """The extender is dead for the length of the block."""
    stage.cluster.kill("extender")
    try:
        yield
    finally:
        stage.cluster.start("extender")
        stage.cluster.await_ready("extender")


@pytest.fixture
def high(stage: ClusterStage) -> str:
    """A PriorityClass above all others of the tests."""
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    if all(item["metadata"]["name"] != HIGH for item in stage.cluster.api.get(classes)["items"]):
        stage.cluster.api.post(classes, {"metadata": {"name": HIGH}, "value": 1000})
    return HIGH


def on_node(stage: ClusterStage, number: int) -> dict[str, str]:
    """The node selector of one node."""
    return {"kubernetes.io/hostname": stage.cluster.api.get("/api/v1/nodes")["items"][number]["metadata"]["name"]}


def calls(stage: ClusterStage) -> dict[str, float]:
    """Return the number of calls of each verb that the extender has answered."""
    text = httpx.get(stage.cluster.metrics_url).text
    return {verb: float(count) for verb, count in re.findall(r'verb_seconds_count\{verb="(\w+)"\} (\S+)', text)}


def test_an_outage_touches_no_plain_pod_and_lets_no_gang_start(stage: ClusterStage) -> None:
    stage.create_group("ring", 2)
    with outage(stage):
        stage.create_pods(names("ring", 2), "ring")  # popped by the scheduler before the plain pods behind them
        stage.create_pods(names("plain", 20))
        stage.await_bound("plain", 20)
        assert not stage.bound("ring")
    stage.await_bound("ring", 2)


def test_a_plain_pod_preempts_in_an_outage_as_ever(stage: ClusterStage, high: str) -> None:
    node = on_node(stage, 0)
    stage.create_pods(["low"], cpu="30", nodeSelector=node)
    stage.await_bound("low", 1)
    with outage(stage):
        stage.create_pods(["first"], cpu="30", nodeSelector=node, priorityClassName=high)
        stage.await_bound("first", 1)
        assert not stage.pods("low")


def test_no_plain_pod_is_asked_about_and_a_gang_beside_them_is(stage: ClusterStage) -> None:
    before = calls(stage)
    stage.create_pods(names("plain", 10))
    stage.await_bound("plain", 10)
    assert calls(stage) == before

    stage.create_group("ring", 2)
    stage.create_pods(names("ring", 2), "ring")
    stage.await_bound("ring", 2)
    eventually("two bind calls", lambda: calls(stage).get("bind", 0) == before.get("bind", 0) + 2)


def test_a_plain_pod_that_preempts_a_member_at_bind_starts_no_half_of_its_gang(stage: ClusterStage, high: str) -> None:
    first, second = (on_node(stage, number) for number in range(2))
    stage.create_group("ring", 3)
    stage.create_pods(["ring-0"], "ring", cpu="30", nodeSelector=first)
    stage.create_pods(["ring-1"], "ring", cpu="30", nodeSelector=second)
    stage.create_pods(["ring-2"], "ring", volumes=await_a_volume(stage))
    eventually("two members at bind", lambda: any(view["atBind"] == 2 for view in stage.held_in_ledger()))

    stage.create_pods(["plain-0"], cpu="30", nodeSelector=first, priorityClassName=high)
    stage.await_bound("plain", 1, seconds=60)
    assert [pod["metadata"]["name"] for pod in stage.pods("ring")] == ["ring-1", "ring-2"]
    assert not stage.bound("ring")


def test_a_plain_pod_that_preempts_two_members_at_bind_has_their_node(stage: ClusterStage, high: str) -> None:
    # With the first of them its gang is over, so the second has left bind before kube-scheduler ends it.
    node = on_node(stage, 0)
    stage.create_group("ring", 3)
    stage.create_pods(["ring-0", "ring-1"], "ring", cpu="15", nodeSelector=node)
    stage.create_pods(["ring-2"], "ring", volumes=await_a_volume(stage))
    eventually("two members at bind", lambda: any(view["atBind"] == 2 for view in stage.held_in_ledger()))

    stage.create_pods(["plain-0"], cpu="30", nodeSelector=node, priorityClassName=high)
    stage.await_bound("plain", 1, seconds=60)
    assert [pod["metadata"]["name"] for pod in stage.pods("ring")] == ["ring-2"]
