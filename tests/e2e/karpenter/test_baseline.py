"""Nodes that Karpenter adds beside Serried when no gang asks for nodes."""

import pytest

from bench.karpenter import Batch
from tests.e2e.karpenter.stage import DO_NOT_DISRUPT, KarpenterStage
from tests.support.cluster_stage import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.full]


def test_karpenter_buys_a_node_for_a_plain_pod_that_finds_no_room(stage: KarpenterStage) -> None:
    stage.create_pool()

    stage.buy_by_plain_pod("plain")

    (node,) = stage.nodes()
    assert stage.bound("plain") == {"plain": node["metadata"]["name"]}
    assert len(stage.claims()) == 1
    assert stage.batches() == [Batch(pods=1, claims=1)]


def test_a_gang_that_waits_for_members_buys_nothing_while_others_do(stage: KarpenterStage) -> None:
    stage.create_pool()
    stage.submit("ring", 5, members=2)
    stage.await_reason("ring", "QuorumMissing")

    # Each of these pods is seen, and bought for, after both members were there to be bought for.
    for number in range(3):
        stage.buy_by_plain_pod(f"plain-{number}")

    assert stage.batches() == [Batch(pods=1, claims=1)] * 3
    assert len(stage.claims()) == 3
    assert stage.gated("ring") == ["ring-0", "ring-1"]
    eventually("what Karpenter says of a plain pod", lambda: stage.said_by_karpenter("plain-0"))
    assert stage.said_by_karpenter("ring-0") == stage.said_by_karpenter("ring-1") == []


def test_karpenter_takes_empty_nodes_away_but_for_those_with_the_annotation(stage: KarpenterStage) -> None:
    stage.create_pool(consolidate_after="0s")
    for name in ("kept", "gone"):
        stage.buy_by_plain_pod(name)
    kept, gone = stage.bound()["kept"], stage.bound()["gone"]
    stage.cluster.api.patch(f"/api/v1/nodes/{kept}", {"metadata": {"annotations": {DO_NOT_DISRUPT: "true"}}})

    # Karpenter looks at all empty nodes at the same time: when it takes the last one of them, it has left the other.
    stage.delete_pods("kept")
    stage.delete_pods("gone")

    eventually("Karpenter takes a node", lambda: gone not in stage.list_names(), 90)
    assert stage.list_names() == {kept}
