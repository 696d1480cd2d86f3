"""A cluster without the gate's overlay, and an extender that would hold by gates."""

import pytest

from tests.support.cluster_stage import ClusterStage, eventually, names

pytestmark = pytest.mark.e2e


def test_pods_stay_held_by_filter_and_the_selfcheck_says_why(stage: ClusterStage) -> None:
    stage.cluster.restart("extender", "--hold", "auto", "--hold-limit", "1")
    try:
        stage.create_group("ring", 4)
        stage.create_pods(names("ring", 3), "ring")
        eventually("held pods", lambda: stage.selfcheck()["hold"]["heldByFilter"] == 3)
        hold = eventually("a way", lambda: found if (found := stage.selfcheck()["hold"])["way"] else None)
        assert hold["way"] == "filter"
        assert "ConfigMap serried-system/serried-hold does not exist" in hold["obstacle"]
        stage.create_pods(names("ring", 1, start=3), "ring")
        stage.await_bound("ring", 4)
    finally:
        stage.cluster.restart("extender")
