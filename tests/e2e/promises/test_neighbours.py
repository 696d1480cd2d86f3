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
    stage.await_reason("ring", "NoCapacity", "the cluster has room for 4 of 5 members")
    assert not stage.bound("ring")
