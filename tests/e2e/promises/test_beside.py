"""Differences where kube-scheduler schedules gangs itself, too (docs/api-levels.md): 12 nodes of 32 CPU.

The stories that are the same there are told there by their own files.
"""

import pytest

from tests.support.cluster_stage import ClusterStage, eventually, names

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.parametrize("cluster", ["beside"], indirect=True)]

WHOLE_NODE = "30"
NOWHERE = {
    "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "nowhere"}}}
        ]
    }
}
"""A rule that lets the scheduler refuse every node."""


def test_the_selfcheck_says_that_the_scheduler_schedules_gangs_itself(stage: ClusterStage) -> None:
    stage.create_group("ring", 2)
    stage.create_pods(names("ring", 2), "ring")
    stage.await_bound("ring", 2)
    eventually("what the condition shows", lambda: stage.selfcheck()["schedulesGangs"])


def test_nobody_comes_to_bind_before_the_scheduler_has_nodes_for_the_quorum(stage: ClusterStage) -> None:
    stage.create_group("held", 3)
    stage.create_pods(names("held", 2), "held", cpu=WHOLE_NODE)
    stage.create_pods(["held-2"], "held", affinity=NOWHERE)
    stage.await_reason("held", "NoCapacity", "podAffinity app=nowhere", seconds=30.0)
    assert all(view["atBind"] == 0 for view in stage.held_in_ledger())
    assert not stage.bound("held")

    stage.delete_pods("held-2")
    stage.create_pods(["held-3"], "held", cpu=WHOLE_NODE)
    stage.await_bound("held", 3)
