"""Gangs for which others go because a rule about other pods keeps members off, not for want of room.

Upstream's cases (podgrouppreemption_test.go of kube-scheduler 1.37) with upstream's outcome: 12 nodes of 32 CPU in 4
racks of 3. There would be room beside the victims.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.priorities.stage import PriorityStage
from tests.e2e.promises.test_apart import listening
from tests.e2e.promises.test_interpod import apart, beside, spread
from tests.support.cluster_stage import RACK, names, pod_spec

pytestmark = pytest.mark.e2e

OLD, RING = {"app": "old"}, {"app": "ring"}
HOSTNAME = "kubernetes.io/hostname"
BIG = "24"
"""CPUs of which a node has room for one member, and for small pods beside it."""


@pytest.fixture
def high(stage: PriorityStage) -> Iterator[str]:
    with stage.priority_class("high", 1000) as name:
        yield name


def listening_on_8080(cpu: str) -> dict[str, Any]:
    (container,), (port,) = pod_spec(cpu)["containers"], listening()
    return {"containers": [container | {"ports": port["ports"]}]}


def as_a_whole(cpu: str) -> dict[str, Any]:
    """Fields of a pod that asks for so much itself, and its container for nothing."""
    return {"containers": [{"name": "main", "image": "none"}], "resources": {"requests": {"cpu": cpu}}}


def nodes_of(stage: PriorityStage, rack: str) -> list[str]:
    nodes = stage.cluster.api.get("/api/v1/nodes")["items"]
    return sorted(each["metadata"]["name"] for each in nodes if each["metadata"]["labels"][RACK] == rack)


def on(node: str) -> dict[str, str]:
    return {"kubernetes.io/hostname": node}


def run(stage: PriorityStage, name: str, node: str, **fields: Any) -> None:
    """A pod of one CPU runs on a node."""
    stage.create_pods([name], nodeSelector=on(node), **fields)
    stage.await_bound(name, 1)


def staying(stage: PriorityStage, prefix: str = "old") -> list[str]:
    """Return the names of the pods that have not been told to end."""
    return sorted(pod["metadata"]["name"] for pod in stage.pods(prefix) if "deletionTimestamp" not in pod["metadata"])


@pytest.mark.parametrize("tree", [False, True], ids=["gang", "tree"])
@pytest.mark.parametrize(
    ("old", "members"),
    [
        pytest.param({"labels": OLD}, apart(OLD, HOSTNAME), id="anti-affinity"),
        pytest.param(apart(RING, HOSTNAME), {"labels": RING}, id="anti-affinity of the victim"),
        pytest.param(listening_on_8080("1"), listening_on_8080(BIG), id="host port"),
        pytest.param(
            {"labels": OLD, **as_a_whole("32")},
            {**apart(OLD, HOSTNAME), **as_a_whole(BIG)},
            id="anti-affinity, and requests of whole pods",
            marks=pytest.mark.full,
        ),
    ],
)
def test_only_pods_that_keep_members_off_a_node_go(
    stage: PriorityStage, high: str, old: dict[str, Any], members: dict[str, Any], *, tree: bool
) -> None:
    first, second, _ = nodes_of(stage, "rack-0")
    run(stage, "old-0", first, **old)
    run(stage, "old-1", second)
    if tree:
        stage.create_root("root", priorityClassName=high)
        stage.create_branch("ring", 12)
    else:
        stage.create_gang("ring", 12, priorityClassName=high)
    stage.create_pods(names("ring", 12), "ring", cpu=BIG, priorityClassName=high, **members)
    stage.await_bound("ring", 12)
    assert staying(stage) == ["old-1"]


@pytest.mark.both_levels
@pytest.mark.parametrize("elsewhere", [False, True], ids=["alone", "and another one that is not in the way"])
def test_pods_that_count_for_the_skew_of_members_go(stage: PriorityStage, high: str, *, elsewhere: bool) -> None:
    first, second, _ = nodes_of(stage, "rack-0")
    with stage.priority_class("middle", 10) as middle:
        run(stage, "old-0", first, labels=RING, priorityClassName=middle)
        if elsewhere:
            run(stage, "old-1", second, labels=RING)
        stage.create_gang("ring", 2, priorityClassName=high)
        rule = spread(RING, HOSTNAME, maxSkew=2, minDomains=20)
        stage.create_pods(names("ring", 2), "ring", labels=RING, priorityClassName=high, nodeSelector=on(first), **rule)
        stage.await_bound("ring", 2)
        assert staying(stage) == (["old-1"] if elsewhere else [])


def test_of_racks_where_somebody_is_in_the_way_that_is_taken_whose_pods_may_go(stage: PriorityStage, high: str) -> None:
    for index in range(4):
        priority = {} if index == 2 else {"priorityClassName": high}
        run(stage, f"old-{index}", nodes_of(stage, f"rack-{index}")[0], labels=OLD, **priority)
    annotations = {"scheduling.serried.dev/required-topology": RACK}
    stage.create_scheduling(
        "PodGroup", "ring", {"schedulingPolicy": {"gang": {"minCount": 3}}, "priorityClassName": high}, annotations
    )
    stage.create_pods(names("ring", 3), "ring", priorityClassName=high, **apart(OLD))
    stage.await_bound("ring", 3)
    assert stage.racks("ring") == {"rack-2"}
    assert staying(stage) == ["old-0", "old-1", "old-3"]


def test_nobody_goes_where_the_one_in_the_way_has_the_gang_s_priority(stage: PriorityStage, high: str) -> None:
    first, second, _ = nodes_of(stage, "rack-0")
    run(stage, "old-0", first, labels=OLD, priorityClassName=high)
    run(stage, "old-1", second, labels=OLD)
    stage.create_gang("ring", 12, priorityClassName=high)
    stage.create_pods(names("ring", 12), "ring", cpu=BIG, priorityClassName=high, **apart(OLD, HOSTNAME))
    stage.await_reason("ring", "NoCapacity", "members fit into the cluster", "podAntiAffinity app=old")
    asked = stage.debug_page("ring?dryRun")["dryRun"]
    assert asked["message"] == "preemption would help, but pods of priority 1000 have no lower priority"
    assert staying(stage) == ["old-0", "old-1"]

    stage.delete_pods("old-0")
    stage.await_bound("ring", 12)
    assert not staying(stage)


def test_the_pod_that_members_have_to_be_beside_stays_and_those_beside_it_go(stage: PriorityStage, high: str) -> None:
    first, *_ = nodes_of(stage, "rack-1")
    run(stage, "cache-0", first, labels={"app": "cache"})
    stage.create_pods(names("old", 12), cpu=BIG)
    stage.await_bound("old", 12)
    stage.create_gang("ring", 2, priorityClassName=high)
    stage.create_pods(names("ring", 2), "ring", cpu=BIG, priorityClassName=high, **beside({"app": "cache"}))
    stage.await_bound("ring", 2)
    assert stage.racks("ring") == {"rack-1"}
    assert stage.bound("cache") == {"cache-0": first}
    assert len(staying(stage)) == 10


@pytest.mark.full
def test_of_the_pods_that_members_may_be_beside_those_go_that_are_in_the_way(stage: PriorityStage, high: str) -> None:
    """Upstream's GangPreemptionAffinity (scheduler_perf/workload_preemption)."""
    hosts = nodes_of(stage, "rack-1")[:2]
    with stage.priority_class("higher", 2000) as higher:
        for at, host in enumerate(hosts):
            run(stage, f"anchor-{at}", host, labels={"app": "blue"}, priorityClassName=higher)
            for index in range(5):
                run(stage, f"old-{at}-{index}", host, labels={"app": "blue"})
        stage.create_gang("ring", 2, priorityClassName=high)
        stage.create_pods(
            names("ring", 2), "ring", cpu="31", priorityClassName=high, **beside({"app": "blue"}, HOSTNAME)
        )
        stage.await_bound("ring", 2)
        assert set(stage.bound("ring").values()) == set(hosts)
        assert len(stage.bound("anchor")) == 2
        assert not staying(stage)


