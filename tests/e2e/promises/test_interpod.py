"""Members with rules about other pods, and about each other, are planned by these rules: 12 nodes in 4 racks of 3.

Nobody is refused: what kube-scheduler finds of each is what was planned.
"""

from typing import Any

import pytest

from tests.support.cluster_stage import RACK, ClusterStage, names
from tests.support.clusters import at_one_level

pytestmark = [pytest.mark.e2e, at_one_level("native")]

APP = {"app": "ring"}
CACHE = {"app": "cache"}
HOSTNAME = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def beside(labels: dict[str, str], key: str = RACK) -> dict[str, Any]:
    return {"affinity": {"podAffinity": {_REQUIRED: [_about(labels, key)]}}}


def apart(labels: dict[str, str], key: str = RACK) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": {_REQUIRED: [_about(labels, key)]}}}


def spread(labels: dict[str, str], key: str = RACK, **more: Any) -> dict[str, Any]:
    rule = _about(labels, key) | {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [rule | more]}


def _about(labels: dict[str, str], key: str) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": labels}}


def await_placed(stage: ClusterStage, name: str, count: int) -> None:
    """The gang is bound within two seconds, and the scheduler has refused none of its members a planned node."""
    stage.await_bound(name, count, seconds=2.0)
    assert not [said for said in stage.decisions(name) if "refuse" in said.lower()]


def count_by_rack(stage: ClusterStage, prefix: str) -> list[int]:
    nodes = stage.cluster.api.get("/api/v1/nodes")["items"]
    rack_of = {node["metadata"]["name"]: node["metadata"]["labels"][RACK] for node in nodes}
    racks = [rack_of[node] for node in stage.bound(prefix).values()]
    return sorted((racks.count(rack) for rack in set(racks)), reverse=True)


@pytest.mark.parametrize(
    ("size", "rules", "counts"),
    [
        pytest.param(8, spread(APP), [2, 2, 2, 2], id="spread over racks"),
        pytest.param(6, spread(APP, maxSkew=2), None, id="spread with some skew"),
        pytest.param(4, apart(APP), [1, 1, 1, 1], id="one a rack"),
        pytest.param(8, beside(APP), [8], id="all beside each other"),
        pytest.param(3, beside(APP, HOSTNAME), [3], id="all on one node"),
    ],
)
def test_members_are_placed_as_they_have_to_be_to_each_other(
    stage: ClusterStage, size: int, rules: dict[str, Any], counts: list[int] | None
) -> None:
    stage.create_group("ring", size)
    stage.create_pods(names("ring", size), "ring", labels=APP, **rules)
    await_placed(stage, "ring", size)
    assert counts in (None, count_by_rack(stage, "ring"))


def test_members_are_beside_the_cache_that_they_need(stage: ClusterStage) -> None:
    stage.create_pods(["cache-0"], labels=CACHE)
    stage.await_bound("cache", 1)
    stage.create_group("ring", 8)
    stage.create_pods(names("ring", 8), "ring", labels=APP, **beside(CACHE))
    await_placed(stage, "ring", 8)
    assert stage.racks("ring") == stage.racks("cache")


def test_workers_follow_the_leader_that_they_have_to_be_beside(stage: ClusterStage) -> None:
    stage.create_group("ring", 3)
    stage.create_pods(names("ring", 2, start=1), "ring", labels=APP, **beside(CACHE, HOSTNAME))
    stage.create_pods(["ring-0"], "ring", labels=CACHE)
    stage.await_bound("ring", 3, seconds=15.0)  # kube-scheduler comes back to those whom it had refused before
    assert len(set(stage.bound("ring").values())) == 1


def test_nobody_starts_where_one_of_them_would_be_beside_nobody(stage: ClusterStage) -> None:
    stage.create_group("ring", 5)
    stage.create_pods(names("ring", 5), "ring", labels=APP, **apart(APP))
    stage.await_reason("ring", "NoCapacity", "only 4 of 5 members fit into the cluster")
    assert not stage.bound("ring")


def test_a_member_that_a_mate_keeps_off_though_it_does_not_say_so_itself_goes_elsewhere_or_waits_with_it(
    stage: ClusterStage,
) -> None:
    """Upstream's TestPodGroupSchedulingWithPodAntiAffinity (podgroup_affinity_test.go)."""
    first, second, *_ = sorted(node["metadata"]["name"] for node in stage.cluster.api.get("/api/v1/nodes")["items"])

    def submit(group: str, nodes: list[str]) -> None:
        stage.create_group(group, 2)
        wanted = {"key": HOSTNAME, "operator": "In", "values": nodes}
        affine = {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}}}
        keeps = apart(APP, HOSTNAME)["affinity"]
        stage.create_pods([f"{group}-0"], group, labels=APP, nodeSelector={HOSTNAME: first}, affinity=keeps)
        stage.create_pods([f"{group}-1"], group, labels=APP, affinity=affine)

    submit("one", [first])
    stage.await_reason("one", "NoCapacity", "podAntiAffinity")
    assert not stage.bound("one")
    stage.delete_pods("one-0", "one-1")

    submit("two", [first, second])
    await_placed(stage, "two", 2)
    assert stage.bound("two") == {"two-0": first, "two-1": second}


@pytest.mark.parametrize(
    ("rules", "rack"),
    [
        pytest.param(apart(CACHE), "rack-3", id="no cache in the rack"),
        pytest.param(apart(CACHE, HOSTNAME), "rack-3", id="no cache on the nodes"),
        pytest.param(beside(CACHE) | {"nodeSelector": {RACK: "rack-1"}}, "rack-1", id="a cache in the rack"),
    ],
)
def test_a_gang_of_one_rack_finds_the_one_that_its_rules_leave(
    stage: ClusterStage, rules: dict[str, Any], rack: str
) -> None:
    for index in range(3):
        stage.create_pods([f"cache-{index}"], labels=CACHE, nodeSelector={RACK: f"rack-{index}"})
    stage.await_bound("cache", 3)
    stage.create_group("ring", 3, RACK)
    stage.create_pods(names("ring", 3), "ring", labels=APP, cpu="20", **rules)
    await_placed(stage, "ring", 3)
    assert stage.racks("ring") == {rack}


def test_gangs_that_keep_each_other_off_share_no_rack_though_they_come_together(stage: ClusterStage) -> None:
    for name, other in (("red", "blue"), ("blue", "red")):
        stage.create_group(name, 5)
        stage.create_pods(names(name, 5), name, labels={"team": name}, **apart({"team": other}))
    stage.await_bound("red", 5)
    stage.await_bound("blue", 5)
    assert not stage.racks("red") & stage.racks("blue")


def test_late_members_go_where_the_rules_of_those_that_run_leave_room(stage: ClusterStage) -> None:
    stage.create_group("ring", 3)
    stage.create_pods(names("ring", 3), "ring", labels=APP, **spread(APP))
    await_placed(stage, "ring", 3)
    stage.create_pods(names("ring", 2, start=3), "ring", labels=APP, **spread(APP))
    await_placed(stage, "ring", 5)
    assert count_by_rack(stage, "ring") == [2, 1, 1, 1]
