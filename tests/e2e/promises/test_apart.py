"""Members that do not share a node, and preferences of pods: 12 nodes of 32 CPU in 4 racks of 3."""

from typing import Any

import pytest

from tests.support.cluster_stage import RACK, ClusterStage, names, pod_spec
from tests.support.clusters import BESIDE_NATIVE_GANGS, at_one_level

pytestmark = [pytest.mark.e2e, at_one_level("native", BESIDE_NATIVE_GANGS)]

APP = {"app": "ring"}
HOSTNAME = "kubernetes.io/hostname"


def term(key: str = HOSTNAME) -> dict[str, Any]:
    return {"topologyKey": key, "labelSelector": {"matchLabels": APP}}


APART = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term()]}}


def listening(port: int = 8080) -> list[dict[str, Any]]:
    """Containers of which one has a port of its host."""
    (container,) = pod_spec("1")["containers"]
    return [container | {"ports": [{"containerPort": port, "hostPort": port}]}]


def nodes(stage: ClusterStage, prefix: str) -> int:
    """On how many nodes the bound pods are."""
    return len(set(stage.bound(prefix).values()))


@pytest.mark.parametrize(
    ("labels", "fields"),
    [
        pytest.param(APP, {"affinity": APART}, id="anti-affinity"),
        pytest.param({}, {"containers": listening()}, id="host port"),
    ],
)
def test_members_that_keep_each_other_off_are_on_different_nodes_or_wait_whole(
    stage: ClusterStage, labels: dict[str, str], fields: dict[str, Any]
) -> None:
    stage.create_group("wide", 4, RACK)
    stage.create_pods(names("wide", 4), "wide", labels=labels, **fields)
    view = stage.await_reason("wide", "NoDomainFits")
    assert all(f"rack-{i}: 3" in view["message"] for i in range(4))
    assert not stage.bound("wide")
    stage.delete_pods(*names("wide", 4))

    stage.create_group("fits", 3, RACK)
    stage.create_pods(names("fits", 3), "fits", labels=labels, **fields)
    stage.await_bound("fits", 3)
    assert (nodes(stage, "fits"), len(stage.racks("fits"))) == (3, 1)

    stage.create_group("rest", 10)
    stage.create_pods(names("rest", 10), "rest", labels=labels, **fields)
    stage.await_reason("rest", "NoCapacity", "only 9 of 10 members fit into the cluster")
    assert len(stage.bound()) == 3

    stage.delete_pods(*names("fits", 3))  # of one alone the slot would be kept for the next
    stage.await_bound("rest", 10)
    assert nodes(stage, "rest") == 10


def test_a_port_that_a_plain_pod_listens_on_is_taken(stage: ClusterStage) -> None:
    stage.create_pods(["plain-0"], containers=listening())
    stage.await_bound("plain", 1)
    stage.create_group("ring", 12)
    stage.create_pods(names("ring", 12), "ring", containers=listening())
    stage.await_reason("ring", "NoCapacity", "only 11 of 12 members fit into the cluster")

    stage.delete_pods("plain-0")
    stage.await_bound("ring", 12)
    assert nodes(stage, "ring") == 12


def test_workers_that_keep_off_their_leader_which_does_not_say_so_are_placed_all_the_same(stage: ClusterStage) -> None:
    # Only the scheduler knows of it: its refusal moves the worker that was planned beside the leader.
    stage.create_group("ring", 3)
    stage.create_pods(["ring-0"], "ring", labels=APP)
    stage.create_pods(names("ring", 2, start=1), "ring", labels=APP, affinity=APART)
    stage.await_bound("ring", 3)
    assert nodes(stage, "ring") == 3


def spread(unsatisfiable: str, key: str = HOSTNAME) -> dict[str, Any]:
    selector = {"matchLabels": APP}
    return {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": unsatisfiable, "labelSelector": selector}


PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NOWHERE = {"matchExpressions": [{"key": "example.com/nowhere", "operator": "Exists"}]}
SOFT: dict[str, Any] = {
    "affinity": {
        "nodeAffinity": {PREFERRED: [{"weight": 100, "preference": NOWHERE}]},
        "podAffinity": {PREFERRED: [{"weight": 100, "podAffinityTerm": term()}]},
        "podAntiAffinity": {PREFERRED: [{"weight": 100, "podAffinityTerm": term(RACK)}]},
    },
    "topologySpreadConstraints": [spread("ScheduleAnyway"), spread("ScheduleAnyway", RACK)],
}


def test_preferences_break_no_plan(stage: ClusterStage) -> None:
    stage.create_group("ring", 9, RACK)
    stage.create_pods(names("ring", 9), "ring", cpu="10", labels=APP, **SOFT)
    stage.await_bound("ring", 9)
    assert len(stage.racks("ring")) == 1


def test_a_required_spread_over_hosts_is_met_by_what_the_scheduler_refuses(stage: ClusterStage) -> None:
    stage.create_group("ring", 6)
    constraints = [spread("DoNotSchedule")]
    stage.create_pods(names("ring", 6), "ring", labels=APP, topologySpreadConstraints=constraints)
    stage.await_bound("ring", 6, seconds=60)
    assert nodes(stage, "ring") == 6
