"""Pods of another scheduler make no room for a gang, for it would take that room first. 12 nodes of 32 CPU in 4 racks.

The cluster has a stock kube-scheduler of its own, ``default-scheduler``, and Deployments, whose pods come back.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.promises.test_preemption import WHOLE_NODE, create_high_class, find_gone, run_low, submit
from tests.support.cluster_stage import ClusterStage, eventually, names, pod_spec
from tests.support.clusters import at_one_level

pytestmark = [pytest.mark.e2e, at_one_level("native")]

APP = {"app": "web"}


class Deployment:
    """Pods of another scheduler, each as large as a node, that are made anew whenever one goes."""

    def __init__(self, stage: ClusterStage, replicas: int) -> None:
        self._stage = stage
        self._path = f"/apis/apps/v1/namespaces/{stage.namespace}/deployments"
        template = {"metadata": {"labels": APP}, "spec": pod_spec(WHOLE_NODE) | {"schedulerName": "default-scheduler"}}
        spec = {"replicas": replicas, "selector": {"matchLabels": APP}, "template": template}
        stage.cluster.api.post(self._path, {"metadata": {"name": "web"}, "spec": spec})

    def scale(self, replicas: int) -> None:
        """Change the number of replicas."""
        patch = json.dumps({"spec": {"replicas": replicas}})
        self._stage.cluster.kubectl("patch", "deployment", "web", "-n", self._stage.namespace, "-p", patch)

    def running(self) -> set[str]:
        """The names of its bound pods: who was made anew has another one."""
        return set(self._stage.bound("web"))

    def refused(self) -> list[str]:
        """Return the pods that their scheduler has tried in vain."""
        conditions = ((pod, c) for pod in self._stage.pods("web") for c in pod["status"].get("conditions", ()))
        return [pod["metadata"]["name"] for pod, c in conditions if c.get("reason") == "Unschedulable"]

    def delete(self) -> None:
        """Delete the Deployment with its pods."""
        self._stage.cluster.api.delete(f"{self._path}/web", "Foreground")
        eventually("the end of its pods", lambda: not self._stage.pods("web"))


@pytest.fixture
def web(stage: ClusterStage) -> Iterator[Deployment]:
    made = Deployment(stage, 0)
    yield made
    made.delete()


@pytest.mark.full
def test_a_gang_gets_the_room_of_pods_of_ours_and_not_while_another_scheduler_waits_for_it(
    stage: ClusterStage, web: Deployment
) -> None:
    high = create_high_class(stage)
    run_low(stage, 3)
    web.scale(10)
    eventually("nine that run and one that waits", lambda: len(web.running()) == 9 and len(web.refused()) == 1)
    before = web.running()
    submit(stage, "ring", 3, high)
    elsewhere = "another scheduler serves these pods, and would take the freed resources"
    waits = "pods of another scheduler wait, and would take the freed resources"
    stage.await_reason("ring", "NoCapacity", "12 pods may not be evicted", elsewhere, waits, seconds=30)
    assert (web.running(), find_gone(stage, "low", 3)) == (before, set())
    assert not stage.messages("ring", "PreemptionBegun")

    web.scale(9)
    stage.await_bound("ring", 3, 90)
    assert (web.running(), len(find_gone(stage, "low", 3))) == (before, 3)
    assert len(eventually("the event", lambda: stage.messages("ring", "PreemptionBegun"))) == 1


def evict(stage: ClusterStage, name: str) -> str:
    """Evict a pod, as a drain and a descheduler do. Return the node on which it ran."""
    node = stage.bound()[name]
    eviction: dict[str, Any] = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    stage.cluster.api.post(f"/api/v1/namespaces/{stage.namespace}/pods/{name}/eviction", eviction)
    eventually(f"the end of {name}", lambda: name not in stage.bound())
    return node


def test_members_that_a_descheduler_or_a_drain_evicts_come_back_without_another_eviction(
    stage: ClusterStage, web: Deployment
) -> None:
    high = create_high_class(stage)
    stage.create_group("ring", 3)
    stage.create_pods(names("ring", 3), "ring", cpu=WHOLE_NODE, priorityClassName=high)
    stage.await_bound("ring", 3)
    web.scale(9)
    eventually("a full cluster", lambda: len(web.running()) == 9)
    before = web.running()

    node = evict(stage, "ring-0")
    stage.create_pods(["ring-0"], "ring", cpu=WHOLE_NODE, priorityClassName=high)
    eventually("the member on its node", lambda: stage.bound("ring").get("ring-0") == node)

    node = stage.bound("ring")["ring-1"]
    stage.cluster.kubectl("cordon", node)
    try:
        evict(stage, "ring-1")
        stage.create_pods(["ring-1"], "ring", cpu=WHOLE_NODE, priorityClassName=high)
        stage.await_reason("ring", "Broken", "only 0 of 1 members fit into the cluster", seconds=30)
        assert sorted(stage.bound("ring")) == ["ring-0", "ring-2"]
    finally:
        stage.cluster.kubectl("uncordon", node)
    stage.await_bound("ring", 3, 60)
    assert web.running() == before
    assert not stage.messages("ring", "PreemptionBegun")
