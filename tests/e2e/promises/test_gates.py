"""Holding by scheduling gate: the shipped policy adds the gate, Serried lifts it when the gang can go."""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster, Spec
from tests.support.cluster_stage import RACK, ClusterStage, eventually, names, staged
from tests.support.clusters import run_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.full]

GATE = "scheduling.serried.dev/held"
FOREIGN = "example.com/quota"


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    spec = Spec(name="gates", nodes=12, racks=4, api="fallback", hold="gate")
    with run_cluster(spec, tmp_path_factory) as started:
        yield started


@pytest.fixture
def stage(gated: Cluster) -> Iterator[ClusterStage]:
    with staged(ClusterStage, gated) as stage:
        eventually("the way of holding", lambda: stage.selfcheck()["hold"]["way"] == "gate")
        yield stage


def gates(stage: ClusterStage, prefix: str) -> list[list[str]]:
    return [[gate["name"] for gate in pod["spec"].get("schedulingGates", [])] for pod in stage.pods(prefix)]


def test_gated_members_wait_without_the_scheduler_and_go_together(stage: ClusterStage) -> None:
    stage.create_group("ring", 4, RACK)
    stage.create_pods(names("ring", 3), "ring", cpu="16")
    stage.create_pods(["plain-0"])

    assert gates(stage, "ring") == [[GATE]] * 3
    assert gates(stage, "plain") == [[]]
    stage.await_reason("ring", "QuorumMissing")
    stage.await_bound("plain", 1)

    stage.create_pods(names("ring", 1, start=3), "ring", cpu="16")
    stage.await_bound("ring", 4)
    assert len(stage.racks("ring")) == 1

    # Members of a basic group look like a gang's to the policy; their gates are lifted at once.
    stage.create_group("loose", None)
    stage.create_pods(names("loose", 2), "loose")
    stage.await_bound("loose", 2)


def test_a_gate_of_another_owner_holds_the_whole_gang_and_ours_are_lifted_only_after_it(stage: ClusterStage) -> None:
    stage.create_group("ring", 2)
    stage.create_pods(["ring-0"], "ring")
    stage.create_pods(["ring-1"], "ring", schedulingGates=[{"name": FOREIGN}])

    stage.await_reason(
        "ring", "MemberGated", "1 member has a scheduling gate that another controller has to remove", FOREIGN
    )
    assert sorted(map(sorted, gates(stage, "ring"))) == [sorted([FOREIGN, GATE]), [GATE]]

    stage.remove_gates("ring-1", but=GATE)
    stage.await_bound("ring", 2)
