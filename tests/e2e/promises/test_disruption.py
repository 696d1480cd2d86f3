"""A gang of mode all goes whole or stays whole, for any reason that one of its members has to go.

12 nodes of 32 CPU.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from tests.e2e.promises.test_repair import told
from tests.e2e.promises.test_volumes import Disks, lend_disks, mounting
from tests.support.cluster_stage import ClusterStage, eventually, names

pytestmark = pytest.mark.e2e

WHOLE_NODE = "30"
HIGH = "disruption-high"


@pytest.fixture
def high(stage: ClusterStage) -> str:
    """A PriorityClass above all others of the tests."""
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    if all(item["metadata"]["name"] != HIGH for item in stage.cluster.api.get(classes)["items"]):
        stage.cluster.api.post(classes, {"metadata": {"name": HIGH}, "value": 1000})
    return HIGH


@pytest.fixture
def late_disks(stage: ClusterStage) -> Iterator[Disks]:
    """Volumes that somebody provisions for a claim once its pod has a node: until then kube-scheduler does not bind."""
    yield from lend_disks(stage, provisioner="example.com/by-hand")


def create_whole_group(stage: ClusterStage, name: str, size: int) -> None:
    """The PodGroup of a gang of mode all."""
    spec = {"schedulingPolicy": {"gang": {"minCount": size}}, "disruptionMode": stage.whole}
    stage.create_scheduling("PodGroup", name, spec)


def run_whole_gang(stage: ClusterStage, name: str, size: int, labels: dict[str, str] | None = None) -> None:
    """A gang of mode all, each member on a node of its own."""
    create_whole_group(stage, name, size)
    stage.create_pods(names(name, size), name, cpu=WHOLE_NODE, labels=labels)
    stage.await_bound(name, size)


def evict(stage: ClusterStage, name: str) -> None:
    """Evict a pod, as kubectl drain does."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    stage.cluster.api.post(f"/api/v1/namespaces/{stage.namespace}/pods/{name}/eviction", eviction)


def evicting(stage: ClusterStage) -> AbstractContextManager[None]:
    """A gang goes with a member that is evicted."""
    return told(stage, disrupted_gangs=("any", "preempted"))


@pytest.mark.both_levels
def test_a_plain_pod_takes_the_room_of_plain_pods_rather_than_of_one_member(stage: ClusterStage, high: str) -> None:
    run_whole_gang(stage, "ring", 9)
    stage.create_pods(names("low", 3), cpu=WHOLE_NODE)
    stage.await_bound("low", 3)
    stage.create_pods(names("high", 3), cpu=WHOLE_NODE, priorityClassName=high)
    stage.await_bound("high", 3)
    assert not stage.pods("low")
    assert len(stage.bound("ring")) == 9


@pytest.mark.both_levels
def test_where_nothing_else_is_left_the_whole_gang_goes_and_is_placed_anew_together(
    stage: ClusterStage, high: str
) -> None:
    run_whole_gang(stage, "ring", 12)
    stage.create_pods(["high"], cpu=WHOLE_NODE, priorityClassName=high)
    stage.await_bound("high", 1)
    eventually("nobody of the gang", lambda: not stage.pods("ring"))
    eventually("the event", lambda: any(reason == "GangDisrupted" for reason, _ in stage.events("ring")))

    # By other names: kwok ends a pod by its name alone, and would now and then end the one that was made anew under it.
    stage.create_pods(names("ring", 24)[12:], "ring", cpu=WHOLE_NODE)
    stage.await_reason("ring", "NoCapacity")
    assert not stage.bound("ring")
    stage.delete_pods("high")
    stage.await_bound("ring", 12)


def test_a_pod_that_comes_while_a_gang_is_on_its_way_gets_room_once_the_gang_is_bound(
    stage: ClusterStage, late_disks: Disks, high: str
) -> None:
    late_disks.create_claim("late")
    create_whole_group(stage, "ring", 12)
    stage.create_pods(["ring-0"], "ring", cpu=WHOLE_NODE, volumes=mounting("late"))
    stage.create_pods(names("ring", 12)[1:], "ring", cpu=WHOLE_NODE)
    eventually("all but one at bind", lambda: (stage.debug_page("ring").get("plan") or {}).get("atBind") == 11)
    slots = stage.debug_page("ring")["plan"]["slots"]
    taken = next(node for node, members in slots.items() if "ring-1" in members)

    stage.create_pods(["high"], cpu=WHOLE_NODE, priorityClassName=high, nodeSelector={"kubernetes.io/hostname": taken})
    eventually("the scheduler's word", lambda: "no candidate node" in said_of(stage, "high"))
    assert not stage.bound()

    late_disks.create_volume("disk", list(slots))
    late_disks.bind("late", "disk")
    stage.await_bound("high", 1)
    eventually("nobody of the gang", lambda: not stage.pods("ring"))


def test_a_pod_waits_where_gangs_are_not_to_be_ended(stage: ClusterStage, high: str) -> None:
    with told(stage, disrupted_gangs=("keep", "preempted")):
        run_whole_gang(stage, "ring", 12)
        stage.create_pods(["high"], cpu=WHOLE_NODE, priorityClassName=high)
        eventually("the scheduler's word", lambda: "no candidate node" in said_of(stage, "high"))
        assert len(stage.bound("ring")) == 12


def said_of(stage: ClusterStage, name: str) -> str:
    """Return kube-scheduler's last message about a pod that it could not place."""
    (found,) = stage.pods(name)
    conditions = found["status"].get("conditions", [])
    return next((each.get("message", "") for each in conditions if each["type"] == "PodScheduled"), "")


def test_the_gang_goes_with_a_member_that_is_drained_if_that_is_asked_for(stage: ClusterStage) -> None:
    with evicting(stage):
        run_whole_gang(stage, "ring", 12)
        evict(stage, "ring-7")
        eventually("nobody of the gang", lambda: not stage.pods("ring"))


def test_a_budget_that_refuses_the_others_keeps_the_gang_and_its_place(stage: ClusterStage) -> None:
    with evicting(stage):
        run_whole_gang(stage, "ring", 3, {"ring": "here"})
        before = stage.bound("ring")
        stage.create_budget("ring", {"ring": "here"}, minAvailable=2)
        eventually("one that may go", lambda: stage.disruptions_allowed("ring") == 1)
        evict(stage, "ring-0")
        eventually("that it was noticed", lambda: any(reason == "GangDisrupted" for reason, _ in stage.events("ring")))
        eventually("that it is gone", lambda: len(stage.pods("ring")) == 2)

        stage.create_pods(["ring-0"], "ring", cpu=WHOLE_NODE, labels={"ring": "here"})
        stage.await_bound("ring", 3)
        assert stage.bound("ring") == before