@pytest.mark.parametrize(
    ("size", "rules", "racks"),
    [
        pytest.param(4, spread(RING), 4, id="spread over racks"),
        pytest.param(8, spread(RING), 4, id="spread over racks, two on a node"),
        pytest.param(3, beside(RING), 1, id="beside each other"),
        pytest.param(4, apart(RING), 4, id="one a rack"),
        pytest.param(2, beside(RING, HOSTNAME), 1, id="on one node"),
    ],
)
def test_in_a_full_cluster_so_many_go_as_members_come_and_where_these_have_to_be(
    stage: PriorityStage, high: str, size: int, rules: dict[str, Any], racks: int
) -> None:
    cpu = "15" if HOSTNAME in str(rules) or size > 4 else "30"
    stage.create_pods(names("old", 12), cpu="30")
    stage.await_bound("old", 12)
    stage.create_gang("ring", size, priorityClassName=high)
    stage.create_pods(names("ring", size), "ring", cpu=cpu, labels=RING, priorityClassName=high, **rules)
    stage.await_bound("ring", size)
    assert len(stage.racks("ring")) == racks
    assert len(staying(stage)) == 12 - len(set(stage.bound("ring").values()))


@pytest.mark.both_levels
def test_members_that_are_spread_two_on_a_node_get_the_room_of_victims_though_others_wait_for_it(
    stage: PriorityStage, high: str
) -> None:
    stage.create_pods(names("old", 12), cpu="30")
    stage.await_bound("old", 12)
    stage.create_pods(names("next", 4), cpu="30")
    stage.create_gang("ring", 8, priorityClassName=high)
    stage.create_pods(names("ring", 8), "ring", cpu="15", labels=RING, priorityClassName=high, **spread(RING))
    stage.await_bound("ring", 8)
    assert len(staying(stage)) == 8
    assert not stage.bound("next")
